//! The observed interfaces: one, or all existing ones.

use nocopy::integration::statistics::{Snapshot, SnapshotError};
use nocopy::port::InterfaceError;

use super::report::{InterfaceReport, SocketOwners};
use crate::{Failure, interfaces};

#[derive(Debug)]
pub(super) struct InterfaceMonitor {
    /// `None`: all of this network namespace.
    interface: Option<String>,
    before: Vec<Snapshot>,
    owners: SocketOwners,
}

impl InterfaceMonitor {
    pub(super) fn new(interface: Option<String>) -> Self {
        Self { interface, before: Vec::new(), owners: SocketOwners::default() }
    }

    pub(super) fn has_named_interface(&self) -> bool {
        self.interface.is_some()
    }

    /// One report for each existing interface, with rates since the last refresh.
    /// Errors: the interface does not exist, or the kernel refused to answer.
    pub(super) fn refresh(&mut self) -> Result<Vec<InterfaceReport>, Failure> {
        let now = match &self.interface {
            Some(name) => vec![Snapshot::of_interface(name)?],
            None => take_all_snapshots()?,
        };
        Ok(self.update_snapshots(now))
    }

    fn update_snapshots(&mut self, now: Vec<Snapshot>) -> Vec<InterfaceReport> {
        let reports = now.iter().map(|now| {
            let before = self.before.iter().find(|before| before.interface == now.interface);
            InterfaceReport::new(now, before, &mut self.owners)
        });
        let reports = reports.collect();
        self.before = now;
        reports
    }
}

/// All interfaces, without those that are removed meanwhile.
fn take_all_snapshots() -> Result<Vec<Snapshot>, Failure> {
    let names = interfaces::interface_names()?;
    let snapshots = names.iter().filter_map(|name| match Snapshot::of_interface(name) {
        Err(SnapshotError::Interface(InterfaceError::NotFound { .. })) => None,
        snapshot => Some(snapshot.map_err(Failure::from)),
    });
    snapshots.collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::stats::report::CounterRow;

    /// An interface that has received that many packets, two seconds after the previous snapshot if there is
    /// one.
    fn snapshot_after(interface: &str, rx_packets: u64, before: Option<&Snapshot>) -> Snapshot {
        let mut snapshot = Snapshot::of_interface("lo").unwrap();
        interface.clone_into(&mut snapshot.interface);
        snapshot.link.rx_packets = rx_packets;
        if let Some(before) = before {
            snapshot.taken = before.taken + Duration::from_secs(2);
        }
        snapshot
    }

    fn received_packet_rows(reports: &[InterfaceReport]) -> Vec<(&str, u64, Option<f64>)> {
        let row = |report: &InterfaceReport| -> (u64, Option<f64>) {
            let CounterRow { counter, per_second, .. } = &report.groups[0].rows[0];
            assert_eq!(counter.name, "rx_packets");
            (counter.value, *per_second)
        };
        reports.iter().map(|report| (&*report.interface, row(report).0, row(report).1)).collect()
    }

    #[test]
    fn rates_are_increases_divided_by_time() {
        let mut watch = InterfaceMonitor::new(None);
        let first = snapshot_after("a", 100, None);
        let second = snapshot_after("a", 150, Some(&first));
        assert_eq!(received_packet_rows(&watch.update_snapshots(vec![first])), [("a", 100, None)]);
        assert_eq!(received_packet_rows(&watch.update_snapshots(vec![second])), [("a", 150, Some(25.0))]);
    }

    #[test]
    fn a_decreased_counter_counts_from_zero() {
        let mut watch = InterfaceMonitor::new(None);
        let first = snapshot_after("a", 100, None);
        let second = snapshot_after("a", 30, Some(&first));
        watch.update_snapshots(vec![first]);
        assert_eq!(received_packet_rows(&watch.update_snapshots(vec![second])), [("a", 30, Some(15.0))]);
    }

    #[test]
    fn an_interface_added_again_has_no_rate_at_first() {
        let mut watch = InterfaceMonitor::new(None);
        let (a, b) = (snapshot_after("a", 100, None), snapshot_after("b", 10, None));
        let (b2, c) = (snapshot_after("b", 12, Some(&b)), snapshot_after("c", 7, Some(&b)));
        let (a3, b3) = (snapshot_after("a", 5, Some(&b2)), snapshot_after("b", 12, Some(&b2)));
        watch.update_snapshots(vec![a, b]);
        assert_eq!(
            received_packet_rows(&watch.update_snapshots(vec![b2, c])),
            [("b", 12, Some(1.0)), ("c", 7, None)]
        );
        assert_eq!(
            received_packet_rows(&watch.update_snapshots(vec![a3, b3])),
            [("a", 5, None), ("b", 12, Some(0.0))]
        );
    }

    #[test]
    fn only_a_named_interface_must_exist() {
        let mut named = InterfaceMonitor::new(Some("nc-none".into()));
        assert!(named.has_named_interface() && named.refresh().unwrap_err().to_string().contains("nc-none"));
        let mut all = InterfaceMonitor::new(None);
        let names: Vec<_> = all.refresh().unwrap().into_iter().map(|report| report.interface).collect();
        assert!(names.contains(&"lo".to_owned()), "{names:?}");
    }
}
