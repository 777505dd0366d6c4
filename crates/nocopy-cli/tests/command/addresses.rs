//! Hosts with several names and addresses: each way to name an address, and answers that come from the
//! address that was asked.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::thread;

use crate::process_state::wait_until;
use crate::running::{
    PATIENCE, RunningNocopy, lossy_text, nocopy_command, piped_command, readable_directory,
};
use crate::scratch::ScratchFile;
use nocopy_lab::{End, Lab, Namespace};

/// Addresses of the right end besides those of its interface: two of IPv4 and one of IPv6.
const OTHERS: [&str; 3] = ["10.77.0.102", "10.99.0.1", "fd99::1"];

const NAMES: &str = "\
    127.0.0.1 localhost\n\
    ::1 localhost\n\
    127.0.0.2 several\n\
    127.0.0.3 several\n\
    127.0.0.4 several\n\
    ::1 closed\n\
    127.0.0.1 closed\n";

fn run_ip_command(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", lossy_text(&output.stderr));
}

fn write_sysctl(setting: &str, value: &str) {
    fs::write(format!("/proc/sys/net/{setting}"), value).unwrap();
}

/// A lab with IPv6, and link-local addresses that can be used; in each end lo is up.
fn lab_with_ipv6() -> Option<Lab> {
    if !nocopy_lab::ipv6_or_skip() {
        return None;
    }
    let lab = nocopy_lab::lab_or_skip()?;
    for end in [lab.left(), lab.right()] {
        end.namespace().run(|| {
            write_sysctl(&format!("ipv6/conf/{}/accept_dad", end.interface()), "0");
            write_sysctl(&format!("ipv6/conf/{}/disable_ipv6", end.interface()), "0");
            write_sysctl("ipv6/conf/lo/disable_ipv6", "0");
            run_ip_command("link set lo up");
            wait_until("an address of its link", || link_local_address(end).is_some());
        });
    }
    Some(lab)
}

/// The link-local address of the end, once it is not tentative.
fn link_local_address(end: &End) -> Option<String> {
    let mut show = Command::new("ip");
    show.args(["-o", "-6", "addr", "show", "dev", end.interface(), "-tentative"]);
    let lines = lossy_text(&show.output().unwrap().stdout);
    let mut words = lines.split_whitespace();
    words.find(|word| word.starts_with("fe80::"))?.split('/').next().map(str::to_owned)
}

/// A command, and the addresses that it prints before the first of other words.
fn start_and_read_addresses(mut command: Command, what: &str, count: usize) -> (RunningNocopy, Vec<String>) {
    let mut running = RunningNocopy(Some(command.spawn().unwrap()));
    let mut errors = BufReader::new(running.0.as_mut().unwrap().stderr.take().unwrap());
    let addresses = (0..count).map(|_| {
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        let at = line.trim().strip_prefix(&format!("nocopy: {what} at "));
        at.unwrap_or_else(|| panic!("{line}")).to_owned()
    });
    let addresses = addresses.collect();
    // Read on, so that it does not wait for that.
    thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()));
    (running, addresses)
}

fn start_server(arguments: &[&str], count: usize) -> (RunningNocopy, Vec<String>) {
    start_and_read_addresses(nocopy_command(&[&["serve"], arguments].concat()), "serving", count)
}

fn port_of_url(address: &str) -> &str {
    let (_, port) = address.split('/').nth(2).unwrap().rsplit_once(':').unwrap();
    port
}

fn assert_command_succeeds(command: RunningNocopy, what: &str) {
    let output = command.wait_for_end();
    assert_eq!(
        output.status.code(),
        Some(0),
        "{what}: {}{}",
        lossy_text(&output.stdout),
        lossy_text(&output.stderr)
    );
}

fn assert_pings_are_answered(target: &str) {
    assert_command_succeeds(
        RunningNocopy::start(&["ping", target, "--count", "3", "--timeout", "60s"]),
        target,
    );
}

/// Sends to each of the hosts, where a receiver at the wildcard of the right end must answer.
fn assert_transfers_arrive(lab: &Lab, scheme: &str, hosts: &[String]) {
    for host in hosts {
        let receiving = ["recv", &format!("{scheme}://:0"), "--idle", "60s"];
        let (receiver, at) = lab
            .right()
            .namespace()
            .run(|| start_and_read_addresses(nocopy_command(&receiving), "receiving", 1));
        let to = format!("{scheme}://{host}:{}", port_of_url(&at[0]));
        lab.left().namespace().run(|| {
            let sending = ["send", &to, "--count", "50", "--connect-timeout", "60s"];
            assert_command_succeeds(RunningNocopy::start(&sending), &to);
        });
        assert_command_succeeds(receiver, &to);
    }
}

