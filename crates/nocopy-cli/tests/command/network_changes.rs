//! Links, routes and addresses that come and go, and peers that restart: what may be lost is counted by the
//! kernel's error, and a run goes on.

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;

use crate::process_state::{sleep_count, uninterrupted, wait_until};
use crate::running::{PATIENCE, RunningNocopy, lossy_text, nocopy_command};
use crate::scratch::ScratchFile;
use crate::transfer;
use nocopy_lab::{End, Lab};
use rustix::process::Signal;
use serde_json::Value;

const METHODS: [&str; 8] =
    ["auto", "socket", "sendmmsg", "gso", "zerocopy", "zerocopy-gso", "uring-zerocopy", "uring-zerocopy-gso"];

/// What goes wrong, what mends it, and the error that the kernel reports meanwhile.
type NetworkFault = (&'static str, &'static str, &'static str);

const FAULTS: [NetworkFault; 6] = [
    ("ip route add prohibit 10.77.0.2", "ip route del prohibit 10.77.0.2", "EACCES"),
    ("ip route add unreachable 10.77.0.2", "ip route del unreachable 10.77.0.2", "EHOSTUNREACH"),
    ("ip route add blackhole 10.77.0.2", "ip route del blackhole 10.77.0.2", "EINVAL"),
    ("ip xfrm policy add dir out dst 10.77.0.2 action block", "ip xfrm policy flush", "EPERM"),
    (
        "tc qdisc change dev nc0 root pfifo limit 0",
        "tc qdisc change dev nc0 root pfifo limit 1000",
        "ENOBUFS",
    ),
    ("ip link set nc0 down", "ip link set nc0 up", "ENETUNREACH"),
];

/// Those that leave the link as it is.
const HOST_FAULTS: &[NetworkFault] = FAULTS.split_at(5).0;

/// As a packet filter and a full queue do it, at the other end.
const SERVER_FAULTS: [NetworkFault; 2] = [
    ("ip xfrm policy add dir out dst 10.77.0.1 action block", "ip xfrm policy flush", "EPERM"),
    (
        "tc qdisc change dev nc1 root pfifo limit 0",
        "tc qdisc change dev nc1 root pfifo limit 1000",
        "ENOBUFS",
    ),
];

fn run_in_namespace(end: &End, command: &str) {
    let (program, arguments) = command.split_once(' ').unwrap();
    let done = end.namespace().run(|| Command::new(program).args(arguments.split(' ')).output().unwrap());
    assert!(done.status.success(), "{command}: {}", lossy_text(&done.stderr));
}

fn start_in_namespace(end: &End, arguments: &[&str]) -> RunningNocopy {
    RunningNocopy(Some(end.namespace().run(|| nocopy_command(arguments).spawn().unwrap())))
}

/// A lab whose interfaces have queues. While one is put in place, the kernel drops datagrams without a
/// report.
fn lab_with_queues_or_skip() -> Option<Lab> {
    let lab = nocopy_lab::lab_or_skip()?;
    for end in [lab.left(), lab.right()] {
        run_in_namespace(end, &format!("tc qdisc add dev {} root pfifo limit 1000", end.interface()));
    }
    Some(lab)
}

/// A service that has begun.
fn start_server(end: &End, arguments: &[&str]) -> RunningNocopy {
    let mut server = start_in_namespace(end, &[&["serve"], arguments].concat());
    let mut errors = std::io::BufReader::new(server.0.as_mut().unwrap().stderr.take().unwrap());
    std::io::BufRead::read_line(&mut errors, &mut String::new()).unwrap();
    server
}

/// A socket that has room for all that a test sends to it, and whose neighbour is known whatever happens to
/// the link.
fn bind_receiver(lab: &Lab) -> (UdpSocket, SocketAddr) {
    let socket = lab.right().namespace().run(|| UdpSocket::bind((lab.right().ipv4(), 0)).unwrap());
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 16 << 20).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let at = socket.local_addr().unwrap();
    (socket, at)
}

fn receive_datagrams(socket: &UdpSocket, count: u64) -> u64 {
    for _ in 0..count {
        uninterrupted(|| socket.recv(&mut [0; 2000])).unwrap();
    }
    count
}

