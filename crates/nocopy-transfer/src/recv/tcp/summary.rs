//! The received data, and the sender's counts: the JSON schema `nocopy.recv-tcp/2` (docs/recv.md). A field
//! that does not apply is absent.

use std::net::SocketAddr;
use std::time::Duration;

use nocopy::Ledger;
use serde::Serialize;

use super::worker::{StreamEndReason, WorkerResult};
use crate::ledger::LedgerSummary;
use crate::processor::{ProcessorTimeSnapshot, ProcessorUse};
use crate::recv::canonical_address;
use crate::streams::{StreamRow, stream_table_rows};
use crate::transfer::stream::RunCounts;
use nocopy_report::quantity::{in_time_suffix, short_number};
use nocopy_report::summary::indented_lines;
use nocopy_report::table::Table;
use nocopy_report::{CommandEnd, Outcome};

#[derive(Debug, Serialize)]
pub(super) struct Summary {
    address: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    sender: Option<SocketAddr>,
    ended: CommandEnd,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
    bytes: u64,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    bits_per_second: Option<f64>,
    streams: Vec<StreamRow>,
    /// Without `--raw`: the counts of both ends.
    #[serde(flatten)]
    run_counts: Option<RunCounts>,
    foreign: u64,
    evidence: LedgerSummary,
    /// The methods used, and why, in lines.
    explanation: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    processor: Option<ProcessorUse>,
    #[serde(skip)]
    has_checksums: bool,
}

impl Summary {
    pub(super) fn without_sender(
        address: SocketAddr,
        ended: CommandEnd,
        foreign: u64,
        output: Option<String>,
    ) -> Self {
        Self {
            address,
            sender: None,
            ended,
            cause: None,
            total: None,
            bytes: 0,
            seconds: 0.0,
            bits_per_second: None,
            streams: Vec::new(),
            foreign,
            evidence: Ledger::default().into(),
            explanation: Vec::new(),
            output,
            processor: None,
            has_checksums: false,
            run_counts: None,
        }
    }

    pub(super) fn from_run(
        address: SocketAddr,
        from: SocketAddr,
        ended: CommandEnd,
        ends: &[WorkerResult],
        (foreign, output): (u64, Option<String>),
    ) -> Self {
        let bytes = ends.iter().map(|end| end.count.bytes).sum();
        let first = ends.iter().filter_map(|end| end.times).map(|(first, _)| first).min();
        let last = ends.iter().filter_map(|end| end.times).map(|(_, last)| last).max();
        let duration = first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first);
        let seconds = duration.as_secs_f64();
        let explanation = ends.iter().flat_map(|end| {
            let header = (ends.len() > 1).then(|| format!("stream {}:", end.number));
            header.into_iter().chain(end.explanation.iter().cloned())
        });
        Self {
            explanation: explanation.collect(),
            sender: Some(canonical_address(from)),
            cause: ends.iter().find_map(stream_error_text),
            bytes,
            seconds,
            bits_per_second: (seconds > 0.0).then(|| 8.0 * bytes as f64 / seconds),
            streams: ends.iter().map(StreamRow::from).collect(),
            evidence: LedgerSummary::from_ledgers(ends.iter().map(|end| end.ledger)),
            ..Self::without_sender(address, ended, foreign, output)
        }
    }

    pub(super) fn with_run_counts(self, run_counts: Option<RunCounts>, has_checksums: bool) -> Self {
        Self { total: run_counts.and_then(|run_counts| run_counts.total), run_counts, has_checksums, ..self }
    }

    pub(super) fn with_processor_use(self, start: ProcessorTimeSnapshot) -> Self {
        Self { processor: Some(start.usage_since(0)), ..self }
    }
}

impl nocopy_report::Summary for Summary {
    const SCHEMA: &'static str = "nocopy.recv-tcp/2";

    /// Negative if less arrived than was sent, or it was changed, or the sender disconnected early, or no
    /// sender connected.
    fn outcome(&self) -> Outcome {
        let broken = matches!(self.ended, CommandEnd::Disconnected | CommandEnd::Timeout);
        let bad = self.run_counts.is_some_and(|run_counts| !run_counts.is_successful());
        if broken || bad || self.sender.is_none() { Outcome::Negative } else { Outcome::Positive }
    }

    fn table(&self) -> Table {
        let end = match self.ended {
            CommandEnd::Timeout if self.run_counts.is_some_and(|run_counts| run_counts.sent.is_some()) => {
                ", then nothing more came of what it says it has sent"
            }
            ended => ended.words(),
        };
        let from =
            self.sender.map_or_else(|| "no sender".to_owned(), |sender| format!("from tcp://{sender}"));
        let mut rows = vec![
            (format!("tcp://{}", self.address), format!("{from}{end}")),
            ("bytes".to_owned(), format!("{}{}", self.bytes, in_time_suffix(self.seconds))),
        ];
        rows.extend(self.cause.iter().map(|cause| ("cause".to_owned(), cause.clone())));
        rows.extend(stream_table_rows(&self.streams));
        match &self.run_counts {
            Some(run_counts) => rows.extend(run_counts.rows(self.has_checksums)),
            None if self.sender.is_some() => {
                rows.push((
                    "missing".into(),
                    "not known: without nocopy's header nothing is reported".into(),
                ));
            }
            None => {}
        }
        rows.extend(
            self.bits_per_second.map(|bits| ("rate".to_owned(), format!("{}bit/s", short_number(bits)))),
        );
        if self.foreign > 0 {
            let text = "connections of other programs, senders or runs, closed (a program without nocopy's header: --raw)";
            rows.push(("foreign".into(), format!("{}: {text}", self.foreign)));
        }
        rows.extend(self.output.iter().map(|output| ("output".to_owned(), output.clone())));
        rows.push(("evidence".into(), self.evidence.words.clone()));
        rows.extend(self.processor.iter().map(|used| ("processor".to_owned(), used.description())));
        rows.into()
    }

    fn details(&self) -> String {
        indented_lines(&self.explanation)
    }
}

/// The time is that from the first byte to the last.
impl From<&WorkerResult> for StreamRow {
    fn from(end: &WorkerResult) -> Self {
        let seconds = end.times.map_or(0.0, |(first, last)| (last - first).as_secs_f64());
        Self { number: end.number, offset: Some(end.offset), bytes: end.count.bytes, seconds }
    }
}

/// What was wrong with a connection.
fn stream_error_text(end: &WorkerResult) -> Option<String> {
    match &end.reason {
        StreamEndReason::Broken(error) => Some(format!("stream {}: {error}", end.number)),
        StreamEndReason::TooMuch => {
            Some(format!("stream {}: more came than the sender had announced", end.number))
        }
        StreamEndReason::End | StreamEndReason::Stopped | StreamEndReason::Failed(_) => None,
    }
}
