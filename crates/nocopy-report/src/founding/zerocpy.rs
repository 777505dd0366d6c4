//! 2001: zero-copy UDP transmission. Ttcp, 10,000 datagrams, median of three, Mbit/s; without / with the UDP
//! checksum: socket 25.9 at 1400 B and 35.5 at 8192 B; at 1400 B copy 34.8 / 31.1, mmap 56.3 / 41.9, kiobuf
//! 39.0 / none.

use super::{
    PublishedSystem, SystemResults, WorkloadRows, decimal_text, difference_sentence, mbit_per_s, ratio_text,
    verdict_sentence,
};
use crate::chart::{StackedBar, StackedBarChart};
use crate::result::Report;
use crate::table::Table;

pub(super) const SYSTEM: PublishedSystem = PublishedSystem {
    title: "2001 · zerocpy (van Rantwijk): datagrams to a card without a copy, by a weak processor",
    about: "10,000 datagrams or more to an ordinary receiver, median of three runs: Mbit/s of payload that arrived, the sender's processor \
            time, and times a send() a datagram.",
    part: zerocpy_results,
};

const SOCKET: &str = "socket";
const SOCKET_PUBLISHED: f64 = 25.9;

/// The lines of the table: a name, the method, who computes the checksum, and the published Mbit/s at 1400 B.
const LINES: [(&str, &str, Option<&str>, Option<f64>); 8] = [
    ("send()", "socket", None, Some(SOCKET_PUBLISHED)),
    ("copied into frames, checksum", "xdp-copy", Some("computed"), Some(31.1)),
    ("copied into frames, none", "xdp-copy", Some("omitted"), Some(34.8)),
    ("frames (mmap), checksum", "xdp-udp", Some("computed"), Some(41.9)),
    ("frames (mmap), none", "xdp-udp", Some("omitted"), Some(56.3)),
    ("frames, by the device", "xdp-udp", Some("offloaded"), None),
    ("own memory (kiobuf), MSG_ZEROCOPY", "zerocopy", None, Some(39.0)),
    ("own memory (kiobuf), io_uring", "uring-zerocopy", None, None),
];

/// The series of the two datagram lengths.
const SHORT: &str = "1400-byte datagrams";
const LONG: &str = "8192-byte datagrams";

const WORKLOAD: &str = "zerocpy";

fn zerocpy_results(report: &Report) -> Option<SystemResults> {
    let rows = &WorkloadRows::rows_of_workload(report, WORKLOAD)?;
    let line = |(name, method, variant, published): &(&str, &str, Option<&str>, Option<f64>)| {
        let figures = [SHORT, LONG].map(|series| {
            let row = rows.row_compared_or_plain(series, method, *variant, SOCKET);
            let cpu = row.and_then(|row| row.sender_cpu_ns_per_packet);
            [decimal_text(row.and_then(mbit_per_s), 0), decimal_text(cpu, 0), ratio_text(row, SOCKET)]
        });
        let published = decimal_text(published.map(|rate| rate / SOCKET_PUBLISHED), 2);
        let [short, long] = figures;
        std::iter::once((*name).to_owned()).chain(short).chain([published]).chain(long).collect()
    };
    let header = ["", "1400 B", "ns each", "x", "published", "8192 B", "ns each", "x"];
    Some(SystemResults {
        table: Table::new(&header, 1..8, LINES.iter().map(line).collect()),
        words: result_sentences(rows),
        bars: [SHORT, LONG].map(|series| throughput_bars(rows, series)).into(),
        ..SystemResults::default()
    })
}

fn result_sentences(rows: &WorkloadRows<'_>) -> Vec<String> {
    let best = |series, other| rows.row_compared_with(series, "xdp-udp", Some("omitted"), other);
    let interface = rows.row_compared_with(SHORT, "xdp-copy", Some("omitted"), SOCKET);
    vec![
        verdict_sentence("At 1400 B, frames without checksum against send()", best(SHORT, SOCKET), 56.3 / SOCKET_PUBLISHED),
        verdict_sentence("Of that the private interface, copy left in", interface, 34.8 / SOCKET_PUBLISHED),
        verdict_sentence("and leaving out the copy", best(SHORT, "xdp-copy"), 56.3 / 34.8),
        verdict_sentence("Leaving out the checksum", best(SHORT, "xdp-udp"), 56.3 / 41.9),
        difference_sentence("At 8192 B, frames without checksum against send()", best(LONG, SOCKET)),
        difference_sentence("At 8192 B, leaving out the copy", best(LONG, "xdp-copy")),
        "A datagram longer than a frame goes in several, whose checksum no device completes. veth has no zero-copy, so the kernel copies \
         every frame of a port here, and it runs the receiver's softirqs on the sender's processor."
            .into(),
    ]
}

fn throughput_bars(rows: &WorkloadRows<'_>, series: &str) -> StackedBarChart {
    let bar = |(name, method, variant, _): &(&str, &str, Option<&str>, Option<f64>)| {
        let rate = mbit_per_s(rows.row_of_method(series, method, *variant)?)?;
        Some(StackedBar { name: (*name).into(), amounts: vec![rate] })
    };
    StackedBarChart {
        title: format!("{series}: Mbit/s of payload that arrived"),
        parts: vec!["Mbit/s".into()],
        bars: LINES.iter().filter_map(bar).collect(),
    }
}
