//! What a driver can do with XDP, and where its queues' interrupts are, by the kernel's generic netlink
//! family `netdev` (Linux 6.3; the kernel's Documentation/netlink/specs/netdev.yaml).

use std::io;

use super::generic::{Family, number};

// linux/netdev.h
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_CMD_QUEUE_GET: u8 = 10;
const NETDEV_CMD_NAPI_GET: u8 = 11;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_A_DEV_XDP_ZC_MAX_SEGS: u16 = 4;
const NETDEV_A_DEV_XDP_RX_METADATA_FEATURES: u16 = 5;
const NETDEV_A_DEV_XSK_FEATURES: u16 = 6;
const NETDEV_A_QUEUE_ID: u16 = 1;
const NETDEV_A_QUEUE_IFINDEX: u16 = 2;
const NETDEV_A_QUEUE_TYPE: u16 = 3;
const NETDEV_A_QUEUE_NAPI_ID: u16 = 4;
const NETDEV_QUEUE_TYPE_RX: u32 = 0;
const NETDEV_A_NAPI_ID: u16 = 2;
const NETDEV_A_NAPI_IRQ: u16 = 3;
const NETDEV_XDP_ACT_BASIC: u64 = 1 << 0;
const NETDEV_XDP_ACT_REDIRECT: u64 = 1 << 1;
const NETDEV_XDP_ACT_XSK_ZEROCOPY: u64 = 1 << 3;
const NETDEV_XDP_ACT_RX_SG: u64 = 1 << 5;

/// Metadata of received packets that a driver gives to an XDP program (`enum netdev_xdp_rx_metadata`), by
/// bit.
pub(crate) const RECEIVE_METADATA: [&str; 3] = ["timestamp", "hash", "VLAN tag"];

/// Requests of sent AF_XDP packets that a driver fulfils (`enum netdev_xsk_flags`), by bit.
pub(crate) const SEND_METADATA: [&str; 3] = ["timestamp", "checksum", "launch time"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct XdpFeatures {
    features: u64,
    /// The most buffers of a packet in zero-copy; `None` if the kernel does not report it.
    pub(crate) zero_copy_buffers: Option<u64>,
    /// Bits for [`RECEIVE_METADATA`]; `None` before Linux 6.6.
    pub(crate) receive_metadata: Option<u64>,
    /// Bits for [`SEND_METADATA`]; `None` before Linux 6.8.
    pub(crate) send_metadata: Option<u64>,
}

impl XdpFeatures {
    /// The features of an interface of the calling thread's network namespace.
    pub(crate) fn of(interface_index: u32) -> io::Result<Self> {
        let index = number(NETDEV_A_DEV_IFINDEX, interface_index);
        let device = Family::named("netdev")?.request(NETDEV_CMD_DEV_GET, &[index])?;
        let features = device.number(NETDEV_A_DEV_XDP_FEATURES);
        Ok(Self {
            features: features.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?,
            zero_copy_buffers: device.number(NETDEV_A_DEV_XDP_ZC_MAX_SEGS),
            receive_metadata: device.number(NETDEV_A_DEV_XDP_RX_METADATA_FEATURES),
            send_metadata: device.number(NETDEV_A_DEV_XSK_FEATURES),
        })
    }

    /// Programs run in the driver, and may redirect.
    pub(crate) const fn native(self) -> bool {
        let needed = NETDEV_XDP_ACT_BASIC | NETDEV_XDP_ACT_REDIRECT;
        self.features & needed == needed
    }

    /// AF_XDP without copies.
    pub(crate) const fn zero_copy(self) -> bool {
        self.features & NETDEV_XDP_ACT_XSK_ZEROCOPY != 0
    }

    /// Programs take packets that lie in several buffers.
    pub(crate) const fn several_buffers(self) -> bool {
        self.features & NETDEV_XDP_ACT_RX_SG != 0
    }
}

/// The interrupt of a receive queue; `None` if the driver does not report it (none does before Linux 6.8).
pub(crate) fn interrupt_of(interface_index: u32, queue: u32) -> Option<u32> {
    let family = Family::named("netdev").ok()?;
    let question = [
        number(NETDEV_A_QUEUE_IFINDEX, interface_index),
        number(NETDEV_A_QUEUE_TYPE, NETDEV_QUEUE_TYPE_RX),
        number(NETDEV_A_QUEUE_ID, queue),
    ];
    let instance = family.request(NETDEV_CMD_QUEUE_GET, &question).ok()?.number(NETDEV_A_QUEUE_NAPI_ID)?;
    let question = [number(NETDEV_A_NAPI_ID, u32::try_from(instance).ok()?)];
    let interrupt = family.request(NETDEV_CMD_NAPI_GET, &question).ok()?.number(NETDEV_A_NAPI_IRQ)?;
    u32::try_from(interrupt).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn veth_has_native_xdp_without_zero_copy_and_loopback_has_none() {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        lab.left().namespace().run(|| {
            let veth = XdpFeatures::of(lab.left().index()).unwrap();
            assert!(veth.native() && !veth.zero_copy() && veth.several_buffers(), "{veth:?}");
            let loopback = XdpFeatures::of(1).unwrap();
            assert!(!loopback.native() && !loopback.zero_copy(), "{loopback:?}");
            assert_eq!(interrupt_of(lab.left().index(), 0), None, "a veth has none");
        });
        assert_eq!(XdpFeatures::of(u32::MAX >> 1).unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }
}
