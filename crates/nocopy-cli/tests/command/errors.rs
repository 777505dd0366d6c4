//! Errors as users read them: `subject: what failed (ERRNO); cause; what to do`, and exit code 2.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use nocopy_lab::refused::matches_sentence;
use rustix::process::Signal;

use crate::profile::can_profile_or_skip;
use crate::running::{RunningNocopy, lossy_text, nocopy_command};
use crate::sandbox::{self, Refused};

/// Calls that only older architectures have. Elsewhere their successors, which are refused beside them, once
/// more.
#[cfg(target_arch = "x86_64")]
const OLD_POLL: libc::c_long = libc::SYS_poll;
#[cfg(not(target_arch = "x86_64"))]
const OLD_POLL: libc::c_long = libc::SYS_ppoll;
#[cfg(target_arch = "x86_64")]
const OLD_EPOLL_WAIT: libc::c_long = libc::SYS_epoll_wait;
#[cfg(not(target_arch = "x86_64"))]
const OLD_EPOLL_WAIT: libc::c_long = libc::SYS_epoll_pwait;
#[cfg(target_arch = "x86_64")]
const OLD_VFORK: libc::c_long = libc::SYS_vfork;
#[cfg(not(target_arch = "x86_64"))]
const OLD_VFORK: libc::c_long = libc::SYS_clone;

/// In words of a command, `DIRECTORY` stands for a directory of the test.
const STATE: &str = "--state=DIRECTORY";

