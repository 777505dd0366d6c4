//! Puts the rows of datagrams into chunks.

use std::collections::VecDeque;
use std::io;

use super::chunk::PlacedChunk;
use super::held::{AGREEING, HeldRows, HeldState};
use super::settings::Layout;
use super::window::{Number, Position, Row, Window};
use crate::counter::{Counter, counters};
use crate::memory::pool::Pool;
use crate::memory::rows::RowBuffer;

counters! {
    /// Counts datagrams and rows by their fate.
    pub(crate) struct PlacedCounters {
        /// Datagrams whose chunk was returned before they arrived: lost.
        late,
        /// Datagrams with a number far ahead, with which not enough others agreed: lost.
        strays,
        /// Datagrams with an offset that is not the offset of a row: lost.
        foreign,
        /// Datagrams that were too short for a row: lost.
        short,
        /// Datagrams that were longer than a row: lost.
        long,
        /// Datagrams with the number of a row that was there already; the first one stays.
        double,
        /// Rows of returned chunks that no datagram filled.
        missing,
        /// Rows of chunks that were not returned, because no datagram was for them.
        skipped,
        /// Moves of the window to numbers far ahead.
        jumps,
        /// Moves of the window back, to a sender that started again.
        restarts,
        /// Calls for which all chunks were in use; datagrams waited in the kernel.
        no_chunks,
    }
}

impl PlacedCounters {
    /// The losses, and the others.
    pub(super) fn partition(&self) -> (Vec<Counter>, Vec<Counter>) {
        let losses = ["late", "strays", "foreign", "short", "long"];
        self.counters().partition(|counter| losses.contains(&&*counter.name))
    }
}

/// The most chunks that are open at once.
const OPEN_MAX: usize = 2;

#[derive(Debug, thiserror::Error)]
#[error(
    "receive: no chunk; all {total} of the ring are in use; drop some of those that were received, or make the ring larger"
)]
struct NoChunksError {
    total: usize,
}

/// Chunks that are open or complete, and the rows that wait for one.
#[derive(Debug)]
pub(super) struct Placer {
    layout: Layout,
    window: Window,
    ring: Pool,
    open: [Option<RowBuffer>; OPEN_MAX],
    complete: VecDeque<PlacedChunk>,
    held: HeldRows,
    counters: PlacedCounters,
    /// Where the next row is expected: behind the last one.
    next: Row,
    /// Rows that were filled.
    filled: u64,
    /// Copies of rows, after the kernel's.
    copied: u64,
}

/// Rows of an open chunk that follow each other, and are absent.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowRange {
    pub(super) first: Row,
    pub(super) count: usize,
}

