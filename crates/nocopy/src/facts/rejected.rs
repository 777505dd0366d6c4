//! A refused send, returned with the reason.

use std::net::IpAddr;
use std::{fmt, io};

use nocopy_proto::errno::{ErrorCause, advice};

use super::io_error::convert_to_io_error;
use super::metadata::{ChecksumFieldOutside, Unsupported};

/// An item that was not sent, returned unchanged, and why.
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
#[error("send: refused; {reason}")]
pub struct Rejected<T> {
    /// The frame, buffer or other payload.
    pub item: T,
    /// Why it was not sent.
    #[source]
    pub reason: Reason,
}

/// Why something was not sent. The text is the end of an error: the cause, then what to do.
///
/// ```
/// # let (mut port, _peer) = nocopy::Port::memory_builder().ring_sizes(256, 64).memory_pair()?;
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
    /// There is no room in the ring, the queue or the peer's window, or no buffer is free.
    #[error("there is no room; flush, or receive what the peer has sent, and send again")]
    Full,
    /// The item holds no bytes.
    #[error("it holds no bytes; fill it first")]
    Empty,
    /// It is longer than the interface, the protocol or the peer accepts.
    #[error("it is longer than {bytes_max} bytes, the most that can be sent here; send it in parts")]
    TooLong {
        /// The longest that can be sent.
        bytes_max: usize,
    },
    /// The packet consists of more buffers than allowed.
    #[error(
        "it lies in more than {buffers_max} buffer(s); use fewer and larger ones, or open the port with multi_buffer"
    )]
    TooManyBuffers {
        /// The most buffers for one packet.
        buffers_max: usize,
    },
    /// There is not enough free space in front of the bytes.
    #[error(
        "it needs {needed_bytes} free bytes in front for headers, and has {free_bytes}; leave as much room as a fresh buffer has"
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
    #[error("it has no destination; connect the socket, or give a destination")]
    NotConnected,
    /// The socket cannot send from this source address.
    #[error(
        "it cannot be sent from {address}; this host does not have the address, or the destination has the other IP version; \
         'ip address' lists those that it has"
    )]
    ForeignSource {
        /// The source that was asked for.
        address: IpAddr,
    },
    /// This side has ended sending: on the stream, the connection, or the whole endpoint (`finish`, `close`).
    #[error(
        "this side has ended its sending (finish or close), and nothing can follow; connect or open again"
    )]
    Finished,
    /// The peer is no longer connected.
    #[error("the peer has disconnected; connect again")]
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
    /// The peer accepts no puts (writes into its memory) from this endpoint.
    #[error(
        "the peer accepts no puts; it must register memory for this endpoint, and its version must support puts"
    )]
    NoRegion,
    /// What was requested for the packet is not supported here.
    #[error("what was requested for the packet cannot be done; {0}")]
    Unsupported(Unsupported),
    /// The checksum to be completed lies outside the packet.
    #[error(transparent)]
    ChecksumOutside(ChecksumFieldOutside),
    /// The kernel refused it, for example because there is no route.
    #[error("{}", KernelRefusalText(.0))]
    System(#[source] io::Error),
}

/// The kernel's reason in words; an error of this library is already in words.
struct KernelRefusalText<'a>(&'a io::Error);

impl fmt::Display for KernelRefusalText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(error) = self;
        match error.raw_os_error() {
            Some(_) => write!(f, "the kernel refused it{}; {}", ErrorCause(error), advice(error)),
            None => write!(f, "{error}"),
        }
    }
}

convert_to_io_error!(Reason {
    Self::Full => io::ErrorKind::WouldBlock,
    Self::NotConnected | Self::Gone => io::ErrorKind::NotConnected,
    Self::Finished => io::ErrorKind::BrokenPipe,
    Self::Unsupported(_) => io::ErrorKind::Unsupported,
    Self::System(error) => error.kind(),
    Self::ForeignSource { .. } => io::ErrorKind::AddrNotAvailable,
    _ => io::ErrorKind::InvalidInput,
});

