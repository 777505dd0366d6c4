//! The headline: one line for each job, nocopy beside the other method, in 100 columns. Columns are as wide
//! for one line as for all, so that each can be printed as soon as it is measured.

use std::fmt::Write as _;

use crate::figure::Figure;
use crate::quantity;
use crate::result::{HeadlineNames, Report, Row};

/// The least width of a terminal.
pub const COLUMNS: usize = 100;

/// A note for runs in a private lab, printed on pages and in explanations, but not with every table.
pub const OF_VETH: &str = "veth has no zero-copy: AF_XDP runs in copy mode here, and the sender's processor does the receiving \
    softirq too.";

/// The widths of all columns except the last.
const WIDTHS: [usize; 4] = [26, 20, 21, 16];

pub(crate) const HEADER: [&str; 5] = ["what", "nocopy", "the other method", "ratio [interval]", "copies"];

/// The first line.
pub fn header_line() -> String {
    format_columns(HEADER.map(str::to_owned))
}

/// A line for each headline row among `rows`, with its baseline.
pub fn headline_text_lines(rows: &[Row]) -> Vec<String> {
    let of_headline = rows.iter().filter_map(|row| Some((row, row.headline.as_ref()?)));
    of_headline
        .map(|(row, names)| headline_cells(row, baseline_row(row, rows), names))
        .map(format_columns)
        .collect()
}

/// The whole table of a finished run; empty if it was no headline.
pub fn format_headline(report: &Report) -> String {
    let lines = headline_text_lines(&report.results);
    if lines.is_empty() { String::new() } else { header_line() + &lines.concat() + &headline_footer(report) }
}

/// Rounds, machine, and notes on this run.
pub fn headline_footer(report: &Report) -> String {
    let measured = format!("rounds: {} · {}", report.rounds(), report.machine.description());
    let mut text = format!("\n{}\n", wrap_text(&measured));
    for note in report.notes.iter().filter(|note| *note != OF_VETH) {
        let _ = writeln!(text, "{}", wrap_text(note));
    }
    text
}

/// The text, broken between words to fit the width, and within words that are longer.
pub fn wrap_text(text: &str) -> String {
    let mut lines = vec![String::new()];
    for part in text.split_whitespace().flat_map(split_long_word) {
        let line = lines.last_mut().expect("there is one from the start");
        match line.chars().count() {
            0 => line.push_str(&part),
            used if used + 1 + part.chars().count() <= COLUMNS => {
                line.push(' ');
                line.push_str(&part);
            }
            _ => lines.push(part),
        }
    }
    lines.join("\n")
}

/// A word in parts that fit a line.
fn split_long_word(word: &str) -> Vec<String> {
    let characters: Vec<char> = word.chars().collect();
    characters.chunks(COLUMNS).map(|part| part.iter().collect()).collect()
}

fn baseline_row<'a>(row: &Row, rows: &'a [Row]) -> Option<&'a Row> {
    let key = |row: &Row| (row.workload.clone(), row.series.clone(), row.sink.clone());
    rows.iter().find(|other| key(other) == key(row) && Some(&other.method) == row.baseline.as_ref())
}

pub(crate) fn headline_cells(row: &Row, other: Option<&Row>, names: &HeadlineNames) -> [String; 5] {
    let figure = |row: &Row, name: &str| match row.figure.value_in(row) {
        Some(value) => format!("{} {name}", figure_text(row.figure, value)),
        None => format!("– {name}"),
    };
    [
        names.what.clone(),
        figure(row, &names.nocopy),
        other.map_or_else(|| "–".into(), |other| figure(other, &names.other)),
        ratio_with_interval(row),
        row.evidence.map_or("–", |copies| copies.name()).into(),
    ]
}

fn figure_text(figure: Figure, value: f64) -> String {
    match figure {
        Figure::PacketsPerSecond | Figure::MessagesPerSecond => {
            format!("{}/s", quantity::short_number(value))
        }
        Figure::BytesPerSecond => format!("{:.1} Gbit/s", figure.displayed_value(value)),
        Figure::ReceiverCpuPerPacket | Figure::MachineCpuPerPacket => format!("{value:.0} ns"),
        Figure::ReceiverCpu => format!("{value:.1} %"),
        Figure::SenderCpuPerMegabyte
        | Figure::ReceiverCpuPerMegabyte
        | Figure::MedianLatency
        | Figure::TailLatency => format!("{value:.1} us"),
    }
}

