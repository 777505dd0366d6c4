//! The words for what travels with a packet besides its bytes.

pub(crate) use nocopy_proto::filter::VlanTag;
pub(crate) use nocopy_proto::wire::checksum::{Place, PlaceOutside};

use super::kernel::KernelVersion;
use super::mode::Mode;

/// Why something is not known of a packet, or not done for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// The port was not opened for it.
    #[error("the port was not opened for it; ask for it with PortBuilder::receive_metadata or send_metadata")]
    NotRequested,
    /// The kernel is too old.
    #[error("the kernel does not know it; it needs Linux {0} or newer")]
    Kernel(KernelVersion),
    /// The driver does not offer it.
    #[error("the interface's driver does not offer it; do it in software, or use another card")]
    Driver,
    /// The mode has none.
    #[error("mode '{0}' has none; do it in software, or open the port in another mode")]
    Mode(Mode),
    /// The program on the interface does not ask for it, or notes the answers for others: a port that did not want them, or the
    /// opener of a granted port, has attached it.
    #[error(
        "the interface's program was attached by another port, which did not ask for it, or by another process; open the first \
         port with the same settings, too"
    )]
    OtherProgram,
    /// The kernel refused the program that would ask the driver.
    #[error(
        "the kernel refused the XDP program that asks the driver for it; 'nocopy doctor' shows what the driver offers"
    )]
    Refused,
    /// Others have it, this packet does not.
    #[error("this packet carries none")]
    Absent,
}

/// A clock that timestamps are read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Clock {
    /// The card's own: what it counts from is up to the driver, usually 1970 (TAI) once something like `ptp4l` has set it.
    Device,
    /// The system's, as `CLOCK_REALTIME`.
    Realtime,
    /// The system's, as `CLOCK_TAI`: without leap seconds.
    Tai,
    /// The system's, as `CLOCK_MONOTONIC`: since the machine was started.
    Monotonic,
}

/// A point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timestamp {
    /// Nanoseconds since the clock's beginning.
    pub ns: u64,
    /// Whose.
    pub clock: Clock,
}

/// What came with a received packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Arrival {
    /// When it arrived.
    pub timestamp: Result<Timestamp, Unsupported>,
    /// The flow's hash: packets of one flow have the same.
    pub hash: Result<u32, Unsupported>,
    /// The VLAN tag, if it was taken out of the packet. From a packet ring it is back in the packet as well.
    pub vlan: Result<VlanTag, Unsupported>,
    /// Whether the host sends it: it did not come in.
    pub outgoing: Result<bool, Unsupported>,
}

impl Arrival {
    /// Nothing is known, and why.
    pub(crate) const fn unknown(reason: Unsupported) -> Self {
        Self { timestamp: Err(reason), hash: Err(reason), vlan: Err(reason), outgoing: Err(reason) }
    }

    /// Nothing is known but that it came in, and why.
    pub(crate) const fn incoming(reason: Unsupported) -> Self {
        Self { outgoing: Ok(false), ..Self::unknown(reason) }
    }
}

/// What is to be done for a packet that is sent; by default nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Request {
    pub(crate) checksum: Option<Place>,
    pub(crate) timestamp: Option<u64>,
}

impl Request {
    /// Completes the checksum at `place`, where the sum of the pseudo-header is now: by the card or the kernel where they do that, in
    /// software where not.
    #[must_use]
    pub const fn checksum(mut self, place: Place) -> Self {
        self.checksum = Some(place);
        self
    }

    /// Asks for the time when the packet leaves; [`Sender::departures`](crate::Sender::departures) returns `token` with it.
    #[must_use]
    pub const fn timestamp(mut self, token: u64) -> Self {
        self.timestamp = Some(token);
        self
    }
}

/// What a port can do for the packets it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offers {
    /// Whether card or kernel complete checksums.
    pub(crate) checksum: Result<(), Unsupported>,
    /// The clock that times of leaving are read from.
    pub(crate) timestamp: Result<Clock, Unsupported>,
}

impl Offers {
    /// Nothing, and why.
    pub(crate) const fn none(reason: Unsupported) -> Self {
        Self { checksum: Err(reason), timestamp: Err(reason) }
    }
}

/// A packet that has left: its token, and when; [`Unsupported::Absent`] if the driver did not say.
pub(crate) type Departure = (u64, Result<Timestamp, Unsupported>);
