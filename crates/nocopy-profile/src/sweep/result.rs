//! The JSON schema `nocopy.profile-sweep/3` (docs/profile.md). A field that does not apply is absent.

use serde::{Deserialize, Serialize};

use crate::figures::Figures;
use nocopy_report::Outcome;
use nocopy_report::check::CountCheck;
use nocopy_report::result::Machine;
pub use nocopy_report::statistics::MedianRange;

/// Changes when a field is removed or changes its meaning.
pub const SCHEMA: &str = "nocopy.profile-sweep/3";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepResult {
    pub schema: String,
    /// The command that repeats the measurement.
    pub command: String,
    /// UTC, to the second.
    pub measured_at: String,
    pub machine: Machine,
    pub bytes: u64,
    pub rounds: u32,
    pub congestion_control: String,
    pub cells: Vec<CellFigures>,
}

/// Results of one combination of settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CellFigures {
    /// The program's buffer.
    pub buffer_bytes: usize,
    /// `SO_RCVBUF` as set; absent if the kernel chooses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_buffer_bytes: Option<usize>,
    /// At the receiving interface.
    pub gro: bool,
    /// Without profiling, and with it.
    pub unprofiled_gbit_per_s: MedianRange,
    pub profiled_gbit_per_s: MedianRange,
    /// The loss of throughput by profiling, round by round.
    pub overhead_percent: MedianRange,
    /// The receiver's figures over all rounds.
    pub figures: Figures,
    pub checks: Vec<CountCheck>,
}

impl SweepResult {
    /// Cells that differ only in the program's buffer.
    pub fn groups_by_settings(&self) -> impl Iterator<Item = &[CellFigures]> {
        let settings = |cell: &CellFigures| (cell.receive_buffer_bytes, cell.gro);
        self.cells.chunk_by(move |one, other| settings(one) == settings(other))
    }

    /// Negative if a cross-check failed.
    pub fn outcome(&self) -> Outcome {
        match self.failed_checks().next() {
            Some(_) => Outcome::Negative,
            None => Outcome::Positive,
        }
    }

    pub fn failed_checks(&self) -> impl Iterator<Item = (&CellFigures, &CountCheck)> {
        let all = self.cells.iter().flat_map(|cell| cell.checks.iter().map(move |check| (cell, check)));
        all.filter(|(_, check)| !check.passed)
    }

    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and strings are JSON") + "\n"
    }
}
