//! Programs in C that send, with the library and without: every datagram arrives once, intact, and in order.

use std::os::unix::process::ExitStatusExt;

use nocopy_proto::run::sockets::SOCKETS_MAX;
use rustix::fs::SealFlags;

use crate::common::{
    CompiledProgram, RunMode, loopback_receiver, receive_arrived, run_command, run_with_report_file,
};

/// Bursts from the second equal datagram on, which nothing ends but what the program does, and the deadline.
const EARLY: &str = "entry=2,always";

/// What arrives of a run of `sender`: numbers of datagrams, and -1 for marks.
struct SenderResult {
    numbers: Vec<i64>,
    status: std::process::ExitStatus,
    joined: u64,
    lost: u64,
    /// Sockets that the library counted.
    sockets: usize,
    text: String,
}

/// The same without the deadline: it is longer than any test.
const EARLY_WITHOUT_DEADLINE: &str = "entry=2,always,deadline=600000000";

const BYTES: usize = 1000;

/// Datagrams that go alone before the first that joins: two make a run, and one opens it.
const SINGLE: u32 = 3;

const FULL: u32 = 64;

fn run_sender(count: u32, what: &str, run_mode: RunMode<'_>) -> SenderResult {
    run_compiled_sender(&CompiledProgram::compile("sender"), count, what, run_mode)
}

fn run_compiled_sender(
    program: &CompiledProgram,
    count: u32,
    what: &str,
    run_mode: RunMode<'_>,
) -> SenderResult {
    let (socket, address) = loopback_receiver();
    let mut command = program.command();
    command.args([&address.port().to_string(), &count.to_string(), &BYTES.to_string(), what]);
    let (output, sockets) = run_command(command, run_mode);
    let numbers = receive_arrived(&socket).iter().map(|datagram| checked_number(datagram)).collect();
    let sum = |of: fn(&nocopy_proto::run::sockets::SocketRecord) -> u64| sockets.sockets.iter().map(of).sum();
    let text = crate::common::utf8_text(&output.stdout) + &crate::common::utf8_text(&output.stderr);
    let (joined, lost) = (sum(|socket| socket.joined), sum(|socket| socket.lost));
    SenderResult { numbers, status: output.status, joined, lost, sockets: sockets.sockets.len(), text }
}

