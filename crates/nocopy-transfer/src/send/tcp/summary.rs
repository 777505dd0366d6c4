//! The summary of both ends: the JSON schema `nocopy.send-tcp/2` (docs/send.md). A field that does not apply
//! is absent.

use nocopy_proto::errno::ErrorCause;
use std::net::SocketAddr;

use serde::Serialize;

use super::plan::SendPlan;
use super::worker::WorkerResult;
use crate::arguments::SendArguments;
use crate::endpoint::Endpoint;
use crate::ledger::LedgerSummary;
use crate::processor::{ProcessorTimeSnapshot, ProcessorUse};
use crate::send::queue::Schedule;
use crate::send::summary::{CountedUnit, Rates};
use crate::send::table::behind_row;
use crate::streams::{StreamRow, stream_table_rows};
use crate::transfer::stream::{ControlState, RunCounts};
use nocopy_report::quantity::{in_time_suffix, short_number};
use nocopy_report::summary::indented_lines;
use nocopy_report::table::Table;
use nocopy_report::{CommandEnd, Outcome};

/// For a run that was interrupted before.
const NOT_CONNECTED: &str = "nothing: no receiver was connected yet";

#[derive(Debug, Serialize)]
pub(super) struct Summary {
    target: String,
    address: SocketAddr,
    method: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    congestion: Option<String>,
    /// The methods used, and why, in lines.
    explanation: Vec<String>,
    ended: CommandEnd,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    /// The bytes to be sent, if known from the beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
    bytes: u64,
    seconds: f64,
    #[serde(flatten)]
    rates: Rates,
    streams: Vec<StreamRow>,
    /// Without `--raw`: the counts of both ends.
    #[serde(flatten)]
    run_counts: Option<RunCounts>,
    evidence: LedgerSummary,
    #[serde(skip_serializing_if = "Option::is_none")]
    processor: Option<ProcessorUse>,
    #[serde(skip)]
    pieces: u64,
    #[serde(skip)]
    has_end: bool,
    #[serde(skip)]
    has_checksums: bool,
    /// Whether all connections were made: before that nothing is sent.
    #[serde(skip)]
    is_connected: bool,
}

impl Summary {
    pub(super) fn new(
        arguments: &SendArguments,
        (target, address): (&Endpoint, SocketAddr),
        plan: &SendPlan,
        ends: &[WorkerResult],
        ended: CommandEnd,
        state: Option<ControlState>,
    ) -> Self {
        let duration = ends.iter().map(|end| end.duration).max().unwrap_or_default();
        let schedule = merge_schedules(plan, ends);
        let mut rates = Rates::new(CountedUnit::Pieces, &schedule, plan.pace, duration);
        if rates.requested.units_per_second.is_none() {
            rates.units_per_second = None; // pieces are not visible on the wire
        }
        let reports = || ends.iter().filter_map(|end| Some((end.number, end.report.as_ref()?)));
        let explanation = reports().flat_map(|(number, connection)| {
            let header = (ends.len() > 1).then(|| format!("stream {number}:"));
            header.into_iter().chain(connection.explanation.iter().cloned())
        });
        Self {
            target: target.to_string(),
            address,
            method: arguments.host.method.name(),
            congestion: arguments.stream.congestion.clone(),
            explanation: explanation.collect(),
            ended,
            cause: (ended == CommandEnd::Disconnected).then(|| disconnect_cause(state, ends)),
            total: plan.total,
            bytes: schedule.tally.bytes,
            seconds: duration.as_secs_f64(),
            rates,
            streams: ends.iter().map(StreamRow::from).collect(),
            evidence: LedgerSummary::from_ledgers(reports().map(|(_, connection)| connection.ledger)),
            processor: None,
            pieces: schedule.tally.packets,
            has_end: plan.has_end,
            has_checksums: false,
            is_connected: !ends.is_empty(),
            run_counts: None,
        }
    }

    pub(super) fn with_run_counts(self, run_counts: Option<RunCounts>, has_checksums: bool) -> Self {
        Self { run_counts, has_checksums, ..self }
    }

    pub(super) fn with_processor_use(self, start: ProcessorTimeSnapshot) -> Self {
        Self { processor: Some(start.usage_since(0)), ..self }
    }
}

