//! `nocopy sniff` as its users meet it, on known traffic in a private lab.

use nocopy_lab::patience::PATIENCE;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::process_state::{sleep_count, uninterrupted, wait_until};
use crate::running::{RunningNocopy, open_terminal};
use nocopy::port::Purpose;
use nocopy::{Mode, Port};
use nocopy_lab::{End, Lab};
use rustix::process::Signal;
use serde_json::Value;

fn sniff_command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nocopy"));
    command.arg("sniff").args(arguments).stdin(Stdio::null()).env("TZ", "UTC");
    command
}

/// A running capture that listens already; ended with the test.
struct RunningSniffer {
    child: Child,
    /// Of standard output.
    lines: Receiver<String>,
    errors: BufReader<std::process::ChildStderr>,
}

struct EndedSniffer {
    status: ExitStatus,
    /// The lines that the test has not read yet.
    lines: Vec<String>,
    errors: String,
}

impl RunningSniffer {
    fn start(end: &End, arguments: &[&str]) -> Self {
        Self::start_on_interface(end, end.interface(), arguments)
    }

    fn start_on_interface(end: &End, interface: &str, arguments: &[&str]) -> Self {
        let mut command = sniff_command(&[&[interface], arguments].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = end.namespace().run(|| command.spawn().unwrap());
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut first = String::new();
        errors.read_line(&mut first).unwrap();
        assert!(first.starts_with(&format!("listening on {interface}: ")), "{first}");
        let (sender, lines) = mpsc::channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self { child, lines, errors }
    }

    /// The next line with all of these words, within patience.
    fn expect_line(&self, words: &[&str]) -> String {
        let (give_up, mut others) = (Instant::now() + PATIENCE, Vec::new());
        loop {
            match self.lines.recv_timeout(give_up.saturating_duration_since(Instant::now())) {
                Ok(line) if words.iter().all(|word| line.contains(word)) => return line,
                Ok(line) => others.push(line),
                Err(error) => panic!("{error}: no line with {words:?} in {others:#?}"),
            }
        }
    }

    fn interrupt(&self) {
        let process = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    }

    fn wait_for_end(mut self) -> EndedSniffer {
        let mut errors = String::new();
        self.errors.read_to_string(&mut errors).unwrap();
        let status = self.child.wait().unwrap();
        EndedSniffer { status, lines: self.lines.iter().collect(), errors }
    }
}

impl Drop for RunningSniffer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn send_frames(end: &End, frames: &[Vec<u8>]) {
    end.namespace().run(|| {
        let opening = Port::builder(end.interface()).mode(Mode::PacketRing).frame_count(0, 64);
        let mut port = opening.ring_sizes(64, 64).open().unwrap();
        for bytes in frames {
            let mut frame = port.sender().buffer().unwrap();
            frame.fill(bytes).unwrap();
            port.sender().send(frame).unwrap();
        }
        assert!(port.sender().drain(PATIENCE).unwrap());
    });
}

/// A frame of an unknown protocol for `lab`'s right end, marked by `mark`.
fn marked_frame(lab: &Lab, mark: u16) -> Vec<u8> {
    let header = [&lab.right().mac()[..], &lab.left().mac(), &mark.to_be_bytes()].concat();
    [header, vec![7; 86]].concat()
}

fn udp_socket(end: &End, port: u16) -> UdpSocket {
    end.namespace().run(|| UdpSocket::bind((end.ipv4(), port)).unwrap())
}

/// Traffic of two kernels in both directions, which they still receive.
#[test]
fn udp_fragments_icmp_and_tcp_packets_are_printed() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let sniffer = RunningSniffer::start(lab.right(), &["--time", "epoch"]);
    let (left, right) = (udp_socket(lab.left(), 9000), udp_socket(lab.right(), 9001));
    right.set_read_timeout(Some(PATIENCE)).unwrap();

    left.send_to(&[1; 1372], right.local_addr().unwrap()).unwrap();
    let line = sniffer.expect_line(&[" IP 10.77.0.1.9000 > 10.77.0.2.9001: UDP, length 1372"]);
    assert_eq!(uninterrupted(|| right.recv(&mut [0; 2000])).unwrap(), 1372, "the host has it, too");
    let time: f64 = line.split(' ').next().unwrap().parse().unwrap();
    let after = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    assert!((before.as_secs_f64()..=after.as_secs_f64()).contains(&time), "{line}");

