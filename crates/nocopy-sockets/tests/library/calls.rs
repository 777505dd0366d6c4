//! Calls that the library does not batch, made while there is a burst: results, errors and memory are to the
//! bit as without the library.

use std::thread;

use crate::common::{CompiledProgram, RunMode, loopback_receiver, receive_arrived, run_command, utf8_text};

/// Bursts that nothing ends but the calls: their deadline is longer than any test.
const WITHOUT_DEADLINE: &str = "entry=1,always,deadline=600000000";

/// Bursts from the second equal datagram on, with the usual deadline.
const EARLY: &str = "entry=2,always";

struct ProgramResult {
    lines: Vec<String>,
    /// By the program itself; its children may have sent more.
    sent: usize,
    arrived: usize,
    joined: u64,
}

/// Runs a program that queues datagrams before each call (`same-thread`), or sends all the time by another
/// thread (`other-thread`).
fn run_program(program: &CompiledProgram, mode: &str, run_mode: RunMode<'_>) -> ProgramResult {
    let (socket, address) = loopback_receiver();
    let mut command = program.command();
    command.args([address.port().to_string().as_str(), mode]);
    let (output, sockets) = run_command(command, run_mode);
    assert!(output.status.success(), "{mode}, {run_mode:?}: {} {}", output.status, utf8_text(&output.stderr));
    let mut lines: Vec<String> = utf8_text(&output.stdout).lines().map(str::to_owned).collect();
    let sent: usize = lines.pop().unwrap().parse().unwrap();
    let joined = sockets.sockets.iter().map(|socket| socket.joined).sum();
    ProgramResult { lines, sent, arrived: receive_arrived(&socket).len(), joined }
}

#[track_caller]
fn compare_with_and_without(name: &str) {
    let program = &CompiledProgram::compile(name);
    let (plain, same_thread, other_thread) = thread::scope(|scope| {
        let plain = scope.spawn(|| run_program(program, "same-thread", RunMode::Plain));
        let same_thread =
            scope.spawn(|| run_program(program, "same-thread", RunMode::Preloaded(WITHOUT_DEADLINE)));
        let other_thread = scope.spawn(|| run_program(program, "other-thread", RunMode::Preloaded(EARLY)));
        (plain.join().unwrap(), same_thread.join().unwrap(), other_thread.join().unwrap())
    });
    for (mode, ours) in [("same-thread", &same_thread), ("other-thread", &other_thread)] {
        let differs = ours.lines.iter().zip(&plain.lines).find(|(ours, plain)| ours != plain);
        assert_eq!(differs, None, "{name} {mode}: with the library, and without");
        assert_eq!(ours.lines.len(), plain.lines.len(), "{name} {mode}");
        assert!(ours.joined > 0, "{name} {mode}: nothing joined");
    }
    // A program that was stopped during a call has made it again.
    let by_children = |seen: &ProgramResult| seen.arrived.checked_sub(seen.sent);
    assert_eq!(by_children(&same_thread), by_children(&plain), "{name}: datagrams that arrive");
    assert!(by_children(&plain).is_some(), "{name}: {} of {} arrived", plain.arrived, plain.sent);
}

#[test]
fn receiving_calls_return_the_same_with_the_library() {
    compare_with_and_without("receives");
}

#[test]
fn waits_for_events_return_the_same_with_the_library() {
    compare_with_and_without("waits");
}

#[test]
fn other_calls_return_the_same_with_the_library() {
    compare_with_and_without("other_calls");
}
