//! 2010: NTZC, a zero-copy packet driver. 1.1 million packets a second reach the program where the driver
//! could drop 1.7 million; two queues on two processors 1.5 million at under 50 % of each; a gigabit of
//! packets of 256 bytes and more at under 10 % of a processor; sending about four times as fast as libpcap,
//! long packets above all.

use super::{
    NOTHING, PublishedSystem, SystemResults, WorkloadRows, decimal_text, ratio_text, verdict_sentence,
};
use crate::chart::{StackedBar, StackedBarChart};
use crate::result::{Report, Row};
use crate::table::Table;

pub(super) const SYSTEM: PublishedSystem = PublishedSystem {
    title: "2010 · NTZC: packets from the card's memory to the program's, by a driver of its own",
    about: "How many frames a second the driver can drop and a program can receive, in millions; what a gigabit a second costs the receiver; \
            and sending, against a send() for each frame as libpcap does it.",
    part: ntzc_results,
};

/// Frame lengths as Linux counts them, without the frame check sequence.
const FRAMES_BYTES: [usize; 6] = [64, 128, 256, 512, 1024, 1514];

const PUBLISHED_SHARE: f64 = 1.1 / 1.7;
const PUBLISHED_SENDING: f64 = 4.0;
const PUBLISHED_GIGABIT_PERCENT: f64 = 10.0;
const PUBLISHED_TWO_QUEUES_PERCENT: f64 = 50.0;
/// Millions of packets per second.
const PUBLISHED_TWO_QUEUES: f64 = 1.5;
/// A source that is paced by bursts may be slower than requested by this factor.
const PACED: f64 = 0.97;

const DROP: &str = "xdp-drop";
const LIBPCAP: &str = "packet-send";

fn dropped_row<'a>(rows: &WorkloadRows<'a>, bytes: usize) -> Option<&'a Row> {
    rows.row_of_method(&full_rate_series(bytes), DROP, None)
}

fn received_row<'a>(rows: &WorkloadRows<'a>, bytes: usize) -> Option<&'a Row> {
    rows.row_compared_or_plain(&full_rate_series(bytes), "xdp", None, DROP)
}

fn sent_row<'a>(rows: &WorkloadRows<'a>, bytes: usize) -> Option<&'a Row> {
    rows.row_compared_or_plain(&format!("packet-send, {bytes}-byte frames"), "xdp", None, LIBPCAP)
}

/// The row at 1 Gbit/s: the only paced series of its length.
fn gigabit_row<'a>(rows: &WorkloadRows<'a>, bytes: usize) -> Option<&'a Row> {
    let start = format!("capture, {bytes}-byte frames, ");
    let is_paced =
        |row: &&&Row| row.method == "xdp" && row.series.starts_with(&start) && row.series.ends_with("-kpps");
    rows.0.iter().find(is_paced).copied()
}

fn full_rate_series(bytes: usize) -> String {
    format!("capture, {bytes}-byte frames, full-rate")
}

fn million_packets_per_s(row: Option<&Row>) -> Option<f64> {
    row.and_then(|row| row.packets_per_s).map(|rate| rate / 1e6)
}

const WORKLOAD: &str = "ntzc";

fn ntzc_results(report: &Report) -> Option<SystemResults> {
    let rows = &WorkloadRows::rows_of_workload(report, WORKLOAD)?;
    let line = |&bytes: &usize| {
        let gigabit = gigabit_row(rows, bytes);
        vec![
            format!("{bytes} B"),
            decimal_text(million_packets_per_s(dropped_row(rows, bytes)), 2),
            decimal_text(million_packets_per_s(received_row(rows, bytes)), 2),
            ratio_text(received_row(rows, bytes), DROP),
            decimal_text(gigabit.and_then(|row| row.receiver_cpu_percent), 1),
            gigabit.map_or(NOTHING, |_| "under 10").into(),
            decimal_text(million_packets_per_s(sent_row(rows, bytes)), 2),
            ratio_text(sent_row(rows, bytes), LIBPCAP),
        ]
    };
    let header = [
        "frames of",
        "dropped",
        "received",
        "share",
        "1 Gbit/s: CPU, %",
        "published",
        "sent",
        "x libpcap's send()",
    ];
    Some(SystemResults {
        table: Table::new(&header, 1..8, FRAMES_BYTES.iter().map(line).collect()),
        words: result_sentences(rows),
        bars: vec![capture_bars(rows)],
        ..SystemResults::default()
    })
}

