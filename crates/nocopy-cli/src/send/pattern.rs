//! What is sent where nothing else is given.

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

    /// Writes what that number stands for: the same number, the same bytes.
    pub(in crate::send) fn write(&self, payload: &mut [u8], number: u64) {
        let place = (number.wrapping_mul(61) % PLACES) as usize;
        payload.copy_from_slice(&self.0[place..place + payload.len()]);
    }
}
