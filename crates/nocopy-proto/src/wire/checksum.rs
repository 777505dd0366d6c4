//! The Internet checksum: the 16-bit ones' complement sum of IP, UDP and TCP (RFC 1071).

use thiserror::Error;

/// A ones' complement sum over bytes that need not be contiguous.
///
/// Slices are summed as if they were joined, also after one of odd length.
///
/// ```
/// use nocopy_proto::wire::checksum::OnesComplementSum;
///
/// let sum = OnesComplementSum::new().with(&[0x12]).with(&[0x34, 0x56]);
/// assert_eq!(sum, OnesComplementSum::new().with(&[0x12, 0x34]).with(&[0x56]));
/// assert_eq!(OnesComplementSum::new().with(&[0x12, 0x34]).checksum(), !0x1234);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnesComplementSum {
    /// Sum of the 16-bit words as this machine loads them. RFC 1071 section 2(B): the sum may be taken in
    /// either byte order, as long as the result is stored in the same one, so bytes are swapped once, at the
    /// end.
    native: u16,
    /// Whether an odd number of bytes was summed: the next byte is then the second half of a word.
    odd: bool,
}

impl OnesComplementSum {
    /// The sum of no bytes.
    pub const fn new() -> Self {
        Self { native: 0, odd: false }
    }

    /// Continues the sum with `bytes`.
    #[inline]
    pub fn add(&mut self, bytes: &[u8]) {
        let part = sum_native(bytes);
        // In a slice that starts in the middle of a word, all bytes are in the other half of their words.
        let part = if self.odd { part.swap_bytes() } else { part };
        self.native = fold_carries(u64::from(self.native) + u64::from(part));
        self.odd ^= bytes.len() % 2 == 1;
    }

    /// The sum continued with `bytes`.
    #[inline]
    #[must_use]
    pub fn with(mut self, bytes: &[u8]) -> Self {
        self.add(bytes);
        self
    }

    /// The sum continued with words of a header: the same as [`with`](Self::with), for fewer instructions.
    ///
    /// # Panics
    /// In debug builds, after an odd number of bytes.
    #[inline]
    #[must_use]
    pub(crate) fn with_words<const N: usize>(self, words: [[u8; 2]; N]) -> Self {
        debug_assert!(!self.odd, "words begin at an even place");
        let sum: u64 = words.iter().map(|word| u64::from(u16::from_ne_bytes(*word))).sum();
        Self { native: fold_carries(u64::from(self.native) + sum), ..self }
    }

    /// The value for a checksum field that was summed as zero, or left out.
    ///
    /// UDP cannot send 0 (it means "no checksum"); [`udp::Repr`](super::udp::Repr) sends 0xffff instead.
    #[inline]
    pub const fn checksum(self) -> u16 {
        !u16::from_be(self.native)
    }

    /// Whether the summed bytes, their checksum field included, are consistent.
    #[inline]
    pub const fn is_valid(self) -> bool {
        self.native == 0xffff
    }
}

/// The place of a checksum that a device is to complete: its field holds the sum of the pseudo-header
/// ([`UdpChecksum::Offloaded`](super::UdpChecksum::Offloaded)), and it covers the bytes from `start` to the
/// end of the packet.
///
/// The kernel calls them `csum_start` and `csum_offset` (Documentation/networking/checksum-offloads.rst).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChecksumField {
    /// Bytes in front of the covered bytes: usually those before the transport header.
    pub start: u16,
    /// Bytes from `start` to the checksum field: 6 for UDP, 16 for TCP.
    pub offset: u16,
}

/// A checksum field outside its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("checksum at byte {} + {}: cannot be computed; the packet has only {packet_bytes} bytes; count from its first byte", .place.start, .place.offset)]
pub struct ChecksumFieldOutside {
    /// The place of the field.
    pub place: ChecksumField,
    /// Bytes in the packet.
    pub packet_bytes: usize,
}

impl ChecksumField {
    /// Checks that the field is within a packet of `packet_bytes` bytes.
    ///
    /// # Errors
    /// It does not.
    pub const fn check(self, packet_bytes: usize) -> Result<(), ChecksumFieldOutside> {
        if self.start as usize + self.offset as usize + 2 > packet_bytes {
            return Err(ChecksumFieldOutside { place: self, packet_bytes });
        }
        Ok(())
    }

