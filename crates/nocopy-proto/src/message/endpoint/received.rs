//! A received message, in the memory of its datagrams.

use std::ops::Range;

use super::Endpoint;
use crate::message::receive_window::{Complete, Taken};
use crate::message::{Kind, Peer};

/// A complete message, in the datagrams in which it arrived. Dropping it moves on to the next one, and frees
/// datagrams that hold nothing else.
#[derive(Debug)]
pub struct Message<'a, S, R: AsRef<[u8]>> {
    endpoint: &'a mut Endpoint<S, R>,
    peer: Peer,
    complete: Complete,
}

/// A piece of a message that was taken.
#[derive(Debug)]
pub enum Piece<R> {
    /// A datagram that held nothing else, and where in it the piece lies.
    Datagram(R, Range<usize>),
    /// A copy: the datagram holds other messages, too.
    Copy(Box<[u8]>),
}

impl<R: AsRef<[u8]>> AsRef<[u8]> for Piece<R> {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Datagram(datagram, range) => &datagram.as_ref()[range.clone()],
            Self::Copy(bytes) => bytes,
        }
    }
}

impl<'a, S, R: AsRef<[u8]>> Message<'a, S, R> {
    #[inline]
    pub(super) fn new(endpoint: &'a mut Endpoint<S, R>, peer: Peer, complete: Complete) -> Self {
        Self { endpoint, peer, complete }
    }

    /// The peer that sent it.
    #[inline]
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// What it is.
    #[inline]
    pub fn kind(&self) -> Kind {
        self.complete.kind
    }

    /// Bytes of the message.
    #[inline]
    pub fn len(&self) -> usize {
        self.complete.bytes as usize
    }

    /// Whether it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, one piece for each datagram that brought some.
    #[inline]
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let connection = self.endpoint.reading(self.peer);
        connection.into_iter().flat_map(|connection| connection.receive.pieces(&self.complete))
    }

    /// The bytes, if they lie in one piece.
    #[inline]
    pub fn as_slice(&self) -> Option<&[u8]> {
        self.endpoint.reading(self.peer)?.receive.whole(&self.complete)
    }

    /// Takes the message out, and passes its pieces to `each` in order: a datagram that holds only this
    /// message is given away whole, other bytes are copied.
    pub fn take(self, mut each: impl FnMut(Piece<R>)) {
        if let Some(connection) = self.endpoint.reading_mut(self.peer) {
            connection.receive.take(&self.complete, |taken| {
                each(match taken {
                    Taken::Packet(datagram, range) => Piece::Datagram(datagram, range),
                    Taken::Part(bytes) => Piece::Copy(bytes.into()),
                });
            });
        }
    }
}

impl<S, R: AsRef<[u8]>> Drop for Message<'_, S, R> {
    #[inline]
    fn drop(&mut self) {
        self.endpoint.consume(self.peer, &self.complete);
    }
}
