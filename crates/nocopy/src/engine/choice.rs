//! How a socket chooses its sending method: the user's choice, a plain call where that is known to be best, or measurement.

use std::time::{Duration, Instant};

use super::policy::{Choice, Explanation, Policy, Reason, Work};
use crate::facts::evidence::{Cause, Evidence};

const NO_MEMORY: &str = "the kernel had no memory to remember zero-copy sends by (ENOBUFS): raise 'sysctl net.core.optmem_max', or \
                         'ulimit -l' where the process has no CAP_IPC_LOCK";

#[derive(Debug)]
pub(crate) struct Chooser<M> {
    policy: Policy<M>,
    /// The ordinary call, which copies.
    plain: M,
    /// A single unit of fewer bytes is sent by the plain call, without measuring. 0 if the user chose the method.
    small_bytes: usize,
}

impl<M: Copy + Eq> Chooser<M> {
    /// Uses a policy, except that a single unit of fewer than `small_bytes` is sent by `plain` unless another method is pinned.
    pub(crate) fn by(policy: Policy<M>, plain: M, small_bytes: usize) -> Self {
        let small_bytes = if policy.is_pinned() { 0 } else { small_bytes };
        Self { policy, plain, small_bytes }
    }

    #[inline]
    pub(crate) fn choose(&mut self, work: impl Into<Work>) -> Choice<M> {
        let work = work.into();
        if self.is_small(work.count as usize, work.bytes as usize) {
            return Choice::by_rule(self.plain);
        }
        self.policy.choose(work)
    }

    #[inline]
    fn is_small(&self, units: usize, bytes: usize) -> bool {
        units <= 1 && bytes < self.small_bytes
    }

    /// Whether a single unit is sent by the plain call, so that its cost need not be measured.
    #[inline]
    pub(crate) fn is_plain(&mut self, destination: u32, bytes: usize) -> bool {
        if self.is_small(1, bytes) {
            return true;
        }
        let work = Work { destination, bytes: bytes as u32, count: 1 };
        self.policy.choose_at_once(work) == Some(self.plain)
    }

    /// Records the cost of a measured choice; `sent` may be less than the work that was announced.
    pub(crate) fn record(&mut self, choice: Choice<M>, sent: impl Into<Work>, cost: Duration) {
        self.policy.record(choice, sent.into(), cost);
    }

    /// The evidence for bytes that a copying method sent, `units` of that size at a time.
    #[inline]
    pub(crate) fn copied(&self, units: usize, bytes: usize) -> Evidence {
        Evidence::Copied(match self.is_pinned() {
            true => Cause::SocketCall,
            false if self.is_small(units, bytes) => Cause::BelowThreshold,
            false => Cause::CopyingIsFaster,
        })
    }

    /// Records the completion of a zero-copy call made at `since`, if that is known. The size is that of its [`Work`].
    pub(crate) fn completed(
        &mut self,
        method: M,
        destination: u32,
        bytes: u32,
        copied: bool,
        since: Option<Instant>,
    ) {
        self.policy.completed(destination, method, bytes, copied, since.map(|since| since.elapsed()));
    }

    /// Records that the kernel refuses such sends by this method; another may work.
    pub(crate) fn refused(&mut self, method: M, destination: u32, bytes: u32) {
        self.policy.refused(destination, method, bytes);
    }

    /// Records that a zero-copy method met `ENOBUFS`, and that no completion made room.
    pub(crate) fn no_buffers(&mut self, method: M) {
        self.rule_out(method, Reason::Temporary(NO_MEMORY));
    }

    pub(crate) fn unavailable(&mut self, method: M, why: &'static str) {
        self.rule_out(method, Reason::Unavailable(why));
    }

    pub(crate) fn rule_out(&mut self, method: M, why: Reason) {
        self.policy.rule_out(method, why);
    }

    pub(crate) fn forget_all(&mut self) {
        self.policy.forget_all();
    }

    #[inline]
    pub(crate) fn is_pinned(&self) -> bool {
        self.policy.is_pinned()
    }

    pub(crate) fn explain(&self) -> Explanation<M> {
        self.policy.explain()
    }
}
