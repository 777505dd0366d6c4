//! Captures that take packets from the host: they get the same as with the system's libpcap, and the host
//! gets the rest.

use crate::common::{LibraryKind, PeerPacketSocket, ScratchDirectory};

#[test]
fn taken_packets_match_the_systems_libpcap() {
    crate::common::compare_system_with("take", LibraryKind::Take);
}

#[test]
fn use_after_fork_while_taking_matches_the_systems_libpcap() {
    crate::common::compare_system_with("fork", LibraryKind::Take);
}

#[test]
fn errors_while_taking_match_the_systems_libpcap() {
    crate::common::compare_system_with("errors", LibraryKind::Take);
}

#[test]
fn a_call_left_by_longjmp_leaves_the_handle_usable() {
    crate::common::compare_system_with("longjmp", LibraryKind::Take);
    crate::common::compare_system_with("longjmp", LibraryKind::Ours);
}

#[test]
fn threads_that_end_in_a_call_leave_the_handle_usable() {
    crate::common::compare_system_with("thread_ends", LibraryKind::Ours);
    crate::common::compare_system_with("thread_ends", LibraryKind::Take);
}

#[test]
fn exceptions_pass_through_the_library() {
    crate::common::compare_system_with("exceptions", LibraryKind::Ours);
    crate::common::compare_system_with("exceptions", LibraryKind::Take);
}

#[test]
fn poll_wakes_up_when_the_interface_is_removed() {
    crate::common::compare_system_with("interface_down", LibraryKind::Take);
    crate::common::compare_system_with("interface_down", LibraryKind::Ours);
}

#[test]
fn only_unmatched_packets_reach_the_host() {
    let scratch = ScratchDirectory::new("unmatched");
    let program = crate::common::compile_program("unmatched", &scratch);
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let host = PeerPacketSocket::open(lab.right());
    let output = crate::common::run_program(&program, LibraryKind::Take, &lab);
    let count_of = |line: &str| output.lines.iter().filter(|printed| printed.starts_with(line)).count();
    assert!(output.status.success(), "{output:#?}");
    assert_eq!(count_of("matching: 10 packets, 900 bytes of 900"), 2, "{output:#?}");
    assert_eq!(
        (count_of("direction in: 0"), count_of("direction out: -1 direction: cannot be outgoing; ")),
        (1, 1),
        "{output:#?}"
    );
    assert_eq!(count_of("setfilter: -1 filter: the one before cannot be removed; "), 1, "{output:#?}");
    assert_eq!(count_of("a second one: 1"), 1, "{output:#?}");
    assert_eq!((count_of("inject: 60"), count_of("arrived: 1 frames, 60 bytes")), (1, 1), "{output:#?}");
    // Nothing is attached to the interface any more: this reaches the host, after everything else.
    let last = crate::common::numbered_frame(lab.right(), 77, 60);
    PeerPacketSocket::open(lab.left()).send(&last);
    let mut ports = Vec::new();
    loop {
        let frame = host.receive_frame().expect("what the host gets");
        if frame == last {
            break;
        }
        if frame[12..14] == [0x08, 0x00] {
            ports.push(u16::from_be_bytes([frame[36], frame[37]]));
        }
    }
    assert_eq!(ports, [9; 20]);
}

#[test]
fn returned_packets_are_not_counted_and_unreturnable_ones_are_drops() {
    let scratch = ScratchDirectory::new("returned");
    let program = crate::common::compile_program("returned", &scratch);
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let output = crate::common::run_program(&program, LibraryKind::Take, &lab);
    assert!(output.status.success(), "{output:#?}");
    let lines: Vec<_> = output.lines.iter().filter(|line| line.contains(" wanted, ")).collect();
    let expected = [
        "handed back: 11 wanted, lost 0",
        "handed back from another root: 11 wanted, lost 0",
        "lost: 11 wanted, lost 1",
    ];
    assert_eq!(lines, expected, "{output:#?}");
}
