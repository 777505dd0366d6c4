//! The record of a call until it is finished.

use std::time::Instant;

use super::Method;
use crate::memory::in_flight::Note;

/// A call that the kernel accepted and has not completed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    /// Offset of the call's first byte in the first message that it sends.
    pub(super) first_byte: u32,
    pub(super) datagrams: u32,
    pub(super) datagram_bytes: u32,
    pub(super) destination: u32,
    pub(super) method: Method,
    /// When it was made, if the policy measures it.
    pub(super) since: Option<Instant>,
}

impl Note for Call {
    fn of_nothing(self) -> Self {
        Self { datagrams: 0, since: None, ..self }
    }
}
