//! Which row of which chunk a number is: arithmetic without memory, sockets or clock.
//!
//! The window is one or two open chunks that follow each other. Distances from its first row are signed,
//! modulo the width of the number's field, so that numbers wrap.
//!
//! ```text
//!        behind        |   inside: open chunks   |   ahead: moves the window   |      far ahead
//!   ───────────────────┼────────────┬────────────┼─────────────────────────────┼──────────────────▶ number
//!                      first row    │            span                          reach
//! ```

/// A number as it is in a datagram: of a heap, and of a row in it. Without heaps, each row is a heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Number {
    pub(super) heap: u64,
    /// Less than [`NumberSpace::rows_per_heap`].
    pub(super) row: u64,
}

/// What is fixed.
#[derive(Debug, Clone, Copy)]
pub(super) struct NumberSpace {
    /// 1 to 64: of the field with the heap's number.
    pub(super) bits: u32,
    /// 1 to 2^32.
    pub(super) rows_per_heap: u64,
    /// Of a chunk: 1 to 2^32.
    pub(super) rows: u64,
    /// Chunks: 1 to 2^16.
    pub(super) ring: u64,
}

impl NumberSpace {
    /// How many chunks are open at once: with two, datagrams that overtake each other at the border of two
    /// chunks are no loss. One has to be left for the program.
    pub(super) fn open_chunks(&self) -> u64 {
        if self.ring >= 3 { 2 } else { 1 }
    }

    /// Chunks of the window, and of those ahead by which it moves at once.
    fn chunks_in_reach(&self) -> u64 {
        self.open_chunks() + self.ring
    }

    /// The most rows of a chunk: half of the numbers are ahead of the window, and its reach is among them.
    pub(super) fn rows_max(&self) -> u64 {
        let ahead = u128::from(self.rows_per_heap) << (self.bits - 1);
        let rows = ahead / u128::from(self.chunks_in_reach());
        rows.min(u128::from(u32::MAX)) as u64
    }
}

/// Where a number is, seen from the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Position {
    Inside(Row),
    /// So near that the oldest chunks end: that many.
    Ahead {
        chunks: u64,
    },
    FarAhead,
    Behind,
    /// There is no window yet.
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    /// 0 is the oldest open one.
    pub(super) chunk: usize,
    pub(super) row: usize,
}

/// The first row of a chunk.
#[derive(Debug, Clone, Copy)]
struct ChunkStart {
    /// Its heap, counted on when the field wraps.
    heap: u64,
    row: u64,
    /// Its number among all rows, modulo 2^64.
    number: u64,
}

#[derive(Debug)]
pub(super) struct Window {
    space: NumberSpace,
    start: ChunkStart,
    /// Rows of the open chunks; 0 without a window, so that nothing is inside.
    span: u64,
}

impl Window {
    pub(super) fn new(space: NumberSpace) -> Self {
        Self { space, start: ChunkStart { heap: 0, row: 0, number: 0 }, span: 0 }
    }

    /// Rows from the start to the number; saturated, which is far beyond every reach.
    #[inline]
    fn distance_from(&self, start: &ChunkStart, number: Number) -> i64 {
        let heaps = self.signed(number.heap.wrapping_sub(start.heap));
        // Rows of a heap have 32 bits.
        heaps
            .saturating_mul(self.space.rows_per_heap as i64)
            .saturating_add(number.row as i64 - start.row as i64)
    }

    /// A difference of two numbers, modulo the width of their field.
    #[inline]
    fn signed(&self, difference: u64) -> i64 {
        let unused = u64::BITS - self.space.bits;
        (difference << unused).cast_signed() >> unused
    }

    /// The row of a number inside the window.
    #[inline]
    pub(super) fn row_inside(&self, number: Number) -> Option<Row> {
        // Negative distances are longer than any span.
        let distance = self.distance_from(&self.start, number).cast_unsigned();
        if distance >= self.span {
            return None;
        }
        let chunk = distance >= self.space.rows; // there are at most two
        let row = if chunk { distance - self.space.rows } else { distance };
        Some(Row { chunk: usize::from(chunk), row: row as usize })
    }

    pub(super) fn position(&self, number: Number) -> Position {
        if self.span == 0 {
            return Position::Unknown;
        }
        if let Some(row) = self.row_inside(number) {
            return Position::Inside(row);
        }
        match u64::try_from(self.distance_from(&self.start, number)) {
            Err(_) => Position::Behind,
            // At least one chunk: a distance of less than the span would be inside.
            Ok(distance) if distance < self.space.chunks_in_reach() * self.space.rows => {
                Position::Ahead { chunks: (distance - self.span) / self.space.rows + 1 }
            }
            Ok(_) => Position::FarAhead,
        }
    }

    /// Whether two numbers are no further apart than the window is long.
    pub(super) fn are_near(&self, one: Number, other: Number) -> bool {
        let start = ChunkStart { heap: one.heap, row: one.row, number: 0 };
        self.distance_from(&start, other).unsigned_abs() <= self.space.open_chunks() * self.space.rows
    }

    /// 0 without a window.
    pub(super) fn open_chunks(&self) -> u64 {
        self.span / self.space.rows
    }

    /// The first number of an open chunk.
    pub(super) fn first(&self, chunk: usize) -> u64 {
        self.start.number.wrapping_add(chunk as u64 * self.space.rows)
    }

