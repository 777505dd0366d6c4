//! Memory for writes to a file past the page cache, and the ring by which it is written.

#[cfg_attr(not(feature = "uring"), path = "disk/absent.rs")]
mod write_ring;

use std::io;

pub(crate) use write_ring::WriteRing;

use super::memory::Mapping;
use super::packet::PcapngBlock;

/// Memory that begins on a page, for writes past the page cache.
#[derive(Debug)]
pub struct SectorBuffer {
    mapping: Mapping,
    bytes: usize,
}

impl SectorBuffer {
    /// Zeroed memory of that many bytes.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let mapping = Mapping::zeroed_pages(bytes.max(1))?;
        Ok(Self { mapping, bytes })
    }

    /// Shortens the part that is written.
    ///
    /// # Panics
    /// If it is shorter already.
    pub fn truncate(&mut self, bytes: usize) {
        assert!(bytes <= self.bytes, "longer than before");
        self.bytes = bytes;
    }

    /// The original length.
    pub fn capacity(&self) -> usize {
        self.mapping.bytes()
    }

    /// Restores the original length.
    pub fn restore(&mut self) {
        self.bytes = self.mapping.bytes();
    }
}

impl AsRef<[u8]> for SectorBuffer {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: inside the mapping, which is initialised by the kernel and borrowed with `self`.
        unsafe { std::slice::from_raw_parts(self.mapping.base().as_ptr(), self.bytes) }
    }
}

impl AsMut<[u8]> for SectorBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.base().as_ptr(), self.bytes) }
    }
}

/// Memory for a write, at a fixed address.
#[derive(Debug)]
pub enum Sectors {
    /// A block of a capture, written from the kernel's memory.
    Block(PcapngBlock),
    /// Anything else.
    Memory(SectorBuffer),
}

impl AsRef<[u8]> for Sectors {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Block(block) => block.as_ref(),
            Self::Memory(buffer) => buffer.as_ref(),
        }
    }
}

/// The sectors' memory, without the first bytes.
pub(crate) fn remaining_slices(sectors: &[Sectors], mut skipped: usize) -> impl Iterator<Item = &[u8]> {
    let pieces = sectors.iter().map(move |sectors| {
        let bytes = sectors.as_ref();
        let (before, behind) = bytes.split_at(skipped.min(bytes.len()));
        skipped -= before.len();
        behind
    });
    pieces.filter(|piece| !piece.is_empty())
}
