//! A received message, as the program reads it.

use std::fmt;
use std::sync::Arc;
#[cfg(feature = "bytes")]
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[cfg(feature = "bytes")]
use either::Either;
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
/// # let mut left = Endpoint::bind("127.0.0.1:0")?;
/// # let mut right = Endpoint::bind("127.0.0.1:0")?;
/// # let peer = left.start_connect(right.local_addr())?;
/// # while !matches!(left.poll_event(), Some(Event::Connected(..))) {
/// #     left.wait(Duration::from_millis(1))?;
/// #     right.wait(Duration::from_millis(1))?;
/// # }
/// # while right.poll_event().is_some() {}
/// left.send_to(vec![7; 5000], peer)?;
/// left.flush()?;
/// let message = loop {
///     if let Some(message) = right.receive()? {
///         break message.take(); // owned: the endpoint can be used meanwhile
///     }
/// };
/// assert!(message.as_slice().is_none()); // it came in several packets
/// assert_eq!(message.pieces().map(|piece| piece.len()).sum::<usize>(), message.len());
/// assert_eq!(message.to_vec(), [7; 5000]);
/// let sender = message.peer();
/// right.send_to(message, sender)?; // back, from where it lies
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Message<'a>(Body<'a>);

enum Body<'a> {
    Here(protocol::Message<'a, Packet, Received>, &'a Lender),
    /// Alone, in the memory where it was received.
    Lone(Peer, Kind, Lone<'a>, &'a Lender),
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
    /// That of its [`Lender`], if it is in several pieces.
    #[cfg(feature = "bytes")]
    joined_bytes: Option<Arc<AtomicU64>>,
}

/// What an endpoint counts of messages that the program has taken.
#[derive(Debug)]
pub(super) struct Lender {
    /// Counts frames, if the carrier has some.
    home: Option<Arc<Returned>>,
    /// Bytes in several pieces that were joined by a copy.
    #[cfg(feature = "bytes")]
    joined_bytes: Arc<AtomicU64>,
}

impl Lender {
    pub(super) fn new(home: Option<&Arc<Returned>>) -> Self {
        Self {
            home: home.cloned(),
            #[cfg(feature = "bytes")]
            joined_bytes: Arc::default(),
        }
    }

    /// Bytes in several pieces that were joined by a copy, after they were received.
    pub(super) fn joined_bytes(&self) -> u64 {
        #[cfg(feature = "bytes")]
        return self.joined_bytes.load(Relaxed); // a number alone
        #[cfg(not(feature = "bytes"))]
        0
    }
}

impl Owned {
    fn new(peer: Peer, kind: Kind, bytes: usize, pieces: impl IntoIterator<Item = Piece<Received>>) -> Self {
        Self {
            peer,
            kind,
            bytes,
            pieces: SmallVec::from_iter(pieces),
            #[cfg(feature = "bytes")]
            joined_bytes: None,
        }
    }

    /// Adds a piece that an endpoint lent.
    fn take_over(&mut self, piece: Piece<Received>, lender: &Lender) {
        self.pieces.push(match piece {
            Piece::Datagram(datagram, range) => Piece::Datagram(datagram.give(lender.home.as_ref()), range),
            copy @ Piece::Copy(_) => copy,
        });
        #[cfg(feature = "bytes")]
        if self.pieces.len() > 1 {
            self.joined_bytes.get_or_insert_with(|| Arc::clone(&lender.joined_bytes));
        }
    }

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
    pub(super) fn here(message: protocol::Message<'a, Packet, Received>, lender: &'a Lender) -> Self {
        Self(Body::Here(message, lender))
    }

    #[inline]
    pub(super) fn among(peer: Peer, kind: Kind, bytes: &'a [u8]) -> Self {
        Self(Body::Among(peer, kind, bytes))
    }

    #[inline]
    pub(super) fn lone(peer: Peer, kind: Kind, bytes: Lone<'a>, lender: &'a Lender) -> Self {
        Self(Body::Lone(peer, kind, bytes, lender))
    }

    /// A message in a buffer that was posted for it.
    pub(super) fn placed(peer: Peer, kind: Kind, placed: Placed) -> Self {
        let bytes = placed.as_ref().len();
        let piece = Piece::Datagram(Received::Placed(Box::new(placed)), 0..bytes);
        Self::owned(Owned::new(peer, kind, bytes, [piece]))
    }

    pub(super) fn owned(message: Owned) -> Self {
        Self(Body::Owned(message))
    }

    /// The peer that sent it.
    #[inline]
    pub fn peer(&self) -> Peer {
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
    pub fn len(&self) -> usize {
        match &self.0 {
            Body::Here(message, _) => message.len(),
            Body::Lone(_, _, lone, _) => lone.len(),
            Body::Among(.., bytes) => bytes.len(),
            Body::Owned(message) => message.bytes,
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
    /// that do. It may go to another thread, and be [sent](super::NonblockingEndpoint::send_to) on. As long
    /// as it is kept, the endpoint has less memory to receive into, or one buffer fewer that was
    /// [posted](super::NonblockingEndpoint::post).
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
            Body::Owned(mut message) => match message.pieces.pop() {
                Some(Piece::Datagram(Received::Placed(placed), _)) => Ok(*placed),
                last => {
                    message.pieces.extend(last);
                    Err(Self::owned(message))
                }
            },
            body => Err(Self(body)),
        }
    }

    pub(super) fn into_owned(self) -> Owned {
        match self.0 {
            Body::Here(message, lender) => {
                let mut owned = Owned::new(message.peer(), message.kind(), message.len(), []);
                message.take(|piece| owned.take_over(piece, lender));
                owned
            }
            Body::Lone(peer, kind, lone, lender) => {
                let mut owned = Owned::new(peer, kind, lone.len(), []);
                lone.keep(|piece| owned.take_over(piece, lender));
                owned
            }
            Body::Among(peer, kind, bytes) => {
                Owned::new(peer, kind, bytes.len(), [Piece::Copy(bytes.into())])
            }
            Body::Owned(message) => message,
        }
    }

    /// Its bytes in one piece: where they lie, or copied once from several pieces, which is counted.
    #[cfg(feature = "bytes")]
    pub(crate) fn into_one_piece(self) -> Either<impl AsRef<[u8]> + Send + 'static, Vec<u8>> {
        if self.as_slice().is_some() {
            // One at most.
            return self.take().into_owned().pieces.pop().map_or_else(|| Right(Vec::new()), Left);
        }
        // Not taken first, since some would be copied by that.
        let joined_bytes = match &self.0 {
            Body::Here(_, lender) | Body::Lone(.., lender) => Some(&lender.joined_bytes),
            Body::Owned(message) => message.joined_bytes.as_ref(),
            Body::Among(..) => None,
        };
        if let Some(count) = joined_bytes {
            count.fetch_add(self.len() as u64, Relaxed); // a number alone
        }
        Right(self.to_vec())
    }

    /// The pieces, each of which can be kept by itself.
    pub(super) fn into_pieces(self) -> impl Iterator<Item = impl AsRef<[u8]> + Send + 'static> {
        self.into_owned().pieces.into_iter()
    }
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({:?}, {} bytes from {:?})", self.kind(), self.len(), self.peer())
    }
}

impl fmt::Debug for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pieces = self.pieces.len();
        write!(f, "Owned({:?}, {} bytes in {pieces} pieces from {:?})", self.kind, self.bytes, self.peer)
    }
}
