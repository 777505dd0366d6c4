//! The summary of a recording, as text and as JSON; described in docs/record.md.

use std::io;
use std::time::Duration;

use nocopy::Stats;
use serde::{Serialize, Serializer};

use super::files::{FileTotals, RecordingFiles};
use super::sequence::SequenceCounters;
use super::sink::PacketAmount;
use nocopy_report::quantity::{short_number, time_text};
use nocopy_report::table::Table;
use nocopy_report::{CommandEnd, Outcome};

/// A counter without which nothing can be said about losses. Errors: the kernel did not report it.
pub(super) fn kernel_counter(stats: &Stats, name: &str) -> io::Result<u64> {
    let missing = || {
        io::Error::other(format!(
            "{name}: not reported by the kernel; so losses would be unknown; record again"
        ))
    };
    stats.get(name).ok_or_else(missing)
}

/// Packets that are not in the files, by cause; under the kernel's names if the kernel counts.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct LossCounters {
    /// Packets that matched the filter, including lost ones.
    pub(super) received: u64,
    pub(super) tp_drops: u64,
    pub(super) tp_freeze_q_cnt: u64,
    pub(super) rx_dropped: u64,
    pub(super) rx_ring_full: u64,
    pub(super) rx_fill_ring_empty_descs: u64,
    /// The kernel's headers of them contradict themselves.
    pub(super) malformed: u64,
    /// Packets without a payload to record.
    pub(super) no_payload: u64,
    /// Packets beyond `--count`.
    pub(super) beyond_count: u64,
    /// Packets that a filter in user space rejected, and that could not be returned to the host either: lost
    /// for the host.
    pub(super) filter_lost: u64,
    /// Not lost, but moved by a few bytes before they were written.
    #[serde(skip)]
    pub(super) moved: u64,
}

impl LossCounters {
    /// Packets that were dropped before they could be recorded.
    fn dropped(&self) -> u64 {
        self.tp_drops + self.rx_dropped + self.rx_ring_full + self.malformed
    }
}

#[derive(Debug)]
pub(super) struct RecordingSummary<'a> {
    pub(super) interface: &'a str,
    pub(super) ended: CommandEnd,
    pub(super) elapsed: Duration,
    pub(super) mode: String,
    pub(super) evidence: String,
    /// The balance of frames, in modes that have frames.
    pub(super) balance: Option<String>,
    pub(super) write_method: String,
    pub(super) loss: LossCounters,
    pub(super) written: PacketAmount,
    pub(super) not_written: PacketAmount,
    pub(super) cause: Option<String>,
    pub(super) gaps: Option<SequenceCounters>,
    pub(super) fill_max: f64,
    pub(super) files: &'a RecordingFiles,
}

#[derive(Serialize)]
struct JsonSummary<'a> {
    interface: &'a str,
    ended: CommandEnd,
    seconds: f64,
    mode: &'a str,
    evidence: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    balance: Option<&'a str>,
    write_method: &'a str,
    #[serde(flatten)]
    loss: LossCounters,
    written: u64,
    written_bytes: u64,
    not_written: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_written_cause: Option<&'a str>,
    /// Packets that are neither written nor accounted for.
    missing: i128,
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence: Option<SequenceCounters>,
    buffer_fill_max: f64,
    files: Vec<FileRow>,
    files_deleted: FileTotals,
    files_earlier: FileTotals,
}

#[derive(Serialize)]
struct FileRow {
    path: String,
    bytes: u64,
    packets: u64,
}