fn ratio_with_interval(row: &Row) -> String {
    match (row.ratio, row.ratio_interval()) {
        (Some(ratio), Some((low, high))) => {
            format!("{} [{}–{}]", three_digits(ratio), three_digits(low), three_digits(high))
        }
        (Some(ratio), None) => three_digits(ratio),
        _ => "–".into(),
    }
}

/// Three digits, or more before the point.
fn three_digits(value: f64) -> String {
    let decimals = match value {
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

fn format_columns([what, nocopy, other, ratio, copies]: [String; 5]) -> String {
    let [a, b, c, d] = WIDTHS;
    format!("{what:<a$}  {nocopy:<b$}  {other:<c$}  {ratio:<d$}  {copies}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::CopyEvidence;
    use crate::sample;

    fn headline_row(row: Row) -> Row {
        let [what, nocopy, other] =
            ["messages one way, 64 bytes", "packet ring", "packet ring"].map(str::to_owned);
        Row { headline: Some(HeadlineNames { what, nocopy, other }), ..row }
    }

    #[test]
    fn a_line_has_both_methods_and_fits() {
        let xdp = sample::row_with_ratio("packet-ring", 12.5, sample::row_with_rate("capture", "xdp", 912e6));
        let xdp = Row { evidence: Some(CopyEvidence::ZeroCopy), ..headline_row(xdp) };
        let rows = [sample::row_with_rate("capture", "packet-ring", 73e6), xdp];
        let lines = headline_text_lines(&rows);
        assert_eq!(lines.len(), 1, "only rows of the headline have one");
        for words in ["912 M/s packet ring", "73.0 M/s packet ring", "12.5 [11.2–13.8]", "zero-copy"] {
            assert!(lines[0].contains(words), "{words}: {lines:?}");
        }
        let widest = lines.iter().chain([&header_line()]).map(|line| line.trim_end().chars().count()).max();
        assert!(widest.unwrap() <= COLUMNS, "{widest:?}");
    }

    #[test]
    fn large_bounds_have_no_decimals() {
        let row = sample::row_with_rate("capture", "xdp", 1e6);
        let row = Row { ratio: Some(2.05), ratio_low: Some(0.02), ratio_high: Some(1957.3), ..row };
        assert_eq!(ratio_with_interval(&row), "2.05 [0.02–1957]");
    }

    #[test]
    fn missing_figures_are_dashes() {
        let without_baseline = headline_row(sample::row_with_rate("capture", "xdp", 1e6));
        assert!(headline_text_lines(&[without_baseline])[0].contains("–"));
    }

    /// Names of processors have up to 48 characters, those of boards have no limit.
    #[test]
    fn a_footer_fits_for_any_processor_name() {
        let words = |length| "Processor ".repeat(20)[..length].to_owned();
        let names = [0, 12, 48, 130].into_iter().flat_map(|length| [words(length), "x".repeat(length)]);
        for name in names {
            let mut report = sample::report_with_rows(Vec::new());
            report.machine.processor = Some(name.clone());
            report.notes = vec!["A note.".into()];
            let footer = headline_footer(&report);
            let lines: Vec<_> = footer.lines().collect();
            assert!(lines.iter().all(|line| line.chars().count() <= COLUMNS), "{footer}");
            assert!(lines[0].is_empty() && lines[1].starts_with("rounds: "), "{footer}");
            assert_eq!(lines.last(), Some(&"A note."), "a note has lines of its own: {footer}");
            // Nothing of a name is lost, wherever it is broken.
            let letters = |text: &str| text.split_whitespace().collect::<String>();
            assert!(letters(&footer).contains(&letters(&name)), "{footer}");
        }
    }

    #[test]
    fn the_whole_text_fits() {
        let report =
            sample::report_with_rows(vec![headline_row(sample::row_with_rate("capture", "xdp", 1e6))]);
        let report = Report { notes: vec!["word ".repeat(100), OF_VETH.into()], ..report };
        let text = format_headline(&report);
        assert!(text.contains("rounds: 9 · private veth pair") && !text.contains("zero-copy:"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
        assert!(
            super::format_headline(&sample::report_with_rows(vec![sample::row_with_rate(
                "capture", "xdp", 1e6
            )]))
            .is_empty()
        );
    }
}
