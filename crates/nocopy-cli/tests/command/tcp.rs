//! `nocopy send tcp://…` and `nocopy recv tcp://…` as users run them: two processes, over lo and over a lab,
//! whose summaries agree.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::process_state::{
    context_switches_by_thread, retry_with_more_seconds, run_while_stopped, sleep_count, uninterrupted,
    wait_until, wait_until_asleep_in_call,
};
use crate::running::{PATIENCE, RunningNocopy, lossy_text, nocopy_command};
use crate::scratch::ScratchFile;
use crate::signal_handlers::wait_for_signal_handlers;
use crate::transfer::{self, pseudo_random_bytes, sum_of_evidence_bytes};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use serde_json::Value;

/// A probe, a report, or the head of a stream.
const MESSAGE_BYTES: usize = 104;

/// A receiver at a free port of that address, once it is there.
fn start_receiver(address: &str, arguments: &[&str]) -> (RunningNocopy, SocketAddr) {
    let (receiver, at, _) = start_receiver_with_errors(address, arguments);
    (receiver, at)
}

fn start_receiver_with_errors(
    address: &str,
    arguments: &[&str],
) -> (RunningNocopy, SocketAddr, JoinHandle<String>) {
    transfer::start_receiver_with_errors("tcp", address, arguments)
}

fn start_sender(to: SocketAddr, arguments: &[&str]) -> RunningNocopy {
    transfer::start_sender("tcp", to, arguments)
}

/// Checks that both summaries agree, and returns both.
fn agreeing_summaries(sender: RunningNocopy, receiver: RunningNocopy) -> ((Value, i32), (Value, i32)) {
    let ends = transfer::agreeing_summaries(&["sent", "received", "missing", "final"], sender, receiver);
    let ((sent, _), (received, _)) = &ends;
    assert_eq!(sent["bytes"], sent["sent"]["bytes"]);
    assert_eq!(received["bytes"], received["received"]["bytes"]);
    assert_eq!(
        (&sent["schema"], &received["schema"]),
        (&"nocopy.send-tcp/2".into(), &"nocopy.recv-tcp/2".into())
    );
    ends
}

/// An address without a listener, which no other test uses, and whose port the kernel does not choose for
/// clients.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.77:0").unwrap().local_addr().unwrap()
}

#[test]
fn a_file_arrives_byte_for_byte() {
    for (bytes, streams, used) in [(0, "1", 1), (1, "4", 1), (5_000_000, "4", 4), (1_000_000, "64", 16)] {
        let content = pseudo_random_bytes(bytes);
        let (source, target) = (ScratchFile::with_content("source", &content), ScratchFile::new("target"));
        let options = ["--json", "--streams", streams, "--size", "64KiB", "--file", source.path()];
        let (receiver, at) = start_receiver("127.0.0.1", &["--json", "--verify", "--output", target.path()]);
        let ((sent, code), (received, received_code)) =
            agreeing_summaries(start_sender(at, &options), receiver);
        assert_eq!((code, received_code, &sent["verified"]), (0, 0, &true.into()), "{sent}{received}");
        assert!(fs::read(target.path()).unwrap() == content, "{bytes} by {streams}");
        for summary in [&sent, &received] {
            assert_eq!(
                (&summary["total"], summary["streams"].as_array().unwrap().len()),
                (&bytes.into(), used),
                "{summary}"
            );
            assert_eq!(
                sum_of_evidence_bytes(summary),
                bytes as u64,
                "every byte is in the ledger: {summary}"
            );
        }
        let checksum = format!("{:08x}", crc32c::crc32c(&content));
        assert_eq!(sent["sent"]["crc32c"], checksum, "that of the whole, whatever the streams");

        let (receiver, at) = start_receiver("127.0.0.1", &["--json", "--output", "-"]);
        let sender = start_sender(at, &options);
        assert!(receiver.wait_for_end().stdout == content, "{bytes} by {streams}, down a pipe");
        assert_eq!(sender.wait_for_summary().1, 0);
    }
}

#[test]
fn all_data_arrives_by_every_method() {
    if !nocopy_lab::ipv6_or_skip() {
        return;
    }
    let source = ScratchFile::with_content("methods", pseudo_random_bytes(700_000));
    for method in ["auto", "plain", "zerocopy", "sendfile", "published", "uring-zerocopy"] {
        if method == "uring-zerocopy" && !nocopy_lab::io_uring_or_skip() {
            continue;
        }
        for what in [&["--count", "100", "--size", "10kB"][..], &["--file", source.path()]] {
            let not = if method == "sendfile" { "--count" } else { "--file" };
            if ["sendfile", "published"].contains(&method) && what[0] == not {
                continue; // refused: see the errors
            }
            let (receiver, at) = start_receiver("[::1]", &["--json"]);
            let options = [&["--json", "--verify", "--streams", "2", "--method", method], what].concat();
            let ((sent, code), (received, received_code)) =
                agreeing_summaries(start_sender(at, &options), receiver);
            assert_eq!((code, received_code), (0, 0), "{method}: {sent}{received}");
            assert_eq!((&sent["method"], &sent["verified"]), (&method.into(), &true.into()));
            assert_eq!(
                sum_of_evidence_bytes(&sent),
                sent["bytes"].as_u64().unwrap(),
                "every byte is in the ledger: {sent}"
            );
            assert!(!sent["explanation"].as_array().unwrap().is_empty(), "{sent}");
        }
    }
}

