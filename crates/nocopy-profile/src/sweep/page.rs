//! The page of a profile sweep: for each setting the throughput, and the time by category, for each length of
//! the program's buffer.

use maud::html;

use super::{CellFigures, MedianRange, SweepResult, settings_title};
use crate::category::TimeCategory;
use nocopy_report::chart::{self, ChartLine, ChartPoint, LineChart, StackedBar, StackedBarChart};
use nocopy_report::page::{
    fact_list, html_document, machine_facts, note_paragraphs, section_anchor, table_of_contents,
};
use nocopy_report::quantity::length_text;
use nocopy_report::table::Table;

pub fn html_page_of(sweep: &SweepResult) -> String {
    let groups: Vec<_> = sweep.groups_by_settings().collect();
    let titles: Vec<_> = groups.iter().map(|cells| settings_title(&cells[0])).collect();
    let failed: Vec<_> =
        sweep.failed_checks().map(|(cell, check)| failed_check_words(cell, &check.description())).collect();
    // The same order in all groups, so that a part looks the same everywhere.
    let is_there =
        |category: &TimeCategory| sweep.cells.iter().any(|cell| category_us_per_mb(cell, *category) > 0.0);
    let categories: Vec<_> = TimeCategory::ALL.into_iter().filter(is_there).collect();
    let body = html! {
        (fact_list(&machine_facts(&sweep.machine, &sweep.measured_at)))
        (fact_list(&[
            ("Amount", format!("{} by TCP ({}) in each transfer", amount_text(sweep.bytes), sweep.congestion_control)),
            ("Rounds", sweep.rounds.to_string()),
        ]))
        p { "To repeat it:" }
        pre { code { (sweep.command) } }
        @if !failed.is_empty() {
            h2 { "Checks that failed" }
            ul { @for words in &failed { li { (words) } } }
        }
        (table_of_contents(&titles))
        @for (index, cells) in groups.iter().enumerate() {
            section id=(section_anchor(index)) {
                h2 { (titles[index]) }
                div class="figures" {
                    (chart::chart_with_folded_table(&format!("{}-throughput", section_anchor(index)), &throughput_chart(cells), &throughput_table(cells)))
                    (chart::chart_with_folded_table(&format!("{}-time", section_anchor(index)), &time_chart(cells, &categories), &time_table(cells, &categories)))
                }
            }
        }
        h2 { "How to read it" }
        (note_paragraphs(HOW))
    };
    html_document("nocopy profile sweep", &body)
}

const HOW: [&str; 3] = [
    "Throughput: medians of the rounds, with their 95 % interval (of fewer than 6 rounds: all values), without profiling and with it, \
     in turns. Overhead: what profiling took of the throughput in the same round.",
    "Time: of the receiver's threads, and its share of the machine's softirqs and interrupts, for 10^6 bytes received. Sleeping is no \
     processor time, so it is in the table only.",
    "The receiver calls recv with MSG_WAITALL; 'fixed' and 'autotuned' are about the socket's own buffer.",
];

fn amount_text(bytes: u64) -> String {
    usize::try_from(bytes).map_or_else(|_| format!("{bytes} B"), length_text)
}

fn failed_check_words(cell: &CellFigures, check: &str) -> String {
    format!("{}, buffer {}: {check}", settings_title(cell), length_text(cell.buffer_bytes))
}

fn category_us_per_mb(cell: &CellFigures, category: TimeCategory) -> f64 {
    let of_category = cell.figures.time.categories.iter().filter(|time| time.category == category);
    of_category.filter_map(|time| time.us_per_mb).sum()
}

fn throughput_chart(cells: &[CellFigures]) -> LineChart {
    let line = |name: &str, range: fn(&CellFigures) -> MedianRange| ChartLine {
        name: name.into(),
        values: cells
            .iter()
            .map(|cell| (cell.buffer_bytes as u64, range(cell)))
            .map(|(length_bytes, MedianRange { median, low, high })| ChartPoint {
                length_bytes,
                value: median,
                interval: Some((low, high)),
            })
            .collect(),
    };
    LineChart {
        title: "Gbit/s, over the length of the program's buffer, more is better".into(),
        lines: vec![
            line("without profiling", |cell| cell.unprofiled_gbit_per_s),
            line("with profiling", |cell| cell.profiled_gbit_per_s),
        ],
    }
}

