//! Signs of life for peers while the program does not call its endpoint (docs/protocol.md §10.1).
//!
//! The endpoint cannot send them, because nobody calls it then. It reports which connections exist; the
//! caller lists them for a thread that sends instead.

use std::net::SocketAddr;

use super::{Endpoint, State};
use crate::message::wire::Alive;
use crate::message::{Path, Time};

/// A sign of life for one peer: what to send, and where to.
pub type SignOfLife = (Path, Alive);

/// Places of connections that began or ended, if that is noted.
#[derive(Debug, Default)]
pub(super) struct Changes {
    is_noted: bool,
    places: Vec<u32>,
}

impl Changes {
    /// The connection at this place began or ended.
    pub(super) fn note(&mut self, index: u32) {
        if self.is_noted && self.places.last() != Some(&index) {
            self.places.push(index);
        }
    }

    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn capacity(&self) -> usize {
        self.places.capacity()
    }
}

impl<S, R: AsRef<[u8]>> Endpoint<S, R> {
    /// From here on notes which connections begin and end, for [`Endpoint::poll_sign_of_life`]; ask for them
    /// after each call.
    pub fn note_signs_of_life(&mut self) {
        self.changes.is_noted = true;
        self.changes.places = self.all_peers().map(|peer| peer.index() as u32).collect();
    }

    /// Whether [`Endpoint::poll_sign_of_life`] gives something.
    #[inline]
    pub fn has_sign_of_life(&self) -> bool {
        !self.changes.places.is_empty()
    }

    /// A connection that began or ended: its [number](crate::message::Peer::index), and the sign of life that
    /// its peer is to get from now on, if any.
    pub fn poll_sign_of_life(&mut self) -> Option<(usize, Option<SignOfLife>)> {
        let index = self.changes.places.pop()? as usize;
        Some((index, self.sign_of_life_at(index)))
    }

    /// All current signs of life, for a simulation to compare with what it was given.
    #[cfg(any(test, feature = "simulation"))]
    #[doc(hidden)]
    pub fn signs_of_life(&self) -> impl Iterator<Item = (usize, SignOfLife)> {
        self.all_peers().filter_map(|peer| Some((peer.index(), self.sign_of_life_at(peer.index())?)))
    }

    fn sign_of_life_at(&self, index: usize) -> Option<SignOfLife> {
        match &self.entries[index].state {
            // A client from which nothing has arrived yet is sent only the Accept (§3.4).
            State::Open(connection)
                if connection.announced && connection.ended.is_none() && connection.linger.is_none() =>
            {
                Some((connection.agreed.path, Alive { to: connection.agreed.remote_id }))
            }
            _ => None,
        }
    }

    /// Notes that the peer is alive, although its program does not read its messages.
    pub(super) fn handle_alive(&mut self, now: Time, from: SocketAddr, alive: Alive) {
        let Some(index) = self.named(alive.to, from) else { return };
        if let State::Open(connection) = &mut self.entries[index as usize].state {
            connection.note_alive(now);
            self.counters.signs_of_life += 1;
            self.after_packet(now, index);
        }
    }
}
