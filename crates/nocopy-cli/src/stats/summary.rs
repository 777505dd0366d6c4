//! The counts of the whole observation: the last line of a live view, and of printed refreshes.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::line::{Part, Quantity, lines};
use super::report::Report;
use nocopy_report::quantity::{in_time, short};

#[derive(Debug)]
pub(super) struct Summary {
    start: Instant,
    interfaces: HashSet<String>,
    /// By [`Quantity`].
    counts: [u64; 5],
}

impl Summary {
    /// Begins with the existing interfaces.
    pub(super) fn begin(first: &[Report]) -> Self {
        let mut summary = Self { start: Instant::now(), interfaces: HashSet::new(), counts: [0; 5] };
        summary.add(first);
        summary
    }

    pub(super) fn add(&mut self, reports: &[Report]) {
        for line in reports.iter().flat_map(lines).filter(|line| line.part == Part::Whole) {
            for quantity in Quantity::ALL {
                let amount = line.amount(quantity).and_then(|amount| amount.counted);
                self.counts[quantity as usize] += amount.unwrap_or_default();
            }
            self.interfaces.insert(line.interface);
        }
    }

    pub(super) fn line(&self) -> String {
        self.text(self.start.elapsed())
    }

    fn text(&self, elapsed: Duration) -> String {
        let count = |quantity| short(self.counts[quantity as usize] as f64);
        let interfaces = match self.interfaces.iter().collect::<Vec<_>>()[..] {
            [name] => name.clone(),
            ref all => format!("{} interfaces", all.len()),
        };
        format!(
            "{interfaces}{}: received {} packets, {} bytes; sent {} packets, {} bytes; dropped {}\n",
            in_time(elapsed.as_secs_f64()),
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
    use crate::stats::line::tests::{group, report};
    use crate::stats::report::Source;

    #[test]
    fn it_sums_up_interfaces_that_come_and_go_and_no_queue_twice() {
        let link = |packets| group(Source::Link, &[("rx_packets", 1000, packets), ("rx_dropped", 9, 1)]);
        let queue = group(Source::Queue("rx".into(), 0), &[("rx_packets", 1000, 500)]);
        let mut summary = Summary::begin(&[]);
        summary.add(&[report("eth0", vec![link(200), queue]), report("tun0", vec![link(30)])]);
        summary.add(&[report("eth0", vec![link(100)])]);
        assert_eq!(
            summary.text(Duration::from_secs(4)),
            "2 interfaces in 4.00 s: received 330 packets, 0 bytes; sent 0 packets, 0 bytes; dropped 3\n"
        );
    }

    #[test]
    fn one_interface_is_named() {
        let summary = Summary::begin(&[report("eth0", vec![])]);
        let text = summary.text(Duration::from_millis(1500));
        assert!(text.starts_with("eth0 in 1.50 s: received 0 packets"), "{text}");
    }
}