    left.send_to(&[1; 3000], right.local_addr().unwrap()).unwrap();
    sniffer.expect_line(&[
        "10.77.0.1.9000 > 10.77.0.2.9001: UDP, length 3000, fragment ",
        " at 0, ",
        ", more follow",
    ]);
    sniffer.expect_line(&["10.77.0.1 > 10.77.0.2: UDP, fragment ", " at 2960, 48 bytes, the last"]);

    left.send_to(b"nobody", (Ipv4Addr::new(10, 77, 0, 2), 7)).unwrap();
    sniffer.expect_line(&["IP 10.77.0.2 > 10.77.0.1: ICMP 10.77.0.2 udp port 7 unreachable, length 42"]);

    let listener = lab.right().namespace().run(|| TcpListener::bind("10.77.0.2:8080").unwrap());
    let there: SocketAddr = listener.local_addr().unwrap();
    let mut stream = lab.left().namespace().run(|| TcpStream::connect(there).unwrap());
    stream.write_all(b"hello").unwrap();
    drop(stream);
    let syn = sniffer.expect_line(&["> 10.77.0.2.8080: Flags [S], seq ", "options [mss 1460,sackOK,TS val "]);
    let number: u32 = syn.split_once("seq ").unwrap().1.split(',').next().unwrap().parse().unwrap();
    let next = number.wrapping_add(1);
    sniffer.expect_line(&["10.77.0.2.8080 > ", "Flags [S.], ", &format!("ack {next}")]);
    sniffer.expect_line(&["Flags [P.]", &format!("seq {next}:{}", next.wrapping_add(5)), "length 5"]);
    sniffer.expect_line(&["Flags [F.]"]);

    sniffer.interrupt();
    let EndedSniffer { status, errors, .. } = sniffer.wait_for_end();
    assert_eq!(status.code(), Some(0), "{errors}");
    for words in [
        "packets captured",
        "0 packets dropped by the kernel",
        "when the kernel had the packet",
        "packet ring",
    ] {
        assert!(errors.contains(words), "{words}: {errors}");
    }
}

/// Proves that tags that the kernel takes out of packets are printed, and link-level headers, bytes and names
/// on request.
#[test]
fn vlan_tags_link_headers_and_bytes_are_printed() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let plain = marked_frame(&lab, 0x0800);
    let tagged = [&plain[..12], &[0x81, 0, 0x60, 5, 0x88, 0xb5], &plain[14..]].concat();
    let stacked = [&plain[..12], &[0x88, 0xa8, 0, 100], &tagged[12..]].concat();
    let sniffer =
        RunningSniffer::start(lab.right(), &["-e", "-x", "--snap", "40", "--count", "2", "--time", "utc"]);
    send_frames(lab.left(), &[tagged, stacked]);
    let EndedSniffer { status, lines, errors } = sniffer.wait_for_end();
    assert_eq!((status.code(), lines.len()), (Some(0), 8), "{lines:#?} {errors}");
    let (time, line) = lines[0].split_once(' ').unwrap();
    assert!(time.len() == 18 && time.as_bytes()[8] == b'.', "{time}");
    assert_eq!(
        line,
        "02:6e:63:00:00:01 > 02:6e:63:00:00:02, ethertype 802.1Q (0x8100), length 104: vlan 5, p 3, ethertype 0x88b5, \
         ethertype 0x88b5, length 86"
    );
    assert_eq!(lines[1], "\t0x0000:  026e 6300 0002 026e 6300 0001 8100 6005  .nc....nc.....`.");
    assert_eq!(lines[3].trim_end(), "\t0x0020:  0707 0707 0707 0707                      ........");
    assert!(
        lines[4].contains("service vlan 100, p 0, ethertype 802.1Q (0x8100), vlan 5, p 3, "),
        "{}",
        lines[4]
    );
}

