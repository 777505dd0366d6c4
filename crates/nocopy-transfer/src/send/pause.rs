//! Waits for the next packet's time: sleeps first, then reads the clock until the time.

use std::hint::spin_loop;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A sleep ends later than requested, usually by less than this; so the end of a wait is spent awake.
const AWAKE: Duration = Duration::from_micros(100);

/// The longest sleep: after it the live line is updated, and the user may interrupt.
const ASLEEP_MAX: Duration = Duration::from_millis(50);

/// How long to wait for an interface without room.
const NO_ROOM: Duration = Duration::from_micros(20);

/// How long packets that are sent together wait for each other: some 100 us, as sleeps end up to 50 us late
/// (prctl(2), PR_SET_TIMERSLACK).
const BATCH: Duration = Duration::from_micros(40);

/// How long to wait for an empty pipe.
const NO_INPUT: Duration = Duration::from_millis(1);

/// Waits until `until`, or less long, because the caller has other work from time to time.
pub(super) fn sleep_toward_deadline(until: Instant) {
    let left = until.saturating_duration_since(Instant::now());
    if left > AWAKE {
        sleep((left - AWAKE).min(ASLEEP_MAX));
        return;
    }
    while Instant::now() < until {
        spin_loop();
    }
}

/// Waits until the interface accepts more.
pub(super) fn sleep_for_room() {
    sleep(NO_ROOM);
}

/// Waits for several packets to be due.
pub(super) fn sleep_for_batch() {
    sleep(BATCH);
}

pub(super) fn sleep_for_input() {
    sleep(NO_INPUT);
}
