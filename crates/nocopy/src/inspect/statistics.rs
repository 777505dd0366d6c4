//! All counters of an interface and of the ports on it, at one moment or between two.
//!
//! ```no_run
//! use nocopy::integration::statistics::Snapshot;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let before = Snapshot::of_interface("eth0")?;
//! std::thread::sleep(std::time::Duration::from_secs(1));
//! let counted = Snapshot::of_interface("eth0")?.since(&before);
//! println!("{} packets received", counted.link.rx_packets);
//! for socket in counted.sockets.iter().flatten() {
//!     println!("queue {}: {} lost", socket.queue, socket.statistics.rx_lost()); // also another process's
//! }
//! # Ok(()) }
//! ```

use nocopy_proto::errno::{ErrorCause, advice};
use std::borrow::Cow;
use std::io;
use std::time::Instant;

use crate::counter::{Counter, counters};
use crate::sys::diag::xdp_sockets;
use crate::sys::driver_counters::driver_counters;
use crate::sys::interface::InterfaceError;
use crate::sys::queue_counters::queue_counters;
use crate::sys::xsk::Statistics;
use crate::sys::{interface, route};

counters! {
    /// The kernel's counters of an interface, under the kernel's names (`struct rtnl_link_stats64`, the
    /// kernel's Documentation/networking/statistics.rst). Drivers count the same event in different counters,
    /// so sums may count a packet twice.
    pub struct LinkCounters {
        /// Packets received and passed on by the device.
        rx_packets,
        /// Packets given to the device to be sent.
        tx_packets,
        /// Bytes in packets received.
        rx_bytes,
        /// Bytes in packets sent.
        tx_bytes,
        /// Bad packets received.
        rx_errors,
        /// Packets that could not be sent because of an error of the device.
        tx_errors,
        /// Packets received and then dropped by the host: no memory, no protocol for it, or an XDP program.
        rx_dropped,
        /// Packets dropped while being sent.
        tx_dropped,
        /// Multicast packets received.
        multicast,
        /// Collisions while sending.
        collisions,
        /// Packets dropped for their length.
        rx_length_errors,
        /// Packets dropped because the device's receive queue ran over.
        rx_over_errors,
        /// Packets with a wrong frame check sequence.
        rx_crc_errors,
        /// Packets whose length is not a whole number of bytes.
        rx_frame_errors,
        /// Packets lost in the device's FIFO.
        rx_fifo_errors,
        /// Packets that the device lost because the host gave it no buffers in time: the usual loss of a busy
        /// receiver.
        rx_missed_errors,
        /// Sends given up.
        tx_aborted_errors,
        /// Sends that failed because carrier was lost.
        tx_carrier_errors,
        /// Sends that failed because the device's FIFO ran empty.
        tx_fifo_errors,
        /// Heartbeat errors of old Ethernet.
        tx_heartbeat_errors,
        /// Late collisions.
        tx_window_errors,
        /// Compressed packets received.
        rx_compressed,
        /// Compressed packets sent.
        tx_compressed,
        /// Packets dropped because the interface is an inactive part of a bond or team.
        rx_nohandler,
        /// Packets dropped because they were for another host.
        rx_otherhost_dropped,
    }
}

/// Counters of one queue of the device, if its driver has them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceQueueCounters {
    /// Whether it is a receive queue; otherwise it is a send queue.
    pub receives: bool,
    /// Its number, from 0.
    pub number: u32,
    /// Under the names of the kernel's `netdev` family (Documentation/netlink/specs/netdev.yaml).
    pub counters: Vec<Counter>,
}

/// An AF_XDP socket on the interface, of any process.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct XdpSocketStatistics {
    /// Its number in the kernel, as `ss --xdp -e` and `/proc/PID/fd` show it.
    pub inode: u32,
    /// The queue to which it is bound.
    pub queue: u32,
    /// Whether the device reads and writes its frames itself.
    pub zero_copy: bool,
    /// The kernel's counters of the socket.
    pub statistics: Statistics,
}

impl XdpSocketStatistics {
    /// Each counter of an AF_XDP socket with its name and meaning.
    pub fn counters(&self) -> impl Iterator<Item = Counter> + use<> {
        // The structure also has counters of packet rings, which AF_XDP sockets do not use.
        self.statistics.counters().filter(|counter| !counter.name.starts_with("tp_"))
    }