#[test]
fn packets_are_counted_in_every_output_format() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let sniff = |arguments: &[&str]| {
        let sniffer = RunningSniffer::start(lab.right(), arguments);
        send_frames(lab.left(), &vec![marked_frame(&lab, 0x88b5); 20]);
        let ended = sniffer.wait_for_end();
        assert_eq!(ended.status.code(), Some(0), "{}", ended.errors);
        ended
    };
    let text = sniff(&["--count", "7", "--relative"]);
    assert_eq!(text.lines.len(), 7);
    assert_eq!(text.lines[0], "0.000000000 ethertype 0x88b5, length 86");
    assert!(text.errors.starts_with("7 packets captured, 700 bytes, in "), "{}", text.errors);

    let json = sniff(&["--count", "20", "--json", "--hex"]);
    let objects: Vec<Value> = json.lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (summary, packets) = objects.split_last().unwrap();
    assert_eq!(packets.len(), 20);
    for packet in packets {
        assert_eq!((&packet["schema"], &packet["kind"]), (&"nocopy.sniff/2".into(), &"packet".into()));
        assert_eq!((&packet["bytes"], &packet["direction"]), (&100.into(), &"in".into()));
        assert_eq!((&packet["clock"], packet["hex"].as_str().unwrap().len()), (&"kernel".into(), 200));
        assert_eq!(packet["line"], "ethertype 0x88b5, length 86");
    }
    assert_eq!((&summary["kind"], &summary["packets"]), (&"summary".into(), &20.into()));
    assert_eq!((&summary["dropped"], &summary["counters"]["tp_drops"]), (&0.into(), &0.into()));
    assert_eq!(summary["ended"], "count");
    let timed = sniff(&["--duration", "50ms", "--quiet", "--json"]);
    assert!(timed.lines[0].contains(r#""ended":"duration""#), "{:?}", timed.lines);
    assert_eq!(
        (&summary["mode"], &summary["packets_by_clock"]["kernel"]),
        (&"packet ring".into(), &20.into())
    );
    assert!(json.errors.is_empty(), "{}", json.errors);

    let quiet = sniff(&["--count", "20", "--quiet", "--json"]);
    assert_eq!(quiet.lines.len(), 1, "{:?}", quiet.lines);
    assert!(quiet.lines[0].contains(r#""packets":20,"bytes":2000"#), "{}", quiet.lines[0]);
    let silent = sniff(&["--count", "20", "-q"]);
    assert!(silent.lines.is_empty() && silent.errors.starts_with("20 packets captured"), "{}", silent.errors);
}

#[test]
fn only_one_direction_is_shown_on_request() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (left, right) = (udp_socket(lab.left(), 9000), udp_socket(lab.right(), 9001));
    for (option, shown, hidden) in [("--incoming", &left, &right), ("--outgoing", &right, &left)] {
        let sniffer = RunningSniffer::start(lab.right(), &[option, "--json"]);
        let there = |socket: &UdpSocket| socket.local_addr().unwrap();
        hidden.send_to(b"hidden", there(shown)).unwrap();
        shown.send_to(b"shown!!", there(hidden)).unwrap();
        let line = sniffer.expect_line(&["UDP, length"]);
        assert!(line.contains("UDP, length 7"), "{option}: {line}");
    }
}

/// The host does not receive taken packets, and receives packets again afterwards.
#[test]
fn taken_packets_do_not_reach_the_host() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (left, right) = (udp_socket(lab.left(), 9000), udp_socket(lab.right(), 9001));
    let there = right.local_addr().unwrap();
    let sniffer = RunningSniffer::start(lab.right(), &["--take", "--mode", "xdp-copy-native"]);
    left.send_to(b"taken", there).unwrap();
    sniffer.expect_line(&["10.77.0.1.9000 > 10.77.0.2.9001: UDP, length 5"]);
    sniffer.interrupt();
    let EndedSniffer { status, errors, .. } = sniffer.wait_for_end();
    assert_eq!(status.code(), Some(0), "{errors}");
    for words in ["1 packets captured", "when the packet was read", "xdp copy native, copied (xdp copy mode)"]
    {
        assert!(errors.contains(words), "{words}: {errors}");
    }
    // The program is detached with the process, asynchronously.
    let (give_up, mut first, mut bytes) = (Instant::now() + PATIENCE, [0; 100], 0);
    right.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    while bytes == 0 {
        assert!(Instant::now() < give_up, "nothing comes back");
        left.send_to(b"back", there).unwrap();
        bytes = right.recv(&mut first).unwrap_or(0);
    }
    assert_eq!(&first[..bytes], b"back", "what was sent before the capture has alone");
}

#[test]
fn an_unavailable_mode_is_refused() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let mut command = sniff_command(&[lab.right().interface(), "--take", "--mode", "xdp-zero-copy"]);
    let output = lab.right().namespace().run(|| command.output().unwrap());
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), message.lines().count()), (Some(2), 1), "{message}");
    assert!(message.contains("zero-copy"), "{message}");
}

