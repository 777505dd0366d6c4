//! 2000: zero-copy sockets of FreeBSD. Netperf on a Pentium II of 350 MHz with frames of 9,000 bytes: TCP 742
//! Mbit/s; UDP of 8 KiB 919 Mbit/s sent and 612 received (93,525 of 140,396 datagrams). A faster host: 1,764
//! Mbit/s, with its receiver 60 % idle.

use super::{
    NOTHING, PublishedSystem, SystemResults, WorkloadRows, decimal_text, difference_sentence, mbit_per_s,
    ratio_text,
};
use crate::chart::{StackedBar, StackedBarChart};
use crate::result::{Report, Row};
use crate::table::Table;

pub(super) const SYSTEM: PublishedSystem = PublishedSystem {
    title: "2000 · zero-copy sockets (FreeBSD): TCP, and UDP of 8 KiB, from the program's pages; NFS reads",
    about: "Frames of 9,000 bytes; Mbit/s of payload. Datagrams are counted and every byte of them is checked where they arrive.",
    part: sockets_results,
};

const STREAM: &str = "tcp-send over veth, MTU 9000, reno";
const DATAGRAMS: &str = "udp-send, 8192-byte datagrams";
const FILES: &str = "nfs, reads of 1024 KiB, MTU 9000";

/// The share of sent datagrams that arrived in the paper.
const PUBLISHED_RECEIVED: f64 = 612.0 / 919.0;

const LINES: [(&str, &str, &str, &str); 10] = [
    ("TCP, send()", STREAM, "plain", NOTHING),
    ("TCP, MSG_ZEROCOPY", STREAM, "zerocopy", "742, 1764 at 60 % idle"),
    ("TCP, nocopy auto", STREAM, "auto", NOTHING),
    ("UDP, send()", DATAGRAMS, "socket", NOTHING),
    ("UDP, MSG_ZEROCOPY", DATAGRAMS, "zerocopy", "919 sent, 612 received"),
    ("UDP, the same in bursts", DATAGRAMS, "zerocopy-gso", NOTHING),
    ("UDP, nocopy auto", DATAGRAMS, "auto", NOTHING),
    ("NFS by pread and writev", FILES, "pread-writev", NOTHING),
    ("NFS by Ganesha", FILES, "ganesha", NOTHING),
    ("NFS by nocopy serve nfs", FILES, "nocopy", NOTHING),
];

fn baseline_method(series: &str) -> &'static str {
    match series {
        STREAM => "plain",
        DATAGRAMS => "socket",
        _ => "pread-writev",
    }
}

/// The share of sent bytes that arrived; less than 1 only for datagrams.
fn received_share(row: &Row) -> f64 {
    1.0 - row.lost_percent.unwrap_or(0.0) / 100.0
}

const WORKLOAD: &str = "zero-copy-sockets";

fn sockets_results(report: &Report) -> Option<SystemResults> {
    let rows = &WorkloadRows::rows_of_workload(report, WORKLOAD)?;
    let line = |(name, series, method, published): &(&str, &str, &str, &str)| {
        let base = baseline_method(series);
        let row = rows.row_compared_or_plain(series, method, None, base);
        let received = row.and_then(mbit_per_s);
        let sent =
            received.zip(row).map(|(received, row)| received / received_share(row).max(f64::MIN_POSITIVE));
        let busy = row.and_then(|row| row.receiver_cpu_percent);
        let idle = busy.map_or_else(|| NOTHING.into(), |busy| format!("{:.0} %", (100.0 - busy).max(0.0)));
        let copies = row.and_then(|row| row.evidence).map_or(NOTHING, |copies| copies.name());
        let figures = [decimal_text(sent, 0), decimal_text(received, 0), idle, ratio_text(row, base)];
        let cells = std::iter::once((*name).to_owned()).chain(figures);
        cells.chain([copies.to_owned(), (*published).to_owned()]).collect()
    };
    let header = ["", "sent", "received", "receiver idle", "x first", "copies", "published"];
    Some(SystemResults {
        table: Table::new(&header, 1..5, measured_table_lines(rows).map(line).collect()),
        words: result_sentences(rows),
        bars: vec![throughput_bars(rows)],
        ..SystemResults::default()
    })
}

