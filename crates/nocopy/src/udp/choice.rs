//! Which method sends what: the choice among the methods a socket has.

use super::Method;
use super::outbox::Run;
use crate::engine::choice;
use crate::engine::policy::{Policy, Work};

/// For several datagrams, in the order in which they are tried.
const BATCHES: [Method; 5] =
    [Method::Gso, Method::ZeroCopyGso, Method::UringZeroCopyGso, Method::SendMmsg, Method::Socket];

/// For one: there is nothing to gain from calls for many.
const SINGLES: [Method; 2] = [Method::Socket, Method::ZeroCopy];

/// A single datagram under so many bytes is copied: `MSG_ZEROCOPY` pays "at writes over around 10 KB" (networking/msg_zerocopy in the
/// kernel's documentation), and below a page it costs as much to keep it in place as to copy it. Nothing is measured there, since that
/// would cost more than it could find.
const SINGLE_BYTES_MIN: usize = 4096;

pub(super) type Chooser = choice::Chooser<Method>;

impl Chooser {
    /// Among all methods, a port too if there is one, which then has small datagrams measured as well; or always the one that is given.
    pub(super) fn new(pinned: Option<Method>, has_port: bool) -> Self {
        let policy = pinned.map_or_else(|| among_all(has_port), Policy::pinned);
        Self::by(policy, Method::Socket, if has_port { 0 } else { SINGLE_BYTES_MIN })
    }

    /// There are no `MSG_ZEROCOPY` calls. (Where the kernel refused `SO_ZEROCOPY` it would take them all the same, copy, and never say that
    /// it has done.)
    pub(super) fn without_zero_copy(&mut self, why: &'static str) {
        let by_flag = Method::ALL.into_iter().filter(|method| method.is_by_flag());
        by_flag.for_each(|method| self.unavailable(method, why));
    }
}

fn among_all(has_port: bool) -> Policy<Method> {
    let with = |methods: &[Method]| -> Vec<Method> {
        let port = has_port.then_some(Method::Xdp);
        methods[..1].iter().copied().chain(port).chain(methods[1..].iter().copied()).collect()
    };
    Policy::new(&with(&BATCHES)).singles(&with(&SINGLES))
}

/// Datagrams of one length.
impl From<&Run> for Work {
    #[inline]
    fn from(run: &Run) -> Self {
        let count = u32::try_from(run.datagrams).unwrap_or(u32::MAX);
        Self { destination: run.destination, bytes: run.datagram_bytes as u32, count }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn unsupported_methods_are_never_chosen_even_after_a_reset() {
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
