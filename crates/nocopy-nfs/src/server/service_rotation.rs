//! Whether several connections are served at present.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Several connections count as served at the same time if the served one changed within this time.
const PRESENT: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct AlternationDetector {
    begin: Instant,
    /// The socket of the last turn, and the time of the last change to another one.
    last: AtomicI32,
    changed_ms: AtomicU64,
}

impl AlternationDetector {
    pub(super) fn new() -> Self {
        Self { begin: Instant::now(), last: AtomicI32::new(-1), changed_ms: AtomicU64::new(0) }
    }

    pub(super) fn record_turn(&self, socket: &impl AsRawFd, now: Instant) {
        let socket: RawFd = socket.as_raw_fd();
        // Relaxed: only a hint. Usually it is the same socket, and then nothing is written that other threads
        // read.
        if self.last.load(Ordering::Relaxed) != socket {
            self.last.store(socket, Ordering::Relaxed);
            self.changed_ms.store(self.elapsed_ms(now), Ordering::Relaxed);
        }
    }

    pub(super) fn is_alternating(&self, now: Instant) -> bool {
        let since_ms = self.elapsed_ms(now).saturating_sub(self.changed_ms.load(Ordering::Relaxed));
        Duration::from_millis(since_ms) < PRESENT
    }

    fn elapsed_ms(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.begin).as_millis() as u64 // of 584 million years
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_of_one_connection_are_not_alternating() {
        let rotation = AlternationDetector::new();
        let at = |ms| rotation.begin + Duration::from_millis(ms);
        (1000..1100).for_each(|ms| rotation.record_turn(&7, at(ms)));
        assert!(rotation.is_alternating(at(1050)) && !rotation.is_alternating(at(1100)));
        rotation.record_turn(&8, at(1200));
        assert!(rotation.is_alternating(at(1299)) && !rotation.is_alternating(at(1300)));
    }
}
