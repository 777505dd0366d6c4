//! Cross-checks: pairs of independent figures that must agree. A failed check is printed prominently, with
//! the results.

use nocopy_report::check::CountCheck;

use super::figures::Figures;
use super::measured::{CallCounts, RECEIVED_BY_SOCKET, SENT_BY_SOCKET, WindowMeasurement};

/// How many printed errors are allowed: by chance one of 20 windows exceeds one error, and one of 10,000
/// exceeds this many.
const ERRORS: f64 = 2.0;

pub(crate) fn all_checks(measured: &WindowMeasurement, figures: &Figures) -> Vec<CountCheck> {
    // A check needs both counts.
    let has = |what: &str| measured.absent.iter().all(|absent| absent.what != what);
    let checks = [
        check_copied_bytes(measured),
        check_socket_bytes("received-bytes", "received", &measured.receives)
            .filter(|_| has(RECEIVED_BY_SOCKET)),
        check_socket_bytes("sent-bytes", "sent", &measured.sends).filter(|_| has(SENT_BY_SOCKET)),
        check_processor_time(figures),
    ];
    checks.into_iter().flatten().collect()
}

/// Bytes counted at the copies and mappings, and by TCP's receives.
fn check_copied_bytes(measured: &WindowMeasurement) -> Option<CountCheck> {
    let copied = &measured.copied;
    let copied_once = copied.to_user_bytes.saturating_sub(copied.peeked_bytes);
    let at_the_copy = copied_once + copied.mapped_bytes + copied.discarded_bytes;
    let by_tcp = measured.receives.bytes.saturating_sub(copied.udp_bytes);
    let about = "bytes counted at the copy and mapped, and received by TCP".into();
    (at_the_copy + by_tcp > 0).then(|| CountCheck::of_equal_bytes("copied-bytes", at_the_copy, by_tcp, about))
}

/// Compares the bytes that the calls returned with those that the socket layer counted.
fn check_socket_bytes(name: &str, what: &str, calls: &CallCounts) -> Option<CountCheck> {
    let about = format!("bytes {what} by the calls, and as the socket layer says");
    (calls.bytes + calls.socket_bytes > 0)
        .then(|| CountCheck::of_equal_bytes(name, calls.bytes, calls.socket_bytes, about))
}

/// Compares the sum of the sampled parts with the total that the kernel accounted.
fn check_processor_time(figures: &Figures) -> Option<CountCheck> {
    let time = &figures.time;
    let allowed = ERRORS * time.error_seconds + time.late_seconds + time.stalled_seconds;
    (time.sampled_seconds + time.accounted_seconds > 0.0).then(|| CountCheck {
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
    use crate::fixture::bulk_receive_measurement;
    use crate::measured::UnmeasuredQuantity;

    fn failed_checks(measured: &WindowMeasurement) -> Vec<String> {
        let checks = all_checks(measured, &Figures::from_measurement(measured));
        checks.into_iter().filter(|check| !check.passed).map(|check| check.name).collect()
    }

    #[test]
    fn equal_counts_pass_every_check() {
        assert_eq!(failed_checks(&bulk_receive_measurement()), [""; 0]);
        assert_eq!(
            all_checks(
                &WindowMeasurement::default(),
                &Figures::from_measurement(&WindowMeasurement::default())
            ),
            [],
            "there is nothing to compare"
        );
    }

    #[test]
    fn a_difference_of_one_byte_fails_a_check() {
        let mut measured = bulk_receive_measurement();
        measured.copied.to_user_bytes -= 1;
        assert_eq!(failed_checks(&measured), ["copied-bytes"]);
        measured.copied.mapped_bytes += 1;
        assert_eq!(failed_checks(&measured), [""; 0]);
        measured.copied.to_user_bytes += 500;
        measured.copied.peeked_bytes += 500;
        assert_eq!(failed_checks(&measured), [""; 0], "what was looked at is not received");
        measured.receives.socket_bytes += 1;
        assert_eq!(failed_checks(&measured), ["received-bytes"]);
        let checks = all_checks(&measured, &Figures::from_measurement(&measured));
        assert!(checks.iter().any(|check| check.description().ends_with("DO NOT AGREE")), "{checks:?}");
    }

    #[test]
    fn a_count_that_the_kernel_lacks_is_not_checked() {
        let mut measured = bulk_receive_measurement();
        measured.receives.socket_bytes = 0;
        assert_eq!(failed_checks(&measured), ["received-bytes"]);
        measured
            .absent
            .push(UnmeasuredQuantity { what: RECEIVED_BY_SOCKET, why: "no such tracepoint".into() });
        assert_eq!(failed_checks(&measured), [""; 0]);
    }

    #[test]
    fn datagrams_are_checked_by_the_socket_layer_only() {
        let mut measured = bulk_receive_measurement();
        measured.copied.udp_bytes = 5_000;
        measured.receives.bytes += 5_000;
        measured.receives.socket_bytes += 5_000;
        assert_eq!(failed_checks(&measured), [""; 0]);
    }

    #[test]
    fn missed_clock_ticks_do_not_fail_the_time_check() {
        let mut measured = bulk_receive_measurement();
        measured.tasks.system *= 2;
        assert_eq!(failed_checks(&measured), ["processor-time"]);
        measured.sampling.ticks /= 2;
        assert_eq!(failed_checks(&measured), [""; 0]);
    }

    #[test]
    fn time_may_differ_by_the_sampling_error_only() {
        let mut measured = bulk_receive_measurement();
        let error = ERRORS * Figures::from_measurement(&measured).time.error_seconds;
        assert!((0.001..0.1).contains(&error), "{error}");
        measured.tasks.switches = 0;
        measured.tasks.user += Duration::from_secs_f64(0.9 * error);
        assert_eq!(failed_checks(&measured), [""; 0]);
        measured.tasks.user += Duration::from_secs_f64(0.2 * error);
        assert_eq!(failed_checks(&measured), ["processor-time"]);
        measured.tasks.switches = 1_000;
        assert_eq!(failed_checks(&measured), [""; 0], "in short turns samples come too late");
    }
}
