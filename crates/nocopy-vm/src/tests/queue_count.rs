use crate::guest::patience::wait_until;
use crate::guest::{Guest, flow, traffic};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "a port goes on when queues beside its own go and come, a queue that came can be opened beside it, and the \
             kernel takes away no queue that has a port",
    // The hub gives a virtio device one queue, and that is all it can have.
    on: &[Topology::Igb],
    kernels: &[Kernel::Newest],
    run,
};

fn run(guest: &Guest) -> Result<(), Failure> {
    let lab = guest.lab();
    lab.left().set_queues(1)?;
    lab.wait_for_carrier()?;
    let (mut left, mut right) = traffic::open_both_ports(lab)?;
    let account = flow::run_with_traffic(lab, &mut left, &mut right, |gauge| {
        for queues in [2, 1, 2] {
            gauge.wait_for_traffic()?;
            lab.left().set_queues(queues)?;
            lab.wait_for_carrier()?;
        }
        gauge.wait_for_traffic()
    })?;
    guest.record_measurement(&account);
    assert!(account.errors.is_empty(), "{account:?}");
    let second = traffic::open_port_on_queue(lab.left(), 1)?;
    lab.left().set_queues(1).expect_err("a queue with a port stays");
    traffic::close_and_check_frames(second);
    // The refusal has no other reason: without the port the change is accepted.
    wait_until("the queue whose port is closed can go", || Ok(lab.left().set_queues(1).is_ok()))?;
    lab.wait_for_carrier()?;
    traffic::assert_ports_still_work(lab, left, right)
}
