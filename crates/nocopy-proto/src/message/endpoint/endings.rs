//! How connections end: by the caller, by the peer, or because others need their memory or their place.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use super::{Endpoint, State};
use crate::message::answers::Answered;
use crate::message::connection::Linger;
use crate::message::shares::network_of;
use crate::message::time::Span;
use crate::message::wire::{Abort, AbortReason, Unknown};
use crate::message::{Event, LostReason, Peer, Time};

/// How long a peer may fail to acknowledge anything while there is no memory for packets to others.
const SLOW: Span = Span::from_secs(10);

impl<S, R: AsRef<[u8]>> Endpoint<S, R> {
    /// Reports that the caller has no memory for packets to send. While that lasts, peers that acknowledge
    /// nothing for a time are ended one by one, the one that keeps most first, so that no more are ended than
    /// needed (docs/protocol.md §8.4).
    pub fn want_packets(&mut self, now: Time) {
        self.no_packets.go_on(now);
        if self.no_packets.looks()
            && let Some(index) = self.slow_peer_that_keeps_most()
        {
            self.evict(index, AbortReason::STALLED, LostReason::Stalled);
        }
    }

    /// Of the peers that acknowledge nothing: in the network for which the most packets are kept, the peer
    /// for which the most are.
    fn slow_peer_that_keeps_most(&mut self) -> Option<u32> {
        let mut slow = Vec::new();
        let mut kept_of_network: HashMap<IpAddr, usize> = HashMap::new();
        for (index, entry) in (0..).zip(&mut self.entries) {
            if let State::Open(connection) = &mut entry.state
                && connection.is_slow_for(&self.no_packets) >= SLOW
            {
                let (network, kept) =
                    (network_of(connection.agreed.path.remote.ip()), connection.send.packets());
                *kept_of_network.entry(network).or_default() += kept;
                slow.push((network, kept, index));
            }
        }
        let most = slow.iter().max_by_key(|(network, kept, _)| (kept_of_network[network], *kept));
        most.map(|(.., index)| *index)
    }

    /// Ends a connection at once, and discards everything queued, in flight or unread. There is no event for
    /// that.
    pub fn abort(&mut self, peer: Peer) {
        self.end(peer, AbortReason::ABORTED);
    }

    /// As [`abort`](Self::abort), because the endpoint is closed.
    pub fn leave(&mut self, peer: Peer) {
        self.end(peer, AbortReason::CLOSED);
    }

    fn end(&mut self, peer: Peer, reason: AbortReason) {
        if self.open(peer).is_ok() {
            self.tell_abort(peer.index, reason);
            self.remove(peer.index);
        }
    }

    pub(super) fn tell_abort(&mut self, index: u32, reason: AbortReason) {
        if let State::Open(connection) = &self.entries[index as usize].state
            && connection.confirmed
        {
            let (to, remote) = (connection.agreed.path, connection.agreed.remote_id);
            self.answer(Answered::Proven, to, |datagram| Abort { to: remote, reason }.emit(datagram));
        }
    }

    /// Removes a connection, with everything it holds.
    pub(super) fn remove(&mut self, index: u32) {
        self.leave_beside(index);
        let entry = &mut self.entries[index as usize];
        if let State::Open(connection) = &mut entry.state {
            self.counters.messages_discarded += connection.receive.ready() as u64;
            connection.send.clear(&mut self.acknowledged);
            connection.receive.clear(&mut self.released);
            let remote = (connection.agreed.path.remote, connection.agreed.remote_id);
            if self.by_remote.get(&remote) == Some(&index) {
                self.by_remote.remove(&remote);
            }
            if let Some(Linger { since, .. }) = connection.linger {
                self.lingering.remove(&(since, index));
            }
        }
        if let State::Connecting(connecting) = &entry.state {
            self.attempts.remove(&(connecting.path.remote, entry.id));
        }
        entry.state = State::Vacant;
        entry.generation = entry.generation.wrapping_add(1);
        entry.id = 0;
        self.timers.clear(index);
        self.admission.left(index);
        self.vacant.push(index);
    }

