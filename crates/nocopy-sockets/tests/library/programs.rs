//! Programs in C that send, with the library and without: every datagram arrives once, intact, and in order.

use std::os::unix::process::ExitStatusExt;

use nocopy_proto::run::sockets::SOCKETS_MAX;
use rustix::fs::SealFlags;

use crate::common::{How, Program, arrived, receiver, run, run_counted};

/// Bursts from the second equal datagram on, which nothing ends but what the program does, and the deadline.
const EAGER: &str = "entry=2,always";

/// What arrives of a run of `sender`: numbers of datagrams, and -1 for marks.
struct Arrived {
    numbers: Vec<i64>,
    status: std::process::ExitStatus,
    joined: u64,
    lost: u64,
    /// Sockets that the library counted.
    sockets: usize,
    text: String,
}

/// The same without the deadline: it is longer than any test.
const EAGER_AND_PATIENT: &str = "entry=2,always,deadline=600000000";

const BYTES: usize = 1000;

/// Datagrams that go alone before the first that joins: two make a run, and one opens it.
const ALONE: u32 = 3;

const FULL: u32 = 64;

fn send(count: u32, what: &str, how: How<'_>) -> Arrived {
    send_by(&Program::compile("sender"), count, what, how)
}

fn send_by(program: &Program, count: u32, what: &str, how: How<'_>) -> Arrived {
    let (socket, address) = receiver();
    let mut command = program.command();
    command.args([&address.port().to_string(), &count.to_string(), &BYTES.to_string(), what]);
    let (output, sockets) = run(command, how);
    let numbers = arrived(&socket).iter().map(|datagram| number(datagram)).collect();
    let sum = |of: fn(&nocopy_proto::run::sockets::Socket) -> u64| sockets.sockets.iter().map(of).sum();
    let text = crate::common::text(&output.stdout) + &crate::common::text(&output.stderr);
    let (joined, lost) = (sum(|socket| socket.joined), sum(|socket| socket.lost));
    Arrived { numbers, status: output.status, joined, lost, sockets: sockets.sockets.len(), text }
}

/// Checks all bytes of a datagram; returns its number.
fn number(datagram: &[u8]) -> i64 {
    if datagram == b"m" {
        return -1;
    }
    assert_eq!(datagram.len(), BYTES);
    let number = i64::from_ne_bytes(*datagram.first_chunk().unwrap());
    let is_intact = datagram[8..].iter().all(|&byte| byte == number as u8);
    assert!(is_intact, "datagram {number} has other bytes");
    number
}

/// Checks that the results are the same without the library and with it: bursts at once, at the usual pace,
/// and each datagram by itself.
#[track_caller]
fn same(count: u32, what: &str) {
    let program = Program::compile("sender");
    let plain = send_by(&program, count, what, How::Plainly);
    for tuning in [EAGER, "", "entry=1,always,deadline=0", "entry=1,always,deadline=7"] {
        let ours = send_by(&program, count, what, How::Preloaded(tuning));
        assert_eq!(ours.numbers, plain.numbers, "{what} with '{tuning}': {}", ours.text);
        assert_eq!(ours.status, plain.status, "{what} with '{tuning}': {}", ours.text);
        assert_eq!((ours.lost, &ours.text), (0, &plain.text), "{what} with '{tuning}'");
        assert!(ours.joined > 0 || tuning.is_empty(), "{what} with '{tuning}': nothing joined");
    }
}

#[test]
fn a_loop_arrives_in_order_and_mostly_in_bursts() {
    let ours = send(5000, "return", How::Preloaded("always"));
    assert_eq!(ours.numbers, (0..5000).collect::<Vec<_>>());
    assert!(ours.joined > 2500, "{} joined", ours.joined);
    same(300, "return");
}

#[test]
fn every_way_to_end_sends_what_waits() {
    for what in ["exit", "_exit", "abort", "raise", "exec"] {
        same(10, what);
    }
}

#[test]
fn a_program_that_kills_itself_has_sent_everything() {
    let ours = send(10, "kill", How::Preloaded(EAGER));
    assert_eq!((ours.numbers.len(), ours.status.signal()), (10, Some(9)));
}

#[test]
fn children_and_threads_keep_the_order() {
    for what in ["fork", "_Fork", "vfork", "spawn", "thread"] {
        same(10, what);
    }
}

#[test]
fn a_fork_without_handlers_comes_after_the_burst() {
    let ours = send(10, "_Fork", How::Preloaded(EAGER_AND_PATIENT));
    assert_eq!(ours.numbers, (0..10).chain([-1]).chain(10..20).collect::<Vec<_>>(), "{}", ours.text);
}

#[test]
fn a_vfork_child_that_closes_descriptors_loses_no_burst() {
    let ours = send(10, "vfork-beside", How::Preloaded(EAGER_AND_PATIENT));
    assert_eq!((ours.numbers, ours.lost), ((0..20).collect::<Vec<_>>(), 0), "{}", ours.text);
}

