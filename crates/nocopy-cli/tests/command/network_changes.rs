//! Links, routes and addresses that come and go, and peers that restart: what may be lost is counted by the
//! kernel's error, and a run goes on.

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;

use crate::process_state::{sleeps, uninterrupted, wait_until};
use crate::running::{PATIENCE, Running, nocopy, text};
use crate::scratch::Scratch;
use crate::transfer;
use nocopy_lab::{End, Lab};
use rustix::process::Signal;
use serde_json::Value;

const METHODS: [&str; 8] =
    ["auto", "socket", "sendmmsg", "gso", "zerocopy", "zerocopy-gso", "uring-zerocopy", "uring-zerocopy-gso"];

/// What goes wrong, what mends it, and the error that the kernel reports meanwhile.
type Fault = (&'static str, &'static str, &'static str);

const FAULTS: [Fault; 6] = [
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
const HOST_FAULTS: &[Fault] = FAULTS.split_at(5).0;

/// As a packet filter and a full queue do it, at the other end.
const SERVER_FAULTS: [Fault; 2] = [
    ("ip xfrm policy add dir out dst 10.77.0.1 action block", "ip xfrm policy flush", "EPERM"),
    (
        "tc qdisc change dev nc1 root pfifo limit 0",
        "tc qdisc change dev nc1 root pfifo limit 1000",
        "ENOBUFS",
    ),
];

fn apply(end: &End, command: &str) {
    let (program, arguments) = command.split_once(' ').unwrap();
    let done = end.namespace().run(|| Command::new(program).args(arguments.split(' ')).output().unwrap());
    assert!(done.status.success(), "{command}: {}", text(&done.stderr));
}

fn start(end: &End, arguments: &[&str]) -> Running {
    Running(Some(end.namespace().run(|| nocopy(arguments).spawn().unwrap())))
}

/// A lab whose interfaces have queues. While one is put in place, the kernel drops datagrams without a
/// report.
fn lab_or_skip() -> Option<Lab> {
    let lab = nocopy_lab::lab_or_skip()?;
    for end in [lab.left(), lab.right()] {
        apply(end, &format!("tc qdisc add dev {} root pfifo limit 1000", end.interface()));
    }
    Some(lab)
}

/// A service that has begun.
fn start_service(end: &End, arguments: &[&str]) -> Running {
    let mut server = start(end, &[&["serve"], arguments].concat());
    let mut errors = std::io::BufReader::new(server.0.as_mut().unwrap().stderr.take().unwrap());
    std::io::BufRead::read_line(&mut errors, &mut String::new()).unwrap();
    server
}

/// A socket that has room for all that a test sends to it, and whose neighbour is known whatever happens to
/// the link.
fn receiver(lab: &Lab) -> (UdpSocket, SocketAddr) {
    let socket = lab.right().namespace().run(|| UdpSocket::bind((lab.right().ipv4(), 0)).unwrap());
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 16 << 20).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let at = socket.local_addr().unwrap();
    (socket, at)
}

fn receive(socket: &UdpSocket, count: u64) -> u64 {
    for _ in 0..count {
        uninterrupted(|| socket.recv(&mut [0; 2000])).unwrap();
    }
    count
}

/// Everything that has arrived.
fn receive_rest(socket: &UdpSocket) -> u64 {
    socket.set_nonblocking(true).unwrap();
    std::iter::from_fn(|| socket.recv(&mut [0; 2000]).ok()).count() as u64
}

/// Waits until a sender has tried again and again: it sleeps before each datagram.
fn wait_for_attempts(running: &Running) {
    let before = sleeps(running.id());
    wait_until("attempts", || sleeps(running.id()) >= before + 60);
}

fn interrupted(running: Running) -> Value {
    running.signal(Signal::INT);
    let (summary, code) = running.summary();
    assert_eq!((code, &summary["ended"]), (1, &"interrupted".into()), "{summary}");
    summary
}

fn of(summary: &Value, field: &str) -> u64 {
    summary[field].as_u64().unwrap()
}

fn sum(counts: &Value) -> u64 {
    counts.as_object().unwrap().values().filter_map(Value::as_u64).sum()
}

#[test]
fn datagrams_that_cannot_be_sent_are_counted_by_error() {
    for (number, method) in METHODS.into_iter().enumerate() {
        if method.starts_with("uring") && !nocopy_lab::io_uring_or_skip() {
            break;
        }
        let Some(lab) = lab_or_skip() else { return };
        let (socket, at) = receiver(&lab);
        let target = format!("udp://{at}");
        let options = ["--raw", "--json", "--size", "1000", "--rate", "1kpps", "--method", method];
        let sender = start(lab.left(), &[&["send", &target], &options[..]].concat());
        let mut received = receive(&socket, 20);
        // Some kinds of weather for each method, and every kind for the first.
        let kinds = if number == 0 { HOST_FAULTS } else { &HOST_FAULTS[number % 4..][..2] };
        for (fault, repair, _) in kinds {
            apply(lab.left(), fault);
            wait_for_attempts(&sender);
            apply(lab.left(), repair);
            received += receive_rest(&socket);
            socket.set_nonblocking(false).unwrap();
            received += receive(&socket, 20);
        }
        let summary = interrupted(sender);
        received += receive_rest(&socket);
        for (_, _, error) in kinds {
            assert!(summary["refused_by"][error].as_u64().unwrap() >= 20, "{method}: {summary}");
        }
        assert_eq!(sum(&summary["refused_by"]), of(&summary, "refused"), "{method}: {summary}");
        assert_eq!(of(&summary, "datagrams"), received + of(&summary, "refused"), "{method}: {summary}");
    }
}

#[test]
fn datagrams_not_sent_are_missing_at_the_receiver() {
    for method in ["socket", "gso", "zerocopy-gso"] {
        let Some(lab) = lab_or_skip() else { return };
        let file = Scratch::new(&format!("weather-{method}"));
        let options = ["--json", "--output", file.path()];
        let (receiver, at, _) =
            lab.right().namespace().run(|| transfer::recv_with_errors("udp", "10.77.0.2", &options));
        let target = format!("udp://{at}");
        let options = ["--json", "--rate", "1kpps", "--method", method];
        let sender = start(lab.left(), &[&["send", &target], &options[..]].concat());
        let has_more = |bytes| std::fs::metadata(file.path()).is_ok_and(|found| found.len() > bytes);
        wait_until("data", || has_more(0));
        for (fault, repair, _) in HOST_FAULTS {
            apply(lab.left(), fault);
            wait_for_attempts(&sender);
            apply(lab.left(), repair);
            let bytes = std::fs::metadata(file.path()).unwrap().len();
            wait_until("more data", || has_more(bytes));
        }
        let (sent, (received, code)) = (interrupted(sender), receiver.summary());
        assert_eq!(
            (&sent["lost"], &received["lost"], code),
            (&sent["refused"], &sent["refused"], 1),
            "{sent}"
        );
        assert!(of(&sent, "refused") >= 100 && sent["final"] == true, "{sent}");
    }
}

#[test]
fn a_flapping_link_ends_no_sender() {
    let over_port = ["xdp-udp", "xdp-copy"];
    for method in METHODS.into_iter().chain(over_port) {
        if method.starts_with("uring") && !nocopy_lab::io_uring_or_skip() {
            continue;
        }
        let Some(lab) = lab_or_skip() else { return };
        let (socket, at) = receiver(&lab);
        let target = format!("udp://{at}");
        let mut options = vec!["--raw", "--json", "--rate", "1kpps", "--method", method];
        if over_port.contains(&method) {
            options.extend(["--interface", "nc0"]);
        }
        let sender = start(lab.left(), &[&["send", &target], &options[..]].concat());
        receive(&socket, 20);
        apply(lab.left(), "ip link set nc0 down");
        wait_for_attempts(&sender);
        receive_rest(&socket);
        socket.set_nonblocking(false).unwrap();
        apply(lab.left(), "ip link set nc0 up");
        receive(&socket, 200);
        let summary = interrupted(sender);
        assert!(summary["refused_by"]["ENETUNREACH"].as_u64().is_some(), "{method}: {summary}");
    }
}

#[test]
fn a_sender_that_never_sent_fails() {
    // A full queue is no error even at first: it has room again later.
    for (fault, _, error) in FAULTS.into_iter().filter(|(_, _, error)| *error != "ENOBUFS") {
        let Some(lab) = lab_or_skip() else { return };
        apply(lab.left(), fault);
        for options in [&["--raw"][..], &["--raw", "--method", "gso"], &["--connect-timeout", "1s"]] {
            let arguments = [&["send", "udp://10.77.0.2:9"], options].concat();
            let output = start(lab.left(), &arguments).end();
            let said = text(&output.stderr);
            assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
            assert!(said.contains(&format!("({error})")), "{said}");
        }
    }
}

#[test]
fn a_restarted_receiver_ends_no_sender() {
    let first = Scratch::new("weather-first");
    let (receiver, at, _) = transfer::recv_with_errors("udp", "127.0.0.1", &["--output", first.path()]);
    let sender = transfer::send("udp", at, &["--json", "--rate", "1kpps"]);
    let has_data = |file: &Scratch| std::fs::metadata(file.path()).is_ok_and(|found| found.len() > 0);
    wait_until("data", || has_data(&first));
    drop(receiver);
    wait_for_attempts(&sender);
    let second = Scratch::new("weather-second");
    let receiver = Running::start(&["recv", &format!("udp://{at}"), "--json", "--output", second.path()]);
    wait_until("data again", || has_data(&second));
    let sent = interrupted(sender);
    let (received, code) = receiver.summary();
    assert_eq!((&sent["final"], &sent["lost"]), (&true.into(), &received["lost"]), "{sent}{received}");
    assert!(code == 1 && of(&sent, "lost") > 0, "{sent}{received}");
    assert!(of(&sent["errors"], "ECONNREFUSED") > 0, "{sent}");
}

#[test]
fn a_tentative_address_is_waited_for() {
    if !nocopy_lab::ipv6_or_skip() {
        return;
    }
    let Some(lab) = lab_or_skip() else { return };
    for (end, detection) in [(lab.left(), "1"), (lab.right(), "0")] {
        let set = |name: &str, value: &str| {
            std::fs::write(format!("/proc/sys/net/ipv6/conf/{}/{name}", end.interface()), value).unwrap();
        };
        end.namespace().run(|| {
            set("accept_dad", detection);
            set("disable_ipv6", "0");
        });
    }
    apply(lab.right(), "ip addr add fd77::2/64 dev nc1");
    let socket = lab.right().namespace().run(|| UdpSocket::bind("[::]:0").unwrap());
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let target = format!("udp://[fd77::2]:{}", socket.local_addr().unwrap().port());
    let raw = ["--raw", "--json", "--rate", "100pps", "--count", "5"];
    for arguments in
        [[&["send", &target], &raw[..]].concat(), vec!["ping", &target, "--json", "--count", "5"]]
    {
        apply(lab.left(), "ip addr add fd77::1/64 dev nc0");
        let running = start(lab.left(), &arguments);
        match arguments[0] {
            "send" => assert_eq!(receive(&socket, 5), 5),
            _ => echo(&socket, 5),
        }
        let (summary, code) = running.summary();
        assert_eq!(code, 0, "{summary}");
        apply(lab.left(), "ip addr del fd77::1/64 dev nc0");
    }
}

/// Sends datagrams back with the mark of an answer.
fn echo(socket: &UdpSocket, count: u64) {
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
        let Some(lab) = lab_or_skip() else { return };
        let (socket, at) = receiver(&lab);
        let target = format!("{scheme}://{at}");
        let options = ["--json", "--interval", "1ms", "--timeout", "100ms", "--duration", "1h"];
        let ping = start(lab.left(), &[&["ping", &target], &options[..], port].concat());
        echo(&socket, 20);
        apply(lab.left(), "ip link set nc0 down");
        wait_for_attempts(&ping);
        receive_rest(&socket);
        socket.set_nonblocking(false).unwrap();
        apply(lab.left(), "ip link set nc0 up");
        echo(&socket, 50);
        let summary = interrupted(ping);
        assert!(of(&summary["lost_by"], "ENETUNREACH") > 0, "{summary}");
        assert!(
            of(&summary, "answered") >= 50 && of(&summary, "lost") >= sum(&summary["lost_by"]),
            "{summary}"
        );
    }
}

