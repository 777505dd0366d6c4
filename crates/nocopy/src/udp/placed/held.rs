//! Rows that cannot be placed yet, copied aside.

use super::window::Number;

/// So many datagrams in a row, whose numbers are near each other, move the window to where they are. One
/// datagram from elsewhere moves nothing.
pub(super) const AGREEING: usize = 16;

/// What the rows wait for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum HeldState {
    #[default]
    /// Others that agree with their numbers.
    Agreement,
    /// Their place in the window, which is where they are: for memory, if it was not found.
    Placement,
}

/// At most [`AGREEING`] rows with their numbers, in the order in which they arrived.
#[derive(Debug, Default)]
pub(super) struct HeldRows {
    row_bytes: usize,
    rows: Box<[u8]>,
    numbers: Vec<Number>,
    /// How many were placed; the others follow.
    placed: usize,
    state: HeldState,
}

impl HeldRows {
    pub(super) fn new(row_bytes: usize) -> Self {
        Self {
            row_bytes,
            rows: vec![0; AGREEING * row_bytes].into(),
            numbers: Vec::with_capacity(AGREEING),
            placed: 0,
            state: HeldState::Agreement,
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    pub(super) fn numbers(&self) -> &[Number] {
        &self.numbers
    }

    pub(super) fn state(&self) -> HeldState {
        self.state
    }

    /// Adds a row; there is room for [`AGREEING`].
    pub(super) fn push(&mut self, number: Number, row: &[u8]) {
        let start = self.numbers.len() * self.row_bytes;
        self.rows[start..start + self.row_bytes].copy_from_slice(row);
        self.numbers.push(number);
    }

    /// From now on they are to be placed.
    pub(super) fn begin_placement(&mut self) {
        self.state = HeldState::Placement;
    }

    /// The next row to be placed.
    pub(super) fn next(&self) -> Option<(Number, &[u8])> {
        let number = self.numbers.get(self.placed)?;
        Some((*number, &self.rows[self.placed * self.row_bytes..][..self.row_bytes]))
    }

    /// The next row was placed, or counted as lost.
    pub(super) fn note_placed(&mut self) {
        self.placed += 1;
    }

    pub(super) fn clear(&mut self) {
        self.numbers.clear();
        (self.placed, self.state) = (0, HeldState::Agreement);
    }
}
