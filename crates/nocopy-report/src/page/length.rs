//! Methods that were measured with buffers of several lengths.

use super::bench::{interval, once, said};
use crate::chart::{Line, Lines, Value};
use crate::quantity;
use crate::result::{Row, Section};
use crate::table::Table;

/// Fewer lengths are no curve.
const FEWEST: usize = 3;

/// The chart with its table; `None` where no method has so many lengths.
pub(crate) fn chart(section: Section<'_>) -> Option<(Lines, Table)> {
    let with_length = |row: &&Row| row.buffer_bytes.is_some() && row.figure.of(row).is_some();
    let rows: Vec<&Row> = once(section).filter(with_length).collect();
    let of_methods = rows.chunk_by(|one, other| one.method == other.method);
    let curves: Vec<&[&Row]> = of_methods.filter(|rows| rows.len() >= FEWEST).collect();
    if curves.is_empty() {
        return None;
    }
    let unit = section.figure().unit();
    let lines = Lines {
        title: format!("{unit}, over the length of the buffer"),
        lines: curves.iter().map(|rows| line(rows)).collect(),
    };
    let cells = |row: &&Row| vec![row.method.clone(), length(row), said(row)];
    let cells = curves.iter().copied().flatten().map(cells).collect();
    Some((lines, Table::new(&["method", "buffer", unit], 1..3, cells)))
}

fn length(row: &Row) -> String {
    row.buffer_bytes.map_or_else(String::new, quantity::length)
}

fn line(rows: &[&Row]) -> Line {
    let value = |row: &&Row| {
        let shown = |value| row.figure.shown(value);
        Some(Value {
            length_bytes: row.buffer_bytes? as u64,
            value: shown(row.figure.of(row)?),
            interval: interval(row).map(|(low, high)| (shown(low), shown(high))),
        })
    };
    Line { name: rows[0].method.clone(), values: rows.iter().filter_map(value).collect() }
}