#[test]
fn rounds_that_cannot_be_sent_are_counted_by_error() {
    let Some(lab) = lab_or_skip() else { return };
    let (socket, at_port) = receiver(&lab);
    let target = format!("udp://{at_port}");
    let options = ["--json", "--interval", "1ms", "--timeout", "100ms", "--duration", "1h"];
    let ping = start(lab.left(), &[&["ping", &target], &options[..]].concat());
    echo(&socket, 20);
    for (fault, repair, _) in HOST_FAULTS {
        apply(lab.left(), fault);
        wait_for_attempts(&ping);
        receive_rest(&socket);
        socket.set_nonblocking(false).unwrap();
        apply(lab.left(), repair);
        echo(&socket, 20);
    }
    let summary = interrupted(ping);
    // A full queue is not reported to such a socket.
    for (_, _, error) in HOST_FAULTS.iter().filter(|(_, _, error)| *error != "ENOBUFS") {
        assert!(of(&summary["lost_by"], error) > 0, "{error}: {summary}");
    }
}

#[test]
fn answers_that_cannot_be_sent_are_counted_by_error() {
    let Some(lab) = lab_or_skip() else { return };
    let server = start_service(lab.right(), &["udp://10.77.0.2:7000", "--json"]);
    let ping = |timeout| {
        let arguments = ["ping", "udp://10.77.0.2:7000", "--count", "3", "--timeout", timeout, "--json"];
        start(lab.left(), &arguments).summary().0
    };
    for (fault, repair, _) in SERVER_FAULTS {
        apply(lab.right(), fault);
        assert_eq!(of(&ping("100ms"), "lost"), 3, "{fault}");
        apply(lab.right(), repair);
        assert_eq!(of(&ping("1m"), "answered"), 3, "{repair}");
    }
    server.signal(Signal::INT);
    let (summary, code) = server.summary();
    for (_, _, error) in SERVER_FAULTS {
        assert!(of(&summary["services"][0]["refused_by"], error) >= 3, "{summary}");
    }
    assert_eq!(code, 0, "{summary}");
}