#[test]
fn each_receive_method_gives_the_same_bytes() {
    let content = pseudo_random_bytes(3_000_000);
    let (source, target) =
        (ScratchFile::with_content("ways-source", &content), ScratchFile::new("ways-target"));
    for way in ["auto", "recv", "recv:1", "recv:1000", "recv:4MiB", "mapped"] {
        if way == "recv:1" {
            fs::write(source.path(), &content[..5000]).unwrap();
        } else {
            fs::write(source.path(), &content).unwrap();
        }
        let options = ["--json", "--receive", way, "--verify", "--force", "--output", target.path()];
        let (receiver, at) = start_receiver("127.0.0.1", &options);
        let ((sent, _), (received, code)) =
            agreeing_summaries(start_sender(at, &["--json", "--file", source.path()]), receiver);
        assert_eq!((code, &received["verified"]), (0, &true.into()), "{way}: {sent}{received}");
        assert!(fs::read(target.path()).unwrap() == fs::read(source.path()).unwrap(), "{way}");
        assert_eq!(
            sum_of_evidence_bytes(&received),
            received["bytes"].as_u64().unwrap(),
            "{way}: {received}"
        );
        assert!(!received["explanation"].as_array().unwrap().is_empty(), "{received}");
    }
}

#[test]
fn mapped_pages_are_written_with_and_without_checksums() {
    let content = pseudo_random_bytes(3_000_001);
    let (source, target) =
        (ScratchFile::with_content("pages-source", &content), ScratchFile::new("pages-target"));
    for verify in [&["--verify"][..], &[]] {
        let options =
            [&["--json", "--receive", "mapped", "--force", "--output", target.path()], verify].concat();
        let (receiver, at) = start_receiver("127.0.0.1", &options);
        // Over loopback the kernel copies these late, to its own pages, and maps those.
        let sender = start_sender(at, &["--json", "--method", "zerocopy", "--file", source.path()]);
        let ((sent, _), (received, code)) = agreeing_summaries(sender, receiver);
        assert_eq!((code, received["verified"] == true), (0, !verify.is_empty()), "{sent}{received}");
        assert!(received["evidence"]["zero_copy_bytes"].as_u64() > Some(0), "nothing was mapped: {received}");
        assert!(fs::read(target.path()).unwrap() == content, "{verify:?}");
    }
}

/// At once, also after a silence, until its end.
#[test]
fn standard_input_is_sent_without_delay() {
    let sent = transfer::check_input_is_sent_without_delay("tcp", &["--file", "-", "--json", "--verify"]);
    assert!(sent["verified"] == true && sent["total"].is_null(), "{sent}");
}

#[test]
fn other_programs_are_peers_of_raw_streams() {
    let content = pseudo_random_bytes(1_000_000);
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let source = ScratchFile::with_content("raw-source", &content);
    let sender = start_sender(other.local_addr().unwrap(), &["--raw", "--json", "--file", source.path()]);
    let (mut connection, _) = other.accept().unwrap();
    connection.write_all(b"an answer that nobody reads").unwrap();
    // Time for the sender to close, which it must not do with that unread: it would reset the connection.
    thread::sleep(Duration::from_millis(100));
    let mut read = Vec::new();
    connection.read_to_end(&mut read).unwrap();
    assert!(read == content);
    drop(connection);
    let (sent, code) = sender.wait_for_summary();
    assert_eq!((code, &sent["bytes"], &sent["received"]), (0, &1_000_000.into(), &Value::Null), "{sent}");

    let target = ScratchFile::new("raw-target");
    let (receiver, at) = start_receiver("127.0.0.1", &["--raw", "--json", "--output", target.path()]);
    let mut connection = TcpStream::connect(at).unwrap();
    connection.write_all(&content[..10]).unwrap();
    let stranger = TcpStream::connect(at).unwrap();
    assert_eq!((&stranger).read(&mut [0; 9]).unwrap_or(0), 0, "one serves one");
    connection.write_all(&content[10..]).unwrap();
    connection.shutdown(Shutdown::Write).unwrap();
    let (received, code) = receiver.wait_for_summary();
    assert_eq!(
        (code, &received["ended"], &received["foreign"]),
        (0, &"done".into(), &1.into()),
        "{received}"
    );
    assert!(fs::read(target.path()).unwrap() == content);

    let (receiver, at) = start_receiver("127.0.0.1", &["--raw", "--json", "--idle", "2s"]);
    // The time before the first connection does not count as silence.
    thread::sleep(Duration::from_secs(2));
    let connection = run_while_stopped(receiver.pid(), || {
        let mut connection = TcpStream::connect(at).unwrap();
        connection.write_all(b"and then nothing").unwrap();
        connection
    });
    let (received, code) = receiver.wait_for_summary();
    drop(connection);
    assert_eq!(
        (code, &received["ended"], &received["bytes"]),
        (1, &"timeout".into(), &16.into()),
        "{received}"
    );
}

