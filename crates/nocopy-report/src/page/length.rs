//! Methods that were measured with buffers of several lengths.

use crate::chart::{ChartLine, ChartPoint, LineChart};
use crate::result::{Row, Section};

/// The fewest lengths that make a curve.
const FEWEST: usize = 3;

/// `None` if no method was measured at enough lengths.
pub(crate) fn chart_by_buffer_length(section: Section<'_>) -> Option<LineChart> {
    let with_length = |row: &&Row| row.buffer_bytes.is_some() && row.figure.value_in(row).is_some();
    let mut rows: Vec<&Row> = section.rows.iter().filter(with_length).collect();
    // A row appears once per baseline.
    rows.dedup_by_key(|row| (&row.method, row.buffer_bytes));
    let of_methods = rows.chunk_by(|one, other| one.method == other.method);
    let curves: Vec<&[&Row]> = of_methods.filter(|rows| rows.len() >= FEWEST).collect();
    if curves.is_empty() {
        return None;
    }
    Some(LineChart {
        title: format!("{}, over the length of the buffer", section.figure().unit()),
        lines: curves.iter().map(|rows| line_of_method(rows)).collect(),
    })
}

fn line_of_method(rows: &[&Row]) -> ChartLine {
    let value = |row: &&Row| {
        let shown = |value| row.figure.displayed_value(value);
        Some(ChartPoint {
            length_bytes: row.buffer_bytes? as u64,
            value: shown(row.figure.value_in(row)?),
            interval: row.figure_low.zip(row.figure_high).map(|(low, high)| (shown(low), shown(high))),
        })
    };
    ChartLine { name: rows[0].method.clone(), values: rows.iter().filter_map(value).collect() }
}
