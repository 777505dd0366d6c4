//! What is learnt of the bytes that were sent, when calls are over.

use std::net::IpAddr;

use super::choice::Chooser;
use super::outbox::Call;
use crate::engine::path::{Path, Paths};
use crate::facts::evidence::{Evidence, Tally};

/// What is learnt of the bytes that were sent.
#[derive(Debug)]
pub(super) struct Books {
    pub(super) tally: Tally,
    pub(super) chooser: Chooser,
    pub(super) paths: Paths,
    pub(super) peer: Option<IpAddr>,
    /// As it was at the last look.
    pub(super) path: Option<Path>,
}

impl Books {
    /// Takes notice of routes that changed.
    pub(super) fn refresh(&mut self) {
        self.paths.refresh();
        self.path = None;
    }

    /// Books a call that is over, and returns what that proves.
    pub(super) fn close(&mut self, call: &Call, copied: bool) -> Evidence {
        let path = *self.path.get_or_insert_with(|| self.paths.to(self.peer));
        let (copied, evidence) = match copied && call.may_share {
            true => (false, Evidence::Unknown),
            false => (copied, path.evidence(copied)),
        };
        self.tally.add(evidence, 0, call.bytes as u64);
        self.chooser.completed(call, copied);
        evidence
    }
}
