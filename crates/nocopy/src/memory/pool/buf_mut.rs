//! A buffer as what the crate `bytes` writes into.
#![allow(unsafe_code)]

use bytes::BufMut;
use bytes::buf::UninitSlice;

use super::BufferMut;

// SAFETY: `chunk_mut` returns the memory between length and capacity, and `advance_mut` moves the length.
unsafe impl BufMut for BufferMut {
    fn remaining_mut(&self) -> usize {
        // No underflow: the length never exceeds the capacity.
        self.capacity() - self.len()
    }

    /// Panics if there is less room.
    unsafe fn advance_mut(&mut self, bytes: usize) {
        self.resize(self.len().saturating_add(bytes));
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        self.spare_mut().into()
    }
}
