//! The lines of the live view and its summary: an interface, one of its queues or AF_XDP sockets, with what
//! each moves and drops.

use std::collections::BTreeMap;

use super::export::table;
use super::report::{CounterGroup, CounterRow, CounterSource, InterfaceReport};

/// The subject of a line; also the order of lines.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LineSubject {
    /// The interface.
    Interface,
    Queue(u32),
    /// An AF_XDP socket: its queue, its number in the kernel, and a text with both and its process.
    Socket(u32, u32, String),
}

/// A quantity, as an index into a line's amounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quantity {
    RxPackets,
    RxBytes,
    TxPackets,
    TxBytes,
    Drops,
}

impl Quantity {
    pub(super) const ALL: [Self; 5] =
        [Self::RxPackets, Self::RxBytes, Self::TxPackets, Self::TxBytes, Self::Drops];
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct CounterAmount {
    pub(super) total: u64,
    /// Increase since the last refresh.
    pub(super) increase: Option<u64>,
    pub(super) per_second: Option<f64>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct CounterLine {
    pub(super) interface: String,
    pub(super) subject: LineSubject,
    /// By [`Quantity`]; `None` if not counted.
    amounts: [Option<CounterAmount>; 5],
}

impl CounterLine {
    pub(super) fn amount(&self, quantity: Quantity) -> Option<CounterAmount> {
        self.amounts[quantity as usize]
    }

    /// Whether any of its counters was ever above 0.
    pub(super) fn is_active(&self) -> bool {
        self.amounts.iter().flatten().any(|amount| amount.total > 0)
    }

    /// Whether it dropped packets since the last refresh.
    pub(super) fn is_dropping(&self) -> bool {
        self.amount(Quantity::Drops).and_then(|drops| drops.increase).is_some_and(|count| count > 0)
    }
}

/// The lines of an interface: itself, its queues, the AF_XDP sockets on it.
pub(super) fn interface_lines(report: &InterfaceReport) -> Vec<CounterLine> {
    let mut amounts = SubjectAmounts(BTreeMap::from([(LineSubject::Interface, [None; 5])]));
    let has_queues = report.groups.iter().any(|group| matches!(group.source, CounterSource::Queue(..)));
    for CounterGroup { source, rows } in &report.groups {
        match source {
            CounterSource::Link => amounts.add_rows(LineSubject::Interface, rows, link_quantity),
            CounterSource::Queue(_, number) => {
                amounts.add_rows(LineSubject::Queue(*number), rows, queue_quantity)
            }
            CounterSource::Socket(socket) => {
                let subject = LineSubject::Socket(socket.queue, socket.inode, table::source_name(source));
                amounts.add_rows(subject, rows, socket_quantity);
            }
            // The driver's counters of a queue that the kernel's counters already include.
            CounterSource::Driver if has_queues => {}
            CounterSource::Driver => amounts.add_driver_rows(rows),
        }
    }
    let line = |(subject, amounts)| CounterLine { interface: report.interface.clone(), subject, amounts };
    amounts.0.into_iter().map(line).collect()
}

/// The amounts of each line of an interface.
struct SubjectAmounts(BTreeMap<LineSubject, [Option<CounterAmount>; 5]>);

impl SubjectAmounts {
    fn add_rows(
        &mut self,
        subject: LineSubject,
        rows: &[CounterRow],
        quantity: impl Fn(&str) -> Option<Quantity>,
    ) {
        let amounts = self.0.entry(subject).or_default();
        for row in rows {
            if let Some(quantity) = quantity(&row.counter.name) {
                add_counter_row(&mut amounts[quantity as usize], row);
            }
        }
    }

    /// Some drivers count XDP packets besides all packets; some (veth) count nothing else, and then these
    /// counters are used.
    fn add_driver_rows(&mut self, rows: &[CounterRow]) {
        let all = rows.iter().filter_map(|row| Some((parse_driver_counter_name(&row.counter.name)?, row)));
        let (xdp, all): (Vec<_>, Vec<_>) = all.partition(|(name, _)| name.is_xdp);
        for (name, row) in all {
            let amounts = self.0.entry(LineSubject::Queue(name.queue)).or_default();
            add_counter_row(&mut amounts[name.quantity as usize], row);
        }
        let before = self.0.clone();
        for (name, row) in xdp {
            let (subject, index) = (LineSubject::Queue(name.queue), name.quantity as usize);
            if before.get(&subject).is_none_or(|amounts| amounts[index].is_none()) {
                add_counter_row(&mut self.0.entry(subject).or_default()[index], row);
            }
        }
    }
}

fn add_counter_row(amount: &mut Option<CounterAmount>, row: &CounterRow) {
    let amount = amount.get_or_insert_default();
    amount.total += row.counter.value;
    if let (Some(increase), Some(per_second)) = (row.increase, row.per_second) {
        *amount.increase.get_or_insert_default() += increase;
        *amount.per_second.get_or_insert_default() += per_second;
    }
}

/// The column of /proc/net/dev that corresponds to a counter.
fn link_quantity(name: &str) -> Option<Quantity> {
    match name {
        "rx_dropped" | "tx_dropped" | "rx_missed_errors" => Some(Quantity::Drops),
        _ => traffic_quantity(name),
    }
}

fn queue_quantity(name: &str) -> Option<Quantity> {
    match name {
        "rx_hw_drops" | "tx_hw_drops" => Some(Quantity::Drops),
        _ => traffic_quantity(name),
    }
}

/// Packets that reached the socket and were dropped there; the other counters are reasons, and no further
/// packets.
fn socket_quantity(name: &str) -> Option<Quantity> {
    matches!(name, "rx_dropped" | "rx_ring_full").then_some(Quantity::Drops)
}

fn traffic_quantity(name: &str) -> Option<Quantity> {
    match name {
        "rx_packets" => Some(Quantity::RxPackets),
        "rx_bytes" => Some(Quantity::RxBytes),
        "tx_packets" => Some(Quantity::TxPackets),
        "tx_bytes" => Some(Quantity::TxBytes),
        _ => None,
    }
}

/// The meaning of a driver's counter name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ParsedDriverCounterName {
    queue: u32,
    quantity: Quantity,
    /// Whether it counts packets that an XDP program received.
    is_xdp: bool,
}

/// Drivers agree on no form, but on the words: `rx_queue_0_packets` (igb), `rx0_bytes` (mlx5), `rx-0.packets`
/// (i40e), `queue_0_rx_cnt` (ena), `rx_queue_0_xdp_packets` (veth). A name with any other word is of
/// something else.
fn parse_driver_counter_name(name: &str) -> Option<ParsedDriverCounterName> {
    let (mut direction, mut queue, mut what, mut is_xdp) = (None, None, None, false);
    for word in letter_and_digit_runs(name) {
        match word {
            "queue" => {}
            "xdp" => is_xdp = true,
            "rx" | "tx" if direction.is_none() => direction = Some(word),
            "packets" | "cnt" if what.is_none() => what = Some("packets"),
            "bytes" if what.is_none() => what = Some(word),
            "drops" | "dropped" if what.is_none() => what = Some("drops"),
            number if queue.is_none() => queue = Some(number.parse().ok()?),
            _ => return None,
        }
    }
    let quantity = match what? {
        "drops" => direction.map(|_| Quantity::Drops)?,
        what => traffic_quantity(&format!("{}_{what}", direction?))?,
    };
    Some(ParsedDriverCounterName { queue: queue?, quantity, is_xdp })
}

/// Runs of letters and runs of digits.
fn letter_and_digit_runs(name: &str) -> impl Iterator<Item = &str> {
    let separated = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| !part.is_empty());
    separated.flat_map(|part| {
        let cut = part.find(|c: char| c.is_ascii_digit()).unwrap_or(part.len());
        let (letters, digits) = part.split_at(cut);
        [letters, digits].into_iter().filter(|word| !word.is_empty())
    })
}