/// Proves that bytes that arrived while the receiver itself was stopped, longer than a sender may be silent,
/// are received.
#[test]
fn a_stopped_raw_receiver_reads_what_arrived_meanwhile() {
    let idle_times = [100, 300, 1000, 3000].map(Duration::from_millis);
    assert!(
        idle_times.into_iter().any(is_data_read_after_stop),
        "it was never stopped in time, or not for so long"
    );
}

/// False if the receiver was not stopped before its sender was silent for too long, or ran meanwhile.
fn is_data_read_after_stop(idle: Duration) -> bool {
    let target = ScratchFile::new("raw-stopped");
    let idle_words = format!("{}ms", idle.as_millis());
    let (receiver, at) =
        start_receiver("127.0.0.1", &["--raw", "--json", "--idle", &idle_words, "--output", target.path()]);
    let start = Instant::now();
    let mut connection = TcpStream::connect(at).unwrap();
    connection.write_all(b"first").unwrap();
    wait_until("the first are written", || fs::metadata(target.path()).unwrap().len() == 5);
    let before = sleep_count(receiver.id());
    wait_until("its first thread has looked at them", || sleep_count(receiver.id()) >= before + 2);
    let was_stopped = run_while_stopped(receiver.pid(), || {
        let (is_in_time, before) = (start.elapsed() < idle, context_switches_by_thread(receiver.id()));
        thread::sleep(idle * 2);
        // A receiver that has given up has closed the connection.
        let sent = connection.write_all(b"second").and_then(|()| connection.shutdown(Shutdown::Write));
        is_in_time && context_switches_by_thread(receiver.id()) == before && sent.is_ok()
    });
    let (received, code) = receiver.wait_for_summary();
    let outcome = (code, &received["ended"], &received["bytes"]);
    assert!(!was_stopped || outcome == (0, &"done".into(), &11.into()), "{received}");
    was_stopped
}

/// An endless sender and its receiver, after data have arrived.
fn running_transfer(
    name: &str,
    receiving: &[&str],
    sending: &[&str],
) -> (RunningNocopy, RunningNocopy, ScratchFile) {
    running_transfer_in_time(name, receiving, sending).expect("the receiver goes on until data come")
}

/// As [`running_transfer`], for a receiver that may end before data arrive; `None` if its time ran out.
fn running_transfer_in_time(
    name: &str,
    receiving: &[&str],
    sending: &[&str],
) -> Option<(RunningNocopy, RunningNocopy, ScratchFile)> {
    let stream = ScratchFile::new(name);
    let (mut receiver, at) =
        start_receiver("127.0.0.1", &[&["--json", "--output", stream.path()], receiving].concat());
    let sender = start_sender(at, &[&["--json", "--rate", "10Mbit/s"], sending].concat());
    let has_data = || fs::metadata(stream.path()).unwrap().len() > 0;
    wait_until("data, or the end", || receiver.has_ended() || has_data());
    if !has_data() {
        let (received, _) = receiver.wait_for_summary();
        assert_eq!(received["ended"], "duration", "{received}");
        return None;
    }
    Some((sender, receiver, stream))
}

#[test]
fn a_receiver_of_a_killed_sender_reports_received_bytes() {
    let many = ["--streams", "3", "--count", "1M"];
    for options in [&[][..], &many] {
        let (sender, receiver, stream) = running_transfer("sender-killed", &[], options);
        sender.signal(Signal::KILL);
        let (received, code) = receiver.wait_for_summary();
        assert_eq!(
            (code, &received["ended"], &received["final"]),
            (1, &"disconnected".into(), &false.into()),
            "{received}"
        );
        let bytes = received["bytes"].as_u64().unwrap();
        assert!(bytes > 0 && bytes <= fs::metadata(stream.path()).unwrap().len(), "{received}");
        assert!(received["sent"].is_null() && received["missing"].is_null(), "nobody said: {received}");
        drop(sender);
    }
}

#[test]
fn a_sender_of_a_killed_receiver_ends() {
    let (sender, receiver, _stream) =
        running_transfer("receiver-killed", &[], &["--streams", "2", "--count", "1M"]);
    receiver.signal(Signal::KILL);
    let (sent, code) = sender.wait_for_summary();
    assert_eq!((code, &sent["ended"], &sent["final"]), (1, &"disconnected".into(), &false.into()), "{sent}");
    assert!(sent["cause"].is_string(), "{sent}");
}

