//! 1997: the communication area. Its paper has a round trip of 64 bytes in 58 us (TCP 270 us), and messages of 1 KiB at 86.6 Mbit/s (TCP 77.1).

use super::{NOTHING, Part, Rows, System, mbit_per_s, ratio, shown, verdict};
use crate::result::{Report, Row};
use crate::table::Table;

pub(super) const SYSTEM: System = System {
    title: "1997 · communication area (Tsinghua): messages over rings that program and kernel share",
    about: "64 bytes there and back on Ethernet of 100 Mbit/s, by interrupt and by polling; 1 KiB messages one way.",
    part,
};

const ROUND_TRIP: &str = "64 B there and back";
const ONE_WAY: &str = "message-stream, 1 KiB, MTU 1500";

const PUBLISHED_ROUND_TRIP: f64 = 270.0 / 58.0;
const PUBLISHED_ONE_WAY: f64 = 86.6 / 77.1;

/// What is called how, by interrupt, by polling, and what was published of it.
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

type Method = (&'static str, Option<&'static str>);

const WORKLOAD: &str = "communication-area";

fn part(report: &Report) -> Option<Part> {
    let rows = &Rows::of(report, WORKLOAD)?;
    let find = |(method, variant): Method| rows.find(ROUND_TRIP, method, variant);
    let line = |(name, waiting, polling, published): &(&str, Method, Method, &str)| {
        let (waiting, polling) = (find(*waiting), find(*polling));
        let us = |row: Option<&Row>| shown(row.and_then(|row| row.p50_us), 1);
        let copies = polling.and_then(|row| row.evidence).map_or(NOTHING, |copies| copies.name());
        let cells = [us(waiting), ratio(waiting), us(polling), ratio(polling), copies.into()];
        std::iter::once((*name).to_owned()).chain(cells).chain([(*published).to_owned()]).collect()
    };
    let header =
        ["64 B there and back", "interrupt, us", "x TCP", "polling, us", "x TCP", "copies", "published"];
    Some(Part {
        table: Table::new(&header, 1..5, LINES.iter().map(line).collect()),
        words: words(rows),
        ..Part::default()
    })
}

fn words(rows: &Rows<'_>) -> Vec<String> {
    let port = rows.against(ROUND_TRIP, "xdp-spinning", None, "tcp-spinning");
    let tcp = rows.find(ONE_WAY, "tcp-blocking", None).and_then(mbit_per_s);
    let message = rows.against(ONE_WAY, "message-xdp", Some("spinning"), "tcp-blocking");
    let rates = format!(
        "1 KiB messages one way (protocol {}, TCP with a write each {} Mbit/s; published 86.6 and 77.1)",
        shown(message.and_then(mbit_per_s), 0),
        shown(tcp, 0)
    );
    vec![
        verdict("64 B there and back by polling, against TCP that polls too", port, PUBLISHED_ROUND_TRIP),
        verdict(&rates, message, PUBLISHED_ONE_WAY),
        "Copies of a message by the processor, sent + received: published 1 + 2, and 2 + 3 through sockets. Sockets of today make 1 + 1, a \
         port 1 + 1 in copy mode and 0 + 0 in zero-copy, as counted inside the kernel in the VM lab (crates/nocopy-vm/README.md): a port in \
         copy mode, as here, has no copy to save, only the way through the stack."
            .into(),
    ]
}
