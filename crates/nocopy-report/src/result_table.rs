//! The results as text: a table for each series, and below them notes on how to read them.

use std::fmt::Write as _;

use crate::figure::Figure;
use crate::result::{Report, Row, Section, UNCERTAIN};
use crate::statistics::{CONFIDENCE, ENOUGH};
use crate::table::Table;
use crate::{Failure, founding, headline_table, print};

pub fn print_report(report: &Report) -> Result<(), Failure> {
    for text in [founding::format_systems(report), headline_table::format_headline(report)] {
        if !text.is_empty() {
            return print::print_text(&text);
        }
    }
    let mut text = String::new();
    let mut causes = NumberedCauses::default();
    for section in report.sections() {
        let _ = writeln!(text, "\n{} · ratio: {}", section_heading(section), section.figure().name());
        text.push_str(&section_table(section, &mut causes).text());
    }
    write_notes(&mut text, report, &causes);
    print::print_text(&text)
}

/// The common properties of a section's rows.
pub fn section_heading(section: Section<'_>) -> String {
    let sink = section.sink().map(|sink| format!(" · into: {sink}")).unwrap_or_default();
    format!("{}{sink}", section.title())
}

/// Causes of copies, which are sentences; the table has room only for their numbers.
#[derive(Debug, Default)]
pub struct NumberedCauses(Vec<String>);

impl NumberedCauses {
    /// The causes, each with its number in front.
    pub fn numbered_lines(&self) -> impl Iterator<Item = String> {
        self.0.iter().enumerate().map(|(index, cause)| format!("({}) {cause}", index + 1))
    }

    fn number_of(&mut self, cause: &str) -> usize {
        let known = self.0.iter().position(|other| other == cause);
        known.unwrap_or_else(|| {
            self.0.push(cause.into());
            self.0.len() - 1
        }) + 1
    }
}

pub fn section_table(section: Section<'_>, causes: &mut NumberedCauses) -> Table {
    let (rows, title) = (section.rows, section.title());
    let is_shown =
        |(head, cell): &&Column| !SPARSE.contains(head) || rows.iter().any(|row| cell(row).is_some());
    let columns: Vec<_> =
        columns_for_figure(section.figure()).iter().chain([&USER_COPIES]).filter(is_shown).collect();
    let heads = columns.iter().map(|(head, _)| *head);
    let header: Vec<_> = ["method"].into_iter().chain(heads).chain(["ratio [low–high]", "copies"]).collect();
    let cells = |row: &Row| {
        let figures = columns.iter().map(|(_, cell)| cell(row).unwrap_or_else(missing_value_text));
        let against = row
            .ratio
            .and(baseline_label(row, title))
            .map(|baseline| format!(" × {baseline}"))
            .unwrap_or_default();
        let mark = if row.is_uncertain() { " *" } else { "" };
        let last = [ratio_text(row) + &against + mark, evidence_text(row, causes)];
        std::iter::once(row_label(row, title)).chain(figures).chain(last).collect()
    };
    Table::new(&header, 1..header.len() - 2, rows.iter().map(cells).collect())
}

/// A column of figures: its head, and its cell in rows that have the figure.
type Column = (&'static str, fn(&Row) -> Option<String>);

fn columns_for_figure(figure: Figure) -> &'static [Column] {
    match figure {
        Figure::MedianLatency | Figure::TailLatency => &LATENCY_COLUMNS,
        Figure::BytesPerSecond | Figure::SenderCpuPerMegabyte | Figure::ReceiverCpuPerMegabyte => {
            &STREAM_COLUMNS
        }
        Figure::MessagesPerSecond => &MESSAGE_COLUMNS,
        _ => &PACKET_COLUMNS,
    }
}