    /// Moves on by one chunk.
    pub(super) fn advance(&mut self) {
        let NumberSpace { rows, rows_per_heap, .. } = self.space;
        let row = self.start.row + rows; // both have 32 bits
        self.start = ChunkStart {
            heap: self.start.heap.wrapping_add(row / rows_per_heap),
            row: row % rows_per_heap,
            number: self.start.number.wrapping_add(rows),
        };
    }

    /// Begins at the chunk that has the number: a chunk's first row is a multiple of its rows.
    pub(super) fn begin_at(&mut self, number: Number) {
        let [rows, rows_per_heap] = [self.space.rows, self.space.rows_per_heap].map(u128::from);
        // No overflow: 64 bits by 32, and 32 more.
        let all = u128::from(number.heap) * rows_per_heap + u128::from(number.row);
        let first = all - all % rows;
        self.start = ChunkStart {
            heap: (first / rows_per_heap) as u64, // not above the number's heap
            row: (first % rows_per_heap) as u64,
            number: first as u64, // modulo 2^64
        };
        self.span = self.space.open_chunks() * self.space.rows;
    }

    /// Moves to the chunk that has a number ahead, counting on if the field wrapped on the way.
    pub(super) fn jump_to(&mut self, number: Number) {
        let heaps = number.heap.wrapping_sub(self.start.heap);
        let heap = self.start.heap.wrapping_add_signed(self.signed(heaps));
        self.begin_at(Number { heap, ..number });
    }

    /// Forgets the window: the next number begins another.
    pub(super) fn close(&mut self) {
        self.span = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(bits: u32, rows_per_heap: u64, rows: u64, ring: u64) -> Window {
        Window::new(NumberSpace { bits, rows_per_heap, rows, ring })
    }

    fn heap(heap: u64) -> Number {
        Number { heap, row: 0 }
    }

    #[test]
    fn positions_are_those_of_the_drawing() {
        let mut window = window(16, 1, 10, 4);
        assert_eq!(window.position(heap(5)), Position::Unknown);
        window.begin_at(heap(25));
        assert_eq!([window.first(0), window.first(1)], [20, 30]);
        assert_eq!(window.position(heap(20)), Position::Inside(Row { chunk: 0, row: 0 }));
        assert_eq!(window.position(heap(39)), Position::Inside(Row { chunk: 1, row: 9 }));
        assert_eq!(window.position(heap(40)), Position::Ahead { chunks: 1 });
        assert_eq!(window.position(heap(79)), Position::Ahead { chunks: 4 });
        assert_eq!(window.position(heap(80)), Position::FarAhead);
        assert_eq!(window.position(heap(19)), Position::Behind);
        assert_eq!(window.position(heap(20 + (1 << 15))), Position::Behind, "nearer by the other way");
    }

    #[test]
    fn numbers_count_on_behind_the_end_of_their_field() {
        let mut window = window(8, 1, 10, 4);
        window.begin_at(heap(250));
        assert_eq!(window.position(heap(3)), Position::Inside(Row { chunk: 0, row: 9 }));
        assert_eq!(window.position(heap(4)), Position::Inside(Row { chunk: 1, row: 0 }));
        window.advance();
        assert_eq!(
            (window.first(0), window.position(heap(4))),
            (260, Position::Inside(Row { chunk: 0, row: 0 }))
        );
        window.jump_to(heap(100));
        assert_eq!(window.first(0), 350, "356 is 100 modulo 256");
    }

    #[test]
    fn the_highest_numbers_of_64_bits_wrap_to_zero() {
        let mut window = window(64, 1, 16, 4);
        window.begin_at(heap(u64::MAX));
        assert_eq!(window.first(0), u64::MAX - 15);
        assert_eq!(window.position(heap(0)), Position::Inside(Row { chunk: 1, row: 0 }));
        window.advance();
        assert_eq!(window.first(0), 0);
        assert_eq!(window.position(heap(u64::MAX)), Position::Behind);
    }

    #[test]
    fn heaps_and_chunks_need_not_divide_each_other() {
        let mut window = window(48, 3, 5, 4);
        window.begin_at(Number { heap: 4, row: 1 }); // row 13, in the chunk of rows 10 to 14
        assert_eq!(window.first(0), 10);
        assert_eq!(window.row_inside(Number { heap: 3, row: 1 }), Some(Row { chunk: 0, row: 0 }));
        assert_eq!(window.row_inside(Number { heap: 5, row: 0 }), Some(Row { chunk: 1, row: 0 }));
        window.advance();
        assert_eq!(window.row_inside(Number { heap: 5, row: 0 }), Some(Row { chunk: 0, row: 0 }));
        assert_eq!(window.position(Number { heap: 4, row: 2 }), Position::Behind);
    }

    #[test]
    fn heaps_whose_rows_have_more_than_64_bits_are_never_near() {
        let mut window = window(64, 1 << 32, 1 << 10, 4);
        window.begin_at(heap(0));
        // 2^32 heaps of 2^32 rows: modulo 2^64 they would be row 0.
        assert_eq!(window.position(heap(1 << 32)), Position::FarAhead);
        assert_eq!(window.position(heap(u64::MAX - (1 << 32))), Position::Behind);
        assert!(!window.are_near(heap(0), heap(1 << 32)));
    }
}
