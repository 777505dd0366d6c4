//! Replacing the filter of a port in use, also from another process, on veth pairs in private namespaces.

use std::io::{Write, stdin, stdout};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use crate::common::{PATIENCE, lab, numbered_packet, open_port, open_queues, send_packets};
use nocopy::filter::{Program, compile};
use nocopy::integration::{FilterControl, FilterControlError, PortTuning};
use nocopy::metadata::Clock;
use nocopy::port::Queues;
use nocopy::{Mode, Port};
use nocopy_lab::End;
use nocopy_lab::patience::wait_until;
use nocopy_proto::filter::Instruction;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

const ODD: &str = "ether proto 0x88b5 and ether[17] & 1 = 1";
const EVEN: &str = "ether proto 0x88b5 and ether[17] & 1 = 0";

/// Environment variable: the filter that the other process of these tests sets.
const FILTER: &str = "NOCOPY_FILTER_CONTROL";

/// Sends packets with the numbers 0 to 9, and checks which of them arrive, in order.
fn assert_received(left: &mut Port, right: &End, queues: &mut Queues, expected: impl Fn(&u32) -> bool) {
    send_packets(left, &(0..10).map(|number| numbered_packet(right, number, 60)).collect::<Vec<_>>());
    let expected: Vec<u32> = (0..10).filter(expected).collect();
    let mut numbers = Vec::new();
    while numbers.len() < expected.len() {
        let before = numbers.len();
        let batch = queues.receive_timeout(PATIENCE).unwrap();
        numbers.extend(batch.map(|packet| u32::from_be_bytes(packet[14..18].try_into().unwrap())));
        assert!(numbers.len() > before, "only {numbers:?}");
    }
    assert_eq!(numbers, expected);
}

fn is_odd(number: &u32) -> bool {
    number % 2 == 1
}

fn is_even(number: &u32) -> bool {
    number.is_multiple_of(2)
}

/// Jumps further than an eBPF jump can, if the frame's byte 17 is odd.
fn program_too_long_for_xdp() -> Program {
    let instruction =
        |code, jump_true, jump_false, constant| Instruction { code, jump_true, jump_false, constant };
    let mut instructions = vec![
        instruction(0x30, 0, 0, 17),   // ldb [17]
        instruction(0x45, 0, 1, 1),    // jset #1
        instruction(0x05, 0, 0, 4000), // ja over what follows
    ];
    instructions.extend(std::iter::repeat_n(instruction(0x50, 0, 0, 3), 4000)); // ldb [x + 3]
    instructions.push(instruction(0x06, 0, 0, u32::MAX));
    Program::new(instructions).unwrap()
}

