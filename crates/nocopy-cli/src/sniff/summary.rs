//! The summary of a capture.

use std::fmt::Write;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::export::SCHEMA;
use super::source::{Drops, Origin, Sighting, Source};
use nocopy_report::table::Table;
use nocopy_report::{Ended, Outcome, Summary, quantity};

#[derive(Debug, Default)]
pub(super) struct Count {
    pub(super) packets: u64,
    pub(super) bytes: u64,
    by_kernel: u64,
    by_card: u64,
    by_reading: u64,
}

/// Facts that are known only at the end.
pub(super) struct Ending<'a> {
    pub(super) interface: &'a str,
    pub(super) ended: Ended,
    pub(super) elapsed: Duration,
    pub(super) drops: Drops,
}

impl Count {
    pub(super) fn count(&mut self, sighting: &Sighting<'_>) {
        self.packets += 1;
        self.bytes += sighting.packet_bytes as u64;
        *match sighting.stamp.origin {
            Origin::Kernel => &mut self.by_kernel,
            Origin::Card => &mut self.by_card,
            Origin::Reading => &mut self.by_reading,
        } += 1;
    }

    /// The clocks of the times, with the number of packets.
    fn times(&self) -> impl Iterator<Item = (Origin, u64)> {
        let times = [
            (Origin::Kernel, self.by_kernel),
            (Origin::Card, self.by_card),
            (Origin::Reading, self.by_reading),
        ];
        times.into_iter().filter(|(_, packets)| *packets > 0)
    }

    pub(super) fn end<'a>(&self, ending: &'a Ending<'a>, source: &mut Source) -> Capture<'a> {
        Capture {
            kind: "summary",
            interface: ending.interface,
            ended: ending.ended,
            mode: source.mode(),
            evidence: source.evidence().to_string(),
            seconds: ending.elapsed.as_secs_f64(),
            packets: self.packets,
            bytes: self.bytes,
            dropped: ending.drops.lost(),
            counters: Counters(ending.drops.counters().collect()),
            times: Counters(self.times().map(|(origin, packets)| (origin.name(), packets)).collect()),
            text: self.text(ending, source),
        }
    }

    /// The sentences that tcpdump ends with, and more of them.
    fn text(&self, ending: &Ending<'_>, source: &mut Source) -> String {
        let (mut text, seconds) = (String::new(), ending.elapsed.as_secs_f64());
        let rate = quantity::short(self.packets as f64 / seconds.max(1e-9));
        let bits = quantity::short(self.bytes as f64 * 8.0 / seconds.max(1e-9));
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{} packets captured, {} bytes, in {}{}: {rate} packets/s, {bits} bit/s",
            self.packets,
            self.bytes,
            quantity::time(seconds),
            ending.ended.words()
        );
        let _ = writeln!(text, "{} packets dropped by the kernel", ending.drops.lost());
        for (name, value) in ending.drops.counters().filter(|(_, value)| *value > 0) {
            let _ = writeln!(text, "  {name} {value}");
        }
        for (origin, packets) in self.times() {
            let meaning = match origin {
                Origin::Kernel => "when the kernel had the packet",
                Origin::Card => "when the card had the packet, by the card's own clock",
                Origin::Reading => "when the packet was read, for want of a better one",
            };
            let _ = writeln!(text, "time of {packets} packets: {meaning}");
        }
        for report in source.reports() {
            let _ = writeln!(text, "{report}");
        }
        text
    }
}

/// The summary as the last line of JSON.
#[derive(Serialize)]
pub(super) struct Capture<'a> {
    kind: &'static str,
    interface: &'a str,
    ended: Ended,
    mode: String,
    evidence: String,
    seconds: f64,
    packets: u64,
    bytes: u64,
    dropped: u64,
    counters: Counters<'a>,
    times: Counters<'a>,
    #[serde(skip)]
    text: String,
}

impl Summary for Capture<'_> {
    const SCHEMA: &'static str = SCHEMA;
    const IS_ONE_LINE: bool = true;

    /// An empty table: after packets printed as lines, the summary is printed as lines, too.
    fn table(&self) -> Table {
        Table::default()
    }

    fn details(&self) -> String {
        self.text.clone()
    }

    fn outcome(&self) -> Outcome {
        Outcome::Positive
    }
}

/// An object with a member for each counter, in their order.
struct Counters<'a>(Vec<(&'a str, u64)>);

impl Serialize for Counters<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().copied())
    }
}
