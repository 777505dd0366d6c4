use nocopy::integration::probe::{self, Gate, GateState};
use nocopy_lab::End;
use serde_json::json;

use crate::guest::Guest;
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "the probe sees of a real card what it is: its interrupts and their CPUs, its rings, what it knows of zero-copy, and \
             a setting that changes",
    on: &[Topology::Igb, Topology::Virtio, Topology::VirtioTaps],
    kernels: &[Kernel::Newest],
    run,
};

fn run(guest: &Guest) -> Result<(), Failure> {
    let end = guest.lab().left();
    let gates = end.namespace().run(|| probe::interface(end.interface()))?.gates;
    let output: Vec<String> = gates.iter().map(Gate::to_string).collect();
    guest.record_measurement(&json!({ "gates": output }));
    let of = |name: &str| gates.iter().find(|gate| gate.name == name).expect("a gate of that name");
    let queues = match guest.topology() {
        Topology::Igb => 2,
        Topology::Virtio | Topology::VirtioTaps | Topology::Veth => 1,
    };
    assert!(of("receive queues").found.starts_with(&format!("{queues}: ")), "{}", of("receive queues"));
    let interrupts = of("interrupts");
    assert_eq!(interrupts.found.matches(" on CPU ").count(), queues, "{interrupts}");
    assert!(of("card's receive ring").found.starts_with("256 of at most "), "{}", of("card's receive ring"));
    let driver = of("driver");
    assert!(driver.found.starts_with(guest.topology().driver()), "{driver}");
    assert!(driver.found.contains("a port that only sends keeps the ring full"), "{driver}");
    assert_eq!(of("xdp zero-copy").state, GateState::Open);
    assert_ne!(of("NUMA node").state, GateState::Unknown, "{}", of("NUMA node"));
    // The hub reports scatter-gather for a virtio device, taps do not; an igb card has it, and it can be
    // switched off.
    let gathers = |state| {
        let gate = zero_copy_send_gate(end)?;
        assert_eq!(gate.state, state, "{gate}");
        Ok::<_, Failure>(gate)
    };
    match guest.topology() {
        Topology::Igb => {
            gathers(GateState::Open)?;
            end.set_scatter_gather(false)?;
            let closed = gathers(GateState::Closed)?;
            assert_eq!(closed.fix, Some(format!("'ethtool -K {} sg on'", end.interface())));
            end.set_scatter_gather(true)?;
            gathers(GateState::Open)?;
        }
        Topology::Virtio => drop(gathers(GateState::Closed)?),
        Topology::VirtioTaps | Topology::Veth => drop(gathers(GateState::Open)?),
    }
    Ok(())
}

fn zero_copy_send_gate(end: &End) -> Result<Gate, Failure> {
    let gates = end.namespace().run(|| probe::interface(end.interface()))?.gates;
    gates.into_iter().find(|gate| gate.name == "zero-copy send").ok_or_else(|| Failure("no such gate".into()))
}
