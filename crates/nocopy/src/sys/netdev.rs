//! What a driver can do with XDP, and where its queues' interrupts are, by the kernel's generic netlink
//! family `netdev` (Linux 6.3; the kernel's Documentation/netlink/specs/netdev.yaml).

use std::io;

use super::generic::{GenericFamily, u32_attribute};

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
        let index = u32_attribute(NETDEV_A_DEV_IFINDEX, interface_index);
        let device = GenericFamily::look_up("netdev")?.request(NETDEV_CMD_DEV_GET, &[index])?;
        let features = device.number_value(NETDEV_A_DEV_XDP_FEATURES);
        Ok(Self {
            features: features.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?,
            zero_copy_buffers: device.number_value(NETDEV_A_DEV_XDP_ZC_MAX_SEGS),
            receive_metadata: device.number_value(NETDEV_A_DEV_XDP_RX_METADATA_FEATURES),
            send_metadata: device.number_value(NETDEV_A_DEV_XSK_FEATURES),
        })
    }

    /// Programs run in the driver, and may redirect.
    pub(crate) const fn has_native_xdp(self) -> bool {
        let needed = NETDEV_XDP_ACT_BASIC | NETDEV_XDP_ACT_REDIRECT;
        self.features & needed == needed
    }

    /// AF_XDP without copies.
    pub(crate) const fn has_zero_copy(self) -> bool {
        self.features & NETDEV_XDP_ACT_XSK_ZEROCOPY != 0
    }

    /// Programs take packets that lie in several buffers.
    pub(crate) const fn has_multi_buffer(self) -> bool {
        self.features & NETDEV_XDP_ACT_RX_SG != 0
    }
}

/// The interrupt of a receive queue; `None` if the driver does not report it (none does before Linux 6.8).
pub(crate) fn queue_interrupt(interface_index: u32, queue: u32) -> Option<u32> {
    let family = GenericFamily::look_up("netdev").ok()?;
    let question = [
        u32_attribute(NETDEV_A_QUEUE_IFINDEX, interface_index),
        u32_attribute(NETDEV_A_QUEUE_TYPE, NETDEV_QUEUE_TYPE_RX),
        u32_attribute(NETDEV_A_QUEUE_ID, queue),
    ];
    let instance =
        family.request(NETDEV_CMD_QUEUE_GET, &question).ok()?.number_value(NETDEV_A_QUEUE_NAPI_ID)?;
    let question = [u32_attribute(NETDEV_A_NAPI_ID, u32::try_from(instance).ok()?)];
    let interrupt = family.request(NETDEV_CMD_NAPI_GET, &question).ok()?.number_value(NETDEV_A_NAPI_IRQ)?;
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
            assert!(veth.has_native_xdp() && !veth.has_zero_copy() && veth.has_multi_buffer(), "{veth:?}");
            let loopback = XdpFeatures::of(1).unwrap();
            assert!(!loopback.has_native_xdp() && !loopback.has_zero_copy(), "{loopback:?}");
            assert_eq!(queue_interrupt(lab.left().index(), 0), None, "a veth has none");
        });
        assert_eq!(XdpFeatures::of(u32::MAX >> 1).unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }
}