#[test]
fn answers_come_from_the_requested_address() {
    let Some(lab) = lab_with_ipv6() else { return };
    let (left, right) = (lab.left(), lab.right());
    let [alias, on_lo, on_lo_v6] = OTHERS;
    right.namespace().run(|| {
        run_ip_command(&format!("addr add {alias}/32 dev {}", right.interface()));
        run_ip_command(&format!("addr add {on_lo}/32 dev lo"));
        run_ip_command(&format!("-6 addr add {on_lo_v6}/128 dev lo nodad"));
    });
    let link = right.namespace().run(|| link_local_address(right).unwrap());
    left.namespace().run(|| {
        for host in [alias, on_lo] {
            run_ip_command(&format!("route add {host}/32 via {}", right.ipv4()));
        }
        run_ip_command(&format!("-6 addr add fd77::1/64 dev {} nodad", left.interface()));
        run_ip_command(&format!("-6 route add {on_lo_v6}/128 via {link} dev {}", left.interface()));
    });
    right
        .namespace()
        .run(|| run_ip_command(&format!("-6 addr add fd77::2/64 dev {} nodad", right.interface())));
    let hosts = [
        right.ipv4().to_string(),
        alias.into(),
        on_lo.into(),
        format!("[{on_lo_v6}]"),
        "[fd77::2]".into(),
        format!("[{link}%{}]", left.interface()),
    ];
    let schemes = ["udp", "tcp", "message"];
    let services = schemes.map(|scheme| format!("{scheme}://:0"));
    let (_server, at) =
        right.namespace().run(|| start_server(&services.each_ref().map(String::as_str), services.len()));
    for (scheme, at) in schemes.iter().zip(&at) {
        for host in &hosts {
            left.namespace()
                .run(|| assert_pings_are_answered(&format!("{scheme}://{host}:{}", port_of_url(at))));
        }
    }
    ["udp", "tcp"].iter().for_each(|scheme| assert_transfers_arrive(&lab, scheme, &hosts));
    // A question to all is answered from an address of the interface.
    let broadcast = right.ipv4().octets();
    let broadcast = SocketAddr::from((
        [broadcast[0], broadcast[1], broadcast[2], 255],
        port_of_url(&at[0]).parse().unwrap(),
    ));
    let from = left.namespace().run(|| {
        let socket = UdpSocket::bind((left.ipv4(), 0)).unwrap();
        socket.set_broadcast(true).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.send_to(b"question", broadcast).unwrap();
        socket.recv_from(&mut [0; 16]).unwrap().1.ip()
    });
    assert_eq!(from, right.ipv4());
}

#[test]
fn ipv6_scopes_may_be_interface_names_or_numbers() {
    let Some(lab) = lab_with_ipv6() else { return };
    let (left, right) = (lab.left(), lab.right());
    let (here, there) =
        [left, right].map(|end| end.namespace().run(|| link_local_address(end).unwrap())).into();
    let (at_left, index) = (left.interface(), left.index());
    let directory = readable_directory();
    fs::write(directory.path().join("file"), "content").unwrap();
    let path = directory.path().to_str().unwrap();
    let state = readable_directory();
    let own = format!("[{there}%{}]:0", right.interface());
    let (_server, at) = right.namespace().run(|| {
        let services = ["udp", "tcp", "message"].map(|scheme| format!("{scheme}://{own}"));
        start_server(&services.each_ref().map(String::as_str), 3)
    });
    let (_nfs, nfs_at) = right.namespace().run(|| {
        let allow = format!("{here}%{}", right.interface());
        start_server(
            &["nfs", path, "--listen", &own, "--allow", &allow, "--state", state.path().to_str().unwrap()],
            1,
        )
    });
    for scope in [at_left.to_owned(), format!("25{at_left}"), format!("25{index}")] {
        left.namespace().run(|| {
            for at in &at {
                let scheme = at.split("://").next().unwrap();
                assert_pings_are_answered(&format!("{scheme}://[{there}%{scope}]:{}", port_of_url(at)));
            }
            let url = format!("nfs://[{there}%{scope}]:{}{path}/file", port_of_url(&nfs_at[0]));
            let output = RunningNocopy::start(&["cat", &url]).wait_for_end();
            assert_eq!(lossy_text(&output.stdout), "content", "{url}: {}", lossy_text(&output.stderr));
        });
    }
    let allowed = format!("{here}%{}", right.interface());
    for scheme in ["udp", "tcp"] {
        let receiving = ["recv", &format!("{scheme}://{own}"), "--from", &allowed, "--idle", "60s"];
        let (receiver, at) =
            right.namespace().run(|| start_and_read_addresses(nocopy_command(&receiving), "receiving", 1));
        let to = format!("{scheme}://[{there}%25{at_left}]:{}", port_of_url(&at[0]));
        let sending = ["send", &to, "--count", "50", "--connect-timeout", "60s"];
        left.namespace().run(|| assert_command_succeeds(RunningNocopy::start(&sending), &to));
        assert_command_succeeds(receiver, &to);
    }
}

