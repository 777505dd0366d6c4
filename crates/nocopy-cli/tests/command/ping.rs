//! `nocopy ping`, `nocopy serve` and `nocopy call` as their users meet them: two processes, over lo and over
//! a lab.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Output;
use std::thread;
use std::time::Instant;

use crate::process_state::{retry_with_more_seconds, uninterrupted, wait_until};
use crate::running::{PATIENCE, RunningNocopy, lossy_text, nocopy_command, open_terminal};
use crate::scratch::ScratchFile;
use nocopy::message::Endpoint;
use nocopy_lab::End;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use serde_json::Value;

/// A server of those services, once it listens, and the addresses that it prints.
pub(crate) struct RunningServer {
    running: RunningNocopy,
    pub(crate) targets: Vec<String>,
}

impl RunningServer {
    pub(crate) fn start(services: &[&str], options: &[&str]) -> Self {
        let mut running = RunningNocopy::start(&[&["serve", "--json"], services, options].concat());
        let mut errors = BufReader::new(running.0.as_mut().unwrap().stderr.take().unwrap());
        let targets = services.iter().map(|_| {
            let mut line = String::new();
            errors.read_line(&mut line).unwrap();
            let at = line.trim().strip_prefix("nocopy: serving at ");
            at.unwrap_or_else(|| panic!("{line}")).to_owned()
        });
        let targets = targets.collect();
        // Read on, so that it does not wait for that.
        thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()));
        Self { running, targets }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(self.running.0.as_ref().unwrap())
    }

    /// Asks the server to end; returns its counts.
    pub(crate) fn stop(self) -> Vec<Value> {
        self.running.signal(Signal::INT);
        let (summary, code) = self.running.wait_for_summary();
        assert_eq!((code, &summary["schema"]), (0, &"nocopy.serve/2".into()), "{summary}");
        assert_eq!(summary["ended"], "interrupted", "{summary}");
        summary["services"].as_array().unwrap().clone()
    }
}

/// The summary of `nocopy ping`, and its exit code.
pub(crate) fn run_ping(target: &str, options: &[&str]) -> (Value, i32) {
    RunningNocopy::start(&[&["ping", target, "--json"], options].concat()).wait_for_summary()
}

/// Checks that `count` messages were answered, each once, and that the figures are consistent.
pub(crate) fn assert_all_answered((summary, code): &(Value, i32), count: u64) {
    assert_eq!((*code, &summary["schema"]), (0, &"nocopy.ping/2".into()), "{summary}");
    for (field, expected) in [("sent", count), ("answered", count), ("lost", 0), ("late", 0), ("corrupt", 0)]
    {
        assert_eq!(summary[field], expected, "{field}: {summary}");
    }
    let bars = summary["histogram"].as_array().unwrap();
    assert_eq!(bars.iter().map(|bar| bar["count"].as_u64().unwrap()).sum::<u64>(), count, "{summary}");
    let time = |name: &str| summary["round_trip"][name].as_f64().unwrap();
    let ascending = ["min_us", "p50_us", "p90_us", "p99_us", "p99_9_us"].map(time);
    assert!(ascending[0] > 0.0 && ascending.is_sorted(), "{summary}");
    assert!(time("max_us") * 1.001 >= ascending[4], "{summary}");
    assert_eq!(summary["ended"], "count");
}

fn addresses_to_serve(end: &End) -> [String; 3] {
    ["message", "udp", "tcp"].map(|scheme| format!("{scheme}://{}:0", end.ipv4()))
}

