//! Calls that the library does not batch, made while there is a burst: results, errors and memory are to the
//! bit as without the library.

use std::thread;

use crate::common::{How, Program, arrived, receiver, run, text};

/// Bursts that nothing ends but the calls: their deadline is longer than any test.
const PATIENT: &str = "entry=1,always,deadline=600000000";

/// Bursts from the second equal datagram on, with the usual deadline.
const EAGER: &str = "entry=2,always";

struct Seen {
    lines: Vec<String>,
    /// By the program itself; its children may have sent more.
    sent: usize,
    arrived: usize,
    joined: u64,
}

/// Runs a program that queues datagrams before each call (`here`), or sends all the time by another thread
/// (`beside`).
fn seen(program: &Program, mode: &str, how: How<'_>) -> Seen {
    let (socket, address) = receiver();
    let mut command = program.command();
    command.args([address.port().to_string().as_str(), mode]);
    let (output, sockets) = run(command, how);
    assert!(output.status.success(), "{mode}, {how:?}: {} {}", output.status, text(&output.stderr));
    let mut lines: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
    let sent: usize = lines.pop().unwrap().parse().unwrap();
    let joined = sockets.sockets.iter().map(|socket| socket.joined).sum();
    Seen { lines, sent, arrived: arrived(&socket).len(), joined }
}

#[track_caller]
fn same(name: &str) {
    let program = &Program::compile(name);
    let (plain, here, beside) = thread::scope(|scope| {
        let plain = scope.spawn(|| seen(program, "here", How::Plainly));
        let here = scope.spawn(|| seen(program, "here", How::Preloaded(PATIENT)));
        let beside = scope.spawn(|| seen(program, "beside", How::Preloaded(EAGER)));
        (plain.join().unwrap(), here.join().unwrap(), beside.join().unwrap())
    });
    for (mode, ours) in [("here", &here), ("beside", &beside)] {
        let differs = ours.lines.iter().zip(&plain.lines).find(|(ours, plain)| ours != plain);
        assert_eq!(differs, None, "{name} {mode}: with the library, and without");
        assert_eq!(ours.lines.len(), plain.lines.len(), "{name} {mode}");
        assert!(ours.joined > 0, "{name} {mode}: nothing joined");
    }
    // A program that was stopped during a call has made it again.
    let by_children = |seen: &Seen| seen.arrived.checked_sub(seen.sent);
    assert_eq!(by_children(&here), by_children(&plain), "{name}: datagrams that arrive");
    assert!(by_children(&plain).is_some(), "{name}: {} of {} arrived", plain.arrived, plain.sent);
}

#[test]
fn every_call_that_receives_returns_the_same() {
    same("receives");
}

#[test]
fn every_wait_for_events_returns_the_same() {
    same("waits");
}

#[test]
fn every_other_call_returns_the_same() {
    same("others");
}
