//! `nocopy bench --pair`: the ports of a veth pair leave a test's own network, and are as before at the end,
//! whatever ends the bench.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use fastrand::Rng;
use nocopy_lab::{Namespace, has_ipv6};
use rustix::process::{Signal, kill_process, kill_process_group};
use serde_json::Value;

use crate::process_state::wait_until;
use crate::running::{RunningNocopy, lossy_text, nocopy_command};
use crate::scratch::ScratchFile;

/// Two ports, as a user might have set them up, and other interfaces. The second has more of everything.
const SETUP: &str = "
    ip link add one type veth peer name two
    ip link add away type veth peer name elsewhere
    ip link set two mtu 1600 alias 'second port'
    ip link property add dev two altname second-port
    ip link set one up; ip link set two up; ip link set away up; ip link set elsewhere up
    ip address add 10.9.0.1/24 dev one
    ip address add 10.9.0.2/24 broadcast 10.9.0.255 dev two
    ip address add 10.9.0.3/24 dev two label two:3
    ip address add 10.9.1.1/30 scope link noprefixroute dev two
    ip address add 10.8.0.1/24 dev away
    ip route add 10.9.2.0/24 via 10.9.0.9 dev two metric 70 proto static
    ip route add 10.9.3.0/24 via 10.9.2.1 dev two onlink table 77
    ip route add 10.9.4.0/24 dev one src 10.9.0.1
    ip route add 10.8.4.0/24 dev away src 10.9.0.1
    ip route add multicast 239.1.0.0/16 dev one; ip route add local 10.5.0.0/16 dev one
    ip route add default via 10.8.0.2 dev away
    ip neighbour add 10.9.0.77 lladdr 02:00:00:00:00:77 dev two nud permanent
    echo 2 > /proc/sys/net/ipv4/conf/two/rp_filter
    echo 1234 > /proc/sys/net/ipv4/neigh/two/gc_stale_time";

const SETUP_IPV6: &str = "
    ip address add fd09::1/64 dev one nodad
    ip address add fd09::2/64 dev two
    ip route add fd09:1::/48 via fd09::9 dev two metric 70
    until ip route add fd09:2::/48 dev two src fd09::2 2>/dev/null; do sleep 0.1; done
    echo 0 > /proc/sys/net/ipv6/conf/two/accept_ra";

/// What a user can see of the network.
const QUERIES: &str = "
    ip -details link; ip address
    ip route show table all; ip -6 route show table all; ip neighbour show nud permanent
    grep -rs . /proc/sys/net/ipv4/conf /proc/sys/net/ipv4/neigh /proc/sys/net/ipv6/conf /proc/sys/net/ipv6/neigh || :";

fn run_script(namespace: &Namespace, script: &str) -> Output {
    namespace.run(|| Command::new("sh").args(["-ec", script]).output().unwrap())
}

fn pair_command(arguments: &[&str]) -> Command {
    nocopy_command(&[&["bench", "--pair"], arguments].concat())
}

/// A network with two ports that are cabled to each other.
struct Network(Namespace);

impl Network {
    fn make_or_skip() -> Option<Self> {
        nocopy_lab::lab_or_skip()?;
        let namespace = Namespace::new_with_loopback().unwrap();
        for script in [SETUP].into_iter().chain(has_ipv6().then_some(SETUP_IPV6)) {
            let made = run_script(&namespace, &format!("set -x\n{script}"));
            assert!(made.status.success(), "{}", lossy_text(&made.stderr));
        }
        Some(Self(namespace))
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.0.run(|| pair_command(arguments).output().unwrap())
    }

    /// What can be seen of it once duplicate address detection is over, a line each, in the order of the
    /// letters: that of addresses is not kept.
    fn settled_description(&self) -> String {
        let mut found = String::new();
        wait_until("addresses are no longer tentative", || {
            found = lossy_text(&run_script(&self.0, QUERIES).stdout);
            !found.contains("tentative") && !found.contains(" linkdown")
        });
        assert!(found.contains("10.9.0.3/24") && found.contains("gc_stale_time:1234"), "{found}");
        let mut lines: Vec<_> = found.lines().map(str::trim).collect();
        lines.sort_unstable();
        lines.join("\n")
    }