/// Proves that `nocopy sniff … | head -1` ends, without a word more.
#[test]
fn a_closed_output_ends_sniff() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let mut sniffer = RunningSniffer::start(lab.right(), &[]);
    send_frames(lab.left(), &[marked_frame(&lab, 0x88b5)]);
    sniffer.expect_line(&["0x88b5"]);
    // The reading thread ends with the next unwanted line.
    drop(std::mem::replace(&mut sniffer.lines, mpsc::channel().1));
    let give_up = Instant::now() + PATIENCE;
    let status = loop {
        send_frames(lab.left(), &[marked_frame(&lab, 0x88b5)]);
        if let Some(status) = sniffer.child.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < give_up, "it goes on");
    };
    let mut errors = String::new();
    sniffer.errors.read_to_string(&mut errors).unwrap();
    assert_eq!((status.code(), &*errors), (Some(0), ""));
}

/// The summary and an error are printed.
#[test]
fn a_removed_interface_ends_sniff_with_a_summary() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let sniffer = RunningSniffer::start(lab.right(), &[]);
    send_frames(lab.left(), &[marked_frame(&lab, 0x88b5)]);
    sniffer.expect_line(&["0x88b5"]);
    lab.delete_pair().unwrap();
    let EndedSniffer { status, errors, .. } = sniffer.wait_for_end();
    assert_eq!(status.code(), Some(2), "{errors}");
    let last = errors.lines().last().unwrap();
    assert!(last.starts_with("nocopy: nc1 queue 0: ") && last.contains("was removed"), "{errors}");
    assert!(errors.contains("1 packets captured"), "{errors}");
}

#[test]
fn sniff_continues_when_an_interface_is_up_again() {
    for options in [&[][..], &["--take"]] {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let sniffer = RunningSniffer::start(lab.right(), options);
        send_frames(lab.left(), &[marked_frame(&lab, 0x88b5)]);
        sniffer.expect_line(&["0x88b5"]);
        lab.right().set_down().unwrap();
        let before = sleep_count(sniffer.child.id());
        wait_until("it waits", || sleep_count(sniffer.child.id()) >= before + 20);
        lab.right().bring_interface_up().unwrap();
        lab.wait_for_carrier().unwrap();
        send_frames(lab.left(), &[marked_frame(&lab, 0x88b6)]);
        sniffer.expect_line(&["0x88b6"]);
    }
}

#[test]
fn the_duration_ends_sniff() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let mut sniffer = RunningSniffer::start(lab.right(), &["--duration", "1s", "--quiet"]);
    let (give_up, mut sent) = (Instant::now() + PATIENCE, 0);
    while sniffer.child.try_wait().unwrap().is_none() {
        send_frames(lab.left(), &vec![marked_frame(&lab, 0x88b5); 50]);
        sent += 50;
        assert!(Instant::now() < give_up, "it goes on");
    }
    let EndedSniffer { status, errors, .. } = sniffer.wait_for_end();
    let captured: u64 = errors.split(' ').next().unwrap().parse().unwrap();
    assert!(status.success() && captured <= sent, "{captured} of {sent}: {errors}");
}

#[test]
fn packets_that_are_not_shown_are_counted() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let sniffer = RunningSniffer::start(lab.right(), &["--count", "50", "--quiet"]);
    send_frames(lab.left(), &vec![marked_frame(&lab, 0x88b5); 50]);
    let EndedSniffer { lines, errors, .. } = sniffer.wait_for_end();
    assert!(lines.is_empty() && errors.contains("50 packets captured"), "{lines:?} {errors}");
}

#[test]
fn sniff_has_no_capabilities() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    for arguments in [&[][..], &["--take"]] {
        let sniffer = RunningSniffer::start(lab.right(), arguments);
        for task in fs::read_dir(format!("/proc/{}/task", sniffer.child.id())).unwrap() {
            let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
            for set in ["CapPrm:\t", "CapEff:\t", "CapInh:\t"] {
                assert!(status.contains(&format!("{set}0000000000000000")), "{status}");
            }
        }
    }
}

