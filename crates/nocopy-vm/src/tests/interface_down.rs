use std::thread::sleep;
use std::time::Duration;

use serde_json::json;

use crate::guest::{Guest, flow, traffic};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "an interface set down under traffic is an error that says so, and when it is up again the same port goes on",
    on: &[Topology::Igb, Topology::Virtio],
    kernel: Kernel::Newest,
    run,
};

const ROUNDS: u32 = 2;
const DOWN: Duration = Duration::from_millis(100);

fn run(guest: &Guest) -> Result<(), Failure> {
    let lab = guest.lab();
    let (mut left, mut right) = traffic::open_both(lab)?;
    let account = flow::during(lab, &mut left, &mut right, |gauge| {
        for _ in 0..ROUNDS {
            gauge.wait_for_traffic()?;
            lab.left().set_down()?;
            sleep(DOWN);
            lab.left().set_up()?;
            lab.wait_for_carrier()?;
        }
        gauge.wait_for_traffic()
    })?;
    guest.record(&json!({ "rounds": ROUNDS, "meanwhile": account }));
    let says_so = |error: &String| error.contains("the interface is down");
    assert!(!account.errors.is_empty() && account.errors.iter().all(says_so), "{account:?}");
    traffic::assert_unharmed(lab, left, right)
}