fn throughput_table(cells: &[CellFigures]) -> Table {
    let text = |MedianRange { median, low, high }: MedianRange| format!("{median:.2} [{low:.2}–{high:.2}]");
    let row = |cell: &CellFigures| {
        let ranges = [cell.unprofiled_gbit_per_s, cell.profiled_gbit_per_s, cell.overhead_percent].map(text);
        std::iter::once(length_text(cell.buffer_bytes)).chain(ranges).collect()
    };
    let header = ["buffer", "Gbit/s unprofiled", "Gbit/s profiled", "overhead %"];
    Table::new(&header, 1..4, cells.iter().map(row).collect())
}

fn time_chart(cells: &[CellFigures], categories: &[TimeCategory]) -> StackedBarChart {
    let bar = |cell: &CellFigures| StackedBar {
        name: length_text(cell.buffer_bytes),
        amounts: categories.iter().map(|&category| category_us_per_mb(cell, category)).collect(),
    };
    StackedBarChart {
        title: "Processor time by category, us per MB, less is better".into(),
        parts: categories.iter().map(|category| category.long_name().into()).collect(),
        bars: cells.iter().map(bar).collect(),
    }
}

fn time_table(cells: &[CellFigures], categories: &[TimeCategory]) -> Table {
    let row = |cell: &CellFigures| {
        let times: Vec<f64> = categories.iter().map(|&category| category_us_per_mb(cell, category)).collect();
        let last = [times.iter().sum(), cell.figures.time.sleeping.us_per_mb.unwrap_or(0.0)];
        let numbers = times.iter().copied().chain(last).map(|time| format!("{time:.1}"));
        std::iter::once(length_text(cell.buffer_bytes)).chain(numbers).collect()
    };
    let names = categories.iter().map(|category| category.long_name());
    let header: Vec<_> = ["buffer"].into_iter().chain(names).chain(["sum", "sleeping"]).collect();
    Table::new(&header, 1..header.len(), cells.iter().map(row).collect())
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::SCHEMA;
    use super::*;
    use crate::figures::Figures;
    use crate::fixture::bulk_receive_measurement;
    use nocopy_report::machine;
    use nocopy_report::page::reading::{assert_page_is_valid, cell_texts, chart_count};

    pub(crate) fn example_sweep() -> SweepResult {
        let range = |median: f64| MedianRange { median, low: median * 0.9, high: median * 1.1 };
        let cell = |power: u32, receive_buffer_bytes, gro| CellFigures {
            buffer_bytes: 1 << power,
            receive_buffer_bytes,
            gro,
            unprofiled_gbit_per_s: range(f64::from(power)),
            profiled_gbit_per_s: range(f64::from(power) * 0.96),
            overhead_percent: range(4.0),
            figures: Figures::from_measurement(&bulk_receive_measurement()),
            checks: Vec::new(),
        };
        let settings = [(None, true), (None, false), (Some(64 << 10), true), (Some(64 << 10), false)];
        let cells =
            settings.into_iter().flat_map(|(fixed, gro)| (10..=22).map(move |power| cell(power, fixed, gro)));
        SweepResult {
            schema: SCHEMA.into(),
            command: "nocopy profile sweep --bytes 268435456".into(),
            measured_at: "2026-01-31T12:00:00Z".into(),
            machine: machine::describe_machine("private veth pair".into()),
            bytes: 256 << 20,
            rounds: 6,
            congestion_control: "cubic".into(),
            cells: cells.collect(),
        }
    }

    #[test]
    fn the_page_shows_throughput_and_time_of_each_setting() {
        let page = html_page_of(&example_sweep());
        assert_page_is_valid(&page);
        assert_eq!(chart_count(&page), 8);
        let cells = cell_texts(&page);
        for expected in [
            "64 KiB",
            "10.00 [9.00–11.00]",
            "15.36 [13.82–16.90]",
            "4.00 [3.60–4.40]",
            "copy to user",
            "sleeping",
        ] {
            assert!(cells.contains(expected), "{expected}: {cells:?}");
        }
        for expected in
            ["receive buffer fixed at 64 KiB, GRO off", "receive buffer autotuned, GRO on", "256 MiB"]
        {
            assert!(page.contains(expected), "{expected}");
        }
        assert!(!page.contains("Checks that failed"));
        assert_page_is_valid(&html_page_of(&SweepResult { cells: Vec::new(), ..example_sweep() }));
        let read: SweepResult = serde_json::from_str(&example_sweep().to_json()).unwrap();
        assert_eq!(html_page_of(&read), page);
    }
}
