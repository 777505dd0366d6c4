//! `nocopy profile` as users run it, on programs of known behaviour: its counts are exact.

use std::fs;
use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::process_state::uninterrupted;
use crate::running::{PATIENCE, RunningNocopy, lossy_text, nocopy_command};
use crate::signal_handlers::wait_for_signal_handlers;
use nocopy::Buffer;
use nocopy::udp::{Message, Method, Socket};
use nocopy_lab::{Missing, skip};
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use rustix::pipe::{SpliceFlags, pipe, splice};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, gettid};
use serde_json::Value;

/// Longer than any test.
const WINDOW: &str = "10m";

const KIB: usize = 1024;

/// False after printing what is missing.
pub(crate) fn can_profile_or_skip() -> bool {
    let held = capabilities(None).unwrap().effective;
    let may = held.contains(CapabilitySet::SYS_ADMIN);
    if !may {
        skip(&Missing::Capability("CAP_SYS_ADMIN"));
    }
    may
}

#[test]
fn a_command_does_not_start_without_its_profiler() {
    let name = format!("nocopy-test-{}", std::process::id());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let mut command = nocopy_command(&["profile-start", "--", "true"]);
    let waiting = RunningNocopy(Some(command.env("NOCOPY_PROFILE_START", &name).spawn().unwrap()));
    drop(listener.accept().unwrap());
    assert_eq!(
        lossy_text(&waiting.wait_for_end().stderr),
        "nocopy: true: not started; 'nocopy profile' ended before it watched the process; start it again\n"
    );
}

fn start_profiler(arguments: &[&str]) -> RunningNocopy {
    let mut child = nocopy_command(&[&["profile", "--json"], arguments].concat()).spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    assert!(line.starts_with("nocopy: profiling "), "{line}");
    thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()));
    RunningNocopy(Some(child))
}

/// The profile of this process's use of that port while `work` runs, since other tests run at the same time.
/// `None`: events were missed, so the counts are not exact.
fn profile_of_port(port: u16, work: impl FnOnce()) -> Option<Value> {
    let own = std::process::id().to_string();
    let window = start_profiler(&["--duration", WINDOW, "--pid", &own, "--port", &port.to_string()]);
    work();
    let report = interrupt_and_report(window);
    if as_number(&report["overhead"]["lost_events"]) > 0 {
        eprintln!("once more: {}", report["overhead"]);
        return None;
    }
    assert_byte_checks_passed(&report);
    Some(report)
}

/// Events are missed where one interrupts the program of another, on a busy machine now and then. A test of
/// exact counts is of a measurement that missed none, and one of a few has to be.
fn retry_until_no_events_are_lost(test: impl Fn() -> Option<()>) {
    const ATTEMPTS: usize = 5;
    assert!((0..ATTEMPTS).any(|_| test().is_some()), "each of {ATTEMPTS} measurements missed events");
}

/// Segments that TCP has retransmitted, of all connections of this namespace.
fn retransmitted_segments() -> u64 {
    let text = fs::read_to_string("/proc/net/snmp").unwrap();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let place = names.split(' ').position(|name| name == "RetransSegs").unwrap();
    values.split(' ').nth(place).unwrap().parse().unwrap()
}

/// Ends the window; returns what was measured.
fn interrupt_and_report(window: RunningNocopy) -> Value {
    wait_for_signal_handlers(window.0.as_ref().unwrap(), PATIENCE);
    window.signal(Signal::INT);
    window.wait_for_summary().0
}

/// Proves that the witnesses of bytes agree. Those of time may be apart: windows here have few samples.
fn assert_byte_checks_passed(report: &Value) {
    let checks = report["checks"].as_array().unwrap();
    let failed = checks.iter().find(|check| check["unit"] == "bytes" && check["passed"] != true);
    assert!(failed.is_none(), "{report}");
}

fn call_count_and_bytes(report: &Value, kind: &str) -> [u64; 2] {
    let all = report["calls"].as_array().unwrap();
    let calls = all.iter().find(|calls| calls["kind"] == kind);
    ["count", "bytes"].map(|field| calls.map_or(0, |calls| as_number(&calls[field])))
}

fn as_number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// Both ends of a connection, and the port of the second.
fn tcp_connection() -> (TcpStream, TcpStream, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    sockopt::set_socket_recv_buffer_size(&listener, 4 << 20).unwrap();
    let at = listener.local_addr().unwrap();
    let sender = TcpStream::connect(at).unwrap();
    (sender, listener.accept().unwrap().0, at.port())
}

