//! The summary as text, and whether it is a success.

use super::replay::{ChecksumsRow, ReplayRow, SkippedTimeRow};
use super::summary::{NamedCounts, Rates, Summary};
use nocopy_report::quantity::{in_time_suffix, short_number, time_text};
use nocopy_report::summary::indented_lines;
use nocopy_report::table::Table;
use nocopy_report::{CommandEnd, Outcome};

impl nocopy_report::Summary for Summary {
    const SCHEMA: &'static str = "nocopy.send/2";

    fn table(&self) -> Table {
        summary_rows(self).into()
    }

    fn details(&self) -> String {
        indented_lines(self.explanation.get(1..).unwrap_or_default())
    }

    /// Negative if fewer packets were sent than requested.
    fn outcome(&self) -> Outcome {
        let requested = &self.rates.requested;
        let finite = requested.units.is_some()
            || requested.seconds.is_some()
            || self.replay.as_ref().is_some_and(|replay| !replay.forever);
        let cut_short = self.ended == CommandEnd::Interrupted && finite;
        let missed = self.rates.are_goals_missed(self.packets);
        let unfinished = self.balance.is_some() && self.completed != Some(self.packets);
        let lost = self.not_sent.values().chain(self.dropped.values()).any(|&count| count > 0);
        if cut_short || missed || unfinished || lost { Outcome::Negative } else { Outcome::Positive }
    }
}

fn summary_rows(summary: &Summary) -> Vec<(String, String)> {
    let Summary { packets, bytes, .. } = summary;
    let mut rows = vec![
        (interface_text(summary), mode_text(summary)),
        (
            "handed over".into(),
            format!(
                "{packets} packets, {bytes} bytes{}{}",
                in_time_suffix(summary.seconds),
                summary.ended.words()
            ),
        ),
        ("completed".into(), completed_text(summary)),
        ("rate".into(), rate_text(&summary.rates)),
    ];
    rows.extend(requested_rate_text(&summary.rates, "frames").map(|words| ("requested".to_owned(), words)));
    if let Some(replay) = &summary.replay {
        rows.push(("replayed".into(), replay_text(replay)));
        rows.extend(replay.times.as_ref().and_then(skipped_time_row));
        if let Some(ChecksumsRow { checksums_fixed, checksums_not_fixed }) = replay.checksums {
            let not_fixed = match checksums_not_fixed {
                0 => String::new(),
                packets => format!(", of {packets} not fixed (truncated packets, or invalid headers)"),
            };
            rows.push(("checksums".into(), format!("of {checksums_fixed} packets fixed{not_fixed}")));
        }
    }
    rows.extend(behind_row(&summary.rates));
    rows.push(("not sent".into(), counts_text(&summary.not_sent)));
    rows.push(("dropped".into(), counts_text(&summary.dropped)));
    rows.push((
        "interface counted".into(),
        format!("{} (of all senders)", counts_text(&summary.interface_counters)),
    ));
    if let Some(balance) = &summary.balance {
        rows.push(("balance".into(), balance.words.clone()));
    }
    rows
}

fn replay_text(replay: &ReplayRow) -> String {
    let ReplayRow { file, format, rounds, .. } = replay;
    let compression = replay.compression.map(|compression| format!(", {compression}")).unwrap_or_default();
    let truncated = match replay.truncated {
        0 => String::new(),
        packets => format!(", {packets} packets truncated when recorded and sent as they are"),
    };
    format!("{file} ({format}{compression}), {rounds} round(s) done{truncated}")
}

/// What was not waited for of the recorded times, if anything.
fn skipped_time_row(times: &SkippedTimeRow) -> Option<(String, String)> {
    let SkippedTimeRow { gaps_shortened, skipped_seconds, steps_back, gap_max } = times;
    let (longest, skipped) = (time_text(gap_max.as_secs_f64()), time_text(*skipped_seconds));
    let gaps = (*gaps_shortened > 0)
        .then(|| format!("{skipped}: {gaps_shortened} gap(s) longer than {longest} (--max-gap)"));
    let steps = (*steps_back > 0).then(|| format!("{steps_back} step(s) back in time ignored"));
    let all: Vec<_> = [gaps, steps].into_iter().flatten().collect();
    (!all.is_empty()).then(|| ("not waited for".into(), all.join("; ")))
}

fn interface_text(summary: &Summary) -> String {
    let queue = summary.queue.map(|queue| format!(" queue {queue}")).unwrap_or_default();
    format!("{}{queue}", summary.interface)
}

fn mode_text(summary: &Summary) -> String {
    let cause = summary.evidence.cause.as_ref().map(|cause| format!(" ({cause})")).unwrap_or_default();
    format!("{}, {}{cause}", summary.mode, summary.evidence.copies)
}

fn completed_text(summary: &Summary) -> String {
    let known = match (summary.completed, &summary.balance) {
        (Some(completed), _) => format!("{completed} packets"),
        (None, Some(_)) => "not all packets".into(),
        (None, None) => return "not reported by the kernel's generator".into(),
    };
    format!("{known}: the kernel is done with them; whether they arrived only the receiver knows")
}

pub(in crate::send) fn rate_text(rates: &Rates) -> String {
    let unit = rates.unit.name();
    let (Some(units), Some(bits)) = (rates.units_per_second, rates.bits_per_second) else {
        return format!("none: too few {unit}");
    };
    format!("{} {unit}/s, {}bit/s", short_number(units), short_number(bits))
}

pub(in crate::send) fn behind_row(rates: &Rates) -> Option<(String, String)> {
    let said = "of the schedule skipped: the method, this machine or the input was too slow";
    (rates.behind_seconds > 0.0)
        .then(|| ("behind".into(), format!("{} {said}", time_text(rates.behind_seconds))))
}

/// The requested rate, and whether it was reached; `what` names what the bits are of, such as frames.
pub(in crate::send) fn requested_rate_text(rates: &Rates, what: &str) -> Option<String> {
    let (requested, unit) = (&rates.requested, rates.unit.name());
    let reached = match rates.rate_reached {
        Some(true) => ", reached",
        Some(false) => ", NOT reached",
        None => "",
    };
    let all = [
        requested.units.map(|units| format!("{units} {unit}")),
        requested.seconds.map(time_text),
        requested.units_per_second.map(|rate| format!("{} {unit}/s{reached}", short_number(rate))),
        requested.bits_per_second.map(|rate| format!("{}bit/s of {what}{reached}", short_number(rate))),
    ];
    let all: Vec<_> = all.into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join(", "))
}

fn counts_text(counts: &NamedCounts) -> String {
    let some: Vec<_> = counts
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    if some.is_empty() { "nothing".into() } else { some.join(", ") }
}
