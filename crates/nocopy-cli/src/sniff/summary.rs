//! The summary of a capture.

use std::fmt::Write;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::export::SCHEMA;
use super::source::{CapturedPacket, ClockSource, DropCounters, PacketSource};
use nocopy_report::table::Table;
use nocopy_report::{CommandEnd, Outcome, Summary, quantity};

#[derive(Debug, Default)]
pub(super) struct PacketCounts {
    pub(super) packets: u64,
    pub(super) bytes: u64,
    by_kernel: u64,
    by_device: u64,
    by_process: u64,
}

/// Facts that are known only at the end.
pub(super) struct CaptureEnd<'a> {
    pub(super) interface: &'a str,
    pub(super) ended: CommandEnd,
    pub(super) elapsed: Duration,
    pub(super) drops: DropCounters,
}

impl PacketCounts {
    pub(super) fn count_packet(&mut self, packet: &CapturedPacket<'_>) {
        self.packets += 1;
        self.bytes += packet.packet_bytes as u64;
        *match packet.time.clock {
            ClockSource::Kernel => &mut self.by_kernel,
            ClockSource::Device => &mut self.by_device,
            ClockSource::Process => &mut self.by_process,
        } += 1;
    }

    /// The clocks of the times, with the number of packets.
    fn packets_by_clock(&self) -> impl Iterator<Item = (ClockSource, u64)> {
        let counts = [
            (ClockSource::Kernel, self.by_kernel),
            (ClockSource::Device, self.by_device),
            (ClockSource::Process, self.by_process),
        ];
        counts.into_iter().filter(|(_, packets)| *packets > 0)
    }

    pub(super) fn capture_summary<'a>(
        &self,
        end: &'a CaptureEnd<'a>,
        source: &mut PacketSource,
    ) -> CaptureSummary<'a> {
        CaptureSummary {
            kind: "summary",
            interface: end.interface,
            ended: end.ended,
            mode: source.mode(),
            evidence: source.evidence().to_string(),
            seconds: end.elapsed.as_secs_f64(),
            packets: self.packets,
            bytes: self.bytes,
            dropped: end.drops.dropped(),
            counters: CountersByName(end.drops.counters().collect()),
            packets_by_clock: CountersByName(
                self.packets_by_clock().map(|(clock, packets)| (clock.name(), packets)).collect(),
            ),
            text: self.summary_text(end, source),
        }
    }

    /// The sentences that tcpdump ends with, and more of them.
    fn summary_text(&self, end: &CaptureEnd<'_>, source: &mut PacketSource) -> String {
        let (mut text, seconds) = (String::new(), end.elapsed.as_secs_f64());
        let rate = quantity::short_number(self.packets as f64 / seconds.max(1e-9));
        let bits = quantity::short_number(self.bytes as f64 * 8.0 / seconds.max(1e-9));
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{} packets captured, {} bytes, in {}{}: {rate} packets/s, {bits} bit/s",
            self.packets,
            self.bytes,
            quantity::time_text(seconds),
            end.ended.words()
        );
        let _ = writeln!(text, "{} packets dropped by the kernel", end.drops.dropped());
        for (name, value) in end.drops.counters().filter(|(_, value)| *value > 0) {
            let _ = writeln!(text, "  {name} {value}");
        }
        for (clock, packets) in self.packets_by_clock() {
            let meaning = match clock {
                ClockSource::Kernel => "when the kernel had the packet",
                ClockSource::Device => "when the device had the packet, by the device's own clock",
                ClockSource::Process => "when the packet was read, for want of a better one",
            };
            let _ = writeln!(text, "time of {packets} packets: {meaning}");
        }
        for report in source.port_explanations() {
            let _ = writeln!(text, "{report}");
        }
        text
    }
}

/// The summary as the last line of JSON.
#[derive(Serialize)]
pub(super) struct CaptureSummary<'a> {
    kind: &'static str,
    interface: &'a str,
    ended: CommandEnd,
    mode: String,
    evidence: String,
    seconds: f64,
    packets: u64,
    bytes: u64,
    dropped: u64,
    counters: CountersByName<'a>,
    packets_by_clock: CountersByName<'a>,
    #[serde(skip)]
    text: String,
}

impl Summary for CaptureSummary<'_> {
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
struct CountersByName<'a>(Vec<(&'a str, u64)>);

impl Serialize for CountersByName<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().copied())
    }
}
