//! Captures that take packets from the host: they get the same as with the system's libpcap, and the host
//! gets the rest.

use crate::common::{Library, Scratch, Wire};

#[test]
fn incoming_packets_are_the_same() {
    crate::common::compare_with("take", Library::Take);
}

#[test]
fn forks_are_the_same() {
    crate::common::compare_with("fork", Library::Take);
}

#[test]
fn errors_are_the_same() {
    crate::common::compare_with("errors", Library::Take);
}

#[test]
fn a_call_left_by_longjmp_leaves_the_handle_usable() {
    crate::common::compare_with("longjmp", Library::Take);
    crate::common::compare_with("longjmp", Library::Ours);
}

#[test]
fn threads_that_end_in_a_call_leave_the_handle_usable() {
    crate::common::compare_with("thread_ends", Library::Ours);
    crate::common::compare_with("thread_ends", Library::Take);
}

#[test]
fn exceptions_pass_through_the_library() {
    crate::common::compare_with("exceptions", Library::Ours);
    crate::common::compare_with("exceptions", Library::Take);
}

#[test]
fn poll_wakes_up_when_the_interface_is_removed() {
    crate::common::compare_with("interface_down", Library::Take);
    crate::common::compare_with("interface_down", Library::Ours);
}

#[test]
fn only_unmatched_packets_reach_the_host() {
    let scratch = Scratch::new("unmatched");
    let program = crate::common::compile("unmatched", &scratch);
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let host = Wire::open(lab.right());
    let output = crate::common::run(&program, Library::Take, &lab);
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
    let last = crate::common::frame(lab.right(), 77, 60);
    Wire::open(lab.left()).send(&last);
    let mut ports = Vec::new();
    loop {
        let frame = host.next().expect("what the host gets");
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
fn returned_packets_are_not_received_and_undelivered_are_drops() {
    let scratch = Scratch::new("returned");
    let program = crate::common::compile("returned", &scratch);
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let output = crate::common::run(&program, Library::Take, &lab);
    assert!(output.status.success(), "{output:#?}");
    let lines: Vec<_> = output.lines.iter().filter(|line| line.contains(" wanted, ")).collect();
    let expected = [
        "handed back: 11 wanted, lost 0",
        "handed back from another root: 11 wanted, lost 0",
        "lost: 11 wanted, lost 1",
    ];
    assert_eq!(lines, expected, "{output:#?}");
}
