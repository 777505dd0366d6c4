//! The choice among a stream's sending methods.

use super::Method;
use crate::engine::policy::{ExclusionReason, Policy, Work, WorkUnit, saturating_size};

/// Bytes of one unit of work: the cost of sending grows by pages. Shorter writes are copied, because pinning
/// a page costs as much.
const UNIT_BYTES: usize = 4096;

const RING_FULL: &str = "as many sends wait for the peer's acknowledgement as a ring has places: send larger buffers, or flush more of \
                         them at a time";

const REFUSED: &str = "the kernel did not take by it what a plain call takes";

/// Among all methods, or always `pinned`.
pub(super) fn tcp_policy(pinned: Option<Method>) -> Policy<Method> {
    let policy = pinned.map_or_else(|| Policy::new(&Method::ALL), Policy::pinned);
    policy.with_work_unit(WorkUnit::Writes).with_plain_call(Method::Plain, UNIT_BYTES as u32)
}

impl Policy<Method> {
    /// Records that a zero-copy method failed by `ENOBUFS` or a full ring, and that no completion made room.
    pub(super) fn rule_out_for_no_room(&mut self, method: Method, is_ring_full: bool) {
        if method == Method::UringZeroCopy && is_ring_full {
            self.rule_out(method, ExclusionReason::Temporary(RING_FULL));
        } else {
            self.rule_out_for_enobufs(method);
        }
    }

    /// Records that the kernel refused a zero-copy send that a plain call may send: the method is not used
    /// for some time, for all sizes.
    pub(super) fn rule_out_for_refusal(&mut self, method: Method) {
        self.rule_out(method, ExclusionReason::Temporary(REFUSED));
    }
}

/// A write in pages. A stream has one destination.
#[inline]
pub(super) fn write_work(bytes: usize) -> Work {
    Work { destination: 0, bytes: saturating_size(bytes), count: page_count(bytes) }
}

pub(super) fn page_count(bytes: usize) -> u32 {
    saturating_size(bytes.div_ceil(UNIT_BYTES))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const WRITE_BYTES: usize = 64 << 10;

    #[test]
    fn unavailable_methods_are_never_chosen() {
        let mut policy = tcp_policy(None);
        policy.mark_unavailable(Method::ZeroCopy, "the kernel refuses");
        policy.mark_unavailable(Method::UringZeroCopy, "no ring");
        for _ in 0..10_000 {
            let choice = policy.choose(write_work(WRITE_BYTES));
            assert_eq!(choice.method, Method::Plain, "{}", policy.explain());
            policy.record(choice, write_work(WRITE_BYTES), Duration::from_micros(10));
        }
    }

    #[test]
    fn newly_refused_methods_are_rarely_retried() {
        let mut policy = tcp_policy(None);
        let mut refused = 0;
        for round in 0..20_000 {
            let choice = policy.choose(write_work(WRITE_BYTES));
            let is_zero_copy = choice.method.is_zero_copy();
            if is_zero_copy && round >= 10_000 {
                refused += 1;
                policy.rule_out_for_refusal(choice.method);
                continue;
            }
            let cost = Duration::from_micros(if is_zero_copy { 5 } else { 10 });
            policy.record(choice, write_work(WRITE_BYTES), cost);
        }
        assert!(refused < 20, "{refused} times: {}", policy.explain());
    }

    #[test]
    fn the_faster_method_replaces_the_slower() {
        let mut policy = tcp_policy(None);
        let cost = |method| match method {
            Method::Plain => Duration::from_micros(20),
            Method::ZeroCopy => Duration::from_micros(8),
            Method::UringZeroCopy => Duration::from_micros(12),
        };
        let mut last = Method::Plain;
        for _ in 0..100_000 {
            let choice = policy.choose(write_work(256 << 10));
            policy.record(choice, write_work(256 << 10), cost(choice.method));
            last = choice.method;
        }
        assert_eq!(last, Method::ZeroCopy, "{}", policy.explain());
        assert_eq!(policy.choose(write_work(100)).method, Method::Plain, "too short to be worth it");
    }
}
