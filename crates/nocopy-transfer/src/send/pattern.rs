//! The default content of sent data.

use std::ops::Range;

/// Incompressible bytes, read from an offset that depends on a number.
#[derive(Debug)]
pub(in crate::send) struct PayloadPattern(Box<[u8]>);

const PLACES: u64 = 4096;

impl PayloadPattern {
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

    pub(in crate::send) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(in crate::send) fn payload_range(&self, bytes: usize, number: u64) -> Range<usize> {
        let place = (number.wrapping_mul(61) % PLACES) as usize;
        place..place + bytes
    }

    /// Writes the bytes for a number; the same number always has the same bytes.
    pub(in crate::send) fn write(&self, payload: &mut [u8], number: u64) {
        payload.copy_from_slice(&self.0[self.payload_range(payload.len(), number)]);
    }
}
