//! A refresh for people: a table on a terminal, lines of words elsewhere.

use std::fmt::Write;

use comfy_table::{CellAlignment, Table, presets};

use nocopy_report::print;

use crate::stats::report::{CounterGroup, CounterRow, CounterSource, InterfaceReport};

/// Shown even if 0, since it matters that no packets arrive.
const ALWAYS: [&str; 4] = ["rx_packets", "tx_packets", "rx_bytes", "tx_bytes"];

const NO_SOCKETS: &str = "AF_XDP sockets: not reported by this kernel (CONFIG_XDP_SOCKETS_DIAG).";

fn shown_rows(report: &InterfaceReport, all: bool) -> impl Iterator<Item = (&CounterSource, &CounterRow)> {
    let rows = report
        .groups
        .iter()
        .flat_map(|CounterGroup { source, rows }| rows.iter().map(move |row| (source, row)));
    rows.filter(move |(source, row)| {
        let always = matches!(source, CounterSource::Link) && ALWAYS.contains(&&*row.counter.name);
        all || always || row.counter.value > 0
    })
}

pub(in crate::stats) fn counter_table_text(report: &InterfaceReport, all: bool) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header([&report.interface, "counter", "a second", "total"]);
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut last = String::new();
    for (source, row) in shown_rows(report, all) {
        let words = source_name(source);
        let first = if words == last { "" } else { &words };
        let rate = row.per_second.map(|rate| format!("{rate:.0}")).unwrap_or_default();
        table.add_row([first, &row.counter.name, &rate, &row.counter.value.to_string()]);
        last = words;
    }
    let note = if report.knows_sockets { String::new() } else { format!("{NO_SOCKETS}\n") };
    format!("{table}\n{note}")
}

pub(in crate::stats) fn source_name(source: &CounterSource) -> String {
    match source {
        CounterSource::Link => "interface".into(),
        CounterSource::Driver => "driver".into(),
        CounterSource::Queue(direction, number) => format!("{direction} queue {number}"),
        CounterSource::Socket(socket) => {
            let owner = socket.owner.as_ref();
            // The process chose its name, which may contain control characters.
            let shown = |(pid, name): &(_, String)| {
                format!(" of {} ({pid})", print::replace_all_control_characters(name))
            };
            let owner = owner.map(shown).unwrap_or_default();
            format!("AF_XDP queue {}{owner}", socket.queue)
        }
    }
}

/// One line per counter: interface, source, counter, total, and the rate if there is one. An empty line ends
/// a refresh.
pub(in crate::stats) fn counter_lines_text(reports: &[InterfaceReport], all: bool) -> String {
    let mut text = String::new();
    let rows = reports.iter().flat_map(|report| shown_rows(report, all).map(move |row| (report, row)));
    for (report, (source, row)) in rows {
        let source_name = match source {
            CounterSource::Link => "link".into(),
            CounterSource::Driver => "driver".into(),
            CounterSource::Queue(direction, number) => format!("{direction}-queue-{number}"),
            CounterSource::Socket(socket) => format!("socket-{}-queue-{}", socket.inode, socket.queue),
        };
        let (name, total) = (&row.counter.name, row.counter.value);
        let rate = row.per_second.map(|rate| format!(" {rate:.1}/s")).unwrap_or_default();
        writeln!(text, "{} {source_name} {name} {total}{rate}", report.interface)
            .expect("a string takes everything");
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::report::XdpSocket;

    #[test]
    fn a_socket_owners_name_is_printed_as_one_line() {
        let owner = Some((7, "\u{1b}]0;a\nb\u{9b}".to_owned()));
        let socket = CounterSource::Socket(XdpSocket { inode: 1, queue: 0, zero_copy: false, owner });
        assert_eq!(source_name(&socket), "AF_XDP queue 0 of \u{fffd}]0;a\u{fffd}b\u{fffd} (7)");
    }
}