    pub(super) fn lose(&mut self, index: u32, reason: LostReason) {
        let entry = &self.entries[index as usize];
        let peer = Peer { index, generation: entry.generation };
        let is_beside = entry.beside.is_some();
        let is_known = !matches!(&entry.state, State::Open(connection)
            if !connection.announced && !connection.is_joined);
        self.remove(index);
        if is_known {
            self.events.push(is_beside, Event::Lost(peer, reason));
        }
    }

    /// Ends connections that keep parts of messages without progress, and so keep memory from others
    /// (docs/protocol.md §8.2).
    #[cold]
    pub(super) fn end_stalled(&mut self) {
        for index in self.admission.overdue() {
            // If a message can be read, the delay is the program's, not the peer's.
            if let State::Open(connection) = &self.entries[index as usize].state
                && connection.receive.ready() == 0
                && connection.receive.is_unfinished()
            {
                self.evict(index, AbortReason::STALLED, LostReason::Stalled);
            }
        }
    }

    /// Ends a connection because others need its memory or place.
    pub(super) fn evict(&mut self, index: u32, abort: AbortReason, reason: LostReason) {
        self.counters.evicted += 1;
        self.tell_abort(index, abort);
        self.lose(index, reason);
    }

    /// Checks whether one or both directions have ended.
    pub(super) fn look_for_end(&mut self, index: u32, now: Time) {
        let entry = &mut self.entries[index as usize];
        let State::Open(connection) = &mut entry.state else { return };
        let peer = Peer { index, generation: entry.generation };
        let is_beside = connection.is_beside;
        if !connection.finish_told {
            connection.finish_told = true;
            self.events.push(is_beside, Event::Finished(peer));
        }
        if let Some(reason) = connection.ended {
            self.remove(index);
            let event = reason.map_or(Event::Closed(peer), |reason| Event::Lost(peer, reason));
            self.events.push(is_beside, event);
        } else if connection.is_over() && connection.linger.is_none() {
            connection.linger(now);
            self.lingering.insert((now, index));
            self.events.push(is_beside, Event::Closed(peer));
        }
    }

    pub(super) fn handle_abort(&mut self, from: SocketAddr, abort: Abort) {
        let reason = match abort.reason {
            AbortReason::FULL => LostReason::Full,
            AbortReason(code) => LostReason::Aborted { code },
        };
        if let Some(index) = self.named(abort.to, from) {
            self.end_by_peer(index, reason);
        }
    }

    /// Handles an Unknown: the peer does not know the connection. Only the peer can know this end's id for
    /// it.
    pub(super) fn handle_unknown(&mut self, from: SocketAddr, unknown: Unknown) {
        match self.by_remote.get(&(from, unknown.to)) {
            Some(&index) if self.is_over_but_for_the_end(index) => self.close(index),
            Some(&index) => self.end_by_peer(index, LostReason::Restarted),
            None => self.counters.unknown += 1,
        }
    }

    fn is_over_but_for_the_end(&self, index: u32) -> bool {
        matches!(&self.entries[index as usize].state, State::Open(connection)
            if connection.linger.is_none() && connection.receive.is_finished() && connection.has_said_all())
    }

    /// Closes a connection that the peer has closed and forgotten: the acknowledgement of this end's FIN was
    /// lost for as long as the peer lingered.
    fn close(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        let peer = Peer { index, generation: entry.generation };
        let is_beside = entry.beside.is_some();
        if let State::Open(connection) = &mut entry.state
            && !std::mem::replace(&mut connection.finish_told, true)
        {
            self.events.push(is_beside, Event::Finished(peer));
        }
        self.remove(index);
        self.events.push(is_beside, Event::Closed(peer));
    }

    /// Ends a connection because the peer has ended it, unless both directions have ended already.
    pub(super) fn end_by_peer(&mut self, index: u32, reason: LostReason) {
        match &mut self.entries[index as usize].state {
            State::Open(connection) if connection.linger.is_some() => self.remove(index),
            State::Open(connection) if connection.ended.is_some() => {}
            // Everything the peer sent has arrived, as the peer knows: it is read before the end is reported.
            State::Open(connection) if connection.receive.is_whole_but_unread() => {
                connection.ended = Some((!connection.has_said_all()).then_some(reason));
                connection.send.clear(&mut self.acknowledged);
                self.touch(index);
            }
            _ => self.lose(index, reason),
        }
    }
}
