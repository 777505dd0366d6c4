//! What travels with a packet besides its bytes: when it arrived or left, its hash, its VLAN tag, a checksum left to the card.
//!
//! # Receiving
//!
//! [`Packet::arrival`](crate::Packet::arrival) tells when a packet arrived, its flow hash, and the VLAN tag that the card took out.
//!
//! | mode | where it comes from | |
//! |---|---|---|
//! | `xdp zero-copy`, `xdp copy native` | the card, asked by the XDP program for each packet | [`PortBuilder::receive_metadata`], Linux 6.3, a driver that has it |
//! | `packet ring` | the header in front of each packet: time and hash by the kernel if the card gave none | time always; the hash with [`PortBuilder::receive_metadata`] |
//! | `xdp zero-copy`, `xdp copy native`, `xdp copy generic` | the kernel's clock, read by the XDP program: time only | [`PortBuilder::arrival_times`], where the card gives no time |
//! | `memory` | | nothing |
//!
//! The program puts what the driver says in front of the packet, in the frame. Those bytes cannot be an earlier packet's: they are
//! erased each time the frame is lent to the kernel, and count only with a random number behind them that this port's program
//! writes last and nobody else knows (kernel: Documentation/networking/xdp-rx-metadata.rst).
//!
//! # Sending
//!
//! [`Sender::send_with`] sends a frame with a [`Request`]: complete its checksum, tell when it left. What a port opened with
//! [`PortBuilder::send_metadata`] offers is told by [`Sender::offers`].
//!
//! | mode | checksum | time of leaving |
//! |---|---|---|
//! | `xdp zero-copy` | the card, where its driver says so | the card's clock, where its driver says so |
//! | `xdp copy native`, `xdp copy generic` | the kernel, while it copies; not with virtio_net, which takes packets from the area itself | when the kernel was done with the packet, by the system's clock |
//! | `packet ring`, `memory` | | |
//!
//! Needs Linux 6.11 (kernel: Documentation/networking/xsk-tx-metadata.rst). Where there is no offer,
//! [`Sender::send_checksummed`] sums up in software, so a program need not care:
//!
//! ```no_run
//! use nocopy_proto::{UdpChecksum, UdpFrame};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let flow: UdpFrame = unimplemented!();
//! let mut port = nocopy::Port::builder("eth0").send_metadata(true).open()?;
//! let flow = UdpFrame { checksum: UdpChecksum::Offloaded, ..flow };
//! let mut frame = port.sender().frame().ok_or("no frame is free")?;
//! frame.fill(&vec![7; flow.header_bytes() + 100]).ok_or("too long")?;
//! let (headers, payload) = frame.split_at_mut(flow.header_bytes());
//! flow.emit_headers(headers, payload)?;
//! port.sender().send_checksummed(frame, flow.checksum_place())?;
//! port.sender().flush()?;
//! # Ok(()) }
//! ```
//!
//! The request is written in front of the packet as the frame is sent and holds for that one time: a frame that is forwarded, or
//! sent again, carries none unless it is given a new one.
//!
//! [`PortBuilder::arrival_times`]: crate::port::PortBuilder::arrival_times
//! [`PortBuilder::receive_metadata`]: crate::port::PortBuilder::receive_metadata
//! [`PortBuilder::send_metadata`]: crate::port::PortBuilder::send_metadata
//! [`Sender::offers`]: crate::Sender::offers
//! [`Sender::send_checksummed`]: crate::Sender::send_checksummed
//! [`Sender::send_with`]: crate::Sender::send_with

pub use nocopy_proto::wire::checksum::{Place, PlaceOutside};

use crate::port::Mode;
use crate::sys::clock;
use crate::xdp::KernelVersion;

/// Why something is not known of a packet, or not done for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// The port was not opened for it.
    #[error(
        "the port was not opened for it; ask for it with PortBuilder::receive_metadata, arrival_times or send_metadata"
    )]
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
    /// The system's, as `CLOCK_MONOTONIC`: since the machine was started. [`Realtime`] makes times of day of it.
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

