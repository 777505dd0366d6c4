//! 2010: NTZC, a zero-copy packet driver. 1.1 million packets a second reach the program where the driver could drop 1.7 million; two queues on two
//! processors 1.5 million at under 50 % of each; a gigabit of packets of 256 bytes and more at under 10 % of a processor; sending about four
//! times as fast as libpcap, long packets above all.

use super::{NOTHING, Part, Rows, System, ratio, shown, verdict};
use crate::chart::{Bar, Stacks};
use crate::result::{Report, Row};
use crate::table::Table;

pub(super) const SYSTEM: System = System {
    title: "2010 · NTZC: packets from the card's memory to the program's, by a driver of its own",
    about: "Frames that the driver drops and that a program receives, in millions a second; what a gigabit a second of them costs its receiver; \
            and sending, against a send() for each frame as libpcap does it.",
    part,
};

/// As Linux counts them: without their check sequence.
const FRAMES_BYTES: [usize; 6] = [64, 128, 256, 512, 1024, 1514];

const PUBLISHED_SHARE: f64 = 1.1 / 1.7;
const PUBLISHED_SENDING: f64 = 4.0;

fn dropped<'a>(rows: &Rows<'a>, bytes: usize) -> Option<&'a Row> {
    rows.find(&at_full_rate(bytes), "xdp-drop", None)
}

fn received<'a>(rows: &Rows<'a>, bytes: usize) -> Option<&'a Row> {
    rows.find(&at_full_rate(bytes), "xdp", None)
}

fn sent<'a>(rows: &Rows<'a>, bytes: usize) -> Option<&'a Row> {
    rows.find(&format!("packet-send, {bytes}-byte frames"), "xdp", None)
}

/// At a gigabit a second: the only paced series of its length.
fn gigabit<'a>(rows: &Rows<'a>, bytes: usize) -> Option<&'a Row> {
    let start = format!("capture, {bytes}-byte frames, ");
    let is_paced = |row: &&&Row| row.series.starts_with(&start) && row.series.ends_with("-kpps");
    rows.0.iter().find(is_paced).copied()
}

fn at_full_rate(bytes: usize) -> String {
    format!("capture, {bytes}-byte frames, full-rate")
}

fn millions(row: Option<&Row>) -> Option<f64> {
    row.and_then(|row| row.packets_per_s).map(|rate| rate / 1e6)
}

fn share(rows: &Rows<'_>, bytes: usize) -> Option<f64> {
    Some(millions(received(rows, bytes))? / millions(dropped(rows, bytes))?)
}

const WORKLOAD: &str = "ntzc";

fn part(report: &Report) -> Option<Part> {
    let rows = &Rows::of(report, WORKLOAD)?;
    let line = |&bytes: &usize| {
        let gigabit = gigabit(rows, bytes);
        vec![
            format!("{bytes} B"),
            shown(millions(dropped(rows, bytes)), 2),
            shown(millions(received(rows, bytes)), 2),
            shown(share(rows, bytes).map(|share| share * 100.0), 0),
            shown(gigabit.and_then(|row| row.receiver_cpu_percent), 1),
            gigabit.map_or(NOTHING, |_| "under 10").into(),
            shown(millions(sent(rows, bytes)), 2),
            ratio(sent(rows, bytes)),
        ]
    };
    let header = [
        "frames of",
        "dropped",
        "received",
        "share, %",
        "1 Gbit/s: CPU, %",
        "published",
        "sent",
        "x libpcap's send()",
    ];
    Some(Part {
        table: Table::new(&header, 1..8, FRAMES_BYTES.iter().map(line).collect()),
        words: words(rows),
        bars: vec![bars(rows)],
        ..Part::default()
    })
}

fn words(rows: &Rows<'_>) -> Vec<String> {
    let [short, .., long] = FRAMES_BYTES;
    let reached = match share(rows, short) {
        Some(share) if share >= PUBLISHED_SHARE => "reached",
        Some(_) => "not reached",
        None => "not measured",
    };
    let share = shown(share(rows, short).map(|share| share * 100.0), 0);
    vec![
        format!(
            "Of the 64 B frames that can be dropped, received: {share} %, published {:.0} %: {reached}.",
            PUBLISHED_SHARE * 100.0
        ),
        two_queues(rows),
        verdict("Sending 64 B frames, against libpcap's call", sent(rows, short), PUBLISHED_SENDING),
        verdict("Sending 1514 B frames, against libpcap's call", sent(rows, long), PUBLISHED_SENDING),
        "The processor time is that of the receiving thread. What a driver does for it is done on the sender's processor here, as half of what \
         sending costs is for the receiver; and a frame that is sent is copied into a socket buffer, since veth has no zero-copy. NTZC wrote \
         into the card's own memory."
            .into(),
    ]
}

/// At the published rate, and as fast as they go.
fn two_queues(rows: &Rows<'_>) -> String {
    let of = |end: &str| {
        let is_one = |row: &&&Row| {
            row.method == "xdp" && row.series.contains("two-queues") && row.series.ends_with(end)
        };
        rows.0.iter().find(is_one).copied()
    };
    let (paced, full) = (of("kpps-each"), of("full-rate-each"));
    let Some((rate, busy)) = millions(paced).zip(paced.and_then(|row| row.receiver_cpu_percent)) else {
        return "Two queues on two processors: not measured.".into();
    };
    let reached = if rate >= 1.45 && busy < 50.0 { "reached" } else { "not reached" };
    format!(
        "Two queues on two processors: {rate:.2} million/s with {busy:.0} % of the busier one in the receiver, published 1.5 million/s under 50 %: \
         {reached}; as fast as they go {} million/s.",
        shown(millions(full), 2)
    )
}

fn bars(rows: &Rows<'_>) -> Stacks {
    let bars = FRAMES_BYTES.iter().filter_map(|&bytes| {
        let (dropped, received) = (millions(dropped(rows, bytes))?, millions(received(rows, bytes))?);
        Some(Bar { name: format!("{bytes} B"), amounts: vec![received, (dropped - received).max(0.0)] })
    });
    Stacks {
        title: "Frames by length, million/s".into(),
        parts: vec!["received by a program".into(), "more that the driver could drop".into()],
        bars: bars.collect(),
    }
}
