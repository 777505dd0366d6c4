//! Types for metadata: what is known about a packet besides its bytes.

#[cfg(feature = "port")]
mod packet;

pub(crate) use nocopy_proto::wire::checksum::ChecksumFieldOutside;

#[cfg(feature = "port")]
pub use packet::{Arrival, Request};
#[cfg(feature = "port")]
pub(crate) use packet::{ChecksumField, Departure, OfferedRequests, VlanTag};

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
