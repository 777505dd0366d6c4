//! What a driver can do with XDP, by the kernel's generic netlink family `netdev` (Linux 6.3; the kernel's
//! Documentation/netlink/specs/netdev.yaml).

use std::io;

use netlink_packet_core::{
    DecodeError, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkSerializable, NlasIterator,
};
use netlink_sys::protocols::NETLINK_GENERIC;

use super::route::{self, exchange};

/// The family that knows the others (`linux/genetlink.h`).
const CONTROL_FAMILY: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
// linux/netdev.h
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_XDP_ACT_BASIC: u64 = 1 << 0;
const NETDEV_XDP_ACT_REDIRECT: u64 = 1 << 1;
const NETDEV_XDP_ACT_XSK_ZEROCOPY: u64 = 1 << 3;

/// What a driver says it can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct XdpFeatures(u64);

impl XdpFeatures {
    /// Of an interface of the calling thread's network namespace.
    pub(crate) fn of(interface_index: u32) -> io::Result<Self> {
        let socket = route::socket_of(NETLINK_GENERIC)?;
        let ask = |request: Generic| {
            let reply = exchange(&socket, request, NLM_F_REQUEST)?;
            reply.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
        };
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let family =
            ask(Generic::new(CONTROL_FAMILY, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_NAME, b"netdev\0"))?;
        let family = family.attribute(CTRL_ATTR_FAMILY_ID).ok_or_else(invalid)?;
        let family = u16::from_ne_bytes(family.try_into().map_err(|_| invalid())?);
        let index = interface_index.to_ne_bytes();
        let device = ask(Generic::new(family, NETDEV_CMD_DEV_GET, NETDEV_A_DEV_IFINDEX, &index))?;
        let features = device.attribute(NETDEV_A_DEV_XDP_FEATURES).ok_or_else(invalid)?;
        Ok(Self(u64::from_ne_bytes(features.try_into().map_err(|_| invalid())?)))
    }

    /// Programs run in the driver, and may redirect.
    pub(crate) const fn native(self) -> bool {
        let needed = NETDEV_XDP_ACT_BASIC | NETDEV_XDP_ACT_REDIRECT;
        self.0 & needed == needed
    }

    /// AF_XDP without copies.
    pub(crate) const fn zero_copy(self) -> bool {
        self.0 & NETDEV_XDP_ACT_XSK_ZEROCOPY != 0
    }
}

/// A generic netlink message: a command with attributes (`struct genlmsghdr` and what follows).
#[derive(Debug)]
struct Generic {
    family: u16,
    bytes: Vec<u8>,
}

/// Command, version and two bytes of nothing.
const HEADER_BYTES: usize = 4;

impl Generic {
    /// A command with one attribute.
    fn new(family: u16, command: u8, attribute: u16, value: &[u8]) -> Self {
        let length = u16::try_from(HEADER_BYTES + value.len()).expect("short values");
        let mut bytes = vec![command, 1, 0, 0];
        bytes.extend(length.to_ne_bytes());
        bytes.extend(attribute.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        Self { family, bytes }
    }

    fn attribute(&self, kind: u16) -> Option<Vec<u8>> {
        let attributes = NlasIterator::new(self.bytes.get(HEADER_BYTES..)?);
        let found = attributes.flatten().find(|attribute| attribute.kind() == kind)?;
        Some(found.value().to_vec())
    }
}

impl NetlinkSerializable for Generic {
    fn message_type(&self) -> u16 {
        self.family
    }

    fn buffer_len(&self) -> usize {
        self.bytes.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.bytes);
    }
}

impl NetlinkDeserializable for Generic {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self { family: header.message_type, bytes: payload.to_vec() })
    }
}

#[cfg(all(test, not(nocopy_loom)))]
mod tests {
    use super::*;

    #[test]
    fn veth_has_native_xdp_without_zero_copy_and_loopback_has_none() {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        lab.left().namespace().run(|| {
            let veth = XdpFeatures::of(lab.left().index()).unwrap();
            assert!(veth.native() && !veth.zero_copy(), "{veth:?}");
            let loopback = XdpFeatures::of(1).unwrap();
            assert!(!loopback.native() && !loopback.zero_copy(), "{loopback:?}");
        });
        assert_eq!(XdpFeatures::of(u32::MAX >> 1).unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }
}
