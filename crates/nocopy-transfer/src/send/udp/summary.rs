//! The summary of both ends: the JSON schema `nocopy.send-udp/2` (docs/send.md). A field that does not apply
//! is absent.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::Serialize;

use super::payload::PayloadSource;
use super::transmitter::DatagramTransmitter;
use super::transport::TransportReport;
use crate::arguments::SendArguments;
use crate::ledger::LedgerSummary;
use crate::processor::ProcessorUse;
use crate::send::pacer::Pace;
use crate::send::run::SendRunResult;
use crate::send::summary::{CountedUnit, Rates};
use crate::send::table::{behind_row, rate_text, requested_rate_text};
use crate::transfer::RunRow;
use nocopy_report::quantity;
use nocopy_report::summary::indented_lines;
use nocopy_report::table::Table;
use nocopy_report::{CommandEnd, Outcome};

#[derive(Debug, Serialize)]
pub(super) struct Summary {
    target: String,
    address: SocketAddr,
    method: String,
    /// The methods used, and why, in lines.
    explanation: Vec<String>,
    ended: CommandEnd,
    datagrams: u64,
    /// Their payload with headers.
    bytes: u64,
    seconds: f64,
    #[serde(flatten)]
    rates: Rates,
    /// Datagrams that the kernel did not accept, and by cause.
    refused: u64,
    refused_by: BTreeMap<String, u64>,
    #[serde(flatten)]
    run: RunRow,
    evidence: LedgerSummary,
    /// Errors reported by the network, and how often, by name and for people.
    errors: BTreeMap<String, u64>,
    #[serde(skip)]
    errors_by_meaning: BTreeMap<String, u64>,
    processor: ProcessorUse,
    /// Whether the run ends without a count: by a time, or at the end of the input.
    #[serde(skip)]
    has_end: bool,
}

impl Summary {
    pub(super) fn new(
        arguments: &SendArguments,
        (target, address): (String, SocketAddr),
        transmitter: &mut DatagramTransmitter,
        (pace, run, ended): (Pace, &SendRunResult, CommandEnd),
        processor: ProcessorUse,
    ) -> Self {
        let tally = transmitter.schedule.tally;
        let TransportReport { explanation, refused, ledger } = transmitter.session.transport.report();
        let sender_run = transmitter.session.run.as_ref();
        let run_counts = sender_run.and_then(|run| run.run_counts());
        let has_checksums = sender_run.is_some_and(|run| run.has_checksums());
        Self {
            target,
            address,
            method: arguments.host.method.name(),
            explanation,
            ended: if run.failure.is_some() { CommandEnd::Failed } else { ended },
            datagrams: tally.packets,
            bytes: tally.bytes,
            seconds: run.duration.as_secs_f64(),
            rates: Rates::new(CountedUnit::Datagrams, &transmitter.schedule, pace, run.duration),
            refused: refused.values().sum(),
            refused_by: refused,
            run: RunRow::new(sender_run.map(|run| run.sent_counts()), run_counts, has_checksums),
            evidence: ledger.into(),
            errors: transmitter.session.errors.counts_by_name(),
            errors_by_meaning: transmitter.session.errors.counts_by_description(),
            processor,
            has_end: matches!(transmitter.payload, PayloadSource::Stream(_)) || arguments.duration.is_some(),
        }
    }

    /// With more lines about how datagrams were sent.
    pub(super) fn with_explanation_lines(mut self, lines: Vec<String>) -> Self {
        self.explanation.extend(lines);
        self
    }
}

impl nocopy_report::Summary for Summary {
    const SCHEMA: &'static str = "nocopy.send-udp/2";

    /// Negative if fewer datagrams were sent than requested, or arrived than were sent.
    fn outcome(&self) -> Outcome {
        // Below it is checked whether a count was reached.
        let cut_short =
            self.ended != CommandEnd::Done && self.has_end && self.rates.requested.units.is_none();
        let unknown = self.run.sent.is_some() && self.run.is_final != Some(true);
        // With headers, the receiver's count of what is lost includes these.
        let lost_here = self.run.sent.is_none() && (self.refused > 0 || !self.errors.is_empty());
        let lost = lost_here || self.run.has_lost();
        if cut_short || self.rates.are_goals_missed(self.datagrams) || unknown || lost {
            Outcome::Negative
        } else {
            Outcome::Positive
        }
    }

    fn table(&self) -> Table {
        let sent = format!(
            "{} datagrams, {} bytes{}{}",
            self.datagrams,
            self.bytes,
            quantity::in_time_suffix(self.seconds),
            self.ended.words()
        );
        let mut rows = vec![
            (self.target.clone(), format!("at {}, method {}", self.address, self.method)),
            ("sent".to_owned(), sent),
        ];
        match (&self.run.sent, &self.run.run_counts) {
            (None, _) => rows
                .push(("received".into(), "not known: without nocopy's header nothing is reported".into())),
            (Some(_), None) => {
                rows.push(("received".into(), "not known: the receiver never answered".into()))
            }
            (Some(_), Some(run_counts)) => rows.extend(run_counts.rows(self.run.has_checksums)),
        }
        rows.push(("rate".into(), rate_text(&self.rates)));
        rows.extend(
            requested_rate_text(&self.rates, "datagrams").map(|words| ("requested".to_owned(), words)),
        );
        rows.extend(behind_row(&self.rates));
        if self.refused > 0 {
            let causes: Vec<_> =
                self.refused_by.iter().map(|(cause, count)| format!("{cause} {count}")).collect();
            let words = format!(
                "{} datagrams lost here: not sent by the kernel ({})",
                self.refused,
                causes.join(", ")
            );
            rows.push(("refused".into(), words));
        }
        let errors = self.errors_by_meaning.iter();
        rows.extend(errors.map(|(error, count)| ("network".into(), format!("{count} times: {error}"))));
        rows.push(("evidence".into(), self.evidence.words.clone()));
        rows.push(("processor".into(), self.processor.description()));
        rows.into()
    }

    fn details(&self) -> String {
        indented_lines(&self.explanation)
    }
}
