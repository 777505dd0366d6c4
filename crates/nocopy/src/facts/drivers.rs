//! All facts about drivers that the drivers themselves do not report; `docs/support.md` shows them.
//!
//! An entry without an effect is shown by `nocopy doctor` and handled for every driver alike; one with an
//! effect changes how a port is opened.

/// A fact about some drivers.
#[derive(Debug)]
pub(crate) struct DriverQuirk {
    pub(crate) drivers: &'static [&'static str],
    pub(crate) effect: QuirkEffect,
    /// What the driver does, as a verb phrase.
    pub(crate) does: &'static str,
    /// The consequence for a port.
    pub(crate) port: &'static str,
    /// The source: the kernel's source code, or a mail thread.
    #[allow(dead_code, reason = "for readers, and for xtask, which writes docs/support.md")]
    pub(crate) source: &'static str,
    /// `FILE` or `FILE: FUNCTION`, from the root of the repository: the test that shows the fact, or that it
    /// does no harm.
    #[allow(dead_code, reason = "for readers, and for xtask, which writes docs/support.md")]
    pub(crate) test: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuirkEffect {
    None,
    /// The device writes packets only into whole KiB of a frame.
    WholeKib,
    /// A socket bound in zero-copy mode must send a frame as proof.
    ProbeFrame,
    /// Packets come from sockets on this machine, so a capture tries the packet ring first.
    FedBySockets,
    /// Arriving packets are received in generic mode only.
    GenericOnly,
    /// Packets from a socket on this machine, or on its VM host, were never on a wire, and may lack a
    /// checksum.
    UnfinishedChecksums,
}

pub(crate) const KNOWN: &[DriverQuirk] = &[
    DriverQuirk {
        drivers: &["igb"],
        effect: QuirkEffect::WholeKib,
        does: "counts receive buffers in KiB, and in zero-copy splits longer packets into several",
        port: "frames of 4096 B for an MTU of 1500, and no zero-copy if these are too short",
        source: "linux drivers/net/ethernet/intel/igb/igb_main.c: igb_setup_srrctl (SRRCTL.BSIZEPKT)",
        test: "crates/nocopy-vm/src/tests/large_mtu.rs",
    },
    DriverQuirk {
        drivers: &["igb"],
        effect: QuirkEffect::None,
        does: "resets its link when a program is attached or detached, and drops frames that it has not sent by then",
        port: "opening takes up to 2.5 s, and dropping a sender waits up to 100 ms for its frames",
        source: "linux drivers/net/ethernet/intel/igb/igb_main.c: igb_xdp_setup (igb_close, igb_open)",
        test: "crates/nocopy-vm/src/tests/drained.rs",
    },
    DriverQuirk {
        drivers: &["igb"],
        effect: QuirkEffect::None,
        does: "returns ENETDOWN while it restarts its queues, although it is up",
        port: "a port does not report this as an error",
        source: "linux drivers/net/ethernet/intel/igb/igb_xsk.c: igb_xsk_wakeup",
        test: "crates/nocopy-vm/src/tests/queue_count.rs",
    },
    DriverQuirk {
        drivers: &["i40e", "ice", "igb", "ixgbe", "virtio_net"],
        effect: QuirkEffect::None,
        does: "takes the receive buffers of a zero-copy queue from the fill ring only, and if that is empty, may leak, stall, or deliver nothing to the host on that queue",
        port: "a port that only sends keeps the ring full, with its own frames",
        source: "github.com/anza-xyz/agave/pull/6836; linux drivers/net/ethernet/intel/igb/igb_xsk.c: igb_alloc_rx_buffers_zc; \
                 the document that says to leave it empty: linux Documentation/networking/af_xdp.rst",
        test: "crates/nocopy-vm/src/tests/send_only.rs",
    },
    DriverQuirk {
        drivers: &["mlx5_core"],
        effect: QuirkEffect::None,
        does: "has returned the address of one frame twice (ConnectX-6 Dx, Linux 6.14)",
        port: "the second is refused, and counted in Faults::not_lent",
        source: "github.com/xdp-project/bpf-examples/issues/137",
        test: "crates/nocopy/src/port/drivers.rs: a_repeated_frame_address_is_a_fault_and_changes_no_owner",
    },
    DriverQuirk {
        drivers: &["bonding"],
        effect: QuirkEffect::ProbeFrame,
        does: "reported zero-copy (Linux 6.3 to 6.7) although it could not make its members send",
        port: "zero-copy must first send a frame within 1 s",
        source: "linux drivers/net/bonding/bond_main.c: bond_xdp_set_features; \
                 lore.kernel.org/r/20240207084737.20890-1-magnus.karlsson@gmail.com",
        test: "crates/nocopy-vm/src/tests/probe_frame.rs",
    },
    DriverQuirk {
        drivers: &["bonding"],
        effect: QuirkEffect::GenericOnly,
        does: "runs a program in the drivers of its members, and does not deliver their packets to a socket of the bond",
        port: "a port that receives uses generic mode; a port on each member is faster",
        source: "linux drivers/net/bonding/bond_main.c: bond_xdp_set; net/xdp/xsk.c: xsk_rcv_check",
        test: "crates/nocopy-vm/src/tests/bond.rs",
    },
    DriverQuirk {
        drivers: &["veth", "tun", "bridge", "dummy"],
        effect: QuirkEffect::FedBySockets,
        does: "carries packets of this machine's own sockets, which XDP has to copy into pages first",
        port: "a capture tries the packet ring first",
        source: "linux drivers/net/veth.c: veth_convert_skb_to_xdp_buff; measured: nocopy bench capture, packets from sockets",
        test: "crates/nocopy/tests/ports/packet_ring.rs: the_mode_order_depends_on_interface_and_purpose",
    },
    DriverQuirk {
        drivers: &[
            "veth",
            "netkit",
            "tun",
            "bridge",
            "macvlan",
            "ipvlan",
            "802.1Q VLAN Support",
            "virtio_net",
            "vif",
        ],
        effect: QuirkEffect::UnfinishedChecksums,
        does: "delivers packets that never were on a wire with unfinished checksums",
        port: "a UDP socket over it accepts an unfinished checksum, and counts it; Sender::forward and ToHost finish it",
        source: "linux drivers/net/veth.c: veth_xmit; drivers/net/virtio_net.c: virtnet_receive_done \
                 (VIRTIO_NET_HDR_F_NEEDS_CSUM); drivers/net/xen-netfront.c: handle_incoming_queue (checksum_setup)",
        test: "crates/nocopy/tests/sockets/udp_over_port.rs: checksums_left_to_a_missing_device_are_accepted",
    },
    DriverQuirk {
        drivers: &["virtio_net"],
        effect: QuirkEffect::None,
        does: "has zero-copy only if the device has VIRTIO_F_ACCESS_PLATFORM and guest offloads are off",
        port: "otherwise a port uses another mode",
        source: "linux drivers/net/virtio_net.c: virtnet_xsk_pool_enable, virtnet_xdp_set",
        test: "crates/nocopy-vm/src/tests/zero_copy.rs",
    },
];
