use crate::guest::{Guest, flow, traffic};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "a driver unloaded under ports that send and receive is an error that says so, every frame is accounted for, \
             and when the driver is back new ports work",
    on: &[Topology::Igb, Topology::Virtio],
    kernels: &[Kernel::Newest],
    run,
};

fn run(guest: &Guest) -> Result<(), Failure> {
    let lab = guest.lab();
    let (mut left, mut right) = traffic::open_both_ports(lab)?;
    let account = flow::run_with_traffic(lab, &mut left, &mut right, |gauge| {
        gauge.wait_for_traffic()?;
        guest.unload_driver()?;
        gauge.wait_for_round()
    })?;
    guest.record_measurement(&account);
    let gone = |error: &String| error.contains("the interface was removed");
    let down = |error: &String| error.contains("the interface is down");
    assert!(account.errors.iter().any(gone), "{account:?}");
    assert!(account.errors.iter().all(|error| gone(error) || down(error)), "{account:?}");
    for port in [left, right] {
        let balance = port.balance();
        assert!(balance.is_balanced() && balance.in_use == 0, "{balance}");
        traffic::close_and_check_frames(port);
    }
    let lab = guest.reload_driver()?;
    let (left, right) = traffic::open_both_ports(&lab)?;
    traffic::assert_ports_still_work(&lab, left, right)
}
