//! Which method sends what.

use std::io;
use std::time::Duration;

use super::Method;
use super::in_flight::Call;
use super::outbox::Run;

#[derive(Debug, Clone, Copy)]
pub(super) struct Choice {
    pub(super) method: Method,
    pub(super) measured: bool,
}

#[derive(Debug)]
pub(super) struct Chooser {
    pinned: Option<Method>,
    gso: bool,
}

impl Chooser {
    pub(super) fn new(pinned: Option<Method>) -> Self {
        Self { pinned, gso: true }
    }

    #[inline]
    pub(super) fn choose(&mut self, run: &Run) -> Choice {
        let method = match (self.pinned, run.datagrams) {
            (Some(method), _) => method,
            (None, 1) => Method::Socket,
            (None, _) if self.gso => Method::Gso,
            (None, _) => Method::SendMmsg,
        };
        Choice { method, measured: false }
    }

    pub(super) fn record(&mut self, _choice: Choice, _run: &Run, _cost: Duration) {}

    pub(super) fn completed(&mut self, _call: &Call, _copied: bool) {}

    pub(super) fn refused(&mut self, method: Method, _run: &Run, _error: &io::Error) {
        if method == Method::Gso {
            self.gso = false;
        }
    }

    pub(super) fn no_buffers(&mut self) {}

    pub(super) fn forget(&mut self, _destination: u32) {}

    pub(super) fn forget_all(&mut self) {}

    pub(super) fn explain(&self) -> String {
        String::new()
    }
}