#[test]
fn loopback_packets_are_shown_once() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let sniffer = RunningSniffer::start_on_interface(lab.right(), "lo", &["--count", "2"]);
    let socket = lab.right().namespace().run(|| UdpSocket::bind("127.0.0.1:9000").unwrap());
    for text in [&b"one"[..], b"second"] {
        socket.send_to(text, socket.local_addr().unwrap()).unwrap();
    }
    let lines = sniffer.wait_for_end().lines;
    assert!(lines[0].ends_with("IP 127.0.0.1.9000 > 127.0.0.1.9000: UDP, length 3"), "{lines:?}");
    assert!(lines[1].ends_with("UDP, length 6"), "{lines:?}");
}

/// Without printing packets, a line shows the progress, and is erased at the end.
#[test]
fn on_a_terminal_a_line_shows_rates() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (mut terminal, screen) = open_terminal(24, 120);
    let mut command = sniff_command(&[lab.right().interface(), "--quiet"]);
    command.stdout(Stdio::null()).stderr(screen);
    let sniffer = RunningNocopy(Some(lab.right().namespace().run(|| command.spawn().unwrap())));
    drop(command); // it holds the other end of the terminal
    let (say, said) = mpsc::channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        // Returns an error when the other end is closed.
        while let Ok(bytes @ 1..) = terminal.read(&mut buffer) {
            let _ = say.send(String::from_utf8_lossy(&buffer[..bytes]).into_owned());
        }
    });
    const RATES: &str = "0 packets/s  0 bit/s  0 drops/s  0 dropped in all";
    const CLEAR_LINE: &str = "\x1b[2K";
    let mut text = String::new();
    while !text.contains(RATES) {
        text += &said.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no rates: {text:?}"));
    }
    sniffer.signal(Signal::INT);
    assert!(sniffer.wait_for_end().status.success());
    text.extend(said);
    assert!(text.rsplit(RATES).next().unwrap().contains(CLEAR_LINE), "{text:?}");
}

