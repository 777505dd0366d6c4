//! What a pool knows of the metadata of its packets, and requests to the kernel in front of a packet.

use std::ptr::NonNull;

use super::Frame;
use crate::facts::metadata::{OfferedRequests, Request, Unsupported};
use crate::facts::mode::Mode;
use crate::sys::xsk::{SEND_METADATA_BYTES, SendMetadata};

/// Where a pool's packets have the metadata of their arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArrivalMetadataSource {
    /// They have none, for this reason.
    Unknown(Unsupported),
    /// In front of the packet, if this mark is present.
    Marked(u64),
    /// Only the time, in front of the packet, if this mark is present; and the reason why the other metadata
    /// are missing.
    Timed(u64, Unsupported),
}

/// A pool's state for metadata; not used for packets without metadata.
#[derive(Debug, Clone, Copy)]
pub(super) struct PoolMetadata {
    pub(super) arrivals: ArrivalMetadataSource,
    pub(super) offers: OfferedRequests,
    pub(super) origin: PacketOrigin,
}

/// What a host left to a card in the packets of a pool, and where they are, as bits. Up to
/// [`WIRE`](Self::WIRE), only the checksum may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(crate) struct PacketOrigin(u8);

impl PacketOrigin {
    /// They come from a wire. Otherwise their checksums may be unfinished.
    pub(crate) const WIRE: Self = Self(1);
    /// Their VLAN tags may be beside them.
    pub(super) const TAG_BESIDE: Self = Self(2);
    /// They are not in frames, but in the blocks of a packet ring.
    pub(super) const BLOCKS: Self = Self(4);

    pub(crate) const fn is_without_wire(self) -> bool {
        self.0 & Self::WIRE.0 == 0
    }

    pub(super) const fn set_bit(&mut self, bit: Self, on: bool) {
        self.0 = if on { self.0 | bit.0 } else { self.0 & !bit.0 };
    }
}

impl PoolMetadata {
    pub(super) const NONE: Self = Self {
        arrivals: ArrivalMetadataSource::Unknown(Unsupported::NotRequested),
        offers: OfferedRequests::none(Unsupported::NotRequested),
        origin: PacketOrigin::WIRE,
    };

    pub(super) const fn has_marked_packets(&self) -> bool {
        matches!(self.arrivals, ArrivalMetadataSource::Marked(_) | ArrivalMetadataSource::Timed(..))
    }
}

/// By how much a packet may start later than usual: some drivers (igc) leave the card's data in front of it
/// in the frame.
pub(super) const SHIFT_BYTES_MAX: u16 = 64;

/// Writes a request in front of a packet.
///
/// # Safety
/// The [`SEND_METADATA_BYTES`] in front of the packet lie in its frame, which is the caller's alone.
pub(super) unsafe fn write_request(packet: NonNull<u8>, request: &Request) {
    let metadata = SendMetadata::from_request(request);
    // SAFETY: by contract.
    unsafe { packet.sub(SEND_METADATA_BYTES as usize).cast::<SendMetadata>().write_unaligned(metadata) };
}

impl Frame {
    pub(crate) fn has_room_for_request(&self) -> bool {
        self.headroom_bytes() >= SEND_METADATA_BYTES as usize
    }
}

/// For ports whose mode has no metadata.
pub(crate) const fn no_metadata_for_mode(mode: Mode) -> (ArrivalMetadataSource, OfferedRequests) {
    (ArrivalMetadataSource::Unknown(Unsupported::Mode(mode)), OfferedRequests::none(Unsupported::Mode(mode)))
}