#[test]
fn a_vfork_child_changes_nothing_of_the_parents() {
    let ours = send(10, "vfork-closing", How::Preloaded(EAGER_AND_PATIENT));
    assert_eq!((ours.numbers, ours.sockets), ((0..50).collect::<Vec<_>>(), 1), "{}", ours.text);
    let ours = send(10, "vfork-sending", How::Preloaded(EAGER));
    assert_eq!(ours.status.code(), Some(0), "{}", ours.text);
}

/// Each call of the library that the filter does not permit would end the program.
#[test]
fn programs_that_filter_their_calls_are_left_alone() {
    let program = Program::compile("confined");
    for way in ["prctl", "syscall prctl", "syscall seccomp", "filter"] {
        let (socket, address) = receiver();
        let mut command = program.command();
        command.args([&address.port().to_string(), way]);
        let (output, sockets) = run(command, How::Preloaded(EAGER));
        let joined: u64 = sockets.sockets.iter().map(|socket| socket.joined).sum();
        let seen = (output.status.code(), sockets.confined, arrived(&socket).len(), joined > 0);
        assert_eq!(seen, (Some(7), 1, 20, true), "{way}: {}", output.status);
    }
}

#[test]
fn output_elsewhere_comes_after_the_burst() {
    same(7, "other");
}

#[test]
fn closed_and_duplicated_descriptors_keep_their_datagrams() {
    for what in ["close", "dup"] {
        same(10, what);
    }
}

#[test]
fn a_descriptor_that_is_replaced_unseen_is_noticed() {
    let ours = send(10, "raw-close", How::Preloaded(EAGER));
    let after: Vec<_> = ours.numbers.iter().copied().skip_while(|&number| number >= 0).collect();
    assert_eq!(after, [-1].into_iter().chain(10..20).collect::<Vec<_>>(), "{}", ours.text);
    let before = ours.numbers.len() - after.len();
    assert_eq!(before as u64 + ours.lost, 10, "what did not arrive was counted");
}

#[test]
fn only_one_burst_is_lost_to_an_unseen_replacement() {
    let ours = send(FULL, "raw-replace", How::Preloaded(EAGER_AND_PATIENT));
    let lost = u64::from(5 * FULL) - ours.numbers.len() as u64;
    assert_eq!((ours.lost, lost), (u64::from(FULL), u64::from(FULL)), "{}", ours.text);
}

#[test]
fn no_burst_is_lost_to_a_replacement_behind_one() {
    let count = ALONE + FULL; // the burst before it is full
    let ours = send(count, "raw-file", How::Preloaded(EAGER_AND_PATIENT));
    assert_eq!((ours.status.code(), ours.lost), (Some(0), 0), "{}", ours.text);
}

#[test]
fn another_sockets_burst_does_not_vouch_for_a_replaced_one() {
    let count = ALONE + FULL;
    let ours = send(count, "raw-replace-after-full", How::Preloaded(EAGER_AND_PATIENT));
    assert_eq!(
        (ours.numbers, ours.lost),
        ((0..i64::from(2 * count + ALONE + 1)).collect::<Vec<_>>(), 0),
        "{}",
        ours.text
    );
}

#[test]
fn waits_keep_the_order() {
    same(10, "waits");
}

#[test]
fn every_call_that_sends_can_join() {
    same(500, "calls");
}

#[test]
fn threads_that_take_turns_keep_the_order() {
    let ours = send(300, "turns", How::Preloaded(EAGER));
    assert_eq!(ours.numbers, (0..2700).collect::<Vec<_>>(), "{}", ours.text);
}

#[test]
fn a_signal_handler_that_sends_neither_waits_nor_reorders() {
    let program = Program::compile("sender");
    let (socket, address) = receiver();
    let mut command = program.command();
    command.args([&address.port().to_string(), "20000", &BYTES.to_string(), "handler"]);
    let (output, sockets) = run(command, How::Preloaded(EAGER));
    assert!(output.status.success(), "{}", crate::common::text(&output.stderr));
    let said = crate::common::text(&output.stdout);
    let by_handler: i64 = said.split(' ').next().unwrap().parse().unwrap();
    let numbers: Vec<_> = arrived(&socket)
        .iter()
        .map(|datagram| i64::from_ne_bytes(*datagram.first_chunk().unwrap()))
        .collect();
    let (own, handlers): (Vec<_>, Vec<_>) = numbers.iter().copied().partition(|&number| number >= 1_000_000);
    assert_eq!(own, (1_000_000..1_020_000).collect::<Vec<_>>(), "the loop's own are all there, and in order");
    assert_eq!(handlers, (0..by_handler).collect::<Vec<_>>(), "and so are the handler's");
    assert!(sockets.sockets.iter().any(|socket| socket.joined > 0));
}

