//! The throughput of a profile sweep, as rows that can be compared like those of a bench.

use crate::bench::figure::Figure;
use crate::bench::result::{Report, Row, SCHEMA};
use crate::profile::sweep::{CellFigures, Range, Sweep, title};
use crate::quantity::length;

pub(super) fn of(sweep: &Sweep) -> Report {
    let of_cell = |cell: &CellFigures| {
        let both = [("", cell.without_gbit_per_s), (" profiled", cell.with_gbit_per_s)];
        both.map(|(how, range)| row(sweep, cell, how, range))
    };
    Report {
        schema: SCHEMA.into(),
        command: sweep.command.clone(),
        measured_at: sweep.measured_at.clone(),
        machine: sweep.machine.clone(),
        notes: Vec::new(),
        results: sweep.cells.iter().flat_map(of_cell).collect(),
    }
}

fn row(sweep: &Sweep, cell: &CellFigures, how: &str, range: Range) -> Row {
    let bytes_per_s = |gbit_per_s: f64| Some(gbit_per_s * 1e9 / 8.0);
    Row {
        workload: "profile-sweep".into(),
        series: title(cell),
        method: "recv".into(),
        variant: Some(length(cell.buffer_bytes).replace(' ', "-") + how),
        payload_bytes: cell.buffer_bytes,
        figure: Figure::BytesPerSecond,
        bytes_per_s: bytes_per_s(range.median),
        figure_low: bytes_per_s(range.low),
        figure_high: bytes_per_s(range.high),
        runs: sweep.rounds as usize,
        ..Row::default()
    }
}