/// Checks all bytes of a datagram; returns its number.
fn checked_number(datagram: &[u8]) -> i64 {
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
fn compare_tunings_with_plain(count: u32, what: &str) {
    let program = CompiledProgram::compile("sender");
    let plain = run_compiled_sender(&program, count, what, RunMode::Plain);
    for tuning in [EARLY, "", "entry=1,always,deadline=0", "entry=1,always,deadline=7"] {
        let ours = run_compiled_sender(&program, count, what, RunMode::Preloaded(tuning));
        assert_eq!(ours.numbers, plain.numbers, "{what} with '{tuning}': {}", ours.text);
        assert_eq!(ours.status, plain.status, "{what} with '{tuning}': {}", ours.text);
        assert_eq!((ours.lost, &ours.text), (0, &plain.text), "{what} with '{tuning}'");
        assert!(ours.joined > 0 || tuning.is_empty(), "{what} with '{tuning}': nothing joined");
    }
}

#[test]
fn datagrams_of_a_loop_arrive_in_order_mostly_in_bursts() {
    let ours = run_sender(5000, "return", RunMode::Preloaded("always"));
    assert_eq!(ours.numbers, (0..5000).collect::<Vec<_>>());
    assert!(ours.joined > 2500, "{} joined", ours.joined);
    compare_tunings_with_plain(300, "return");
}

#[test]
fn every_way_a_program_ends_sends_its_burst_first() {
    for what in ["exit", "_exit", "abort", "raise", "exec"] {
        compare_tunings_with_plain(10, what);
    }
}

#[test]
fn a_program_that_kills_itself_loses_no_datagram() {
    let ours = run_sender(10, "kill", RunMode::Preloaded(EARLY));
    assert_eq!((ours.numbers.len(), ours.status.signal()), (10, Some(9)));
}

#[test]
fn datagrams_of_children_and_threads_keep_their_order() {
    for what in ["fork", "_Fork", "vfork", "spawn", "thread"] {
        compare_tunings_with_plain(10, what);
    }
}

#[test]
fn a_fork_without_handlers_is_ordered_after_the_burst() {
    let ours = run_sender(10, "_Fork", RunMode::Preloaded(EARLY_WITHOUT_DEADLINE));
    assert_eq!(ours.numbers, (0..10).chain([-1]).chain(10..20).collect::<Vec<_>>(), "{}", ours.text);
}

#[test]
fn a_vfork_child_that_closes_descriptors_loses_no_burst() {
    let ours = run_sender(10, "vfork-and-thread", RunMode::Preloaded(EARLY_WITHOUT_DEADLINE));
    assert_eq!((ours.numbers, ours.lost), ((0..20).collect::<Vec<_>>(), 0), "{}", ours.text);
}

#[test]
fn a_vfork_child_changes_no_state_of_its_parent() {
    let ours = run_sender(10, "vfork-closing", RunMode::Preloaded(EARLY_WITHOUT_DEADLINE));
    assert_eq!((ours.numbers, ours.sockets), ((0..50).collect::<Vec<_>>(), 1), "{}", ours.text);
    let ours = run_sender(10, "vfork-sending", RunMode::Preloaded(EARLY));
    assert_eq!(ours.status.code(), Some(0), "{}", ours.text);
}

/// Each call of the library that the filter does not permit would end the program.
#[test]
fn programs_that_filter_system_calls_send_unbatched() {
    let program = CompiledProgram::compile("confined");
    for mode in ["prctl", "syscall prctl", "syscall seccomp", "filter"] {
        let (socket, address) = loopback_receiver();
        let mut command = program.command();
        command.args([&address.port().to_string(), mode]);
        let (output, sockets) = run_command(command, RunMode::Preloaded(EARLY));
        let joined: u64 = sockets.sockets.iter().map(|socket| socket.joined).sum();
        let seen = (output.status.code(), sockets.confined, receive_arrived(&socket).len(), joined > 0);
        assert_eq!(seen, (Some(7), 1, 20, true), "{mode}: {}", output.status);
    }
}

#[test]
fn other_output_is_ordered_after_the_burst() {
    compare_tunings_with_plain(7, "other");
}

#[test]
fn closed_and_duplicated_descriptors_keep_their_datagrams() {
    for what in ["close", "dup"] {
        compare_tunings_with_plain(10, what);
    }
}

#[test]
fn an_unseen_replacement_of_a_descriptor_is_detected() {
    let ours = run_sender(10, "raw-close", RunMode::Preloaded(EARLY));
    let after: Vec<_> = ours.numbers.iter().copied().skip_while(|&number| number >= 0).collect();
    assert_eq!(after, [-1].into_iter().chain(10..20).collect::<Vec<_>>(), "{}", ours.text);
    let before = ours.numbers.len() - after.len();
    assert_eq!(before as u64 + ours.lost, 10, "what did not arrive was counted");
}

#[test]
fn an_unseen_replacement_of_a_descriptor_loses_at_most_one_burst() {
    let ours = run_sender(FULL, "raw-replace", RunMode::Preloaded(EARLY_WITHOUT_DEADLINE));
    let lost = u64::from(5 * FULL) - ours.numbers.len() as u64;
    assert_eq!((ours.lost, lost), (u64::from(FULL), u64::from(FULL)), "{}", ours.text);
}

#[test]
fn a_replaced_descriptor_after_a_sent_burst_loses_no_datagram() {
    let count = SINGLE + FULL; // the burst before it is full
    let ours = run_sender(count, "raw-file", RunMode::Preloaded(EARLY_WITHOUT_DEADLINE));
    assert_eq!((ours.status.code(), ours.lost), (Some(0), 0), "{}", ours.text);
}

#[test]
fn a_full_burst_does_not_hide_a_replaced_descriptor() {
    let count = SINGLE + FULL;
    let ours = run_sender(count, "raw-replace-after-full", RunMode::Preloaded(EARLY_WITHOUT_DEADLINE));
    assert_eq!(
        (ours.numbers, ours.lost),
        ((0..i64::from(2 * count + SINGLE + 1)).collect::<Vec<_>>(), 0),
        "{}",
        ours.text
    );
}

#[test]
fn datagrams_sent_around_waits_keep_their_order() {
    compare_tunings_with_plain(10, "waits");
}

#[test]
fn datagrams_of_every_sending_call_can_join_bursts() {
    compare_tunings_with_plain(500, "calls");
}

#[test]
fn datagrams_of_threads_that_take_turns_keep_their_order() {
    let ours = run_sender(300, "turns", RunMode::Preloaded(EARLY));
    assert_eq!(ours.numbers, (0..2700).collect::<Vec<_>>(), "{}", ours.text);
}

#[test]
fn a_signal_handler_that_sends_neither_waits_nor_reorders() {
    let program = CompiledProgram::compile("sender");
    let (socket, address) = loopback_receiver();
    let mut command = program.command();
    command.args([&address.port().to_string(), "20000", &BYTES.to_string(), "handler"]);
    let (output, sockets) = run_command(command, RunMode::Preloaded(EARLY));
    assert!(output.status.success(), "{}", crate::common::utf8_text(&output.stderr));
    let stdout = crate::common::utf8_text(&output.stdout);
    let by_handler: i64 = stdout.split(' ').next().unwrap().parse().unwrap();
    let numbers: Vec<_> = receive_arrived(&socket)
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
fn bursts_continue_after_jumps_out_of_handlers() {
    const COUNT: i64 = 1000;
    let program = CompiledProgram::compile("jumps");
    for stack in ["here", "elsewhere"] {
        let ((during, first), (after, then)) = (loopback_receiver(), loopback_receiver());
        let mut command = program.command();
        let ports = [first, then].map(|address| address.port().to_string());
        command.args([&ports[0], &ports[1], &COUNT.to_string(), stack]);
        let (output, sockets) = run_command(command, RunMode::Preloaded("entry=2,always,deadline=5000"));
        assert!(output.status.success(), "{stack}: {}", crate::common::utf8_text(&output.stderr));
        let numbers = |socket| {
            receive_arrived(socket).iter().map(|datagram| checked_number(datagram)).collect::<Vec<_>>()
        };
        assert!(numbers(&during).is_sorted_by(|one, next| one < next), "{stack}: each once, and in order");
        assert!(numbers(&after) == (0..2 * COUNT).collect::<Vec<_>>(), "{stack}: all arrive, in order");
        let joined: Vec<_> = sockets.sockets.iter().map(|socket| socket.joined).collect();
        assert!(joined.len() == 3 && joined.iter().all(|&joined| joined > 0), "{stack}: {joined:?} joined");
    }
}

/// A thread that ends anywhere in a call of the library holds nothing from then on.
#[test]
fn bursts_continue_after_threads_that_end_in_calls() {
    const COUNT: i64 = 1000;
    let program = CompiledProgram::compile("thread_ends");
    for mode in ["exit", "cancel"] {
        let ((during, first), (after, then)) = (loopback_receiver(), loopback_receiver());
        let mut command = program.command();
        let ports = [first, then].map(|address| address.port().to_string());
        command.args([&ports[0], &ports[1], &COUNT.to_string(), mode]);
        let (output, sockets) = run_command(command, RunMode::Preloaded("entry=2,always,deadline=5000"));
        let errors = crate::common::utf8_text(&output.stderr);
        assert!(output.status.success(), "{mode}: {}, {errors}", output.status);
        let numbers = |socket| {
            receive_arrived(socket).iter().map(|datagram| checked_number(datagram)).collect::<Vec<_>>()
        };
        assert!(numbers(&during).is_sorted_by(|one, next| one < next), "{mode}: each once, and in order");
        assert!(numbers(&after) == (0..COUNT).collect::<Vec<_>>(), "{mode}: all arrive, in order");
        let joined: Vec<_> = sockets.sockets.iter().map(|socket| socket.joined).collect();
        assert!(joined.len() == 2 && joined.iter().all(|&joined| joined > 0), "{mode}: {joined:?} joined");
    }
}

/// A thread that is started for a burst while the program gives up its rights has none of them.
#[test]
fn no_thread_of_the_library_keeps_dropped_privileges() {
    if !rustix::process::geteuid().is_root() {
        return nocopy_lab::skip(&nocopy_lab::Missing::Capability("CAP_SETUID"));
    }
    let program = CompiledProgram::compile("users");
    let (_socket, address) = loopback_receiver();
    let mut command = program.command();
    command.arg(address.port().to_string());
    let (output, _) = run_command(command, RunMode::Preloaded("entry=2,always,deadline=1000"));
    assert!(output.status.success(), "{}", crate::common::utf8_text(&output.stderr));
}

/// Another thread may change the memory between two reads, and the lengths that were checked were not those
/// that are used.
#[test]
#[cfg(target_arch = "x86_64")]
fn memory_of_arguments_is_read_once() {
    let program = CompiledProgram::compile("reads");
    let (_socket, address) = loopback_receiver();
    let mut command = program.command();
    command.arg(address.port().to_string());
    let (output, _) = run_command(command, RunMode::Preloaded("entry=2,always,deadline=600000000"));
    let once = format!("{BYTES} bytes sent, nothing read more than 1 times\n");
    assert_eq!(crate::common::utf8_text(&output.stdout), once.repeat(3), "{}", output.status);
}

/// A write behind the end of a file that another process has made shorter ends a program.
#[test]
fn a_count_file_that_may_shrink_is_not_used() {
    let program = CompiledProgram::compile("refused");
    for (seals, programs) in [(SealFlags::SHRINK, 1), (SealFlags::GROW, 0)] {
        let mut command = program.command();
        command.arg("9");
        let (_, sockets) = run_with_report_file(command, RunMode::Preloaded(EARLY), seals);
        assert_eq!(sockets.programs, programs, "{seals:?}");
    }
}

#[test]
fn sockets_without_a_record_are_counted_together() {
    let (_socket, address) = loopback_receiver();
    let program = CompiledProgram::compile("sender");
    let mut command = program.command();
    let count = SOCKETS_MAX + 100;
    command.args([&address.port().to_string(), &count.to_string(), &BYTES.to_string(), "many"]);
    let (output, sockets) = run_command(command, RunMode::Preloaded(""));
    assert!(output.status.success(), "{}", crate::common::utf8_text(&output.stderr));
    let sent: u64 = sockets.sockets.iter().flat_map(|socket| &socket.plain).map(|(_, count)| count).sum();
    assert_eq!((sent, sockets.left_out), (count as u64, 101));
    let last = sockets.sockets.last().map(|socket| socket.program.as_str());
    assert_eq!((last, sockets.sockets.len()), (Some("(others)"), SOCKETS_MAX));
}

/// Without a receiver, the kernel reports the error of one datagram at the next call.
#[test]
fn a_closed_port_is_an_error_at_the_second_datagram() {
    let program = CompiledProgram::compile("refused");
    for run_mode in [RunMode::Plain, RunMode::Preloaded(""), RunMode::Preloaded("entry=1,always")] {
        // The number of a socket that is closed by now, and that nothing else here has.
        let (socket, address) = loopback_receiver();
        drop(socket);
        let mut command = program.command();
        command.arg(address.port().to_string());
        let (output, _) = run_command(command, run_mode);
        assert_eq!(crate::common::utf8_text(&output.stdout), "0 refused, waits end\n", "{run_mode:?}");
    }
}

#[test]
fn a_full_socket_refuses_before_it_accepts_a_datagram() {
    if nocopy_lab::lab_or_skip().is_none() {
        return; // the program makes a namespace and an interface, too
    }
    let program = CompiledProgram::compile("full");
    // With some of them the room ends before a burst, with others before a datagram alone.
    for buffer_bytes in (30_000..60_000).step_by(2500) {
        let mut command = program.command();
        command.arg(buffer_bytes.to_string());
        let (output, sockets) = run_command(command, RunMode::Preloaded("entry=1,always"));
        let (stdout, errors) =
            (crate::common::utf8_text(&output.stdout), crate::common::utf8_text(&output.stderr));
        assert_eq!(stdout, "every datagram that was taken has arrived\n", "{buffer_bytes}: {errors}");
        assert!(output.status.success(), "{buffer_bytes}: {errors}");
        assert!(sockets.sockets.iter().any(|socket| socket.joined > 0));
    }
}

/// A call that waits for room ends, or goes on, as the C library's does: by signals, when its thread is
/// cancelled or ends, and by jumps.
#[test]
fn waits_for_room_end_as_without_the_library() {
    if nocopy_lab::lab_or_skip().is_none() {
        return; // the program makes a namespace and an interface, too
    }
    let program = CompiledProgram::compile("room_waits");
    for mode in ["interrupt", "restart", "cancel", "cancel asynchronously", "jump", "exit"] {
        let run_with = |run_mode| {
            let mut command = program.command();
            command.arg(mode);
            let (output, sockets) = run_command(command, run_mode);
            let (stdout, errors) =
                (crate::common::utf8_text(&output.stdout), crate::common::utf8_text(&output.stderr));
            assert!(output.status.success(), "{mode}, {run_mode:?}: {stdout}{errors}");
            (stdout, sockets.sockets.iter().map(|socket| socket.joined > 0).collect::<Vec<_>>())
        };
        let (plain, _) = run_with(RunMode::Plain);
        // With the first, the call waits for a burst before its own datagram; with the second, for its own.
        let (burst, joined) = run_with(RunMode::Preloaded("entry=1,always"));
        assert_eq!(burst, plain, "{mode}");
        // Each function's, and the one that sends after it.
        assert_eq!(joined, [true; 12], "{mode}: joined");
        assert_eq!(run_with(RunMode::Preloaded("entry=2,always")).0, plain, "{mode}, alone");
    }
}

/// Calls that hand a burst over and then wait hold nothing while they wait.
#[test]
fn other_waits_end_as_without_the_library() {
    let program = CompiledProgram::compile("event_waits");
    for mode in ["interrupt", "cancel", "cancel asynchronously", "jump", "exit"] {
        let run_with = |run_mode| {
            let mut command = program.command();
            command.arg(mode);
            let (output, sockets) = run_command(command, run_mode);
            let errors = crate::common::utf8_text(&output.stderr);
            assert!(output.status.success(), "{run_mode:?}: {errors}");
            (crate::common::utf8_text(&output.stdout), sockets.sockets)
        };
        let (plain, _) = run_with(RunMode::Plain);
        let (ours, sockets) = run_with(RunMode::Preloaded("entry=1,always,deadline=600000000"));
        assert_eq!(ours, plain, "{mode}");
        // The two of each thread, and the one that sends after it.
        assert_eq!(sockets.len(), 3 * plain.lines().count(), "{mode}");
        assert!(sockets.iter().all(|socket| socket.joined > 0), "{mode}: joined");
    }
}

#[test]
fn datagrams_longer_than_the_mtu_are_sent_singly() {
    if nocopy_lab::lab_or_skip().is_none() {
        return;
    }
    let namespace = nocopy_lab::Namespace::new_with_loopback().unwrap();
    namespace.run(|| {
        let mtu = (BYTES / 2).to_string();
        let ip = std::process::Command::new("ip").args(["link", "set", "lo", "mtu", &mtu]).status();
        assert!(ip.unwrap().success());
        compare_tunings_with_plain(200, "return");
    });
}