    fn assert_described_as(&self, before: &str, when: &str) {
        let after = self.settled_description();
        let only_in = |one: &str, other: &str| {
            let other: Vec<_> = other.lines().collect();
            one.lines().filter(|line| !other.contains(line)).collect::<Vec<_>>().join("\n")
        };
        let (gone, new) = (only_in(before, &after), only_in(&after, before));
        assert!(before == after, "{when}: gone:\n{gone}\nnew:\n{new}");
    }
}

/// One short round.
const QUICK: [&str; 5] = ["--yes", "--rounds", "1", "--window", "50ms"];

#[test]
fn a_pair_is_as_before_after_its_table() {
    let Some(network) = Network::make_or_skip() else { return };
    let before = network.settled_description();
    let file = ScratchFile::new("pair.json");
    let options = ["one", "two", "--json", file.path()];
    let output = network.run(&[&options[..], &QUICK].concat());
    let (table, said) = (lossy_text(&output.stdout), lossy_text(&output.stderr));
    // In a window this short a busy machine may have moved nothing.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{table}{said}");
    network.assert_described_as(&before, "after a bench");
    for row in ["| date | ", "| driver | veth |", "| speed | 10 Gbit/s |", "| modes | xdp copy native, "] {
        assert!(table.contains(row), "{row}: {table}{said}");
    }
    assert!(table.contains("| refused | xdp zero-copy: not available"), "{table}");
    let rows: Vec<_> = table.lines().filter(|line| line.starts_with("| ")).collect();
    for what in ["UDP send, 64 B", "TCP send, 64 KiB buffers", "message round trip", "capture, 64 B"] {
        assert!(rows.iter().any(|row| row.starts_with(&format!("| {what}"))), "{what}: {table}{said}");
    }
    assert!(!table.contains("not measured"), "{table}");
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let is_host = |word: &str| word == host;
    assert!(!table.split(|letter: char| letter.is_whitespace()).any(is_host), "{host}: {table}");
    for secret in ["10.9.", "10.77.", "02:"] {
        assert!(rows.iter().all(|row| !row.contains(secret)), "{secret}: {table}");
    }
    let page = ScratchFile::new("pair.md");
    let shown = nocopy_command(&["report", file.path(), "--markdown", page.path()]).output().unwrap();
    assert!(shown.status.success(), "{}", lossy_text(&shown.stderr));
    assert!(fs::read_to_string(page.path()).unwrap().contains(&rows.join("\n")), "{table}");
    let lines = fs::read_to_string(file.path()).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["command"], "nocopy bench --rounds 1 --pair A B");
    let card = lines.iter().find(|line| line["line"] == "card").unwrap();
    assert_eq!((&card["driver"], &card["speed_mbit"]), (&"veth".into(), &10_000.into()), "{card}");
    let is_refused = |mode: &Value| mode.get("refused").is_some();
    let modes: Vec<_> = card["modes"].as_array().unwrap().iter().map(is_refused).collect();
    assert_eq!(modes, [true, false, false, false], "{card}");
}

