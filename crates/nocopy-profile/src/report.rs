//! The report of one window: the JSON schema `nocopy.profile/3` (docs/profile.md), and tables for a reader.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::advice::{self, Advice};
use super::category::TimeCategory;
use super::check;
use super::figures::{CallKind, CategoryTime, Figures, LATE_SECONDS, TimeFigures};
use super::measured::WindowMeasurement;
use nocopy_report::Outcome;
use nocopy_report::check::CountCheck;
use nocopy_report::machine;
use nocopy_report::quantity::short_number;
use nocopy_report::result::Machine;
use nocopy_report::table::Table;

/// Changes when a field is removed or changes its meaning.
const SCHEMA: &str = "nocopy.profile/3";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub schema: String,
    pub machine: Machine,
    /// The profiled target, in words.
    pub target: String,
    #[serde(flatten)]
    pub figures: Figures,
    pub checks: Vec<CountCheck>,
    pub advice: Vec<Advice>,
    /// Quantities that could not be measured here, and why.
    pub notes: Vec<String>,
}

impl Report {
    pub(crate) fn from_measurement(target: String, measured: &WindowMeasurement) -> Self {
        let figures = Figures::from_measurement(measured);
        let absent =
            measured.absent.iter().map(|absent| format!("{}: not known: {}", absent.what, absent.why));
        Self {
            schema: SCHEMA.into(),
            machine: machine::describe_machine("as it is".into()),
            target,
            checks: check::all_checks(measured, &figures),
            advice: advice::all_advice(measured, &figures),
            figures,
            notes: absent.collect(),
        }
    }

    /// Negative if no bytes were moved, or a check failed.
    pub(crate) fn outcome(&self) -> Outcome {
        let is_silent = self.figures.received_bytes + self.figures.sent_bytes == 0;
        match is_silent || self.checks.iter().any(|check| !check.passed) {
            true => Outcome::Negative,
            false => Outcome::Positive,
        }
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and strings are JSON") + "\n"
    }

    pub(crate) fn to_text(&self) -> String {
        let mut text = self.headline();
        for part in [
            time_table(&self.figures.time),
            calls_table(&self.figures),
            self.fact_table(),
            labelled_lines("check", self.checks.iter().map(CountCheck::description)),
            labelled_lines(
                "advice",
                self.advice.iter().map(|piece| format!("{} ({})", piece.text, piece.evidence)),
            ),
            labelled_lines("note", self.notes.iter().cloned()),
            labelled_lines("machine", [self.machine.description()]),
        ] {
            if !part.is_empty() {
                let _ = write!(text, "\n{part}");
            }
        }
        text
    }

    fn headline(&self) -> String {
        let Figures { seconds, threads, received_bytes, sent_bytes, .. } = &self.figures;
        let bytes = |word: &str, bytes: u64| {
            let gbit_per_s = bytes as f64 * 8e-9 / seconds.max(f64::MIN_POSITIVE);
            format!(" · {word} {}B ({gbit_per_s:.2} Gbit/s)", with_prefix_space(short_number(bytes as f64)))
        };
        let both = bytes("received", *received_bytes) + &bytes("sent", *sent_bytes);
        format!("{} · {seconds:.3} s · {threads} threads{both}\n", self.target)
    }

    fn fact_table(&self) -> String {
        let figures = &self.figures;
        let mut facts = Vec::new();
        let mut add = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                facts.push(vec![name.to_owned(), value]);
            }
        };
        add("processor time", Some(processor_time_text(&figures.time)));
        add("softirqs", Some(softirq_text(&figures.time)));
        add("copies", copies_text(figures));
        for copy in &figures.copies.others {
            add("", Some(format!("{}: {} ({} samples)", copy.function, copy.description, copy.samples)));
        }
        add("receive queue", queue_text(figures));
        add("tcp", tcp_text(figures));
        for drops in &figures.drops {
            let whose = if drops.of_target { "of its sockets" } else { "of other programs on this machine" };
            add("dropped", Some(format!("{} packets, {}, {whose}", drops.packets, drops.reason)));
        }
        add("overhead", Some(overhead_text(figures)));
        Table::new(&[], 0..0, facts).text()
    }
}

