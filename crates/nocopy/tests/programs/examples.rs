//! The examples run, as programs, on real traffic in a lab.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};

use crate::common;
use crate::common::PATIENCE;
use nocopy::Port;
use nocopy::message::{Endpoint, Event, LostReason};
use nocopy_lab::patience::uninterrupted;
use nocopy_lab::{End, Lab, Namespace, ThreeNodeLab};

/// A running example, which ends with the test.
struct RunningExample(Child);

impl RunningExample {
    fn start(name: &str, end: &End, arguments: &[&str]) -> Self {
        Self::start_in(end.namespace(), name, &[&[end.interface()], arguments].concat())
    }

    fn start_in(namespace: &Namespace, name: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(built_example(name));
        command.args(arguments).stdout(Stdio::piped());
        Self(namespace.run(|| command.spawn().unwrap()))
    }

    /// Waits for the first line: the port is open.
    fn first_line(&mut self) -> (String, BufReader<std::process::ChildStdout>) {
        let mut output = BufReader::new(self.0.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        (line, output)
    }

    fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.0)
    }

    fn assert_success(mut self) {
        let give_up = Instant::now() + PATIENCE;
        while Instant::now() < give_up {
            if let Some(status) = self.0.try_wait().unwrap() {
                assert!(status.success(), "{status}");
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the example did not end");
    }
}

impl Drop for RunningExample {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An example's program. `cargo test` builds the examples, unless it runs only particular tests: then they
/// are built here, as part of the workspace with all features, so that no library is compiled again for them.
fn built_example(name: &str) -> PathBuf {
    static BUILT: Once = Once::new();
    // Test binaries lie in target/PROFILE/deps, examples beside it.
    let test = std::env::current_exe().unwrap();
    let program = test.parent().unwrap().parent().unwrap().join("examples").join(name);
    BUILT.call_once(|| {
        let all = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")).unwrap();
        let mut sources = all.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some());
        if sources.all(|source| is_up_to_date(&program.with_file_name(source.file_stem().unwrap()))) {
            return;
        }
        let cargo = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--workspace", "--all-features", "--examples"])
            .status();
        assert!(cargo.unwrap().success(), "the examples do not compile");
    });
    program
}

/// Whether a program is newer than every source file that it was made of, which cargo lists beside it.
fn is_up_to_date(program: &Path) -> bool {
    let changed = |path: &Path| std::fs::metadata(path).and_then(|metadata| metadata.modified());
    let (Ok(made), Ok(list)) = (changed(program), std::fs::read_to_string(program.with_extension("d")))
    else {
        return false;
    };
    let (_, sources) = list.split_once(':').expect("a rule of make");
    // The name of a file with a space is not found, and the program is then taken for old.
    sources.split_whitespace().all(|source| changed(Path::new(source)).is_ok_and(|changed| changed <= made))
}

fn open_port(end: &End) -> Port {
    end.namespace().run(|| Port::open(end.interface())).unwrap()
}

fn send_equal_packets(port: &mut Port, to: &End, count: usize) {
    common::queue_equal_packets(port, to, count, 64);
    port.sender().flush().unwrap();
}

fn remaining_output(mut output: impl Read) -> String {
    let mut text = String::new();
    output.read_to_string(&mut text).unwrap();
    text
}

fn lab() -> Option<Lab> {
    nocopy_lab::lab_or_skip()
}

#[test]
fn receive_prints_packets_and_a_complete_balance() {
    let Some(lab) = lab() else { return };
    let mut example = RunningExample::start("receive", lab.right(), &["5"]);
    let (line, output) = example.first_line();
    assert!(line.contains("xdp copy native"), "{line}");
    send_equal_packets(&mut open_port(lab.left()), lab.right(), 5);
    let text = remaining_output(output);
    assert_eq!(text.matches("64 B").count(), 5, "{text}");
    assert!(text.contains("0 in use") && !text.contains("does not add up"), "{text}");
    example.assert_success();
}

#[test]
fn requests_of_one_example_are_answered_by_the_other() {
    let Some(lab) = lab() else { return };
    let (server, client) = (format!("{}:9200", lab.right().ipv4()), format!("{}:9201", lab.left().ipv4()));
    let mut answering = RunningExample::start_in(lab.right().namespace(), "messages", &[&server]);
    let (line, answered) = answering.first_line();
    assert!(line.contains("bound"), "{line}");
    let mut asking = RunningExample::start_in(lab.left().namespace(), "messages", &[&client, &server, "300"]);
    let (_, asked) = asking.first_line();
    let text = remaining_output(asked);
    assert!(text.starts_with("300 responses") && text.contains("copied"), "{text}");
    asking.assert_success();
    let text = remaining_output(answered);
    assert!(text.contains("Accepted") && text.contains("Finished"), "{text}");
    answering.assert_success();
}

#[test]
fn a_restarted_server_does_not_know_its_peers() {
    let Some(lab) = lab() else { return };
    let server = format!("{}:9202", lab.right().ipv4());
    let start = || {
        let mut server = RunningExample::start_in(lab.right().namespace(), "messages", &[&server]);
        let (line, output) = server.first_line();
        assert!(line.contains("bound"), "{line}");
        (server, output)
    };
    let (mut first, _output) = start();
    let local = std::net::SocketAddr::new(lab.left().ipv4().into(), 0);
    let mut client = lab.left().namespace().run(|| Endpoint::builder().bind(local)).unwrap();
    let peer = client.connect(&*server, PATIENCE).unwrap();
    assert!(client.call(b"there?".to_vec(), peer, PATIENCE).is_ok());
    first.0.kill().unwrap();
    first.0.wait().unwrap();
    let (_second, _output) = start();
    client.send_copy_to(b"and now?", peer).unwrap();
    let give_up = Instant::now() + PATIENCE;
    let lost = loop {
        assert!(Instant::now() < give_up, "not noticed");
        client.wait(Duration::from_millis(10)).unwrap();
        if let Some(event) = client.poll_event() {
            break event;
        }
    };
    assert_eq!(lost, Event::Lost(peer, LostReason::Restarted));
    assert!(client.send_copy_to(b"gone", peer).is_err());
}

#[test]
fn datagrams_of_one_example_arrive_at_the_other() {
    let Some(lab) = lab() else { return };
    let address = format!("{}:9100", lab.right().ipv4());
    let arguments = [address.as_str(), "500"];
    let mut receiver = RunningExample::start_in(lab.right().namespace(), "udp_receive", &arguments);
    let (line, output) = receiver.first_line();
    assert!(line.contains("receiving"), "{line}");
    let mut sender = RunningExample::start_in(lab.left().namespace(), "udp_send", &arguments);
    let (line, said) = sender.first_line();
    assert!(line.starts_with("500 datagrams: "), "{line}");
    remaining_output(said); // or it would say the rest to nobody
    let text = remaining_output(output);
    assert!(text.contains("500 datagrams, 700000 bytes"), "{text}");
    sender.assert_success();
    receiver.assert_success();
}

#[test]
fn datagrams_of_one_example_are_placed_by_the_other() {
    let Some(lab) = lab() else { return };
    let address = format!("{}:9101", lab.right().ipv4());
    let mut receiver = RunningExample::start_in(lab.right().namespace(), "udp_place", &[&address, "5"]);
    let (line, output) = receiver.first_line();
    assert!(line.contains("receiving"), "{line}");
    let mut sender = RunningExample::start_in(lab.left().namespace(), "udp_send", &[&address, "450"]);
    let (_, said) = sender.first_line();
    remaining_output(said);
    let text = remaining_output(output);
    for first in ["0: 100", "100: 100", "200: 100", "300: 100", "400: 50"] {
        assert!(text.contains(&format!("rows from {first} filled, ")), "{text}");
    }
    assert!(text.contains("placed by number"), "{text}");
    sender.assert_success();
    receiver.assert_success();
}

#[test]
fn a_stream_of_one_example_arrives_at_the_other() {
    let Some(lab) = lab() else { return };
    let address = format!("{}:9300", lab.right().ipv4());
    let mut receiver = RunningExample::start_in(lab.right().namespace(), "tcp_receive", &[&address]);
    let (line, output) = receiver.first_line();
    assert!(line.contains("receiving"), "{line}");
    let mut sender = RunningExample::start_in(lab.left().namespace(), "tcp_send", &[&address, "48"]);
    let (line, said) = sender.first_line();
    assert!(line.starts_with("50331648 bytes, "), "{line}");
    remaining_output(said);
    let text = remaining_output(output);
    // The sender counts words.
    let zeros = (0..48_u64 << 17).flat_map(u64::to_be_bytes).filter(|&byte| byte == 0).count();
    assert!(text.starts_with(&format!("50331648 bytes, of them {zeros} zero, ")), "{text}");
    assert!(text.contains("chosen by measurement") && text.lines().count() > 2, "{text}");
    sender.assert_success();
    receiver.assert_success();
}

#[test]
fn the_proxy_forwards_a_connection() {
    let Some(lab) = lab() else { return };
    let (left, right) = (lab.left(), lab.right());
    let server = left.namespace().run(|| TcpListener::bind((left.ipv4(), 0)).unwrap());
    let onwards = server.local_addr().unwrap().to_string();
    let listen = format!("{}:9200", right.ipv4());
    let mut example = RunningExample::start_in(right.namespace(), "tcp_proxy", &[&listen, &onwards, "1"]);
    let (line, output) = example.first_line();
    assert!(line.contains("passing on to"), "{line}");
    let mut client = left.namespace().run(|| TcpStream::connect(&listen).unwrap());
    let mut server = server.accept().unwrap().0;
    client.write_all(&[7; 100_000]).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut received = Vec::new();
    server.read_to_end(&mut received).unwrap();
    assert!(received == [7; 100_000]);
    server.write_all(b"thanks").unwrap();
    drop(server);
    assert_eq!(remaining_output(client), "thanks");
    let text = remaining_output(output);
    assert!(text.contains("100000 bytes there, 6 back"), "{text}");
    example.assert_success();
}

#[test]
fn unprivileged_receives_without_capabilities() {
    let Some(lab) = lab() else { return };
    let mut example = RunningExample::start("unprivileged", lab.right(), &["5"]);
    let (mut line, mut output) = example.first_line();
    assert!(line.contains("xdp copy native"), "{line}");
    while !line.contains("receiving as user 65534") {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0, "it ended early");
    }
    send_equal_packets(&mut open_port(lab.left()), lab.right(), 5);
    let text = remaining_output(output);
    assert_eq!(text.matches("64 B").count(), 5, "{text}");
    assert!(text.contains("0 in use") && !text.contains("does not add up"), "{text}");
    example.assert_success();
}

