//! Filters of ports on real traffic: matching packets arrive, others stay with the host, wherever the filter
//! runs.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{
    PATIENCE, area_with_frames_of, assert_all_frames_returned, lab, numbered_packet, open_port,
    open_port_with, receive_from_any, receive_packets, send_packets,
};
use nocopy::filter::{Program, compile};
use nocopy::integration::xdp;
use nocopy::integration::{Fanout, PortTuning};
use nocopy::port::{FilterPlace, OpenError};
use nocopy::{Mode, Port};
use nocopy_lab::{End, Lab};
use nocopy_proto::filter::Instruction;

const MODES: [Mode; 3] = [Mode::XdpCopyNative, Mode::XdpCopyGeneric, Mode::PacketRing];

/// Matches the packets of the tests with odd numbers.
const ODD: &str = "ether proto 0x88b5 and ether[17] & 1 = 1";

/// Packets that a filter in user space returned to the host, and that it lost.
fn filter_counts(port: &mut Port) -> (u64, u64) {
    let stats = port.receiver().stats();
    (stats.get("filter_to_host").unwrap(), stats.get("filter_lost").unwrap())
}

fn open_filtered(end: &End, mode: Mode, filter: &Program) -> Port {
    let filter = filter.clone();
    open_port_with(end, move |builder| builder.mode(mode).filter(&filter).tuning(few_long_blocks()))
        .expect("opened")
}

/// For a packet ring that is read late: few blocks, each with many packets, however slowly those are sent.
fn few_long_blocks() -> PortTuning {
    PortTuning { block_timeout: Some(Duration::from_millis(300)), ..PortTuning::default() }
}

/// A packet ring beside the port, which sees the packets that the host gets.
fn open_ring_of_host(end: &End) -> Port {
    open_port_with(end, |builder| builder.mode(Mode::PacketRing).tuning(few_long_blocks())).expect("opened")
}

/// So many packets of each, read in turns: a ring that is read only later is full on a machine so slow that
/// each packet takes a block.
fn receive_in_turns(port: &mut Port, host: &mut Port, counts: [usize; 2]) -> [Vec<Vec<u8>>; 2] {
    let mut received = [Vec::new(), Vec::new()];
    let give_up = Instant::now() + PATIENCE;
    while received.iter().zip(counts).any(|(received, count)| received.len() < count) {
        for (port, received) in [&mut *port, &mut *host].into_iter().zip(&mut received) {
            let batch = port.receiver().receive_timeout(Duration::from_millis(1)).expect("received");
            received.extend(batch.map(|packet| packet.to_vec()));
        }
        let came = received.each_ref().map(Vec::len);
        assert!(Instant::now() < give_up, "port, host: {came:?} of {counts:?} packets came");
    }
    received
}

fn packet_numbers(packets: &[Vec<u8>]) -> Vec<u32> {
    packets.iter().map(|packet| u32::from_be_bytes(packet[14..18].try_into().unwrap())).collect()
}

/// To be called after the last packet was received by either: packets stay in order, so no other is under
/// way.
fn is_receiver_empty(port: &mut Port) -> bool {
    port.receiver().try_receive().unwrap().next().is_none()
}

/// A program with a jump longer than eBPF's can be. It returns `then`, or `otherwise` if the frame's byte 17
/// is even.
fn program_too_long_for_xdp(then: u32, otherwise: u32) -> Program {
    let instruction =
        |code, jump_true, jump_false, constant| Instruction { code, jump_true, jump_false, constant };
    let mut instructions = vec![
        instruction(0x30, 0, 0, 17),   // ldb [17]
        instruction(0x45, 0, 1, 1),    // jset #1
        instruction(0x05, 0, 0, 4001), // ja over what follows
    ];
    instructions.extend(std::iter::repeat_n(instruction(0x50, 0, 0, 3), 4000)); // ldb [x + 3]
    instructions.extend([instruction(0x06, 0, 0, otherwise), instruction(0x06, 0, 0, then)]);
    Program::new(instructions).unwrap()
}