    /// Does what the device would do: sums up, and puts the checksum in its place. A sum of 0 becomes 0xffff,
    /// its other representation, as in the kernel (`skb_checksum_help`).
    ///
    /// # Errors
    /// The field does not lie in the packet, which is unchanged.
    pub fn complete(self, packet: &mut [u8]) -> Result<(), ChecksumFieldOutside> {
        self.check(packet.len())?;
        let summed = &mut packet[usize::from(self.start)..];
        let checksum = match OnesComplementSum::new().with(summed).checksum() {
            0 => 0xffff,
            checksum => checksum,
        };
        let field = usize::from(self.offset);
        summed[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
        Ok(())
    }
}

/// Words summed before folding. Each adds less than 2^33, so a 64-bit sum cannot overflow.
const WORDS_BETWEEN_FOLDS: usize = 1 << 28;

/// Sum of `bytes` as native-order 16-bit words, the last padded with a zero byte.
fn sum_native(bytes: &[u8]) -> u16 {
    // A 64-bit word counts as its two halves: four 16-bit words two by two, because 2^16 is 1 in ones'
    // complement. Adding halves instead of carrying leaves the iterations independent, so the compiler
    // vectorizes the loop.
    let (words, tail) = bytes.as_chunks::<8>();
    let mut total = 0;
    for block in words.chunks(WORDS_BETWEEN_FOLDS) {
        let halves = block.iter().map(|word| {
            let word = u64::from_ne_bytes(*word);
            (word & 0xffff_ffff) + (word >> 32)
        });
        total += u64::from(fold_carries(halves.sum()));
    }
    let (pairs, last) = tail.as_chunks::<2>();
    total += pairs.iter().map(|pair| u64::from(u16::from_ne_bytes(*pair))).sum::<u64>();
    if let [byte] = *last {
        total += u64::from(u16::from_ne_bytes([byte, 0]));
    }
    fold_carries(total)
}

/// The sum in 16 bits, with carries added. Zero remains zero, all other values remain non-zero.
const fn fold_carries(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// The definition, word by word.
    fn naive_checksum(bytes: &[u8]) -> u16 {
        let mut sum: u32 = 0;
        for pair in bytes.chunks(2) {
            let low = pair.get(1).copied().unwrap_or(0);
            sum += u32::from(pair[0]) << 8 | u32::from(low);
            if sum > 0xffff {
                sum -= 0xffff;
            }
        }
        !(sum as u16)
    }

    #[test]
    fn the_example_of_rfc_1071_has_its_published_checksum() {
        // Section 3: 0001 + f203 + f4f5 + f6f7 = 2ddf0, folded ddf2.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(OnesComplementSum::new().with(&bytes).checksum(), !0xddf2);
        assert!(OnesComplementSum::new().with(&bytes).with(&(!0xddf2_u16).to_be_bytes()).is_valid());
    }

    #[test]
    fn sums_of_zeros_and_of_ones_have_their_checksums() {
        assert_eq!(OnesComplementSum::new().checksum(), 0xffff);
        assert_eq!(OnesComplementSum::new().with(&[0; 9]).checksum(), 0xffff);
        assert!(!OnesComplementSum::new().with(&[0; 8]).is_valid());
        for bytes in 2..70 {
            let sum = OnesComplementSum::new().with(&vec![0xff; bytes & !1]);
            assert_eq!((sum.checksum(), sum.is_valid()), (0, true));
        }
    }

    #[test]
    fn folding_keeps_the_value_modulo_ffff() {
        for sum in
            [0, 1, 0xffff, 0x1_0000, 0x1_fffe, 0xffff_ffff, u64::MAX, u64::MAX - 1, 0xffff_ffff_0000_0001]
        {
            assert_eq!(u64::from(fold_carries(sum)) % 0xffff, sum % 0xffff);
            assert_eq!(fold_carries(sum) == 0, sum == 0);
        }
    }

    #[test]
    fn a_checksum_field_outside_the_packet_is_refused() {
        let place = ChecksumField { start: 4, offset: 6 };
        for bytes in 0..12 {
            let mut packet = vec![1; bytes];
            let refused = place.complete(&mut packet).unwrap_err();
            assert_eq!((refused.packet_bytes, packet), (bytes, vec![1; bytes]));
        }
        assert_eq!(place.complete(&mut [1; 12]), Ok(()));
        let far = ChecksumField { start: u16::MAX, offset: u16::MAX };
        assert!(far.complete(&mut [0; 65536]).is_err());
    }

    #[test]
    fn a_zero_checksum_is_written_as_ffff() {
        let mut packet = [0xff, 0xff, 0, 0];
        ChecksumField { start: 0, offset: 2 }.complete(&mut packet).unwrap();
        assert_eq!(packet, [0xff; 4]);
    }

    proptest! {
        #[test]
        fn the_checksum_agrees_with_the_naive_sum(bytes in vec(any::<u8>(), 0..2000)) {
            prop_assert_eq!(OnesComplementSum::new().with(&bytes).checksum(), naive_checksum(&bytes));
        }

        #[test]
        fn sums_do_not_depend_on_piece_boundaries(slices in vec(vec(any::<u8>(), 0..20), 0..12)) {
            let in_pieces = slices.iter().fold(OnesComplementSum::new(), |sum, slice| sum.with(slice));
            prop_assert_eq!(in_pieces, OnesComplementSum::new().with(&slices.concat()));
            prop_assert_eq!(in_pieces.checksum(), naive_checksum(&slices.concat()));
        }

        #[test]
        fn one_flipped_bit_changes_the_checksum(words in vec(any::<[u8; 2]>(), 1..200), bit: prop::sample::Index) {
            let mut bytes = words.concat();
            let checksum = OnesComplementSum::new().with(&bytes).checksum().to_be_bytes();
            prop_assert!(OnesComplementSum::new().with(&bytes).with(&checksum).is_valid());
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!OnesComplementSum::new().with(&bytes).with(&checksum).is_valid());
        }
    }
}