/// Proves that every scheme is answered in every way of waiting, with messages that are short and that are
/// longer than a packet, and that the server counts the same.
#[test]
fn every_scheme_is_answered_in_every_wait_mode() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let services = addresses_to_serve(lab.right());
    let services: Vec<_> = services.iter().map(String::as_str).collect();
    for wait in ["spin", "block", "adaptive"] {
        // Two that spin are a processor each, and there may be two for all tests.
        let serving = if wait == "spin" { "adaptive" } else { wait };
        let server = lab.right().namespace().run(|| RunningServer::start(&services, &["--wait", serving]));
        for target in &server.targets {
            for (count, size) in [("200", "64"), ("50", "20000")] {
                let options = ["--count", count, "--size", size, "--wait", wait, "--timeout", "60s"];
                let answered = lab.left().namespace().run(|| run_ping(target, &options));
                assert_all_answered(&answered, count.parse().unwrap());
                let (summary, _) = answered;
                assert_eq!((&summary["wait"], &summary["target"]), (&wait.into(), &target[..].into()));
                assert!(summary["since_due"].is_null() && summary["interface"].is_null(), "{summary}");
            }
        }
        for served in server.stop() {
            let bytes = 200 * 64 + 50 * 20_000;
            let (bytes, answered, connections): (u64, _, _) = match served["scheme"].as_str().unwrap() {
                "tcp" => (bytes + 250 * 4, Value::Null, 2.into()),
                "udp" => (bytes, 250.into(), Value::Null),
                _ => (bytes, 250.into(), 2.into()),
            };
            assert_eq!(
                (&served["bytes"], &served["answered"], &served["connections"], &served["refused"]),
                (&bytes.into(), &answered, &connections, &0.into()),
                "{served}"
            );
        }
    }
}

/// With them, the sender has to read before it has sent everything.
#[test]
fn the_longest_messages_are_echoed() {
    let server = RunningServer::start(&["message://127.0.0.1:0", "tcp://127.0.0.1:0"], &[]);
    for target in &server.targets {
        let answered = run_ping(target, &["--count", "3", "--size", "16MiB", "--timeout", "60s"]);
        assert_all_answered(&answered, 3);
    }
    server.stop();
}

#[test]
fn ports_and_sockets_answer_each_other() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (left, right) = (lab.left(), lab.right());
    let at = |scheme: &str| format!("{scheme}://{}:0", right.ipv4());
    for (scheme, over_port) in [("udp", false), ("xdp", true), ("message", false), ("message", true)] {
        let options: &[&str] = if over_port { &["--interface", right.interface()] } else { &[] };
        let server = right.namespace().run(|| RunningServer::start(&[&at(scheme)], options));
        let (_, place) = server.targets[0].split_once("://").unwrap();
        let asking = if scheme == "message" { [scheme; 2] } else { ["udp", "xdp"] };
        for (scheme, over_port) in asking.into_iter().zip([false, true]) {
            let interface: &[&str] = if over_port { &["--interface", left.interface()] } else { &[] };
            let options = [&["--count", "200", "--timeout", "60s"], interface].concat();
            let answered = left.namespace().run(|| run_ping(&format!("{scheme}://{place}"), &options));
            assert_all_answered(&answered, 200);
            assert_eq!(answered.0["interface"].is_string(), over_port, "{}", answered.0);
        }
        assert_eq!(server.stop()[0]["answered"], 400);
    }
}

#[test]
fn paced_pings_measure_from_the_due_time() {
    let server = RunningServer::start(&["udp://127.0.0.1:0"], &[]);
    let options = ["--count", "50", "--interval", "2ms", "--timeout", "60s"];
    let (summary, code) = run_ping(&server.targets[0], &options);
    assert_eq!((code, &summary["answered"]), (0, &50.into()), "{summary}");
    assert!(summary["seconds"].as_f64().unwrap() >= 0.098, "{summary}");
    for time in ["p50_us", "p99_us"] {
        let [sent, due] = ["round_trip", "since_due"].map(|from| summary[from][time].as_f64().unwrap());
        assert!(due >= sent * 0.99, "{time}: {summary}");
    }
    retry_with_more_seconds(|seconds| {
        let options = ["--duration", &format!("{seconds}s"), "--interval", "25ms", "--timeout", "60s"];
        let (summary, code) = run_ping(&server.targets[0], &options);
        assert_eq!((code, &summary["ended"]), (0, &"duration".into()), "{summary}");
        let sent = summary["sent"].as_u64().unwrap();
        assert!(sent <= 40 * seconds + 1, "{summary}");
        (sent > 0).then_some(())
    });
    server.stop();
}

