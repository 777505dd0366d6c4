//! Watches whether a stream progresses within a unit, because others may wait for the unit's memory.

use std::time::Duration;

use nocopy_proto::message::Time;

/// The longest time for progress by [`LEAST_BYTES`], or to the end of the unit: while memory is short, and
/// always in a posted buffer.
const STALL: Duration = Duration::from_secs(3);
const LEAST_BYTES: u64 = 64 << 10;
/// While memory is short: the longest time for a unit.
const UNIT: Duration = Duration::from_secs(30);

/// When a stream last made progress, and how many bytes it had brought by then. All times are of one clock:
/// for memory that is shared by all, of one that runs only while it is short.
#[derive(Debug)]
pub(super) struct Progress {
    begun: Time,
    since: Time,
    bytes: u64,
}

impl Progress {
    pub(super) fn new(at: Time) -> Self {
        Self { begun: at, since: at, bytes: 0 }
    }

    /// Notes the total of received bytes; `is_new`: a unit has ended, or one has begun.
    pub(super) fn note(&mut self, at: Time, bytes: u64, is_new: bool) {
        if is_new || bytes - self.bytes >= LEAST_BYTES {
            (self.since, self.bytes) = (at, bytes);
        }
        if is_new {
            self.begun = at;
        }
    }

    pub(super) fn is_stalled(&self, at: Time) -> bool {
        self.is_slow(at) || self.is_late(at)
    }

    /// Whether the stream brings too little.
    pub(super) fn is_slow(&self, at: Time) -> bool {
        at.since(self.since) >= STALL
    }

    /// Whether the unit takes too long.
    pub(super) fn is_late(&self, at: Time) -> bool {
        at.since(self.begun) >= UNIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_trickles_is_stalled() {
        let begin = Time::from_ns(7);
        let mut progress = Progress::new(begin);
        progress.note(begin, 100, true);
        let second = |seconds| begin + Duration::from_secs(seconds);
        (1..3).for_each(|at| progress.note(second(at), 100 + at, false));
        assert!(!progress.is_stalled(second(2)));
        assert!(progress.is_stalled(second(3)));
        progress.note(second(3), 100 + LEAST_BYTES, false);
        assert!(!progress.is_stalled(second(5)));
        progress.note(second(5), 200 + LEAST_BYTES, true);
        assert!(!progress.is_stalled(second(7)));
    }

    #[test]
    fn a_unit_ends_however_well_it_progresses() {
        let mut progress = Progress::new(Time::default());
        let second = |seconds| Time::default() + Duration::from_secs(seconds);
        for at in 0..30 {
            progress.note(second(at), at * LEAST_BYTES, at == 0);
            assert!(!progress.is_stalled(second(at)));
        }
        progress.note(second(30), 30 * LEAST_BYTES, false);
        assert!(progress.is_stalled(second(30)));
        progress.note(second(30), 30 * LEAST_BYTES, true);
        assert!(!progress.is_stalled(second(30)), "it is another one");
    }
}