#[test]
fn filter_counts_matches_beside_the_hosts_sockets() {
    let Some(lab) = lab() else { return };
    let (left, right) = (lab.left(), lab.right());
    let mut example = RunningExample::start("filter", right, &["udp port 9000 and udp[8] = 7", "20"]);
    let (line, output) = example.first_line();
    assert!(line.contains("xdp copy native"), "{line}");
    let answering = right.namespace().run(|| UdpSocket::bind((right.ipv4(), 9000)).unwrap());
    let asking = left.namespace().run(|| UdpSocket::bind((left.ipv4(), 0)).unwrap());
    answering.set_read_timeout(Some(PATIENCE)).unwrap();
    for number in 0..40 {
        asking.send_to(&[6 + number % 2, number], (right.ipv4(), 9000)).unwrap();
    }
    let mut datagram = [0; 2];
    for number in (0..40).step_by(2) {
        uninterrupted(|| answering.recv(&mut datagram)).unwrap();
        assert_eq!(datagram, [6, number]);
    }
    let text = remaining_output(output);
    assert!(
        text.contains("filter   in front of the redirect") && text.contains("20 packets, 880 bytes"),
        "{text}"
    );
    example.assert_success();
}

#[test]
fn send_reaches_an_ordinary_socket() {
    let Some(lab) = lab() else { return };
    let (left, right) = (lab.left(), lab.right());
    let socket = right.namespace().run(|| UdpSocket::bind((right.ipv4(), 9000)).unwrap());
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mac = right.mac().map(|byte| format!("{byte:02x}")).join(":");
    let (from, to) = (left.ipv4().to_string(), right.ipv4().to_string());
    let example = RunningExample::start("send", left, &[&mac, &from, &to, "3000"]);
    let mut buffer = [0; 64];
    for number in 0..100 {
        let bytes = uninterrupted(|| socket.recv(&mut buffer)).unwrap();
        assert_eq!(&buffer[..bytes], format!("datagram {number}").as_bytes());
    }
    example.assert_success();
}