#[test]
fn messages_that_cannot_be_sent_are_sent_later() {
    let Some(lab) = lab_or_skip() else { return };
    let mut server = start_service(lab.right(), &["message://10.77.0.2:7000"]);
    for (end, kinds) in [(lab.left(), &HOST_FAULTS[3..]), (lab.right(), &SERVER_FAULTS)] {
        for (fault, repair, _) in kinds {
            let options = ["--json", "--interval", "1ms", "--duration", "1h", "--timeout", "1m"];
            let ping = start(lab.left(), &[&["ping", "message://10.77.0.2:7000"], &options[..]].concat());
            wait_for_attempts(&ping);
            apply(end, fault);
            let call = start(lab.left(), &["call", "message://10.77.0.2:7000", "hello", "--timeout", "1m"]);
            wait_for_attempts(&ping);
            apply(end, repair);
            let called = call.end();
            assert_eq!(
                (called.status.code(), text(&called.stdout)),
                (Some(0), "hello".to_owned()),
                "{fault}: {}",
                text(&called.stderr)
            );
            wait_for_attempts(&ping);
            ping.signal(Signal::INT);
            let (summary, _) = ping.summary();
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
    let ping = Running::start(&[&["ping", &format!("udp://{at}")], &options[..]].concat());
    echo(&socket, 20);
    drop(socket);
    wait_for_attempts(&ping);
    echo(&UdpSocket::bind(at).unwrap(), 50);
    let summary = interrupted(ping);
    assert!(of(&summary["lost_by"], "ECONNREFUSED") > 0, "{summary}");
}

#[test]
fn a_flapping_link_ends_no_service() {
    for (scheme, port) in
        [("udp", &[][..]), ("xdp", &["--interface", "nc1"]), ("message", &["--interface", "nc1"])]
    {
        let Some(lab) = lab_or_skip() else { return };
        let mut server =
            start_service(lab.right(), &[&[&*format!("{scheme}://10.77.0.2:7000")], port].concat());
        let ping = || {
            let target = format!("{scheme}://10.77.0.2:7000");
            let xdp = if scheme == "xdp" { &["--interface", "nc0"][..] } else { &[] };
            start(lab.left(), &[&["ping", &target, "--count", "3", "--json"], xdp].concat()).summary()
        };
        let (summary, code) = ping();
        assert_eq!(code, 0, "{summary}");
        apply(lab.right(), "ip link set nc1 down");
        wait_for_attempts(&server);
        apply(lab.right(), "ip link set nc1 up");
        lab.wait_for_carrier().unwrap();
        // The neighbours are to be resolved again.
        wait_until("all answered", || ping().1 == 0);
        assert!(!server.has_ended(), "{scheme}");
        server.signal(Signal::INT);
        assert_eq!(server.end().status.code(), Some(0), "{scheme}");
    }
}
