//! The choice among a socket's sending methods.

use super::Method;
use crate::engine::policy::Policy;

/// For several datagrams, in the order in which they are tried.
const BATCHES: [Method; 5] =
    [Method::Gso, Method::ZeroCopyGso, Method::UringZeroCopyGso, Method::SendMmsg, Method::Socket];

/// For one datagram, where calls for several gain nothing.
const SINGLES: [Method; 2] = [Method::Socket, Method::ZeroCopy];

/// A single datagram shorter than this is copied: `MSG_ZEROCOPY` pays "at writes over around 10 KB"
/// (networking/msg_zerocopy in the kernel's documentation), and below a page pinning costs as much as
/// copying. This is not measured, because that would cost more than it could gain.
const SINGLE_BYTES_MIN: u32 = 4096;

/// Among all methods, or always `pinned`. With a port, which is then one of the methods, small datagrams are
/// measured, too.
pub(super) fn udp_policy(pinned: Option<Method>, has_port: bool) -> Policy<Method> {
    let policy = pinned.map_or_else(|| policy_of_all_methods(has_port), Policy::pinned);
    policy.with_plain_call(Method::Socket, if has_port { 0 } else { SINGLE_BYTES_MIN })
}

/// Excludes `MSG_ZEROCOPY` calls. (If the kernel refused `SO_ZEROCOPY`, it would still accept them, but copy,
/// and never report completion.)
pub(super) fn exclude_zero_copy(policy: &mut Policy<Method>, why: &'static str) {
    let by_flag = Method::ALL.into_iter().filter(|method| method.is_by_flag());
    by_flag.for_each(|method| policy.mark_unavailable(method, why));
}

fn policy_of_all_methods(has_port: bool) -> Policy<Method> {
    let with = |methods: &[Method]| -> Vec<Method> {
        let port = has_port.then_some(Method::Xdp);
        methods[..1].iter().copied().chain(port).chain(methods[1..].iter().copied()).collect()
    };
    Policy::new(&with(&BATCHES)).with_single_methods(&with(&SINGLES))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::policy::Work;

    #[test]
    fn excluded_zero_copy_is_not_chosen_after_the_policy_forgets() {
        let mut policy = udp_policy(None, false);
        exclude_zero_copy(&mut policy, "the kernel refuses it");
        policy.forget_all();
        let work = Work { destination: 0, bytes: 1400, count: 44 };
        for _ in 0..10_000 {
            let choice = policy.choose(work);
            assert!(!choice.method.is_by_flag(), "{}", policy.explain());
            policy.record(choice, work, Duration::from_micros(10));
        }
        assert!(policy.explain().to_string().contains("the kernel refuses it"), "{}", policy.explain());
    }
}
