//! The counts of the whole observation: the last line of a live view, and of printed refreshes.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::line::{LineSubject, Quantity, interface_lines};
use super::report::InterfaceReport;
use nocopy_report::quantity::{in_time_suffix, short_number};

#[derive(Debug)]
pub(super) struct ObservationSummary {
    start: Instant,
    interfaces: HashSet<String>,
    /// By [`Quantity`].
    counts: [u64; 5],
}

impl ObservationSummary {
    /// Begins with the existing interfaces.
    pub(super) fn new(first: &[InterfaceReport]) -> Self {
        let mut summary = Self { start: Instant::now(), interfaces: HashSet::new(), counts: [0; 5] };
        summary.add_reports(first);
        summary
    }

    pub(super) fn add_reports(&mut self, reports: &[InterfaceReport]) {
        for line in
            reports.iter().flat_map(interface_lines).filter(|line| line.subject == LineSubject::Interface)
        {
            for quantity in Quantity::ALL {
                let amount = line.amount(quantity).and_then(|amount| amount.increase);
                self.counts[quantity as usize] += amount.unwrap_or_default();
            }
            self.interfaces.insert(line.interface);
        }
    }

    pub(super) fn summary_line(&self) -> String {
        self.text_after(self.start.elapsed())
    }

    fn text_after(&self, elapsed: Duration) -> String {
        let count = |quantity| short_number(self.counts[quantity as usize] as f64);
        let interfaces = match self.interfaces.iter().collect::<Vec<_>>()[..] {
            [name] => name.clone(),
            ref all => format!("{} interfaces", all.len()),
        };
        format!(
            "{interfaces}{}: received {} packets, {} bytes; sent {} packets, {} bytes; dropped {}\n",
            in_time_suffix(elapsed.as_secs_f64()),
            count(Quantity::RxPackets),
            count(Quantity::RxBytes),
            count(Quantity::TxPackets),
            count(Quantity::TxBytes),
            count(Quantity::Drops),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::line::tests::{counter_group, report_with_groups};
    use crate::stats::report::CounterSource;

    #[test]
    fn removed_interfaces_are_counted_and_queues_are_not() {
        let link = |packets| {
            counter_group(CounterSource::Link, &[("rx_packets", 1000, packets), ("rx_dropped", 9, 1)])
        };
        let queue = counter_group(CounterSource::Queue("rx".into(), 0), &[("rx_packets", 1000, 500)]);
        let mut summary = ObservationSummary::new(&[]);
        summary.add_reports(&[
            report_with_groups("eth0", vec![link(200), queue]),
            report_with_groups("tun0", vec![link(30)]),
        ]);
        summary.add_reports(&[report_with_groups("eth0", vec![link(100)])]);
        assert_eq!(
            summary.text_after(Duration::from_secs(4)),
            "2 interfaces in 4.00 s: received 330 packets, 0 bytes; sent 0 packets, 0 bytes; dropped 3\n"
        );
    }

    #[test]
    fn a_single_interface_is_named() {
        let summary = ObservationSummary::new(&[report_with_groups("eth0", vec![])]);
        let text = summary.text_after(Duration::from_millis(1500));
        assert!(text.starts_with("eth0 in 1.50 s: received 0 packets"), "{text}");
    }
}