/// Everything that has arrived.
fn count_arrived_datagrams(socket: &UdpSocket) -> u64 {
    socket.set_nonblocking(true).unwrap();
    std::iter::from_fn(|| socket.recv(&mut [0; 2000]).ok()).count() as u64
}

/// Waits until a sender has tried again and again: it sleeps before each datagram.
fn wait_for_send_attempts(running: &RunningNocopy) {
    let before = sleep_count(running.id());
    wait_until("attempts", || sleep_count(running.id()) >= before + 60);
}

fn interrupt_and_summarize(running: RunningNocopy) -> Value {
    running.signal(Signal::INT);
    let (summary, code) = running.wait_for_summary();
    assert_eq!((code, &summary["ended"]), (1, &"interrupted".into()), "{summary}");
    summary
}

fn count_field(summary: &Value, field: &str) -> u64 {
    summary[field].as_u64().unwrap()
}

fn sum_of_counts(counts: &Value) -> u64 {
    counts.as_object().unwrap().values().filter_map(Value::as_u64).sum()
}

#[test]
fn datagrams_that_cannot_be_sent_are_counted_by_error() {
    for (number, method) in METHODS.into_iter().enumerate() {
        if method.starts_with("uring") && !nocopy_lab::io_uring_or_skip() {
            break;
        }
        let Some(lab) = lab_with_queues_or_skip() else { return };
        let (socket, at) = bind_receiver(&lab);
        let target = format!("udp://{at}");
        let options = ["--raw", "--json", "--size", "1000", "--rate", "1kpps", "--method", method];
        let sender = start_in_namespace(lab.left(), &[&["send", &target], &options[..]].concat());
        let mut received = receive_datagrams(&socket, 20);
        // Some kinds of weather for each method, and every kind for the first.
        let kinds = if number == 0 { HOST_FAULTS } else { &HOST_FAULTS[number % 4..][..2] };
        for (fault, repair, _) in kinds {
            run_in_namespace(lab.left(), fault);
            wait_for_send_attempts(&sender);
            run_in_namespace(lab.left(), repair);
            received += count_arrived_datagrams(&socket);
            socket.set_nonblocking(false).unwrap();
            received += receive_datagrams(&socket, 20);
        }
        let summary = interrupt_and_summarize(sender);
        received += count_arrived_datagrams(&socket);
        for (_, _, error) in kinds {
            assert!(summary["refused_by"][error].as_u64().unwrap() >= 20, "{method}: {summary}");
        }
        assert_eq!(
            sum_of_counts(&summary["refused_by"]),
            count_field(&summary, "refused"),
            "{method}: {summary}"
        );
        assert_eq!(
            count_field(&summary, "datagrams"),
            received + count_field(&summary, "refused"),
            "{method}: {summary}"
        );
    }
}

#[test]
fn datagrams_not_sent_are_missing_at_the_receiver() {
    for method in ["socket", "gso", "zerocopy-gso"] {
        let Some(lab) = lab_with_queues_or_skip() else { return };
        let file = ScratchFile::new(&format!("weather-{method}"));
        let options = ["--json", "--output", file.path()];
        let (receiver, at, _) = lab
            .right()
            .namespace()
            .run(|| transfer::start_receiver_with_errors("udp", "10.77.0.2", &options));
        let target = format!("udp://{at}");
        let options = ["--json", "--rate", "1kpps", "--method", method];
        let sender = start_in_namespace(lab.left(), &[&["send", &target], &options[..]].concat());
        let has_more = |bytes| std::fs::metadata(file.path()).is_ok_and(|found| found.len() > bytes);
        wait_until("data", || has_more(0));
        for (fault, repair, _) in HOST_FAULTS {
            run_in_namespace(lab.left(), fault);
            wait_for_send_attempts(&sender);
            run_in_namespace(lab.left(), repair);
            let bytes = std::fs::metadata(file.path()).unwrap().len();
            wait_until("more data", || has_more(bytes));
        }
        let (sent, (received, code)) = (interrupt_and_summarize(sender), receiver.wait_for_summary());
        assert_eq!(
            (&sent["lost"], &received["lost"], code),
            (&sent["refused"], &sent["refused"], 1),
            "{sent}"
        );
        assert!(count_field(&sent, "refused") >= 100 && sent["final"] == true, "{sent}");
    }
}

