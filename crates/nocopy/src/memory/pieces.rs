//! The buffers of one message, in order.

use std::array;
use std::iter::{Once, once};
use std::ops::Deref;
use std::vec;

use either::Either;

use super::pool::Buffer;

/// Nearly always one buffer, or header and payload. A list is elsewhere, because room for it would be copied
/// with every message that moves.
#[derive(Debug)]
pub(crate) enum Buffers {
    One(Buffer),
    Two([Buffer; 2]),
    List(Vec<Buffer>),
}

/// Iterator over the buffers of a message.
#[derive(Debug)]
pub struct Pieces(Either<Once<Buffer>, Either<array::IntoIter<Buffer, 2>, vec::IntoIter<Buffer>>>);

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
            Self::Two(buffers) => buffers,
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
        let Some(third) = buffers.next() else { return Self::Two([first, second]) };
        Self::List([first, second, third].into_iter().chain(buffers).collect())
    }
}

impl IntoIterator for Buffers {
    type Item = Buffer;
    type IntoIter = Pieces;

    #[inline(always)]
    fn into_iter(self) -> Pieces {
        Pieces(match self {
            Self::One(buffer) => Either::Left(once(buffer)),
            Self::Two(buffers) => Either::Right(Either::Left(buffers.into_iter())),
            Self::List(buffers) => Either::Right(Either::Right(buffers.into_iter())),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_stay_in_their_order_in_every_form() {
        for count in 0..5 {
            let bytes: Vec<u8> = (0..count).collect();
            let buffers: Buffers = bytes.iter().map(|byte| Buffer::from(vec![*byte])).collect();
            let is_form_of_count = match &buffers {
                Buffers::One(_) => count == 1,
                Buffers::Two(_) => count == 2,
                Buffers::List(_) => count == 0 || count > 2,
            };
            assert!(is_form_of_count, "{buffers:?}");
            assert_eq!(buffers.iter().map(|buffer| buffer[0]).collect::<Vec<_>>(), bytes);
            let pieces = buffers.into_iter();
            assert_eq!(pieces.len(), bytes.len());
            assert_eq!(pieces.map(|buffer| buffer[0]).collect::<Vec<_>>(), bytes);
        }
    }
}
