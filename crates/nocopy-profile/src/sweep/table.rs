//! The sweep for a reader: a table for each receive buffer, with and without GRO.

use std::fmt::Write as _;

use super::result::{CellFigures, SweepResult};
use crate::category::TimeCategory;
use nocopy_report::quantity::length_text;
use nocopy_report::table::Table;

/// The least share of the time, in any cell, of a category with its own column; the other categories are
/// summed up as the rest.
const COLUMN_SHARE_MIN: f64 = 0.01;

pub fn sweep_text(sweep: &SweepResult) -> String {
    let mut text = String::new();
    for cells in sweep.groups_by_settings() {
        let _ = writeln!(text, "{}\n{}", settings_title(&cells[0]), group_table(cells));
    }
    let SweepResult { bytes, rounds, congestion_control, machine, .. } = sweep;
    let _ = writeln!(
        text,
        "{} by TCP ({congestion_control}) from one process to another over a private veth pair, by recv with MSG_WAITALL; the sender's\n\
         segments are single (its interface does not take several at a time). Medians of {rounds} rounds, without profiling and with\n\
         it, in turns; overhead: what profiling took of the throughput in the same round, with its interval. The other columns: us\n\
         of the receiver for 10^6 bytes, its share of softirqs included.",
        length_text(usize::try_from(*bytes).unwrap_or(usize::MAX)),
    );
    for (cell, check) in sweep.failed_checks() {
        let _ = writeln!(
            text,
            "check: {}, buffer {}: {}",
            settings_title(cell),
            length_text(cell.buffer_bytes),
            check.description()
        );
    }
    let _ = writeln!(text, "{}", machine.description());
    text
}

/// The settings shared by the cells of a table.
pub fn settings_title(cell: &CellFigures) -> String {
    let receive_buffer = match cell.receive_buffer_bytes {
        Some(bytes) => format!("fixed at {}", length_text(bytes)),
        None => "autotuned".into(),
    };
    format!("receive buffer {receive_buffer}, GRO {}", if cell.gro { "on" } else { "off" })
}

fn group_table(cells: &[CellFigures]) -> String {
    let has_column = |category: &TimeCategory| {
        *category != TimeCategory::Other
            && cells.iter().any(|cell| cell.figures.category_share(*category) >= COLUMN_SHARE_MIN)
    };
    let columns: Vec<TimeCategory> = TimeCategory::ALL.into_iter().filter(has_column).collect();
    let categories = columns.iter().map(|category| category.short_name());
    let first = ["buffer", "Gbit/s", "profiled", "overhead %"];
    let header: Vec<_> = first.into_iter().chain(categories).chain(["rest", "sum", "sleeping"]).collect();
    let rows = cells.iter().map(|cell| cell_row(cell, &columns)).collect();
    Table::new(&header, 0..header.len(), rows).text()
}

fn cell_row(cell: &CellFigures, columns: &[TimeCategory]) -> Vec<String> {
    let time = &cell.figures.time;
    let us_per_mb = |wanted: &dyn Fn(TimeCategory) -> bool| -> f64 {
        let wanted = time.categories.iter().filter(|time| wanted(time.category));
        // The sum of no values is -0.0.
        wanted.filter_map(|time| time.us_per_mb).fold(0.0, |sum, more| sum + more)
    };
    let overhead = cell.overhead_percent;
    let first = [
        length_text(cell.buffer_bytes),
        format!("{:.2}", cell.unprofiled_gbit_per_s.median),
        format!("{:.2}", cell.profiled_gbit_per_s.median),
        format!("{:.1} [{:.1}–{:.1}]", overhead.median, overhead.low, overhead.high),
    ];
    let categories = columns.iter().map(|column| us_per_mb(&|category| category == *column));
    let last = [
        us_per_mb(&|category| !columns.contains(&category)),
        us_per_mb(&|_| true),
        time.sleeping.us_per_mb.unwrap_or(0.0),
    ];
    let numbers = categories.chain(last).map(|number| format!("{number:.1}"));
    first.into_iter().chain(numbers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Figures;
    use crate::fixture::{bulk_receive_measurement, sampled_stack};
    use crate::measured::SampleOwner;
    use crate::sweep::result::{MedianRange, SCHEMA};
    use nocopy_report::machine;

    fn example_cell(buffer_bytes: usize, gro: bool) -> CellFigures {
        let mut measured = bulk_receive_measurement();
        measured.stacks.push(sampled_stack(SampleOwner::Receiving, "exc_page_fault", 3));
        let range = |median| MedianRange { median, low: median - 1.0, high: median + 1.0 };
        CellFigures {
            buffer_bytes,
            receive_buffer_bytes: None,
            gro,
            unprofiled_gbit_per_s: range(40.0),
            profiled_gbit_per_s: range(38.0),
            overhead_percent: range(5.0),
            figures: Figures::from_measurement(&measured),
            checks: Vec::new(),
        }
    }

    fn small_sweep() -> SweepResult {
        SweepResult {
            schema: SCHEMA.into(),
            command: "nocopy profile sweep".into(),
            measured_at: String::new(),
            machine: machine::describe_machine("here".into()),
            bytes: 256 << 20,
            rounds: 6,
            congestion_control: "cubic".into(),
            cells: vec![
                example_cell(1 << 10, true),
                example_cell(64 << 10, true),
                example_cell(64 << 10, false),
            ],
        }
    }

    #[test]
    fn each_group_has_a_table_with_complete_sums() {
        let text = sweep_text(&small_sweep());
        assert_eq!(text.matches("receive buffer autotuned").count(), 2, "{text}");
        assert!(!text.contains("fault"), "under one percent: {text}");
        let row = text.lines().find(|line| line.trim_start().starts_with("64 KiB")).unwrap();
        let numbers: Vec<f64> =
            row.split_whitespace().rev().take(8).map(|number| number.parse().unwrap()).collect();
        let [_sleeping, sum, rest, parts @ ..] = &numbers[..] else { panic!("{row}") };
        assert!(*rest > 0.0 && (sum - rest - parts.iter().sum::<f64>()).abs() < 0.5, "{row}");
    }

    #[test]
    fn a_sweep_survives_its_json() {
        let sweep = small_sweep();
        let read: SweepResult = serde_json::from_str(&sweep.to_json()).unwrap();
        assert_eq!(read.groups_by_settings().count(), 2);
        assert_eq!(read.cells[1].overhead_percent, sweep.cells[1].overhead_percent);
        assert!(!sweep.to_json().contains("null"));
    }
}
