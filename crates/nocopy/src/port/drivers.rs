//! All facts about drivers that the drivers themselves do not report.
//!
//! An entry without an effect is shown by `nocopy doctor` and handled for every driver alike; one with an
//! effect changes how a port is opened.

use std::time::Duration;

use super::Mode;
use crate::sys::interface::Interface;

/// How long a dropped sender waits for the frames it has given to the kernel. Cards report sent frames with
/// interrupts, and may delay these (`tx-usecs` of ethtool, some ms at most); without carrier a longer wait
/// would not help either.
pub(super) const DRAIN_TIMEOUT: Duration = Duration::from_millis(100);

/// How long a card may take to send the probe frame.
pub(super) const PROBE_FRAME_TIMEOUT: Duration = Duration::from_secs(1);

/// A page, in which a native XDP driver keeps room for `struct skb_shared_info` behind the packet.
pub(super) const PAGE_BYTES: u32 = 4096;

/// A fact about some drivers.
#[derive(Debug)]
pub(crate) struct DriverQuirk {
    drivers: &'static [&'static str],
    effect: QuirkEffect,
    /// What the driver does, as a verb phrase.
    pub(crate) does: &'static str,
    /// The consequence for a port.
    pub(crate) port: &'static str,
    /// The source: the kernel's source code, or a mail thread.
    #[cfg_attr(not(test), expect(dead_code, reason = "for readers, and for the test that none lacks it"))]
    source: &'static str,
    /// `FILE` or `FILE: FUNCTION`, from the root of the repository: the test that shows the fact, or that it
    /// does no harm.
    #[cfg_attr(not(test), expect(dead_code, reason = "for readers, and for the test that it exists"))]
    test: &'static str,
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

const KNOWN: &[DriverQuirk] = &[
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

pub(crate) fn known_quirks(driver: Option<&str>) -> impl Iterator<Item = &'static DriverQuirk> {
    KNOWN.iter().filter(move |entry| driver.is_some_and(|driver| entry.drivers.contains(&driver)))
}

/// Whether a driver has a known fact with this effect.
pub(crate) fn has_quirk_effect(driver: Option<&str>, effect: QuirkEffect) -> bool {
    known_quirks(driver).any(|entry| entry.effect == effect)
}

/// Whether packets of an interface may have been sent without passing a card, so that their checksums may be
/// unfinished: also if its driver is not known, as that of the loopback interface.
pub(crate) fn may_have_unfinished_checksums(interface: &Interface) -> bool {
    let driver = interface.driver.as_deref();
    driver.is_none() || has_quirk_effect(driver, QuirkEffect::UnfinishedChecksums)
}

/// Whether a port in that mode can receive packets, as far as is known.
pub(crate) fn receives_in_mode(driver: Option<&str>, mode: Mode) -> bool {
    !matches!(mode, Mode::XdpZeroCopy | Mode::XdpCopyNative)
        || !has_quirk_effect(driver, QuirkEffect::GenericOnly)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::memory::area::{Area, AreaConfig, Faults, PoolDirection};
    use crate::ring;
    use crate::sys::xsk::Descriptor;

    #[test]
    fn every_driver_quirk_has_a_source_and_an_existing_test() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for entry in KNOWN {
            assert!(
                entry.source.starts_with("linux ") || entry.source.starts_with("github.com/"),
                "{entry:?}"
            );
            let (file, function) =
                entry.test.split_once(": ").map_or((entry.test, None), |(file, name)| (file, Some(name)));
            let text = fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            let wanted =
                function.map_or("pub(crate) const TEST: Test".to_owned(), |name| format!("fn {name}()"));
            assert!(text.contains(&wanted), "{file} has no '{wanted}'");
        }
    }

    #[test]
    fn effects_apply_only_to_listed_drivers() {
        assert!(
            has_quirk_effect(Some("igb"), QuirkEffect::WholeKib)
                && !has_quirk_effect(Some("ice"), QuirkEffect::WholeKib)
        );
        assert!(
            !has_quirk_effect(None, QuirkEffect::ProbeFrame) && receives_in_mode(None, Mode::XdpZeroCopy)
        );
        let bond = |mode| receives_in_mode(Some("bonding"), mode);
        assert!(bond(Mode::XdpCopyGeneric) && !bond(Mode::XdpCopyNative) && !bond(Mode::XdpZeroCopy));
        assert_eq!(known_quirks(Some("mlx5_core")).count(), 1);
    }

    #[test]
    fn a_repeated_frame_address_is_a_fault_and_changes_no_owner() {
        let area = Area::new(AreaConfig { frame_count: 4, ..AreaConfig::default() }).unwrap();
        let (receive, send) =
            (area.pool(PoolDirection::Receive, 2).unwrap(), area.pool(PoolDirection::Send, 2).unwrap());
        let (mut fill, mut kernel_fill) = ring::pair::<u64>(4);
        assert_eq!(receive.refill(&mut fill), 2);
        let address = kernel_fill.ready_entries(1).next().unwrap() + 256;
        let received = Descriptor { address, len: 60, options: 0 };
        let mut faults = Faults::default();
        let first = receive.claimer().claim(received, &mut faults).unwrap().take();
        receive.count_claimed(1);
        assert!(receive.claimer().claim(received, &mut faults).is_none());
        assert_eq!((faults.not_lent, faults.total), (1, 1));
        let (mut kernel_completion, mut completion) = ring::pair::<u64>(4);
        let sent = send.lend(send.take_frame().unwrap()).unwrap();
        send.count_lent(1);
        for _ in 0..2 {
            kernel_completion.push(sent.address).unwrap();
        }
        kernel_completion.publish();
        assert_eq!(send.reap(&mut completion, u32::MAX, &mut faults, &mut Vec::new()), 1);
        assert_eq!((faults.not_lent, faults.total), (2, 2));
        drop(first);
        receive.balance();
        let balance = send.balance();
        assert!(balance.is_balanced() && balance.in_use == 0 && balance.lent_rx == 1, "{balance}");
    }
}
