//! Captures that take packets from the host: they get the same as with the system's libpcap, and the host
//! gets the rest.

use crate::common::{Library, Scratch, Wire};

#[test]
fn what_comes_in_is_the_same() {
    crate::common::compare_with("take", Library::Taking);
}

#[test]
fn forks_are_the_same() {
    crate::common::compare_with("fork", Library::Taking);
}

#[test]
fn errors_are_the_same() {
    crate::common::compare_with("tolerance", Library::Taking);
}

#[test]
fn a_call_that_is_left_by_longjmp_ends() {
    crate::common::compare_with("left", Library::Taking);
    crate::common::compare_with("left", Library::Ours);
}

#[test]
fn threads_may_leave_calls_in_every_way() {
    crate::common::compare_with("leaving", Library::Ours);
    crate::common::compare_with("leaving", Library::Taking);
}

#[test]
fn exceptions_pass_the_library() {
    crate::common::compare_with("exceptions", Library::Ours);
    crate::common::compare_with("exceptions", Library::Taking);
}

#[test]
fn who_sleeps_in_poll_is_told_of_an_interface_that_goes() {
    crate::common::compare_with("polled", Library::Taking);
    crate::common::compare_with("polled", Library::Ours);
}

#[test]
fn what_does_not_match_is_the_hosts_and_what_matches_is_not() {
    let scratch = Scratch::new("rest");
    let program = crate::common::compile("rest", &scratch);
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let host = Wire::open(lab.right());
    let told = crate::common::run(&program, Library::Taking, &lab);
    let said = |line: &str| told.lines.iter().filter(|said| said.starts_with(line)).count();
    assert!(told.status.success(), "{told:#?}");
    assert_eq!(said("matching: 10 packets, 900 bytes of 900"), 2, "{told:#?}");
    assert_eq!(
        (said("direction in: 0"), said("direction out: -1 direction: cannot be outgoing; ")),
        (1, 1),
        "{told:#?}"
    );
    assert_eq!(said("setfilter: -1 filter: the one before cannot be removed; "), 1, "{told:#?}");
    assert_eq!(said("a second one: 1"), 1, "{told:#?}");
    assert_eq!((said("inject: 60"), said("arrived: 1 frames, 60 bytes")), (1, 1), "{told:#?}");
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
    let scratch = Scratch::new("handed");
    let program = crate::common::compile("handed", &scratch);
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let told = crate::common::run(&program, Library::Taking, &lab);
    assert!(told.status.success(), "{told:#?}");
    let said: Vec<_> = told.lines.iter().filter(|line| line.contains(" wanted, ")).collect();
    let expected = [
        "handed back: 11 wanted, lost 0",
        "handed back from another root: 11 wanted, lost 0",
        "lost: 11 wanted, lost 1",
    ];
    assert_eq!(said, expected, "{told:#?}");
}
