//! The laboratory itself, on real traffic.
//!
//! ```text
//!   left: nc0 10.77.0.1 ──── 10.77.0.2 nc1 :right
//! ```

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use nocopy_lab::patience::{PATIENCE, uninterrupted, wait_until};
use nocopy_lab::{Error, Interface, Lab, Missing, Namespace, ThreeNodeLab, lab_or_skip};

const PORT: u16 = 7007;

fn bind_udp_socket(end: &nocopy_lab::End) -> UdpSocket {
    let socket = end.namespace().run(|| UdpSocket::bind((end.ipv4(), PORT))).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Sends a datagram to the right and its answer to the left.
fn exchange_datagrams(lab: &Lab) -> std::io::Result<()> {
    let (left, right) = (bind_udp_socket(lab.left()), bind_udp_socket(lab.right()));
    let mut bytes = [0; 16];
    left.send_to(b"ping", (lab.right().ipv4(), PORT))?;
    let (length, from) = uninterrupted(|| right.recv_from(&mut bytes))?;
    assert_eq!((&bytes[..length], from.ip()), (&b"ping"[..], lab.left().ipv4().into()));
    right.send_to(b"pong", from)?;
    let length = uninterrupted(|| left.recv(&mut bytes))?;
    assert_eq!(&bytes[..length], b"pong");
    Ok(())
}

#[test]
fn a_datagram_and_its_answer_cross_a_default_lab() {
    let Some(lab) = lab_or_skip() else { return };
    exchange_datagrams(&lab).unwrap();
}

#[test]
fn the_middle_of_a_three_node_lab_forwards_nothing() {
    let Some(chain) = ThreeNodeLab::new_or_skip() else { return };
    assert_eq!(interface_names(chain.middle()), ["lo", "nc1", "nc2"]);
    assert!(chain.middle().interfaces().unwrap().iter().all(|interface| interface.carrier));
    let (left, right) = (bind_udp_socket(chain.left()), bind_udp_socket(chain.right()));
    right.set_nonblocking(true).unwrap();
    left.send_to(b"lost", (chain.right().ipv4(), PORT)).unwrap();
    // Behind it one for all hosts of the link: when the middle has that, it has had the other.
    left.set_broadcast(true).unwrap();
    left.send_to(b"to all", (Ipv4Addr::new(10, 77, 0, 255), PORT)).unwrap();
    wait_until("received in the middle", || ip_counter(chain.middle(), "InReceives") == 1);
    assert_eq!((ip_counter(chain.middle(), "ForwDatagrams"), packet_counts(chain.right())), (0, (0, 0)));
    assert_eq!(right.recv(&mut [0; 16]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn lab_options_are_applied_to_its_interfaces() {
    let Some(lab) = Lab::builder().mtu(9000).queues(2).gro_right(true).build_or_skip() else { return };
    for (end, name) in [(lab.left(), "nc0"), (lab.right(), "nc1")] {
        let interface = end.namespace().run(|| Interface::find(name)).unwrap();
        assert_eq!((interface.mac, interface.mtu_bytes, interface.index), (end.mac(), 9000, end.index()));
        assert!(interface.carrier);
        assert_eq!(interface.queue_count, 2);
        assert_eq!(interface_names(end.namespace()), ["lo", name]);
    }
    let (left, right) = (bind_udp_socket(lab.left()), bind_udp_socket(lab.right()));
    let jumbo = [7; 9000 - 28];
    left.send_to(&jumbo, (lab.right().ipv4(), PORT)).unwrap();
    assert_eq!(uninterrupted(|| right.recv(&mut [0; 9000])).unwrap(), jumbo.len());
    drop((left, right));
    lab.right().set_gro(false).unwrap();
    exchange_datagrams(&lab).unwrap();
}

/// A counter of IPv4 in a namespace, under the kernel's name.
fn ip_counter(namespace: &Namespace, name: &str) -> u64 {
    let text = namespace.run(|| std::fs::read_to_string("/proc/thread-self/net/snmp")).unwrap();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Ip: "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let index = names.split(' ').position(|one| one == name).unwrap_or_else(|| panic!("no {name}: {names}"));
    values.split(' ').nth(index).unwrap().parse().unwrap()
}

/// Packets that an interface has received and sent.
fn packet_counts(end: &nocopy_lab::End) -> (u64, u64) {
    let text = end.namespace().run(|| std::fs::read_to_string("/proc/thread-self/net/dev")).unwrap();
    let prefix = format!("{}:", end.interface());
    let counters = text.lines().find_map(|line| line.trim_start().strip_prefix(&prefix)).unwrap();
    let counters: Vec<u64> = counters.split_whitespace().map(|number| number.parse().unwrap()).collect();
    (counters[1], counters[9])
}

fn interface_names(namespace: &Namespace) -> Vec<String> {
    namespace.interfaces().unwrap().into_iter().map(|interface| interface.name).collect()
}

#[test]
fn an_end_set_down_and_up_again_carries_datagrams() {
    let Some(lab) = lab_or_skip() else { return };
    lab.left().set_down().unwrap();
    assert!(!lab.right().has_carrier().unwrap());
    lab.left().bring_interface_up().unwrap();
    lab.wait_for_carrier().unwrap();
    lab.left().set_mtu(1400).unwrap();
    exchange_datagrams(&lab).unwrap();
}

#[test]
fn existing_interfaces_are_moved_into_a_lab() {
    let Some(first_lab) = lab_or_skip() else { return };
    // Both ends into one namespace first, as on a machine with two cards wired to each other.
    let machine = Namespace::new().unwrap();
    let machine_path = format!("/proc/{}/fd/{}", std::process::id(), machine.as_fd().as_raw_fd());
    for (end, name) in [(first_lab.left(), "card0"), (first_lab.right(), "card1")] {
        let mut mover = Command::new("ip");
        mover.args(["link", "set", end.interface(), "name", name, "netns", &machine_path]);
        assert!(end.namespace().run(|| mover.status()).unwrap().success());
    }
    let lab = machine.run(|| Lab::of_interfaces("card0", "card1")).unwrap();
    assert_eq!(interface_names(&machine), ["lo"]);
    assert_eq!(
        (interface_names(lab.left().namespace()), lab.left().mac()),
        (vec!["lo".into(), "nc0".into()], first_lab.left().mac())
    );
    exchange_datagrams(&lab).unwrap();
    let Err(Error::Netlink { source, .. }) = machine.run(|| Lab::of_interfaces("card0", "card1")) else {
        panic!("they are gone")
    };
    assert_eq!(source.raw_os_error(), Some(19), "ENODEV");
}

#[test]
fn changing_a_deleted_interface_fails_with_enodev() {
    let Some(lab) = lab_or_skip() else { return };
    lab.delete_pair().unwrap();
    assert_eq!(interface_names(lab.right().namespace()), ["lo"]);
    let Err(Error::Netlink { source, operation }) = lab.left().set_mtu(1400) else { panic!("it is gone") };
    assert_eq!(source.raw_os_error(), Some(19), "ENODEV, for: {operation}");
}

/// Proves that nothing is sent by an idle lab: a stray frame would spoil every count. However long it is
/// idle: what the kernel sends on its own, and when it likes, is not there, namely IPv6, ARP, and memberships
/// to report.
#[test]
fn an_idle_lab_sends_no_packets() {
    let Some(lab) = lab_or_skip() else { return };
    for end in [lab.left(), lab.right()] {
        let read = |path: &str| end.namespace().run(|| std::fs::read_to_string(path)).unwrap();
        let setting = |path: &str| read(&format!("/proc/sys/net/{path}")).trim().to_owned();
        let name = end.interface();
        assert_eq!(setting(&format!("ipv6/conf/{name}/disable_ipv6")), "1");
        assert_eq!(
            read("/proc/thread-self/net/if_inet6").lines().filter(|line| line.contains(name)).count(),
            0
        );
        assert_eq!(setting(&format!("ipv4/conf/{name}/arp_notify")), "0");
        // 224.0.0.1, all hosts: the only group that every host is in and none reports (RFC 2236 section 6).
        let groups = read("/proc/thread-self/net/igmp");
        let reported = groups.lines().filter(|line| line.starts_with("\t") && !line.contains("010000E0"));
        assert_eq!(reported.count(), 0, "{groups}");
    }
    // At least so long; and then a conversation is all there is.
    sleep(Duration::from_millis(300));
    assert_eq!((packet_counts(lab.left()), packet_counts(lab.right())), ((0, 0), (0, 0)), "received, sent");
    exchange_datagrams(&lab).unwrap();
    assert_eq!((packet_counts(lab.left()), packet_counts(lab.right())), ((1, 1), (1, 1)), "received, sent");
}

#[test]
fn lab_creation_names_a_missing_capability() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    if lab_or_skip().is_none() {
        return;
    }
    for (capability, name) in
        [(CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"), (CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN")]
    {
        // Capabilities belong to the thread; this one ends with the closure.
        let refused = std::thread::spawn(move || {
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(capability);
            set_capabilities(None, sets).unwrap();
            Lab::new().unwrap_err()
        });
        assert_eq!(refused.join().unwrap().missing(), Some(&Missing::Capability(name)));
    }
}

#[test]
#[should_panic(expected = "inside")]
fn a_panic_in_a_namespace_propagates() {
    let Some(lab) = lab_or_skip() else { panic!("inside, had there been a lab") };
    lab.left().namespace().run(|| panic!("inside"));
}

/// Proves that a killed process leaves neither namespace nor interface.
///
/// A namespace cannot be looked up once nobody refers to it. But the parent may keep *one* of the two: when
/// the other one is destroyed its end of the pair goes, and with it the end in the one that is kept.
#[test]
fn a_killed_process_leaves_no_namespace_or_interface() {
    if lab_or_skip().is_none() {
        return;
    }
    let host = Namespace::current().unwrap();
    let before = host.interfaces().unwrap();
    for side in ["left", "right"] {
        let mut holder = RunningLabHolder::start();
        let path = format!("/proc/{}/fd/{}", holder.child.id(), holder.read_namespace_descriptor(side));
        let keeper = namespace_from_descriptor(File::open(path).unwrap());
        assert_eq!(keeper.interfaces().unwrap().len(), 2, "lo and one end while the child lives");
        assert!(holder.child.try_wait().unwrap().is_none(), "it must die of the kill");
        drop(holder);
        wait_until("rid of the other namespace", || interface_names(&keeper) == ["lo"]);
    }
    assert_eq!(host.interfaces().unwrap(), before);
}

fn namespace_from_descriptor(descriptor: File) -> Namespace {
    std::thread::spawn(move || {
        use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
        move_into_link_name_space(descriptor.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        Namespace::current().unwrap()
    })
    .join()
    .unwrap()
}

/// This test binary again, as [`child_process_holds_a_lab_until_killed`].
struct RunningLabHolder {
    child: Child,
    /// Kept open: a child that cannot print any more would die of that instead of the kill.
    output: BufReader<ChildStdout>,
}

impl RunningLabHolder {
    fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_process_holds_a_lab_until_killed", "--ignored", "--nocapture"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// The descriptor number of one of its namespaces.
    fn read_namespace_descriptor(&mut self, side: &str) -> i32 {
        let prefix = format!("{side}=");
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if let Some((_, number)) = line.split_once(&prefix) {
                return number.trim().parse().unwrap();
            }
            line.clear();
        }
        panic!("the child never said it had a lab");
    }
}

impl Drop for RunningLabHolder {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Not a test: the child of [`a_killed_process_leaves_no_namespace_or_interface`].
#[test]
#[ignore = "run by a_killed_process_leaves_no_namespace_or_interface, and killed by it"]
fn child_process_holds_a_lab_until_killed() {
    let lab = Lab::new().unwrap();
    println!("\nleft={}", lab.left().namespace().as_fd().as_raw_fd());
    println!("right={}", lab.right().namespace().as_fd().as_raw_fd());
    sleep(Duration::from_secs(120));
}
