//! What is remembered of a call until it is over.

use std::ops::RangeInclusive;
use std::time::Instant;

use super::Method;
use crate::engine::kept;

/// A call that the kernel took and has not completed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    /// The messages it reads all or part of, the first from this byte on.
    pub(super) first: u64,
    pub(super) first_byte: u32,
    pub(super) last: u64,
    pub(super) datagrams: u32,
    pub(super) datagram_bytes: u32,
    pub(super) bytes: u32,
    pub(super) destination: u32,
    pub(super) method: Method,
    /// When it was made, if the policy measures it.
    pub(super) since: Option<Instant>,
}

impl kept::Call for Call {
    fn reads(&self) -> RangeInclusive<u64> {
        self.first..=self.last
    }
}