#[test]
fn packets_that_do_not_match_stay_with_the_host_in_every_mode() {
    for mode in MODES {
        let lab = lab!();
        let mut left = open_port(lab.left());
        let mut port = open_filtered(lab.right(), mode, &compile(ODD).unwrap());
        let place = if mode == Mode::PacketRing { FilterPlace::Socket } else { FilterPlace::Xdp };
        assert_eq!(port.explain().filter, Some(place), "{mode}");
        let mut host = open_ring_of_host(lab.right());
        let packets: Vec<_> =
            (0..100).map(|number| numbered_packet(lab.right(), number, 60 + number as usize * 14)).collect();
        send_packets(&mut left, &packets);
        let matching: Vec<_> = packets.iter().skip(1).step_by(2).cloned().collect();
        let expected: Vec<u32> = match mode {
            Mode::PacketRing => (0..100).collect(), // the host has everything
            _ => (0..100).step_by(2).collect(),
        };
        let [received, hosts] = receive_in_turns(&mut port, &mut host, [50, expected.len()]);
        assert_eq!(packet_numbers(&received), packet_numbers(&matching), "{mode}");
        assert!(received == matching, "{mode}: not byte for byte");
        assert_eq!(packet_numbers(&hosts), expected, "{mode}");
        assert!(is_receiver_empty(&mut port), "{mode}");
        assert_all_frames_returned(&mut port);
        assert_eq!(filter_counts(&mut port), (0, 0));
        assert!(port.explain().to_string().contains("filter "), "{}", port.explain());
    }
}

#[test]
fn a_filter_the_kernel_refuses_runs_in_user_space() {
    let filter = program_too_long_for_xdp(u32::MAX, 0);
    for mode in MODES {
        let lab = lab!();
        let mut left = open_port(lab.left());
        let mut port = open_filtered(lab.right(), mode, &filter);
        let mut host = open_ring_of_host(lab.right());
        let packets: Vec<_> =
            (0..100).map(|number| numbered_packet(lab.right(), number, 60 + number as usize * 14)).collect();
        send_packets(&mut left, &packets);
        // A packet ring leaves everything to the host anyway.
        let step = if mode == Mode::PacketRing { 1 } else { 2 };
        let expected: Vec<u32> = (0..100).step_by(step).collect();
        let counts = [50, expected.len()];
        let received = lab.right().namespace().run(|| receive_in_turns(&mut port, &mut host, counts));
        let [received, hosts] = received.map(|packets| packet_numbers(&packets));
        assert_eq!(received, (1..100).step_by(2).collect::<Vec<_>>(), "{mode}");
        assert_eq!(hosts, expected, "{mode}");
        assert!(lab.right().namespace().run(|| is_receiver_empty(&mut port)), "{mode}");
        let Some(FilterPlace::UserSpace(why)) = port.explain().filter else {
            assert_eq!((mode, port.explain().filter), (Mode::PacketRing, Some(FilterPlace::Socket)));
            continue;
        };
        assert!(
            !why.is_empty() && port.explain().to_string().contains("in user space"),
            "{}",
            port.explain()
        );
        assert_eq!(filter_counts(&mut port), (50, 0), "{mode}");
        assert_all_frames_returned(&mut port);
    }
}

#[test]
fn a_user_space_filter_passes_or_drops_whole_chains() {
    let (mut left, mut right) = Port::memory_builder()
        .multi_buffer(true)
        .area(&area_with_frames_of(2048))
        .filter(&compile("ether[2500] = 1").unwrap())
        .memory_pair()
        .unwrap();
    assert!(matches!(right.explain().filter, Some(FilterPlace::UserSpace(_))));
    for kind in [0, 1, 0, 1, 1, 0] {
        let mut packet = vec![0; 3000];
        packet[2500] = kind;
        left.sender().send_copy(&packet).unwrap();
    }
    left.sender().flush().unwrap();
    let mut received = 0;
    while received < 3 {
        let mut batch = right.receiver().receive_timeout(PATIENCE).unwrap();
        let packet = batch.next_chain().expect("a packet that matches").to_vec();
        assert_eq!((packet.len(), packet[2500]), (3000, 1));
        received += 1;
    }
    assert!(is_receiver_empty(&mut right));
    assert_eq!(filter_counts(&mut right), (0, 3));
    assert_all_frames_returned(&mut right);
}

