//! Snapshots of all counters, with known traffic in a private lab.

use crate::common;
use nocopy::Port;
use nocopy::integration::statistics::{Snapshot, SnapshotError};
use nocopy::port::InterfaceError;
use nocopy_lab::patience::wait_until;
use nocopy_lab::{End, Lab, Missing};

fn interface_snapshot(end: &End) -> Snapshot {
    end.namespace().run(|| Snapshot::of_interface(end.interface())).unwrap()
}

fn open_small_port(end: &End) -> Port {
    // Room for 64 packets; others that arrive before they are read are dropped.
    let set = || Port::builder(end.interface()).frame_count(64, 512).ring_sizes(64, 512).open();
    end.namespace().run(set).unwrap()
}

/// Sends that many packets, and returns when the driver at the other end has passed all of them to its
/// program.
fn send_and_wait_until_seen(port: &mut Port, to: &End, count: usize) {
    let before = packets_seen(to);
    common::queue_equal_packets(port, to, count, 100);
    assert!(port.sender().drain(common::PATIENCE).unwrap());
    wait_until("seen by the program", || packets_seen(to) - before == count as u64);
}

fn packets_seen(end: &End) -> u64 {
    let driver = interface_snapshot(end).driver;
    driver.iter().find(|counter| counter.name == "rx_queue_0_xdp_packets").unwrap().value
}

#[test]
fn traffic_counts_on_the_link_and_losses_on_the_socket() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (mut left, mut right) = (open_small_port(lab.left()), open_small_port(lab.right()));
    let before = (interface_snapshot(lab.left()), interface_snapshot(lab.right()));
    send_and_wait_until_seen(&mut left, lab.right(), 200);
    let received = right.receiver().receive_timeout(common::PATIENCE).unwrap().count();
    let change =
        (interface_snapshot(lab.left()).since(&before.0), interface_snapshot(lab.right()).since(&before.1));
    let (sent, arrived) = (change.0.link, change.1.link);
    assert_eq!((sent.tx_packets, arrived.rx_packets), (200, 200));
    // veth does not count the Ethernet header; other drivers do.
    assert!((200 * 86..=200 * 100).contains(&sent.tx_bytes) && sent.tx_bytes == arrived.rx_bytes, "{sent:?}");
    let seen = change.1.driver.iter().find(|one| one.name == "rx_queue_0_xdp_packets").unwrap();
    assert_eq!(seen.value, 200, "by the driver");
    let own = right.receiver().stats();
    assert_eq!((received, own.moved, own.dropped), (64, 64, 200 - 64));
}

#[test]
fn sockets_of_any_process_are_found_with_their_owner() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (mut left, mut right) = (open_small_port(lab.left()), open_small_port(lab.right()));
    send_and_wait_until_seen(&mut left, lab.right(), 100);
    let Some(sockets) = interface_snapshot(lab.right()).sockets else {
        let needed = "AF_XDP sockets of other processes (CONFIG_XDP_SOCKETS_DIAG)";
        return nocopy_lab::skip(&Missing::Kernel(needed));
    };
    let [socket] = &sockets[..] else { panic!("{sockets:?}") };
    let lost = right.receiver().stats().dropped;
    assert_eq!(socket.statistics.rx_lost(), lost, "both ways of asking the kernel say the same");
    assert_eq!((socket.queue, socket.statistics.rx_lost()), (0, 100 - 64));
    let (process, name) = socket.owning_process().expect("this process");
    assert!(process == std::process::id() && !name.is_empty(), "{process} {name}");
    drop(right);
    assert_eq!(
        interface_snapshot(lab.right()).sockets,
        Some(vec![]),
        "a closed socket is not there any more"
    );
}

#[test]
fn a_missing_interface_is_named() {
    let Some(lab) = Lab::builder().queues(2).build_or_skip() else { return };
    let error = lab.left().namespace().run(|| Snapshot::of_interface("nope0")).unwrap_err();
    assert!(matches!(error, SnapshotError::Interface(InterfaceError::NotFound { .. })), "{error}");
    assert!(error.to_string().contains("nope0: no such interface"), "{error}");
    lab.delete_pair().unwrap();
    let gone = lab.left().namespace().run(|| Snapshot::of_interface(lab.left().interface())).unwrap_err();
    assert!(matches!(gone, SnapshotError::Interface(InterfaceError::NotFound { .. })), "{gone}");
}
