//! The throughput of a profile sweep, as rows that can be compared like those of a bench.

use super::{CellFigures, MedianRange, SweepResult, settings_title};
use nocopy_report::figure::Figure;
use nocopy_report::quantity::length_text;
use nocopy_report::result::{Report, Row, SCHEMA};

pub fn throughput_report_of(sweep: &SweepResult) -> Report {
    let of_cell = |cell: &CellFigures| {
        let both = [("", cell.unprofiled_gbit_per_s), (" profiled", cell.profiled_gbit_per_s)];
        both.map(|(how, range)| throughput_row(sweep, cell, how, range))
    };
    Report {
        schema: SCHEMA.into(),
        command: sweep.command.clone(),
        measured_at: sweep.measured_at.clone(),
        machine: sweep.machine.clone(),
        notes: Vec::new(),
        receive_analysis: None,
        card: None,
        results: sweep.cells.iter().flat_map(of_cell).collect(),
    }
}

fn throughput_row(sweep: &SweepResult, cell: &CellFigures, how: &str, range: MedianRange) -> Row {
    let bytes_per_s = |gbit_per_s: f64| Some(gbit_per_s * 1e9 / 8.0);
    Row {
        workload: "profile-sweep".into(),
        series: settings_title(cell),
        method: "recv".into(),
        variant: Some(length_text(cell.buffer_bytes).replace(' ', "-") + how),
        payload_bytes: cell.buffer_bytes,
        figure: Figure::BytesPerSecond,
        bytes_per_s: bytes_per_s(range.median),
        figure_low: bytes_per_s(range.low),
        figure_high: bytes_per_s(range.high),
        rounds: sweep.rounds as usize,
        ..Row::default()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::page::tests::example_sweep;
    use super::*;
    use nocopy_report::comparison::{ComparisonVerdict, RunComparison};

    #[test]
    fn sweeps_are_compared_by_their_throughput() {
        let a = example_sweep();
        let mut b = example_sweep();
        b.cells[0].unprofiled_gbit_per_s = MedianRange { median: 20.0, low: 19.0, high: 21.0 };
        let (a, b) = (throughput_report_of(&a), throughput_report_of(&b));
        let compared = RunComparison::new((Path::new("a.json"), &a), (Path::new("b.json"), &b));
        assert_eq!(compared.rows.len(), 2 * 4 * 13);
        let better: Vec<_> =
            compared.rows.iter().filter(|row| row.verdict == ComparisonVerdict::Better).collect();
        assert_eq!(better.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["recv 1-KiB"]);
        assert_eq!(better[0].b_over_a, Some(2.0));
    }
}
