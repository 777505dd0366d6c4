//! Chooses the next message to read: each peer's messages in order, peers in turn.

use super::{Endpoint, Entry, Message, State};
use crate::message::receive_window::Complete;
use crate::message::{Kind, Peer};

/// The next message, found and not read yet.
#[derive(Debug)]
pub struct Next {
    pub(super) peer: Peer,
    pub(super) complete: Complete,
}

impl Next {
    /// Its peer and kind.
    #[inline]
    pub fn is_of(&self) -> (Peer, Kind) {
        (self.peer, self.complete.kind)
    }

    /// Bytes of the message.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.complete.bytes as usize
    }

    /// Whether its bytes were placed elsewhere ([`Endpoint::handle_unit`]): it has no pieces, and
    /// [`Message::take`] gives what is kept with it.
    #[inline]
    pub fn is_placed(&self) -> bool {
        self.complete.is_placed()
    }
}

impl<S, R: AsRef<[u8]>> Endpoint<S, R> {
    /// The next message that is complete: those of a peer in order, peers in turn.
    #[inline]
    pub fn receive(&mut self) -> Option<Message<'_, S, R>> {
        let (peer, complete) = self.next_complete()?;
        Some(Message::new(self, peer, complete))
    }

    /// The peer and kind of the message that [`Endpoint::receive`] would return.
    #[inline]
    pub fn next_message(&mut self) -> Option<(Peer, Kind)> {
        self.next_complete().map(|(peer, complete)| (peer, complete.kind))
    }

    /// What [`Endpoint::receive`] would give.
    #[inline]
    pub fn peek(&mut self) -> Option<Next> {
        self.next_complete().map(|(peer, complete)| Next { peer, complete })
    }

    /// As [`peek`](Self::peek), for the messages of one peer, which then comes before the others.
    pub fn peek_of(&mut self, peer: Peer) -> Option<Next> {
        let place = self.readable.iter().position(|index| *index == peer.index)?;
        let index = self.readable.remove(place)?;
        self.readable.push_front(index);
        self.peek().filter(|next| next.peer == peer)
    }

    /// The message that [`peek`](Self::peek) or [`peek_of`](Self::peek_of) has just found.
    #[inline]
    pub fn receive_next(&mut self, next: Next) -> Message<'_, S, R> {
        Message::new(self, next.peer, next.complete)
    }

    /// Whether there is a message that is complete.
    #[inline]
    pub fn has_message(&mut self) -> bool {
        while let Some(index) = self.readable.front() {
            let entry = &mut self.entries[*index as usize];
            if matches!(&entry.state, State::Open(connection) if connection.receive.ready() > 0) {
                return true;
            }
            entry.is_readable = false;
            self.readable.pop_front();
        }
        false
    }

    #[inline(always)] // for each message
    fn next_complete(&mut self) -> Option<(Peer, Complete)> {
        loop {
            let index = *self.readable.front()?;
            let entry = &mut self.entries[index as usize];
            let complete = match &entry.state {
                State::Open(connection) => connection.receive.next_message(),
                _ => None,
            };
            match complete {
                Some(complete) => return Some((Peer { index, generation: entry.generation }, complete)),
                None => {
                    entry.is_readable = false;
                    self.readable.pop_front();
                }
            }
        }
    }

    /// Reads the next messages, as far as they are whole and lie in one packet, and returns how many those
    /// are: none if the next one lies in several.
    #[inline]
    pub fn receive_whole(&mut self, mut each: impl FnMut(Peer, Kind, &[u8])) -> usize {
        let Some(&index) = self.readable.front() else { return 0 };
        let Entry { generation, state: State::Open(connection), .. } = &mut self.entries[index as usize]
        else {
            return 0;
        };
        let peer = Peer { index, generation: *generation };
        let (messages, bytes) =
            connection.receive.read_whole(&mut self.released, |kind, bytes| each(peer, kind, bytes));
        if messages > 0 {
            self.counters.messages_received += messages as u64;
            self.counters.message_bytes_received += bytes as u64;
            self.after_reading(index);
        }
        messages
    }

    /// Notes that messages of the first readable peer were read; then the others have their turn.
    #[inline(always)] // for each message
    fn after_reading(&mut self, index: u32) {
        let State::Open(connection) = &mut self.entries[index as usize].state else { return };
        connection.consumed();
        let receive = &connection.receive;
        self.admission.read(index, receive.kept(), receive.is_unfinished());
        let (is_beside, wants_attention) = (connection.is_beside, connection.wants_attention());
        if wants_attention {
            self.touch(index);
        }
        if is_beside {
            return; // one after the other, until all are placed
        }
        if self.readable.len() > 1 {
            self.readable.rotate_left(1);
        }
    }

    /// Consumes a message of the first readable peer; then the others have their turn.
    #[inline(never)] // the end of a message is nothing but a call, which most of those received together do not make
    pub(super) fn consume(&mut self, peer: Peer, message: &Complete) {
        let index = peer.index;
        let State::Open(connection) = &mut self.entries[index as usize].state else { return };
        self.counters.messages_received += 1;
        self.counters.message_bytes_received += u64::from(message.bytes);
        if connection.receive.consume_part(message) {
            let receive = &connection.receive;
            self.admission.read_part(index, receive.kept(), receive.is_unfinished());
            if self.readable.len() > 1 && !connection.is_beside {
                self.readable.rotate_left(1);
            }
        } else {
            connection.receive.consume(message, &mut self.released);
            self.after_reading(index);
        }
    }
}
