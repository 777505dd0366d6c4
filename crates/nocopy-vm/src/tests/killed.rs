use std::time::{Duration, Instant, SystemTime};

use nocopy::Port;
use serde_json::json;

use crate::guest::flow::Flow;
use crate::guest::patience::wait_until;
use crate::guest::victim::Victim;
use crate::guest::{Guest, traffic};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "a process killed by SIGKILL in the middle of its traffic leaves no XDP program and no pinned page, and the next \
             one opens the interface in zero-copy: 100 times (on igb, whose link takes seconds to come back, 5 times; 100 \
             with --soak)",
    on: &[Topology::Igb, Topology::Virtio],
    kernel: Kernel::Newest,
    run,
};

const KILLS: u32 = 100;
const KILLS_QUICK_ON_IGB: u32 = 5;

/// More than one process sends: so each has numbers of its own.
const NUMBERS_EACH: u32 = 1_000_000;

/// A process lives this long at most after its first packet arrived.
const LIFE_MS_MAX: u64 = 50;

fn run(guest: &Guest) -> Result<(), Failure> {
    let (left, right) = (guest.lab().left(), guest.lab().right());
    let kills = if guest.topology() == Topology::Igb && !guest.soak() { KILLS_QUICK_ON_IGB } else { KILLS };
    let mut moments = Moments::new();
    guest.record(&json!({ "kills": kills, "seed": moments.0 }));
    let mut port = traffic::open(right)?;
    let (mut out, mut back) = (Flow::new(left.mac(), 0), Flow::new(right.mac(), 0));
    for kill in 0..kills {
        let first = kill * NUMBERS_EACH;
        let victim = Victim::start(left, right, first)?;
        // Not any packet: what the process before it sent may still be on the way.
        exchange(&mut port, &mut out, &mut back, |back| back.has_reached(first), traffic::ARRIVAL_MAX)?;
        exchange(&mut port, &mut out, &mut back, |_| false, moments.next())?;
        victim.kill()?;
        assert!(back.has_reached(first), "no packet came from process {kill}");
        wait_until("the XDP program of the killed process is gone", || Ok(left.xdp_program()?.is_none()))?;
    }
    traffic::assert_unharmed(guest.lab(), traffic::open(left)?, port)
}

/// Sends and receives until it is `enough`, for at most `time`.
fn exchange(
    port: &mut Port,
    out: &mut Flow,
    back: &mut Flow,
    enough: impl Fn(&Flow) -> bool,
    time: Duration,
) -> Result<(), Failure> {
    let end = Instant::now() + time;
    while !enough(back) && Instant::now() < end {
        out.send(port.sender())?;
        back.receive(port.receiver())?;
    }
    Ok(())
}

/// When to kill: moments that look random, from a seed (splitmix64).
struct Moments(u64);

impl Moments {
    fn new() -> Self {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Self(u64::from(now.subsec_nanos()))
    }

    fn next(&mut self) -> Duration {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Duration::from_millis((mixed ^ (mixed >> 31)) % LIFE_MS_MAX)
    }
}