#[test]
fn an_interrupt_of_one_end_ends_the_other_with_a_summary() {
    let (sender, receiver, _stream) = running_transfer("sender-interrupted", &["--verify"], &[]);
    sender.signal(Signal::INT);
    let ((sent, code), (received, received_code)) = agreeing_summaries(sender, receiver);
    assert_eq!((&sent["ended"], &received["ended"]), (&"interrupted".into(), &"done".into()));
    assert_eq!((code, received_code, &sent["verified"]), (0, 0, &true.into()), "{sent}{received}");

    // Less arrived than the count announced.
    let (sender, receiver, _stream) = running_transfer("count-interrupted", &[], &["--count", "1M"]);
    sender.signal(Signal::INT);
    let ((sent, code), (received, received_code)) = agreeing_summaries(sender, receiver);
    assert_eq!((code, received_code, &sent["missing"]), (1, 1, &0.into()), "{sent}{received}");

    for ended in ["interrupted", "duration"] {
        let (sender, receiver, _stream) = if ended == "interrupted" {
            let working = running_transfer("receiver-interrupted", &[], &[]);
            working.1.signal(Signal::TERM);
            working
        } else {
            retry_with_more_seconds(|seconds| {
                running_transfer_in_time("receiver-duration", &["--duration", &format!("{seconds}s")], &[])
            })
        };
        let ((sent, code), (received, received_code)) =
            (sender.wait_for_summary(), receiver.wait_for_summary());
        assert_eq!((&sent["ended"], &received["ended"]), (&"by-receiver".into(), &ended.into()));
        assert_eq!(
            (code, received_code, &sent["received"]),
            (0, 0, &received["received"]),
            "{sent}{received}"
        );
    }
}

#[test]
fn a_receiver_with_a_closed_output_ends_its_sender() {
    transfer::check_closed_receiver_pipe_ends_sender("tcp", &["--json"]);
}

/// Both ends stop at once, and report what was sent.
#[test]
fn a_shrinking_source_file_ends_sender_and_receiver() {
    let source = ScratchFile::with_content("shrinks", pseudo_random_bytes(20_000_000));
    let (sender, receiver, _stream) =
        running_transfer("shrunk", &["--idle", "10m"], &["--file", source.path()]);
    fs::OpenOptions::new().write(true).open(source.path()).unwrap().set_len(1).unwrap();
    let ((sent, code), (received, received_code)) = agreeing_summaries(sender, receiver);
    assert_eq!((code, received_code), (2, 1), "{sent}{received}");
    assert_eq!((&sent["ended"], &received["ended"]), (&"failed".into(), &"done".into()));
}

/// A receiver ends on request while its output is not read, and so does its sender. Both count only
/// what was moved: the pipe has the receiver's count, the ledger is the sender's.
#[test]
fn an_interrupt_ends_a_receiver_with_a_stalled_reader() {
    let (mut receiver, at) = start_receiver("127.0.0.1", &["--output", "-"]);
    let mut output = receiver.take_output();
    let sender = start_sender(at, &["--json"]);
    output.read_exact(&mut [0; 10]).unwrap();
    let its_end = fs::File::options().write(true).open(format!("/proc/{}/fd/1", receiver.id())).unwrap();
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let has_room = || poll(&mut [PollFd::new(&its_end, PollFlags::OUT)], Some(&now)).unwrap() > 0;
    wait_until("the pipe and both sockets are full", || {
        let queued = queued_bytes(at);
        !has_room() && queued.sent > 0 && queued.received > 0
    });
    drop(its_end);
    receiver.signal(Signal::INT);
    assert_eq!(receiver.wait_for_end().status.code(), Some(0));
    let (sent, code) = sender.wait_for_summary();
    assert_eq!((code, &sent["ended"], &sent["final"]), (0, &"by-receiver".into(), &true.into()), "{sent}");
    assert_eq!(sum_of_evidence_bytes(&sent), sent["bytes"].as_u64().unwrap(), "{sent}");
    assert_eq!(sent["sent"]["bytes"], sent["bytes"], "{sent}");
    let mut rest = Vec::new();
    output.read_to_end(&mut rest).unwrap();
    assert_eq!(sent["received"]["bytes"], 10 + rest.len() as u64, "{sent}");
}

/// Bytes in the queues of sockets, by the kernel's tables.
#[derive(Debug, Default)]
struct QueuedBytes {
    sent: u64,
    received: u64,
}

/// Queued bytes in this namespace: received ones of connections with this local port, and sent ones of
/// connections to this port.
fn queued_bytes(at: SocketAddr) -> QueuedBytes {
    let mut queued = QueuedBytes::default();
    for connection in read_proc_net_tcp() {
        if connection.from_port == at.port() {
            queued.received += connection.received_bytes;
        }
        if connection.to_port == at.port() {
            queued.sent += connection.sent_bytes;
        }
    }
    queued
}

/// A line of `/proc/net/tcp`.
struct ProcNetTcpRow {
    from_port: u16,
    to_port: u16,
    state: u8,
    /// Not acknowledged yet.
    sent_bytes: u64,
    /// Not read yet; of one that listens, connections that are not accepted yet.
    received_bytes: u64,
}

/// As the kernel numbers them.
const SYN_SENT: u8 = 2;
const LISTEN: u8 = 10;