#[test]
fn a_flapping_link_ends_no_sender() {
    let over_port = ["xdp-udp", "xdp-copy"];
    for method in METHODS.into_iter().chain(over_port) {
        if method.starts_with("uring") && !nocopy_lab::io_uring_or_skip() {
            continue;
        }
        let Some(lab) = lab_with_queues_or_skip() else { return };
        let (socket, at) = bind_receiver(&lab);
        let target = format!("udp://{at}");
        let mut options = vec!["--raw", "--json", "--rate", "1kpps", "--method", method];
        if over_port.contains(&method) {
            options.extend(["--interface", "nc0"]);
        }
        let sender = start_in_namespace(lab.left(), &[&["send", &target], &options[..]].concat());
        receive_datagrams(&socket, 20);
        run_in_namespace(lab.left(), "ip link set nc0 down");
        wait_for_send_attempts(&sender);
        count_arrived_datagrams(&socket);
        socket.set_nonblocking(false).unwrap();
        run_in_namespace(lab.left(), "ip link set nc0 up");
        receive_datagrams(&socket, 200);
        let summary = interrupt_and_summarize(sender);
        assert!(summary["refused_by"]["ENETUNREACH"].as_u64().is_some(), "{method}: {summary}");
    }
}

#[test]
fn a_sender_that_never_sent_fails() {
    // A full queue is no error even at first: it has room again later.
    for (fault, _, error) in FAULTS.into_iter().filter(|(_, _, error)| *error != "ENOBUFS") {
        let Some(lab) = lab_with_queues_or_skip() else { return };
        run_in_namespace(lab.left(), fault);
        for options in [&["--raw"][..], &["--raw", "--method", "gso"], &["--connect-timeout", "1s"]] {
            let arguments = [&["send", "udp://10.77.0.2:9"], options].concat();
            let output = start_in_namespace(lab.left(), &arguments).wait_for_end();
            let said = lossy_text(&output.stderr);
            assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
            assert!(said.contains(&format!("({error})")), "{said}");
        }
    }
}

#[test]
fn a_restarted_receiver_ends_no_sender() {
    let first = ScratchFile::new("weather-first");
    let (receiver, at, _) =
        transfer::start_receiver_with_errors("udp", "127.0.0.1", &["--output", first.path()]);
    let sender = transfer::start_sender("udp", at, &["--json", "--rate", "1kpps"]);
    let has_data = |file: &ScratchFile| std::fs::metadata(file.path()).is_ok_and(|found| found.len() > 0);
    wait_until("data", || has_data(&first));
    drop(receiver);
    wait_for_send_attempts(&sender);
    let second = ScratchFile::new("weather-second");
    let receiver =
        RunningNocopy::start(&["recv", &format!("udp://{at}"), "--json", "--output", second.path()]);
    wait_until("data again", || has_data(&second));
    let sent = interrupt_and_summarize(sender);
    let (received, code) = receiver.wait_for_summary();
    assert_eq!((&sent["final"], &sent["lost"]), (&true.into(), &received["lost"]), "{sent}{received}");
    assert!(code == 1 && count_field(&sent, "lost") > 0, "{sent}{received}");
    assert!(count_field(&sent["errors"], "ECONNREFUSED") > 0, "{sent}");
}