#[test]
fn errors_of_sniff_are_one_line() {
    let missing = sniff_command(&["nc-none"]).output().unwrap();
    let message = String::from_utf8(missing.stderr).unwrap();
    assert_eq!((missing.status.code(), message.lines().count()), (Some(2), 1), "{message}");
    assert!(message.contains("nc-none: no such interface"), "{message}");
    for arguments in [
        &["lo", "--count", "0"][..],
        &["lo", "--snap", "none"],
        &["lo", "--duration", "soon"],
        &["lo", "--incoming", "--outgoing"],
        &["lo", "--take", "--outgoing"],
        &["lo", "--mode", "xdp-zero-copy"],
        &["lo", "--take", "--mode", "packet-ring"],
        &["lo", "--time", "sundial"],
        &["lo", "--time", "utc", "--relative"],
        &["lo", "--quiet", "--hex"],
        &[],
    ] {
        assert_eq!(sniff_command(arguments).output().unwrap().status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn only_matching_packets_are_shown_or_taken() {
    for way in [&["--take", "--mode", "xdp-copy-native"][..], &[]] {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let (left, others) = (udp_socket(lab.left(), 9000), udp_socket(lab.right(), 9002));
        let wanted = SocketAddr::from((lab.right().ipv4(), 9001));
        let sniffer =
            RunningSniffer::start(lab.right(), &[way, &["udp port 9001", "and udp[8] = 7"]].concat());
        others.set_read_timeout(Some(PATIENCE)).unwrap();
        for number in [6, 7, 8, 7] {
            left.send_to(&[number; 5], wanted).unwrap();
            left.send_to(b"others", others.local_addr().unwrap()).unwrap();
            uninterrupted(|| others.recv(&mut [0; 10])).expect("the host has what does not match");
        }
        for _ in 0..2 {
            sniffer.expect_line(&["9000 > 10.77.0.2.9001: UDP, length 5"]);
        }
        sniffer.interrupt();
        let EndedSniffer { lines, errors, .. } = sniffer.wait_for_end();
        assert!(lines.is_empty() && errors.contains("2 packets captured"), "{lines:?} {errors}");
        assert!(errors.contains("  filter "), "says where it runs: {errors}");
    }
}

/// Packets as hosts with offloads write them: without a length, and with tags of all kinds.
#[test]
fn offloaded_packets_match_filters_and_show_the_frame_length() {
    for way in [&["--take", "--mode", "xdp-copy-native"][..], &[]] {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let segment = |tags: &[u8], ip: &[u8]| {
            let addresses = [&lab.right().mac()[..], &lab.left().mac()].concat();
            let tcp = [0, 80, 0x9c, 0x40, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0xf4, 0, 0, 0, 0];
            [&addresses[..], tags, ip, &tcp, &[7; 100]].concat()
        };
        let v4: &[u8] = &[8, 0, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2];
        let mut v6 = [0; 42];
        v6[..9].copy_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 6]);
        (v6[9], v6[25], v6[41]) = (64, 1, 2);
        let frames = [
            segment(&[], v4),
            segment(&[], &v6),
            segment(&[0x81, 0, 0x60, 0], v4),
            segment(&[0x88, 0xa8, 0, 100, 0x81, 0, 0, 5], v4),
            segment(&[0x91, 0, 0, 100, 0x81, 0, 0, 5], v4),
        ];
        let sniffer =
            RunningSniffer::start(lab.right(), &[way, &["tcp port 80 or (vlan and (tcp or vlan))"]].concat());
        send_frames(lab.left(), &frames);
        let tcp = "10.77.0.1.80 > 10.77.0.2.40000: Flags [.], seq 1:101, ack 2, win 500, length 100";
        sniffer.expect_line(&[&format!("IP {tcp}")]);
        sniffer.expect_line(&["IP6 ::1.80 > ::2.40000: Flags [.], seq 1:101, ack 2, win 500, length 100"]);
        sniffer.expect_line(&[&format!("vlan 0, p 3, IP {tcp}")]);
        sniffer.expect_line(&[&format!("service vlan 100, p 0, vlan 5, p 0, IP {tcp}")]);
        sniffer.expect_line(&[&format!("vlan 100, p 0, vlan 5, p 0, IP {tcp}")]);
        sniffer.interrupt();
        sniffer.wait_for_end();
    }
}

#[test]
fn bytecode_filters_work_and_invalid_ones_are_refused() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let place = std::env::temp_dir().join(format!("nocopy-filter-{}", std::process::id()));
    let path = place.to_str().unwrap();
    let failure = |arguments: &[&str]| {
        let mut command = sniff_command(&[&[lab.right().interface()], arguments].concat());
        let output = lab.right().namespace().run(|| command.output().unwrap());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.lines().count() == 1, "{said}");
        said
    };
    assert!(failure(&["--bytecode", path]).contains("cannot be read (ENOENT)"));
    fs::write(&place, "2\n40 0 0 12\n6 0 0 many\n").unwrap();
    assert!(failure(&["--bytecode", path]).contains("cannot be read as a filter"));
    fs::write(&place, "4\n40 0 0 12\n21 0 1 34997\n6 0 0 262144\n6 0 0 0\n").unwrap(); // ether proto 0x88b5
    let sniffer = RunningSniffer::start(lab.right(), &["--bytecode", path, "--count", "1"]);
    fs::remove_file(&place).unwrap();
    send_frames(lab.left(), &[marked_frame(&lab, 0x88b6), marked_frame(&lab, 0x88b5)]);
    let EndedSniffer { lines, .. } = sniffer.wait_for_end();
    assert!(lines.len() == 1 && lines[0].contains("88b5"), "{lines:?}");
    assert!(failure(&["udp prot 9"]).contains("pcap-filter(7)"));
}

/// A filter for odd bytes 17, as bytecode, that is too long for XDP: a jump exceeds its range.
fn filter_too_long_for_xdp() -> String {
    let loads = "80 0 0 3\n".repeat(4000);
    format!("4005\n48 0 0 17\n69 0 1 1\n5 0 0 4001\n{loads}6 0 0 0\n6 0 0 262144\n")
}

