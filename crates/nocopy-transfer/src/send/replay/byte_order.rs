//! Numbers of a file, in its byte order.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ByteOrder {
    pub(super) is_big_endian: bool,
}

impl ByteOrder {
    /// # Panics
    /// If the bytes are fewer than the number has; so do the others.
    pub(super) fn u16(self, bytes: &[u8]) -> u16 {
        let bytes = *bytes.first_chunk().expect("two bytes");
        if self.is_big_endian { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) }
    }

    pub(super) fn u32(self, bytes: &[u8]) -> u32 {
        let bytes = *bytes.first_chunk().expect("four bytes");
        if self.is_big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    }

    pub(super) fn i64(self, bytes: &[u8]) -> i64 {
        let bytes = *bytes.first_chunk().expect("eight bytes");
        if self.is_big_endian { i64::from_be_bytes(bytes) } else { i64::from_le_bytes(bytes) }
    }
}
