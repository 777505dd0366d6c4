//! The gates of a machine, and of a veth pair with known settings.

use nocopy::integration::probe::{self, Gate, GateState};
use nocopy::{Mode, Port};
use nocopy_lab::{End, Lab};

fn probed_gate(end: &End, name: &str) -> Gate {
    let probed = end.namespace().run(|| probe::interface(end.interface()).unwrap());
    probed.gates.into_iter().find(|gate| gate.name == name).unwrap_or_else(|| panic!("no gate '{name}'"))
}

#[test]
fn gate_names_are_unique_and_closed_gates_have_advice() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let end = lab.left();
    for interface in [end.interface(), "lo"] {
        let gates = end.namespace().run(|| {
            let mut gates = probe::machine();
            gates.extend(probe::interface(interface).unwrap().gates);
            gates
        });
        for gate in &gates {
            assert_eq!(gates.iter().filter(|other| other.name == gate.name).count(), 1, "{gate}");
            assert!(
                !gate.found.is_empty() && (gate.state != GateState::Closed || gate.fix.is_some()),
                "{gate}"
            );
        }
    }
}

#[test]
fn the_probe_reports_offloads_as_set() {
    let Some(lab) = Lab::builder().gro_right(true).build_or_skip() else { return };
    const GRO: &str = "generic receive offload";
    assert_eq!(probed_gate(lab.right(), GRO).state, GateState::Open);
    let off = probed_gate(lab.left(), GRO);
    assert_eq!((off.state, off.fix.as_deref()), (GateState::Closed, Some("'ethtool -K nc0 gro on'")));
    assert!(off.found.contains("redirects"), "{off}");
    lab.left().set_gro(true).unwrap();
    assert_eq!(probed_gate(lab.left(), GRO).state, GateState::Open);
    let send = probed_gate(lab.left(), "zero-copy send");
    assert!(
        send.state == GateState::Closed && send.found.contains("late") && !send.found.contains("scatter"),
        "{send}"
    );
    lab.left().set_scatter_gather(false).unwrap();
    assert!(probed_gate(lab.left(), "zero-copy send").found.contains("scatter-gather is off"));
}

#[test]
fn the_gate_of_zero_copy_receive_depends_on_the_mtu() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let receive = |mtu_bytes| {
        lab.left().set_mtu(mtu_bytes).unwrap();
        probed_gate(lab.left(), "zero-copy receive")
    };
    let usual = receive(1500);
    assert_eq!(usual.state, GateState::Closed);
    assert!(usual.fix.unwrap().contains("mtu 4148"));
    for mtu_bytes in [4148, 8244] {
        // A veth splits nothing: the pages are the sender's.
        assert_eq!(receive(mtu_bytes).state, GateState::Unknown, "{mtu_bytes}");
    }
    assert_eq!(receive(9000).state, GateState::Closed);
}

#[test]
fn the_probe_of_a_veth_finds_queues_and_no_card() {
    let Some(lab) = Lab::builder().queues(2).build_or_skip() else { return };
    let queues = probed_gate(lab.left(), "receive queues");
    assert!(queues.found.starts_with("2: ") && queues.fix.is_some(), "{queues}");
    for name in ["interrupts", "NUMA node"] {
        let gate = probed_gate(lab.left(), name);
        assert!(gate.state == GateState::Unknown && gate.found.contains("not a card on a PCI bus"), "{gate}");
    }
    assert_eq!(probed_gate(lab.left(), "header split").state, GateState::Unknown);
    assert_eq!(probed_gate(lab.left(), "zero-copy receive by io_uring").state, GateState::Closed);
    let metadata = probed_gate(lab.left(), "receive metadata");
    assert!(metadata.found.contains("timestamp") && metadata.found.contains("hash"), "{metadata}");
    assert_eq!(probed_gate(lab.left(), "packets in several buffers").state, GateState::Open);
}

#[test]
fn without_a_capability_the_probe_predicts_a_packet_ring() {
    use rustix::thread::CapabilitySet;
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let end = lab.left();
    let (gates, mode, port) = end.namespace().run(|| {
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::NET_ADMIN);
        rustix::thread::set_capabilities(None, sets).unwrap(); // of this thread only
        let mut gates = probe::machine();
        let probed = probe::interface(end.interface()).unwrap();
        gates.extend(probed.gates.clone());
        (gates, probed.first_possible_mode(), Port::open(end.interface()).unwrap())
    });
    assert_eq!(port.mode(), Mode::PacketRing);
    assert_eq!(mode, Some(port.mode().to_string().as_str()), "{gates:#?}");
    assert!(!gates.iter().any(|gate| gate.needed && gate.state == GateState::Closed), "{gates:#?}");
}

#[test]
fn the_packet_socket_gate_is_closed_without_cap_net_raw() {
    use rustix::thread::CapabilitySet;
    if nocopy_lab::lab_or_skip().is_none() {
        return;
    }
    let packet = || probe::machine().into_iter().find(|gate| gate.name == "packet sockets").unwrap();
    assert_eq!(packet().state, GateState::Open);
    // Of a thread of its own.
    let without = std::thread::spawn(move || {
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::NET_RAW);
        rustix::thread::set_capabilities(None, sets).unwrap();
        packet()
    });
    let without = without.join().unwrap();
    assert_eq!(without.state, GateState::Closed);
    assert!(without.fix.unwrap().contains("cap_net_raw"));
}