/// Without capabilities the host still gets the packets that a filter in user space rejects, or they are
/// reported as lost.
#[test]
fn packets_that_a_user_space_filter_rejects_reach_the_host() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let place = std::env::temp_dir().join(format!("nocopy-long-filter-{}", std::process::id()));
    fs::write(&place, filter_too_long_for_xdp()).unwrap();
    let host = RunningSniffer::start(lab.right(), &["ether proto 0x88b5"]);
    let taking = ["--take", "--mode", "xdp-copy-native", "--bytecode", place.to_str().unwrap(), "--json"];
    let sniffer = RunningSniffer::start(lab.right(), &taking);
    fs::remove_file(&place).unwrap();
    let of_kind = |byte: u8| [&marked_frame(&lab, 0x88b5)[..14], &[0, 0, 0, byte], &[7; 42]].concat();
    send_frames(lab.left(), &[of_kind(2), of_kind(3)]);
    sniffer.expect_line(&["0x88b5"]);
    sniffer.interrupt();
    let ended = sniffer.wait_for_end();
    let summary: Value = serde_json::from_str(ended.lines.last().unwrap()).unwrap();
    assert_eq!(
        (&summary["dropped"], &summary["counters"]["filter_lost"]),
        (&0.into(), &0.into()),
        "{summary}"
    );
    host.expect_line(&["0x88b5"]);
}

/// Proves that packets of all queues are shown, both ways, passively and taking, and each once.
#[test]
fn all_queues_of_an_interface_are_captured() {
    for (taking, ways) in [(&[][..], 2), (&["--take", "--mode", "xdp-copy-native"], 1)] {
        let Some(lab) = Lab::builder().queues(2).build_or_skip() else { return };
        let sniffer = RunningSniffer::start(
            lab.right(),
            &[taking, &["ether proto 0x88b5 or udp port 9001", "--hex", "--json"]].concat(),
        );
        let send_by = |end: &End, queue: u32, number: u8| {
            end.namespace().run(|| {
                let builder = Port::builder(end.interface()).queue(queue).mode(Mode::XdpCopyNative);
                let mut port =
                    builder.frame_count(0, 64).ring_sizes(64, 64).purpose(Purpose::Send).open().unwrap();
                let mut packet = port.sender().buffer().unwrap();
                packet.fill(&[&marked_frame(&lab, 0x88b5)[..], &[number]].concat()).unwrap();
                port.sender().send(packet).unwrap();
                assert!(port.sender().drain(PATIENCE).unwrap());
            });
        };
        let mut expected = Vec::new();
        for (queue, number) in [(0, 1), (1, 2)] {
            send_by(lab.left(), queue, number);
            expected.push(number);
        }
        if ways == 2 {
            // Through the kernel: packets that bypass the queueing discipline are not captured.
            udp_socket(lab.right(), 9001).send_to(&[3; 20], (lab.left().ipv4(), 9000)).unwrap();
            expected.push(3);
        }
        let mut seen: Vec<u8> =
            expected.iter().map(|_| last_printed_byte(&sniffer.expect_line(&["\"packet\""]))).collect();
        seen.sort_unstable();
        assert_eq!(seen, expected, "{taking:?}");
        sniffer.interrupt();
        let ended = sniffer.wait_for_end();
        assert!(ended.lines.len() == 1 && ended.lines[0].contains("summary"), "each once: {:?}", ended.lines);
    }
}

/// The last byte of a packet, as it was printed.
fn last_printed_byte(line: &str) -> u8 {
    let packet: Value = serde_json::from_str(line).unwrap();
    let hex = packet["hex"].as_str().unwrap();
    u8::from_str_radix(&hex[hex.len() - 2..], 16).unwrap()
}

#[test]
fn interfaces_without_ethernet_headers_are_refused() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    lab.right().namespace().run(|| {
        let made = Command::new("ip").args(["tuntap", "add", "dev", "nctun", "mode", "tun"]).status();
        if !made.is_ok_and(|status| status.success()) {
            return nocopy_lab::skip(&nocopy_lab::Missing::Device("'ip tuntap'"));
        }
        for arguments in [&["nctun"][..], &["nctun", "--take"], &["nctun", "udp"]] {
            let output = sniff_command(arguments).output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.code() == Some(2) && said.lines().count() == 1, "{said}");
            assert!(
                said.starts_with("nocopy: nctun: cannot be used; its packets have no Ethernet header"),
                "{said}"
            );
        }
    });
}