impl<T: fmt::Debug + Send + Sync + 'static> From<Rejected<T>> for io::Error {
    /// An error of the reason's kind, from which `get_ref` returns the item and the reason.
    fn from(rejected: Rejected<T>) -> Self {
        Self::new(rejected.reason.io_kind(), rejected)
    }
}

/// More bytes than a buffer has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes are too many for a buffer of {capacity}; take longer buffers, or cut the bytes")]
#[non_exhaustive]
pub struct TooLong {
    /// Of what was to be written.
    pub bytes: usize,
    /// Of the buffer.
    pub capacity: usize,
}

convert_to_io_error!(TooLong {
    _ => io::ErrorKind::InvalidInput,
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::kernel::KernelVersion;
    use crate::facts::metadata::ChecksumField;
    use crate::facts::mode::Mode;

    #[test]
    fn refused_sends_have_cause_and_remedy() {
        let outside =
            ChecksumFieldOutside { place: ChecksumField { start: 34, offset: 6 }, packet_bytes: 40 };
        let unsupported = |why| Reason::Unsupported(why);
        for (reason, expected) in [
            (Reason::Full, "there is no room; flush, or receive what the peer has sent, and send again"),
            (Reason::Empty, "it holds no bytes; fill it first"),
            (
                Reason::TooLong { bytes_max: 1472 },
                "it is longer than 1472 bytes, the most that can be sent here; send it in parts",
            ),
            (
                Reason::TooManyBuffers { buffers_max: 1 },
                "it lies in more than 1 buffer(s); use fewer and larger ones, or open the port with multi_buffer",
            ),
            (
                Reason::NoHeadroom { needed_bytes: 42, free_bytes: 6 },
                "it needs 42 free bytes in front for headers, and has 6; leave as much room as a fresh buffer has",
            ),
            (
                Reason::ForeignArea,
                "its frame belongs to another area than the port; copy it into a frame of this port",
            ),
            (Reason::NotConnected, "it has no destination; connect the socket, or give a destination"),
            (
                Reason::Finished,
                "this side has ended its sending (finish or close), and nothing can follow; connect or open again",
            ),
            (
                Reason::ForeignSource { address: [192, 0, 2, 1].into() },
                "it cannot be sent from 192.0.2.1; this host does not have the address, or the destination has the other IP version; 'ip address' lists those that it has",
            ),
            (Reason::Gone, "the peer has disconnected; connect again"),
            (
                Reason::OutOfRange { start: 0, end: 9, bytes: 8 },
                "bytes 0 to 9 do not lie within 8 bytes of data; choose a range that does",
            ),
            (
                Reason::NoRegion,
                "the peer accepts no puts; it must register memory for this endpoint, and its version must support puts",
            ),
            (
                unsupported(Unsupported::NotRequested),
                "what was requested for the packet cannot be done; the port was not opened for it; ask for it with PortBuilder::receive_metadata or send_metadata",
            ),
            (
                unsupported(Unsupported::Kernel(KernelVersion(6, 8))),
                "what was requested for the packet cannot be done; this kernel does not offer it; use Linux 6.8 or newer",
            ),
            (
                unsupported(Unsupported::Driver),
                "what was requested for the packet cannot be done; the interface's driver does not offer it; do it in software, or use another card",
            ),
            (
                unsupported(Unsupported::Mode(Mode::PacketRing)),
                "what was requested for the packet cannot be done; mode 'packet ring' has none; do it in software, or open the port in another mode",
            ),
            (
                Reason::ChecksumOutside(outside),
                "checksum at byte 34 + 6: cannot be computed; the packet has only 40 bytes; count from its first byte",
            ),
            (
                Reason::System(io::Error::from_raw_os_error(101)),
                "the kernel refused it (ENETUNREACH); network is unreachable; 'ip route get ADDRESS' shows whether there is a route",
            ),
            (
                Reason::System(io::Error::other("the stream was reset; connect again")),
                "the stream was reset; connect again",
            ),
        ] {
            let rejected = Rejected { item: (), reason };
            assert_eq!(rejected.to_string(), format!("send: refused; {expected}"));
        }
    }
}
