//! Programs in C, each run with the system's libpcap and with ours on the same traffic: what they see and are
//! told is the same, line by line.

use crate::common::{Library, Scratch};

#[test]
fn captures_are_the_same() {
    crate::common::compare("capture");
}

#[test]
fn waits_and_threads_are_the_same() {
    crate::common::compare("waits");
}

#[test]
fn errors_are_the_same() {
    crate::common::compare("errors");
}

#[test]
fn forks_are_the_same() {
    crate::common::compare("fork");
}

#[test]
fn sending_is_the_same() {
    crate::common::compare("sending");
}

#[test]
fn a_handle_closed_during_a_read_leaks_nothing() {
    let scratch = Scratch::new("closing");
    let program = crate::common::compile("closing", &scratch);
    for library in [Library::Ours, Library::Take] {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let output = crate::common::run(&program, library, &lab);
        let count_of = |line: &str| output.lines.iter().filter(|printed| printed.starts_with(line)).count();
        assert!(output.status.success(), "{output:#?}");
        assert_eq!((count_of("loop: -2"), count_of("until closed: 3 packets")), (4, 2), "{output:#?}");
        assert_eq!(count_of("left: 0 descriptors, 0 sockets"), 4, "{output:#?}");
    }
}

#[test]
#[cfg_attr(
    nocopy_sanitizer,
    ignore = "the address sanitizer does not know of stacks that makecontext(3) made"
)]
fn a_call_on_another_stack_does_not_end_a_running_one() {
    let scratch = Scratch::new("stacks");
    let program = crate::common::compile("stacks", &scratch);
    let refused = "read elsewhere: -1 handle: cannot be read; another call is reading its packets; wait until that has returned";
    let expected = [
        &["a coroutine", refused, refused, "loop: -2", "packets: 2; left open: 0 descriptors, 0 sockets"][..],
        &[
            "a signal handler",
            refused,
            refused,
            "loop: -2",
            "packets: 2; left open: 0 descriptors, 0 sockets",
        ],
        &["a coroutine that leaves", "left: 3", "packets: 0; left open: 0 descriptors, 0 sockets"],
    ];
    for library in [Library::Ours, Library::Take] {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let output = crate::common::run(&program, library, &lab);
        assert!(output.status.success() && output.lines == expected.concat(), "{output:#?}");
    }
}