/// Only measured methods: runs of earlier versions have no files, and Ganesha is not always installed.
fn measured_table_lines(
    rows: &WorkloadRows<'_>,
) -> impl Iterator<Item = &'static (&'static str, &'static str, &'static str, &'static str)> {
    LINES.iter().filter(|(_, series, method, _)| {
        *series != FILES || rows.row_of_method(series, method, None).is_some()
    })
}

fn result_sentences(rows: &WorkloadRows<'_>) -> Vec<String> {
    let shares =
        ["socket", "auto"].map(|method| rows.row_of_method(DATAGRAMS, method, None).map(received_share));
    let percent = |share: Option<f64>| decimal_text(share.map(|share| share * 100.0), 0);
    let [socket, auto] = shares;
    let reached = match auto {
        Some(share) if share >= PUBLISHED_RECEIVED => "better than published",
        Some(_) => "worse than published",
        None => "not measured",
    };
    let mut words = vec![
        format!(
            "Of the datagrams sent arrived: send() {} %, nocopy auto {} %; published {:.0} %: {reached}.",
            percent(socket),
            percent(auto),
            PUBLISHED_RECEIVED * 100.0
        ),
        difference_sentence("TCP with MSG_ZEROCOPY against send()", rows.row_compared_with(STREAM, "zerocopy", None, "plain")),
        difference_sentence("TCP, nocopy auto against send()", rows.row_compared_with(STREAM, "auto", None, "plain")),
        difference_sentence("UDP with MSG_ZEROCOPY against send()", rows.row_compared_with(DATAGRAMS, "zerocopy", None, "socket")),
        difference_sentence("UDP, nocopy auto against send()", rows.row_compared_with(DATAGRAMS, "auto", None, "socket")),
        "A veth pair delivers on the same host, where what MSG_ZEROCOPY did not copy is copied late. The receiver is idle while its thread \
         is; what the kernel does for it in softirqs is done on the sender's processor here."
            .into(),
    ];
    for (name, other) in [("pread() and writev()", "pread-writev"), ("Ganesha", "ganesha")] {
        if let Some(row) = rows.row_compared_with(FILES, "nocopy", None, other) {
            words.push(difference_sentence(&format!("NFS reads of 1 MiB, nocopy against {name}"), Some(row)));
        }
    }
    words
}

fn throughput_bars(rows: &WorkloadRows<'_>) -> StackedBarChart {
    let bar = |(name, series, method, _): &(&str, &str, &str, &str)| {
        let row = rows.row_of_method(series, method, None)?;
        let (received, share) = (mbit_per_s(row)?, received_share(row));
        let lost = if share > 0.0 { received / share - received } else { 0.0 };
        Some(StackedBar { name: (*name).into(), amounts: vec![received, lost] })
    };
    StackedBarChart {
        title: "Sent, Mbit/s of payload".into(),
        parts: vec!["received".into(), "lost".into()],
        bars: LINES.iter().filter_map(bar).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn files_have_lines_where_they_were_measured() {
        let row = |method| Row { workload: WORKLOAD.into(), ..sample::row_with_rate(FILES, method, 1.0) };
        let plain = row("pread-writev");
        let without =
            sockets_results(&sample::report_with_rows(vec![Row { series: STREAM.into(), ..plain.clone() }]))
                .unwrap();
        assert_eq!(without.table.rows.len(), 7);
        let ours = sample::row_with_ratio("pread-writev", 1.5, row("nocopy"));
        let with = sockets_results(&sample::report_with_rows(vec![plain, ours])).unwrap();
        let names: Vec<_> = with.table.rows[7..].iter().map(|cells| cells[0].as_str()).collect();
        assert_eq!(names, ["NFS by pread and writev", "NFS by nocopy serve nfs"]);
        assert!(
            with.words.iter().any(|words| words.contains("against pread() and writev(): 1.50 x")),
            "{:?}",
            with.words
        );
    }
}