/// All IPv4 connections, without listening sockets.
fn read_proc_net_tcp() -> Vec<ProcNetTcpRow> {
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let hex = |digits: &str| u64::from_str_radix(digits, 16).unwrap();
    let second = |pair: &str| pair.split_once(':').unwrap().1.to_owned();
    let parse = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let (sent, received) = fields[4].split_once(':').unwrap();
        ProcNetTcpRow {
            from_port: hex(&second(fields[1])) as u16,
            to_port: hex(&second(fields[2])) as u16,
            state: hex(fields[3]) as u8,
            sent_bytes: hex(sent),
            received_bytes: hex(received),
        }
    };
    table.lines().skip(1).map(parse).filter(|connection| connection.state != LISTEN).collect()
}

#[test]
fn a_receiver_without_a_sender_reports_nothing_received() {
    let (receiver, ..) = transfer::start_receiver_with_errors("tcp", "127.0.0.1", &[]);
    receiver.signal(Signal::INT);
    let output = receiver.wait_for_end();
    let rows: Vec<_> = lossy_text(&output.stdout).lines().map(|line| line.trim().to_owned()).collect();
    assert_eq!(output.status.code(), Some(1), "{rows:?}");
    let value = |name| rows.iter().find_map(|row| row.strip_prefix(name)).map(str::trim);
    assert_eq!((value("bytes "), value("evidence ")), (Some("0"), Some("no bytes")), "{rows:?}");
}

/// Proves that a sender need not wait to the end for a host that does not answer.
#[test]
fn an_interrupt_ends_the_wait_for_a_connection() {
    use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
    let full = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&full, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    listen(&full, 0).unwrap();
    let full = TcpListener::from(full);
    let at = full.local_addr().unwrap();
    // The queue of the listener is full, so it does not answer.
    let _first = TcpStream::connect(at).unwrap();
    while TcpStream::connect_timeout(&at, Duration::from_millis(500)).is_ok_and(|more| {
        std::mem::forget(more);
        true
    }) {}
    let is_its = |connection: &ProcNetTcpRow| connection.to_port == at.port() && connection.state == SYN_SENT;
    let interrupted = |options: &[&str]| {
        let sender = start_sender(at, &[&["--connect-timeout", "10m"], options].concat());
        wait_until("it asks for a connection", || read_proc_net_tcp().iter().any(is_its));
        sender.signal(Signal::INT);
        sender
    };
    let (sent, code) = interrupted(&["--json"]).wait_for_summary();
    assert_eq!((&sent["ended"], &sent["bytes"], code), (&"interrupted".into(), &0.into(), 1), "{sent}");
    for raw in [&[][..], &["--raw"]] {
        assert_ended_unconnected(interrupted(raw));
    }
}

/// From the moment a signal no longer ends the process, it asks for the end: some of so many signals come
/// while others are set up.
#[test]
fn an_interrupt_at_the_start_is_not_lost() {
    for _ in 0..40 {
        let receiver = RunningNocopy::start(&["recv", "tcp://127.0.0.1:0"]);
        wait_for_signal_handlers(receiver.0.as_ref().unwrap(), PATIENCE);
        receiver.signal(Signal::INT);
        let output = receiver.wait_for_end();
        assert!(lossy_text(&output.stdout).contains("interrupted"), "{output:?}");
    }
}

/// A receiver that accepts the connection and never answers does not keep the sender from being interrupted.
#[test]
fn an_interrupt_ends_the_wait_for_a_reply() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let sender = start_sender(silent.local_addr().unwrap(), &["--connect-timeout", "10m"]);
    let (_stream, _) = silent.accept().unwrap();
    sender.signal(Signal::INT);
    assert_ended_unconnected(sender);
}

/// Checks that a sender reports that nothing was sent, and why, as a negative result.
fn assert_ended_unconnected(sender: RunningNocopy) {
    let output = sender.wait_for_end();
    let said = lossy_text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("nothing: no receiver was connected yet"), "{said}");
}

fn set_resource_limit(process: &RunningNocopy, what: Resource, most: u64) {
    let limit = Rlimit { current: Some(most), maximum: Some(most) };
    prlimit(Some(Pid::from_child(process.0.as_ref().unwrap())), what, limit).unwrap();
}

#[test]
fn a_receiver_without_memory_fails() {
    for options in [&["--raw"][..], &[]] {
        let (receiver, at) =
            start_receiver("127.0.0.1", &[&["--json", "--receive", "recv:64MiB"], options].concat());
        set_resource_limit(&receiver, Resource::As, 64 << 20);
        let _other = TcpStream::connect(at).unwrap();
        let _sender = options.is_empty().then(|| start_sender(at, &["--count", "1k"]));
        let (received, code) = receiver.wait_for_summary();
        assert_eq!((code, &received["ended"]), (2, &"failed".into()), "{received}");
    }
}