const PACKET_COLUMNS: [Column; 6] = [
    ("packets/s", |row| Some(rate_text(row.packets_per_s?, row.lost_percent))),
    ("Gbit/s", |row| number_text(row.gbit_per_s, 2)),
    ("ns/packet", |row| number_text(row.ns_per_packet, 0)),
    ("sender", |row| number_text(row.sender_cpu_ns_per_packet, 0)),
    ("receiver", |row| Some(receiver_text(row))),
    ("machine", |row| number_text(row.machine_cpu_ns_per_packet, 0)),
];
const MESSAGE_COLUMNS: [Column; 6] = [
    ("messages/s", |row| Some(rate_text(row.messages_per_s?, row.lost_percent))),
    ("Gbit/s", |row| number_text(row.gbit_per_s, 2)),
    ("ns/message", |row| number_text(row.ns_per_message, 0)),
    ("sender", |row| number_text(row.sender_cpu_ns_per_message, 0)),
    ("receiver", |row| number_text(row.receiver_cpu_ns_per_message, 0)),
    ("machine", |row| number_text(row.machine_cpu_ns_per_message, 0)),
];
const STREAM_COLUMNS: [Column; 7] = [
    ("Gbit/s", |row| number_text(row.gbit_per_s, 2)),
    ("sender", |row| number_text(row.sender_cpu_us_per_mb, 0)),
    ("proxy", |row| number_text(row.proxy_cpu_us_per_mb, 0)),
    ("receiver", |row| number_text(row.receiver_cpu_us_per_mb, 0)),
    ("machine", |row| number_text(row.machine_cpu_us_per_mb, 0)),
    ("mapped", |row| row.mapped_fraction.map(|fraction| format!("{:.1} %", fraction * 100.0))),
    ("MiB", |row| number_text(row.receiver_memory_mib, 1)),
];
const LATENCY_COLUMNS: [Column; 5] = [
    ("p50 us", |row| number_text(row.p50_us, 1)),
    ("p99 us", |row| number_text(row.p99_us, 1)),
    ("p99.9 us", |row| number_text(row.p99_9_us, 1)),
    ("mean us", |row| number_text(row.mean_us, 1)),
    ("lost", |row| row.lost.map(|lost| lost.to_string())),
];
const USER_COPIES: Column = ("user copies", |row| number_text(row.receiver_user_copies, 2));

/// Columns that a table has only if a row has the figure.
const SPARSE: [&str; 4] = ["proxy", "mapped", "MiB", USER_COPIES.0];

/// The label of a row in its section.
pub fn row_label(row: &Row, title: &str) -> String {
    method_label(&row.method, row.variant.as_deref(), title)
}

/// Method and variant, without the words of the variant that are in the section's title.
fn method_label(method: &str, variant: Option<&str>, title: &str) -> String {
    let words =
        variant.unwrap_or_default().split(' ').filter(|word| !word.is_empty() && !title.contains(word));
    std::iter::once(method).chain(words).collect::<Vec<_>>().join(" ")
}

/// The cost of a packet for the receiving threads and, if there are several, how busy the busiest was.
fn receiver_text(row: &Row) -> String {
    let cost = number_text(row.receiver_cpu_ns_per_packet, 0).unwrap_or_else(missing_value_text);
    match (row.receivers, row.receiver_cpu_percent) {
        (Some(_), Some(percent)) => format!("{cost} ({percent:.0} % each)"),
        _ => cost,
    }
}

fn rate_text(rate: f64, lost_percent: Option<f64>) -> String {
    let rate = match rate {
        1e6.. => format!("{:.2} M", rate / 1e6),
        1e4.. => format!("{:.0} k", rate / 1e3),
        _ => format!("{rate:.0}"),
    };
    rate + &lost_text(lost_percent)
}

/// The text behind a rate about lost packets; empty if none were lost.
pub fn lost_text(lost_percent: Option<f64>) -> String {
    let lost = lost_percent.filter(|percent| *percent >= 0.05);
    lost.map_or_else(String::new, |percent| format!(" ({percent:.1} % lost)"))
}

/// The baseline of a row, by its name in the table.
pub fn baseline_label(row: &Row, title: &str) -> Option<String> {
    row.baseline.as_deref().map(|baseline| method_label(baseline, row.baseline_variant.as_deref(), title))
}

/// The ratio to the baseline, with its interval.
pub fn ratio_text(row: &Row) -> String {
    match (row.ratio, row.ratio_interval()) {
        (Some(ratio), Some((low, high))) => format!("{ratio:.2} [{low:.2}–{high:.2}]"),
        (Some(ratio), None) => format!("{ratio:.2}"),
        _ => missing_value_text(),
    }
}

pub fn evidence_text(row: &Row, causes: &mut NumberedCauses) -> String {
    let Some(copies) = row.evidence else { return missing_value_text() };
    let word = copies.name();
    match &row.cause {
        Some(cause) => format!("{word} ({})", causes.number_of(cause)),
        None => word.into(),
    }
}

fn number_text(value: Option<f64>, digits: usize) -> Option<String> {
    value.map(|value| format!("{value:.digits$}"))
}

fn missing_value_text() -> String {
    "–".into()
}