#[test]
fn the_wildcard_serves_ipv4_and_ipv6_despite_bindv6only() {
    let Some(lab) = lab_with_ipv6() else { return };
    let namespace = lab.right().namespace();
    namespace.run(|| write_sysctl("ipv6/bindv6only", "1"));
    let directory = readable_directory();
    let (path, state) = (directory.path().to_str().unwrap(), readable_directory());
    for wildcard in ["", "[::]"] {
        namespace.run(|| {
            let services = ["udp", "tcp", "message"].map(|scheme| format!("{scheme}://{wildcard}:0"));
            let (_server, at) = start_server(&services.each_ref().map(String::as_str), 3);
            let listen = format!("{wildcard}:0");
            let state = state.path().join(wildcard.len().to_string());
            let nfs = ["nfs", path, "--listen", &listen, "--state", state.to_str().unwrap()];
            let (_nfs, nfs_at) = start_server(&nfs, 1);
            for host in ["127.0.0.1", "[::1]"] {
                for at in &at {
                    let scheme = at.split("://").next().unwrap();
                    assert_pings_are_answered(&format!("{scheme}://{host}:{}", port_of_url(at)));
                }
                let url = format!("nfs://{host}:{}{path}", port_of_url(&nfs_at[0]));
                assert_command_succeeds(RunningNocopy::start(&["ls", &url]), &url);
                for scheme in ["udp", "tcp"] {
                    let receiving = ["recv", &format!("{scheme}://{wildcard}:0"), "--idle", "60s"];
                    let (receiver, at) = start_and_read_addresses(nocopy_command(&receiving), "receiving", 1);
                    let to = format!("{scheme}://{host}:{}", port_of_url(&at[0]));
                    let sending = ["send", &to, "--count", "50", "--connect-timeout", "60s"];
                    assert_command_succeeds(RunningNocopy::start(&sending), &to);
                    assert_command_succeeds(receiver, &to);
                }
            }
        });
    }
}

/// A network namespace with lo, and a file that commands read as /etc/hosts.
struct HostsNamespace {
    lab: Lab,
    hosts: ScratchFile,
}

impl HostsNamespace {
    fn new() -> Option<Self> {
        let lab = lab_with_ipv6()?;
        let hosts = ScratchFile::new("hosts");
        fs::write(hosts.path(), NAMES).unwrap();
        Some(Self { lab, hosts })
    }

    fn namespace(&self) -> &Namespace {
        self.lab.right().namespace()
    }

    fn command_with_hosts_file(&self, arguments: &[&str]) -> Command {
        let script = "mount --bind \"$1\" /etc/hosts && shift && exec \"$@\"";
        let program = env!("CARGO_BIN_EXE_nocopy");
        let before = ["-m", "sh", "-c", script, "sh", self.hosts.path(), program];
        piped_command("unshare", &[&before, arguments].concat())
    }

    fn start_with_hosts_file(&self, arguments: &[&str]) -> RunningNocopy {
        RunningNocopy(Some(self.command_with_hosts_file(arguments).stdin(Stdio::null()).spawn().unwrap()))
    }
}