/// Neither a batch with less than one packet, nor endless packets that do not match, keep the caller from
/// returning.
#[test]
fn receive_with_a_user_space_filter_always_returns() {
    let memory = |batch| {
        let builder = Port::memory_builder().multi_buffer(true).area(&area_with_frames_of(2048)).batch(batch);
        builder.filter(&compile("ether[0] = 1").unwrap()).memory_pair().unwrap()
    };
    let queue = |port: &mut Port, kind, bytes| {
        let mut packet = vec![0; bytes];
        packet[0] = kind;
        port.sender().send_copy(&packet).unwrap();
    };
    let (mut left, mut right) = memory(1);
    for kind in [0, 1] {
        queue(&mut left, kind, 5000);
    }
    left.sender().flush().unwrap();
    let chain = right.receiver().receive_timeout(PATIENCE).unwrap().next_chain().map(|chain| chain.len());
    assert_eq!(chain, Some(5000));
    assert_eq!(right.receiver().stats().get("filter_lost").unwrap(), 1);

    let (mut left, mut right) = memory(16);
    (0..200).for_each(|_| queue(&mut left, 0, 60));
    queue(&mut left, 1, 60);
    left.sender().flush().unwrap();
    assert!(right.receiver().try_receive().unwrap().is_empty());
    assert!(
        (16..32).contains(&right.receiver().stats().get("filter_lost").unwrap()),
        "{:?}",
        right.receiver().stats()
    );
    assert_eq!(receive_packets(&mut right, 1).len(), 1);
    assert_eq!(right.receiver().stats().get("filter_lost").unwrap(), 200);
    assert_all_frames_returned(&mut right);
}

/// A packet socket would truncate packets to the filter's return value; a port does not.
#[test]
fn matching_packets_are_never_truncated() {
    let length_as_a = "3,48 0 0 17,84 0 0 1,22 0 0 0"; // A, which is 1 if the byte is odd
    for filter in ["5,48 0 0 17,69 0 1 1,6 0 0 40,6 0 0 0,6 0 0 1", length_as_a] {
        for mode in MODES {
            let lab = lab!();
            let mut left = open_port(lab.left());
            let mut port = open_filtered(lab.right(), mode, &Program::parse(filter).unwrap());
            let packets = [numbered_packet(lab.right(), 0, 200), numbered_packet(lab.right(), 1, 200)];
            send_packets(&mut left, &packets);
            let ours = |packet: &Vec<u8>| packet.get(12..14).is_none_or(|kind| kind == [0x88, 0xb5]);
            let received = loop {
                if let Some(packet) = receive_packets(&mut port, 1).into_iter().find(ours) {
                    break packet;
                }
            };
            assert!(received == packets[1], "{mode}: {} bytes", received.len());
        }
    }
}

fn prepend_instruction(first: Instruction, program: &Program) -> Program {
    Program::new([&[first], program.instructions()].concat()).unwrap()
}

#[test]
fn a_filter_too_long_with_the_queue_check_runs_in_user_space() {
    let lab = lab!(Lab::builder().queues(2));
    // Not rewritten, because the filter itself reads the tag.
    let tag = Instruction { code: 0x20, jump_true: 0, jump_false: 0, constant: 0xffff_f030 };
    let mut filter = Program::parse("4,48 0 0 17,69 0 1 1,6 0 0 40,6 0 0 0").unwrap();
    while filter.instructions().len() < 4095 {
        filter = prepend_instruction(tag, &filter);
    }
    // Enough, if the namespace has a limit of its own (Linux 6.8): only the check of the queue must exceed
    // it.
    let _ = lab.right().namespace().run(|| std::fs::write("/proc/sys/net/core/optmem_max", "1000000"));
    let mut right = open_filtered(lab.right(), Mode::PacketRing, &filter);
    assert!(matches!(right.explain().filter, Some(FilterPlace::UserSpace(_))), "{}", right.explain());
    let mut left = open_port(lab.left());
    send_packets(
        &mut left,
        &(0..10).map(|number| numbered_packet(lab.right(), number, 100)).collect::<Vec<_>>(),
    );
    assert_eq!(packet_numbers(&receive_packets(&mut right, 5)), [1, 3, 5, 7, 9]);
}

/// Filters that need data only the kernel has are refused, if the kernel does not run them.
#[test]
fn filters_that_need_kernel_data_are_refused_in_user_space() {
    let packet_type = Instruction { code: 0x28, jump_true: 0, jump_false: 0, constant: 0xffff_f004 };
    let filter = prepend_instruction(packet_type, &program_too_long_for_xdp(1, 0));
    let error = Port::memory_builder().filter(&filter).memory_pair().unwrap_err();
    assert!(error.to_string().contains("run the filter on a packet socket"), "{error}");
    let lab = lab!();
    let error = open_port_with(lab.right(), |builder| builder.filter(&filter)).unwrap_err();
    assert!(matches!(error, OpenError::NoMode { .. }) && error.to_string().lines().count() == 1, "{error}");
}

