//! Programs in C, each run with the system's libpcap and with ours on the same traffic: what they see and are
//! told is the same, line by line.

use crate::common::{LibraryKind, ScratchDirectory};

#[test]
fn captures_match_the_systems_libpcap() {
    crate::common::compare_with_system("capture");
}

#[test]
fn waits_and_threads_match_the_systems_libpcap() {
    crate::common::compare_with_system("waits");
}

#[test]
fn errors_match_the_systems_libpcap() {
    crate::common::compare_with_system("errors");
}

#[test]
fn use_after_fork_matches_the_systems_libpcap() {
    crate::common::compare_with_system("fork");
}

#[test]
fn sending_matches_the_systems_libpcap() {
    crate::common::compare_with_system("sending");
}

#[test]
fn a_handle_closed_during_a_read_leaks_nothing() {
    let scratch = ScratchDirectory::new("closing");
    let program = crate::common::compile_program("closing", &scratch);
    for library in [LibraryKind::Ours, LibraryKind::Take] {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let output = crate::common::run_program(&program, library, &lab);
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
fn a_read_on_another_stack_is_refused_during_a_running_read() {
    let scratch = ScratchDirectory::new("stacks");
    let program = crate::common::compile_program("stacks", &scratch);
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
    for library in [LibraryKind::Ours, LibraryKind::Take] {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let output = crate::common::run_program(&program, library, &lab);
        assert!(output.status.success() && output.lines == expected.concat(), "{output:#?}");
    }
}