#[test]
fn a_sender_waits_for_a_tentative_address() {
    if !nocopy_lab::ipv6_or_skip() {
        return;
    }
    let Some(lab) = lab_with_queues_or_skip() else { return };
    for (end, detection) in [(lab.left(), "1"), (lab.right(), "0")] {
        let set = |name: &str, value: &str| {
            std::fs::write(format!("/proc/sys/net/ipv6/conf/{}/{name}", end.interface()), value).unwrap();
        };
        end.namespace().run(|| {
            set("accept_dad", detection);
            set("disable_ipv6", "0");
        });
    }
    run_in_namespace(lab.right(), "ip addr add fd77::2/64 dev nc1");
    let socket = lab.right().namespace().run(|| UdpSocket::bind("[::]:0").unwrap());
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let target = format!("udp://[fd77::2]:{}", socket.local_addr().unwrap().port());
    let raw = ["--raw", "--json", "--rate", "100pps", "--count", "5"];
    for arguments in
        [[&["send", &target], &raw[..]].concat(), vec!["ping", &target, "--json", "--count", "5"]]
    {
        run_in_namespace(lab.left(), "ip addr add fd77::1/64 dev nc0");
        let running = start_in_namespace(lab.left(), &arguments);
        match arguments[0] {
            "send" => assert_eq!(receive_datagrams(&socket, 5), 5),
            _ => answer_datagrams(&socket, 5),
        }
        let (summary, code) = running.wait_for_summary();
        assert_eq!(code, 0, "{summary}");
        run_in_namespace(lab.left(), "ip addr del fd77::1/64 dev nc0");
    }
}

/// Sends datagrams back with the mark of an answer.
fn answer_datagrams(socket: &UdpSocket, count: u64) {
    let mut datagram = [0; 2000];
    for _ in 0..count {
        let (bytes, from) = uninterrupted(|| socket.recv_from(&mut datagram)).unwrap();
        datagram[0] |= 0x80;
        socket.send_to(&datagram[..bytes], from).unwrap();
    }
}

#[test]
fn a_flapping_link_loses_rounds_of_a_ping() {
    for (scheme, port) in [("udp", &[][..]), ("xdp", &["--interface", "nc0"])] {
        let Some(lab) = lab_with_queues_or_skip() else { return };
        let (socket, at) = bind_receiver(&lab);
        let target = format!("{scheme}://{at}");
        let options = ["--json", "--interval", "1ms", "--timeout", "100ms", "--duration", "1h"];
        let ping = start_in_namespace(lab.left(), &[&["ping", &target], &options[..], port].concat());
        answer_datagrams(&socket, 20);
        run_in_namespace(lab.left(), "ip link set nc0 down");
        wait_for_send_attempts(&ping);
        count_arrived_datagrams(&socket);
        socket.set_nonblocking(false).unwrap();
        run_in_namespace(lab.left(), "ip link set nc0 up");
        answer_datagrams(&socket, 50);
        let summary = interrupt_and_summarize(ping);
        assert!(count_field(&summary["lost_by"], "ENETUNREACH") > 0, "{summary}");
        assert!(
            count_field(&summary, "answered") >= 50
                && count_field(&summary, "lost") >= sum_of_counts(&summary["lost_by"]),
            "{summary}"
        );
    }
}

#[test]
fn pings_that_cannot_be_sent_are_counted_by_error() {
    let Some(lab) = lab_with_queues_or_skip() else { return };
    let (socket, at_port) = bind_receiver(&lab);
    let target = format!("udp://{at_port}");
    let options = ["--json", "--interval", "1ms", "--timeout", "100ms", "--duration", "1h"];
    let ping = start_in_namespace(lab.left(), &[&["ping", &target], &options[..]].concat());
    answer_datagrams(&socket, 20);
    for (fault, repair, _) in HOST_FAULTS {
        run_in_namespace(lab.left(), fault);
        wait_for_send_attempts(&ping);
        count_arrived_datagrams(&socket);
        socket.set_nonblocking(false).unwrap();
        run_in_namespace(lab.left(), repair);
        answer_datagrams(&socket, 20);
    }
    let summary = interrupt_and_summarize(ping);
    // A full queue is not reported to such a socket.
    for (_, _, error) in HOST_FAULTS.iter().filter(|(_, _, error)| *error != "ENOBUFS") {
        assert!(count_field(&summary["lost_by"], error) > 0, "{error}: {summary}");
    }
}