#[test]
fn a_receiver_without_descriptors_sleeps() {
    const DESCRIPTORS: u64 = 16;
    let (receiver, at) = start_receiver("127.0.0.1", &["--json", "--idle", "60s"]);
    set_resource_limit(&receiver, Resource::Nofile, DESCRIPTORS);
    let strangers: Vec<_> = (0..40).map(|_| TcpStream::connect(at).unwrap()).collect();
    let path = format!("/proc/{}/fd", receiver.id());
    // The limit is on the numbers of descriptors; one with a higher number may have been inherited.
    let is_limited = |number: u64| number < DESCRIPTORS;
    let open = || fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let limited = || open().filter(|number| is_limited(number.parse().unwrap())).count() as u64;
    wait_until("no descriptor is left", || limited() == DESCRIPTORS);
    let start = Instant::now();
    let before = sleep_count(receiver.id());
    // A receiver that polled for connections it cannot accept would return at once each time, and never
    // sleep.
    wait_until("it sleeps again and again", || sleep_count(receiver.id()) >= before + 50);
    // It sleeps 10 ms at a time: half a second in all. One that sleeps a little at a time is there sooner.
    let slept = start.elapsed();
    assert!(slept >= Duration::from_millis(200), "50 sleeps within {slept:?}");
    drop(strangers);
    let ((sent, code), (received, _)) =
        agreeing_summaries(start_sender(at, &["--json", "--count", "3"]), receiver);
    assert_eq!((code, &received["foreign"]), (0, &40.into()), "{sent}{received}");
}

/// A message of the run "abcdefgh" with these counts, as docs/recv.md describes it.
fn control_message_bytes(kind: u8, flags: u8, counts: [u64; 8]) -> Vec<u8> {
    let mut message =
        [&b"nocp\x02"[..], &[kind, 0, flags | 1], b"abcdefgh", &[0; 20], &[0, 0, 0, 64]].concat();
    message.extend(counts.map(u64::to_be_bytes).concat());
    let checksum = crc32c::crc32c(&message);
    message[32..36].copy_from_slice(&checksum.to_be_bytes());
    message
}

fn stream_head_of_unknown_run() -> Vec<u8> {
    control_message_bytes(3, 16, [1, 9, 0, 0, 0, 0, 0, 0])
}

/// Connections of strangers that are silent, send nonsense, or claim to belong to the run neither begin nor
/// disturb it.
#[test]
fn foreign_connections_are_refused_and_counted() {
    let stream_file = ScratchFile::new("strangers");
    let (receiver, at) =
        start_receiver("127.0.0.1", &["--json", "--idle", "60s", "--output", stream_file.path()]);
    let silent = TcpStream::connect(at).unwrap();
    for nonsense in [&b"GET / HTTP/1.0\r\n\r\n"[..], &[0xff; 1000], b"nocp\x02\x03"] {
        let mut invalid = TcpStream::connect(at).unwrap();
        invalid.write_all(nonsense).unwrap();
    }
    let claims = stream_head_of_unknown_run();
    let mut stream = TcpStream::connect(at).unwrap();
    stream.write_all(&claims).unwrap();
    assert_eq!(stream.read(&mut [0; 9]).unwrap_or(0), 0, "a stream of no run is turned away");

    let sender = start_sender(at, &["--json", "--rate", "10Mbit/s", "--verify"]);
    wait_until("data come", || fs::metadata(stream_file.path()).unwrap().len() > 0);
    let mut late = TcpStream::connect(at).unwrap();
    late.write_all(&claims).unwrap();
    assert_eq!(late.read(&mut [0; 9]).unwrap_or(0), 0, "nor while there is one");
    let second = RunningNocopy::start(&["send", &format!("tcp://{at}"), "--count", "1"]).wait_for_end();
    let said = lossy_text(&second.stderr);
    assert!(second.status.code() == Some(2) && said.contains("another sender"), "{said}");
    sender.signal(Signal::INT);
    let ((sent, code), (received, _)) = agreeing_summaries(sender, receiver);
    assert_eq!(
        (code, &sent["verified"], &received["foreign"]),
        (0, &true.into(), &6.into()),
        "{sent}{received}"
    );
    drop(silent); // it was there all the time
}

#[test]
fn a_silent_foreign_connection_is_closed() {
    let (receiver, at) = start_receiver("127.0.0.1", &["--json", "--idle", "500ms"]);
    let mut silent = TcpStream::connect(at).unwrap();
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(uninterrupted(|| silent.read(&mut [0; 9])).unwrap(), 0, "turned away");
    receiver.signal(Signal::INT);
    let (received, _) = receiver.wait_for_summary();
    assert_eq!((&received["ended"], &received["foreign"]), (&"interrupted".into(), &1.into()), "{received}");
}

#[test]
fn sent_bytes_that_never_arrive_are_missing() {
    let (receiver, at) = start_receiver("127.0.0.1", &["--json", "--idle", "500ms"]);
    // A probe: two streams of unknown length, 99 bytes sent, last.
    let probe = control_message_bytes(1, 2, [2, 99, 0, 0, 0, 0, 0, 0]);
    let control = run_while_stopped(receiver.pid(), || {
        let mut control = TcpStream::connect(at).unwrap();
        control.write_all(&probe).unwrap();
        control
    });
    let (received, code) = receiver.wait_for_summary();
    drop(control);
    assert_eq!(
        (code, &received["ended"], &received["missing"], &received["final"]),
        (1, &"timeout".into(), &99.into(), &true.into()),
        "{received}"
    );
}

