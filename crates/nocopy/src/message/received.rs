//! Messages as they are read.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use nocopy_proto::message::{self as protocol, Kind, Peer, Piece};
use smallvec::SmallVec;

use super::carrier::{Packet, Received, Returned};

/// A message, where it lies: in the packets that brought it. Dropping it makes room for others.
pub struct Message<'a>(Body<'a>);

enum Body<'a> {
    Here(protocol::Message<'a, Packet, Received>, Option<&'a Arc<Returned>>),
    /// It came while somebody waited for another one.
    Aside(OwnedMessage),
}

impl<'a> Message<'a> {
    #[inline]
    pub(super) fn here(
        message: protocol::Message<'a, Packet, Received>,
        home: Option<&'a Arc<Returned>>,
    ) -> Self {
        Self(Body::Here(message, home))
    }

    pub(super) fn aside(message: OwnedMessage) -> Self {
        Self(Body::Aside(message))
    }

    /// Who sent it.
    #[inline]
    pub fn peer(&self) -> Peer {
        match &self.0 {
            Body::Here(message, _) => message.peer(),
            Body::Aside(message) => message.peer,
        }
    }

    /// Whether it stands by itself, wants a response, or is one.
    #[inline]
    pub fn kind(&self) -> Kind {
        match &self.0 {
            Body::Here(message, _) => message.kind(),
            Body::Aside(message) => message.kind,
        }
    }

    /// Its bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.0 {
            Body::Here(message, _) => message.len(),
            Body::Aside(message) => message.len(),
        }
    }

    /// Whether it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes where they lie, one piece for each packet that brought some.
    #[inline]
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let (here, aside) = match &self.0 {
            Body::Here(message, _) => (Some(message.pieces()), None),
            Body::Aside(message) => (None, Some(message.pieces())),
        };
        here.into_iter().flatten().chain(aside.into_iter().flatten())
    }

    /// The bytes where they lie, if they came in one packet.
    #[inline]
    pub fn as_slice(&self) -> Option<&[u8]> {
        match &self.0 {
            Body::Here(message, _) => message.as_slice(),
            Body::Aside(message) => message.as_slice(),
        }
    }

    /// Copies its first bytes, as many as there is room for, and returns how many that were.
    pub fn copy_to(&self, room: &mut [u8]) -> usize {
        copy(self.pieces(), room)
    }

    /// A copy.
    pub fn to_vec(&self) -> Vec<u8> {
        gather(self.pieces(), self.len())
    }

    /// Makes it yours: the packets themselves where they hold nothing else, and a copy of its part of those that do.
    pub fn take(self) -> OwnedMessage {
        match self.0 {
            Body::Here(message, home) => {
                let (peer, kind, bytes) = (message.peer(), message.kind(), message.len());
                let mut pieces = SmallVec::new();
                message.take(|piece| {
                    pieces.push(match piece {
                        Piece::Datagram(datagram, range) => Piece::Datagram(datagram.give(home), range),
                        copy @ Piece::Copy(_) => copy,
                    });
                });
                OwnedMessage { peer, kind, bytes, pieces }
            }
            Body::Aside(message) => message,
        }
    }
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({:?}, {} bytes from {:?})", self.kind(), self.len(), self.peer())
    }
}

/// A message that is yours: a list of pieces of memory, each the packet it came in, or a copy. It may go to another thread; dropped, the
/// packets go home. As long as it is kept, the endpoint has less memory to receive into.
pub struct OwnedMessage {
    peer: Peer,
    kind: Kind,
    bytes: usize,
    pieces: SmallVec<[Piece<Received>; 1]>,
}

impl OwnedMessage {
    /// Who sent it.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Whether it stands by itself, wants a response, or is one.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The bytes, piece by piece.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().map(AsRef::as_ref)
    }

    /// The bytes, if they lie in one piece.
    pub fn as_slice(&self) -> Option<&[u8]> {
        only(self.pieces())
    }

    /// A copy.
    pub fn to_vec(&self) -> Vec<u8> {
        gather(self.pieces(), self.len())
    }

    /// The pieces, to be kept one by one.
    pub fn into_pieces(self) -> impl ExactSizeIterator<Item = OwnedPiece> {
        self.pieces.into_iter().map(OwnedPiece)
    }
}

impl fmt::Debug for OwnedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pieces = self.pieces.len();
        write!(
            f,
            "OwnedMessage({:?}, {} bytes in {pieces} pieces from {:?})",
            self.kind, self.bytes, self.peer
        )
    }
}

/// A piece of a message that is yours; to be sent on as a [`Buffer`](crate::Buffer) by
/// [`Buffer::from_owner`](crate::Buffer::from_owner).
#[derive(Debug)]
pub struct OwnedPiece(Piece<Received>);

impl AsRef<[u8]> for OwnedPiece {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref()
    }
}

impl Deref for OwnedPiece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_ref()
    }
}

#[inline]
fn only<'b>(mut pieces: impl Iterator<Item = &'b [u8]>) -> Option<&'b [u8]> {
    let first = pieces.next().unwrap_or_default();
    pieces.next().is_none().then_some(first)
}

fn copy<'b>(pieces: impl Iterator<Item = &'b [u8]>, room: &mut [u8]) -> usize {
    let mut at = 0;
    for piece in pieces {
        let bytes = piece.len().min(room.len() - at);
        room[at..at + bytes].copy_from_slice(&piece[..bytes]);
        at += bytes;
    }
    at
}

fn gather<'b>(pieces: impl Iterator<Item = &'b [u8]>, bytes: usize) -> Vec<u8> {
    let mut all = Vec::with_capacity(bytes);
    pieces.for_each(|piece| all.extend_from_slice(piece));
    all
}