#[test]
fn clients_try_every_address_of_a_host_name() {
    let Some(named) = HostsNamespace::new() else { return };
    named.namespace().run(|| {
        let directory = readable_directory();
        let (path, state) = (directory.path().to_str().unwrap(), readable_directory());
        let nfs = |host: &str| {
            let state = state.path().join(host);
            let listen = format!("{host}:0");
            start_server(&["nfs", path, "--listen", &listen, "--state", state.to_str().unwrap()], 1)
        };
        // Of both names another address is tried first, where nothing listens.
        for (name, host) in [("localhost", "127.0.0.1"), ("several", "127.0.0.4"), ("several", "127.0.0.2")] {
            let services = ["udp", "tcp", "message"].map(|scheme| format!("{scheme}://{host}:0"));
            let (_server, at) = start_server(&services.each_ref().map(String::as_str), 3);
            for at in &at {
                let to = at.replace(host, name);
                assert_command_succeeds(
                    named.start_with_hosts_file(&["ping", &to, "--count", "3", "--timeout", "60s"]),
                    &to,
                );
            }
            let to = at[2].replace(host, name);
            assert_command_succeeds(
                named.start_with_hosts_file(&["call", &to, "hello", "--timeout", "60s"]),
                &to,
            );
            let (_nfs, nfs_at) = nfs(host);
            let url = format!("nfs://{name}:{}{path}", port_of_url(&nfs_at[0]));
            assert_command_succeeds(named.start_with_hosts_file(&["ls", &url]), &url);
            for (scheme, raw) in [("udp", false), ("tcp", false), ("udp", true), ("tcp", true)] {
                let receiving = ["recv", &format!("{scheme}://{host}:0"), "--idle", "60s"];
                let enough = ["--raw", "--count", "1"];
                let enough = if raw { &enough[..if scheme == "udp" { 3 } else { 1 }] } else { &[] };
                let receiving = nocopy_command(&[&receiving, enough].concat());
                let (receiver, at) = start_and_read_addresses(receiving, "receiving", 1);
                let to = at[0].replace(host, name);
                let sending = ["send", &to, "--count", "50"];
                let more: &[&str] = if raw { &["--raw"] } else { &["--connect-timeout", "60s"] };
                assert_command_succeeds(named.start_with_hosts_file(&[&sending, more].concat()), &to);
                assert_command_succeeds(receiver, &to);
            }
        }
    });
}

#[test]
fn errors_name_each_tried_address() {
    let Some(named) = HostsNamespace::new() else { return };
    named.namespace().run(|| {
        let commands = [
            &["ping", "tcp://closed:7000"][..],
            &["ping", "udp://closed:7000"],
            &["ping", "message://closed:7000"],
            &["call", "message://closed:7000", "hello"],
            &["send", "tcp://closed:7000", "--connect-timeout", "200ms"],
            &["send", "udp://closed:7000", "--connect-timeout", "200ms"],
            &["send", "udp://closed:7000", "--raw", "--count", "1"],
            &["ls", "nfs://closed:7000/srv"],
        ];
        for command in commands {
            let output = named.start_with_hosts_file(command).wait_for_end();
            let said = lossy_text(&output.stderr);
            assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{command:?}: {said}");
            for tried in [
                "[::1]:7000 connection refused (ECONNREFUSED)",
                "127.0.0.1:7000 connection refused (ECONNREFUSED)",
            ] {
                assert!(said.contains(tried), "{command:?}: {said}");
            }
        }
    });
}

#[test]
fn servers_listen_at_all_addresses_of_a_host_name() {
    let Some(named) = HostsNamespace::new() else { return };
    named.namespace().run(|| {
        let directory = readable_directory();
        let (path, state) = (directory.path().to_str().unwrap(), readable_directory());
        let serving = ["serve", "udp://localhost:0", "tcp://localhost:0", "message://localhost:0"];
        let (_server, at) = start_and_read_addresses(named.command_with_hosts_file(&serving), "serving", 6);
        at.iter().for_each(|at| assert_pings_are_answered(at));
        let state = state.path().to_str().unwrap();
        let serving =
            ["serve", "nfs", path, "--listen", "localhost:0", "--allow", "localhost", "--state", state];
        let (_nfs, at) = start_and_read_addresses(named.command_with_hosts_file(&serving), "serving", 2);
        assert_eq!(port_of_url(&at[0]), port_of_url(&at[1]));
        for host in ["127.0.0.1", "[::1]"] {
            let url = format!("nfs://{host}:{}{path}", port_of_url(&at[0]));
            assert_command_succeeds(RunningNocopy::start(&["ls", &url]), &url);
        }
        let receiving = named.command_with_hosts_file(&[
            "recv",
            "tcp://several:0",
            "--from",
            "localhost",
            "--idle",
            "60s",
        ]);
        let (receiver, at) = start_and_read_addresses(receiving, "receiving", 1);
        assert!(at[0].contains("127.0.0."), "{at:?}");
        assert_command_succeeds(
            RunningNocopy::start(&["send", &at[0], "--count", "5", "--connect-timeout", "60s"]),
            &at[0],
        );
        assert_command_succeeds(receiver, &at[0]);
    });
}