/// Answers that many messages of one client, and receives one more.
fn answer_messages(endpoint: &mut Endpoint, count: usize) {
    let give_up = Instant::now() + PATIENCE;
    let mut answered = 0;
    loop {
        assert!(Instant::now() < give_up, "only {answered} messages came");
        while endpoint.poll_event().is_some() {}
        let came =
            endpoint.receive_timeout(PATIENCE).unwrap().map(|message| (message.peer(), message.to_vec()));
        let Some((peer, message)) = came else { continue };
        if answered == count {
            return;
        }
        endpoint.send_copy_to(&message, peer).unwrap();
        answered += 1;
    }
}

#[test]
fn an_interrupted_ping_prints_its_results() {
    const ANSWERED: usize = 20;
    let mut endpoint = Endpoint::builder().bind("127.0.0.1:0").unwrap();
    let target = format!("message://{}", endpoint.local_addr());
    let options = ["--json", "--interval", "1ms", "--count", "1G", "--timeout", "60s"];
    let running = RunningNocopy::start(&[&["ping", &target], &options[..]].concat());
    answer_messages(&mut endpoint, ANSWERED);
    running.signal(Signal::INT);
    let (summary, code) = running.wait_for_summary();
    assert_eq!((code, &summary["ended"]), (0, &"interrupted".into()), "{summary}");
    let counts = ["sent", "answered", "lost"].map(|field| summary[field].as_u64().unwrap());
    assert_eq!(counts, [ANSWERED as u64, ANSWERED as u64, 0], "{summary}");
    // And for people: a bar at least.
    let server = RunningServer::start(&["message://127.0.0.1:0"], &[]);
    let output = RunningNocopy::start(&["ping", &server.targets[0], "--count", "100", "--timeout", "60s"])
        .wait_for_end();
    let printed = lossy_text(&output.stdout);
    assert!(printed.contains("100 sent, 100 answered") && printed.contains('█'), "{printed}");
    server.stop();
}

#[test]
fn ping_accounts_for_every_message() {
    retry_with_more_seconds(|seconds| ping_accounts_for_five(&format!("{seconds}s")).then_some(()));
}

/// False if an answer was late that should not have been.
fn ping_accounts_for_five(timeout: &str) -> bool {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let target = format!("udp://{}", socket.local_addr().unwrap());
    let running = RunningNocopy::start(&[
        "ping",
        &target,
        "--json",
        "--count",
        "5",
        "--timeout",
        timeout,
        "--size",
        "100",
    ]);
    let next = || {
        let mut datagram = vec![0; 200];
        let (bytes, from) = uninterrupted(|| socket.recv_from(&mut datagram)).unwrap();
        datagram.truncate(bytes);
        assert_eq!((bytes, datagram[0]), (100, 0));
        datagram[0] = 0x80; // the mark of an answer
        (datagram, from)
    };
    let (first, from) = next();
    socket.send_to(&first, from).unwrap();
    let (second, _) = next(); // not answered in time
    let (mut third, _) = next();
    socket.send_to(&second, from).unwrap();
    third[99] ^= 1;
    socket.send_to(&third, from).unwrap();
    third[99] ^= 1;
    socket.send_to(&third, from).unwrap();
    let (mut fourth, _) = next();
    fourth[0] = 0; // comes back as it was: nobody's answer
    socket.send_to(&fourth, from).unwrap();
    let (fifth, _) = next();
    socket.send_to(&fifth, from).unwrap();
    let (summary, code) = running.wait_for_summary();
    assert_eq!(code, 1, "{summary}");
    let [sent, answered, lost, late, corrupt] =
        ["sent", "answered", "lost", "late", "corrupt"].map(|field| summary[field].as_u64().unwrap());
    assert_eq!((sent, answered + lost), (5, 5), "{summary}");
    // Of four answers, one of which follows a corrupt one, and of an unmarked message.
    assert!(answered + late <= 4 && corrupt <= 2, "{summary}");
    if answered < 3 {
        return false;
    }
    assert_eq!((answered, lost, late, corrupt), (3, 2, 1, 2), "{summary}");
    true
}

