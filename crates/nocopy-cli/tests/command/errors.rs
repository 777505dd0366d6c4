//! Errors as users read them: `subject: what failed (ERRNO); cause; what to do`, and exit code 2.

use std::process::{Command, Output, Stdio};

/// Commands that fail anywhere, and all that they print.
const ERRORS: &[(&[&str], &str)] = &[
    (
        &["report", "/absent.json"],
        "/absent.json: cannot be read (ENOENT); no such file or directory; name a file that exists and is readable",
    ),
    (&["man", "brew"], "man: no page for 'brew'; nocopy has no such command; 'nocopy --help' lists them"),
    (&["doctor", "nothing0"], NO_INTERFACE),
    (&["stats", "nothing0"], NO_INTERFACE),
    (&["sniff", "nothing0"], NO_INTERFACE),
    (&["record", "nothing0", "-o", "/absent/file"], NO_INTERFACE),
    (&["send", "nothing0", "--count=1"], NO_INTERFACE),
    (
        &["sniff", "lo", "--bytecode=/absent"],
        "/absent: cannot be read (ENOENT); no such file or directory; name a file that exists and is readable",
    ),
    (
        &["record", "lo", "-o", "/absent/file"],
        "/absent/file: cannot be written (ENOENT); no such file or directory; name a file in a directory that exists and is writable",
    ),
    (
        &["sniff", "lo", "no such filter"],
        "filter 'no such filter': cannot be compiled; can't parse filter expression: syntax error; pcap-filter(7) has the syntax",
    ),
    (
        &["send", "lo", "--replay=/absent"],
        "/absent: cannot be replayed; it cannot be read (ENOENT); no such file or directory; name a file that exists and may be read",
    ),
    (&["send", "lo", "--replay=/dev/null"], "/dev/null: cannot be replayed; it is empty; record it again"),
    (
        &["send", "lo", "--size=41", "--count=1"],
        "--size: frames of 41 B are too short; headers and payload need 42; raise --size or leave it out",
    ),
    (
        &["send", "lo", "--size=70000", "--count=1"],
        "lo: frames of 70000 B are too long; its MTU of 65536 B allows 65550; lower --size or raise the MTU",
    ),
    (
        &["send", "lo", "--source=10.0.0.1", "--destination=fd00::1", "--count=1"],
        "10.0.0.1, fd00::1: cannot be in one packet; one is IPv4, the other IPv6; give two addresses of one kind",
    ),
    (
        &["send", "lo", "-6", "--checksum=none", "--count=1"],
        "--checksum: cannot be left out; IPv6 packets need a UDP checksum (RFC 8200); use --checksum computed or device, or IPv4",
    ),
    (
        &["send", "udp://239.1.1.1:9", "--count=1"],
        "239.1.1.1:9: needs --raw; it is a multicast address, and no single receiver can answer for all; add --raw",
    ),
    (
        &["send", "udp://127.0.0.1:9", "--size=70000", "--count=1"],
        "--size: datagrams of 70000 bytes cannot be sent; UDP takes no more; give one from 41 to 65507",
    ),
    (
        &["send", "tcp://127.0.0.1:9", "--count=1", "--connect-timeout=100ms"],
        "127.0.0.1:9: no receiver (ECONNREFUSED); connection refused; start 'nocopy recv tcp://:9' there, or give it longer with --connect-timeout",
    ),
    (
        &["send", "tcp://127.0.0.1:9", "--file=/absent"],
        "/absent: cannot be read (ENOENT); no such file or directory; name a file that exists and may be read",
    ),
    (
        &["recv", "udp://192.0.2.1:0"],
        "192.0.2.1:0: not bound (EADDRNOTAVAIL); cannot assign requested address; this host has no such address; 'ip address' lists them",
    ),
    (
        &["recv", "tcp://192.0.2.1:0"],
        "tcp://192.0.2.1:0: cannot receive (EADDRNOTAVAIL); cannot assign requested address; this host has no such address; 'ip address' lists them",
    ),
    (
        &["recv", "udp://239.1.1.1:0"],
        "239.1.1.1:0: needs --raw; it is a multicast address, and senders to a group do not announce what they send; add --raw",
    ),
    (
        &["ping", "udp://127.0.0.1:9", "--interface=lo"],
        "--interface: cannot be used here; it needs message:// or xdp://; leave it out, or ping by xdp://",
    ),
    (
        &["ping", "xdp://127.0.0.1:9"],
        "xdp://: cannot be used alone; it needs --interface; name the interface that leads there",
    ),
    (
        &["ping", "udp://127.0.0.1:9", "--size=70000"],
        "--size: 70000 bytes do not fit one datagram; UDP carries up to 65507; give less with --size, or use message://",
    ),
    (
        &["ping", "tcp://127.0.0.1:9"],
        "tcp://127.0.0.1:9: cannot connect (ECONNREFUSED); connection refused; no program listens there; start 'nocopy serve'",
    ),
    (&["serve", "xdp://:9"], "xdp://: cannot be used alone; it needs --interface; name the interface"),
    (
        &["serve", "127.0.0.1:7000", "--exec="],
        "--exec: no program; nothing follows the option; write the program's name, and its arguments behind it",
    ),
    (
        &["serve", "nfs", "/absent"],
        "/absent: cannot be exported (ENOENT); no such file or directory; name a directory that this user can read",
    ),
    (
        &["ls", "nfs://127.0.0.1/x"],
        "127.0.0.1:2049: cannot be connected to (ECONNREFUSED); connection refused; check that an NFS server listens there ('nocopy serve nfs'), and that no firewall is in between",
    ),
    (
        &["cp", "/etc/hostname", "/tmp/none"],
        "cp: cannot copy between these; one side must be nfs://HOST/PATH and the other a path of this host; use cp(1) between local paths, or copy to a local directory first",
    ),
    (
        &["bench", "--interface=lo", "--peer=lo"],
        "lo: cannot be both ends; a frame goes from one interface to another; give --peer another interface",
    ),
    (
        &["bench", "udp-send", "--method=tcpdump"],
        "--method: nothing to measure; none of the chosen workloads has one of these methods; leave out --method, or name other workloads",
    ),
];

const NO_INTERFACE: &str =
    "nothing0: no such interface; this network namespace has none of that name; 'ip link' lists them";

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nocopy"));
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn errors_have_subject_cause_and_remedy() {
    let Some(_) = nocopy_lab::lab_or_skip() else { return };
    let namespace = nocopy_lab::Namespace::with_loopback().unwrap();
    for (arguments, expected) in ERRORS {
        let output = namespace.run(|| run(arguments));
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (said.trim_end(), output.status.code()),
            (&*format!("nocopy: {expected}"), Some(2)),
            "{arguments:?}"
        );
    }
}