    /// The owning process, number and name, if this process may see it. Searches all of `/proc`.
    pub fn owning_process(&self) -> Option<(u32, String)> {
        let wanted = format!("socket:[{}]", self.inode);
        let processes = std::fs::read_dir("/proc").ok()?.flatten();
        processes
            .filter_map(|process| Some((process.path(), process.file_name().to_str()?.parse().ok()?)))
            .find(|(path, _)| {
                let descriptors = std::fs::read_dir(path.join("fd")).into_iter().flatten().flatten();
                descriptors
                    .filter_map(|descriptor| std::fs::read_link(descriptor.path()).ok())
                    .any(|target| target.as_os_str() == wanted.as_str())
            })
            .map(|(path, id)| {
                let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
                (id, name.trim_end().to_owned())
            })
    }
}

/// All counters of one interface at a moment.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Snapshot {
    /// The interface.
    pub interface: String,
    /// When they were read.
    pub taken: Instant,
    /// Counted by the kernel, for the interface.
    pub link: LinkCounters,
    /// Counted by the device, for each queue; empty if the driver or the kernel (before Linux 6.9) does not
    /// report them.
    pub queues: Vec<DeviceQueueCounters>,
    /// Counted by the driver, under its own names (`ethtool -S`). Some may be values that also decrease.
    pub driver: Vec<Counter>,
    /// Counted by the kernel, for each AF_XDP socket on the interface, in the order of queues; `None` if the
    /// kernel does not report them (built without `CONFIG_XDP_SOCKETS_DIAG`).
    pub sockets: Option<Vec<XdpSocketStatistics>>,
}

/// Why nothing could be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The interface cannot be used.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The kernel refused another operation.
    #[error("{interface}: cannot {operation}{cause}; {}", advice(.source), cause = ErrorCause(.source))]
    System {
        /// The interface.
        interface: String,
        /// The operation that failed, as a verb phrase.
        operation: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
}

impl Snapshot {
    /// The counters of `interface` in the calling thread's network namespace. Needs no privilege.
    ///
    /// # Errors
    /// No such interface, or the kernel refused to answer.
    pub fn of_interface(interface: &str) -> Result<Self, SnapshotError> {
        let refused = |operation| {
            move |source: io::Error| match InterfaceError::from_refusal(interface, &source) {
                Some(refused) => refused.into(),
                None => SnapshotError::System { interface: interface.to_owned(), operation, source },
            }
        };
        let index = interface::interface_index(interface).map_err(refused("look up the interface"))?;
        let link = route::link_counters(index).map_err(refused("read its counters"))?;
        let queues = queue_counters(index).map_err(refused("read the counters of its queues"))?;
        let driver = driver_counters(interface).map_err(refused("read the counters of its driver"))?;
        let sockets = xdp_sockets().map_err(refused("read the AF_XDP sockets on it"))?;
        Ok(Self {
            interface: interface.to_owned(),
            taken: Instant::now(),
            link: link.into(),
            queues: queues.into_iter().map(DeviceQueueCounters::from).collect(),
            driver: driver
                .into_iter()
                .map(|(name, value)| Counter { name: Cow::Owned(name), meaning: "", value })
                .collect(),
            sockets: sockets.map(|all| xdp_sockets_on(index, all)),
        })
    }

    /// The increase since `earlier`. New objects, and counters that were restarted, count in full.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut counted = self.clone();
        counted.link = self.link.since(&earlier.link);
        subtract_counters(&mut counted.driver, &earlier.driver);
        for queue in &mut counted.queues {
            let same = |other: &&DeviceQueueCounters| {
                (other.receives, other.number) == (queue.receives, queue.number)
            };
            if let Some(earlier) = earlier.queues.iter().find(same) {
                subtract_counters(&mut queue.counters, &earlier.counters);
            }
        }
        for socket in counted.sockets.iter_mut().flatten() {
            let same = |other: &&XdpSocketStatistics| other.inode == socket.inode;
            if let Some(earlier) = earlier.sockets.iter().flatten().find(same) {
                socket.statistics = socket.statistics.since(&earlier.statistics);
            }
        }
        counted
    }
}

fn subtract_counters(counters: &mut [Counter], earlier: &[Counter]) {
    for counter in counters {
        if let Some(earlier) = earlier.iter().find(|earlier| earlier.name == counter.name) {
            counter.value = Counter::since(counter.value, earlier.value);
        }
    }
}

