//! Frames that the sender gets back unchanged after sending, so that it can send them again.
//!
//! A completion reports only an address, so the packet's offset and length in its frame are noted here before
//! sending. The flag [`KEPT`] in the frame's state word says that a note is valid. It is set and cleared
//! together with the borrower, so a false completion cannot return a frame twice, and an old note is never
//! used for a frame that was sent normally.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

use super::super::{Frame, KEPT};
use super::FramePool;

/// Offset and length of packets in their frames when they were sent: `start << 16 | len`, by frame number.
/// Empty until a frame is kept.
#[derive(Default)]
pub(super) struct KeptPacketPositions(Box<[Cell<u32>]>);

impl FramePool {
    /// Makes the frame return unchanged after its next sending. A caller that does not send it calls
    /// [`FramePool::cancel_keep`].
    #[inline]
    pub(crate) fn keep(&mut self, frame: &Frame) {
        if !self.owns(frame) {
            return; // it cannot be sent here, and its number is one of another area
        }
        if self.notes.0.is_empty() {
            self.allocate_notes();
        }
        let (start, len) = (frame.headroom_bytes() as u32, frame.len() as u32);
        // In range: the frame is of this area, and there is a note for each frame of it.
        self.notes.0[frame.index() as usize].set(start << 16 | len);
        let word = self.shared.state_word(frame.index());
        word.store(word.load(Relaxed) | u32::from(KEPT), Relaxed);
    }

    /// Allocates the notes for frames of all pools of the area at once, so that sending itself never
    /// allocates.
    #[cold]
    fn allocate_notes(&mut self) {
        self.notes.0 = (0..self.shared.frame_count).map(|_| Cell::new(0)).collect();
    }

    #[cold]
    pub(crate) fn cancel_keep(&self, frame: &Frame) {
        if self.owns(frame) {
            let word = self.shared.state_word(frame.index());
            word.store(word.load(Relaxed) & !u32::from(KEPT), Relaxed);
        }
    }

    /// The frame as it was at [`FramePool::keep`].
    ///
    /// # Safety
    /// The kernel has returned it, it was kept, and it has no other owner.
    #[inline]
    pub(super) unsafe fn kept_frame(&self, index: u32) -> Frame {
        // The notes exist: only `keep`, which makes them, sets the flag in a state word.
        let note = self.notes.0[index as usize].get();
        let (start, len) = ((note >> 16) as u16, note as u16);
        let data = self.view.pointer_at(self.view.address(index, start));
        // SAFETY: the caller owns the frame, whose packet was at the noted place.
        unsafe { Frame::new(self.area_pointer(), data, index, start, len) }
    }
}
