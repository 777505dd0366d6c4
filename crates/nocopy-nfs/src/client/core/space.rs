//! Where bytes of a connection are received.

use std::io::IoSliceMut;

use smallvec::SmallVec;

/// Buffers that one system call receives into.
pub(super) const DATA_PIECES_MAX: usize = 16;

pub(super) type Pieces<'a> = SmallVec<[IoSliceMut<'a>; DATA_PIECES_MAX + 1]>;

/// Where the next bytes of a connection are received: the rest of a reply's data, in the buffers that were posted for them, then what stands
/// behind that, up to the data of the next reply.
#[derive(Debug)]
pub struct Space<'a> {
    pub(super) pieces: Pieces<'a>,
}

impl<'a> Space<'a> {
    /// The pieces, in the order of the bytes.
    pub fn pieces(&mut self) -> &mut [IoSliceMut<'a>] {
        &mut self.pieces
    }

    /// Bytes that there is room for.
    pub fn room(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len()).sum()
    }

    /// Copies as many bytes there as there is room for, and returns how many that are.
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        for piece in &mut self.pieces {
            let (now, behind) = rest.split_at(rest.len().min(piece.len()));
            piece[..now.len()].copy_from_slice(now);
            rest = behind;
        }
        bytes.len() - rest.len()
    }
}