#[test]
fn each_of_several_datagrams_at_once_is_counted() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (left, right) = (lab.left(), lab.right());
    let socket = right.namespace().run(|| UdpSocket::bind((right.ipv4(), 0)).unwrap());
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let target = format!("xdp://{}", socket.local_addr().unwrap());
    let options = ["--interface", left.interface(), "--count", "2", "--timeout", "60s", "--wait", "block"];
    let running =
        left.namespace().run(|| RunningNocopy::start(&[&["ping", &target, "--json"], &options[..]].concat()));
    let mut answers = [[0; 64]; 2];
    let mut from = None;
    for answer in &mut answers {
        let (_, client) = uninterrupted(|| socket.recv_from(answer)).unwrap();
        answer[0] = 0x80; // the mark of an answer
        if from.replace(client).is_none() {
            socket.send_to(answer, client).unwrap();
        }
    }
    let [late, last] = answers;
    for answer in [[late; 32].as_flattened(), last.as_slice(), &late].into_iter().flat_map(|of| of.chunks(64))
    {
        socket.send_to(answer, from.unwrap()).unwrap();
    }
    let (summary, code) = running.wait_for_summary();
    for (field, expected) in [("sent", 2), ("answered", 2), ("lost", 0), ("late", 32), ("corrupt", 0)] {
        assert_eq!(summary[field], expected, "{field}: {summary}");
    }
    assert_eq!(code, 0, "{summary}");
}

fn assert_one_line_error(output: &Output, words: &[&str]) {
    let message = lossy_text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert_eq!(message.lines().count(), 1, "one line: {message}");
    assert!(words.iter().all(|word| message.contains(word)), "{words:?}: {message}");
}

