//! Which method sends what: a policy over the methods this stream has.

use std::time::Duration;

use super::Method;
use super::outbox::Call;
use crate::engine::policy::{Choice, Explanation, Matter, Policy, Reason, Work};
use crate::facts::evidence::{Cause, Evidence};

/// So many bytes are one unit of work: what sending costs grows by pages.
const UNIT_BYTES: usize = 4096;

const NO_MEMORY: &str = "the kernel had no memory to remember zero-copy sends by (ENOBUFS): raise 'sysctl net.core.optmem_max', or \
                         'ulimit -l' where the process has no CAP_IPC_LOCK";

const RING_FULL: &str = "as many sends wait for the peer's acknowledgement as a ring has places: send larger buffers, or flush more of \
                         them at a time";

const REFUSED: &str = "the kernel did not take by it what a plain call takes";

#[derive(Debug)]
pub(super) struct Chooser {
    policy: Policy<Method>,
    pinned: bool,
}

impl Chooser {
    /// Among all methods, or always the one that is given.
    pub(super) fn new(pinned: Option<Method>) -> Self {
        let policy = pinned.map_or_else(|| Policy::new(&Method::ALL, &[Method::Plain]), Policy::pinned);
        Self { policy: policy.about(Matter::Writes), pinned: pinned.is_some() }
    }

    /// How to send so many bytes that are there at once. What is shorter than a page is copied: to keep it in place costs as much.
    #[inline]
    pub(super) fn choose(&mut self, bytes: usize) -> Choice<Method> {
        if self.is_below_threshold(bytes) {
            return Choice::by_rule(Method::Plain);
        }
        self.policy.choose(work(bytes, bytes))
    }

    fn is_below_threshold(&self, bytes: usize) -> bool {
        bytes < UNIT_BYTES && !self.pinned
    }

    /// What a measured choice for so many bytes cost, of which `sent_bytes` were taken.
    pub(super) fn record(&mut self, choice: Choice<Method>, bytes: usize, sent_bytes: usize, cost: Duration) {
        self.policy.record(choice, work(bytes, sent_bytes), cost);
    }

    /// What is known at once of bytes that were sent by a plain call.
    pub(super) fn copied(&self, bytes: usize) -> Evidence {
        Evidence::Copied(match self.pinned {
            true => Cause::SocketCall,
            false if self.is_below_threshold(bytes) => Cause::BelowThreshold,
            false => Cause::CopyingIsFaster,
        })
    }

    pub(super) fn completed(&mut self, call: &Call, copied: bool) {
        let after = call.since.map(|since| since.elapsed());
        self.policy.completed(0, call.method, size(call.run_bytes), copied, after);
    }

    /// A zero-copy method met `ENOBUFS`, or a full ring, and no completion came that made room.
    pub(super) fn no_buffers(&mut self, method: Method, is_ring_full: bool) {
        let why = if method == Method::UringZeroCopy && is_ring_full { RING_FULL } else { NO_MEMORY };
        self.policy.rule_out(method, Reason::Temporary(why));
    }

    /// The kernel did not take by a zero-copy method what it then took by a plain call.
    pub(super) fn refused(&mut self, method: Method) {
        self.policy.rule_out(method, Reason::Temporary(REFUSED));
    }

    /// This stream does not have it.
    pub(super) fn unavailable(&mut self, method: Method, why: &'static str) {
        self.policy.rule_out(method, Reason::Unavailable(why));
    }

    pub(super) fn explain(&self) -> Explanation<Method> {
        self.policy.explain()
    }
}

/// Work of one size, of which so many bytes are sent. A stream has one destination.
fn work(bytes: usize, sent_bytes: usize) -> Work {
    let count = u32::try_from(sent_bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
    // One page is not what a policy calls single: all methods are tried.
    Work { destination: 0, bytes: size(bytes), count: count.max(2) }
}

fn size(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_stream_lacks_is_never_chosen() {
        let mut chooser = Chooser::new(None);
        chooser.unavailable(Method::ZeroCopy, "the kernel refuses");
        chooser.unavailable(Method::UringZeroCopy, "no ring");
        for _ in 0..10_000 {
            let choice = chooser.choose(64 << 10);
            assert_eq!(choice.method, Method::Plain, "{}", chooser.explain());
            chooser.record(choice, 64 << 10, 64 << 10, Duration::from_micros(10));
        }
    }

    #[test]
    fn what_the_kernel_begins_to_refuse_is_hardly_asked_for_again() {
        let mut chooser = Chooser::new(None);
        let mut refused = 0;
        for round in 0..20_000 {
            let choice = chooser.choose(64 << 10);
            let is_zero_copy = choice.method.is_zero_copy();
            if is_zero_copy && round >= 10_000 {
                refused += 1;
                chooser.refused(choice.method);
                continue;
            }
            let cost = Duration::from_micros(if is_zero_copy { 5 } else { 10 });
            chooser.record(choice, 64 << 10, 64 << 10, cost);
        }
        assert!(refused < 20, "{refused} times: {}", chooser.explain());
    }

    #[test]
    fn the_faster_way_is_found_and_the_slower_left() {
        let mut chooser = Chooser::new(None);
        let cost = |method| match method {
            Method::Plain => Duration::from_micros(20),
            Method::ZeroCopy => Duration::from_micros(8),
            Method::UringZeroCopy => Duration::from_micros(12),
        };
        let mut last = Method::Plain;
        for _ in 0..100_000 {
            let choice = chooser.choose(256 << 10);
            chooser.record(choice, 256 << 10, 256 << 10, cost(choice.method));
            last = choice.method;
        }
        assert_eq!(last, Method::ZeroCopy, "{}", chooser.explain());
        assert_eq!(chooser.choose(100).method, Method::Plain, "too short to be worth it");
    }
}