fn wait_for_queued_bytes(receiver: &TcpStream, bytes: usize) {
    while (rustix::io::ioctl_fionread(receiver).unwrap() as usize) < bytes {
        thread::sleep(Duration::from_millis(1));
    }
}

fn receive_exactly(receiver: &TcpStream, buffer: &mut [u8]) {
    let (received, _) = recv(receiver, &mut *buffer, RecvFlags::WAITALL).unwrap();
    assert_eq!(received, buffer.len());
}

/// Calls, bytes, copies and the queue's depth, if all bytes are waiting before the first read.
#[test]
fn reads_of_queued_bytes_are_counted_exactly() {
    if !can_profile_or_skip() {
        return;
    }
    retry_until_no_events_are_lost(|| {
        const READS: usize = 16;
        let (mut sender, receiver, port) = tcp_connection();
        let again_before = retransmitted_segments();
        let mut buffer = vec![0; 64 * KIB];
        let report = profile_of_port(port, || {
            sender.write_all(&vec![1; READS * buffer.len()]).unwrap();
            wait_for_queued_bytes(&receiver, READS * buffer.len());
            (0..READS).for_each(|_| receive_exactly(&receiver, &mut buffer));
        })?;
        let bytes = (READS * buffer.len()) as u64;
        assert_eq!(call_count_and_bytes(&report, "receive"), [READS as u64, bytes], "{report}");
        assert_eq!(call_count_and_bytes(&report, "send")[1], bytes, "{report}");
        let queue = &report["queue"];
        assert_eq!(
            (as_number(&queue["queued_bytes"]), as_number(&queue["waited_bytes"])),
            (bytes, 0),
            "{report}"
        );
        assert_eq!(as_number(&queue["depth_max_bytes"]), bytes, "{report}");
        let depth_mean = queue["depth_mean_bytes"].as_f64().unwrap();
        assert_eq!(depth_mean, (buffer.len() * (READS + 1) / 2) as f64, "16 + 15 + … + 1 buffers: {report}");
        // A packet of the queue has half a MiB at most, and a segment at least.
        let depth_max_packets = as_number(&queue["depth_max_packets"]);
        let segments = as_number(&report["tcp"]["segments_in"]);
        assert!((2..=segments).contains(&depth_max_packets), "{report}");
        let depth_mean_packets = queue["depth_mean_packets"].as_f64().unwrap();
        assert!((1.0..depth_max_packets as f64).contains(&depth_mean_packets), "{report}");
        let copies = &report["copies"]["received"];
        assert_eq!(
            (as_number(&copies["tcp_bytes"]), copies["per_byte"].as_f64()),
            (bytes, Some(1.0)),
            "{report}"
        );
        let tcp = &report["tcp"];
        assert_eq!(as_number(&tcp["sockets"]), 2, "{report}");
        // None, unless the machine stalls so long that an acknowledgement is late; no other than the kernel's
        // own.
        assert!(
            as_number(&tcp["segments_retransmitted"]) <= retransmitted_segments() - again_before,
            "{report}"
        );
        // Both ends are here: each received what the other sent, except perhaps a last acknowledgement.
        let [segments_in, segments_out] = ["segments_in", "segments_out"].map(|field| as_number(&tcp[field]));
        assert!(segments_out > 1 && segments_in.abs_diff(segments_out) <= 2, "{report}");
        Some(())
    });
}

/// Waits until a thread of this process is asleep in a receive.
fn wait_until_asleep_in_receive(thread: i32) {
    let receive = format!("{} ", libc::SYS_recvfrom);
    while !fs::read_to_string(format!("/proc/self/task/{thread}/syscall")).unwrap().starts_with(&receive) {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Bytes that a call waited for are distinguished from waiting ones, and the time counts as sleeping.
#[test]
fn bytes_that_reads_had_to_wait_for_are_reported() {
    if !can_profile_or_skip() {
        return;
    }
    retry_until_no_events_are_lost(|| {
        const ROUNDS: usize = 20;
        let (mut sender, receiver, port) = tcp_connection();
        let report = profile_of_port(port, || {
            thread::scope(|scope| {
                let (say, told) = std::sync::mpsc::channel();
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        say.send(gettid()).unwrap();
                        receive_exactly(&receiver, &mut [0; 4 * KIB]);
                    }
                });
                for thread in told {
                    wait_until_asleep_in_receive(thread.as_raw_nonzero().get());
                    sender.write_all(&[2; 4 * KIB]).unwrap();
                }
            });
        })?;
        let queue = &report["queue"];
        assert_eq!(
            call_count_and_bytes(&report, "receive"),
            [ROUNDS as u64, (ROUNDS * 4 * KIB) as u64],
            "{report}"
        );
        assert_eq!(
            (as_number(&queue["queued_bytes"]), as_number(&queue["depth_max_bytes"])),
            (0, 0),
            "{report}"
        );
        assert_eq!(as_number(&queue["depth_max_packets"]), 0, "{report}");
        assert_eq!(as_number(&queue["waited_bytes"]), (ROUNDS * 4 * KIB) as u64, "{report}");
        let receive = &report["calls"].as_array().unwrap()[0];
        let [inside, sleeping] =
            ["inside_seconds", "sleeping_seconds"].map(|field| receive[field].as_f64().unwrap());
        assert!(sleeping > 0.0 && sleeping <= inside, "{report}");
        Some(())
    });
}