/// Commands that fail anywhere, and all that they print.
const ERRORS: &[(&[&str], &str)] = &[
    (
        &["report", "/absent.json"],
        "/absent.json: cannot be read (ENOENT); no such file or directory; name a file that exists and may be read",
    ),
    (&["man", "brew"], "man: no page for 'brew'; nocopy has no such command; 'nocopy --help' lists them"),
    (&["doctor", "nothing0"], NO_INTERFACE),
    (&["stats", "nothing0"], NO_INTERFACE),
    (&["sniff", "nothing0"], NO_INTERFACE),
    (&["record", "nothing0", "-o", "/absent/file"], NO_INTERFACE),
    (&["send", "nothing0", "--count=1"], NO_INTERFACE),
    (
        &["sniff", "lo", "--bytecode=/absent"],
        "/absent: cannot be read (ENOENT); no such file or directory; name a file that exists and may be read",
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
    (&["send", "lo", "--replay=-"], "standard input: cannot be replayed; it is empty; record it again"),
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
        "127.0.0.1:9: no receiver (ECONNREFUSED); connection refused; start 'nocopy recv tcp://:9' there, or wait longer with --connect-timeout",
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
        "--exec: no program; nothing follows the option; write the program's name, and then its arguments",
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
    (
        &["record", "lo", "-o", "-", "--rotate-size=1MiB"],
        "--rotate-size, --rotate-time: cannot be used with '-o -'; standard output is one stream; leave them out, or name a file",
    ),
    (
        &["sniff", "lo", "--bytecode=/dev/zero"],
        "/dev/zero: not read to its end; it is longer than 1 MiB, or has no end; name another file",
    ),
    (
        &["sniff", "lo", "--bytecode=/etc/passwd"],
        "/etc/passwd: cannot be read as a filter; it begins with …; the number of instructions must come first; give the output of 'tcpdump -ddd EXPRESSION'",
    ),
    (
        &["report", "/etc/passwd"],
        "/etc/passwd: cannot be read as results of nocopy; expected value at line 1 column 1; give a file of 'nocopy bench --json' or 'nocopy profile sweep --json'",
    ),
    (
        &["send", "lo", "-4", "--destination=fd00::1", "--count=1"],
        "fd00::1: not an IPv4 address; -4 or -6 asks for packets of IPv4; give another address or leave out that option",
    ),
    (
        &["send", "lo", "--payload=file:/proc/kallsyms", "--count=1"],
        "/proc/kallsyms: too long for a datagram; one carries up to 65527 bytes; name a shorter file",
    ),
    (
        &["send", "lo", "--generator=kernel", "--flows=2", "--count=1"],
        "--flows: not possible with --generator kernel; the kernel sends the same frame again and again; leave it out, or use --generator program",
    ),
    (
        &["send", "lo", "--generator=kernel", "--count=1", "--size=4000"],
        "lo: the kernel refuses to resend the frame (EINVAL); invalid argument; that needs Linux 5.18, a driver that takes redirected frames, and frames of 14 to some 3,500 bytes; use --generator program",
    ),
    (
        &["send", "lo", "--replay=/dev/null", "--speed=2x", "--timing=flat-out"],
        "--speed: cannot be used with --timing flat-out; it is about the recorded times, which flat-out ignores; leave one out",
    ),
    (
        &["send", "lo", "--replay=/dev/null", "--max-gap=2s", "--timing=flat-out"],
        "--max-gap: cannot be used with --timing flat-out; it is about the recorded times, which flat-out ignores; leave one out",
    ),
    (
        &["send", "udp://no.invalid:9", "--count=1"],
        "udp://no.invalid:9: no address to send to; …; check the name, or give an address",
    ),
    (
        &["send", "tcp://no.invalid:9", "--count=1"],
        "tcp://no.invalid:9: no address to send to; …; check the name, or give an address",
    ),
    (
        &["ping", "udp://no.invalid:9"],
        "udp://no.invalid:9: no such host; …; name one that resolves, or its address",
    ),
    (
        &["recv", "udp://no.invalid:9"],
        "udp://no.invalid:9: no address to receive at; …; name an address of this host, or leave it out",
    ),
    (
        &["recv", "tcp://no.invalid:9"],
        "tcp://no.invalid:9: no address to receive at; …; name an address of this host, or leave it out",
    ),
    (
        &["serve", "tcp://no.invalid:9"],
        "tcp://no.invalid:9: no address to answer at; …; name an address of this host, or leave it out",
    ),
    (
        &["ls", "nfs://no.invalid/x"],
        "no.invalid: has no address; …; check the name, or give the address itself",
    ),
    (
        &["send", "tcp://127.0.0.1:9", "--size=1G"],
        "--size: pieces of 1000000000 bytes are too long; 67108864 is the most; give less",
    ),
    (
        &["send", "tcp://127.0.0.1:9", "--file=-", "--streams=2"],
        "--streams: cannot be used here; it needs a pattern, or a file whose length is known, and a pipe, a device or a file of the kernel is one stream; leave it out",
    ),
    (
        &["send", "tcp://127.0.0.1:9", "--file=-", "--method=sendfile"],
        "--method sendfile: cannot be used here; it needs a --file whose length is known, so not a pipe, a device or a file of the kernel; leave it out, or name such a file",
    ),
    (
        &["send", "tcp://127.0.0.1:9", "--file=/etc/passwd", "--method=published"],
        "--method published: cannot be used here; it needs a pattern (files are sent by reference without this method, and pipes cannot be); leave it out",
    ),
    (
        &["send", "tcp://127.0.0.1:9", "--count=1", "--congestion=nothing"],
        "--congestion 'nothing': cannot be used (ENOENT); no such file or directory; choose one of /proc/sys/net/ipv4/tcp_allowed_congestion_control",
    ),
    (
        &["send", "udp://127.0.0.1:9", "--interface=lo"],
        "--interface: cannot be used here; it needs --method xdp-udp, xdp-copy or a multicast address, otherwise the host's routes decide; leave it out",
    ),
    (
        &["send", "udp://127.0.0.1:9", "--raw", "--connect-timeout=1s"],
        "--connect-timeout: cannot be used with --raw; a receiver answers only datagrams that have nocopy's header; leave out one of them",
    ),
    (
        &["send", "udp://127.0.0.1:9", "--connect-timeout=100ms", "--count=1"],
        "127.0.0.1:9: no receiver; port unreachable; start 'nocopy recv udp://:9' there (each receives from one sender), wait longer with --connect-timeout, or use --raw",
    ),
    (
        &["send", "udp://127.0.0.1:9", "--method=xdp-udp", "--interface=lo"],
        "lo: cannot be used; the kernel delivers datagrams for this host itself, not through an interface; leave out --method, or name the interface that leads to another host",
    ),
    (
        &["recv", "udp://127.0.0.1:0", "--interface=lo"],
        "--interface: cannot be used here; it needs a multicast address; leave it out, and name an address of that interface",
    ),
    (
        &["ping", "message://127.0.0.1:9", "--interface=lo"],
        "lo: cannot be used; the kernel delivers to this host's addresses itself, not through an interface; leave out --interface",
    ),
    (
        &["ping", "udp://127.0.0.1:9", "--count=1"],
        "udp://127.0.0.1:9: cannot exchange messages any more (ECONNREFUSED); connection refused; no program listens there; start 'nocopy serve'",
    ),
    (
        &["serve", "xdp://:9", "--interface=lo"],
        "xdp://:9: no address; a port of lo answers for one address, which must be given; 'ip address show lo' lists them",
    ),
    (
        &["serve", "message://127.0.0.1:1", "xdp://127.0.0.1:1", "--interface=lo"],
        "lo: cannot serve both message:// and xdp://; one port takes all queues of the interface; serve one of them over it, the other without --interface or by another process",
    ),
    (
        &["serve", "udp://127.0.0.1:9", "--interface=lo"],
        "--interface: cannot be used here; it needs message:// or xdp://; leave it out, or serve one of them",
    ),
    (
        &["serve", "tcp://192.0.2.1:9"],
        "tcp://192.0.2.1:9: cannot answer there (EADDRNOTAVAIL); cannot assign requested address; this host has no such address; 'ip address' lists them",
    ),
    (
        &["serve", "nfs", "/etc", "--listen=192.0.2.1:9", STATE],
        "192.0.2.1:9: cannot serve there (EADDRNOTAVAIL); cannot assign requested address; this host has no such address; 'ip address' lists them",
    ),
    (
        &["serve", "nfs", "/", "--state=/etc"],
        "/etc: cannot keep the key of file handles there; it is inside the exported directory, so clients could read it; name a directory elsewhere by --state",
    ),
    (
        &["serve", "nfs", "/etc", "--state=/proc/absent"],
        "/proc/absent: cannot keep the key and the index of file handles there (ENOENT); no such file or directory; name a directory that this user can write by --state",
    ),
    (
        &["send", "udp://127.0.0.1:9", "--raw", "--rate=100pps"],
        "127.0.0.1:9: no receiver; port unreachable; start the receiver first",
    ),
];

const NO_INTERFACE: &str =
    "nothing0: no such interface; this network namespace has none of that name; 'ip link' lists them";

/// Ones of commands in a sandbox.
const IN_SANDBOX: &[(&[Refused], &[&str], &str)] = &[
    (
        &[Refused::with(libc::SYS_socket, libc::EPERM, (0, libc::AF_NETLINK))],
        &["doctor"],
        "interfaces: cannot be listed (EPERM); operation not permitted; start it where netlink sockets are allowed",
    ),
    (
        &[Refused::always(libc::SYS_capset, libc::EPERM)],
        &["man"],
        "capabilities: cannot be given up (EPERM); operation not permitted; start it where capset(2) and prctl(2) are allowed",
    ),
    (
        &[Refused::with(libc::SYS_rt_sigaction, libc::EPERM, (0, libc::SIGINT))],
        &["recv", "udp://127.0.0.1:0"],
        "signals: cannot be caught (EPERM); operation not permitted; start it where sigaction(2) is allowed",
    ),
    (
        &[Refused::always(libc::SYS_getrandom, libc::EPERM)],
        &["send", "udp://127.0.0.1:9", "--count=1"],
        "send: no random number (EPERM); operation not permitted; start it where getrandom(2) is allowed",
    ),
    (
        &[Refused::always(libc::SYS_getrandom, libc::EPERM)],
        &["send", "tcp://127.0.0.1:9", "--count=1"],
        "send: no random number (EPERM); operation not permitted; start it where getrandom(2) is allowed",
    ),
    (
        &[Refused::always(libc::SYS_getsockname, libc::EPERM)],
        &["recv", "tcp://127.0.0.1:0"],
        "recv: cannot find out the address of its socket (EPERM); operation not permitted; start it where getsockname(2) is allowed",
    ),
    (
        &[Refused::always(libc::SYS_getsockname, libc::EPERM)],
        &["recv", "udp://127.0.0.1:0"],
        "recv: cannot find out the address of its socket (EPERM); operation not permitted; start it where getsockname(2) is allowed",
    ),
    (
        &[Refused::always(libc::SYS_ppoll, libc::ENOMEM), Refused::always(OLD_POLL, libc::ENOMEM)],
        &["recv", "tcp://127.0.0.1:0"],
        "recv: cannot wait for connections (ENOMEM); cannot allocate memory; free memory, or raise 'ulimit -n'",
    ),
    (
        &[
            Refused::always(libc::SYS_recvmsg, libc::ENOMEM),
            Refused::always(libc::SYS_recvfrom, libc::ENOMEM),
            Refused::always(libc::SYS_recvmmsg, libc::ENOMEM),
        ],
        &["send", "udp://127.0.0.1:9", "--count=1"],
        "send: cannot receive the receiver's answers (ENOMEM); cannot allocate memory; start it again",
    ),
    (
        &[
            Refused::always(libc::SYS_sendmsg, libc::EPERM),
            Refused::always(libc::SYS_sendto, libc::EPERM),
            Refused::always(libc::SYS_sendmmsg, libc::EPERM),
        ],
        &["send", "udp://127.0.0.1:9", "--count=1"],
        "send: 1 of the datagrams were not sent, the first to 127.0.0.1:9 (EPERM); operation not permitted; a packet filter of this host forbids it; look at 'nft list ruleset'",
    ),
    (
        &[Refused::with(libc::SYS_socket, libc::EMFILE, (0, libc::AF_INET))],
        &["send", "tcp://127.0.0.1:9", "--count=1"],
        "127.0.0.1:9: cannot connect (EMFILE); too many open files; look at 'ip route get 127.0.0.1'",
    ),
    (
        &[
            Refused::always(libc::SYS_recvmsg, libc::ENOMEM),
            Refused::always(libc::SYS_recvfrom, libc::ENOMEM),
            Refused::always(libc::SYS_recvmmsg, libc::ENOMEM),
        ],
        &["serve", "udp://127.0.0.1:7000"],
        "udp://127.0.0.1:7000: cannot answer any more (ENOMEM); cannot allocate memory; check that its interface is up, and start it again",
    ),
    (
        &[Refused::always(libc::SYS_openat2, libc::ENOSYS)],
        &["serve", "nfs", "/etc", STATE],
        "/etc: cannot be exported safely (ENOSYS); function not implemented; openat2(2) keeps clients inside the directory, and this kernel lacks it; use Linux 5.6 or newer",
    ),
    (
        &[Refused::always(libc::SYS_faccessat2, libc::ENOSYS)],
        &["serve", "nfs", "/etc", STATE],
        "serve nfs: refused; the kernel does not say what other users may do with a file (ENOSYS); function not implemented; every client could act as root; use Linux 5.8 or newer, and a sandbox (seccomp) that permits faccessat2(2), or start it as the user that owns the files",
    ),
    (
        &[Refused::always(libc::SYS_epoll_create1, libc::EMFILE)],
        &["serve", "nfs", "/etc", STATE],
        "server: cannot wait for connections (EMFILE); too many open files; raise the limit of descriptors ('ulimit -n')",
    ),
    (
        &[
            Refused::always(OLD_EPOLL_WAIT, libc::EPERM),
            Refused::always(libc::SYS_epoll_pwait, libc::EPERM),
            Refused::always(libc::SYS_epoll_pwait2, libc::EPERM),
        ],
        &["serve", "nfs", "/etc", STATE],
        "server: cannot wait for calls any more (EPERM); operation not permitted; start it again",
    ),
    (
        &[Refused::with(libc::SYS_mmap, libc::ENOMEM, (1, 16 << 20))],
        &["cat", "nfs://127.0.0.1/x"],
        "buffers: cannot be allocated (ENOMEM); cannot allocate memory; end other programs to free memory",
    ),
    (
        &[
            Refused::always(libc::SYS_recvmsg, libc::ENOMEM),
            Refused::always(libc::SYS_recvfrom, libc::ENOMEM),
            Refused::always(libc::SYS_recvmmsg, libc::ENOMEM),
        ],
        &["recv", "udp://127.0.0.1:0"],
        "recv: cannot receive (ENOMEM); cannot allocate memory; start it again",
    ),
    (
        &[Refused::always(libc::SYS_sendto, libc::EPERM)],
        &["bench", "packet-send"],
        "lab: cannot set lo up (EPERM); operation not permitted; see 'dmesg' for the kernel's messages",
    ),
    (
        &[Refused::with(libc::SYS_socket, libc::EPERM, (0, libc::AF_PACKET))],
        &["bench", "packet-send"],
        "packet-send: cannot open a packet socket (EPERM); operation not permitted; run it as root or grant CAP_NET_RAW",
    ),
    (
        &[Refused::always(libc::SYS_unshare, libc::EPERM)],
        &["bench", "packet-send"],
        "lab: needs CAP_SYS_ADMIN; this process does not have it; run it as root or grant the capability",
    ),
    (
        &[Refused::always(libc::SYS_clone3, libc::EAGAIN), Refused::always(libc::SYS_clone, libc::EAGAIN)],
        &["bench", "packet-send"],
        "network namespace: no thread to run in it (EAGAIN); resource temporarily unavailable; raise the limit on threads (ulimit -u)",
    ),
    (
        &[Refused::always(libc::SYS_unshare, libc::ENOMEM)],
        &["bench", "packet-send"],
        "network namespace: cannot … one (ENOMEM); cannot allocate memory; check that /proc is mounted and that no seccomp filter denies it",
    ),
];

/// Ones of scripts that change something before they start `$nocopy`.
const OF_SCRIPTS: &[(&str, &str)] = &[
    (
        "$nocopy man man > /dev/full",
        "standard output: cannot be written (ENOSPC); no space left on device; check where the output goes",
    ),
    (
        "flock $directory $nocopy serve nfs /etc --state=$directory",
        "…: cannot be used; another server is using it; stop that server, or name another directory by --state",
    ),
    (
        "ip link add one type veth peer name two; $nocopy ping xdp://10.0.0.1:9 --interface=one",
        "10.0.0.1:9: cannot be reached through one (ENETUNREACH); network is unreachable; 'ip route get 10.0.0.1' shows the route",
    ),
    (
        "ip link add three type veth peer name four; $nocopy send udp://10.0.0.1:9 --method=xdp-udp --interface=three",
        "10.0.0.1:9: no route there through three (ENETUNREACH); network is unreachable; look at 'ip route get 10.0.0.1 oif three'",
    ),
    (
        "for file in /usr/lib/*/libpcap.so.*; do mount --bind /dev/null $file; done; $nocopy sniff lo udp",
        "filter 'udp': cannot be compiled; neither libpcap nor tcpdump can be used, which compile filters (…); install tcpdump ('apt install tcpdump'), or give the filter as bytecode (--bytecode FILE)",
    ),
    (
        "setpriv --bounding-set=-bpf,-sys_admin $nocopy sniff lo --take",
        "lo: its packets cannot be taken from the host; xdp zero-copy: not available; lo: a port cannot be opened; this process lacks CAP_BPF; run as root, or grant it with 'setcap cap_net_raw,cap_net_admin,cap_bpf+ep PROGRAM'; leave out '--take' to only watch them",
    ),
    (
        "setpriv --bounding-set=-setuid $nocopy serve nfs /etc --writable --state=$directory",
        "serve nfs: refused; this is root without the right to act as other users (CAP_SETUID, CAP_SETGID, and a user namespace that has the users 65533 and 65534), so every client would act as root; start it with that right, or as the user that owns the files ('setpriv --reuid USER --regid GROUP --clear-groups nocopy serve nfs ...')",
    ),
    (
        "chmod 777 $directory; $nocopy serve nfs /etc --state=$directory",
        "…: cannot be used for the key of file handles; other users can change or read it (owner 0, permissions 777), and could make handles of any file; remove it, so that it is made anew, or name another directory by --state",
    ),
    (
        "setpriv --reuid=65534 --inh-caps=+dac_override --ambient-caps=+dac_override $nocopy serve nfs /etc --no-root-squash --state=$directory",
        "--no-root-squash: cannot be used; only a server started as root acts as other users; start it as root, or leave this out",
    ),
    (
        "unset HOME XDG_STATE_HOME; $nocopy serve nfs /etc",
        "--state: no directory for the key and the index of file handles; HOME is not set; name one by --state",
    ),
    (
        "mount -t tmpfs none /proc; $nocopy serve nfs /etc --state=$directory",
        "/proc: cannot be read (ENOENT); no such file or directory; mount it, because the server opens and checks files through it",
    ),
    (
        "ip link add left type veth peer name right; $nocopy bench packet-send --interface=left --peer=right",
        "left: no carrier; it is down or not connected; run 'ip link set left up' and check the cable",
    ),
    (
        "ip link add left type veth peer name right; ip link set left mtu 100 up; ip link set right up; $nocopy bench packet-send --interface=left --peer=right",
        "left: frames of 1514 B do not fit; its MTU is 100 B; run 'ip link set left mtu 1500'",
    ),
    (
        "ip link add left type veth peer name right; ip link set left up; ip link set right up; $nocopy bench udp-send --interface=left --peer=right",
        "udp-send: cannot run between two interfaces of one network namespace; the kernel delivers there by loopback; leave out --interface and --peer",
    ),
    (
        "ip link add left type veth peer name right; ip link set left up; ip link set right up; mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys; $nocopy bench --yes --pair left right",
        "--pair: the process that takes the ports and puts them back failed; it printed the reason above; compare 'ip address' and 'ip route' with what they should be",
    ),
    (
        "echo '{\"schema\": \"other/9\"}' > $directory/file; $nocopy report $directory/file",
        "…: cannot be shown; its results are of the kind 'other/9', which this version does not know; give results of 'nocopy bench' or 'nocopy profile sweep', or use the version of nocopy that wrote them",
    ),
    (
        "head -c 16777217 /dev/zero | $nocopy call message://127.0.0.1:9 --file=-",
        "request: not sent; it is longer than 16 MiB, which is the most; send it by 'nocopy send tcp://…'",
    ),
    (
        "$nocopy bench-child serve-nfs '{'",
        "task: cannot be read; EOF while parsing an object at line 1 column 1; only 'nocopy bench' itself runs this command",
    ),
    (
        "touch $directory/file; $nocopy record lo -o $directory/file",
        "…: not written; the file exists; give --force to overwrite it, or another name",
    ),
    (
        "$nocopy call message://127.0.0.1:9 --timeout=10ms x",
        "127.0.0.1:9: not connected within 10.0 ms; no answer came; check that an endpoint is bound there, and that no firewall drops UDP",
    ),
    (
        "mount -t tmpfs -o ro,mode=755 none /run; mkdir $directory/'a b'; cp /bin/true $directory/'a b'; $nocopy run --library $directory/'a b/true' -- true",
        "…/a b/true: cannot be preloaded; LD_PRELOAD ends a name at a blank or a colon, and no link to it can be made (EROFS); read-only file system; install it elsewhere, and name it with --library",
    ),
    (
        "mount -t tmpfs none /run; mkdir $directory/a:b; cp /bin/true $directory/a:b; $nocopy run --library $directory/a:b/true -- true",
        "…/a:b/true: cannot be preloaded; LD_PRELOAD ends a name at a blank or a colon, and no link to it can be made; /run has a blank or a colon, or others can write there; install it elsewhere, and name it with --library",
    ),
    (
        "cp $nocopy $directory; $directory/nocopy run -- true",
        "libnocopy_pcap.so: not found; it is not at …, and 'cargo install' installs no libraries; install the release's package nocopy (.deb), copy the file from lib/nocopy of the release's archive (.tar.gz) to one of these places, or name it with --library; in a clone 'cargo build --release' builds it",
    ),
    (
        "mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys; $nocopy bench packet-send",
        "/proc/sys/net/ipv6/conf/all/disable_ipv6: cannot be written (EROFS); read-only file system; mount /proc/sys writable",
    ),
];

/// Ones of `nocopy profile` in a sandbox.
const PROFILE_IN_SANDBOX: &[(&[Refused], &[&str], &str)] = &[
    (
        &[],
        &["profile", "--comm=no-such-name"],
        "--comm 'no-such-name': no such process; names have 15 letters at most; 'ps -e' lists them",
    ),
    (
        &[
            Refused::with(libc::SYS_bpf, libc::EACCES, (0, 17)),
            Refused::with(libc::SYS_bpf, libc::EACCES, (0, 28)),
        ],
        &["profile", "--port=9", "--duration=1ms"],
        "profile: cannot attach to the tracepoint sys_enter (EACCES); permission denied; use Linux 5.15 or later, with CAP_BPF and CAP_PERFMON",
    ),
    (
        &[Refused::with(libc::SYS_bpf, libc::EPERM, (0, 0))],
        &["profile", "--port=9", "--duration=1ms"],
        "profile: the kernel refused the BPF programs (EPERM); operation not permitted; 'nocopy doctor' shows what this kernel lacks",
    ),
    (
        &[Refused::always(libc::SYS_connect, libc::EPERM)],
        &["profile", "--", "true"],
        "true: not started; the process that was to run it ended early (exit status: 2); look at what it printed, or which signal ended it, and try again",
    ),
    (
        &[Refused::with(libc::SYS_bpf, libc::EACCES, (0, 1))],
        &["profile", "--port=9", "--duration=1ms"],
        "profile: the counters cannot be read (EACCES); permission denied; start it again",
    ),
    (
        &[Refused::always(libc::SYS_wait4, libc::ECHILD), Refused::always(libc::SYS_waitid, libc::ECHILD)],
        &["profile", "--", "true"],
        "true: cannot be waited for (ECHILD); no child processes; start nocopy where SIGCHLD is not ignored",
    ),
];

/// Ones of `nocopy profile` in scripts.
const PROFILE_IN_SCRIPTS: &[(&str, &str)] = &[
    (
        "setpriv --bounding-set=-sys_admin,-perfmon $nocopy profile --port=9 --duration=1ms",
        "profile: not permitted; this process lacks CAP_PERFMON; run it as root or grant the capability",
    ),
    (
        "mount -t tmpfs none /proc; $nocopy profile --port=9 --duration=1ms",
        "/proc/kallsyms: cannot be read (ENOENT); no such file or directory; mount /proc, and let this process read it",
    ),
    (
        "echo '0000000000000000 T start' > $directory/file; mount --bind $directory/file /proc/kallsyms; $nocopy profile --port=9 --duration=1ms",
        "profile: cannot name the kernel's functions; /proc/kallsyms hides their addresses; grant CAP_SYSLOG, and set kernel.kptr_restrict to 0 or 1",
    ),
    (
        "mount -t tmpfs none /sys/kernel/btf; $nocopy profile --port=9 --duration=1ms",
        "profile: cannot read the kernel's type information (ENOENT); no such file or directory; use a kernel built with CONFIG_DEBUG_INFO_BTF",
    ),
    (
        "unshare --pid --fork $nocopy profile --pid 1 --duration=1ms",
        "profile: cannot select a process by its number; numbers in this PID namespace differ from the host's, which BPF programs see; profile from outside the container, or by --port",
    ),
    (
        "IFS=' '; \"$nocopy\" profile $(printf -- '--port=%s ' $(seq -s' ' 17)) --duration=1ms",
        "--port: too many ports; at most 16 are counted; give fewer",
    ),
    (
        "$nocopy profile --pid=4194305",
        "--pid 4194305: no such process; it has ended, or never existed; 'ps -e' lists them",
    ),
];

/// The first of the words if datagrams are to be batched.
const BATCHES: &str = "--batch-udp";

/// Ones of `nocopy run`, which ends like env(1).
const OF_RUN: &[(&[Refused], &[&str], i32, &str)] = &[
    (
        &[],
        &["no-such-program"],
        127,
        "no-such-program: not found; there is no such program at that path, or in the directories of PATH; check the name, or give its path",
    ),
    (
        &[],
        &["/etc"],
        126,
        "/etc: cannot be run (EACCES); permission denied; name a program that this user may run",
    ),
    (
        &[Refused::always(libc::SYS_socketpair, libc::EMFILE)],
        &["true"],
        125,
        "report of the program: no socket to receive it (EMFILE); too many open files; raise 'ulimit -n', or free memory",
    ),
    (
        &[Refused::always(libc::SYS_memfd_create, libc::EMFILE)],
        &[BATCHES, "true"],
        125,
        "counts of the library: no memory file (memfd) for them (EMFILE); too many open files; free memory, or raise 'ulimit -n'",
    ),
    (
        &[],
        &[BATCHES, "sh", "-c", "echo changed 1<> /proc/self/fd/${NOCOPY_BATCH_REPORT%:*}"],
        125,
        "counts of the library: cannot be read; the program has overwritten what the library counted; run it once more",
    ),
    (
        &[Refused::always(libc::SYS_signalfd4, libc::EPERM)],
        &["true"],
        125,
        "signals: cannot be caught (EPERM); operation not permitted; start it where sigaction(2) and signalfd(2) are allowed",
    ),
    (
        &[
            Refused::always(libc::SYS_clone3, libc::EAGAIN),
            Refused::always(libc::SYS_clone, libc::EAGAIN),
            Refused::always(OLD_VFORK, libc::EAGAIN),
        ],
        &["true"],
        125,
        "true: cannot be started (EAGAIN); resource temporarily unavailable; free memory, raise 'ulimit -u', or give it fewer arguments",
    ),
    (
        &[Refused::always(libc::SYS_wait4, libc::ECHILD), Refused::always(libc::SYS_waitid, libc::ECHILD)],
        &["true"],
        125,
        "true: cannot be waited for (ECHILD); no child processes; start nocopy where SIGCHLD is not ignored",
    ),
];

/// Whether it is the line of an error.
fn is_expected_error_line(said: &str, expected: &str) -> bool {
    said.strip_prefix("nocopy: ").is_some_and(|said| matches_sentence(said, expected))
}

/// A command that fails: its name, itself, its exit code, and what it prints last.
type FailingCommand<'a> = (String, Command, i32, &'a str);