impl RecordingSummary<'_> {
    /// Whether every packet that was to be recorded is.
    fn is_without_loss(&self) -> bool {
        // What read the stream has read enough.
        let not_written = if self.ended == CommandEnd::ByReceiver { 0 } else { self.not_written.packets };
        let lost = self.loss.dropped() + not_written;
        lost == 0 && self.missing_packets() == 0 && self.gaps.is_none_or(|gaps| gaps.missing == 0)
    }

    /// Packets that are neither written nor accounted for; not 0 means a fault.
    fn missing_packets(&self) -> i128 {
        let LossCounters { received, no_payload, beyond_count, .. } = self.loss;
        let known =
            [self.written.packets, self.not_written.packets, self.loss.dropped(), no_payload, beyond_count];
        i128::from(received) - known.map(i128::from).iter().sum::<i128>()
    }

    fn rate_text(&self) -> String {
        let seconds = self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        let rate = short_number(self.loss.received as f64 / seconds);
        format!("in {}{}: {rate} packets/s", time_text(seconds), self.ended.words())
    }

    fn detail_lines(&self) -> String {
        let moved = match self.loss.moved {
            0 => String::new(),
            moved => format!("; {moved} packets moved by a few bytes"),
        };
        let mut lines =
            format!(" mode: {}, {}{moved}\n written by: {}\n", self.mode, self.evidence, self.write_method);
        if let Some(balance) = &self.balance {
            lines += &format!(" frames: {balance}\n");
        }
        for (totals, what) in [(self.files.deleted, "deleted"), (self.files.earlier, "earlier, not deleted")]
        {
            if totals.files > 0 {
                lines += &format!(
                    " {} files {what}: {}, {} packets\n",
                    totals.files,
                    bytes_text(totals.bytes),
                    totals.packets
                );
            }
        }
        for file in &self.files.listed {
            let (path, packets) = (file.path.display(), file.packets);
            lines += &format!(" {path}: {}, {packets} packets\n", bytes_text(file.bytes));
        }
        lines
    }
}

impl Serialize for RecordingSummary<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let files = self.files.listed.iter().map(|file| FileRow {
            path: file.path.display().to_string(),
            bytes: file.bytes,
            packets: file.packets,
        });
        let json = JsonSummary {
            interface: self.interface,
            ended: self.ended,
            seconds: self.elapsed.as_secs_f64(),
            mode: &self.mode,
            evidence: &self.evidence,
            balance: self.balance.as_deref(),
            write_method: &self.write_method,
            loss: self.loss,
            written: self.written.packets,
            written_bytes: self.written.bytes,
            not_written: self.not_written.packets,
            not_written_cause: self.cause.as_deref(),
            missing: self.missing_packets(),
            sequence: self.gaps,
            buffer_fill_max: self.fill_max,
            files: files.collect(),
            files_deleted: self.files.deleted,
            files_earlier: self.files.earlier,
        };
        json.serialize(serializer)
    }
}

impl nocopy_report::Summary for RecordingSummary<'_> {
    const SCHEMA: &'static str = "nocopy.record/3";
    const IS_ONE_LINE: bool = true;

    fn table(&self) -> Table {
        let mut rows = vec![
            ("received", self.loss.received.to_string(), self.rate_text()),
            ("written", self.written.packets.to_string(), bytes_text(self.written.bytes)),
        ];
        let loss = &self.loss;
        for (name, count, meaning) in [
            (
                "tp_drops",
                loss.tp_drops,
                "dropped by the kernel: every block was full; a larger --buffer, a faster disk",
            ),
            ("tp_freeze_q_cnt", loss.tp_freeze_q_cnt, "times that the kernel found no free block"),
            ("rx_dropped", loss.rx_dropped, "dropped by the kernel"),
            ("rx_ring_full", loss.rx_ring_full, "dropped by the kernel: the rx ring was full"),
            (
                "rx_fill_ring_empty_descs",
                loss.rx_fill_ring_empty_descs,
                "dropped by the kernel: no free frame",
            ),
            ("malformed", loss.malformed, "the kernel's headers of them contradict themselves"),
            ("no payload", loss.no_payload, "not UDP, empty, a fragment, or truncated"),
            ("beyond count", loss.beyond_count, "beyond --count"),
            ("filter lost", loss.filter_lost, "did not match, and could not be handed to the host"),
            ("not written", self.not_written.packets, self.cause.as_deref().unwrap_or_default()),
        ] {
            if count > 0 {
                rows.push((name, count.to_string(), meaning.to_owned()));
            }
        }
        if self.missing_packets() != 0 {
            rows.push((
                "missing",
                self.missing_packets().to_string(),
                "unaccounted for: please report this".into(),
            ));
        }
        if let Some(gaps) = self.gaps {
            rows.extend(gaps.summary_rows());
        }
        let fill = format!("{:.0} %", 100.0 * self.fill_max);
        rows.push(("buffer", fill, "full at most".into()));
        let rows = rows.into_iter().map(|(name, value, note)| vec![name.to_owned(), value, note]);
        Table::new(&[], 1..2, rows.collect())
    }

    fn details(&self) -> String {
        self.detail_lines()
    }

    fn outcome(&self) -> Outcome {
        if self.is_without_loss() { Outcome::Positive } else { Outcome::Negative }
    }
}

fn bytes_text(count: u64) -> String {
    let short = short_number(count as f64);
    if short.contains(' ') { format!("{short}B") } else { format!("{short} B") }
}