impl Placer {
    /// Takes the memory of the ring. Errors: there is not enough.
    pub(super) fn new(layout: Layout) -> io::Result<Self> {
        let bytes = RowBuffer::buffer_bytes(layout.rows(), layout.row_bytes);
        let ring = Pool::new(layout.ring() as u32, bytes.ok_or(io::ErrorKind::OutOfMemory)?)?;
        let all: Vec<_> = std::iter::from_fn(|| ring.take()).collect();
        for mut buffer in all {
            buffer.resize(buffer.capacity());
            buffer[..].fill(0); // so that no page has to be made when the first datagrams arrive
        }
        Ok(Self {
            window: Window::new(layout.space),
            ring,
            open: [None, None],
            complete: VecDeque::with_capacity(layout.ring()),
            held: HeldRows::new(layout.row_bytes),
            counters: PlacedCounters::default(),
            next: Row { chunk: 0, row: 0 },
            filled: 0,
            copied: 0,
            layout,
        })
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(super) fn counters(&self) -> &PlacedCounters {
        &self.counters
    }

    pub(super) fn filled_rows(&self) -> u64 {
        self.filled
    }

    /// Copies of rows.
    pub(super) fn copied_rows(&self) -> u64 {
        self.copied
    }

    /// Places a datagram, or counts it as lost. Returns false if no other may follow before
    /// [`next_complete`](Self::next_complete): a chunk is complete, or there was no memory for one.
    #[inline]
    pub(super) fn place(&mut self, datagram: &[u8]) -> bool {
        if datagram.len() == self.layout.datagram_bytes()
            && self.held.is_empty()
            && let Some(number) = self.layout.number_of(datagram)
            && let Some(Row { chunk, row }) = self.window.row_inside(number)
            && let Some(rows) = &mut self.open[chunk]
            && rows.write_row(row, self.layout.row_of(datagram))
        {
            self.filled += 1;
            self.copied += 1;
            self.next = Row { chunk, row: row + 1 };
            return !rows.is_complete() || self.end_complete_chunks();
        }
        self.place_unexpected(datagram)
    }

    /// As [`place`](Self::place), for datagrams of which not everything is as usual.
    #[cold]
    fn place_unexpected(&mut self, datagram: &[u8]) -> bool {
        let Some(number) = self.number_or_count(datagram) else { return true };
        let (position, row) = (self.window.position(number), self.layout.row_of(datagram));
        match position {
            Position::Behind | Position::FarAhead => self.hold(number, row),
            _ => {
                self.give_up_held();
                if !self.put(number, position, row) {
                    self.copy_aside(number, row);
                    self.held.begin_placement();
                    return false;
                }
            }
        }
        self.complete.is_empty() && self.held.state() == HeldState::Agreement
    }

    fn number_or_count(&mut self, datagram: &[u8]) -> Option<Number> {
        let (length, expected) = (datagram.len(), self.layout.datagram_bytes());
        if length != expected {
            *if length < expected { &mut self.counters.short } else { &mut self.counters.long } += 1;
            return None;
        }
        let number = self.layout.number_of(datagram);
        self.counters.foreign += u64::from(number.is_none());
        number
    }

    /// Puts a row where it belongs, after ending chunks that are too old for the window then. Returns false
    /// if there is no memory for its chunk.
    fn put(&mut self, number: Number, position: Position, row: &[u8]) -> bool {
        match position {
            Position::Inside(_) => {}
            Position::Ahead { chunks } => (0..chunks).for_each(|_| self.end_oldest()),
            Position::Unknown => self.window.begin_at(number),
            Position::Behind => self.counters.late += 1,
            Position::FarAhead => self.counters.strays += 1,
        }
        let Some(Row { chunk, row: index }) = self.window.row_inside(number) else { return true };
        if !self.open_chunk(chunk) {
            return false;
        }
        if self.open[chunk].as_mut().is_some_and(|rows| rows.write_row(index, row)) {
            self.filled += 1;
            self.copied += 1;
            self.next = Row { chunk, row: index + 1 };
            self.end_complete_chunks();
        } else {
            self.counters.double += 1;
        }
        true
    }

    /// Returns false if there is no memory for the chunk.
    fn open_chunk(&mut self, chunk: usize) -> bool {
        if self.open[chunk].is_none() {
            let Some(buffer) = self.ring.take() else { return false };
            self.open[chunk] = Some(RowBuffer::new(buffer, self.layout.rows(), self.layout.row_bytes));
        }
        true
    }

    /// Where the next rows are expected, at most so many; `None` if nothing is known about them, or there is
    /// no memory.
    pub(super) fn expected_rows(&mut self, most: usize) -> Option<RowRange> {
        let Row { mut chunk, mut row } = self.next;
        if row >= self.layout.rows() {
            (chunk, row) = (chunk + 1, 0);
        }
        let is_open = (chunk as u64) < self.window.open_chunks();
        if !is_open || !self.held.is_empty() || !self.open_chunk(chunk) {
            return None;
        }
        let count = self.open[chunk].as_ref()?.absent_rows(row, most);
        (count > 0).then_some(RowRange { first: Row { chunk, row }, count })
    }

    /// The memory of expected rows, to be written in place.
    pub(super) fn absent_rows_mut(&mut self, RowRange { first, count }: RowRange) -> &mut [u8] {
        let rows = self.open[first.chunk].as_mut().expect("opened when they were expected");
        rows.absent_rows_mut(first.row, count)
    }

    /// Whether a datagram of the right length has the number of a row; the row itself is not read.
    #[inline]
    pub(super) fn is_of_row(&self, datagram: &[u8], row: Row) -> bool {
        self.layout.number_of(datagram).and_then(|number| self.window.row_inside(number)) == Some(row)
    }

    /// A row was written in place. Returns false if no other may follow, as [`place`](Self::place) does.
    #[inline]
    pub(super) fn mark_written(&mut self, at: Row) -> bool {
        let rows = self.open[at.chunk].as_mut().expect("rows of it are written");
        rows.mark_row(at.row);
        self.filled += 1;
        self.next = Row { row: at.row + 1, ..at };
        !rows.is_complete() || self.end_complete_chunks()
    }

    /// Copies the beginning of a row that was written in place, and does not belong there.
    pub(super) fn copy_back(&mut self, at: Row, to: &mut [u8]) {
        let row = self.open[at.chunk].as_ref().expect("it is not ended before").row(at.row);
        to.copy_from_slice(&row[..to.len()]);
        self.copied += 1;
    }

    /// Keeps a row that is not near the window, until others agree.
    fn hold(&mut self, number: Number, row: &[u8]) {
        if self.held.numbers().last().is_some_and(|last| !self.window.are_near(*last, number)) {
            self.give_up_held();
        }
        self.copy_aside(number, row);
        if self.held.numbers().len() == AGREEING {
            self.move_to_held();
        }
    }

    fn copy_aside(&mut self, number: Number, row: &[u8]) {
        self.held.push(number, row);
        self.copied += 1;
    }

    /// Moves the window to where the held rows are, and places them.
    fn move_to_held(&mut self) {
        let first = self.held.numbers()[0];
        let position = self.window.position(first);
        self.end_open();
        if position == Position::Behind {
            self.counters.restarts += 1;
            self.window.begin_at(first);
        } else {
            self.counters.jumps += 1;
            self.window.jump_to(first);
        }
        self.held.begin_placement();
        self.place_held();
    }

    /// Places held rows, as far as there is memory.
    fn place_held(&mut self) {
        let mut held = std::mem::take(&mut self.held);
        while let Some((number, row)) = held.next()
            && self.put(number, self.window.position(number), row)
        {
            held.note_placed();
        }
        if held.next().is_none() {
            held.clear();
        }
        self.held = held;
    }

    /// Counts rows that wait for agreement as lost: a datagram inside the window has refuted them.
    fn give_up_held(&mut self) {
        if self.held.state() == HeldState::Placement {
            return;
        }
        for number in self.held.numbers() {
            match self.window.position(*number) {
                Position::Behind => self.counters.late += 1,
                _ => self.counters.strays += 1,
            }
        }
        self.held.clear();
    }

    /// Ends the oldest open chunk, and opens the window for another. Nothing remains of a chunk without rows.
    fn end_oldest(&mut self) {
        self.close_empty();
        let rows_total = self.layout.rows() as u64;
        match self.open[0].take() {
            Some(rows) => {
                self.counters.missing += rows_total - rows.filled() as u64;
                self.complete.push_back(PlacedChunk::new(self.window.first(0), rows.freeze()));
            }
            None => self.counters.skipped += rows_total,
        }
        self.open.rotate_left(1);
        self.window.advance();
        self.next = match self.next {
            Row { chunk: 0, .. } => Row { chunk: 0, row: 0 },
            Row { chunk, row } => Row { chunk: chunk - 1, row },
        };
    }

    /// Ends the oldest chunks as long as no row of them is missing. Returns whether there was none.
    fn end_complete_chunks(&mut self) -> bool {
        while self.open[0].as_ref().is_some_and(RowBuffer::is_complete) {
            self.end_oldest();
        }
        self.complete.is_empty()
    }

    /// Closes chunks that were opened for expected rows, none of which arrived.
    fn close_empty(&mut self) {
        for chunk in &mut self.open {
            chunk.take_if(|rows| rows.filled() == 0);
        }
    }

    fn end_open(&mut self) {
        self.close_empty();
        while self.open.iter().any(Option::is_some) {
            self.end_oldest();
        }
    }

    /// The next complete chunk. After `None`, more can be placed. Errors: a row waits for a chunk, and all
    /// are in use.
    pub(super) fn next_complete(&mut self) -> io::Result<Option<PlacedChunk>> {
        if self.complete.is_empty() && self.held.state() == HeldState::Placement {
            self.place_held();
            if self.complete.is_empty() && self.held.state() == HeldState::Placement {
                self.counters.no_chunks += 1;
                let error = NoChunksError { total: self.layout.ring() };
                return Err(io::Error::new(io::ErrorKind::OutOfMemory, error));
            }
        }
        Ok(self.complete.pop_front())
    }

    /// Whether [`place`](Self::place) may be called.
    pub(super) fn can_place(&self) -> bool {
        self.complete.is_empty() && self.held.state() == HeldState::Agreement
    }

    pub(super) fn has_complete(&self) -> bool {
        !self.complete.is_empty()
    }

    /// Ends all open chunks, and returns the next one. After `None`, the next number begins a new window.
    pub(super) fn finish(&mut self) -> Option<PlacedChunk> {
        if self.complete.is_empty() && self.held.state() == HeldState::Placement {
            self.place_held();
        }
        if self.complete.is_empty() {
            self.give_up_held();
            self.end_open();
        }
        let chunk = self.complete.pop_front();
        if chunk.is_none() && self.held.is_empty() {
            self.window.close();
        }
        chunk
    }
}

#[cfg(test)]
mod tests;
