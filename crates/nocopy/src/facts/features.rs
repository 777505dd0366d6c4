//! What each feature needs. Errors and checks name the kernels of this list, and `docs/support.md` is made of
//! it.

use super::kernel::KernelVersion;

/// A feature that not every kernel, driver or process has.
#[derive(Debug)]
#[allow(dead_code, reason = "the library reads only the kernel; the document is made of all")]
pub(crate) struct Feature {
    pub(crate) name: &'static str,
    /// The oldest kernel that has it.
    pub(crate) kernel: KernelVersion,
    /// Interfaces on which it works.
    pub(crate) interfaces: &'static str,
    /// By their names in capabilities(7).
    pub(crate) capabilities: &'static [&'static str],
    /// `FILE: FUNCTION`, from the root of the repository: a test of it.
    pub(crate) test: &'static str,
}

/// What opening a port needs.
const OPEN_PORT: &[&str] = &["CAP_NET_RAW", "CAP_NET_ADMIN", "CAP_BPF"];

const EVERY_INTERFACE: &str = "all";

/// XDP programs are attached by link, and so detached when a process dies.
pub(crate) const PORT: Feature = Feature {
    name: "ports (AF_XDP)",
    kernel: KernelVersion(5, 9),
    interfaces: "all; native mode and zero-copy where the driver has them",
    capabilities: OPEN_PORT,
    test: "crates/nocopy/tests/ports/xdp_port.rs: packets_cross_a_veth_pair_across_many_ring_wraps",
};

/// An XDP map accepts an unbound socket.
pub(crate) const GRANT: Feature = Feature {
    name: "ports granted to a process without capabilities",
    kernel: KernelVersion(5, 10),
    interfaces: EVERY_INTERFACE,
    capabilities: OPEN_PORT,
    test: "crates/nocopy/tests/ports/grant.rs: a_process_without_privileges_receives_and_sends",
};

/// A program's test run sends real packets (live frames).
pub(crate) const LIVE_FRAMES: Feature = Feature {
    name: "packets handed to the host; filters in user space; `send --generator kernel`",
    kernel: KernelVersion(5, 18),
    interfaces: "all; the generator where redirected frames are accepted",
    capabilities: OPEN_PORT,
    test: "crates/nocopy/tests/ports/to_host.rs: the_host_answers_packets_that_a_port_hands_over",
};

/// Programs for packets of several buffers (`BPF_F_XDP_HAS_FRAGS`).
pub(crate) const FRAGMENTS: Feature = Feature {
    name: "native mode at an MTU above a page",
    kernel: KernelVersion(5, 18),
    interfaces: "drivers whose native mode takes packets of several buffers",
    capabilities: OPEN_PORT,
    test: "crates/nocopy/tests/ports/multi_buffer.rs: the_kernels_sockets_send_and_receive_jumbo_datagrams",
};

/// Packets of several frames (`XDP_USE_SG`).
pub(crate) const MULTI_BUFFER: Feature = Feature {
    name: "packets of several frames (`multi_buffer`)",
    kernel: KernelVersion(6, 6),
    interfaces: "all; in zero-copy where the driver has it",
    capabilities: OPEN_PORT,
    test: "crates/nocopy/tests/ports/multi_buffer.rs: packets_of_any_length_arrive_complete_in_every_mode",
};

/// Functions by which an XDP program asks the card about a packet.
pub(crate) const RECEIVE_METADATA: Feature = Feature {
    name: "metadata of received packets: time, hash (`receive_metadata`)",
    kernel: KernelVersion(6, 3),
    interfaces: "drivers that report it; packet rings always have the time",
    capabilities: OPEN_PORT,
    test: "crates/nocopy/tests/ports/metadata.rs: veth_reports_hashes_and_no_time",
};

pub(crate) const RECEIVE_VLAN: Feature = Feature {
    name: "the VLAN tag that a card has removed, as metadata",
    kernel: KernelVersion(6, 8),
    interfaces: "drivers that report it",
    capabilities: OPEN_PORT,
    test: "crates/nocopy/tests/ports/metadata.rs: missing_metadata_is_reported_with_its_reason",
};

