//! The JSON schema `nocopy.profile-sweep/1` (docs/profile.md). A field that does not apply is absent.

use serde::{Deserialize, Serialize};

use crate::Outcome;
use crate::bench::result::Machine;
use crate::bench::statistics;
use crate::profile::check::Check;
use crate::profile::figures::Figures;

/// Changes when a field changes its meaning or goes.
pub(crate) const SCHEMA: &str = "nocopy.profile-sweep/1";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sweep {
    pub(crate) schema: String,
    /// What to run for the same again.
    pub(crate) command: String,
    /// UTC, to the second.
    pub(crate) measured_at: String,
    pub(crate) machine: Machine,
    /// The amount that each transfer moved.
    pub(crate) bytes: u64,
    pub(crate) rounds: u32,
    pub(crate) congestion_control: String,
    pub(crate) cells: Vec<CellFigures>,
}

/// Of one combination of settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CellFigures {
    /// That of the program.
    pub(crate) buffer_bytes: usize,
    /// `SO_RCVBUF` as it was set; absent where the kernel chooses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) receive_buffer_bytes: Option<usize>,
    /// At the receiving interface.
    pub(crate) gro: bool,
    /// Without profiling, and with it.
    pub(crate) without_gbit_per_s: Range,
    pub(crate) with_gbit_per_s: Range,
    /// What profiling took of the throughput, round by round.
    pub(crate) overhead_percent: Range,
    /// Of all rounds together, of the receiver.
    pub(crate) figures: Figures,
    pub(crate) checks: Vec<Check>,
}

/// A median of the rounds with its interval, as the bench has them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Range {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Range {
    /// Zeros of nothing.
    pub(super) fn of(values: &[f64]) -> Self {
        let interval = statistics::interval(values);
        interval.map_or_else(Self::default, |found| Self {
            median: found.median,
            low: found.low,
            high: found.high,
        })
    }
}

impl Sweep {
    /// Cells that differ in nothing but the program's buffer.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &[CellFigures]> {
        let settings = |cell: &CellFigures| (cell.receive_buffer_bytes, cell.gro);
        self.cells.chunk_by(move |one, other| settings(one) == settings(other))
    }

    /// Negative if witnesses do not agree.
    pub(crate) fn outcome(&self) -> Outcome {
        match self.failed_checks().next() {
            Some(_) => Outcome::Negative,
            None => Outcome::Positive,
        }
    }

    pub(crate) fn failed_checks(&self) -> impl Iterator<Item = (&CellFigures, &Check)> {
        let all = self.cells.iter().flat_map(|cell| cell.checks.iter().map(move |check| (cell, check)));
        all.filter(|(_, check)| !check.passed)
    }

    pub(crate) fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and strings are JSON") + "\n"
    }
}
