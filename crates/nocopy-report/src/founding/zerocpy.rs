//! 2001: zero-copy UDP transmission. Ttcp, 10,000 datagrams, median of three, Mbit/s; without / with the UDP
//! checksum: socket 25.9 at 1400 B and 35.5 at 8192 B; at 1400 B copy 34.8 / 31.1, mmap 56.3 / 41.9, kiobuf
//! 39.0 / none.

use super::{Rows, System, SystemResults, compared, mbit_per_s, ratio, shown, verdict};
use crate::chart::{Bar, Stacks};
use crate::result::Report;
use crate::table::Table;

pub(super) const SYSTEM: System = System {
    title: "2001 · zerocpy (van Rantwijk): datagrams to a card without a copy, by a weak processor",
    about: "10,000 datagrams or more to an ordinary receiver, median of three runs: Mbit/s of payload that arrived, the sender's processor \
            time, and times a send() a datagram.",
    part,
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

fn part(report: &Report) -> Option<SystemResults> {
    let rows = &Rows::of(report, WORKLOAD)?;
    let line = |(name, method, variant, published): &(&str, &str, Option<&str>, Option<f64>)| {
        let figures = [SHORT, LONG].map(|series| {
            let row = rows.against_or_plain(series, method, *variant, SOCKET);
            let cpu = row.and_then(|row| row.sender_cpu_ns_per_packet);
            [shown(row.and_then(mbit_per_s), 0), shown(cpu, 0), ratio(row, SOCKET)]
        });
        let published = shown(published.map(|rate| rate / SOCKET_PUBLISHED), 2);
        let [short, long] = figures;
        std::iter::once((*name).to_owned()).chain(short).chain([published]).chain(long).collect()
    };
    let header = ["", "1400 B", "ns each", "x", "published", "8192 B", "ns each", "x"];
    Some(SystemResults {
        table: Table::new(&header, 1..8, LINES.iter().map(line).collect()),
        words: words(rows),
        bars: [SHORT, LONG].map(|series| bars(rows, series)).into(),
        ..SystemResults::default()
    })
}

fn words(rows: &Rows<'_>) -> Vec<String> {
    let best = |series, other| rows.against(series, "xdp-udp", Some("omitted"), other);
    let interface = rows.against(SHORT, "xdp-copy", Some("omitted"), SOCKET);
    vec![
        verdict("At 1400 B, frames without checksum against send()", best(SHORT, SOCKET), 56.3 / SOCKET_PUBLISHED),
        verdict("Of that the private interface, copy left in", interface, 34.8 / SOCKET_PUBLISHED),
        verdict("and leaving out the copy", best(SHORT, "xdp-copy"), 56.3 / 34.8),
        verdict("Leaving out the checksum", best(SHORT, "xdp-udp"), 56.3 / 41.9),
        compared("At 8192 B, frames without checksum against send()", best(LONG, SOCKET)),
        compared("At 8192 B, leaving out the copy", best(LONG, "xdp-copy")),
        "A datagram longer than a frame goes in several, whose checksum no device completes. veth has no zero-copy, so the kernel copies \
         every frame of a port here, and it runs the receiver's softirqs on the sender's processor."
            .into(),
    ]
}

fn bars(rows: &Rows<'_>, series: &str) -> Stacks {
    let bar = |(name, method, variant, _): &(&str, &str, Option<&str>, Option<f64>)| {
        let rate = mbit_per_s(rows.find(series, method, *variant)?)?;
        Some(Bar { name: (*name).into(), amounts: vec![rate] })
    };
    Stacks {
        title: format!("{series}: Mbit/s of payload that arrived"),
        parts: vec!["Mbit/s".into()],
        bars: LINES.iter().filter_map(bar).collect(),
    }
}
