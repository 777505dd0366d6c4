//! How fast it may go (docs/protocol.md §9.4).

use std::time::Duration;

use super::Time;

#[derive(Debug)]
pub(super) struct Pacer;

impl Pacer {
    pub(super) fn new() -> Self {
        Self
    }

    pub(super) fn is_ready(&mut self, _now: Time, _rate: (usize, Duration)) -> bool {
        true
    }

    pub(super) fn sent(&mut self, _now: Time, _rate: (usize, Duration)) {}

    /// When the next packet may go, if not now.
    pub(super) fn ready_at(&self, _now: Time, _rate: (usize, Duration)) -> Option<Time> {
        None
    }
}
