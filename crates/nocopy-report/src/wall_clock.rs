//! The time of day, for packets without another time stamp, and for results.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

/// In UTC, to the second: `2026-01-31T12:00:00Z`.
pub fn now_text() -> String {
    text_at_seconds(i64::try_from(now_ns() / 1_000_000_000).unwrap_or(0))
}

/// The text for this many seconds since 1970.
pub fn text_at_seconds(seconds: i64) -> String {
    Timestamp::from_second(seconds).unwrap_or_default().to_string()
}

/// Nanoseconds since 1970.
pub fn now_ns() -> u64 {
    // A clock before 1970 or after 2554 is wrong anyway.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