#[test]
fn answers_that_cannot_be_sent_are_counted_by_error() {
    let Some(lab) = lab_with_queues_or_skip() else { return };
    let server = start_server(lab.right(), &["udp://10.77.0.2:7000", "--json"]);
    let ping = |timeout| {
        let arguments = ["ping", "udp://10.77.0.2:7000", "--count", "3", "--timeout", timeout, "--json"];
        start_in_namespace(lab.left(), &arguments).wait_for_summary().0
    };
    for (fault, repair, _) in SERVER_FAULTS {
        run_in_namespace(lab.right(), fault);
        assert_eq!(count_field(&ping("100ms"), "lost"), 3, "{fault}");
        run_in_namespace(lab.right(), repair);
        assert_eq!(count_field(&ping("1m"), "answered"), 3, "{repair}");
    }
    server.signal(Signal::INT);
    let (summary, code) = server.wait_for_summary();
    for (_, _, error) in SERVER_FAULTS {
        assert!(count_field(&summary["services"][0]["refused_by"], error) >= 3, "{summary}");
    }
    assert_eq!(code, 0, "{summary}");
}

#[test]
fn messages_that_cannot_be_sent_are_sent_later() {
    let Some(lab) = lab_with_queues_or_skip() else { return };
    let mut server = start_server(lab.right(), &["message://10.77.0.2:7000"]);
    for (end, kinds) in [(lab.left(), &HOST_FAULTS[3..]), (lab.right(), &SERVER_FAULTS)] {
        for (fault, repair, _) in kinds {
            let options = ["--json", "--interval", "1ms", "--duration", "1h", "--timeout", "1m"];
            let ping = start_in_namespace(
                lab.left(),
                &[&["ping", "message://10.77.0.2:7000"], &options[..]].concat(),
            );
            wait_for_send_attempts(&ping);
            run_in_namespace(end, fault);
            let call = start_in_namespace(
                lab.left(),
                &["call", "message://10.77.0.2:7000", "hello", "--timeout", "1m"],
            );
            wait_for_send_attempts(&ping);
            run_in_namespace(end, repair);
            let called = call.wait_for_end();
            assert_eq!(
                (called.status.code(), lossy_text(&called.stdout)),
                (Some(0), "hello".to_owned()),
                "{fault}: {}",
                lossy_text(&called.stderr)
            );
            wait_for_send_attempts(&ping);
            ping.signal(Signal::INT);
            let (summary, _) = ping.wait_for_summary();
            assert_eq!(
                (&summary["lost"], &summary["ended"]),
                (&0.into(), &"interrupted".into()),
                "{fault}: {summary}"
            );
        }
    }
    assert!(!server.has_ended());
}

#[test]
fn a_restarted_service_loses_rounds_of_a_ping() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = socket.local_addr().unwrap();
    let options = ["--json", "--interval", "1ms", "--timeout", "20ms", "--duration", "1h"];
    let ping = RunningNocopy::start(&[&["ping", &format!("udp://{at}")], &options[..]].concat());
    answer_datagrams(&socket, 20);
    drop(socket);
    wait_for_send_attempts(&ping);
    answer_datagrams(&UdpSocket::bind(at).unwrap(), 50);
    let summary = interrupt_and_summarize(ping);
    assert!(count_field(&summary["lost_by"], "ECONNREFUSED") > 0, "{summary}");
}

#[test]
fn a_flapping_link_ends_no_service() {
    for (scheme, port) in
        [("udp", &[][..]), ("xdp", &["--interface", "nc1"]), ("message", &["--interface", "nc1"])]
    {
        let Some(lab) = lab_with_queues_or_skip() else { return };
        let mut server =
            start_server(lab.right(), &[&[&*format!("{scheme}://10.77.0.2:7000")], port].concat());
        let ping = || {
            let target = format!("{scheme}://10.77.0.2:7000");
            let xdp = if scheme == "xdp" { &["--interface", "nc0"][..] } else { &[] };
            start_in_namespace(lab.left(), &[&["ping", &target, "--count", "3", "--json"], xdp].concat())
                .wait_for_summary()
        };
        let (summary, code) = ping();
        assert_eq!(code, 0, "{summary}");
        run_in_namespace(lab.right(), "ip link set nc1 down");
        wait_for_send_attempts(&server);
        run_in_namespace(lab.right(), "ip link set nc1 up");
        lab.wait_for_carrier().unwrap();
        // The neighbours are to be resolved again.
        wait_until("all answered", || ping().1 == 0);
        assert!(!server.has_ended(), "{scheme}");
        server.signal(Signal::INT);
        assert_eq!(server.wait_for_end().status.code(), Some(0), "{scheme}");
    }
}