/// Runs them in a network namespace where there is only a loopback.
fn assert_commands_fail<'a>(all: impl IntoIterator<Item = FailingCommand<'a>>) {
    let namespace = nocopy_lab::Namespace::new_with_loopback().unwrap();
    let mut wrong = Vec::new();
    for (name, mut command, code, expected) in all {
        let output = namespace.run(|| RunningNocopy(Some(command.spawn().unwrap()))).wait_for_end();
        let said = lossy_text(&output.stderr);
        if !is_expected_error_line(last_line(&said), expected) || output.status.code() != Some(code) {
            wrong.push(format!("{name}: {}: {said}", output.status));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Before, a command may have announced what it does.
fn last_line(said: &str) -> &str {
    said.lines().last().unwrap_or_default()
}

fn sandboxed_command(refused: &[Refused], arguments: &[&str], directory: &Path) -> Command {
    let arguments = arguments.iter().map(|word| word.replace("DIRECTORY", directory.to_str().unwrap()));
    let arguments: Vec<_> = arguments.collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let mut command = match refused {
        [] => nocopy_command(&arguments),
        refused => sandbox::sandboxed_nocopy_command(refused, &arguments),
    };
    command.current_dir(directory);
    command
}

/// In a mount namespace of its own.
fn script_command(script: &str, directory: &Path) -> Command {
    let mut command = Command::new("unshare");
    // Variables are not split: paths may contain blanks.
    command.args(["--mount", "sh", "-c", &format!("IFS=; {script}")]);
    // The command's own network namespaces are as on the machine: its errors are what is tested.
    command.env_remove(nocopy_lab::SYSCTLS);
    command.env("nocopy", env!("CARGO_BIN_EXE_nocopy")).env("directory", directory);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn failing_sandboxed_commands<'a>(
    all: &'a [(&[Refused], &[&str], &str)],
    directory: &'a Path,
) -> impl Iterator<Item = FailingCommand<'a>> {
    all.iter().map(|(refused, arguments, expected)| {
        (format!("{refused:?} {arguments:?}"), sandboxed_command(refused, arguments, directory), 2, *expected)
    })
}

fn failing_script_commands<'a>(
    all: &'a [(&str, &str)],
    directory: &'a Path,
) -> impl Iterator<Item = FailingCommand<'a>> {
    let code = |text: &str| if text.contains("nocopy run") { 125 } else { 2 };
    all.iter().map(move |(text, expected)| {
        ((*text).to_owned(), script_command(text, directory), code(text), *expected)
    })
}

