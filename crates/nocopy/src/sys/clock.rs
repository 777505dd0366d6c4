//! The system's clocks as numbers.
//!
//! What another host counts on meanwhile is measured by the boot clock, which goes on while this machine is
//! suspended: keep-alives, repetitions, the lifetime of connections and of what is known of the network.
//! Rates, durations, and how long a call may wait follow `Instant`, which stands still then, so that no rate
//! has anything to catch up.

/// Nanoseconds since the machine started, also those in which it was suspended (`CLOCK_BOOTTIME`). Not by
/// `Instant`, whose overhead exceeds the clock's with one call per message. (`rustix` would do, but finds the
/// vDSO by means that valgrind does not have.)
#[cfg(any(feature = "message", feature = "port"))]
#[inline]
pub(crate) fn boottime_ns() -> u64 {
    let mut now = std::mem::MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: `now` is a place for a timespec.
    let done = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, now.as_mut_ptr()) };
    assert_eq!(done, 0, "every Linux has this clock");
    // SAFETY: it was written, since the call succeeded.
    let now = unsafe { now.assume_init() };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Processor time that this thread has taken, in the kernel, too, also for interrupts that came meanwhile.
#[cfg(feature = "tcp")]
pub(crate) fn processor_time() -> std::time::Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    std::time::Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec as u32)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::fd::{AsFd, AsRawFd};
    use std::time::{Duration, Instant};

    use super::*;

    /// Whether a timer goes on while the machine is suspended.
    pub(crate) fn uses_boot_clock(timer: impl AsFd) -> bool {
        let path = format!("/proc/self/fdinfo/{}", timer.as_fd().as_raw_fd());
        let info = std::fs::read_to_string(path).unwrap();
        info.lines().any(|line| line == format!("clockid: {}", libc::CLOCK_BOOTTIME))
    }

    #[test]
    fn boottime_advances_like_instants() {
        let (instant, ns) = (Instant::now(), boottime_ns());
        std::thread::sleep(Duration::from_millis(2));
        let (later_ns, elapsed) = (boottime_ns(), instant.elapsed());
        let by_number = Duration::from_nanos(later_ns - ns);
        assert!(by_number >= Duration::from_millis(2) && by_number <= elapsed, "{by_number:?} {elapsed:?}");
    }

    #[test]
    fn boottime_includes_suspended_time() {
        let hour = Duration::from_secs(3600);
        nocopy_lab::suspended::run_as_after_suspension_or_skip(
            hour,
            "sys::clock::tests::boottime_includes_suspended_time",
            || {
                let monotonic = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
                let monotonic = Duration::new(monotonic.tv_sec.cast_unsigned(), monotonic.tv_nsec as u32);
                assert!(Duration::from_nanos(boottime_ns()) >= monotonic + hour);
            },
        );
    }
}
