//! The limits of a recording, and its live line.

use std::time::{Duration, Instant};

use super::sink::{PacketAmount, RecordingSink};
use crate::arguments::RecordArguments;
use nocopy_report::live::LiveLine;
use nocopy_report::quantity::short_number;
use nocopy_report::{CommandEnd, Interrupt};

#[derive(Debug)]
pub(super) struct RecordingProgress {
    interrupt: Interrupt,
    start: Instant,
    end: Option<Instant>,
    line: LiveLine,
    last_shown: PacketAmount,
}

impl RecordingProgress {
    pub(super) fn new(arguments: &RecordArguments, interrupt: Interrupt) -> Self {
        let start = Instant::now();
        let end = arguments.duration.and_then(|duration| start.checked_add(duration));
        Self { interrupt, start, end, line: LiveLine::default(), last_shown: PacketAmount::default() }
    }

    pub(super) fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    /// Whether the user has interrupted the recording, or its time is over.
    pub(super) fn must_end(&self) -> bool {
        self.interrupt.was_interrupted() || self.end.is_some_and(|end| Instant::now() >= end)
    }

    /// Why it has ended, unless by a failure: otherwise the count was reached.
    pub(super) fn end_reason(&self) -> CommandEnd {
        match self.must_end() {
            true if self.interrupt.was_interrupted() => CommandEnd::Interrupted,
            true => CommandEnd::Duration,
            false => CommandEnd::Count,
        }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    pub(super) fn show_live_line(&mut self, sink: &RecordingSink, fill: f64) {
        let Self { line, last_shown, .. } = self;
        line.update(Instant::now(), |since| {
            let before = std::mem::replace(last_shown, sink.written);
            let rate = |now: u64, before: u64| short_number((now - before) as f64 / since.as_secs_f64());
            format!(
                "{} packets/s, {}B/s, buffer {:.0} %, dropped {}, file {}B",
                rate(sink.written.packets, before.packets),
                with_space_before_unit(rate(sink.written.bytes, before.bytes)),
                100.0 * fill,
                sink.counts.dropped,
                with_space_before_unit(short_number(sink.writer().file_bytes() as f64)),
            )
        });
    }
}

/// A number that a unit follows: `1.23 M` has its space already.
fn with_space_before_unit(number: String) -> String {
    if number.contains(' ') { number } else { number + " " }
}