#[test]
fn pairs_that_are_in_use_are_refused() {
    let Some(network) = Network::make_or_skip() else { return };
    let before = network.settled_description();
    let refuse = |arguments: &[&str], words: &str| {
        let output = network.run(arguments);
        let said = lossy_text(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
    };
    refuse(&["one", "two"], "one, two: not taken for --pair; this was not confirmed");
    refuse(&["one", "one", "--yes"], "one: not taken for --pair; both ends are the same port");
    refuse(
        &["two", "second-port", "--yes"],
        "second-port: not taken for --pair; both ends are the same port",
    );
    refuse(&["one", "nothing0", "--yes"], "nothing0: no such interface");
    refuse(&["away", "one", "--yes"], "away: not taken for --pair; it carries the default route");
    refuse(&["one", "elsewhere", "--yes"], "one, elsewhere: not the two ends of one cable");
    let with_change = |change: &str, undo: &str, words: &str| {
        let changed = run_script(&network.0, change);
        assert!(changed.status.success(), "{change}: {}", lossy_text(&changed.stderr));
        refuse(&["one", "two", "--yes"], words);
        assert!(run_script(&network.0, undo).status.success(), "{undo}");
    };
    let (add, delete) = ("ip link add up1 link two type macvlan", "ip link delete up1");
    with_change(add, delete, "two: not taken for --pair; it belongs to a bridge, a bond or a VLAN");
    let (add, delete) =
        ("ip link add up1 type bridge; ip link set two master up1", "ip link delete up1; ip link set two up");
    with_change(add, delete, "two: not taken for --pair; it belongs to a bridge");
    let (add, delete) = ("tc qdisc add dev two root pfifo limit 9", "tc qdisc delete dev two root");
    with_change(add, delete, "two: not taken for --pair; it has a queueing discipline");
    let (add, delete) = (
        "nft add table netdev t; nft add chain netdev t c '{ type filter hook ingress device two priority 0; }'",
        "nft delete table netdev t",
    );
    with_change(add, delete, "two: not taken for --pair; it has a chain of nftables");
    let (add, delete) = (
        "nft add table netdev t; nft add chain netdev t c '{ type filter hook ingress devices = { away, one } priority 0; }'",
        "nft delete table netdev t",
    );
    with_change(add, delete, "one: not taken for --pair; it has a chain of nftables");
    network.assert_described_as(&before, "after the refusals");
    with_change("ip link set two down", "ip link set two up", "one: no carrier");
}

/// Two ports whose other ends are in one bridge.
const BRIDGED: &str = "
    ip link add switch type bridge; ip link set switch up
    for port in port1 port2; do
        ip link add $port type veth peer name to-$port
        ip link set to-$port master switch up; ip link set $port up
    done";

#[test]
fn ports_of_one_bridge_are_no_pair() {
    let Some(network) = Network::make_or_skip() else { return };
    assert!(run_script(&network.0, BRIDGED).status.success());
    let said = || lossy_text(&network.run(&["port1", "port2"]).stderr);
    let refused = said();
    assert!(refused.contains("port1, port2: not the two ends of one cable"), "{refused}");
    // One that is set to forward these frames as well cannot be told from a cable: it does connect the ports.
    let forward = "ip link set switch type bridge group_fwd_mask 0x4000";
    assert!(run_script(&network.0, forward).status.success());
    let unconfirmed = said();
    assert!(
        unconfirmed.contains("port1, port2: not taken for --pair; this was not confirmed"),
        "{unconfirmed}"
    );
}

#[test]
fn the_guard_checks_the_ports_again() {
    let Some(network) = Network::make_or_skip() else { return };
    assert!(run_script(&network.0, "tc qdisc add dev two root pfifo limit 9").status.success());
    let before = network.settled_description();
    let mut guard = nocopy_command(&["bench-child", "guard-pair", r#"{"interfaces":["one","two"]}"#]);
    let output = network.0.run(|| guard.output().unwrap());
    let said = lossy_text(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{said}");
    assert!(said.contains("two: not taken for --pair; it has a queueing discipline"), "{said}");
    network.assert_described_as(&before, "after the refusal");
}

#[test]
fn a_port_that_cannot_come_back_is_described() {
    let Some(network) = Network::make_or_skip() else { return };
    let link = lossy_text(&run_script(&network.0, "ip -brief link show two").stdout);
    let mac = link.split_whitespace().nth(2).unwrap();
    let spawn = || pair_command(&["one", "two", "--yes"]).spawn().unwrap();
    let bench = RunningNocopy(Some(network.0.run(spawn)));
    wait_until_away(&network);
    assert!(run_script(&network.0, "ip link add one type bridge").status.success());
    bench.signal(Signal::KILL);
    let said = lossy_text(&bench.wait_for_end().stderr);
    for words in [
        "interfaces: not all put back as they were; lab: cannot move nc0 into a namespace as one (EEXIST)",
        "up, mtu 1500, address 10.9.0.1/24",
        &format!("; two (link {mac}) up, mtu 1600, address 10.9."),
        ", address 10.9.0.3/24",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    // The interface that has the name now was not changed.
    let stranger = lossy_text(&run_script(&network.0, "ip address show one; ip route show dev one").stdout);
    assert!(!stranger.contains("10.9."), "{stranger}");
}

#[test]
fn a_pair_with_a_program_of_others_is_refused() {
    let Some(network) = Network::make_or_skip() else { return };
    let _port = network.0.run(|| nocopy::Port::open("two").unwrap());
    let output = network.run(&["one", "two", "--yes"]);
    let said = lossy_text(&output.stderr);
    assert!(said.contains("two: not taken for --pair; an XDP program is attached to it"), "{said}");
}

#[test]
fn a_pair_that_carries_ssh_is_refused() {
    let Some(network) = Network::make_or_skip() else { return };
    let refused = |command: &mut Command| {
        let output = network.0.run(|| command.output().unwrap());
        let said = lossy_text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        said.contains("not taken for --pair; an SSH connection uses it")
    };
    let pair = || pair_command(&["one", "two", "--yes"]);
    // By the address of this end, and by the route to the other one.
    for connection in ["10.9.5.1 50000 10.9.0.2 22", "10.9.2.9 50000 10.77.7.7 22"] {
        assert!(refused(pair().env("SSH_CONNECTION", connection)), "{connection}");
    }
    let mut elsewhere = pair_command(&["one", "elsewhere", "--yes"]);
    assert!(!refused(elsewhere.env("SSH_CONNECTION", "10.8.9.9 1 10.77.7.7 22")));
    // A process named sshd-… that holds one end of a connection.
    let server = tempfile::tempdir().unwrap();
    let server = server.path().join("sshd-session");
    fs::copy("/bin/sleep", &server).unwrap();
    let (client, accepted) = network.0.run(|| {
        let listener = TcpListener::bind("10.9.0.2:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    });
    let session = Command::new(&server)
        .arg("1000")
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(accepted)))
        .spawn()
        .unwrap();
    let _session = RunningNocopy(Some(session));
    assert!(refused(&mut pair()));
    drop(client);
}

/// Kills the bench at random moments: in one half of the runs while the ports are being moved, in the other
/// while it measures; the process alone, or with all processes that it started in its group.
fn kill_at_random_moments(kills: usize, seed: u64) {
    let Some(network) = Network::make_or_skip() else { return };
    eprintln!("to repeat it: NOCOPY_TEST_SEED={seed}");
    let (before, mut random) = (network.settled_description(), Rng::with_seed(seed));
    for kill in 0..kills {
        let delay_ms = random.u64(..if kill % 2 == 0 { 400 } else { 2000 });
        let spawn = || pair_command(&["one", "two", "--yes"]).process_group(0).spawn().unwrap();
        let bench = RunningNocopy(Some(network.0.run(spawn)));
        // At least one is killed while it has the ports.
        match kill {
            0 => wait_until_away(&network),
            _ => sleep(Duration::from_millis(delay_ms)),
        }
        match random.u32(..4) {
            0 => kill_process_group(bench.pid(), Signal::KILL).unwrap(),
            1 => kill_process_group(bench.pid(), Signal::TERM).unwrap(),
            _ => kill_process(bench.pid(), Signal::KILL).unwrap(),
        }
        // The process that puts the ports back has the same standard error: it ends last.
        let output = bench.wait_for_end();
        assert!(!output.status.success(), "it was to be killed");
        network.assert_described_as(
            &before,
            &format!("kill {kill}, after {delay_ms} ms: {}", lossy_text(&output.stderr)),
        );
    }
}

fn wait_until_away(network: &Network) {
    let is_here = || run_script(&network.0, "ip link show one").status.success();
    wait_until("the ports are taken", || !is_here());
}

#[test]
fn a_killed_bench_leaves_the_pair_as_before() {
    kill_at_random_moments(3, 1);
}

#[test]
#[ignore = "takes minutes: cargo xtask nightly pair"]
fn a_pair_survives_fifty_kills() {
    let seed = std::env::var("NOCOPY_TEST_SEED").map_or(1, |seed| seed.parse().unwrap());
    kill_at_random_moments(50, seed);
}
