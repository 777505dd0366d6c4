//! Which method sends what: a policy over the methods this socket has.

use std::time::Duration;

use super::Method;
use super::call::Call;
use super::outbox::Run;
use crate::engine::policy::{Choice, Explanation, Policy, Reason, Work};
use crate::facts::evidence::{Cause, Evidence};

/// For several datagrams, in the order in which they are tried.
const BATCHES: [Method; 5] =
    [Method::Gso, Method::ZeroCopyGso, Method::UringZeroCopyGso, Method::SendMmsg, Method::Socket];

/// For one: there is nothing to gain from calls for many.
const SINGLES: [Method; 2] = [Method::Socket, Method::ZeroCopy];

/// A single datagram under so many bytes is copied: `MSG_ZEROCOPY` pays "at writes over around 10 KB" (networking/msg_zerocopy in the
/// kernel's documentation), and below a page it costs as much to keep it in place as to copy it. Nothing is measured there, since that
/// would cost more than it could find.
const SINGLE_BYTES_MIN: usize = 4096;

const NO_MEMORY: &str = "the kernel had no memory to remember zero-copy sends by (ENOBUFS): raise 'sysctl net.core.optmem_max', or \
                         'ulimit -l' where the process has no CAP_IPC_LOCK";

#[derive(Debug)]
pub(super) struct Chooser {
    policy: Policy<Method>,
    pinned: Option<Method>,
    has_port: bool,
    /// What this socket does not have, and why.
    lacking: Vec<(Method, &'static str)>,
}

impl Chooser {
    /// Among all methods, a port too if there is one; or always the one that is given.
    pub(super) fn new(pinned: Option<Method>, has_port: bool) -> Self {
        let policy = pinned.map_or_else(|| among_all(has_port), Policy::pinned);
        Self { policy, pinned, has_port, lacking: Vec::new() }
    }

    /// There are no `MSG_ZEROCOPY` calls. (Where the kernel refused `SO_ZEROCOPY` it would take them all the same, copy, and never say that
    /// it has done.)
    pub(super) fn without_zero_copy(&mut self, why: &'static str) {
        let by_flag = Method::ALL.into_iter().filter(|method| method.is_by_flag());
        by_flag.for_each(|method| self.unavailable(method, why));
    }

    #[inline]
    pub(super) fn choose(&mut self, run: &Run) -> Choice<Method> {
        if self.is_below_threshold(run.datagrams, run.datagram_bytes) {
            return Choice::by_rule(Method::Socket);
        }
        self.policy.choose(work(run))
    }

    #[inline]
    fn is_below_threshold(&self, datagrams: usize, bytes: usize) -> bool {
        datagrams == 1 && bytes < SINGLE_BYTES_MIN && !self.has_port && self.pinned.is_none()
    }

    /// Whether a datagram goes by an ordinary call of its own, and nobody wants to know what that costs.
    #[inline]
    pub(super) fn is_plain(&mut self, destination: u32, bytes: usize) -> bool {
        if self.is_below_threshold(1, bytes) {
            return true;
        }
        let work = Work { destination, bytes: bytes as u32, count: 1 };
        self.policy.choose_at_once(work) == Some(Method::Socket)
    }

    /// What a measured choice cost.
    pub(super) fn record(&mut self, choice: Choice<Method>, run: &Run, cost: Duration) {
        self.policy.record(choice, work(run), cost);
    }

    /// What is known at once of bytes sent by a method that copies, so many datagrams of that length at a time.
    #[inline]
    pub(super) fn copied(&self, datagrams: usize, bytes: usize) -> Evidence {
        Evidence::Copied(match self.pinned {
            Some(_) => Cause::SocketCall,
            None if self.is_below_threshold(datagrams, bytes) => Cause::BelowThreshold,
            None => Cause::CopyingIsFaster,
        })
    }

    pub(super) fn completed(&mut self, call: &Call, copied: bool) {
        let after = call.since.map(|since| since.elapsed());
        self.policy.completed(call.destination, call.method, call.datagram_bytes, copied, after);
    }

    /// The kernel does not take datagrams like these by this method.
    pub(super) fn refused(&mut self, method: Method, destination: u32, datagram_bytes: u32) {
        // As good as copied: tried again, with longer and longer waits, for routes change.
        for _ in 0..REFUSALS {
            self.policy.completed(destination, method, datagram_bytes, true, None);
        }
    }

    /// A zero-copy method met `ENOBUFS`, and no completion came that made room.
    pub(super) fn no_buffers(&mut self, method: Method) {
        self.policy.rule_out(method, Reason::Temporary(NO_MEMORY));
    }

    /// This socket does not have it.
    pub(super) fn unavailable(&mut self, method: Method, why: &'static str) {
        self.policy.rule_out(method, Reason::Unavailable(why));
        if !self.lacking.contains(&(method, why)) {
            self.lacking.push((method, why));
        }
    }

    pub(super) fn forget_all(&mut self) {
        self.policy = Self::new(self.pinned, self.has_port).policy;
        for &(method, why) in &self.lacking {
            self.policy.rule_out(method, Reason::Unavailable(why));
        }
    }

    pub(super) fn explain(&self) -> Explanation<Method> {
        self.policy.explain()
    }
}

fn among_all(has_port: bool) -> Policy<Method> {
    let with = |methods: &[Method]| -> Vec<Method> {
        let port = has_port.then_some(Method::Xdp);
        methods[..1].iter().copied().chain(port).chain(methods[1..].iter().copied()).collect()
    };
    Policy::new(&with(&BATCHES), &with(&SINGLES))
}

/// So many completions that say copied end a method's turn (see `policy`).
const REFUSALS: usize = 3;

#[inline]
fn work(run: &Run) -> Work {
    let count = u32::try_from(run.datagrams).unwrap_or(u32::MAX);
    Work { destination: run.destination, bytes: run.datagram_bytes as u32, count }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_socket_lacks_is_never_chosen_even_after_all_was_forgotten() {
        let mut chooser = Chooser::new(None, false);
        chooser.without_zero_copy("the kernel refuses it");
        chooser.forget_all();
        let run = Run::of(0, 1400, 44);
        for _ in 0..10_000 {
            let choice = chooser.choose(&run);
            assert!(!choice.method.is_by_flag(), "{}", chooser.explain());
            chooser.record(choice, &run, Duration::from_micros(10));
        }
        assert!(chooser.explain().to_string().contains("the kernel refuses it"), "{}", chooser.explain());
    }
}