impl nocopy_report::Summary for Summary {
    const SCHEMA: &'static str = "nocopy.send-tcp/2";

    /// Negative if nothing was sent, less was sent than requested, less arrived than was sent, or data was
    /// changed.
    fn outcome(&self) -> Outcome {
        let end_early =
            self.ended != CommandEnd::Done && self.has_end && self.rates.requested.units.is_none();
        let less = self.total.is_some_and(|total| self.bytes < total);
        // A file may end before the count.
        let missed = self.total.is_none() && self.rates.are_goals_missed(self.pieces)
            || self.rates.requested.seconds.is_some() && self.rates.rate_reached == Some(false);
        let bad = self.run_counts.is_some_and(|run_counts| !run_counts.is_successful());
        match !self.is_connected
            || end_early
            || less
            || missed
            || bad
            || self.ended == CommandEnd::Disconnected
        {
            true => Outcome::Negative,
            false => Outcome::Positive,
        }
    }

    fn table(&self) -> Table {
        let end = self.ended.words();
        let of = match self.total {
            Some(total) if self.bytes < total => format!(" of {total}"),
            _ => String::new(),
        };
        let congestion = self.congestion.as_ref().map(|name| format!(", {name}")).unwrap_or_default();
        let mut rows = vec![
            (self.target.clone(), format!("at {}, method {}{congestion}", self.address, self.method)),
            ("sent".to_owned(), format!("{} bytes{of}{}{end}", self.bytes, in_time_suffix(self.seconds))),
        ];
        rows.extend(self.cause.iter().map(|cause| ("cause".to_owned(), cause.clone())));
        rows.extend(stream_table_rows(&self.streams));
        match &self.run_counts {
            _ if !self.is_connected => rows.push(("received".into(), NOT_CONNECTED.into())),
            None => rows
                .push(("received".into(), "not known: without nocopy's header nothing is reported".into())),
            Some(run_counts) => rows.extend(run_counts.rows(self.has_checksums)),
        }
        let rate = self.rates.bits_per_second.map(|bits| format!("{}bit/s", short_number(bits)));
        rows.push(("rate".into(), rate.unwrap_or_else(|| "none: too few bytes".into())));
        rows.extend(behind_row(&self.rates));
        rows.push(("evidence".into(), self.evidence.words.clone()));
        rows.extend(self.processor.iter().map(|used| ("processor".to_owned(), used.description())));
        rows.into()
    }

    fn details(&self) -> String {
        indented_lines(&self.explanation)
    }
}

/// The time is that until its last piece was handed over.
impl From<&WorkerResult> for StreamRow {
    fn from(end: &WorkerResult) -> Self {
        let WorkerResult { number, offset, count, duration, .. } = end;
        Self { number: *number, offset: *offset, bytes: count.bytes, seconds: duration.as_secs_f64() }
    }
}

fn merge_schedules(plan: &SendPlan, ends: &[WorkerResult]) -> Schedule {
    let latest = ends.iter().map(|end| &end.schedule).max_by_key(|schedule| schedule.pacer.skipped_ns());
    let mut whole = latest.cloned().unwrap_or_else(|| plan.stream_schedule());
    whole.goal = plan.goal;
    whole.tally = Default::default();
    for tally in ends.iter().map(|end| end.schedule.tally) {
        whole.tally.packets += tally.packets;
        whole.tally.bytes += tally.bytes;
        whole.tally.last_bytes += tally.last_bytes;
    }
    whole
}

/// Why the run was disconnected.
fn disconnect_cause(state: Option<ControlState>, ends: &[WorkerResult]) -> String {
    let broken = ends.iter().find_map(|end| end.connection_error.as_ref());
    match (state, broken) {
        (Some(ControlState::Silent), _) => {
            "the receiver has not answered for 10 s; check that it runs".into()
        }
        (Some(ControlState::Malformed), _) => "the receiver sent what 'nocopy recv' never sends".into(),
        (Some(ControlState::Gone), _) => {
            "the receiver closed the connection without a report; look at what it printed".into()
        }
        (_, Some(error)) => {
            format!("the other end accepted no more{}; look at what it printed", ErrorCause(error))
        }
        _ => "the receiver did not report what arrived".into(),
    }
}
