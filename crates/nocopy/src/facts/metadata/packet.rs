//! Metadata of the packets of ports.

pub(crate) use nocopy_proto::filter::VlanTag;
pub(crate) use nocopy_proto::wire::checksum::ChecksumField;

use super::{Clock, Timestamp, Unsupported};

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