#[test]
fn errors_have_subject_cause_and_remedy() {
    if nocopy_lab::lab_or_skip().is_none() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    assert_commands_fail(ERRORS.iter().map(|(arguments, expected)| {
        (format!("{arguments:?}"), sandboxed_command(&[], arguments, directory.path()), 2, *expected)
    }));
}

#[test]
fn refused_system_calls_are_named_with_a_remedy() {
    if nocopy_lab::lab_or_skip().is_none() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    assert_commands_fail(failing_sandboxed_commands(IN_SANDBOX, directory.path()));
}

#[test]
fn missing_features_are_named_with_a_remedy() {
    if nocopy_lab::lab_or_skip().is_none() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    assert_commands_fail(failing_script_commands(OF_SCRIPTS, directory.path()));
}

#[test]
fn profile_names_missing_features() {
    if nocopy_lab::lab_or_skip().is_none() || !can_profile_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    assert_commands_fail(failing_sandboxed_commands(PROFILE_IN_SANDBOX, directory.path()));
    assert_commands_fail(failing_script_commands(PROFILE_IN_SCRIPTS, directory.path()));
}

#[test]
fn run_names_why_a_command_was_not_run() {
    if nocopy_lab::lab_or_skip().is_none() {
        return;
    }
    let [pcap, sockets] = ["libnocopy_pcap.so", "libnocopy_sockets.so"].map(|name| {
        let library = std::env::current_exe().unwrap().with_file_name(name);
        library.into_os_string().into_string().unwrap()
    });
    assert_commands_fail(OF_RUN.iter().map(|(refused, words, code, expected)| {
        let arguments = match *words {
            [BATCHES, words @ ..] => {
                [&["run", BATCHES, "--json", "--library", &sockets, "--"][..], words].concat()
            }
            words => [&["run", "--library", &pcap, "--"][..], words].concat(),
        };
        (
            format!("{refused:?} {words:?}"),
            sandboxed_command(refused, &arguments, Path::new("/")),
            *code,
            *expected,
        )
    }));
}