/// A jump out of a signal handler ends a call of the library for good, whatever it was doing.
#[test]
fn bursts_go_on_after_jumps_out_of_handlers() {
    const COUNT: i64 = 1000;
    let program = Program::compile("jumps");
    for stack in ["here", "elsewhere"] {
        let ((during, first), (after, then)) = (receiver(), receiver());
        let mut command = program.command();
        let ports = [first, then].map(|address| address.port().to_string());
        command.args([&ports[0], &ports[1], &COUNT.to_string(), stack]);
        let (output, sockets) = run(command, How::Preloaded("entry=2,always,deadline=5000"));
        assert!(output.status.success(), "{stack}: {}", crate::common::text(&output.stderr));
        let numbers = |socket| arrived(socket).iter().map(|datagram| number(datagram)).collect::<Vec<_>>();
        assert!(numbers(&during).is_sorted_by(|one, next| one < next), "{stack}: each once, and in order");
        assert!(numbers(&after) == (0..2 * COUNT).collect::<Vec<_>>(), "{stack}: all arrive, in order");
        let joined: Vec<_> = sockets.sockets.iter().map(|socket| socket.joined).collect();
        assert!(joined.len() == 3 && joined.iter().all(|&joined| joined > 0), "{stack}: {joined:?} joined");
    }
}

/// A thread that ends anywhere in a call of the library holds nothing from then on.
#[test]
fn bursts_go_on_after_threads_that_end_in_calls() {
    const COUNT: i64 = 1000;
    let program = Program::compile("exits");
    for way in ["exit", "cancel"] {
        let ((during, first), (after, then)) = (receiver(), receiver());
        let mut command = program.command();
        let ports = [first, then].map(|address| address.port().to_string());
        command.args([&ports[0], &ports[1], &COUNT.to_string(), way]);
        let (output, sockets) = run(command, How::Preloaded("entry=2,always,deadline=5000"));
        let errors = crate::common::text(&output.stderr);
        assert!(output.status.success(), "{way}: {}, {errors}", output.status);
        let numbers = |socket| arrived(socket).iter().map(|datagram| number(datagram)).collect::<Vec<_>>();
        assert!(numbers(&during).is_sorted_by(|one, next| one < next), "{way}: each once, and in order");
        assert!(numbers(&after) == (0..COUNT).collect::<Vec<_>>(), "{way}: all arrive, in order");
        let joined: Vec<_> = sockets.sockets.iter().map(|socket| socket.joined).collect();
        assert!(joined.len() == 2 && joined.iter().all(|&joined| joined > 0), "{way}: {joined:?} joined");
    }
}

/// A thread that is started for a burst while the program gives up its rights has none of them.
#[test]
fn no_thread_keeps_what_a_program_gives_up() {
    if !rustix::process::geteuid().is_root() {
        return nocopy_lab::skip(&nocopy_lab::Missing::Capability("CAP_SETUID"));
    }
    let program = Program::compile("users");
    let (_socket, address) = receiver();
    let mut command = program.command();
    command.arg(address.port().to_string());
    let (output, _) = run(command, How::Preloaded("entry=2,always,deadline=1000"));
    assert!(output.status.success(), "{}", crate::common::text(&output.stderr));
}

/// Another thread may change the memory between two reads, and the lengths that were checked were not those
/// that are used.
#[test]
#[cfg(target_arch = "x86_64")]
fn what_arguments_point_to_is_read_once() {
    let program = Program::compile("reads");
    let (_socket, address) = receiver();
    let mut command = program.command();
    command.arg(address.port().to_string());
    let (output, _) = run(command, How::Preloaded("entry=2,always,deadline=600000000"));
    let once = format!("{BYTES} bytes sent, nothing read more than 1 times\n");
    assert_eq!(crate::common::text(&output.stdout), once.repeat(3), "{}", output.status);
}

/// A write behind the end of a file that another process has made shorter ends a program.
#[test]
fn a_file_for_counts_that_may_become_shorter_is_not_used() {
    let program = Program::compile("refused");
    for (seals, programs) in [(SealFlags::SHRINK, 1), (SealFlags::GROW, 0)] {
        let mut command = program.command();
        command.arg("9");
        let (_, sockets) = run_counted(command, How::Preloaded(EAGER), seals);
        assert_eq!(sockets.programs, programs, "{seals:?}");
    }
}

