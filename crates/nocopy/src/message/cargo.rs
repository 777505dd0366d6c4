//! The program's buffers to which packets in flight refer.

use crate::memory::pool::Buffer;

/// The most buffers, so that memory is bounded.
const BUFFERS_MAX: usize = 1 << 16;

/// A part of a packet that lies in a buffer of the program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Piece {
    /// The index of the buffer in the [`Cargo`].
    pub(super) buffer: u32,
    pub(super) at: u32,
    pub(super) bytes: u32,
}

/// Buffers, each with the number of packets that refer to it; a buffer returns home when no packet does any
/// more.
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
    /// How many more buffers fit.
    #[inline]
    pub(super) fn room(&self) -> usize {
        BUFFERS_MAX - (self.places.len() - self.free.len())
    }

    /// Adds a buffer, to which the caller refers until it [`release`](Self::release)s it.
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

    /// Counts one more packet that refers to it.
    #[inline]
    pub(super) fn refer(&mut self, number: u32) {
        self.places[number as usize].references += 1;
    }

    /// Counts one packet fewer that refers to it.
    #[inline]
    pub(super) fn release(&mut self, number: u32) {
        let place = &mut self.places[number as usize];
        place.references -= 1;
        if place.references == 0 {
            place.buffer = None;
            self.free.push(number);
        }
    }

    #[inline]
    pub(super) fn len(&self, number: u32) -> usize {
        self.places[number as usize].buffer.as_ref().map_or(0, |buffer| buffer.len())
    }

    #[inline]
    pub(super) fn bytes(&self, piece: Piece) -> &[u8] {
        let buffer = self.places[piece.buffer as usize].buffer.as_ref().expect("a packet refers to it");
        &buffer[piece.at as usize..][..piece.bytes as usize]
    }
}
