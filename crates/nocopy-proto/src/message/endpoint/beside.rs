//! Connections for puts, which exist beside those of the program's peers, and which the program does not see
//! (docs/protocol.md §17.2).

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::{Connecting, Endpoint, Next, State, index_of};
use crate::message::wire::{AbortReason, Placement};
use crate::message::{Event, LostReason, Peer, Time};

/// The program's connection to which a connection for puts belongs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Beside {
    main: Peer,
    /// This end has made it.
    is_ours: bool,
}

/// Why there is no connection for puts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BesideError {
    /// The peer is gone.
    Gone,
    /// The peer is not connected yet.
    Full,
    /// There is no place for another connection.
    NoPlace,
    /// The peer knows no puts.
    Unknown,
}

/// Events, oldest first: of the program's peers, and of connections for puts.
#[derive(Debug, Default)]
pub(super) struct Events {
    pub(super) of_program: VecDeque<Event>,
    beside: VecDeque<Event>,
}

impl Events {
    #[inline]
    pub(super) fn push(&mut self, is_beside: bool, event: Event) {
        if is_beside { self.beside.push_back(event) } else { self.of_program.push_back(event) }
    }

    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn capacity(&self) -> usize {
        self.of_program.capacity() + self.beside.capacity()
    }
}

impl<S, R: AsRef<[u8]>> Endpoint<S, R> {
    /// Allows a peer to open a connection for puts, because memory is registered for it.
    pub fn take_puts_of(&mut self, peer: Peer) {
        if self.open(peer).is_ok() {
            self.entries[peer.index()].takes_puts = true;
            self.takes_puts = true;
        }
    }

    /// The connection for puts to a peer; begins to open one if there is none.
    ///
    /// # Errors
    /// [`BesideError`].
    pub fn connect_beside(&mut self, now: Time, main: Peer) -> Result<Peer, BesideError> {
        let connection = self.open(main).map_err(|_| BesideError::Gone)?.ok_or(BesideError::Full)?;
        let (agreed, may_be) = (connection.agreed, connection.confirmed && connection.ended.is_none());
        if !agreed.knows_placement || !self.settings.placement {
            return Err(BesideError::Unknown);
        }
        if let Some(index) = self.entries[main.index()].companions[0] {
            return Ok(Peer { index, generation: self.entries[index as usize].generation });
        }
        if !may_be {
            return Err(BesideError::Full);
        }
        let index = self.vacancy().ok_or(BesideError::NoPlace)?;
        if self.open(main).is_err() {
            self.vacant.push(index); // it was over, and has made room
            return Err(BesideError::Gone);
        }
        let first_sequence = self.ids.next() as u32;
        let id = self.entries[index as usize].id;
        let names = (id, self.stream_key(id));
        let mut connecting = Connecting::new(agreed.path, names, first_sequence, &self.settings, now);
        connecting.placement = Placement::Beside(agreed.remote_id);
        let entry = &mut self.entries[index as usize];
        entry.state = State::Connecting(connecting.into());
        entry.beside = Some(Beside { main, is_ours: true });
        let peer = Peer { index, generation: entry.generation };
        self.entries[main.index()].companions[0] = Some(index);
        self.touch(index);
        Ok(peer)
    }

    /// A place for a connection for puts that a client asks for, with its id and first sequence number.
    /// Returns `None` unless the client has the connection that it names, memory is registered for it, and a
    /// place is free.
    pub(super) fn place_beside(&mut self, from: SocketAddr, placement: Placement) -> Option<(u32, u64, u32)> {
        let Placement::Beside(id) = placement else { return None };
        let main = index_of(id);
        let entry = self.entries.get(main as usize).filter(|entry| entry.id == id && entry.takes_puts)?;
        let is_its = matches!(&entry.state, State::Open(connection)
            if connection.agreed.path.remote == from && connection.announced && connection.ended.is_none());
        if !is_its || entry.beside.is_some() {
            return None;
        }
        let main = Peer { index: main, generation: entry.generation };
        if let Some(former) = entry.companions[1] {
            self.lose(former, LostReason::Restarted); // the client has given it up
        }
        let index = self.vacancy()?;
        if self.open(main).is_err() {
            self.vacant.push(index); // to make room for itself
            return None;
        }
        self.entries[index as usize].beside = Some(Beside { main, is_ours: false });
        self.entries[main.index()].companions[1] = Some(index);
        Some((index, self.entries[index as usize].id, self.ids.next() as u32))
    }

    /// Ends the connection for puts that belongs to a connection that is removed.
    pub(super) fn leave_beside(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        let companions = std::mem::take(&mut entry.companions);
        if let Some(Beside { main, is_ours }) = entry.beside {
            let main = &mut self.entries[main.index()];
            let side = &mut main.companions[usize::from(!is_ours)];
            if *side == Some(index) {
                *side = None;
            }
        }
        for companion in companions.into_iter().flatten() {
            self.tell_abort(companion, AbortReason::CLOSED);
            self.lose(companion, LostReason::Aborted { code: AbortReason::CLOSED.0 });
        }
    }

    /// The peer of the program whose connection for puts this is.
    #[inline]
    pub fn main_of(&self, peer: Peer) -> Option<Peer> {
        let entry = self.entries.get(peer.index()).filter(|entry| entry.generation == peer.generation)?;
        entry.beside.map(|beside| beside.main)
    }

    /// Whether a connection for puts has a message or an event.
    #[inline]
    pub fn has_news_beside(&self) -> bool {
        !self.readable_beside.is_empty() || !self.events.beside.is_empty()
    }

    /// The oldest event of a connection for puts.
    #[inline]
    pub fn poll_event_beside(&mut self) -> Option<Event> {
        self.events.beside.pop_front()
    }

    /// The next message on a connection for puts that `may` be taken of: those of a connection in order.
    pub fn peek_beside(&mut self, may: impl Fn(Peer) -> bool) -> Option<Next> {
        for _ in 0..self.readable_beside.len() {
            let index = *self.readable_beside.front()?;
            let entry = &mut self.entries[index as usize];
            let complete = match &entry.state {
                State::Open(connection) if connection.is_beside => connection.receive.next_message(),
                _ => None,
            };
            if let Some(complete) = complete {
                let peer = Peer { index, generation: entry.generation };
                if may(peer) {
                    return Some(Next { peer, complete });
                }
                self.readable_beside.rotate_left(1);
                continue;
            }
            entry.is_readable = false;
            self.readable_beside.pop_front();
        }
        None
    }

    /// Whether a peer has unread messages that were not placed on arrival.
    pub fn has_unplaced(&self, peer: Peer) -> bool {
        matches!(self.open(peer), Ok(Some(connection)) if connection.receive.unplaced() > 0)
    }
}