#[test]
fn echo_answers_every_packet() {
    let Some(lab) = lab() else { return };
    let mut example = RunningExample::start("echo", lab.right(), &["20"]);
    assert!(example.first_line().0.contains("echoing"));
    let mut port = open_port(lab.left());
    send_equal_packets(&mut port, lab.right(), 20);
    let mut answers = 0;
    while answers < 20 {
        let batch = port.receiver().receive_timeout(PATIENCE).unwrap();
        let count = batch.map(|packet| assert_eq!(packet[6..12], lab.right().mac())).count();
        assert!(count > 0, "only {answers} answers");
        answers += count;
    }
    example.assert_success();
}

#[test]
fn tokio_receives_without_missing_a_wakeup() {
    let Some(lab) = lab() else { return };
    let mut example = RunningExample::start("tokio", lab.right(), &["50"]);
    let (line, mut output) = example.first_line();
    assert!(line.contains("receiving"), "{line}");
    let mut port = open_port(lab.left());
    // Each one ends a wait of its own: the next is sent after the previous one was reported.
    for number in 0..50 {
        send_equal_packets(&mut port, lab.right(), 1);
        let mut line = String::new();
        assert!(output.read_line(&mut line).unwrap() > 0, "it ended after {number} packets");
    }
    assert_eq!(remaining_output(output), "");
    example.assert_success();
}

