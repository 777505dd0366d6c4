use nocopy::integration::statistics::Snapshot;
use nocopy_lab::End;
use serde_json::json;

use crate::guest::{Guest, traffic};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "the kernel tells of every AF_XDP socket on an interface what its own process can ask it, zero-copy and owner \
             included, and what the driver counts by queue is there (igb: ethtool, virtio_net: netdev queue statistics)",
    on: &[Topology::Igb, Topology::Virtio],
    kernels: &[Kernel::Newest],
    run,
};

const PACKETS: u32 = 1000;

fn run(guest: &Guest) -> Result<(), Failure> {
    let right_end = guest.lab().right();
    let (mut left, mut right) = traffic::open_both_ports(guest.lab())?;
    let before = snapshot(right_end)?;
    traffic::send_and_check(&mut left, &mut right, right_end, 500, PACKETS)?;
    let change = snapshot(right_end)?.since(&before);

    let sockets = change.sockets.as_ref().expect("Debian's kernels tell");
    let [socket] = &sockets[..] else { panic!("one socket: {sockets:?}") };
    assert!(socket.zero_copy && socket.queue == 0, "{socket:?}");
    assert_eq!(socket.owning_process().map(|(id, _)| id), Some(std::process::id()));
    let now = snapshot(right_end)?.sockets.expect("as before");
    assert_eq!(now[0].statistics.rx_lost(), right.receiver().stats().dropped);

    let by_driver = |name: &str| change.driver.iter().find(|one| one.name == name).map(|one| one.value);
    let queue = change.queues.iter().find(|one| one.receives && one.number == 0);
    let by_queue = |name: &str| Some(queue?.counters.iter().find(|one| one.name == name)?.value);
    let counted = match guest.topology() {
        Topology::Igb => by_driver("rx_queue_0_packets"),
        Topology::Virtio | Topology::VirtioTaps | Topology::Veth => by_queue("rx_packets"),
    };
    guest.record_measurement(&json!({ "received": PACKETS, "by_the_queue": counted }));
    assert_eq!(counted, Some(PACKETS.into()), "{change:?}");

    drop(right);
    assert_eq!(snapshot(right_end)?.sockets.map(|sockets| sockets.len()), Some(0), "a closed socket is told");
    traffic::assert_all_frames_accounted(&mut left)
}

fn snapshot(end: &End) -> Result<Snapshot, nocopy::integration::statistics::SnapshotError> {
    end.namespace().run(|| Snapshot::of_interface(end.interface()))
}