/// A pair of connected Unix sockets that preserve message boundaries.
fn seqpacket_pair() -> (OwnedFd, OwnedFd) {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

#[test]
fn a_filter_is_replaced_and_the_program_keeps_its_features() {
    for mode in [Mode::XdpCopyNative, Mode::XdpCopyGeneric] {
        let lab = lab!();
        let mut left = open_port(lab.left());
        let mut queues = open_queues(lab.right(), |builder| {
            builder
                .mode(mode)
                .tuning(PortTuning { arrival_times: true, ..PortTuning::default() })
                .filter(&compile(ODD).unwrap())
        });
        assert_received(&mut left, lab.right(), &mut queues, is_odd);
        let control = queues.filter_control().unwrap();
        let program = lab.right().xdp_program().unwrap();
        control.set_filter(Some(&compile(EVEN).unwrap())).unwrap();
        assert_ne!(lab.right().xdp_program().unwrap(), program, "{mode}: another program");
        assert_received(&mut left, lab.right(), &mut queues, is_even);
        control.set_filter(None).unwrap();
        assert_received(&mut left, lab.right(), &mut queues, |_| true);
        send_packets(&mut left, &[numbered_packet(lab.right(), 1, 60)]);
        let time = queues.receive_timeout(PATIENCE).unwrap().next().expect("a packet").arrival().timestamp;
        assert_eq!(time.map(|time| time.clock), Ok(Clock::Monotonic), "{mode}: its notes are believed");
        // Packets returned to the host must not come back: generic programs recognise them by a secret.
        let mut host = queues.ports()[0].receiver().to_host().unwrap();
        lab.right().namespace().run(|| host.hand_over(&numbered_packet(lab.right(), 2, 60)).unwrap());
        // A packet sent after it is the first to arrive.
        let behind = numbered_packet(lab.right(), 3, 60);
        send_packets(&mut left, std::slice::from_ref(&behind));
        let came: Vec<_> = queues.receive_timeout(PATIENCE).unwrap().map(|one| one.to_vec()).collect();
        assert_eq!(came, [behind], "{mode}");
        drop((queues, control));
        // A child that another test starts has all descriptors until it executes its program.
        wait_until("detached with the last of both", || lab.right().xdp_program().unwrap().is_none());
    }
}

#[test]
fn another_process_replaces_the_filter() {
    let lab = lab!();
    let mut left = open_port(lab.left());
    let mut queues = open_queues(lab.right(), |builder| builder.mode(Mode::XdpCopyNative));
    let (ours, theirs) = seqpacket_pair();
    queues.filter_control().unwrap().send(&ours).unwrap();
    let mut command = Command::new("/proc/self/exe");
    command
        .args(["--exact", "filter_control::replace_filter_in_this_process", "--ignored", "--nocapture"])
        .env(FILTER, ODD)
        .stdin(theirs);
    let helper = lab.right().namespace().run(|| command.stdout(Stdio::piped()).output().unwrap());
    let said = String::from_utf8_lossy(&helper.stdout);
    assert!(helper.status.success() && said.contains("replaced"), "{said}");
    assert_received(&mut left, lab.right(), &mut queues, is_odd);
}

#[test]
#[ignore = "the other process, which another test starts"]
fn replace_filter_in_this_process() {
    let Ok(filter) = std::env::var(FILTER) else { return };
    let control = FilterControl::receive(&stdin()).unwrap();
    control.set_filter(Some(&compile(&filter).unwrap())).unwrap();
    writeln!(stdout(), "replaced on {}", control.interface()).unwrap();
}

#[test]
fn a_failed_replacement_leaves_the_old_filter() {
    let lab = lab!();
    let mut left = open_port(lab.left());
    let filter = compile(ODD).unwrap();
    let mut queues = open_queues(lab.right(), |builder| builder.mode(Mode::XdpCopyNative).filter(&filter));
    let control = queues.filter_control().unwrap();
    let error = control.set_filter(Some(&program_too_long_for_xdp())).unwrap_err();
    assert_eq!(
        error.to_string(),
        "filter: cannot run as an XDP program; its 36016 instructions cannot be translated; jumps become too long for eBPF; shorten the filter, or run it in user space (Queues::filter_in_user_space)"
    );
    assert_received(&mut left, lab.right(), &mut queues, is_odd);
    lab.delete_pair().unwrap();
    let error = control.set_filter(None).unwrap_err();
    assert!(matches!(error, FilterControlError::Replace { .. }), "{error}");
}

#[test]
fn invalid_filter_control_messages_are_refused() {
    let lab = lab!();
    let queues = open_queues(lab.right(), |builder| builder.mode(Mode::XdpCopyNative));
    let control = queues.filter_control().unwrap();
    let refused = |prepare: &(dyn Fn(&OwnedFd) + Sync), end: &End| {
        let (ours, theirs) = seqpacket_pair();
        prepare(&ours);
        end.namespace().run(|| FilterControl::receive(&theirs).unwrap_err().to_string())
    };
    let sent = |ours: &OwnedFd| control.send(ours).unwrap();
    let error = refused(&sent, lab.left());
    assert_eq!(
        error,
        "filter control: not transferred between processes; nc1: cannot be used; the port was granted in another network namespace; start both programs in the same one"
    );
    let error = refused(&|ours| assert!(rustix::io::write(ours, &[0; 88]).is_ok()), lab.right());
    assert_eq!(
        error,
        "filter control: not transferred between processes; grant: not recognised; the message does not begin like a grant; connect to a program that grants ports"
    );
    let error = refused(&|ours| assert!(rustix::io::write(ours, &[0; 200]).is_ok()), lab.right());
    assert!(error.contains("grant: incomplete"), "{error}");
    drop(queues);
    let (ours, theirs) = seqpacket_pair();
    control.send(&ours).unwrap();
    lab.right().namespace().run(|| FilterControl::receive(&theirs).unwrap());
}

#[test]
fn a_packet_ring_port_has_no_filter_control() {
    let lab = lab!();
    let ring = open_queues(lab.right(), |builder| builder.mode(Mode::PacketRing));
    let error = ring.filter_control().unwrap_err();
    assert!(matches!(error, FilterControlError::NoProgram { mode: Mode::PacketRing, .. }), "{error}");
}
