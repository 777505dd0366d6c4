//! Waiting for conditions in tests, for as long as a slow machine needs.
//!
//! A test checks a condition again and again instead of sleeping for a time that is hoped to be long enough;
//! it fails only if the condition is not true after [`PATIENCE`].

use std::io::{self, ErrorKind};
use std::thread;
use std::time::{Duration, Instant};

/// How long a test waits for an event that must happen: much longer than a busy machine is stalled, or a
/// thread is not scheduled. (Of a minute on one processor with two suites of tests, a thread waited 45 s for
/// it.)
pub const PATIENCE: Duration = Duration::from_secs(150);

const INTERVAL: Duration = Duration::from_millis(5);

/// Waits until `is_true` returns true; `what` names the fact in the message of a failure.
///
/// # Panics
/// If it is not true after [`PATIENCE`].
#[track_caller]
pub fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        thread::sleep(INTERVAL);
    }
}

/// Repeats a call while it is interrupted (`EINTR`). A call of a socket with a timeout is also interrupted
/// when the process is stopped and continued (SIGSTOP and SIGCONT, signal(7)), as happens to tests on a
/// machine that is paused at times.
///
/// # Errors
/// Errors of the call, except [`ErrorKind::Interrupted`].
pub fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_interrupted_calls_are_repeated() {
        let mut results = [Err(ErrorKind::Interrupted.into()), Ok(1), Ok(2)].into_iter();
        assert_eq!(uninterrupted(|| results.next().unwrap()).unwrap(), 1);
        let mut results = [Err(ErrorKind::WouldBlock.into()), Ok(1)].into_iter();
        assert_eq!(uninterrupted(|| results.next().unwrap()).unwrap_err().kind(), ErrorKind::WouldBlock);
    }
}
