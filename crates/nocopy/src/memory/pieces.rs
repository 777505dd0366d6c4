//! The buffers of one message, in order.

use std::iter::{Once, once};
use std::ops::Deref;

use either::Either;

use super::pool::Buffer;

/// Nearly always one buffer. A list is elsewhere, because room for it would be copied with every message that
/// moves.
#[derive(Debug)]
pub(crate) enum Buffers {
    One(Buffer),
    List(Vec<Buffer>),
}

/// Iterator over the buffers of a message.
#[derive(Debug)]
pub struct Pieces(Either<Once<Buffer>, std::vec::IntoIter<Buffer>>);

impl Default for Buffers {
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

impl Deref for Buffers {
    type Target = [Buffer];

    #[inline]
    fn deref(&self) -> &[Buffer] {
        match self {
            Self::One(buffer) => std::slice::from_ref(buffer),
            Self::List(buffers) => buffers,
        }
    }
}

impl FromIterator<Buffer> for Buffers {
    fn from_iter<I: IntoIterator<Item = Buffer>>(buffers: I) -> Self {
        let mut buffers = buffers.into_iter();
        // Once for each: after its end an iterator may begin again.
        let Some(first) = buffers.next() else { return Self::default() };
        let Some(second) = buffers.next() else { return Self::One(first) };
        Self::List([first, second].into_iter().chain(buffers).collect())
    }
}

impl IntoIterator for Buffers {
    type Item = Buffer;
    type IntoIter = Pieces;

    #[inline(always)]
    fn into_iter(self) -> Pieces {
        Pieces(match self {
            Self::One(buffer) => Either::Left(once(buffer)),
            Self::List(buffers) => Either::Right(buffers.into_iter()),
        })
    }
}

impl Iterator for Pieces {
    type Item = Buffer;

    #[inline(always)]
    fn next(&mut self) -> Option<Buffer> {
        self.0.next()
    }

    #[inline(always)]
    fn fold<B, F: FnMut(B, Buffer) -> B>(self, initial: B, each: F) -> B {
        self.0.fold(initial, each)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for Pieces {}
