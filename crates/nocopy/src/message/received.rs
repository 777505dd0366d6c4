//! A received message, as the program reads it.

use std::fmt;
use std::sync::Arc;

use either::Either::{Left, Right};
use nocopy_proto::message::{self as protocol, Kind, Peer, Piece};
use smallvec::SmallVec;

use super::carrier::{Lone, Packet, Received, Returned};
use super::placing::Placed;

/// A message, where it lies: in the packets that brought it. Dropping it makes room for others.
///
/// [`take`](Self::take) makes it a `Message<'static>`, which the endpoint does not lend any more.
///
/// ```
/// # use nocopy::message::{Endpoint, Event};
/// # use std::time::Duration;
/// # let mut left = Endpoint::bind("127.0.0.1:0".parse()?)?;
/// # let mut right = Endpoint::bind("127.0.0.1:0".parse()?)?;
/// # let peer = left.start_connect(right.local_address())?;
/// # while !matches!(left.poll_event(), Some(Event::Connected(..))) {
/// #     left.wait(Duration::from_millis(1))?;
/// #     right.wait(Duration::from_millis(1))?;
/// # }
/// # while right.poll_event().is_some() {}
/// left.send(vec![7; 5000], peer)?;
/// left.flush()?;
/// let message = loop {
///     if let Some(message) = right.receive()? {
///         break message.take(); // owned: the endpoint can be used meanwhile
///     }
/// };
/// assert!(message.as_slice().is_none()); // it came in several packets
/// assert_eq!(message.pieces().map(|piece| piece.len()).sum::<usize>(), message.len());
/// assert_eq!(message.to_vec(), [7; 5000]);
/// let sender = message.from();
/// right.send(message, sender)?; // back, from where it lies
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Message<'a>(Body<'a>);

enum Body<'a> {
    Here(protocol::Message<'a, Packet, Received>, Option<&'a Arc<Returned>>),
    /// Alone, in the memory where it was received.
    Lone(Peer, Kind, Lone<'a>, Option<&'a Arc<Returned>>),
    /// Among others in its packet, which were read together.
    Among(Peer, Kind, &'a [u8]),
    Owned(Owned),
}

/// An owned received message: pieces of memory, each the packet it arrived in, or a copy.
pub(super) struct Owned {
    peer: Peer,
    kind: Kind,
    bytes: usize,
    pieces: SmallVec<[Piece<Received>; 1]>,
}

impl Owned {
    fn as_placed(&mut self) -> Option<&mut Placed> {
        match &mut self.pieces[..] {
            [Piece::Datagram(Received::Placed(placed), _)] => Some(placed),
            _ => None,
        }
    }

    // Not where messages are read that were not taken.
    #[cold]
    fn as_slice(&self) -> Option<&[u8]> {
        match &self.pieces[..] {
            [] => Some(&[]),
            [piece] => Some(piece.as_ref()),
            _ => None,
        }
    }
}

impl<'a> Message<'a> {
    #[inline]
    pub(super) fn here(
        message: protocol::Message<'a, Packet, Received>,
        home: Option<&'a Arc<Returned>>,
    ) -> Self {
        Self(Body::Here(message, home))
    }

    #[inline]
    pub(super) fn among(peer: Peer, kind: Kind, bytes: &'a [u8]) -> Self {
        Self(Body::Among(peer, kind, bytes))
    }

    #[inline]
    pub(super) fn lone(peer: Peer, kind: Kind, bytes: Lone<'a>, home: Option<&'a Arc<Returned>>) -> Self {
        Self(Body::Lone(peer, kind, bytes, home))
    }

    /// A message in a buffer that was posted for it.
    pub(super) fn placed(peer: Peer, kind: Kind, placed: Placed) -> Self {
        let bytes = placed.as_ref().len();
        let piece = Piece::Datagram(Received::Placed(Box::new(placed)), 0..bytes);
        Self::owned(Owned { peer, kind, bytes, pieces: SmallVec::from_iter([piece]) })
    }

    pub(super) fn owned(message: Owned) -> Self {
        Self(Body::Owned(message))
    }

    /// The peer that sent it.
    #[inline]
    pub fn from(&self) -> Peer {
        match &self.0 {
            Body::Here(message, _) => message.peer(),
            Body::Lone(peer, ..) | Body::Among(peer, ..) => *peer,
            Body::Owned(message) => message.peer,
        }
    }

