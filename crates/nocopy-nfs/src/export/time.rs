//! Times of files, and the clock that they are read from.

use std::time::SystemTime;

use crate::wire::nfs3::Time;

/// The largest granularity of a file system's times.
const TIME_STEP_NS: u64 = 2_000_000_000;

/// Whether a time of change is long enough ago that any later change would show.
pub(super) fn is_past_time_step(changed: Time) -> bool {
    now_ns().saturating_sub(nanoseconds_since_epoch(changed)) > TIME_STEP_NS
}

fn nanoseconds_since_epoch(time: Time) -> u64 {
    u64::from(time.seconds) * 1_000_000_000 + u64::from(time.nanoseconds)
}

/// The current time of the clock of file times.
fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
