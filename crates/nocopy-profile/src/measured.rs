//! The measurements of one window of profiling: counts by tracepoints, time by samples and by the scheduler.

use std::time::Duration;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default)]
pub struct WindowMeasurement {
    pub elapsed: Duration,
    pub tasks: TaskTimes,
    pub sampling: SamplingCounts,
    pub stacks: Vec<SampledStack>,
    pub receives: CallCounts,
    pub sends: CallCounts,
    /// `poll`, `select`, `epoll_wait`: calls that wait for a socket without moving bytes. Their `bytes`
    /// are 0.
    pub polls: CallCounts,
    pub copied: CopiedBytes,
    /// All TCP sockets of the target together.
    pub tcp: TcpCounters,
    /// Packets that reached the target's TCP sockets, after GRO, and datagrams that it received.
    pub delivered_packets: u64,
    /// Packets that the machine's receive softirq handled during the window, after GRO, for any process
    /// (`/proc/net/softnet_stat`).
    pub machine_packets: u64,
    pub drops: Vec<DroppedPackets>,
    pub overhead: ProgramOverhead,
    /// Quantities that this machine cannot measure: their figures are 0, without meaning.
    pub absent: Vec<UnmeasuredQuantity>,
}

/// A quantity that could not be measured on this machine.
#[derive(Debug, Clone)]
pub struct UnmeasuredQuantity {
    pub what: &'static str,
    pub why: String,
}

/// The name of a quantity that is absent before Linux 6.3, which lacks the tracepoint.
pub(crate) const RECEIVED_BY_SOCKET: &str =
    "bytes received as the socket layer counts them, and bytes only peeked at; for UDP, all bytes received";
pub(crate) const SENT_BY_SOCKET: &str =
    "bytes sent as the socket layer counts them; for sendmmsg, all bytes sent";

#[derive(Debug, Clone, Default)]
pub struct TaskTimes {
    pub threads: u32,
    /// Processor time of all threads together, as the kernel accounts it.
    pub user: Duration,
    pub system: Duration,
    /// How often the threads left a processor, to wait or because of another task.
    pub switches: u64,
}

#[derive(Debug, Clone, Default)]
pub struct SamplingCounts {
    pub period: Duration,
    /// Samples that belong to the target or to the kernel's receive softirq.
    pub taken: u64,
    /// The clock ticks of all processors that happened, and those that were due: a virtual machine that is
    /// paused has none.
    pub ticks: u64,
    pub ticks_due: u64,
    /// Samples whose stack could not be stored.
    pub without_stack: u64,
}

/// To whom the time of a sample belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SampleOwner {
    /// A thread of the target, inside a receiving call.
    Receiving,
    /// A thread of the target, inside a sending call.
    Sending,
    /// A thread of the target, anywhere else.
    Elsewhere,
    /// Another task, or none: counts only if the stack is in an interrupt or a softirq.
    OtherTask,
}

#[derive(Debug, Clone)]
pub struct SampledStack {
    pub owner: SampleOwner,
    /// Names of the kernel's functions, innermost first; empty in user space.
    pub functions: Vec<String>,
    pub samples: u64,
}

/// System calls of one kind on the target's sockets.
#[derive(Debug, Clone, Default)]
pub struct CallCounts {
    pub count: u64,
    pub bytes: u64,
    /// Bytes moved as counted by the socket layer (`sock:sock_recv_length`, `sock:sock_send_length`), to
    /// check `bytes`.
    pub socket_bytes: u64,
    /// Time from entry to return.
    pub inside: Duration,
    /// The part of it in which the call waited.
    pub sleeping: Duration,
    /// The part of it in which another task ran although the thread was runnable.
    pub runnable: Duration,
    /// For TCP receive calls: the bytes in the receive queue when the call began, summed over `depth_count`
    /// calls, and the largest number.
    pub depth_sum_bytes: u64,
    pub depth_max_bytes: u64,
    /// The same in queued packets.
    pub depth_sum_packets: u64,
    pub depth_max_packets: u64,
    pub depth_count: u64,
    /// For TCP receive calls: bytes in the queue at entry, and bytes that the call waited for.
    pub queued_bytes: u64,
    pub waited_bytes: u64,
}

/// Bytes counted at the copy itself, not at the call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedBytes {
    /// Bytes of `skb:skb_copy_datagram_iovec` in the target's threads. UDP does not use this tracepoint.
    #[serde(rename = "tcp_bytes")]
    pub to_user_bytes: u64,
    /// Bytes received by UDP (`sock:sock_recv_length`): each is copied once, which no tracepoint shows.
    pub udp_bytes: u64,
    /// Bytes that were passed by reference instead of copied: mapped (`TCP_ZEROCOPY_RECEIVE`) or spliced into
    /// a pipe.
    pub mapped_bytes: u64,
    /// The part of `to_user_bytes` by calls that left the bytes in the queue (`MSG_PEEK`); they do not count
    /// as received.
    pub peeked_bytes: u64,
    /// Bytes of TCP that were neither copied nor mapped, because the call discarded them (`MSG_TRUNC`).
    pub discarded_bytes: u64,
}

/// TCP's own counters over the window, summed over the target's sockets.
#[derive(Debug, Clone, Default)]
pub struct TcpCounters {
    pub sockets: u32,
    /// Segments as they were on the wire, with payload or without (`segs_in`).
    pub segments_in: u64,
    /// Packets that reached TCP: several segments each after GRO (`tcp:tcp_probe`).
    pub packets_in: u64,
    /// The part of them that a process handled when it released the socket (backlog), not softirq.
    pub packets_in_backlog: u64,
    pub segments_out: u64,
    pub data_segments_out: u64,
    pub segments_retransmitted: u64,
    /// Summed over `window_count` packets.
    pub window_sum_bytes: u64,
    pub window_count: u64,
    /// The largest `SO_RCVBUF` of the sockets, and whether the kernel may still raise it.
    pub receive_buffer_bytes: u64,
    pub receive_buffer_fixed: bool,
    /// Sockets whose segments, and some of whose packets, are not counted, because more existed at a time
    /// than there is room for.
    pub lost_sockets: u64,
}

/// Packets dropped for one reason (`skb:kfree_skb`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedPackets {
    /// The kernel's name.
    pub reason: String,
    pub packets: u64,
    /// Whether the socket is one of the target; otherwise any socket of this machine.
    pub of_target: bool,
}

#[derive(Debug, Clone, Default)]
pub struct ProgramOverhead {
    /// Time of the BPF programs on all processors in the window.
    pub programs: Duration,
    pub program_runs: u64,
    /// Events that were not counted because a map was full.
    pub lost_events: u64,
}