/// A server in a sandbox, a client in another one, and the last lines of both: `None` if it does not fail.
type ServerClientCase = [(&'static [Refused], &'static [&'static str], Option<&'static str>); 2];

const PAIRS: &[ServerClientCase] = &[
    [
        (
            &[Refused::with(libc::SYS_fcntl, libc::EMFILE, (1, libc::F_DUPFD_CLOEXEC))],
            &["recv", "tcp://127.0.0.1:7000"],
            Some(
                "127.0.0.1:…: cannot prepare a connection (EMFILE); too many open files; ask for less at a time with --receive, free memory, or raise 'ulimit -n'",
            ),
        ),
        (&[], &["send", "tcp://127.0.0.1:7000", "--count=1"], None),
    ],
    [
        (&[], &["recv", "tcp://127.0.0.1:7000"], None),
        (
            &[Refused::with(libc::SYS_setsockopt, libc::ENOMEM, (2, libc::TCP_NODELAY))],
            &["send", "tcp://127.0.0.1:7000", "--count=1"],
            Some(
                "127.0.0.1:7000: cannot prepare the connection (ENOMEM); cannot allocate memory; free memory, or raise 'ulimit -n'",
            ),
        ),
    ],
    [
        (&[], &["recv", "tcp://127.0.0.1:7000"], None),
        (
            &[Refused::always(libc::SYS_io_uring_setup, libc::EPERM)],
            &["send", "tcp://127.0.0.1:7000", "--count=1", "--method=uring-zerocopy"],
            Some(
                "127.0.0.1:7000: no socket to send from; method uring-zerocopy: not available; io_uring: refused (EPERM); operation not permitted; run it where no sandbox forbids it; leave the choice to measurement",
            ),
        ),
    ],
    [
        (&[], &["serve", "tcp://127.0.0.1:7000"], None),
        (
            &[],
            &["send", "tcp://127.0.0.1:7000", "--count=1"],
            Some(
                "127.0.0.1:7000: no receiver; the program there says what 'nocopy recv' never says; start 'nocopy recv tcp://:7000' there, or use --raw for another program",
            ),
        ),
    ],
    [
        (&[], &["recv", "tcp://127.0.0.1:7000", "--output=DIRECTORY/received"], None),
        (
            &[],
            &["send", "tcp://127.0.0.1:7000", "--streams=2"],
            Some(
                "127.0.0.1:7000: refused by the receiver; it writes the streams one after another, and several without an end have no order; give --count, or --streams 1",
            ),
        ),
    ],
    [
        (&[], &["serve", "message://127.0.0.1:7000", "--exec=sh interrupt"], None),
        (
            &[],
            &["call", "message://127.0.0.1:7000", "x"],
            Some(
                "message://127.0.0.1:7000: no response; the connection was closed; look at what 'nocopy serve' prints there",
            ),
        ),
    ],
    [
        (&[], &["serve", "message://127.0.0.1:7000", "--exec=sleep 60"], None),
        (
            &[],
            &["call", "message://127.0.0.1:7000", "--timeout=100ms", "x"],
            Some(
                "message://127.0.0.1:7000: no response; request: no response within 100 ms; the peer has the request, or will get it; ask again only if that does no harm",
            ),
        ),
    ],
    [
        (&[], &["serve", "nfs", "/etc", "--listen=127.0.0.1:7000", STATE], None),
        (
            &[],
            &["cat", "nfs://127.0.0.1/etc/absent?nfsport=7000&mountport=7000"],
            Some(
                "nfs://127.0.0.1:7000/etc: absent: cannot be found (ENOENT); no such file or directory; 'nocopy ls' shows what is there",
            ),
        ),
    ],
    [
        (&[], &["serve", "nfs", "/etc", "--listen=127.0.0.1:7000", STATE], None),
        (
            &[],
            &[
                "cp",
                "nfs://127.0.0.1/etc/hostname?nfsport=7000&mountport=7000",
                "nfs://127.0.0.1/etc/passwd?nfsport=7000&mountport=7000",
                "/absent",
            ],
            Some(
                "/absent: not a directory; several sources are copied, so the target must be one; name a directory that exists",
            ),
        ),
    ],
    [
        (&[], &["serve", "nfs", "/etc", "--listen=127.0.0.1:7000", STATE], None),
        (
            &[],
            &["cp", "nfs://127.0.0.1/etc/hostname?nfsport=7000&mountport=7000", "/proc/absent"],
            Some(
                "nfs://127.0.0.1:7000/etc/hostname: /proc/absent.nocopy-part: cannot be read or written (ENOENT); no such file or directory; check the path and the permissions",
            ),
        ),
    ],
    [
        (&[], &["serve", "nfs", "/etc", "--listen=127.0.0.1:7000", STATE], None),
        (
            &[Refused::always(libc::SYS_epoll_create1, libc::EMFILE)],
            &["cat", "nfs://127.0.0.1/etc/hostname?nfsport=7000&mountport=7000"],
            Some(
                "127.0.0.1:7000: the sockets cannot be waited for (EMFILE); too many open files; raise the limit of descriptors ('ulimit -n')",
            ),
        ),
    ],
];

#[test]
fn servers_and_clients_name_missing_resources() {
    if nocopy_lab::lab_or_skip().is_none() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("interrupt"), "kill -INT $PPID; exec sleep 60").unwrap();
    let once =
        |[(server_refused, server, server_error), (client_refused, client, client_error)]: ServerClientCase| {
            let mut wrong = Vec::new();
            let namespace = nocopy_lab::Namespace::new_with_loopback().unwrap();
            let start = |refused, arguments| {
                let mut command = sandboxed_command(refused, arguments, directory.path());
                namespace.run(move || RunningNocopy(Some(command.spawn().unwrap())))
            };
            let mut running = start(server_refused, server);
            let mut lines = BufReader::new(running.0.as_mut().unwrap().stderr.take().unwrap()).lines();
            let ready = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("ing at")));
            assert!(ready.is_some(), "{server:?} does not begin");
            let client_said = lossy_text(&start(client_refused, client).wait_for_end().stderr);
            if server_error.is_none() {
                running.signal(Signal::INT);
            }
            let server_said = lines.map_while(Result::ok).last().unwrap_or_default();
            running.wait_for_end();
            for (said, expected) in [(&*server_said, server_error), (last_line(&client_said), client_error)] {
                if expected.is_some_and(|expected| !is_expected_error_line(said, expected)) {
                    wrong.push(said.to_owned());
                }
            }
            wrong
        };
    let mut wrong = Vec::new();
    for &pair in PAIRS {
        // On a machine that stalls, a server may end before it has told its client.
        let all = std::iter::repeat_with(|| once(pair)).take(3);
        wrong.extend(all.take_while(|wrong| !wrong.is_empty()).nth(2).unwrap_or_default());
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