/// `XDP_UMEM_TX_METADATA_LEN`; some earlier kernels had a different format.
pub(crate) const SEND_METADATA: Feature = Feature {
    name: "requests for sent packets: checksum, departure time (`send_metadata`)",
    kernel: KernelVersion(6, 11),
    interfaces: "copy mode: the checksum on all; zero-copy: drivers that offer it",
    capabilities: OPEN_PORT,
    test: "crates/nocopy/tests/ports/metadata.rs: the_kernel_completes_checksums_in_copy_mode",
};

/// tc programs are attached by link, and so detached when a process dies.
pub(crate) const TC_LINK: Feature = Feature {
    name: "bench rows into a sink that takes whole bursts (tcx)",
    kernel: KernelVersion(6, 6),
    interfaces: EVERY_INTERFACE,
    capabilities: &["CAP_NET_ADMIN", "CAP_BPF"],
    test: "crates/nocopy/src/port/tc.rs: an_unsegmented_burst_counts_as_one_packet_and_its_segments",
};

pub(crate) const TCP_ZERO_COPY: Feature = Feature {
    name: "TCP sent from the program's memory (`MSG_ZEROCOPY`)",
    kernel: KernelVersion(4, 14),
    interfaces: "cards with scatter-gather",
    capabilities: &[],
    test: "crates/nocopy-vm/src/tests/tcp_copies.rs",
};

pub(crate) const UDP_ZERO_COPY: Feature = Feature {
    name: "UDP sent from the program's memory (`MSG_ZEROCOPY`)",
    kernel: KernelVersion(5, 0),
    interfaces: "cards with scatter-gather",
    capabilities: &[],
    test: "crates/nocopy-vm/src/tests/udp_copies.rs",
};

/// `UDP_GRO`.
pub(crate) const UDP_COALESCING: Feature = Feature {
    name: "datagrams received in runs (UDP_GRO)",
    kernel: KernelVersion(5, 0),
    interfaces: EVERY_INTERFACE,
    capabilities: &[],
    test: "crates/nocopy/src/udp/kernel/tests.rs: runs_arrive_with_and_without_coalescing_at_the_peer",
};

/// `TCP_ZEROCOPY_RECEIVE`.
pub(crate) const TCP_MAPPED: Feature = Feature {
    name: "received TCP data mapped into the program (TCP_ZEROCOPY_RECEIVE)",
    kernel: KernelVersion(4, 18),
    interfaces: "packets whose data fill whole pages",
    capabilities: &[],
    test: "crates/nocopy/src/tcp/receiver/tests.rs: segments_of_whole_pages_are_mapped",
};

/// The kernel reports whether a zero-copy send copied.
pub(crate) const URING_SEND: Feature = Feature {
    name: "zero-copy sends by io_uring",
    kernel: KernelVersion(6, 2),
    interfaces: "cards with scatter-gather",
    capabilities: &[],
    test: "crates/nocopy/src/sys/uring_send/tests.rs: memory_may_change_after_its_completion",
};

/// Sends of several pieces from registered memory.
pub(crate) const URING_GATHERED_SEND: Feature = Feature {
    name: "the same with GSO, from registered memory",
    kernel: KernelVersion(6, 15),
    interfaces: "cards with scatter-gather",
    capabilities: &[],
    test: "crates/nocopy/src/sys/uring_send/tests.rs: registered_and_foreign_pieces_arrive_and_complete_once",
};

/// Only reported by `nocopy doctor`.
pub(crate) const URING_RECEIVE: Feature = Feature {
    name: "zero-copy receive by io_uring (`nocopy doctor` reports it; nothing uses it)",
    kernel: KernelVersion(6, 15),
    interfaces: "drivers that split headers and lend queues",
    capabilities: &[],
    test: "crates/nocopy/src/inspect/probe/sockets.rs: uring_receive_is_closed_unless_all_headers_are_split",
};

/// In the order of the document.
#[allow(dead_code, reason = "read by xtask, which writes the document")]
pub(crate) const ALL: &[Feature] = &[
    PORT,
    GRANT,
    LIVE_FRAMES,
    FRAGMENTS,
    MULTI_BUFFER,
    RECEIVE_METADATA,
    RECEIVE_VLAN,
    SEND_METADATA,
    TC_LINK,
    TCP_ZERO_COPY,
    TCP_MAPPED,
    UDP_ZERO_COPY,
    UDP_COALESCING,
    URING_SEND,
    URING_GATHERED_SEND,
    URING_RECEIVE,
];
