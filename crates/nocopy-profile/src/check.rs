//! Cross-checks: pairs of independent figures that must agree. A failed check is printed prominently, with
//! the results.

use nocopy_report::check::Check;

use super::figures::Figures;
use super::measured::{Calls, Measured, RECEIVED_BY_SOCKET, SENT_BY_SOCKET};

/// How many printed errors are allowed: by chance one of 20 windows exceeds one error, and one of 10,000
/// exceeds this many.
const ERRORS: f64 = 2.0;

pub(crate) fn all(measured: &Measured, figures: &Figures) -> Vec<Check> {
    // A check needs both counts.
    let has = |what: &str| measured.absent.iter().all(|absent| absent.what != what);
    let checks = [
        copied_bytes(measured),
        socket_bytes("received-bytes", "received", &measured.receives).filter(|_| has(RECEIVED_BY_SOCKET)),
        socket_bytes("sent-bytes", "sent", &measured.sends).filter(|_| has(SENT_BY_SOCKET)),
        time(figures),
    ];
    checks.into_iter().flatten().collect()
}

/// Bytes counted at the copies and mappings, and by TCP's receives.
fn copied_bytes(measured: &Measured) -> Option<Check> {
    let copied = &measured.copied;
    let copied_once = copied.to_user_bytes.saturating_sub(copied.peeked_bytes);
    let at_the_copy = copied_once + copied.mapped_bytes + copied.discarded_bytes;
    let by_tcp = measured.receives.bytes.saturating_sub(copied.udp_bytes);
    let about = "bytes counted at the copy and mapped, and received by TCP".into();
    (at_the_copy + by_tcp > 0).then(|| Check::bytes("copied-bytes", at_the_copy, by_tcp, about))
}

/// Compares the bytes that the calls returned with those that the socket layer counted.
fn socket_bytes(name: &str, what: &str, calls: &Calls) -> Option<Check> {
    let about = format!("bytes {what} by the calls, and as the socket layer says");
    (calls.bytes + calls.socket_bytes > 0).then(|| Check::bytes(name, calls.bytes, calls.socket_bytes, about))
}

/// Compares the sum of the sampled parts with the total that the kernel accounted.
fn time(figures: &Figures) -> Option<Check> {
    let time = &figures.time;
    let allowed = ERRORS * time.error_seconds + time.late_seconds + time.stalled_seconds;
    (time.sampled_seconds + time.accounted_seconds > 0.0).then(|| Check {
        name: "processor-time".into(),
        passed: (time.accounted_seconds - time.sampled_seconds).abs() <= allowed,
        first: time.sampled_seconds,
        second: time.accounted_seconds,
        allowed,
        unit: "seconds".into(),
        about: "processor time of its threads by samples, and as the kernel accounted it".into(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fixture::bulk_receive;
    use crate::measured::Absent;

    fn failed(measured: &Measured) -> Vec<String> {
        let checks = all(measured, &Figures::of(measured));
        checks.into_iter().filter(|check| !check.passed).map(|check| check.name).collect()
    }

    #[test]
    fn equal_counts_pass_every_check() {
        assert_eq!(failed(&bulk_receive()), [""; 0]);
        assert_eq!(
            all(&Measured::default(), &Figures::of(&Measured::default())),
            [],
            "there is nothing to compare"
        );
    }

    #[test]
    fn one_byte_is_a_contradiction() {
        let mut measured = bulk_receive();
        measured.copied.to_user_bytes -= 1;
        assert_eq!(failed(&measured), ["copied-bytes"]);
        measured.copied.mapped_bytes += 1;
        assert_eq!(failed(&measured), [""; 0]);
        measured.copied.to_user_bytes += 500;
        measured.copied.peeked_bytes += 500;
        assert_eq!(failed(&measured), [""; 0], "what was looked at is not received");
        measured.receives.socket_bytes += 1;
        assert_eq!(failed(&measured), ["received-bytes"]);
        let checks = all(&measured, &Figures::of(&measured));
        assert!(checks.iter().any(|check| check.words().ends_with("DO NOT AGREE")), "{checks:?}");
    }

    #[test]
    fn a_count_that_the_kernel_lacks_is_not_checked() {
        let mut measured = bulk_receive();
        measured.receives.socket_bytes = 0;
        assert_eq!(failed(&measured), ["received-bytes"]);
        measured.absent.push(Absent { what: RECEIVED_BY_SOCKET, why: "no such tracepoint".into() });
        assert_eq!(failed(&measured), [""; 0]);
    }

    #[test]
    fn datagrams_are_checked_by_the_socket_layer_only() {
        let mut measured = bulk_receive();
        measured.copied.udp_bytes = 5_000;
        measured.receives.bytes += 5_000;
        measured.receives.socket_bytes += 5_000;
        assert_eq!(failed(&measured), [""; 0]);
    }

    #[test]
    fn missed_ticks_are_no_contradiction() {
        let mut measured = bulk_receive();
        measured.tasks.system *= 2;
        assert_eq!(failed(&measured), ["processor-time"]);
        measured.sampling.ticks /= 2;
        assert_eq!(failed(&measured), [""; 0]);
    }

    #[test]
    fn time_may_differ_by_the_sampling_error_only() {
        let mut measured = bulk_receive();
        let error = ERRORS * Figures::of(&measured).time.error_seconds;
        assert!((0.001..0.1).contains(&error), "{error}");
        measured.tasks.switches = 0;
        measured.tasks.user += Duration::from_secs_f64(0.9 * error);
        assert_eq!(failed(&measured), [""; 0]);
        measured.tasks.user += Duration::from_secs_f64(0.2 * error);
        assert_eq!(failed(&measured), ["processor-time"]);
        measured.tasks.switches = 1_000;
        assert_eq!(failed(&measured), [""; 0], "in short turns samples come too late");
    }
}