#[test]
fn an_interface_without_ethernet_headers_is_refused() {
    let lab = lab!();
    let name = "nctun";
    let refused = lab.right().namespace().run(|| {
        let made = Command::new("ip")
            .args(["tuntap", "add", "dev", name, "mode", "tun"])
            .stderr(Stdio::null())
            .status();
        if !made.is_ok_and(|status| status.success()) {
            nocopy_lab::skip(&nocopy_lab::Missing::Device("'ip tuntap'"));
            return None;
        }
        Some((Port::open(name).unwrap_err(), nocopy::Capture::open(name).unwrap_err()))
    });
    let Some((port, capture)) = refused else { return };
    assert_eq!(
        port.to_string(),
        "nctun: cannot be used; its packets have no Ethernet header (hardware type 65534); use an interface of type 1 (ether), for a tunnel the one that carries it"
    );
    for said in [port.to_string(), capture.to_string()] {
        assert!(said.contains("no Ethernet header") && said.lines().count() == 1, "{said}");
    }
    let loopback = lab.right().namespace().run(|| Port::builder("lo").mode(Mode::PacketRing).open());
    assert!(loopback.is_ok(), "its packets have one: {loopback:?}");
}

#[test]
fn filters_read_all_buffers_of_long_packets() {
    for mode in MODES {
        let lab = lab!(Lab::builder().mtu(9000));
        let open = |end: &End, filter: Option<Program>| {
            open_port_with(end, move |builder| {
                let builder = builder.mode(mode).multi_buffer(true);
                filter.iter().fold(builder, |builder, filter| builder.filter(filter))
            })
            .unwrap()
        };
        let mut left = open(lab.left(), None);
        let mut right = open(lab.right(), Some(compile("ether[8000:2] = 0x0102 and len > 8500").unwrap()));
        // The last one matches, so no other can follow it.
        for (kind, bytes) in [(1, 9000), (0, 9000), (1, 8400), (1, 100), (1, 9014)] {
            let mut long = numbered_packet(lab.right(), 1, bytes);
            if let Some(field) = long.get_mut(8000..8002) {
                field.copy_from_slice(&[kind, 2]);
            }
            left.sender().send_copy(&long).unwrap();
        }
        left.sender().flush().unwrap();
        let mut lengths = Vec::new();
        while lengths.len() < 2 {
            let mut batch = right.receiver().receive_timeout(PATIENCE).unwrap();
            let chain = batch.next_chain().unwrap_or_else(|| panic!("{mode}: only {lengths:?} came"));
            lengths.push(chain.to_vec().len());
        }
        assert_eq!(lengths, [9000, 9014], "{mode}");
        assert!(is_receiver_empty(&mut right), "{mode}");
    }
}

#[test]
fn a_filter_sees_vlan_tags_in_the_frame() {
    for mode in MODES {
        let lab = lab!();
        let mut left = open_port(lab.left());
        let mut right = open_filtered(lab.right(), mode, &compile("vlan 5 and ether[18:4] = 7").unwrap());
        let tagged = |id: u8, number: u8, bytes: usize| {
            let mut tagged = numbered_packet(lab.right(), 0, bytes);
            tagged[12..22].copy_from_slice(&[0x81, 0, 0, id, 0x88, 0xb5, 0, 0, 0, number]);
            tagged
        };
        let matching = [tagged(5, 7, 100), tagged(5, 7, 120)];
        let [first, last] = matching.clone();
        let others = [tagged(4, 7, 100), tagged(5, 8, 100), numbered_packet(lab.right(), 7, 100)];
        send_packets(&mut left, &[&others[..2], &[first], &others[2..], &[last]].concat());
        assert_eq!(receive_packets(&mut right, 2), matching, "{mode}");
    }
}

