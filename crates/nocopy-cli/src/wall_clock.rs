//! The time of day, for packets that nobody else has stamped.

use std::time::{SystemTime, UNIX_EPOCH};

/// Nanoseconds since 1970.
pub(crate) fn now_ns() -> u64 {
    // A clock before 1970 or after 2554 is wrong anyway.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