/// Bytes that are peeked at, discarded, spliced, or gathered from several buffers.
#[test]
fn peeks_discards_splices_and_vectored_calls_are_distinguished() {
    if !can_profile_or_skip() {
        return;
    }
    retry_until_no_events_are_lost(|| {
        let (sender, receiver, port) = tcp_connection();
        let (read_end, write_end) = pipe().unwrap();
        let report = profile_of_port(port, || {
            let piece = [3; 1000];
            let gathered = [IoSlice::new(&piece), IoSlice::new(&piece)];
            assert_eq!((&sender).write_vectored(&gathered).unwrap(), 2000);
            assert_eq!(send(&sender, &[4; 5000], SendFlags::empty()).unwrap(), 5000);
            wait_for_queued_bytes(&receiver, 7000);
            assert_eq!(recv(&receiver, &mut [0; 500][..], RecvFlags::PEEK).unwrap().0, 500);
            assert_eq!(recv(&receiver, &mut [0; 1500][..], RecvFlags::TRUNC).unwrap().1, 1500);
            assert_eq!((&receiver).read(&mut [0; 2500]).unwrap(), 2500);
            assert_eq!(splice(&receiver, None, &write_end, None, 3000, SpliceFlags::empty()).unwrap(), 3000);
            // From a pipe, which is not counted.
            assert_eq!(rustix::io::read(&read_end, &mut [0; 3000][..]).unwrap(), 3000);
        })?;
        assert_eq!(call_count_and_bytes(&report, "send"), [2, 7000], "{report}");
        assert_eq!(call_count_and_bytes(&report, "receive"), [4, 7000], "{report}");
        let copies = &report["copies"]["received"];
        let bytes = ["tcp_bytes", "peeked_bytes", "discarded_bytes", "mapped_bytes"];
        assert_eq!(bytes.map(|field| as_number(&copies[field])), [2500 + 500, 500, 1500, 3000], "{report}");
        Some(())
    });
}

#[test]
fn read_and_dropped_datagrams_are_counted() {
    if !can_profile_or_skip() {
        return;
    }
    retry_until_no_events_are_lost(|| {
        const SENT: usize = 40;
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        sockopt::set_socket_recv_buffer_size(&receiver, 8 * KIB).unwrap();
        receiver.set_nonblocking(true).unwrap();
        let at = receiver.local_addr().unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut read = 0;
        let report = profile_of_port(at.port(), || {
            // Known by its first call.
            assert!(receiver.recv(&mut [0; KIB]).is_err());
            sender.connect(at).unwrap();
            (0..SENT).for_each(|_| assert_eq!(sender.send(&[5; 1000]).unwrap(), 1000));
            while let Ok(bytes) = receiver.recv(&mut [0; KIB]) {
                assert_eq!(bytes, 1000);
                read += 1;
            }
        })?;
        assert!(read > 0 && read < SENT, "{read}");
        assert_eq!(call_count_and_bytes(&report, "send"), [SENT as u64, SENT as u64 * 1000], "{report}");
        // And the two that found nothing.
        assert_eq!(
            call_count_and_bytes(&report, "receive"),
            [read as u64 + 2, read as u64 * 1000],
            "{report}"
        );
        assert_eq!(as_number(&report["copies"]["received"]["udp_bytes"]), read as u64 * 1000, "{report}");
        let drops = report["drops"].as_array().unwrap();
        let dropped: u64 =
            drops.iter().filter(|drops| drops["of_target"] == true).map(|d| as_number(&d["packets"])).sum();
        assert_eq!(dropped, (SENT - read) as u64, "{report}");
        Some(())
    });
}