fn result_sentences(rows: &WorkloadRows<'_>) -> Vec<String> {
    let [short, .., long] = FRAMES_BYTES;
    let share = |bytes: usize| {
        let what = format!("Share received of the {bytes} B frames that the driver could drop");
        verdict_sentence(
            &what,
            rows.row_compared_with(&full_rate_series(bytes), "xdp", None, DROP),
            PUBLISHED_SHARE,
        )
    };
    let sending = |bytes: usize| {
        let what = format!("Sending {bytes} B frames, against libpcap's call");
        let series = format!("packet-send, {bytes}-byte frames");
        verdict_sentence(&what, rows.row_compared_with(&series, "xdp", None, LIBPCAP), PUBLISHED_SENDING)
    };
    vec![
        share(short),
        share(long),
        one_gigabit_sentence(rows),
        two_queues_sentence(rows),
        sending(short),
        sending(long),
        "The processor time is that of the receiving thread; the driver's part of receiving is done on the sender's processor here, which slows \
         the sender. veth has no zero-copy, so the kernel copies every frame; NTZC wrote into the card's own memory."
            .into(),
    ]
}

fn reached_text(is_reached: bool) -> &'static str {
    if is_reached { "reached" } else { "not reached" }
}

/// The row with the highest cost among the lengths for which the paper makes the claim.
fn one_gigabit_sentence(rows: &WorkloadRows<'_>) -> String {
    let costs = FRAMES_BYTES.iter().filter_map(|&bytes| gigabit_row(rows, bytes));
    let costs = costs.filter_map(|row| Some((row.receiver_cpu_percent?, row.lost_percent.unwrap_or(0.0))));
    let Some((busy, lost)) = costs.reduce(|one, other| (one.0.max(other.0), one.1.max(other.1))) else {
        return "A gigabit a second of 256 B and more: not measured.".into();
    };
    format!(
        "A gigabit a second of 256 B and more: the receiver uses up to {busy:.1} % of a processor and loses up to {lost:.1} % of the frames; \
         published under {PUBLISHED_GIGABIT_PERCENT:.0} %: {}.",
        reached_text(busy < PUBLISHED_GIGABIT_PERCENT && lost < 1.0)
    )
}

/// A sentence on two queues at the published rate, and at full rate.
fn two_queues_sentence(rows: &WorkloadRows<'_>) -> String {
    let of = |method: &str, end: &str| {
        let is_one = |row: &&&Row| {
            row.method == method && row.series.contains("two-queues") && row.series.ends_with(end)
        };
        rows.0.iter().find(is_one).copied()
    };
    let paced = of("xdp", "kpps-each");
    let full = |method| decimal_text(million_packets_per_s(of(method, "full-rate-each")), 2);
    let Some((rate, busy)) = million_packets_per_s(paced).zip(paced.and_then(|row| row.receiver_cpu_percent))
    else {
        return "Two queues on two processors: not measured.".into();
    };
    format!(
        "Two queues on two processors: {rate:.2} million/s, for which the busier receiver uses {busy:.0} % of its processor; published \
         {PUBLISHED_TWO_QUEUES} million/s under {PUBLISHED_TWO_QUEUES_PERCENT:.0} %: {}. As fast as they go: {} million/s; two packet rings: {}.",
        reached_text(rate >= PACED * PUBLISHED_TWO_QUEUES && busy < PUBLISHED_TWO_QUEUES_PERCENT),
        full("xdp"),
        full("packet-ring-fanout")
    )
}

fn capture_bars(rows: &WorkloadRows<'_>) -> StackedBarChart {
    let bars = FRAMES_BYTES.iter().filter_map(|&bytes| {
        let (dropped, received) = (
            million_packets_per_s(dropped_row(rows, bytes))?,
            million_packets_per_s(received_row(rows, bytes))?,
        );
        Some(StackedBar {
            name: format!("{bytes} B"),
            amounts: vec![received, (dropped - received).max(0.0)],
        })
    });
    StackedBarChart {
        title: "Frames by length, million/s".into(),
        parts: vec!["received by a program".into(), "more that the driver could drop".into()],
        bars: bars.collect(),
    }
}