/// A malformed answer, and a close without one, are errors.
#[test]
fn a_sender_detects_a_peer_that_is_no_receiver() {
    for (answer, said) in [(&[7; MESSAGE_BYTES][..], "never says"), (b"", "closes the connection")] {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let sender = start_sender(other.local_addr().unwrap(), &["--count", "1"]);
        let (mut connection, _) = other.accept().unwrap();
        connection.read_exact(&mut [0; MESSAGE_BYTES]).unwrap();
        connection.write_all(answer).unwrap();
        if answer.is_empty() {
            drop(connection);
        }
        let output = sender.wait_for_end();
        let error = lossy_text(&output.stderr);
        assert!(
            output.status.code() == Some(2) && error.contains(said) && error.contains("--raw"),
            "{error}"
        );
    }
}

#[test]
fn changed_bytes_are_detected() {
    let (receiver, at) = start_receiver("127.0.0.1", &["--json"]);
    let front = TcpListener::bind("127.0.0.1:0").unwrap();
    let through = front.local_addr().unwrap();
    thread::spawn(move || {
        for number in 0..2 {
            let (near, _) = front.accept().unwrap();
            let far = TcpStream::connect(at).unwrap();
            let back = (far.try_clone().unwrap(), near.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut &back.0, &mut &back.1));
            thread::spawn(move || {
                let mut head = [0; MESSAGE_BYTES];
                (&near).read_exact(&mut head).unwrap();
                (&far).write_all(&head).unwrap();
                let mut buffer = [0; 4096];
                let mut place = 0;
                while let Ok(bytes @ 1..) = (&near).read(&mut buffer) {
                    // The control connection is the first.
                    if number == 1 && (place..place + bytes).contains(&50_000) {
                        buffer[50_000 - place] ^= 1;
                    }
                    place += bytes;
                    (&far).write_all(&buffer[..bytes]).unwrap();
                }
                let _ = far.shutdown(Shutdown::Write);
            });
        }
    });
    let sender = start_sender(through, &["--json", "--verify", "--count", "10", "--size", "10kB"]);
    let ((sent, code), (received, received_code)) = agreeing_summaries(sender, receiver);
    assert_eq!((code, received_code, &sent["missing"]), (1, 1, &0.into()), "{sent}{received}");
    assert_eq!((&sent["verified"], &received["received"]["bytes"]), (&false.into(), &100_000.into()));
}

/// Proves that a count, a rate and a time are kept by all streams together.
#[test]
fn a_rate_limits_all_streams_together() {
    let (receiver, at) = start_receiver("127.0.0.1", &["--json"]);
    let options = ["--json", "--streams", "3", "--rate", "30Mbit/s", "--duration", "1s", "--size", "10kB"];
    let ((sent, code), (received, _)) = agreeing_summaries(start_sender(at, &options), receiver);
    // By 30 Mbit/s a piece is due every 2⅔ ms, the first at once.
    let (pieces, due) = (sent["bytes"].as_u64().unwrap() / 10_000, 375);
    assert!(pieces <= due, "{sent}");
    // After a stall some are missing, which is reported.
    assert!(pieces == due || sent["behind_seconds"].as_f64().unwrap() > 0.0, "{sent}{received}");
    assert_eq!(code == 0, sent["rate_reached"] == true, "{sent}{received}");
}

#[test]
fn a_stream_over_a_veth_pair_is_complete() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let address = lab.right().ipv4().to_string();
    for method in ["auto", "zerocopy"] {
        let (receiver, at) =
            lab.right().namespace().run(|| start_receiver(&address, &["--json", "--verify"]));
        let options =
            ["--json", "--count", "1k", "--streams", "2", "--congestion", "reno", "--method", method];
        let sender = lab.left().namespace().run(|| start_sender(at, &options));
        let ((sent, code), (received, _)) = agreeing_summaries(sender, receiver);
        assert_eq!(
            (code, &sent["verified"], &sent["congestion"]),
            (0, &true.into(), &"reno".into()),
            "{sent}{received}"
        );
        assert_eq!(sum_of_evidence_bytes(&sent), sent["bytes"].as_u64().unwrap(), "{sent}");
    }
}

/// With an address of either family, also if the receiver starts later.
#[test]
fn a_wildcard_receiver_is_reached_at_each_address() {
    if !nocopy_lab::ipv6_or_skip() {
        return;
    }
    for (host, name) in [("127.0.0.1", "127.0.0.1:"), ("[::1]", "[::1]:")] {
        let (receiver, at) = start_receiver("", &["--json"]);
        let target = format!("tcp://{host}:{}", at.port());
        let sender = RunningNocopy::start(&["send", &target, "--json", "--count", "3"]);
        let (_, (received, code)) = agreeing_summaries(sender, receiver);
        assert_eq!(code, 0, "{received}");
        assert!(received["sender"].as_str().unwrap().starts_with(name), "{received}");
    }
    let free = free_address();
    let sender = start_sender(free, &["--json", "--count", "3", "--connect-timeout", "60s"]);
    // Between two attempts; one has been refused.
    wait_until_asleep_in_call(sender.id(), libc::SYS_clock_nanosleep);
    let receiver = RunningNocopy::start(&["recv", &format!("tcp://{free}"), "--json"]);
    assert_eq!(agreeing_summaries(sender, receiver).0.1, 0);
}

