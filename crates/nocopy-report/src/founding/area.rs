//! 1997: the communication area. Its paper has a round trip of 64 bytes in 58 us (TCP 270 us), and messages
//! of 1 KiB at 86.6 Mbit/s (TCP 77.1).

use super::{
    NOTHING, PublishedSystem, SystemResults, WorkloadRows, decimal_text, mbit_per_s, ratio_text,
    verdict_sentence,
};
use crate::result::{Report, Row};
use crate::table::Table;

pub(super) const SYSTEM: PublishedSystem = PublishedSystem {
    title: "1997 · communication area (Tsinghua): messages over rings that program and kernel share",
    about: "64 bytes there and back on Ethernet of 100 Mbit/s, by interrupt and by polling; 1 KiB messages one way.",
    part: area_results,
};

const ROUND_TRIP: &str = "64 B there and back";
const ONE_WAY: &str = "message-stream, 1 KiB, MTU 1500";

const PUBLISHED_ROUND_TRIP: f64 = 270.0 / 58.0;
const PUBLISHED_ONE_WAY: f64 = 86.6 / 77.1;

/// The lines of the table: a name, the method that waits for interrupts, the method that polls, and the
/// published figure.
const LINES: [(&str, Method, Method, &str); 4] = [
    ("TCP", ("tcp-blocking", None), ("tcp-spinning", None), "270 us"),
    ("UDP", ("udp-blocking", None), ("udp-spinning", None), NOTHING),
    ("frames of an AF_XDP port", ("xdp-poll", None), ("xdp-spinning", None), "58 us, 4.66 x"),
    (
        "messages over that port",
        ("message-xdp", Some("blocking")),
        ("message-xdp", Some("spinning")),
        NOTHING,
    ),
];

/// The method that the others are compared with.
const WAITING: &str = "tcp-blocking";
const POLLING: &str = "tcp-spinning";

type Method = (&'static str, Option<&'static str>);

const WORKLOAD: &str = "communication-area";

fn area_results(report: &Report) -> Option<SystemResults> {
    let rows = &WorkloadRows::rows_of_workload(report, WORKLOAD)?;
    let find = |(method, variant): Method, tcp| rows.row_compared_or_plain(ROUND_TRIP, method, variant, tcp);
    let line = |(name, waiting, polling, published): &(&str, Method, Method, &str)| {
        let (waiting, polling) = (find(*waiting, WAITING), find(*polling, POLLING));
        let us = |row: Option<&Row>| decimal_text(row.and_then(|row| row.p50_us), 1);
        let copies = polling.and_then(|row| row.evidence).map_or(NOTHING, |copies| copies.name());
        let cells = [
            us(waiting),
            ratio_text(waiting, WAITING),
            us(polling),
            ratio_text(polling, POLLING),
            copies.into(),
        ];
        std::iter::once((*name).to_owned()).chain(cells).chain([(*published).to_owned()]).collect()
    };
    let header =
        ["64 B there and back", "interrupt, us", "x TCP", "polling, us", "x TCP", "copies", "published"];
    Some(SystemResults {
        table: Table::new(&header, 1..5, LINES.iter().map(line).collect()),
        words: result_sentences(rows),
        ..SystemResults::default()
    })
}

fn result_sentences(rows: &WorkloadRows<'_>) -> Vec<String> {
    let round_trip = |what: &str, method, variant, tcp| {
        let row = rows.row_compared_with(ROUND_TRIP, method, variant, tcp);
        verdict_sentence(&format!("64 B there and back, {what}"), row, PUBLISHED_ROUND_TRIP)
    };
    let tcp = rows.row_of_method(ONE_WAY, WAITING, None).and_then(mbit_per_s);
    let message = rows.row_compared_with(ONE_WAY, "message-xdp", Some("spinning"), WAITING);
    let rates = format!(
        "1 KiB messages one way (protocol {}, TCP with a write each {} Mbit/s; published 86.6 and 77.1)",
        decimal_text(message.and_then(mbit_per_s), 0),
        decimal_text(tcp, 0)
    );
    let evidence = message.and_then(|row| row.cause.as_deref()).unwrap_or(NOTHING);
    vec![
        round_trip("frames against TCP, both polling", "xdp-spinning", None, POLLING),
        round_trip("messages against TCP, both polling", "message-xdp", Some("spinning"), POLLING),
        round_trip("frames against TCP, both by interrupt", "xdp-poll", None, WAITING),
        verdict_sentence(&rates, message, PUBLISHED_ONE_WAY),
        format!(
            "Copies of a message by the processor, sent + received: published 1 + 2, and 2 + 3 through sockets. Today the kernel makes 1 + 1 for \
             sockets, 1 + 1 for a port in copy mode and 0 + 0 in zero-copy, as counted inside it in the VM lab (crates/nocopy-vm/README.md); \
             of the 1 KiB messages here the library reports: {evidence}. A port in copy mode, as on veth, has no copy of the kernel's to save, only \
             the way through its stack."
        ),
    ]
}