/// Ordinary sockets of two hosts communicate through the bridge, which ends with every frame accounted for.
/// The hosts leave checksums to their devices, as they do unless told otherwise.
///
/// ```text
///   left host ──── nc1 [bridge] nc2 ──── right host
/// ```
#[test]
fn two_hosts_communicate_through_the_bridge() {
    let Some(chain) = ThreeNodeLab::new_or_skip() else { return };
    leave_checksums_to_devices(&chain);
    let bind = |end: &End| {
        let socket = end.namespace().run(|| UdpSocket::bind((end.ipv4(), 7000)).unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    };
    let (left, right) = (bind(chain.left()), bind(chain.right()));
    let mut bridge = RunningExample::start_in(chain.middle(), "bridge", &ThreeNodeLab::MIDDLE);
    let (line, output) = bridge.first_line();
    assert!(line.contains("forwarding"), "{line}");
    let (mut sent, mut buffer) = ([0; 1400], [0; 2048]);
    for number in 0..200_u32 {
        // No more at once than a socket's buffer holds; answered one by one.
        for at in 0..50 {
            sent[..4].copy_from_slice(&(number * 50 + at).to_be_bytes());
            left.send_to(&sent[..64 + 13 * at as usize], (chain.right().ipv4(), 7000)).unwrap();
        }
        for at in 0..50 {
            let (bytes, from) = uninterrupted(|| right.recv_from(&mut buffer)).unwrap();
            assert_eq!((bytes, from.ip()), (64 + 13 * at, chain.left().ipv4().into()));
            assert_eq!(buffer[..4], (number * 50 + at as u32).to_be_bytes());
            right.send_to(&buffer[..bytes], from).unwrap();
            assert_eq!(uninterrupted(|| left.recv(&mut sent)).unwrap(), bytes);
            assert!(sent[..bytes] == buffer[..bytes]);
        }
    }
    rustix::process::kill_process(bridge.pid(), rustix::process::Signal::INT).unwrap();
    let text = remaining_output(output);
    assert!(text.contains("left to right: 10000 packets, 0 dropped"), "{text}");
    assert!(text.contains("right to left: 10000 packets, 0 dropped"), "{text}");
    assert!(text.contains(" 0 in use") && text.contains(" 0 lent to send"), "{text}");
    assert!(!text.contains("does not add up"), "{text}");
    bridge.assert_success();
}

fn leave_checksums_to_devices(chain: &ThreeNodeLab) {
    for end in [chain.left(), chain.right()] {
        end.set_tx_checksum(true).unwrap();
    }
}

/// TCP of hosts with their usual offloads: whole bytes, both ways; also where packets need several frames.
#[test]
fn tcp_passes_the_bridge_unchanged() {
    for mtu_bytes in [1500, 9000] {
        let Some(chain) = ThreeNodeLab::new_or_skip() else { return };
        leave_checksums_to_devices(&chain);
        for name in ThreeNodeLab::MIDDLE {
            let mut set = Command::new("ip");
            set.args(["link", "set", name, "mtu", &mtu_bytes.to_string()]);
            assert!(chain.middle().run(|| set.status().unwrap()).success());
        }
        for end in [chain.left(), chain.right()] {
            end.set_mtu(mtu_bytes).unwrap();
        }
        assert_tcp_passes(&chain);
    }
}

fn assert_tcp_passes(chain: &ThreeNodeLab) {
    const BYTES: usize = 4 << 20;
    let mut bridge = RunningExample::start_in(chain.middle(), "bridge", &ThreeNodeLab::MIDDLE);
    let (line, output) = bridge.first_line();
    assert!(line.contains("forwarding"), "{line}");
    let listener = chain.right().namespace().run(|| TcpListener::bind((chain.right().ipv4(), 7000)).unwrap());
    let echo = std::thread::spawn(move || {
        let (mut stream, _) = uninterrupted(|| listener.accept()).unwrap();
        let mut received = vec![0; BYTES];
        stream.read_exact(&mut received).unwrap();
        stream.write_all(&received).unwrap();
    });
    let sent: Vec<u8> =
        (0..BYTES as u32 / 4).flat_map(|word| word.wrapping_mul(0x9e37_79b1).to_le_bytes()).collect();
    let connect = || TcpStream::connect_timeout(&(chain.right().ipv4(), 7000).into(), PATIENCE).unwrap();
    let mut stream = chain.left().namespace().run(connect);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&sent).unwrap();
    let mut returned = vec![0; BYTES];
    stream.read_exact(&mut returned).unwrap();
    assert!(returned == sent, "other bytes came back");
    echo.join().unwrap();
    rustix::process::kill_process(bridge.pid(), rustix::process::Signal::INT).unwrap();
    let text = remaining_output(output);
    assert!(!text.contains("does not add up"), "{text}");
    bridge.assert_success();
}