#[test]
fn datagrams_cut_from_a_gso_send_are_copied_once() {
    if !can_profile_or_skip() {
        return;
    }
    retry_until_no_events_are_lost(|| {
        const DATAGRAMS: usize = 20;
        const BYTES: usize = 1000;
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = receiver.local_addr().unwrap();
        let report = profile_of_port(at.port(), || {
            receiver.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            assert!(receiver.recv(&mut [0; KIB]).is_err(), "known by its first call");
            receiver.set_read_timeout(Some(PATIENCE)).unwrap();
            // Sent as one, and cut by the kernel.
            let mut socket = Socket::builder().method(Method::Gso).bind("127.0.0.1:0").unwrap();
            socket.connect(at).unwrap();
            let message = Message::segments(Buffer::from(vec![5; DATAGRAMS * BYTES]), BYTES);
            socket.sender().send(message).unwrap();
            socket.sender().flush().unwrap();
            (0..DATAGRAMS)
                .for_each(|_| assert_eq!(uninterrupted(|| receiver.recv(&mut [0; KIB])).unwrap(), BYTES));
        })?;
        let received = &report["copies"]["received"];
        assert_eq!(as_number(&received["udp_bytes"]), (DATAGRAMS * BYTES) as u64, "{report}");
        assert_eq!(
            (&received["per_byte"], as_number(&received["tcp_bytes"])),
            (&Value::from(1.0), 0),
            "{report}"
        );
        Some(())
    });
}

/// Proves that a process that waits already when it is looked at is counted from then on, to the byte, and
/// that so is its end.
#[test]
fn a_running_process_is_profiled() {
    if !can_profile_or_skip() {
        return;
    }
    let mut child = nocopy_command(&["recv", "tcp://127.0.0.1:0", "--raw", "--json"]).spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    let at = line
        .trim()
        .strip_prefix("nocopy: receiving at tcp://")
        .unwrap_or_else(|| panic!("{line}"))
        .to_owned();
    let id = child.id().to_string();
    let target = RunningNocopy(Some(child));
    let mut sender = TcpStream::connect(at).unwrap();
    sender.write_all(&[6; 1000]).unwrap();
    let window = start_profiler(&["--duration", WINDOW, "--pid", &id]);
    sender.write_all(&vec![6; 3_000_000]).unwrap();
    sender.shutdown(Shutdown::Write).unwrap();
    assert_eq!(target.wait_for_summary().0["bytes"], 3_001_000);
    let report = interrupt_and_report(window);
    assert_byte_checks_passed(&report);
    let received = as_number(&report["received_bytes"]);
    assert!((3_000_000..=3_001_000).contains(&received), "what came before may be read before: {report}");
    assert!(
        as_number(&report["threads"]) > 0 && report["time"]["accounted_seconds"].as_f64() > Some(0.0),
        "{report}"
    );
}

#[test]
fn a_command_is_profiled_from_its_start() {
    if !can_profile_or_skip() {
        return;
    }
    let (report, errors) = profile_of_sending_child("plain", "; exit 3");
    assert!(errors.contains("the command ended with exit status: 3"), "{errors}");
    assert_eq!(report["sent_bytes"], 1_000_000, "{report}");
    assert_eq!(report["notes"].as_array().map(Vec::len), Some(0), "{report}");
}

/// Also if another process sends it SIGCONT.
#[test]
fn a_command_waits_for_its_profiler_despite_sigcont() {
    if !can_profile_or_skip() {
        return;
    }
    let own = std::process::id();
    let lives = Arc::new(());
    let test = Arc::downgrade(&lives);
    let signals = thread::spawn(move || {
        let mut to_waiting = 0;
        while test.upgrade().is_some() {
            for process in child_processes(own).into_iter().flat_map(child_processes) {
                let is_waiting = is_waiting_for_profiler(process);
                let sent = kill_process(Pid::from_raw(process.cast_signed()).unwrap(), Signal::CONT);
                to_waiting += u32::from(is_waiting && sent.is_ok());
            }
            thread::sleep(Duration::from_millis(1));
        }
        to_waiting
    });
    let (report, _) = profile_of_sending_child("plain", "");
    assert_eq!(report["sent_bytes"], 1_000_000, "{report}");
    drop(lives);
    assert!(signals.join().unwrap() > 0, "no signal came while it waited");
}

/// Whether it is the process that becomes the command, and has not yet.
fn is_waiting_for_profiler(process: u32) -> bool {
    fs::read(format!("/proc/{process}/cmdline"))
        .is_ok_and(|words| words.split(|&byte| byte == 0).nth(1) == Some(b"profile-start"))
}

/// The children of all threads of a process.
fn child_processes(process: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().map(|id| id.parse().unwrap()).collect::<Vec<_>>()).collect()
}

