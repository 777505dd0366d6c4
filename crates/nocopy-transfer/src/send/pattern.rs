//! What is sent where nothing else is given.

use std::ops::Range;

/// Bytes in no order that anything on the way could compress, from a place that each number moves on.
#[derive(Debug)]
pub(in crate::send) struct Pattern(Box<[u8]>);

/// From how many places.
const PLACES: u64 = 4096;

impl Pattern {
    /// For payloads up to that length.
    pub(in crate::send) fn new(bytes_max: usize) -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64; // xorshift64 (Marsaglia, 2003), from any number but 0
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        Self((0..PLACES as usize + bytes_max).map(|_| next()).collect())
    }

    /// All there is to write from.
    pub(in crate::send) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Where in that so many bytes of a number are.
    pub(in crate::send) fn range(&self, bytes: usize, number: u64) -> Range<usize> {
        let place = (number.wrapping_mul(61) % PLACES) as usize;
        place..place + bytes
    }

    /// Writes what that number stands for: the same number, the same bytes.
    pub(in crate::send) fn write(&self, payload: &mut [u8], number: u64) {
        payload.copy_from_slice(&self.0[self.range(payload.len(), number)]);
    }
}
