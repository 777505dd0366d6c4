//! Types for metadata: what is known about a packet besides its bytes.

pub(crate) use nocopy_proto::filter::VlanTag;
pub(crate) use nocopy_proto::wire::checksum::{ChecksumField, ChecksumFieldOutside};

use super::io_error::convert_to_io_error;
use super::kernel::KernelVersion;
use super::mode::Mode;

/// Why a fact about a packet is not known, or a request for it cannot be fulfilled. The text is the end of an
/// error: the cause, then what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// The port was opened without this setting.
    #[error("the port was not opened for it; ask for it with PortBuilder::receive_metadata or send_metadata")]
    NotRequested,
    /// The kernel is too old.
    #[error("this kernel does not offer it; use Linux {0} or newer")]
    Kernel(KernelVersion),
    /// The driver does not offer it.
    #[error("the interface's driver does not offer it; do it in software, or use another card")]
    Driver,
    /// The mode does not support it.
    #[error("mode '{0}' has none; do it in software, or open the port in another mode")]
    Mode(Mode),
    /// The XDP program on the interface does not ask for it, or writes the answers only for other ports: it
    /// was attached by a port that did not request them, or by the opener of a granted port.
    #[error(
        "the interface's program was attached by another port, which did not ask for it, or by another process; open the first \
         port with the same settings, too"
    )]
    OtherProgram,
    /// The kernel refused the XDP program that would ask the driver.
    #[error(
        "the kernel refused the XDP program that asks the driver for it; 'nocopy doctor' shows what the driver offers"
    )]
    Refused,
    /// Packets of the port have it, but not this one.
    #[error("this packet has none; others of the port may")]
    Absent,
}

convert_to_io_error!(Unsupported {
    _ => std::io::ErrorKind::Unsupported,
});

/// The clock that a timestamp was read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Clock {
    /// The card's own clock. The driver decides when it starts; usually 1970 (TAI), once a program such as
    /// `ptp4l` has set it.
    Device,
    /// The system's `CLOCK_REALTIME`.
    Realtime,
    /// The system's `CLOCK_TAI`: without leap seconds.
    Tai,
    /// The system's `CLOCK_MONOTONIC`: since the machine started.
    Monotonic,
}

/// A time of one of the clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timestamp {
    /// Nanoseconds since the clock's start.
    pub ns: u64,
    /// The clock.
    pub clock: Clock,
}

/// Metadata of a received packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Arrival {
    /// When it arrived.
    pub timestamp: Result<Timestamp, Unsupported>,
    /// The flow's hash, which all packets of one flow share.
    pub hash: Result<u32, Unsupported>,
    /// The VLAN tag, if it was removed from the packet. In a packet ring it is also put back into the packet.
    pub vlan: Result<VlanTag, Unsupported>,
    /// Whether the host sent it (true), or it arrived from outside (false).
    pub outgoing: Result<bool, Unsupported>,
    /// Whether its sender left the checksum to a device that has not finished it; known in a packet ring
    /// only. In other modes, [`UnfinishedChecksum`](nocopy_proto::wire::unfinished::UnfinishedChecksum) finds
    /// most of these packets by their bytes.
    pub checksum_unfinished: Result<bool, Unsupported>,
}

impl Arrival {
    /// Nothing is known, for this reason.
    pub(crate) const fn unknown(reason: Unsupported) -> Self {
        Self {
            timestamp: Err(reason),
            hash: Err(reason),
            vlan: Err(reason),
            outgoing: Err(reason),
            checksum_unfinished: Err(reason),
        }
    }

    /// Only the direction (incoming) is known; all else is unknown, for this reason.
    pub(crate) const fn unknown_but_incoming(reason: Unsupported) -> Self {
        Self { outgoing: Ok(false), ..Self::unknown(reason) }
    }
}

/// Work to be done for a sent packet; none by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Request {
    pub(crate) checksum: Option<ChecksumField>,
    pub(crate) timestamp: Option<u64>,
}

impl Request {
    /// Completes the checksum at `place`, which now holds the sum of the pseudo-header: by the card or the
    /// kernel if they can, otherwise in software.
    #[must_use]
    pub const fn checksum(mut self, place: ChecksumField) -> Self {
        self.checksum = Some(place);
        self
    }

    /// Asks for the time at which the packet leaves;
    /// [`Sender::departures`](crate::port::NonblockingSender::departures) returns it with `token`.
    #[must_use]
    pub const fn timestamp(mut self, token: u64) -> Self {
        self.timestamp = Some(token);
        self
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OfferedRequests {
    /// Whether the card or the kernel completes checksums.
    pub(crate) checksum: Result<(), Unsupported>,
    /// The clock of departure times.
    pub(crate) timestamp: Result<Clock, Unsupported>,
}

impl OfferedRequests {
    pub(crate) const fn none(reason: Unsupported) -> Self {
        Self { checksum: Err(reason), timestamp: Err(reason) }
    }
}

/// A packet that has left: its token and the time; [`Unsupported::Absent`] if the driver gave none.
pub(crate) type Departure = (u64, Result<Timestamp, Unsupported>);