fn xdp_sockets_on(
    interface_index: u32,
    all: Vec<crate::sys::diag::XskDiagnosis>,
) -> Vec<XdpSocketStatistics> {
    let here = all.into_iter().filter(|socket| socket.interface_index == interface_index);
    let mut sockets: Vec<XdpSocketStatistics> = here
        .map(|socket| XdpSocketStatistics {
            inode: socket.inode,
            queue: socket.queue,
            zero_copy: socket.zero_copy,
            statistics: socket.statistics,
        })
        .collect();
    sockets.sort_by_key(|socket| (socket.queue, socket.inode));
    sockets
}

impl From<crate::sys::queue_counters::QueueCounters> for DeviceQueueCounters {
    fn from(queue: crate::sys::queue_counters::QueueCounters) -> Self {
        Self { receives: queue.receives, number: queue.queue, counters: queue.counters }
    }
}

impl From<[u64; 25]> for LinkCounters {
    /// Of counters in the kernel's order.
    fn from(kernel: [u64; 25]) -> Self {
        let [
            rx_packets,
            tx_packets,
            rx_bytes,
            tx_bytes,
            rx_errors,
            tx_errors,
            rx_dropped,
            tx_dropped,
            multicast,
            collisions,
            rx_length_errors,
            rx_over_errors,
            rx_crc_errors,
            rx_frame_errors,
            rx_fifo_errors,
            rx_missed_errors,
            tx_aborted_errors,
            tx_carrier_errors,
            tx_fifo_errors,
            tx_heartbeat_errors,
            tx_window_errors,
            rx_compressed,
            tx_compressed,
            rx_nohandler,
            rx_otherhost_dropped,
        ] = kernel;
        Self {
            rx_packets,
            tx_packets,
            rx_bytes,
            tx_bytes,
            rx_errors,
            tx_errors,
            rx_dropped,
            tx_dropped,
            multicast,
            collisions,
            rx_length_errors,
            rx_over_errors,
            rx_crc_errors,
            rx_frame_errors,
            rx_fifo_errors,
            rx_missed_errors,
            tx_aborted_errors,
            tx_carrier_errors,
            tx_fifo_errors,
            tx_heartbeat_errors,
            tx_window_errors,
            rx_compressed,
            tx_compressed,
            rx_nohandler,
            rx_otherhost_dropped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot_with(link: LinkCounters, sockets: &[(u32, u64)]) -> Snapshot {
        let socket = |&(inode, rx_dropped)| {
            let statistics = Statistics { rx_dropped, ..Statistics::default() };
            XdpSocketStatistics { inode, queue: 0, zero_copy: false, statistics }
        };
        Snapshot {
            interface: "eth0".into(),
            taken: Instant::now(),
            link,
            queues: Vec::new(),
            driver: Vec::new(),
            sockets: Some(sockets.iter().map(socket).collect()),
        }
    }

    #[test]
    fn counters_of_new_and_restarted_objects_count_in_full() {
        let link =
            |rx_packets, tx_packets| LinkCounters { rx_packets, tx_packets, ..LinkCounters::default() };
        let before = snapshot_with(link(100, 100), &[(1, 5), (2, 5)]);
        let after = snapshot_with(link(150, 20), &[(1, 8), (3, 4)]);
        let change = after.since(&before);
        let LinkCounters { rx_packets, tx_packets, .. } = change.link;
        assert_eq!((rx_packets, tx_packets), (50, 20));
        let sockets = change.sockets.as_ref().unwrap();
        let lost: Vec<_> =
            sockets.iter().map(|socket| (socket.inode, socket.statistics.rx_dropped)).collect();
        assert_eq!(lost, [(1, 3), (3, 4)]);
    }

    #[test]
    fn counters_have_descriptions() {
        let all: Vec<Counter> =
            LinkCounters { rx_missed_errors: 3, ..Default::default() }.counters().collect();
        assert_eq!(all.len(), 25);
        let missed = all.iter().find(|counter| counter.name == "rx_missed_errors").unwrap();
        assert_eq!(missed.value, 3);
        assert!(missed.meaning.starts_with("Packets that the device lost"), "{}", missed.meaning);
        let two_lines =
            Statistics::default().counters().find(|counter| counter.name == "rx_fill_ring_empty_descs");
        assert!(!two_lines.unwrap().meaning.contains("  "));
    }
}