fn time_table(time: &TimeFigures) -> String {
    let mut rows = Vec::new();
    for part in &time.categories {
        let CategoryTime { category, seconds, error_seconds, share, us_per_mb, .. } = part;
        rows.push(vec![
            category.long_name().to_owned(),
            format!("{seconds:.3}"),
            format!("{error_seconds:.3}"),
            format!("{:.1} %", 100.0 * share),
            number_or_dash(*us_per_mb, 2),
            top_functions_text(part),
        ]);
    }
    let sum: f64 = time.categories.iter().map(|part| part.seconds).sum();
    let sum_per_mb = time.categories.iter().filter_map(|part| part.us_per_mb).reduce(|sum, more| sum + more);
    rows.push(vec![
        "together".into(),
        format!("{sum:.3}"),
        String::new(),
        String::new(),
        number_or_dash(sum_per_mb, 2),
    ]);
    let missed = (time.accounted_seconds - time.sampled_seconds).max(0.0);
    rows.push(vec!["missed by samples".into(), format!("{missed:.3}")]);
    for (name, off) in [("sleeping in calls", time.sleeping), ("runnable, not running", time.runnable)] {
        let seconds = format!("{:.3}", off.seconds);
        rows.push(vec![name.into(), seconds, String::new(), String::new(), number_or_dash(off.us_per_mb, 2)]);
    }
    Table::new(&["category", "seconds", "±", "share", "us/MB", "functions"], 1..5, rows).text()
}

/// The functions with most samples; for the category `other` all known ones, so that nothing is hidden in it.
fn top_functions_text(time: &CategoryTime) -> String {
    let count = if time.category == TimeCategory::Other { usize::MAX } else { 2 };
    let percent = |samples: u64| 100.0 * samples as f64 / time.samples.max(1) as f64;
    let named = time.functions.iter().take(count);
    let words = named.map(|function| format!("{} {:.0} %", function.name, percent(function.samples)));
    words.collect::<Vec<_>>().join(", ")
}

fn calls_table(figures: &Figures) -> String {
    if figures.calls.is_empty() {
        return String::new();
    }
    let mut rows = Vec::new();
    for calls in &figures.calls {
        let name = match calls.kind {
            CallKind::Receive => "receive",
            CallKind::Send => "send",
            CallKind::Poll => "poll",
        };
        rows.push(vec![
            name.to_owned(),
            calls.count.to_string(),
            short_number(calls.bytes_per_call.round()),
            format!("{:.2}", calls.us_per_call),
            number_or_dash(calls.calls_per_mb, 1),
            format!("{:.3}", calls.inside_seconds),
            format!("{:.3}", calls.sleeping_seconds),
        ]);
    }
    Table::new(&["calls", "count", "bytes each", "us each", "per MB", "s inside", "s sleeping"], 1..7, rows)
        .text()
}

fn processor_time_text(time: &TimeFigures) -> String {
    let TimeFigures {
        sampled_seconds, accounted_seconds, error_seconds, switches, period_us, samples, ..
    } = time;
    let may_miss = time.late_seconds + time.stalled_seconds;
    let without = match time.samples_without_stack {
        0 => String::new(),
        count => format!(", {count} without a stack"),
    };
    format!(
        "{sampled_seconds:.3} s of its threads by samples ± {error_seconds:.3}, {accounted_seconds:.3} as accounted; \
         samples may miss {may_miss:.3}, up to {:.0} us of each of {switches} turns on a processor ({samples} samples, one each \
         {period_us:.0} us{without})",
        1e6 * LATE_SECONDS
    )
}

fn softirq_text(time: &TimeFigures) -> String {
    format!(
        "{:.3} s with device interrupts on all processors; accounted here: {:.1} %, its share of the machine's \
         packets",
        time.machine_seconds,
        100.0 * time.machine_share
    )
}

fn copies_text(figures: &Figures) -> Option<String> {
    let received = figures.copies.received.as_ref().map(|received| {
        let bytes = [
            ("by TCP's receives", received.bytes.to_user_bytes),
            ("by UDP's", received.bytes.udp_bytes),
            ("mapped, not copied", received.bytes.mapped_bytes),
            ("only peeked at", received.bytes.peeked_bytes),
            ("discarded", received.bytes.discarded_bytes),
        ];
        let bytes = bytes.into_iter().filter(|(_, bytes)| *bytes > 0);
        let words: Vec<_> = bytes
            .map(|(what, bytes)| format!("{}B {what}", with_prefix_space(short_number(bytes as f64))))
            .collect();
        format!("{:.2} a byte received ({})", received.per_byte, words.join(", "))
    });
    let sent = figures.copies.sent.as_ref().map(|sent| {
        let seen =
            format!("{} of {} samples inside the calls are in the copy", sent.copying_samples, sent.samples);
        match sent.per_byte {
            Some(per_byte) => format!("{per_byte:.2} a byte sent (inferred: {seen})"),
            None => format!("unknown of bytes sent ({seen})"),
        }
    });
    let words: Vec<_> = [received, sent].into_iter().flatten().collect();
    (!words.is_empty()).then(|| words.join("; "))
}

fn queue_text(figures: &Figures) -> Option<String> {
    let queue = figures.queue.as_ref()?;
    Some(format!(
        "{}B in {:.1} packets when a receive begins, {}B and {} packets at most; {:.1} % of the bytes lay ready, the \
         others were waited for",
        with_prefix_space(short_number(queue.depth_mean_bytes.round())),
        queue.depth_mean_packets,
        with_prefix_space(short_number(queue.depth_max_bytes as f64)),
        queue.depth_max_packets,
        100.0 * queue.queued_share
    ))
}