#[cfg(test)]
pub(super) mod tests {
    use std::borrow::Cow;

    use nocopy::Counter;

    use super::*;
    use crate::stats::report::XdpSocket;

    /// Counters with their growth in the last two seconds.
    pub(in crate::stats) fn counter_group(
        source: CounterSource,
        rows: &[(&'static str, u64, u64)],
    ) -> CounterGroup {
        let row = |&(name, value, increase): &(&'static str, u64, u64)| CounterRow {
            counter: Counter { name: Cow::Borrowed(name), meaning: "", value },
            increase: Some(increase),
            per_second: Some(increase as f64 / 2.0),
        };
        CounterGroup { source, rows: rows.iter().map(row).collect() }
    }

    pub(in crate::stats) fn report_with_groups(
        interface: &str,
        groups: Vec<CounterGroup>,
    ) -> InterfaceReport {
        InterfaceReport { interface: interface.into(), seconds: Some(2.0), groups, knows_sockets: true }
    }

    fn rate_in_line(line: &CounterLine, quantity: Quantity) -> Option<f64> {
        line.amount(quantity)?.per_second
    }

    #[test]
    fn a_line_of_an_interface_has_rates_and_all_drops() {
        let link = [
            ("rx_packets", 100, 20),
            ("tx_bytes", 9, 4),
            ("rx_dropped", 3, 2),
            ("rx_missed_errors", 4, 2),
            ("rx_errors", 50, 50),
        ];
        let lines =
            interface_lines(&report_with_groups("eth0", vec![counter_group(CounterSource::Link, &link)]));
        assert_eq!(lines.len(), 1);
        assert_eq!((lines[0].interface.as_str(), &lines[0].subject), ("eth0", &LineSubject::Interface));
        assert_eq!(rate_in_line(&lines[0], Quantity::RxPackets), Some(10.0));
        assert_eq!(rate_in_line(&lines[0], Quantity::TxBytes), Some(2.0));
        assert_eq!(lines[0].amount(Quantity::RxBytes), None);
        let drops = CounterAmount { total: 7, increase: Some(4), per_second: Some(2.0) };
        assert_eq!(lines[0].amount(Quantity::Drops), Some(drops));
        assert!(lines[0].is_dropping() && lines[0].is_active());
    }

    #[test]
    fn both_directions_of_a_queue_are_one_line() {
        let rx = counter_group(
            CounterSource::Queue("rx".into(), 1),
            &[("rx_packets", 8, 4), ("rx_hw_drops", 2, 0)],
        );
        let tx = counter_group(CounterSource::Queue("tx".into(), 1), &[("tx_packets", 6, 2)]);
        let driver = counter_group(CounterSource::Driver, &[("rx_queue_1_packets", 8, 4)]);
        let lines = interface_lines(&report_with_groups("eth0", vec![rx, tx, driver]));
        assert_eq!(lines[1].subject, LineSubject::Queue(1));
        assert_eq!(rate_in_line(&lines[1], Quantity::RxPackets), Some(2.0), "the driver says the same again");
        assert_eq!(rate_in_line(&lines[1], Quantity::TxPackets), Some(1.0));
        assert!(!lines[1].is_dropping() && lines[1].is_active());
    }

    #[test]
    fn a_line_of_a_socket_has_its_process_and_drops() {
        let owner = Some((7, "capture".to_owned()));
        let socket = CounterSource::Socket(XdpSocket { inode: 9, queue: 3, zero_copy: true, owner });
        let counters = [("rx_dropped", 5, 4), ("rx_ring_full", 2, 2), ("tx_invalid_descs", 1, 1)];
        let lines = interface_lines(&report_with_groups("eth0", vec![counter_group(socket, &counters)]));
        assert_eq!(lines[1].subject, LineSubject::Socket(3, 9, "AF_XDP queue 3 of capture (7)".into()));
        assert_eq!(lines[1].amount(Quantity::Drops).unwrap().total, 7);
        assert_eq!(rate_in_line(&lines[1], Quantity::Drops), Some(3.0));
    }

    #[test]
    fn the_first_refresh_has_no_rate() {
        let mut link = counter_group(CounterSource::Link, &[("rx_packets", 100, 20)]);
        (link.rows[0].increase, link.rows[0].per_second) = (None, None);
        let lines = interface_lines(&report_with_groups("eth0", vec![link]));
        let amount = CounterAmount { total: 100, increase: None, per_second: None };
        assert_eq!(lines[0].amount(Quantity::RxPackets), Some(amount));
    }

    #[test]
    fn queue_numbers_are_parsed_from_driver_counter_names() {
        use Quantity::{Drops, RxBytes, RxPackets, TxBytes, TxPackets};
        for (name, queue, quantity, is_xdp) in [
            ("rx_queue_0_packets", 0, RxPackets, false),
            ("tx_queue_12_bytes", 12, TxBytes, false),
            ("rx0_bytes", 0, RxBytes, false),
            ("tx-3.packets", 3, TxPackets, false),
            ("queue_2_rx_cnt", 2, RxPackets, false),
            ("rx_queue_1_drops", 1, Drops, false),
            ("rx_queue_0_xdp_packets", 0, RxPackets, true),
        ] {
            assert_eq!(
                parse_driver_counter_name(name),
                Some(ParsedDriverCounterName { queue, quantity, is_xdp }),
                "{name}"
            );
        }
        for name in [
            "rx_packets",
            "rx_queue_0_csum_err",
            "rx_64_byte_packets",
            "queue_0_drops",
            "rx0_packets_bytes",
            "tx_queue_0_xdp_xmit",
            "rx_queue_99999999999_packets",
            "",
        ] {
            assert_eq!(parse_driver_counter_name(name), None, "{name}");
        }
    }

    #[test]
    fn xdp_counters_are_used_only_without_others_of_the_queue() {
        let driver = [
            ("rx_queue_0_xdp_packets", 50, 10),
            ("rx_queue_1_packets", 80, 40),
            ("rx_queue_1_xdp_packets", 60, 20),
        ];
        let lines =
            interface_lines(&report_with_groups("veth", vec![counter_group(CounterSource::Driver, &driver)]));
        assert_eq!(rate_in_line(&lines[1], Quantity::RxPackets), Some(5.0));
        assert_eq!(rate_in_line(&lines[2], Quantity::RxPackets), Some(20.0));
    }
}