fn write_notes(text: &mut String, report: &Report, causes: &NumberedCauses) {
    text.push('\n');
    for line in causes.numbered_lines() {
        let _ = writeln!(text, "{line}");
    }
    let rounds = report.rounds();
    let _ = writeln!(text, "Medians of {rounds} rounds; 'nocopy bench --explain' says how it is measured.");
    let last = [uncertain_rows_note(report), own_choices_note(report)];
    for line in report.notes.iter().chain([&machine_note(report)]).chain(last.iter().flatten()) {
        let _ = writeln!(text, "{line}");
    }
}

/// Which rows are marked, and what was seen that may be the cause. `None` if there are none.
fn uncertain_rows_note(report: &Report) -> Option<String> {
    let marked = report.results.iter().filter(|row| row.is_uncertain());
    let sentences: Vec<String> =
        marked.map(|row| format!("{}: {}", row_title(row), disturbances_text(row))).collect();
    let intro = format!(
        "* the ends of an interval are a factor of {UNCERTAIN} or more apart, so the row says little"
    );
    (!sentences.is_empty()).then(|| format!("{intro}: {}", sentences.join("; ")))
}

/// What disturbed a row.
fn disturbances_text(row: &Row) -> String {
    let lost = row.lost_percent.filter(|percent| *percent >= 0.05).map(|it| format!("{it:.1} % lost"));
    let retransmitted = row.segments_retransmitted.filter(|count| *count > 0);
    let retransmitted = retransmitted.map(|it| format!("{it} segments retransmitted"));
    let stolen = row.stolen_percent.filter(|percent| *percent >= 1.0);
    let stolen = stolen.map(|it| format!("{it:.0} % of a round's processor time taken by another machine"));
    let seen: Vec<String> = [lost, retransmitted, stolen].into_iter().flatten().collect();
    if seen.is_empty() { "no cause seen".into() } else { seen.join(", ") }
}

/// The series, figure and method of a row, in a sentence.
fn row_title(row: &Row) -> String {
    let sink = row.sink.as_ref().map(|sink| format!(" into {sink}")).unwrap_or_default();
    format!("{}{sink}, {}: {}", row.series, row.figure.name(), row_label(row, &row.series))
}

/// Methods that the library chose by itself.
const OWN_CHOICES: [&str; 2] = ["auto", "default"];

/// An own choice below this part of the best by hand is named.
const GOOD_CHOICE: f64 = 0.95;

/// How many of the library's own choices are worse than what they are compared with, and which. `None` if
/// there are none.
fn own_choices_note(report: &Report) -> Option<String> {
    let mut worst: Vec<&Row> = Vec::new();
    let is_own = |row: &&Row| OWN_CHOICES.contains(&row.method.as_str()) && row.ratio.is_some();
    let of = |row: &Row| {
        (row.series.clone(), row.sink.clone(), row.figure, row.method.clone(), row.variant.clone())
    };
    for row in report.results.iter().filter(is_own) {
        match worst.iter_mut().find(|other| of(other) == of(row)) {
            Some(other) if row.ratio < other.ratio => *other = row,
            Some(_) => {}
            None => worst.push(row),
        }
    }
    let below: Vec<&Row> =
        worst.iter().copied().filter(|row| row.ratio.is_some_and(|ratio| ratio < GOOD_CHOICE)).collect();
    // Compared with several, one is enough.
    let is_below = |row: &Row| row.ratio_interval().is_some_and(|(_, high)| high < GOOD_CHOICE);
    let is_surely = |choice: &&&Row| {
        report.results.iter().filter(is_own).any(|row| of(row) == of(choice) && is_below(row))
    };
    let surely = below.iter().filter(is_surely).count();
    let named = below.iter().map(|row| {
        let against = row.baseline.as_deref().unwrap_or_default();
        format!("{} {} × {against}", row_title(row), ratio_text(row))
    });
    let which = named.collect::<Vec<_>>().join("; ");
    let detail = if below.is_empty() { "" } else { &format!(", {surely} by the whole interval: {which}") };
    (!worst.is_empty()).then(|| {
        format!(
            "{} of {} own choices ({}) are below {GOOD_CHOICE} of the best by hand{detail}",
            below.len(),
            worst.len(),
            OWN_CHOICES.join(", "),
        )
    })
}

/// How to read the tables.
pub fn report_notes(report: &Report) -> Vec<String> {
    let how = format!("Medians of {} rounds. {}", report.rounds(), column_explanation());
    let last = [uncertain_rows_note(report), own_choices_note(report)].into_iter().flatten();
    let notes = report.notes.iter().cloned().chain([machine_note(report)]).chain(last);
    std::iter::once(how).chain(notes).collect()
}