#[test]
fn a_receiver_that_cannot_bind_leaves_its_file_unchanged() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = ScratchFile::with_content("kept", "precious");
    let busy = format!("tcp://{}", other.local_addr().unwrap());
    let output = nocopy_command(&["recv", &busy, "--output", target.path(), "--force"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(fs::read(target.path()).unwrap(), b"precious");
}

#[test]
fn errors_are_one_line_with_a_remedy() {
    let (taken, target) = (TcpListener::bind("127.0.0.1:0").unwrap(), ScratchFile::new("exists"));
    fs::write(target.path(), "x").unwrap();
    let free = free_address();
    let (free, busy) = (format!("tcp://{free}"), format!("tcp://{}", taken.local_addr().unwrap()));
    transfer::assert_refused_in_one_line(&[
        (&["send", &free, "--connect-timeout", "100ms"][..], &["no receiver", "refused", "nocopy recv"][..]),
        (&["send", &free, "--raw", "--connect-timeout", "100ms"], &["no receiver", "refused"]),
        (&["send", &busy, "--connect-timeout", "300ms"], &["does not answer", "--raw"]),
        (&["send", &free, "--size", "65MiB"], &["--size", "67108864"]),
        (&["send", &free, "--file", "/nonexistent"], &["/nonexistent", "exists"]),
        (&["send", &free, "--file", "/"], &["/", "directory"]),
        (&["send", "tcp://127.0.0.1:9", "-6"], &["no IPv6 address"]),
        (&["send", &free, "--file", "-", "--streams", "2"], &["--streams", "a pipe"]),
        (&["send", &free, "--method", "sendfile", "--file", "-"], &["--file", "not a pipe"]),
        (&["send", &free, "--method", "published", "--stdin"], &["a pattern", "leave it out"]),
        (&["send", &free, "--congestion", "nothing"], &["nothing", "allowed_congestion_control"]),
        (&["recv", &busy], &["another program uses it", "port 0"]),
        (&["recv", "tcp://192.0.2.1:0"], &["this host has no such address"]),
        (&["recv", "tcp://:0", "-o", target.path()], &["exists", "--force"]),
        (&["recv", "tcp://:0", "-o", "/nonexistent/file"], &["/nonexistent/file", "directory"]),
    ]);
    transfer::assert_refused(&[
        &["send", "tcp://localhost"][..],
        &["send", &free, "--flows", "2"],
        &["send", &free, "--interface", "lo"],
        &["send", &free, "--streams", "0"],
        &["send", &free, "--streams", "65"],
        &["send", &free, "--raw", "--verify"],
        &["send", &free, "--raw", "--streams", "2"],
        &["send", &free, "--method", "gso"],
        &["recv", "tcp://:1", "--raw", "--verify"],
        &["recv", "tcp://:1", "--count", "1"],
        &["recv", "tcp://:1", "--receive", "mapped:7"],
        &["recv", "udp://:1", "--receive", "recv"],
    ]);
    // Streams that have no place cannot be written.
    let (receiver, at) = start_receiver("127.0.0.1", &["--json", "-o", "/dev/null"]);
    let refused = nocopy_command(&["send", &format!("tcp://{at}"), "--streams", "2"]).output().unwrap();
    let said = lossy_text(&refused.stderr);
    assert!(
        refused.status.code() == Some(2) && said.contains("no order") && said.contains("--count"),
        "{said}"
    );
    receiver.signal(Signal::INT);
    let (received, code) = receiver.wait_for_summary();
    assert_eq!(
        (code, &received["ended"], &received["foreign"]),
        (1, &"interrupted".into(), &1.into()),
        "{received}"
    );
}

#[test]
fn only_allowed_senders_are_accepted() {
    let target = ScratchFile::new("from");
    let (receiver, at, errors) = start_receiver_with_errors(
        "127.0.0.1",
        &["--raw", "--json", "--from", "127.0.0.2", "--output", target.path()],
    );
    let connect_from = |source: &str| {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &SocketAddr::new(source.parse().unwrap(), 0)).unwrap();
        uninterrupted(|| Ok(connect(&socket, &at)?)).unwrap();
        TcpStream::from(socket)
    };
    let mut stranger = connect_from("127.0.0.1");
    let _ = stranger.write_all(b"stranger");
    stranger.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(uninterrupted(|| Ok(stranger.read(&mut [0; 9]).unwrap_or(0))).unwrap(), 0, "it is closed");
    connect_from("127.0.0.2").write_all(b"friend").unwrap();
    let (received, code) = receiver.wait_for_summary();
    assert_eq!((code, &received["foreign"]), (0, &1.into()), "{received}");
    assert_eq!(fs::read(target.path()).unwrap(), b"friend");
    assert_eq!(errors.join().unwrap(), "");
    let (receiver, _, errors) = start_receiver_with_errors("127.0.0.1", &["--duration", "1ms"]);
    receiver.wait_for_end();
    assert!(errors.join().unwrap().contains("--from ADDRESS"));
}
