//! Buffers of the program's that packets on their way refer to.

use crate::memory::pool::Buffer;

/// Buffers at most, so that memory does not grow without bound.
const BUFFERS_MAX: usize = 1 << 16;

/// A part of a packet that lies in a buffer of the program's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Piece {
    /// Which buffer: its place among the [`Cargo`].
    pub(super) buffer: u32,
    pub(super) at: u32,
    pub(super) bytes: u32,
}

/// Buffers with how many packets refer to each; one that none refers to any more goes home.
#[derive(Debug, Default)]
pub(super) struct Cargo {
    places: Vec<Place>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Place {
    buffer: Option<Buffer>,
    references: u32,
}

impl Cargo {
    /// How many buffers more can be put here.
    #[inline]
    pub(super) fn room(&self) -> usize {
        BUFFERS_MAX - (self.places.len() - self.free.len())
    }

    /// Puts a buffer here, to which the caller refers until it [`release`](Self::release)s it.
    pub(super) fn put(&mut self, buffer: Buffer) -> u32 {
        let place = Place { buffer: Some(buffer), references: 1 };
        match self.free.pop() {
            Some(number) => {
                self.places[number as usize] = place;
                number
            }
            None => {
                self.places.push(place);
                self.places.len() as u32 - 1
            }
        }
    }

    /// One packet more refers to it.
    #[inline]
    pub(super) fn refer(&mut self, number: u32) {
        self.places[number as usize].references += 1;
    }

    /// One fewer does.
    #[inline]
    pub(super) fn release(&mut self, number: u32) {
        let place = &mut self.places[number as usize];
        place.references -= 1;
        if place.references == 0 {
            place.buffer = None;
            self.free.push(number);
        }
    }

    /// How long a buffer is.
    #[inline]
    pub(super) fn len(&self, number: u32) -> usize {
        self.places[number as usize].buffer.as_ref().map_or(0, |buffer| buffer.len())
    }

    /// The bytes of a piece.
    #[inline]
    pub(super) fn bytes(&self, piece: Piece) -> &[u8] {
        let buffer = self.places[piece.buffer as usize].buffer.as_ref().expect("a packet refers to it");
        &buffer[piece.at as usize..][..piece.bytes as usize]
    }
}
