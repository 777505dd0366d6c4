use std::thread::sleep;
use std::time::Duration;

use crate::guest::monitor::EmulatorMonitor;
use crate::guest::patience::wait_until;
use crate::guest::{Guest, flow, traffic};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "a cable pulled out and put back while both ends send costs packets, but no error, no frame and no later packet",
    on: &[Topology::Igb, Topology::Virtio],
    kernels: &[Kernel::Newest],
    run,
};

const FLAPS: u32 = 2;

/// Long enough for the driver to find frames that it cannot send.
const PULLED: Duration = Duration::from_millis(500);

fn run(guest: &Guest) -> Result<(), Failure> {
    let lab = guest.lab();
    let mut monitor = EmulatorMonitor::open()?;
    let (mut left, mut right) = traffic::open_both_ports(lab)?;
    let account = flow::run_with_traffic(lab, &mut left, &mut right, |gauge| {
        for _ in 0..FLAPS {
            gauge.wait_for_traffic()?;
            monitor.set_cable_plugged(0, false)?;
            wait_until("the driver notices that the cable is out", || Ok(!lab.left().has_carrier()?))?;
            sleep(PULLED);
            monitor.set_cable_plugged(0, true)?;
            lab.wait_for_carrier()?;
        }
        gauge.wait_for_traffic()
    })?;
    guest.record_measurement(&account);
    assert!(account.errors.is_empty(), "{account:?}");
    traffic::assert_ports_still_work(lab, left, right)
}
