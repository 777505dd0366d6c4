//! The buffers of one message, in order.

use smallvec::SmallVec;

use super::pool::Buffer;

pub(crate) type Buffers = SmallVec<[Buffer; 2]>;

/// Iterator over the buffers of a message.
#[derive(Debug)]
pub struct Pieces(smallvec::IntoIter<[Buffer; 2]>);

impl From<Buffers> for Pieces {
    #[inline(always)]
    fn from(buffers: Buffers) -> Self {
        Self(buffers.into_iter())
    }
}

impl Iterator for Pieces {
    type Item = Buffer;

    #[inline(always)]
    fn next(&mut self) -> Option<Buffer> {
        self.0.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for Pieces {}