fn tcp_text(figures: &Figures) -> Option<String> {
    let tcp = figures.tcp.as_ref()?;
    let mut line = format!("{} sockets, {} segments in", tcp.sockets, short_number(tcp.segments_in as f64));
    let mut add = |what: Option<String>| {
        if let Some(what) = what {
            let _ = write!(line, ", {what}");
        }
    };
    add(tcp.segments_per_packet.map(|joined| format!("{joined:.1} a packet")));
    add(tcp.backlog_share.map(|share| format!("{:.1} % of packets by the backlog", 100.0 * share)));
    add(tcp.acks_per_segment.map(|acks| format!("{acks:.3} ACKs a segment")));
    add(tcp
        .window_mean_bytes
        .map(|bytes| format!("window {}B on average", with_prefix_space(short_number(bytes.round())))));
    let fixed = if tcp.receive_buffer_fixed { "fixed" } else { "the kernel's choice" };
    add(Some(format!(
        "receive buffer {}B, {fixed}",
        with_prefix_space(short_number(tcp.receive_buffer_bytes as f64))
    )));
    add((tcp.segments_retransmitted > 0)
        .then(|| format!("{} segments retransmitted", tcp.segments_retransmitted)));
    add((tcp.lost_sockets > 0).then(|| {
        format!(
            "{} sockets lost, not or not wholly in these figures: there is room for 16,384 at a time",
            tcp.lost_sockets
        )
    }));
    Some(line)
}

fn overhead_text(figures: &Figures) -> String {
    let overhead = &figures.overhead;
    let share = overhead.share.map(|share| format!(", {:.1} % of its processor time", 100.0 * share));
    let lost = match overhead.lost_events {
        0 => String::new(),
        count => format!(", {count} events lost: the counts are too low"),
    };
    format!(
        "{:.3} s in this measurement's programs{}, {} runs{lost}",
        overhead.seconds,
        share.unwrap_or_default(),
        short_number(overhead.program_runs as f64)
    )
}

fn labelled_lines(name: &str, lines: impl IntoIterator<Item = String>) -> String {
    lines.into_iter().fold(String::new(), |text, line| format!("{text}{name}: {line}\n"))
}

pub(crate) fn number_or_dash(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "–".into(), |value| format!("{value:.digits$}"))
}

/// A number and a space, if its prefix has none.
fn with_prefix_space(number: String) -> String {
    if number.contains(' ') { number } else { number + " " }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{bulk_receive_measurement, sampled_stack};
    use crate::measured::{SampleOwner, UnmeasuredQuantity};

    fn example_report(measured: &WindowMeasurement) -> Report {
        Report::from_measurement("process 7 (reader)".into(), measured)
    }

    #[test]
    fn json_round_trips_the_report() {
        let report = example_report(&bulk_receive_measurement());
        let read: Report = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(read.checks, report.checks);
        assert_eq!((read.schema.as_str(), &read.target), (SCHEMA, &report.target));
        assert_eq!(read.figures.time.categories.len(), report.figures.time.categories.len());
        assert!(!report.to_json().contains("null"));
    }

    #[test]
    fn text_lists_every_category_and_the_rest() {
        let mut measured = bulk_receive_measurement();
        measured.absent.push(UnmeasuredQuantity { what: "drops", why: "no tracepoint".into() });
        measured.stacks.push(sampled_stack(SampleOwner::Elsewhere, "ext4_write vfs_write", 100));
        measured.stacks.push(sampled_stack(SampleOwner::Elsewhere, "btrfs_write vfs_write", 50));
        let text = example_report(&measured).to_text();
        for time in &example_report(&measured).figures.time.categories {
            assert!(text.contains(time.category.long_name()), "{text}");
        }
        for expected in [
            "ext4_write 67 %, btrfs_write 33 %",
            "1.00 a byte received",
            "in 2.5 packets when a receive begins",
            "6 packets at most",
            "note: drops: not known: no tracepoint",
            "advice: ",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
    }

    #[test]
    fn a_failed_check_makes_the_outcome_negative() {
        let mut measured = bulk_receive_measurement();
        assert_eq!(example_report(&measured).outcome(), Outcome::Positive);
        measured.copied.to_user_bytes = 5;
        assert_eq!(example_report(&measured).outcome(), Outcome::Negative);
        assert!(example_report(&measured).to_text().contains("DO NOT AGREE"));
        assert_eq!(
            example_report(&WindowMeasurement::default()).outcome(),
            Outcome::Negative,
            "nothing was moved"
        );
    }
}
