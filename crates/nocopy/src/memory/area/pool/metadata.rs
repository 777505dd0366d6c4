//! The metadata of a pool's packets: what is set when its port is opened, and requests to the kernel.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

use super::super::metadata::{ArrivalMetadataSource, PacketOrigin, SHIFT_BYTES_MAX, write_request};
use super::super::{Frame, borrower_in_state};
use super::FramePool;
use crate::facts::metadata::{OfferedRequests, Request};
use crate::sys::xsk::{Descriptor, REQUESTED, SEND_METADATA_BYTES, SendMetadata};

impl FramePool {
    pub(crate) fn set_arrivals(&mut self, arrivals: ArrivalMetadataSource) {
        self.metadata.arrivals = arrivals;
        self.metadata
            .origin
            .set_bit(PacketOrigin::TAG_BESIDE, matches!(arrivals, ArrivalMetadataSource::Marked(_)));
    }

    /// Says that packets come from an interface without a wire.
    pub(crate) fn set_without_wire(&mut self, on: bool) {
        self.metadata.origin.set_bit(PacketOrigin::WIRE, !on);
    }

    /// Says that packets lie in blocks.
    pub(super) fn set_in_blocks(&mut self) {
        self.metadata.origin.set_bit(PacketOrigin::BLOCKS, true);
    }

    pub(crate) fn set_offers(&mut self, offers: OfferedRequests) {
        self.metadata.offers = offers;
    }

    pub(crate) fn offers(&self) -> OfferedRequests {
        self.metadata.offers
    }

    /// Erases old notes in a free frame, so that a note found later belongs to the packet it precedes.
    pub(super) fn erase_hints(&self, frame: &Cell<u32>) {
        const MARK_BYTES: u16 = size_of::<u64>() as u16;
        // No underflow: packets start at least `PACKET_HEADROOM_BYTES` into a frame.
        let first = self.shared.data_offset - MARK_BYTES;
        let bytes = u32::from(MARK_BYTES + SHIFT_BYTES_MAX).min(self.frame_bytes() - u32::from(first));
        // SAFETY: inside the frame, which is free: it has no owner.
        unsafe { self.shared.frame_pointer(frame.get(), first).write_bytes(0, bytes as usize) };
    }

    /// Like [`FramePool::lend`], with a request to the kernel.
    /// Panics if there is no room for it in front of the packet; see [`Frame::has_room_for_request`].
    pub(crate) fn lend_with_request(&self, frame: Frame, request: &Request) -> Result<Descriptor, Frame> {
        assert!(frame.has_room_for_request(), "no room for a request");
        if !self.owns(&frame) {
            return Err(frame);
        }
        // SAFETY: there is room in front of the packet, in a frame that is ours.
        unsafe { write_request(frame.first_byte(), request) };
        let descriptor = self.lend(frame)?;
        Ok(Descriptor { options: REQUESTED, ..descriptor })
    }

    /// The device's answer to a request, if the frame is lent by this half.
    pub(in crate::memory::area) fn device_answer(&self, address: u64) -> Option<u64> {
        // SAFETY: the pool keeps the area alive.
        let (_, word) = unsafe { self.view.frame_at(address) }?;
        (borrower_in_state(word.load(Relaxed)) == self.id).then(|| {
            // The address is one that was sent with a request, so there is room for it in front.
            let request =
                self.view.pointer_at(address - u64::from(SEND_METADATA_BYTES)).cast::<SendMetadata>();
            // SAFETY: a request was written there (`lend_with_request`), the frame lies in the area
            // (`frame_at`), and the kernel no longer writes it: it is on the completion ring, read with
            // acquire.
            unsafe { request.read_unaligned() }.answer
        })
    }
}
