use std::thread::sleep;
use std::time::Duration;

use nocopy::port::{InterfaceError, OpenError};

use crate::guest::{Guest, flow, traffic};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "an interface set down under traffic is an error that says so, and when it is up again the same port goes on; one \
             that is down opens no port, and a port closed while it is down leaves nothing",
    on: &[Topology::Igb, Topology::Virtio],
    kernels: &[Kernel::Newest],
    run,
};

const ROUNDS: u32 = 2;
const DOWN: Duration = Duration::from_millis(100);

fn run(guest: &Guest) -> Result<(), Failure> {
    let lab = guest.lab();
    let (mut left, mut right) = traffic::open_both_ports(lab)?;
    let account = flow::run_with_traffic(lab, &mut left, &mut right, |gauge| {
        for _ in 0..ROUNDS {
            gauge.wait_for_traffic()?;
            lab.left().set_down()?;
            sleep(DOWN);
            gauge.wait_for_round()?;
            lab.left().bring_interface_up()?;
            lab.wait_for_carrier()?;
        }
        gauge.wait_for_traffic()
    })?;
    guest.record_measurement(&account);
    let says_so = |error: &String| error.contains("the interface is down");
    assert!(!account.errors.is_empty() && account.errors.iter().all(says_so), "{account:?}");
    lab.left().set_down()?;
    traffic::close_and_check_frames(left);
    let refused = traffic::open_port(lab.left()).expect_err("the interface is down");
    assert!(matches!(refused, OpenError::Interface(InterfaceError::Down { .. })), "{refused}");
    lab.left().bring_interface_up()?;
    traffic::assert_ports_still_work(lab, traffic::open_port(lab.left())?, right)
}
