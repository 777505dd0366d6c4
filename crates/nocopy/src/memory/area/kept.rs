//! Frames that come back as they were sent: for who may have to send them again.
//!
//! A completion tells an address and no more, so where the packet lay in its frame, and how long it was, is noted here before
//! it is sent. That such a note holds is part of the frame's state word ([`KEPT`]): it is set and cleared together with who has
//! the frame, so a lie about a completion cannot bring a frame back twice, and a frame sent any other way never finds a note
//! that an earlier sending left.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

use super::{Frame, KEPT, Pool};

/// Where packets lay in their frames when they were sent: `start << 16 | len`, by frame number. Empty until one is kept.
#[derive(Default)]
pub(super) struct Notes(Box<[Cell<u32>]>);

impl Pool {
    /// Makes the frame come back from its next sending, as it is now. Whoever does not send it says so by [`Pool::unkeep`].
    #[inline]
    pub(crate) fn keep(&mut self, frame: &Frame) {
        if !self.owns(frame) {
            return; // it cannot be sent here, and its number is one of another area
        }
        if self.notes.0.is_empty() {
            self.make_notes();
        }
        let (start, len) = (frame.headroom_bytes() as u32, frame.len() as u32);
        self.notes.0[frame.index() as usize].set(start << 16 | len);
        let word = self.shared.word(frame.index());
        word.store(word.load(Relaxed) | u32::from(KEPT), Relaxed);
    }

    /// All at once, for frames of every pool of the area: sending itself never allocates.
    #[cold]
    fn make_notes(&mut self) {
        self.notes.0 = (0..self.shared.frame_count).map(|_| Cell::new(0)).collect();
    }

    /// Takes back what [`Pool::keep`] said of a frame that was not sent.
    #[cold]
    pub(crate) fn unkeep(&self, frame: &Frame) {
        if self.owns(frame) {
            let word = self.shared.word(frame.index());
            word.store(word.load(Relaxed) & !u32::from(KEPT), Relaxed);
        }
    }

    /// A frame as it was when [`Pool::keep`] was told of it.
    ///
    /// # Safety
    /// The kernel has given it back, it was kept, and nobody else has it.
    #[inline]
    pub(super) unsafe fn kept_frame(&self, index: u32) -> Frame {
        let note = self.notes.0[index as usize].get();
        let (start, len) = ((note >> 16) as u16, note as u16);
        let data = self.view.data(self.view.address(index, start));
        // SAFETY: the caller owns the frame, whose packet lay there when it was noted.
        unsafe { Frame::new(self.area(), data, index, start, len) }
    }
}