/// The meaning of the columns.
pub fn column_explanation() -> String {
    format!(
        "Rates are counted where packets arrive. sender, receiver: CPU ns per packet (or message) of that thread (of several: and \
         how much of a processor the busiest uses); machine: of all processors, softirqs included. ratio: times better than the \
         baseline in the same round, with its {:.0} % confidence interval (all values, when there are fewer than {ENOUGH} rounds).",
        CONFIDENCE * 100.0
    )
}

fn machine_note(report: &Report) -> String {
    let shared = if report.machine.virtual_machine { "others share the real machine; " } else { "" };
    format!("{} · {shared}compare ratios, not times of different hours.", report.machine.description())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn rates_and_losses_are_readable() {
        assert_eq!(rate_text(4_412_345.0, Some(0.01)), "4.41 M");
        assert_eq!(rate_text(913_000.0, Some(31.4)), "913 k (31.4 % lost)");
        assert_eq!(rate_text(842.4, None), "842");
    }

    #[test]
    fn own_choices_below_the_best_are_counted_and_named() {
        let choice = |ratio, baseline| {
            sample::row_with_ratio(baseline, ratio, sample::row_with_rate("udp-send", "auto", 1e6))
        };
        let report = |rows| sample::report_with_rows(rows);
        assert_eq!(own_choices_note(&report(vec![sample::row_with_rate("udp-send", "gso", 1e6)])), None);
        let all_good = own_choices_note(&report(vec![choice(0.96, "gso")])).unwrap();
        assert_eq!(all_good, "0 of 1 own choices (auto, default) are below 0.95 of the best by hand");
        // Compared with two, it is the worse that counts.
        let one = own_choices_note(&report(vec![choice(1.2, "socket"), choice(0.8, "gso")])).unwrap();
        assert!(one.starts_with("1 of 1 own choices"), "{one}");
        assert!(
            one.contains("1 by the whole interval") && one.ends_with("auto 0.80 [0.72–0.88] × gso"),
            "{one}"
        );
        let either = own_choices_note(&report(vec![
            choice(0.85, "socket"),
            Row { ratio_high: Some(1.1), ..choice(0.8, "gso") },
        ]));
        assert!(either.unwrap().contains("1 by the whole interval"));
        let unsure = own_choices_note(&report(vec![choice(0.9, "gso")])).unwrap();
        assert!(unsure.contains("0 by the whole interval"), "{unsure}");
    }

    #[test]
    fn uncertain_rows_are_marked_with_disturbances() {
        let sure = sample::row_with_ratio("recv", 1.0, sample::row_with_rate("tcp", "auto", 1e6));
        let wide = Row { ratio_low: Some(0.3), ratio_high: Some(1.2), ..sure.clone() };
        let disturbed = Row { segments_retransmitted: Some(7), stolen_percent: Some(12.0), ..wide.clone() };
        assert_eq!(uncertain_rows_note(&sample::report_with_rows(vec![sure.clone()])), None);
        let text =
            uncertain_rows_note(&sample::report_with_rows(vec![sure, wide.clone(), disturbed])).unwrap();
        assert!(
            text.contains("tcp, packets/s: auto: no cause seen; tcp, packets/s: auto: 7 segments"),
            "{text}"
        );
        assert!(
            text.ends_with("retransmitted, 12 % of a round's processor time taken by another machine"),
            "{text}"
        );
        let report = sample::report_with_rows(vec![wide]);
        let table = section_table(report.sections().next().unwrap(), &mut NumberedCauses::default()).text();
        assert!(table.contains("1.00 [0.30–1.20] × recv *"), "{table}");
    }

    #[test]
    fn the_same_cause_has_one_number() {
        let mut causes = NumberedCauses::default();
        assert_eq!((causes.number_of("a"), causes.number_of("b"), causes.number_of("a")), (1, 2, 1));
    }

    #[test]
    fn a_section_is_aligned() {
        let because = |row| Row { cause: Some("because".into()), ..row };
        let baseline = because(sample::row_with_rate("capture", "packet-ring", 1.9e6));
        let xdp = because(sample::row_with_rate("capture", "xdp", 4.4e6));
        let report =
            sample::report_with_rows(vec![baseline, sample::row_with_ratio("packet-ring", 2.3, xdp)]);
        let section = report.sections().next().unwrap();
        let text = section_table(section, &mut NumberedCauses::default()).text();
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert!(lines[1].contains("2.30 [2.07–2.53] × packet-ring"), "{text}");
        let columns = lines.iter().map(|line| line.chars().position(|c| c == '–'));
        assert!(columns.clone().all(|column| column == columns.clone().next().unwrap()), "{text}");
        assert!(lines.iter().all(|line| line.contains("copied (1)")), "{text}");
    }
}
