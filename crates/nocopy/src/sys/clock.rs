//! The system's clock as a number.

use std::mem::MaybeUninit;
use std::time::Duration;

/// Nanoseconds since the machine started, as `Instant` counts them, but faster: with one call per message the overhead of `Instant`
/// exceeds the clock's. (`rustix` would do, but finds the vDSO by means that valgrind does not have.)
#[inline]
pub(crate) fn monotonic_ns() -> u64 {
    let mut now = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: `now` is a place for a timespec.
    let done = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, now.as_mut_ptr()) };
    assert_eq!(done, 0, "every Linux has this clock");
    // SAFETY: it was written, since the call succeeded.
    let now = unsafe { now.assume_init() };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Processor time that this thread has taken, in the kernel, too, also for interrupts that came meanwhile.
pub(crate) fn processor_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn goes_as_instants_do() {
        let (instant, ns) = (Instant::now(), monotonic_ns());
        std::thread::sleep(Duration::from_millis(2));
        let (later_ns, elapsed) = (monotonic_ns(), instant.elapsed());
        let by_number = Duration::from_nanos(later_ns - ns);
        assert!(by_number >= Duration::from_millis(2) && by_number <= elapsed, "{by_number:?} {elapsed:?}");
    }
}
