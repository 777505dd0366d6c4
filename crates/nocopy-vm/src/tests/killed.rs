use std::thread::sleep;
use std::time::{Duration, Instant};

use fastrand::Rng;
use nocopy::Port;
use serde_json::json;

use crate::guest::flow::PacketFlow;
use crate::guest::patience::{ARRIVAL_MAX, wait_until};
use crate::guest::victim::RunningVictim;
use crate::guest::{Guest, traffic};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "a process killed by SIGKILL, while it opens its port or in the middle of its traffic, leaves no XDP program and \
             no pinned page, and the next one opens the interface in zero-copy: 100 times (on igb, whose link takes seconds \
             to come back, 6 times; 100 with --soak)",
    on: &[Topology::Igb, Topology::Virtio],
    kernels: &[Kernel::Newest],
    run,
};

const KILLS: u32 = 100;
const KILLS_QUICK_ON_IGB: u32 = 6;

/// More than one process sends, so each uses its own numbers.
const NUMBERS_EACH: u32 = 1_000_000;

/// How long a process lives, at most, after its first packet arrived.
const TRAFFIC_MS_MAX: u64 = 50;

/// The approximate time of opening a port.
const fn opening_ms(topology: Topology) -> u64 {
    match topology {
        Topology::Igb => 3000,
        Topology::Virtio | Topology::VirtioTaps | Topology::Veth => 200,
    }
}

fn run(guest: &Guest) -> Result<(), Failure> {
    let (left, right) = (guest.lab().left(), guest.lab().right());
    let kills =
        if guest.topology() == Topology::Igb && !guest.is_soak() { KILLS_QUICK_ON_IGB } else { KILLS };
    let seed = guest.seed();
    let mut random = Rng::with_seed(seed);
    let mut port = traffic::open_port(right)?;
    let (mut out, mut back) = (PacketFlow::new(left.mac(), 0), PacketFlow::new(right.mac(), 0));
    for kill in 0..kills {
        let first = kill * NUMBERS_EACH;
        let mut victim = RunningVictim::start(left, right, first)?;
        if kill % 2 == 0 {
            victim.wait_until_open()?;
            // Not any packet: one of the previous process may still be in flight.
            exchange_until(&mut port, &mut out, &mut back, |back| back.has_reached(first), ARRIVAL_MAX)?;
            assert!(back.has_reached(first), "no packet came from process {kill}");
            exchange_until(
                &mut port,
                &mut out,
                &mut back,
                |_| false,
                milliseconds(random.u64(..TRAFFIC_MS_MAX)),
            )?;
        } else {
            sleep(milliseconds(random.u64(..opening_ms(guest.topology()))));
        }
        victim.kill()?;
        wait_until("the XDP program of the killed process is gone", || Ok(left.xdp_program()?.is_none()))?;
    }
    guest.record_measurement(
        &json!({ "seed": seed.to_string(), "kills": kills, "packets": back.arrived_count() }),
    );
    traffic::assert_ports_still_work(guest.lab(), traffic::open_port(left)?, port)
}

const fn milliseconds(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Sends and receives until it is `enough`, for at most `time`.
fn exchange_until(
    port: &mut Port,
    out: &mut PacketFlow,
    back: &mut PacketFlow,
    enough: impl Fn(&PacketFlow) -> bool,
    time: Duration,
) -> Result<(), Failure> {
    let end = Instant::now() + time;
    while !enough(back) && Instant::now() < end {
        out.send_batch(port.sender())?;
        back.receive_and_check(port.receiver())?;
    }
    Ok(())
}