/// Makes times of day of times by [`Clock::Monotonic`]: adds how far the clocks are apart, which it looks up again for a time that is
/// more than a tenth of a second later than when it last did, so that a clock that is set or slewed meanwhile is followed.
///
/// ```
/// let mut realtime = nocopy::metadata::Realtime::new();
/// let ns_since_1970 = realtime.of(1_000_000_000);
/// assert!(ns_since_1970 > 0);
/// ```
#[derive(Debug)]
pub struct Realtime {
    /// Realtime less monotonic time, modulo 2^64.
    offset_ns: u64,
    /// By the monotonic clock.
    looked_up_at_ns: u64,
}

impl Realtime {
    const GOOD_FOR_NS: u64 = 100_000_000;

    /// As the clocks stand now.
    pub fn new() -> Self {
        let (offset_ns, looked_up_at_ns) = clock::realtime_offset();
        Self { offset_ns, looked_up_at_ns }
    }

    /// The time of day, in nanoseconds since 1970, of a time in nanoseconds by [`Clock::Monotonic`].
    #[inline]
    pub fn of(&mut self, monotonic_ns: u64) -> u64 {
        if monotonic_ns > self.looked_up_at_ns + Self::GOOD_FOR_NS {
            self.look_up();
        }
        monotonic_ns.wrapping_add(self.offset_ns)
    }

    #[cold]
    fn look_up(&mut self) {
        *self = Self::new();
    }
}

impl Default for Realtime {
    fn default() -> Self {
        Self::new()
    }
}

/// A VLAN tag as it was on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VlanTag {
    /// 0x8100 or 0x88a8.
    pub protocol: u16,
    /// Priority (3 bits), drop eligible (1 bit), VLAN (12 bits).
    pub control: u16,
}

/// Which way a packet goes through the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Direction {
    /// It came in.
    Incoming,
    /// The host sends it ([`PortBuilder::outgoing`](crate::port::PortBuilder::outgoing)).
    Outgoing,
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
    /// Which way it goes.
    pub direction: Result<Direction, Unsupported>,
}

impl Arrival {
    /// Nothing is known, and why.
    pub(crate) const fn unknown(reason: Unsupported) -> Self {
        Self { timestamp: Err(reason), hash: Err(reason), vlan: Err(reason), direction: Err(reason) }
    }

    /// Nothing is known but that it came in, and why.
    pub(crate) const fn incoming(reason: Unsupported) -> Self {
        Self { direction: Ok(Direction::Incoming), ..Self::unknown(reason) }
    }
}

/// What is to be done for a packet that is sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Request {
    pub(crate) checksum: Option<Place>,
    pub(crate) timestamp: Option<u64>,
}

impl Request {
    /// Nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { checksum: None, timestamp: None }
    }

    /// Completes the checksum at `place`, where the sum of the pseudo-header is now.
    #[must_use]
    pub const fn checksum(mut self, place: Place) -> Self {
        self.checksum = Some(place);
        self
    }

    /// Tells when the packet left; [`Sender::departures`](crate::Sender::departures) gives `token` back with the time.
    #[must_use]
    pub const fn timestamp(mut self, token: u64) -> Self {
        self.timestamp = Some(token);
        self
    }
}

/// Who computes a checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChecksumBy {
    /// The card.
    Device,
    /// The kernel, while it copies the packet: not free, but the bytes are in its hands anyway.
    Kernel,
    /// This library, when the packet is sent.
    Software,
}

/// What a port can do for the packets it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Offers {
    /// Who completes checksums. Never [`ChecksumBy::Software`]: that is there always.
    pub checksum: Result<ChecksumBy, Unsupported>,
    /// The clock that times of leaving are read from.
    pub timestamp: Result<Clock, Unsupported>,
}

impl Offers {
    /// Nothing, and why.
    pub(crate) const fn none(reason: Unsupported) -> Self {
        Self { checksum: Err(reason), timestamp: Err(reason) }
    }
}

/// A packet that has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Departure {
    /// What was given with [`Request::timestamp`].
    pub token: u64,
    /// When; [`Unsupported::Absent`] if the driver did not say.
    pub timestamp: Result<Timestamp, Unsupported>,
}