#[test]
fn a_sender_is_profiled_after_thousands_of_short_processes() {
    if !can_profile_or_skip() {
        return;
    }
    let (report, _) =
        profile_of_sending_shell("i=0; while [ $i -lt 4500 ]; do (:); i=$((i+1)); done; ", "plain", "");
    assert_eq!(report["sent_bytes"], 1_000_000, "{report}");
}

#[test]
fn sockets_beyond_the_limit_are_counted_as_lost() {
    const SOCKETS: usize = 17_000;
    const ROOM: u64 = 16_384;
    if !can_profile_or_skip() {
        return;
    }
    // The machine's limit, or what the test needs if that is more and this process may raise the limit.
    let hard = getrlimit(Resource::Nofile).maximum.map(|most| most.max(SOCKETS as u64 + 1_000));
    if setrlimit(Resource::Nofile, Rlimit { current: hard, maximum: hard }).is_err() {
        skip(&Missing::Capability("18,000 descriptors"));
        return;
    }
    let own = std::process::id().to_string();
    let window = start_profiler(&["--duration", WINDOW, "--pid", &own]);
    // They listen, and so are not closed; a receive is refused, and makes them the target's. Of one address
    // the ports would be few.
    let listeners: Vec<_> = (0..SOCKETS)
        .map(|number| {
            let [.., high, low] = number.to_be_bytes();
            let listener = TcpListener::bind((Ipv4Addr::from([127, 1, high, low]), 0)).unwrap();
            assert!(recv(&listener, &mut [0; 1][..], RecvFlags::empty()).is_err());
            listener
        })
        .collect();
    let report = interrupt_and_report(window);
    drop(listeners);
    let [sockets, lost] = ["sockets", "lost_sockets"].map(|field| as_number(&report["tcp"][field]));
    assert!(sockets + lost >= SOCKETS as u64 && lost >= SOCKETS as u64 - ROOM, "{}", report["tcp"]);
    assert!(sockets > ROOM / 2, "{}", report["tcp"]);
}

/// They use no system call per transfer.
#[test]
fn bytes_sent_by_io_uring_are_noted() {
    if !nocopy_lab::io_uring_or_skip() {
        return;
    }
    if !can_profile_or_skip() {
        return;
    }
    let (report, _) = profile_of_sending_child("uring-zerocopy", "");
    assert_eq!(report["sent_bytes"], 0, "{report}");
    let notes = report["notes"].to_string();
    assert!(notes.contains("1000000 bytes went by io_uring"), "{report}");
}

/// The profile of a shell that sends a million bytes by a child, and its standard error.
fn profile_of_sending_child(method: &str, then: &str) -> (Value, String) {
    profile_of_sending_shell("", method, then)
}

/// As `profile_of_sending_child`, after another command of the shell.
fn profile_of_sending_shell(first: &str, method: &str, then: &str) -> (Value, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let reader = thread::spawn(move || {
        std::io::copy(&mut listener.accept().unwrap().0, &mut std::io::sink()).unwrap()
    });
    let own = env!("CARGO_BIN_EXE_nocopy");
    let child =
        format!("{first}'{own}' send tcp://{at} --raw --method {method} --count 100 --size 10000{then}");
    let output = RunningNocopy(Some(
        nocopy_command(&["profile", "--json", "--", "sh", "-c", &child]).spawn().unwrap(),
    ))
    .wait_for_end();
    assert_eq!(reader.join().unwrap(), 1_000_000);
    let printed = lossy_text(&output.stdout);
    // The child prints its own summary before.
    let report = serde_json::from_str(&printed[printed.find('{').unwrap()..]).unwrap();
    assert_byte_checks_passed(&report);
    (report, lossy_text(&output.stderr))
}

#[test]
fn targets_that_do_not_exist_are_refused() {
    if !can_profile_or_skip() {
        return;
    }
    let refused = [
        (&["--pid", "4194305"][..], "--pid 4194305: no such process"),
        (&["--comm", "no such name"], "--comm 'no such name': no such process"),
        (&[], "--pid"),
        (&["--pid", "1", "--", "true"], "cannot be used with"),
        (&["--port", "0"], "0 is not in"),
        (&["--", "/no/such/program"], "/no/such/program: cannot be run"),
    ];
    for (arguments, said) in refused {
        let output =
            RunningNocopy(Some(nocopy_command(&[&["profile"], arguments].concat()).spawn().unwrap()))
                .wait_for_end();
        let errors = lossy_text(&output.stderr);
        assert!(errors.contains(said), "{arguments:?}: {errors}");
        let is_run = arguments.first() == Some(&"--");
        assert_eq!(output.status.code(), Some(if is_run { 1 } else { 2 }), "{arguments:?}: {errors}");
    }
}