    /// Whether it is a request, the response to one, or neither.
    #[inline]
    pub fn kind(&self) -> Kind {
        match &self.0 {
            Body::Here(message, _) => message.kind(),
            Body::Lone(_, kind, ..) | Body::Among(_, kind, _) => *kind,
            Body::Owned(message) => message.kind,
        }
    }

    /// How many bytes it has.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "one is enough")]
    pub fn len(&self) -> usize {
        match &self.0 {
            Body::Here(message, _) => message.len(),
            Body::Lone(_, _, lone, _) => lone.len(),
            Body::Among(.., bytes) => bytes.len(),
            Body::Owned(message) => message.bytes,
        }
    }

    /// The bytes where they lie, one piece for each packet that brought some.
    #[inline]
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        match &self.0 {
            Body::Here(message, _) => Left(message.pieces()),
            Body::Lone(_, _, lone, _) => Right(Left(lone.pieces())),
            Body::Among(.., bytes) => Right(Right(Left(std::iter::once(*bytes)))),
            Body::Owned(message) => Right(Right(Right(message.pieces.iter().map(AsRef::as_ref)))),
        }
    }

    /// The bytes where they lie, if they came in one packet.
    #[inline]
    pub fn as_slice(&self) -> Option<&[u8]> {
        match &self.0 {
            Body::Here(message, _) => message.as_slice(),
            Body::Lone(_, _, lone, _) => lone.as_slice(),
            Body::Among(.., bytes) => Some(bytes),
            Body::Owned(message) => message.as_slice(),
        }
    }

    /// A copy of the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.len());
        self.pieces().for_each(|piece| all.extend_from_slice(piece));
        all
    }

    /// Makes it yours: the packets themselves where they hold nothing else, and a copy of its part of those
    /// that do. It may go to another thread, and be [sent](super::Endpoint::send) on. As long as it is kept,
    /// the endpoint has less memory to receive into, or one buffer fewer that was
    /// [posted](super::Endpoint::post).
    pub fn take(self) -> Message<'static> {
        let mut owned = self.into_owned();
        if let Some(placed) = owned.as_placed() {
            placed.keep();
        }
        Message::owned(owned)
    }

    /// The buffer that was posted for it.
    pub(super) fn into_placed(self) -> Result<Placed, Self> {
        match self.0 {
            Body::Owned(Owned { peer, kind, bytes, mut pieces }) => match pieces.pop() {
                Some(Piece::Datagram(Received::Placed(placed), _)) => Ok(*placed),
                last => {
                    pieces.extend(last);
                    Err(Self::owned(Owned { peer, kind, bytes, pieces }))
                }
            },
            body => Err(Self(body)),
        }
    }

    pub(super) fn into_owned(self) -> Owned {
        match self.0 {
            Body::Here(message, home) => {
                let (peer, kind, bytes) = (message.peer(), message.kind(), message.len());
                let mut pieces = SmallVec::new();
                message.take(|piece| pieces.push(given(piece, home)));
                Owned { peer, kind, bytes, pieces }
            }
            Body::Lone(peer, kind, lone, home) => {
                let (bytes, mut pieces) = (lone.len(), SmallVec::new());
                lone.keep(|piece| pieces.push(given(piece, home)));
                Owned { peer, kind, bytes, pieces }
            }
            Body::Among(peer, kind, bytes) => {
                let pieces = SmallVec::from_iter([Piece::Copy(bytes.into())]);
                Owned { peer, kind, bytes: bytes.len(), pieces }
            }
            Body::Owned(message) => message,
        }
    }

    /// The pieces, each of which can be kept by itself.
    pub(super) fn into_pieces(self) -> impl Iterator<Item = impl AsRef<[u8]> + Send + 'static> {
        self.into_owned().pieces.into_iter()
    }
}

/// Hands a piece over to the program.
fn given(piece: Piece<Received>, home: Option<&Arc<Returned>>) -> Piece<Received> {
    match piece {
        Piece::Datagram(datagram, range) => Piece::Datagram(datagram.give(home), range),
        copy @ Piece::Copy(_) => copy,
    }
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({:?}, {} bytes from {:?})", self.kind(), self.len(), self.from())
    }
}

impl fmt::Debug for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pieces = self.pieces.len();
        write!(f, "Owned({:?}, {} bytes in {pieces} pieces from {:?})", self.kind, self.bytes, self.peer)
    }
}