#[test]
fn queues_and_fanout_groups_keep_their_shares_with_a_filter() {
    let lab = lab!(Lab::builder().queues(2));
    let filter = compile(ODD).unwrap();
    let shares = [None, Some((77, Fanout::Cpu))];
    for share in shares {
        let mut ports: Vec<_> = (0..2)
            .map(|queue| {
                let filter = filter.clone();
                open_port_with(lab.right(), move |builder| {
                    let builder = builder.mode(Mode::PacketRing).queue(queue).filter(&filter);
                    share.iter().fold(builder, |builder, &(group, fanout)| {
                        builder.tuning(PortTuning { fanout: Some((group, fanout)), ..PortTuning::default() })
                    })
                })
                .unwrap()
            })
            .collect();
        let mut left = open_port_with(lab.left(), |builder| builder.queue(1)).unwrap();
        send_packets(
            &mut left,
            &(0..40).map(|number| numbered_packet(lab.right(), number, 100)).collect::<Vec<_>>(),
        );
        let mut seen = packet_numbers(&receive_from_any(&mut ports, 20));
        seen.sort_unstable();
        assert_eq!(seen, (1..40).step_by(2).collect::<Vec<_>>(), "{share:?}: each once");
    }
}

#[test]
fn driver_metadata_and_a_filter_work_together() {
    let lab = lab!();
    let mut left = open_port(lab.left());
    let filter = compile(ODD).unwrap();
    let mut right =
        open_port_with(lab.right(), move |builder| builder.receive_metadata(true).filter(&filter)).unwrap();
    assert_eq!(right.explain().filter, Some(FilterPlace::Xdp));
    send_packets(
        &mut left,
        &(0..10).map(|number| numbered_packet(lab.right(), number, 100)).collect::<Vec<_>>(),
    );
    assert_eq!(packet_numbers(&receive_packets(&mut right, 5)), [1, 3, 5, 7, 9]);
}

#[test]
fn a_different_filter_on_the_same_interface_is_refused() {
    let lab = lab!(Lab::builder().queues(2));
    let filter = compile(ODD).unwrap();
    let _first = open_filtered(lab.right(), Mode::XdpCopyNative, &filter);
    let open = |filter: Option<Program>| {
        open_port_with(lab.right(), move |builder| {
            let builder = builder.queue(1).mode(Mode::XdpCopyNative);
            filter.iter().fold(builder, |builder, filter| builder.filter(filter))
        })
    };
    for other in [None, Some(compile("udp").unwrap())] {
        let error = open(other).unwrap_err();
        assert!(matches!(error, OpenError::Xdp(xdp::Error::OtherFilter { .. })), "{error}");
    }
    drop(open(Some(filter)).expect("the same filter"));
}

#[test]
fn a_filter_is_set_for_the_grant_and_not_when_opening_it() {
    let lab = lab!();
    let filter = compile(ODD).unwrap();
    let (end, wanted) = (lab.right(), filter.clone());
    let grant = || end.namespace().run(|| Port::builder(end.interface()).filter(&wanted).grant()).unwrap();
    let refused =
        end.namespace().run(|| Port::builder(end.interface()).filter(&filter).open_granted(grant()));
    assert!(matches!(refused.unwrap_err(), OpenError::NotGranted { setting: "filter", .. }));
    let mut left = open_port(lab.left());
    let granted = grant();
    let mut right = end.namespace().run(|| Port::builder("").open_granted(granted)).unwrap();
    send_packets(
        &mut left,
        &(0..10).map(|number| numbered_packet(lab.right(), number, 100)).collect::<Vec<_>>(),
    );
    assert_eq!(packet_numbers(&receive_packets(&mut right, 5)), [1, 3, 5, 7, 9]);
    let long = program_too_long_for_xdp(1, 0);
    let error = end.namespace().run(|| {
        drop(right);
        Port::builder(end.interface()).filter(&long).grant().unwrap_err()
    });
    assert!(matches!(error, OpenError::NotGranted { setting: "filter", .. }), "{error}");
}

#[test]
fn filters_that_need_kernel_data_use_the_packet_ring() {
    let lab = lab!();
    let by_type = Program::parse("4,40 0 0 4294963204,21 0 1 0,6 0 0 65535,6 0 0 0").unwrap(); // packet type: to us
    let filter = by_type.clone();
    let port = open_port_with(lab.right(), move |builder| builder.filter(&filter)).unwrap();
    assert_eq!((port.mode(), port.explain().filter), (Mode::PacketRing, Some(FilterPlace::Socket)));
    assert!(
        port.explain().refusals.iter().any(|refusal| refusal.mode == Mode::XdpCopyNative),
        "{}",
        port.explain()
    );
    drop(port);
    let error =
        open_port_with(lab.right(), move |builder| builder.mode(Mode::XdpCopyNative).filter(&by_type));
    assert!(matches!(error.unwrap_err(), OpenError::NoMode { .. }));
}