#[test]
fn impossible_targets_fail_in_one_line() {
    let run = |arguments: &[&str]| RunningNocopy::start(arguments).wait_for_end();
    // Free a moment ago, and still: no other test uses this address.
    let free = UdpSocket::bind("127.0.0.77:0").unwrap().local_addr().unwrap();
    for scheme in ["tcp", "udp"] {
        let target = format!("{scheme}://{free}");
        let output = run(&["ping", &target, "--count", "3"]);
        assert_one_line_error(&output, &[&target, "no program listens", "nocopy serve"]);
    }
    let target = format!("message://{free}");
    assert_one_line_error(&run(&["call", &target, "hello", "--timeout", "300ms"]), &[&free.to_string()]);
    assert_one_line_error(
        &run(&["ping", "udp://127.0.0.1:9", "--interface", "lo"]),
        &["--interface", "xdp://"],
    );
    assert_one_line_error(&run(&["ping", "xdp://127.0.0.1:9"]), &["xdp://", "--interface"]);
    assert_one_line_error(&run(&["ping", "xdp://127.0.0.1:9", "--interface", "lo"]), &["lo", "leave out"]);
    assert_one_line_error(&run(&["ping", "udp://127.0.0.1:9", "--size", "70000"]), &["70000", "--size"]);
    assert_one_line_error(&run(&["ping", "udp://no.such.host.invalid:9"]), &["no.such.host.invalid"]);
    assert_one_line_error(&run(&["serve", "xdp://127.0.0.1:9"]), &["xdp://", "--interface"]);
    assert_one_line_error(&run(&["serve", "udp://127.0.0.1:0", "--interface", "lo"]), &["--interface"]);
    assert_one_line_error(&run(&["serve", "xdp://:9", "--interface", "lo"]), &["xdp://:9", "address"]);
    let two = ["serve", "xdp://10.0.0.1:9", "message://10.0.0.1:8", "--interface", "lo"];
    assert_one_line_error(&run(&two), &["lo", "one port"]);
    assert_one_line_error(&run(&["serve", "message://127.0.0.1:0", "--exec", " "]), &["--exec", "program"]);
    let holder = UdpSocket::bind("127.0.0.1:0").unwrap();
    let taken = format!("udp://{}", holder.local_addr().unwrap());
    assert_one_line_error(&run(&["serve", &taken]), &[&taken, "another program uses it"]);
    for wrong in [
        &["ping", "127.0.0.1:9"][..],
        &["ping", "sctp://127.0.0.1:9"],
        &["ping", "udp://127.0.0.1:9", "--size", "7"],
        &["call", "udp://127.0.0.1:9"],
        &["serve"],
        &["serve", ":0"],
    ] {
        assert_eq!(run(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

/// Proves that a request has its response, from the command line and from a file, and that a server without a
/// program sends it back.
#[test]
fn a_call_prints_the_response_to_its_request() {
    let server = RunningServer::start(&["message://127.0.0.1:0"], &[]);
    let target = &server.targets[0];
    let call = |options: &[&str]| {
        let output =
            RunningNocopy::start(&[&["call", target, "--timeout", "60s"], options].concat()).wait_for_end();
        assert_eq!(output.status.code(), Some(0), "{}", lossy_text(&output.stderr));
        output.stdout
    };
    assert_eq!(call(&["hello", "there"]), b"hello there");
    assert_eq!(call(&[]), b"");
    let file = ScratchFile::new("request");
    let content: Vec<u8> =
        (0..3_000_001_u32).map(|place| (place.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
    fs::write(file.path(), &content).unwrap();
    assert!(call(&["--file", file.path()]) == content);
    let served = server.stop();
    assert_eq!((&served[0]["answered"], &served[0]["connections"]), (&3.into(), &3.into()), "{served:?}");
}

/// Proves that a response does not steer the terminal that it is shown on, and that the user learns of it.
#[test]
fn a_response_on_a_terminal_is_printed_without_controls() {
    let server = RunningServer::start(&["message://127.0.0.1:0"], &[]);
    let target = &server.targets[0];
    let shown = |request: &str| {
        let (mut screen, theirs) = open_terminal(24, 80);
        let mut command = nocopy_command(&["call", target, "--timeout", "60s", request]);
        let output = RunningNocopy(Some(command.stdout(theirs).spawn().unwrap())).wait_for_end();
        drop(command); // it has the other end of the terminal
        assert_eq!(output.status.code(), Some(0), "{}", lossy_text(&output.stderr));
        let mut drawn = Vec::new();
        // Returns an error when the other end is closed.
        let _ = screen.read_to_end(&mut drawn);
        (lossy_text(&drawn), lossy_text(&output.stderr))
    };
    assert_eq!(shown("plain\twords"), ("plain\twords".into(), String::new()));
    let (drawn, said) = shown("\x1b]0;title\x07 \u{9b}2J");
    assert_eq!(drawn, "\u{fffd}]0;title\u{fffd} \u{fffd}2J");
    assert!(said.contains("not for a terminal") && said.lines().count() == 1, "{said}");
}

/// The peer sends as long as the call lasts, and never the response.
#[test]
fn other_messages_do_not_extend_the_timeout() {
    let mut peer = Endpoint::bind("127.0.0.1:0").unwrap();
    let target = format!("message://{}", peer.local_addr());
    let mut call = RunningNocopy::start(&["call", &target, "hello", "--timeout", "500ms"]);
    let caller = loop {
        if let Some(request) = peer.receive_timeout(PATIENCE).unwrap() {
            break request.peer();
        }
    };
    let start = Instant::now();
    while !call.has_ended() && start.elapsed() < PATIENCE / 4 {
        for _ in 0..64 {
            let _ = peer.send_copy_to(b"no response", caller);
        }
        let _ = peer.receive_timeout(std::time::Duration::ZERO);
    }
    assert!(call.has_ended(), "it waits as long as messages arrive");
    assert_one_line_error(&call.wait_for_end(), &[&target]);
}

/// Several at a time. Pings do not reach it, and its failure is reported to the client.
#[test]
fn serve_answers_requests_by_a_program() {
    let server = RunningServer::start(&["message://127.0.0.1:0"], &["--exec", "tr a-z A-Z"]);
    let target = &server.targets[0];
    let call = |request: &str| RunningNocopy::start(&["call", target, "--timeout", "60s", request]);
    let running: Vec<_> = (0..6).map(|number| call(&format!("request {number}"))).collect();
    for (number, running) in running.into_iter().enumerate() {
        let output = running.wait_for_end();
        assert_eq!(lossy_text(&output.stdout), format!("REQUEST {number}"), "{}", lossy_text(&output.stderr));
    }
    assert_all_answered(&run_ping(target, &["--count", "20", "--timeout", "60s"]), 20);
    let served = &server.stop()[0];
    assert_eq!((&served["answered"], &served["program_failures"]), (&26.into(), &0.into()), "{served}");
    for (program, options) in [("false", &[][..]), ("sleep 60", &["--exec-timeout", "100ms"])] {
        let server =
            RunningServer::start(&["message://127.0.0.1:0"], &[&["--exec", program], options].concat());
        // The client is notified, and does not wait for its own time-out.
        let output =
            RunningNocopy::start(&["call", &server.targets[0], "x", "--timeout", "1h"]).wait_for_end();
        assert_one_line_error(&output, &["no response", "nocopy serve"]);
        let served = &server.stop()[0];
        assert_eq!((&served["answered"], &served["program_failures"]), (&0.into(), &1.into()), "{served}");
    }
}

/// Ctrl-C ends a call with its state, before and after there is a connection.
#[test]
fn an_interrupted_call_reports_its_progress() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let has_request = ScratchFile::new("has-request");
    // The program is a shell, and its request what it is to do: a path in the program's words would end at a
    // blank.
    let request = format!("echo hello > '{}'; sleep 3600", has_request.path());
    let server = RunningServer::start(&["message://127.0.0.1:0"], &["--exec", "sh", "--exec-timeout", "1h"]);
    let end = |running: RunningNocopy, words: &str| {
        running.signal(Signal::INT);
        let output = running.wait_for_end();
        let said = lossy_text(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{said}");
        assert!(said.contains("interrupted after ") && said.contains(words), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    };
    let call = |target: &str| RunningNocopy::start(&["call", target, &request, "--timeout", "1h"]);
    let running = call(&format!("message://{}", silent.local_addr().unwrap()));
    silent.recv(&mut [0; 2048]).unwrap(); // it asks for a connection
    end(running, "nothing was sent");
    let running = call(&server.targets[0]);
    wait_until("the program has the request", || {
        fs::read(has_request.path()).is_ok_and(|read| read == b"hello\n")
    });
    end(running, "no response has come");
    server.stop();
}

#[test]
fn a_bare_address_serves_messages_tcp_and_udp() {
    if !nocopy_lab::ipv6_or_skip() {
        return;
    }
    // Two adjacent free numbers outside of the range that the kernel chooses from (ip_local_port_range).
    let is_free =
        |port: u16| UdpSocket::bind(("::", port)).is_ok() && TcpListener::bind(("::", port)).is_ok();
    let first = 20_000 + (std::process::id() % 5_000) as u16 * 2;
    let port = (first..32_000).step_by(2).find(|&port| is_free(port) && is_free(port + 1)).unwrap();
    let mut running = RunningNocopy::start(&["serve", &format!(":{port}")]);
    let mut errors = BufReader::new(running.0.as_mut().unwrap().stderr.take().unwrap());
    let mut line = String::new();
    for scheme in ["message", "tcp", "udp"] {
        line.clear();
        errors.read_line(&mut line).unwrap();
        assert!(line.contains(&format!("serving at {scheme}://[::]:")), "{line}");
    }
    for host in ["127.0.0.1", "[::1]"] {
        for (scheme, port) in [("message", port), ("tcp", port), ("udp", port + 1)] {
            let target = format!("{scheme}://{host}:{port}");
            assert_all_answered(&run_ping(&target, &["--count", "10", "--timeout", "60s"]), 10);
        }
    }
    running.signal(Signal::TERM);
    let output = running.wait_for_end();
    assert_eq!(output.status.code(), Some(0));
    assert!(lossy_text(&output.stdout).contains("20 answered"), "{}", lossy_text(&output.stdout));
}

fn connect_from(source: &str, server: &RunningServer) -> TcpStream {
    let to: SocketAddr = server.targets[0].strip_prefix("tcp://").unwrap().parse().unwrap();
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::new(source.parse().unwrap(), 0)).unwrap();
    uninterrupted(|| Ok(connect(&socket, &to)?)).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn is_echoed(mut stream: &TcpStream) -> bool {
    let mut echo = [0; 4];
    stream.write_all(b"echo").is_ok() && stream.read_exact(&mut echo).is_ok() && echo == *b"echo"
}

#[test]
fn peers_that_never_read_take_bounded_memory() {
    let server = RunningServer::start(&["tcp://127.0.0.1:0"], &[]);
    let honest = connect_from("127.0.0.2", &server);
    assert!(is_echoed(&honest));
    let mut unread: Vec<TcpStream> = Vec::new();
    for _ in 0..40 {
        let mut stream = connect_from("127.0.0.1", &server);
        // As much as is kept for one; or as much as can be sent.
        let _ = stream.write_all(&vec![7; 16 << 20]);
        unread.push(stream);
    }
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid().as_raw_nonzero())).unwrap();
    let highest = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let highest_kib: u64 = highest.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(highest_kib < (256 + 64) << 10, "{highest_kib} KiB");
    assert!(is_echoed(&honest) && is_echoed(&connect_from("127.0.0.2", &server)));
    drop(unread);
    let served = &server.stop()[0];
    assert_eq!(served["connections"], 42, "{served}");
    assert!(served["refused"].as_u64().unwrap() >= 20, "{served}");
}

#[test]
fn connections_of_one_address_leave_room_for_others() {
    for (count, descriptors) in [(60, Some(40)), (256, None)] {
        // For the connections of this process, and of the server, which inherits the limit.
        if descriptors.is_none() && !nocopy_lab::descriptors_or_skip() {
            return;
        }
        let server = RunningServer::start(&["tcp://127.0.0.1:0"], &[]);
        if descriptors.is_some() {
            let limit = Rlimit { current: descriptors, maximum: descriptors };
            prlimit(Some(server.pid()), Resource::Nofile, limit).unwrap();
        }
        let first = connect_from("127.0.0.2", &server);
        assert!(is_echoed(&first));
        let silent: Vec<_> = (0..count).map(|_| connect_from("127.0.0.1", &server)).collect();
        assert!(is_echoed(&connect_from("127.0.0.3", &server)), "{count}");
        assert!(is_echoed(&first), "of its address it is the only one");
        drop(silent);
        let served = &server.stop()[0];
        assert_eq!(served["connections"], count + 2, "{served}");
        assert!(served["refused"].as_u64().unwrap() > 0, "{served}");
    }
}

#[test]
fn a_stalled_connection_is_closed() {
    for wait in ["spin", "block"] {
        let server = RunningServer::start(&["tcp://127.0.0.1:0"], &["--idle", "100ms", "--wait", wait]);
        let mut silent = connect_from("127.0.0.1", &server);
        assert_eq!(uninterrupted(|| silent.read(&mut [0; 9])).unwrap(), 0);
        assert_eq!(server.stop()[0]["refused"], 1);
    }
}