#[test]
fn sockets_for_which_there_is_no_record_are_counted_together() {
    let (_socket, address) = receiver();
    let program = Program::compile("sender");
    let mut command = program.command();
    let count = SOCKETS_MAX + 100;
    command.args([&address.port().to_string(), &count.to_string(), &BYTES.to_string(), "many"]);
    let (output, sockets) = run(command, How::Preloaded(""));
    assert!(output.status.success(), "{}", crate::common::text(&output.stderr));
    let sent: u64 = sockets.sockets.iter().flat_map(|socket| &socket.plain).map(|(_, count)| count).sum();
    assert_eq!((sent, sockets.left_out), (count as u64, 101));
    let last = sockets.sockets.last().map(|socket| socket.program.as_str());
    assert_eq!((last, sockets.sockets.len()), (Some("(others)"), SOCKETS_MAX));
}

/// Without a receiver, the kernel reports the error of one datagram at the next call.
#[test]
fn a_closed_port_is_told_at_the_second_datagram() {
    let program = Program::compile("refused");
    for how in [How::Plainly, How::Preloaded(""), How::Preloaded("entry=1,always")] {
        // The number of a socket that is closed by now, and that nothing else here has.
        let (socket, address) = receiver();
        drop(socket);
        let mut command = program.command();
        command.arg(address.port().to_string());
        let (output, _) = run(command, how);
        assert_eq!(crate::common::text(&output.stdout), "0 refused, waits end\n", "{how:?}");
    }
}

#[test]
fn a_full_socket_says_so_before_it_takes_a_datagram() {
    if nocopy_lab::lab_or_skip().is_none() {
        return; // the program makes a namespace and an interface, too
    }
    let program = Program::compile("full");
    // With some of them the room ends before a burst, with others before a datagram alone.
    for buffer_bytes in (30_000..60_000).step_by(2500) {
        let mut command = program.command();
        command.arg(buffer_bytes.to_string());
        let (output, sockets) = run(command, How::Preloaded("entry=1,always"));
        let (said, errors) = (crate::common::text(&output.stdout), crate::common::text(&output.stderr));
        assert_eq!(said, "every datagram that was taken has arrived\n", "{buffer_bytes}: {errors}");
        assert!(output.status.success(), "{buffer_bytes}: {errors}");
        assert!(sockets.sockets.iter().any(|socket| socket.joined > 0));
    }
}

/// A call that waits for room ends, or goes on, as the C library's does: by signals, when its thread is
/// cancelled or ends, and by jumps.
#[test]
fn waits_for_room_can_be_left() {
    if nocopy_lab::lab_or_skip().is_none() {
        return; // the program makes a namespace and an interface, too
    }
    let program = Program::compile("leaving");
    for way in ["interrupt", "restart", "cancel", "cancel asynchronously", "jump", "exit"] {
        let seen = |how| {
            let mut command = program.command();
            command.arg(way);
            let (output, sockets) = run(command, how);
            let (said, errors) = (crate::common::text(&output.stdout), crate::common::text(&output.stderr));
            assert!(output.status.success(), "{way}, {how:?}: {said}{errors}");
            (said, sockets.sockets.iter().map(|socket| socket.joined > 0).collect::<Vec<_>>())
        };
        let (plain, _) = seen(How::Plainly);
        // With the first, the call waits for a burst before its own datagram; with the second, for its own.
        let (burst, joined) = seen(How::Preloaded("entry=1,always"));
        assert_eq!(burst, plain, "{way}");
        // Each function's, and the one that sends after it.
        assert_eq!(joined, [true; 12], "{way}: joined");
        assert_eq!(seen(How::Preloaded("entry=2,always")).0, plain, "{way}, alone");
    }
}

/// Calls that hand a burst over and then wait hold nothing while they wait.
#[test]
fn waits_for_something_else_can_be_left() {
    let program = Program::compile("waiting");
    for way in ["interrupt", "cancel", "cancel asynchronously", "jump", "exit"] {
        let seen = |how| {
            let mut command = program.command();
            command.arg(way);
            let (output, sockets) = run(command, how);
            let errors = crate::common::text(&output.stderr);
            assert!(output.status.success(), "{how:?}: {errors}");
            (crate::common::text(&output.stdout), sockets.sockets)
        };
        let (plain, _) = seen(How::Plainly);
        let (ours, sockets) = seen(How::Preloaded("entry=1,always,deadline=600000000"));
        assert_eq!(ours, plain, "{way}");
        // The two of each thread, and the one that sends after it.
        assert_eq!(sockets.len(), 3 * plain.lines().count(), "{way}");
        assert!(sockets.iter().all(|socket| socket.joined > 0), "{way}: joined");
    }
}

#[test]
fn datagrams_longer_than_the_mtu_go_singly() {
    if nocopy_lab::lab_or_skip().is_none() {
        return;
    }
    let namespace = nocopy_lab::Namespace::with_loopback().unwrap();
    namespace.run(|| {
        let mtu = (BYTES / 2).to_string();
        let ip = std::process::Command::new("ip").args(["link", "set", "lo", "mtu", &mtu]).status();
        assert!(ip.unwrap().success());
        same(200, "return");
    });
}
