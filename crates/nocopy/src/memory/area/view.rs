//! A half's view of an area: the fields that a loop over packets needs, few enough for registers.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32 as PlainU32, Ordering::Relaxed};

use super::{PoolId, SharedArea, packed_state};

/// A copy of the fields of [`SharedArea`] that the hot path reads, so that it does not follow two pointers.
#[derive(Clone, Copy)]
pub(super) struct AreaView {
    base: NonNull<u8>,
    states: NonNull<PlainU32>,
    /// Log2 of the frame size.
    shift: u32,
    /// The frame size less one: the bits of an address that lie within a frame.
    mask: u32,
    frame_count: u32,
    /// State word of a frame that this half lent to the kernel.
    lent_here: u32,
    /// State word of a frame of this half's pool that is free or held by the program.
    owned: u32,
}

impl AreaView {
    /// The frames of `area` as the half with pool `id` sees them.
    pub(super) fn new(area: &SharedArea, id: PoolId) -> Self {
        Self {
            base: area.memory.base(),
            states: NonNull::from(&*area.states).cast(),
            shift: area.frame_shift,
            mask: area.frame_bytes - 1,
            frame_count: area.frame_count,
            lent_here: packed_state(id, id),
            owned: packed_state(id, 0),
        }
    }

    /// The frame that contains an address, with its state word; `None` outside the area.
    ///
    /// # Safety
    /// The area is alive for `'a`.
    #[inline]
    pub(super) unsafe fn frame_at<'a>(self, address: u64) -> Option<(u32, &'a PlainU32)> {
        let index = address >> self.shift;
        if index >= u64::from(self.frame_count) {
            return None;
        }
        // SAFETY: there is a word for each frame, and they live as long as the area.
        Some((index as u32, unsafe { self.states.add(index as usize).as_ref() }))
    }

    /// Takes one of this half's own frames back from the kernel; `None` if no lent frame has this address.
    ///
    /// # Safety
    /// The area is alive.
    #[inline]
    pub(super) unsafe fn reclaim(self, address: u64) -> Option<u32> {
        // SAFETY: alive by contract.
        let (frame, word) = unsafe { self.frame_at(address)? };
        if word.load(Relaxed) != self.lent_here {
            return None;
        }
        word.store(self.owned, Relaxed);
        Some(frame)
    }

    /// Whether an address is of a lent frame of this half.
    ///
    /// # Safety
    /// The area is alive.
    pub(super) unsafe fn is_lent(self, address: u64) -> bool {
        // SAFETY: alive by contract.
        unsafe { self.frame_at(address) }.is_some_and(|(_, word)| word.load(Relaxed) == self.lent_here)
    }

    /// The offset of a packet in its frame; `None` if it extends beyond the frame's end.
    #[inline]
    pub(super) fn packet_start(self, address: u64, len: u32) -> Option<u16> {
        let start = address as u32 & self.mask;
        (u64::from(start) + u64::from(len) <= u64::from(self.mask) + 1).then_some(start as u16)
    }

    /// Lends one of this half's own frames to the kernel.
    ///
    /// # Safety
    /// The area is alive and `frame` one of its frames.
    #[inline]
    pub(super) unsafe fn mark_lent(self, frame: u32) {
        debug_assert!(frame < self.frame_count);
        // SAFETY: there is a word for each frame.
        unsafe { self.states.add(frame as usize).as_ref() }.store(self.lent_here, Relaxed);
    }

    /// The kernel's address of a byte `start` bytes into a frame.
    #[inline]
    pub(super) fn address(self, frame: u32, start: u16) -> u64 {
        (u64::from(frame) << self.shift) + u64::from(start)
    }

    /// Pointer to an address, which must be within the area.
    #[inline]
    pub(super) fn pointer_at(self, address: u64) -> NonNull<u8> {
        let data = self.base.as_ptr().wrapping_add(address as usize);
        // SAFETY: an address in the area is far from wrapping around to null; others are not kept (`reclaim`,
        // `mark_lent`).
        unsafe { NonNull::new_unchecked(data) }
    }

    /// The kernel's address of a pointer into the area.
    #[inline]
    pub(super) fn address_of_pointer(self, data: NonNull<u8>) -> u64 {
        // No underflow: `FramePool::lend` has checked that the frame is of this area.
        (data.as_ptr().addr() - self.base.as_ptr().addr()) as u64
    }

    /// Prefetches the cache line of an address that will be claimed soon. The address need not be valid.
    #[inline]
    pub(super) fn prefetch(self, address: u64) {
        prefetch(self.base.as_ptr().wrapping_add(address as usize));
    }
}

#[inline]
pub(super) fn prefetch(byte: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint; it reads nothing and faults on no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(byte.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = byte;
}
