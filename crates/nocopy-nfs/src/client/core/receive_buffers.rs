//! Memory to receive into.

use std::io::IoSliceMut;

use smallvec::SmallVec;

/// The most posted buffers that one system call fills.
pub(super) const DATA_PIECES_MAX: usize = 16;

pub(super) type Pieces<'a> = SmallVec<[IoSliceMut<'a>; DATA_PIECES_MAX + 1]>;

/// Memory for the next bytes of a connection: the posted buffers for the rest of a reply's data, then memory
/// for the next reply header.
#[derive(Debug)]
pub struct ReceiveBuffers<'a> {
    pub(super) pieces: Pieces<'a>,
}

impl<'a> ReceiveBuffers<'a> {
    /// The memory, in the order of the bytes.
    pub fn pieces(&mut self) -> &mut [IoSliceMut<'a>] {
        &mut self.pieces
    }

    /// The bytes of all pieces.
    pub fn total_bytes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len()).sum()
    }

    /// Copies as many bytes as there is room for, and returns their number.
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
