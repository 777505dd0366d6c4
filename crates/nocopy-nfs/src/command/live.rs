//! The progress of a server: a table redrawn on a terminal; elsewhere the same lines from time to time.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use nocopy_report::live::LiveLine;
use nocopy_report::print;
use nocopy_report::quantity::short_number;
use nocopy_report::table::Table;

use crate::server::{ClientCounts, ServerStatistics};

/// The most clients with their own lines, the busiest first; the others share one.
const CLIENTS_MAX: usize = 12;

/// The interval if it is not redrawn.
const PLAIN_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct LiveTable {
    line: LiveLine,
    is_terminal: bool,
    last_print: Instant,
    last_counts: BTreeMap<Option<IpAddr>, ClientCounts>,
}

impl LiveTable {
    pub(super) fn new(now: Instant) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Self { line: LiveLine::default(), is_terminal, last_print: now, last_counts: BTreeMap::new() }
    }

    pub(super) fn update(&mut self, accounts: &ServerStatistics, now: Instant) {
        let Self { line, is_terminal, last_print: said, last_counts: before } = self;
        let clients = || accounts.clients().into_iter().collect::<BTreeMap<_, _>>();
        let since = now.duration_since(*said);
        if *is_terminal {
            line.update(now, |since| {
                let now = clients();
                let table = client_table(&now, &std::mem::replace(before, now.clone()), since, |_| true);
                format!("of service\n{}", table.text())
            });
        } else if since >= PLAIN_INTERVAL {
            *said = now;
            let now = clients();
            let table =
                client_table(&now, &std::mem::replace(before, now.clone()), since, |counts| counts.calls > 0);
            if !table.rows.is_empty() {
                print::print_status(table.text().trim_end());
            }
        }
    }
}

/// A line for each client with its recent work, if `is_shown` accepts it.
fn client_table(
    now: &BTreeMap<Option<IpAddr>, ClientCounts>,
    before: &BTreeMap<Option<IpAddr>, ClientCounts>,
    since: Duration,
    is_shown: impl Fn(&ClientCounts) -> bool,
) -> Table {
    let done = now.iter().map(|(address, counts)| {
        (*address, counts.since(before.get(address).unwrap_or(&ClientCounts::default())), *counts)
    });
    let mut done: Vec<_> = done.filter(|(_, new, _)| is_shown(new)).collect();
    done.sort_by_key(|(address, new, _)| (address.is_none(), std::cmp::Reverse(new.bytes())));
    let others = done.split_off(done.len().min(CLIENTS_MAX));
    let mut rows: Vec<_> =
        done.iter().map(|(address, new, all)| client_row(client_name(*address), new, all, since)).collect();
    if !others.is_empty() {
        let (mut new, mut all) = (ClientCounts::default(), ClientCounts::default());
        others.iter().for_each(|other| {
            new.add(&other.1);
            all.add(&other.2);
        });
        rows.push(client_row(format!("{} others", others.len()), &new, &all, since));
    }
    Table::new(&["client", "calls/s", "reads/s", "MB/s", "copied", "bytes in all"], 1..6, rows)
}

fn client_name(address: Option<IpAddr>) -> String {
    address.map_or("other clients".into(), |address| address.to_string())
}

fn client_row(name: String, new: &ClientCounts, all: &ClientCounts, since: Duration) -> Vec<String> {
    let a_second = |count: u64| count as f64 / since.as_secs_f64();
    let copied = match new.bytes() {
        0 => "-".into(),
        bytes => format!("{:.0} %", 100.0 * (bytes - new.spliced) as f64 / bytes as f64),
    };
    let speed = format!("{:.1}", a_second(new.bytes()) / 1e6);
    vec![
        name,
        short_number(a_second(new.calls)),
        short_number(a_second(new.reads)),
        speed,
        copied,
        short_number(all.bytes() as f64),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client_counts(calls: u64, reads: u64, spliced: u64, small: u64) -> ClientCounts {
        ClientCounts {
            connections: 1,
            calls,
            reads,
            spliced,
            copied: [small, 0, 0, 0],
            ..ClientCounts::default()
        }
    }

    fn counts_by_client(
        of: impl IntoIterator<Item = (u8, ClientCounts)>,
    ) -> BTreeMap<Option<IpAddr>, ClientCounts> {
        of.into_iter().map(|(number, counts)| (Some([10, 0, 0, number].into()), counts)).collect()
    }

    #[test]
    fn rows_show_the_work_since_the_last_table() {
        let before = counts_by_client([(1, client_counts(10, 5, 1000, 0))]);
        let now = counts_by_client([
            (1, client_counts(30, 15, 1000, 0)),
            (2, client_counts(100, 80, 3_000_000, 1_000_000)),
        ]);
        let table = client_table(&now, &before, Duration::from_secs(2), |_| true);
        assert_eq!(table.rows[0], ["10.0.0.2", "50", "40", "2.0", "25 %", "4.00 M"]);
        assert_eq!(table.rows[1], ["10.0.0.1", "10", "5", "0.0", "-", "1000"]);
    }

    #[test]
    fn many_clients_share_a_limited_number_of_rows() {
        let now =
            counts_by_client((0..100).map(|number| (number, client_counts(1, 1, u64::from(number), 0))));
        let table = client_table(&now, &BTreeMap::new(), Duration::from_secs(1), |_| true);
        assert_eq!(table.rows.len(), CLIENTS_MAX + 1);
        assert_eq!(table.rows[0][0], "10.0.0.99");
        assert_eq!(table.rows[CLIENTS_MAX][0], "88 others");
        assert_eq!(table.rows[CLIENTS_MAX][5], short_number((0..88).sum::<u64>() as f64));
    }

    #[test]
    fn plain_output_lists_only_active_clients() {
        let before = counts_by_client([(1, client_counts(10, 0, 0, 0)), (2, client_counts(10, 0, 0, 0))]);
        let now = counts_by_client([(1, client_counts(10, 0, 0, 0)), (2, client_counts(11, 0, 0, 0))]);
        let table = client_table(&now, &before, Duration::from_secs(1), |new| new.calls > 0);
        assert_eq!(table.rows.iter().map(|row| &row[0]).collect::<Vec<_>>(), ["10.0.0.2"]);
    }
}
