//! CRC32C (RFC 3720 section 12.1), the checksum of docs/protocol.md §12.

/// Bytes of the checksum, at the very end of a datagram.
pub const CRC_BYTES: usize = 4;

/// The CRC32C of `pieces`, in this order, as if they lay in one place.
#[inline]
pub fn of_pieces<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    pieces.into_iter().fold(0, crc32c::crc32c_append)
}

/// Appends the checksum of all that `datagram` holds.
pub fn seal(datagram: &mut Vec<u8>) {
    let crc = crc32c::crc32c(datagram);
    datagram.extend_from_slice(&crc.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn is_the_crc_of_rfc_3720_b_4() {
        assert_eq!(of_pieces([&[0; 32][..]]), 0x8a91_36aa);
        assert_eq!(of_pieces([&[0xff; 32][..]]), 0x62a8_ab43);
    }

    proptest! {
        #[test]
        fn is_the_same_in_pieces(bytes: Vec<u8>, cut: prop::sample::Index) {
            let (front, back) = bytes.split_at(cut.index(bytes.len() + 1));
            let mut sealed = bytes.clone();
            seal(&mut sealed);
            prop_assert_eq!(&sealed[bytes.len()..], &of_pieces([front, back]).to_be_bytes());
        }
    }
}
