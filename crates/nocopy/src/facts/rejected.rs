//! A refused send, returned with the reason.

use std::io;

use super::metadata::{PlaceOutside, Unsupported};

/// Something that was not sent, and why. It is yours again, unchanged.
///
/// ```
/// # let (mut port, _peer) = nocopy::Port::memory_pair()?;
/// use nocopy::{Reason, Rejected};
/// let frame = port.sender().buffer().expect("a fresh port has free frames");
/// let Err(Rejected { item, reason }) = port.sender().send(frame) else { unreachable!() };
/// assert!(matches!(reason, Reason::Empty));
/// port.sender().recycle(item);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[error("not sent: {reason}")]
pub struct Rejected<T> {
    /// The frame, buffer or other payload.
    pub item: T,
    /// Why it was not sent.
    #[source]
    pub reason: Reason,
}

/// Why something was not sent.
///
/// ```
/// # let (mut port, _peer) = nocopy::Port::builder("memory").ring_sizes(256, 64).memory_pair()?;
/// use nocopy::Reason;
/// let sender = port.sender();
/// while sender.send_copy(b"hello").is_ok() {} // until the ring of 64 is full
/// assert!(matches!(sender.send_copy(b"hello"), Err(Reason::Full)));
/// sender.flush()?; // makes room
/// sender.send_copy(b"hello")?;
///
/// // Where `io::Error` is wanted, it becomes one of a matching kind.
/// assert_eq!(std::io::Error::from(Reason::Full).kind(), std::io::ErrorKind::WouldBlock);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// There is no room: in the ring, the queue, the window of the peer, or among the free buffers.
    #[error("no room; flush, or receive what the peer has sent, and send again")]
    Full,
    /// It holds no bytes.
    #[error("it holds no bytes; fill it first")]
    Empty,
    /// It is longer than the interface, the protocol or the peer accepts.
    #[error("it is longer than {bytes_max} bytes, the most that can be sent here; send it in parts")]
    TooLong {
        /// The longest that can be sent.
        bytes_max: usize,
    },
    /// It lies in more buffers than one packet may.
    #[error(
        "one packet may lie in {buffers_max} buffer(s) here; use fewer and larger ones, or open the port with multi_buffer"
    )]
    TooManyBuffers {
        /// The most buffers for one packet.
        buffers_max: usize,
    },
    /// There is not enough free space in front of the bytes.
    #[error(
        "{needed_bytes} bytes must be free in front of the packet, and {free_bytes} are; leave room, as fresh buffers have"
    )]
    NoHeadroom {
        /// Bytes needed.
        needed_bytes: usize,
        /// Bytes that are free.
        free_bytes: usize,
    },
    /// The frame belongs to another area than the port.
    #[error("its frame belongs to another area than the port; copy it into a frame of this port")]
    ForeignArea,
    /// No destination was given, and none was set.
    #[error("it has no destination; connect the socket, or say where to send it")]
    NotConnected,
    /// This side has ended its sending: the stream, the connection, or the whole endpoint (`finish`, `close`).
    #[error(
        "this side has ended its sending (finish or close), and nothing can follow; connect or open again"
    )]
    Finished,
    /// The peer is no longer connected.
    #[error("the peer is gone; connect again")]
    Gone,
    /// The range does not lie within the data.
    #[error("bytes {start} to {end} do not lie within {bytes} bytes of data; choose a range that does")]
    OutOfRange {
        /// The first byte asked for.
        start: u64,
        /// The byte after the last one.
        end: u64,
        /// Bytes that the data has.
        bytes: u64,
    },
    /// What was requested for the packet is not supported here.
    #[error("what was asked for the packet cannot be done: {0}")]
    Unsupported(Unsupported),
    /// The checksum to be completed lies outside the packet.
    #[error(transparent)]
    ChecksumOutside(PlaceOutside),
    /// The kernel refused it, for example because there is no route.
    #[error("{0}")]
    System(io::Error),
}

impl From<Reason> for io::Error {
    fn from(reason: Reason) -> Self {
        let kind = match reason {
            Reason::System(error) => return error,
            Reason::Full => io::ErrorKind::WouldBlock,
            Reason::NotConnected | Reason::Gone | Reason::Finished => io::ErrorKind::NotConnected,
            Reason::Unsupported(_) => io::ErrorKind::Unsupported,
            _ => io::ErrorKind::InvalidInput,
        };
        Self::new(kind, reason)
    }
}
