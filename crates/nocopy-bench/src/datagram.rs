//! The datagrams that are sent: contiguous bursts in a cyclic source.
//!
//! Their bytes are prepared before measuring, so that no method is charged for producing them; only a number
//! is written into each datagram as it is sent. All methods have a source of the same length.

use std::io;

/// Bursts in a source. With bursts of nearly 64 KiB it is 4 MiB: more than a processor's own cache, so a copy
/// reads memory, and less than may be locked without privileges (8 MiB).
pub(crate) const BURSTS: usize = 64;

/// The most bytes and datagrams of a burst: the kernel's limits for one message that is cut (`UDP_SEGMENT`).
const BURST_BYTES_MAX: usize = 65_507;
const BURST_DATAGRAMS_MAX: usize = 64;

const NUMBER_BYTES: usize = 8;

/// The bytes of a burst repeat after this many.
const PATTERN_BYTES: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DatagramSpec {
    pub bytes: usize,
    pub a_burst: usize,
}

impl DatagramSpec {
    pub(crate) fn in_bursts(bytes: usize) -> Self {
        Self { bytes, a_burst: (BURST_BYTES_MAX / bytes).clamp(1, BURST_DATAGRAMS_MAX) }
    }

    /// Datagrams sent one at a time, which cannot form a burst.
    pub(crate) fn singly(bytes: usize) -> Self {
        Self { bytes, a_burst: 1 }
    }

    pub(crate) fn burst_bytes(self) -> usize {
        self.bytes * self.a_burst
    }

    pub(crate) fn count_in_source(self) -> usize {
        self.a_burst * BURSTS
    }

    pub(crate) fn fill_pattern(bytes: &mut [u8]) {
        bytes.iter_mut().enumerate().for_each(|(index, byte)| *byte = index as u8);
    }

    #[inline]
    pub(crate) fn number_datagrams(self, datagrams: &mut [u8], first: u64) {
        for (datagram, number) in datagrams.chunks_exact_mut(self.bytes).zip(first..) {
            Self::number_datagram(datagram, number);
        }
    }

    #[inline]
    pub(crate) fn number_datagram(start: &mut [u8], number: u64) {
        start[..NUMBER_BYTES].copy_from_slice(&number.to_be_bytes());
    }
}

#[derive(Debug)]
pub(crate) struct DatagramChecker {
    datagrams: DatagramSpec,
    /// The bytes of a burst, repeated: a datagram has the bytes from its offset in the burst.
    pattern: Vec<u8>,
}

impl DatagramChecker {
    pub(crate) fn new(datagrams: DatagramSpec) -> Self {
        let mut pattern = vec![0; PATTERN_BYTES + datagrams.bytes];
        DatagramSpec::fill_pattern(&mut pattern);
        Self { datagrams, pattern }
    }

    /// # Errors
    /// `InvalidData`: the length, or a byte after the number, differs from the sent datagram.
    pub(crate) fn check_datagram(&self, datagram: &[u8]) -> io::Result<()> {
        let DatagramSpec { bytes, a_burst } = self.datagrams;
        let number = datagram.first_chunk().map(|number| u64::from_be_bytes(*number));
        let is_right = number.is_some_and(|number| {
            let place = (number % a_burst as u64) as usize * bytes % PATTERN_BYTES;
            datagram.get(NUMBER_BYTES..) == Some(&self.pattern[place..place + bytes][NUMBER_BYTES..])
        });
        let error_text = || {
            let number = number.map_or("without a number".into(), |number| number.to_string());
            format!("datagram {number}, {} bytes: other contents arrived than were sent", datagram.len())
        };
        is_right.then_some(()).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, error_text()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_with_another_byte_or_length_is_refused() {
        let datagrams = DatagramSpec { bytes: 300, a_burst: 3 };
        let mut burst = vec![0; datagrams.burst_bytes()];
        DatagramSpec::fill_pattern(&mut burst);
        datagrams.number_datagrams(&mut burst, 6);
        let expected = DatagramChecker::new(datagrams);
        for datagram in burst.chunks_exact_mut(300) {
            expected.check_datagram(datagram).unwrap();
            assert!(expected.check_datagram(&datagram[..299]).is_err());
            datagram[299] ^= 1;
            assert!(expected.check_datagram(datagram).is_err());
        }
        assert!(expected.check_datagram(&[0; 3]).is_err());
    }

    #[test]
    fn bursts_fit_the_kernel_limits() {
        let bursts = [64, 1400, 8192].map(|bytes| DatagramSpec::in_bursts(bytes).a_burst);
        assert_eq!(bursts, [64, 46, 7]);
    }

    #[test]
    fn consecutive_datagrams_get_consecutive_numbers() {
        let datagrams = DatagramSpec { bytes: 10, a_burst: 2 };
        let mut burst = [7; 20];
        datagrams.number_datagrams(&mut burst, 258);
        assert_eq!(burst, [0, 0, 0, 0, 0, 0, 1, 2, 7, 7, 0, 0, 0, 0, 0, 0, 1, 3, 7, 7]);
    }
}
