//! The received data, and the sender's counts: the JSON schema `nocopy.recv-udp/1` (docs/recv.md). A field
//! that does not apply is absent.

use std::net::SocketAddr;

use serde::Serialize;

use crate::ledger::LedgerSummary;
use crate::processor::ProcessorUse;
use crate::transfer::RunRow;
use nocopy_report::quantity::{in_time_suffix, short_number};
use nocopy_report::table::Table;
use nocopy_report::{CommandEnd, Outcome};

#[derive(Debug, Serialize)]
pub(super) struct Summary {
    pub address: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sender: Option<SocketAddr>,
    pub ended: CommandEnd,
    pub datagrams: u64,
    /// With headers.
    pub bytes: u64,
    pub seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub datagrams_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bits_per_second: Option<f64>,
    #[serde(flatten)]
    pub run: RunRow,
    /// Datagrams of other programs, senders or runs.
    pub foreign: u64,
    pub kernel_dropped: u64,
    pub evidence: LedgerSummary,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processor: Option<ProcessorUse>,
    /// Whether some received data was not written.
    #[serde(skip)]
    pub left_out: bool,
}

impl nocopy_report::Summary for Summary {
    const SCHEMA: &'static str = "nocopy.recv-udp/1";

    /// Negative if something was lost, damaged or left out, or the sender timed out.
    fn outcome(&self) -> Outcome {
        let is_run = self.run.received.is_some();
        let timed_out = is_run && self.ended == CommandEnd::Timeout;
        let nothing = !is_run && self.datagrams == 0;
        if self.run.has_lost() || timed_out || nothing || self.left_out {
            Outcome::Negative
        } else {
            Outcome::Positive
        }
    }

    fn table(&self) -> Table {
        let end = match self.ended {
            CommandEnd::Timeout if self.run.received.is_none() => ", then nothing more arrived",
            ended => ended.words(),
        };
        let from =
            self.sender.map_or_else(|| "no sender".to_owned(), |sender| format!("from udp://{sender}"));
        let mut rows = vec![
            (format!("udp://{}", self.address), format!("{from}{end}")),
            (
                "datagrams".to_owned(),
                format!("{}, {} bytes{}", self.datagrams, self.bytes, in_time_suffix(self.seconds)),
            ),
        ];
        match &self.run.run_counts {
            Some(run_counts) => rows.extend(run_counts.rows(self.run.has_checksums)),
            None if self.sender.is_some() => {
                rows.push(("lost".into(), "not known: without nocopy's header nothing is reported".into()));
            }
            None => {}
        }
        if let (Some(datagrams), Some(bits)) = (self.datagrams_per_second, self.bits_per_second) {
            rows.push((
                "rate".into(),
                format!("{} datagrams/s, {}bit/s", short_number(datagrams), short_number(bits)),
            ));
        }
        if self.foreign > 0 {
            let text =
                "of other programs, senders or runs, not counted (a program without nocopy's header: --raw)";
            rows.push(("foreign".into(), format!("{}: {text}", self.foreign)));
        }
        if self.run.received.is_none() && self.kernel_dropped > 0 {
            rows.push((
                "kernel dropped".into(),
                format!("{}: its buffer was full (--buffer)", self.kernel_dropped),
            ));
        }
        rows.extend(self.output.iter().map(|output| ("output".to_owned(), output.clone())));
        rows.push(("evidence".into(), self.evidence.words.clone()));
        rows.extend(self.processor.iter().map(|used| ("processor".to_owned(), used.description())));
        rows.into()
    }
}
