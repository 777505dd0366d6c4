//! Waiting until the kernel has done its part.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::failure::Failure;

/// Longer than any packet takes in an emulated machine.
pub(crate) const ARRIVAL_MAX: Duration = Duration::from_secs(60);

const WAIT_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(5);

/// Waits until `is_so` returns true; `what` describes the condition in the message of a failure.
pub(crate) fn wait_until(what: &str, is_so: impl Fn() -> Result<bool, Failure>) -> Result<(), Failure> {
    let give_up = Instant::now() + WAIT_MAX;
    while !is_so()? {
        if Instant::now() > give_up {
            return Err(Failure(format!("not within {} s: {what}", WAIT_MAX.as_secs())));
        }
        sleep(POLL);
    }
    Ok(())
}
