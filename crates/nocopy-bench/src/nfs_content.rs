//! Content of files for NFS: words of eight bytes, different at each offset.

/// Whether `bytes` are the content from `offset` on, both multiples of eight bytes.
pub(crate) fn is_content(offset: u64, bytes: &[u8]) -> bool {
    let words = bytes.chunks_exact(8);
    words.remainder().is_empty()
        && words.zip(offset / 8..).all(|(word, place)| word == content_word_at(place))
}

/// A different word at each offset.
pub(crate) fn content_word_at(place: u64) -> [u8; 8] {
    place.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_of_another_offset_is_detected() {
        let words = |from: u64| (from..from + 4).flat_map(content_word_at).collect::<Vec<u8>>();
        assert!(is_content(64, &words(8)) && !is_content(72, &words(8)));
        let mut changed = words(8);
        changed[31] ^= 1;
        assert!(!is_content(64, &changed) && !is_content(64, &words(8)[..31]));
    }
}
