//! Programs in C, each run with the system's libpcap and with ours on the same traffic: what they see and are
//! told is the same, line by line.

use crate::common::{Library, Scratch};

#[test]
fn captures_are_the_same() {
    crate::common::compare("capture");
}

#[test]
fn waits_and_threads_are_the_same() {
    crate::common::compare("corners");
}

#[test]
fn errors_are_the_same() {
    crate::common::compare("tolerance");
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
fn a_handle_closed_during_a_read_leaves_nothing_behind() {
    let scratch = Scratch::new("closing");
    let program = crate::common::compile("closing", &scratch);
    for library in [Library::Ours, Library::Taking] {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let told = crate::common::run(&program, library, &lab);
        let said = |line: &str| told.lines.iter().filter(|said| said.starts_with(line)).count();
        assert!(told.status.success(), "{told:#?}");
        assert_eq!((said("loop: -2"), said("until closed: 3 packets")), (4, 2), "{told:#?}");
        assert_eq!(said("left: 0 descriptors, 0 sockets"), 4, "{told:#?}");
    }
}

#[test]
#[cfg_attr(
    nocopy_sanitizer,
    ignore = "the address sanitizer does not know of stacks that makecontext(3) made"
)]
fn a_call_on_another_stack_ends_none_that_goes_on() {
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
    for library in [Library::Ours, Library::Taking] {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let told = crate::common::run(&program, library, &lab);
        assert!(told.status.success() && told.lines == expected.concat(), "{told:#?}");
    }
}
