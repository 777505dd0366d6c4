//! What only ports ask of the tables.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use super::{LINK_HEADER_BYTES, attribute_in, link_by_index, neighbour_request, read_link, route_socket};
use crate::sys::netlink::{NetlinkMessage, attributes_in, request_reply, u32_at};

/// The kernel acknowledges a request that has no answer (netlink(7)).
const NLM_F_ACK: u16 = libc::NLM_F_ACK as u16;

// linux/if_link.h
const IFLA_XDP_DRV_PROG_ID: u16 = 5;
const IFLA_XDP_SKB_PROG_ID: u16 = 6;

/// Counters in `struct rtnl_link_stats64`; older kernels have fewer.
const COUNTERS: usize = 25;

/// Whether an interface has carrier, meaning that the kernel sends on it from now on.
///
/// Two other sources do not suffice: ethtool's comes from the driver, and some drivers (igb) check the cable
/// before the kernel knows; `IFF_RUNNING` lags by up to a second.
pub(crate) fn has_carrier(interface_index: u32) -> io::Result<bool> {
    let link = link_by_index(&route_socket()?, interface_index)?;
    Ok(link.flags & libc::IFF_LOWER_UP as u32 != 0)
}

/// The kernel's counters of an interface, in the order of `struct rtnl_link_stats64`.
pub(crate) fn link_counters(interface_index: u32) -> io::Result<[u64; COUNTERS]> {
    let link = read_link(&route_socket()?, interface_index)?;
    let found = attribute_in(link.get(LINK_HEADER_BYTES..).unwrap_or_default(), libc::IFLA_STATS64);
    let (words, _) = found.ok_or(io::ErrorKind::InvalidData)?.as_chunks();
    let word = |number: usize| words.get(number).copied().map_or(0, u64::from_ne_bytes);
    Ok(std::array::from_fn(word))
}

/// The numbers of the XDP programs on an interface.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct AttachedPrograms {
    pub(crate) in_driver: Option<u32>,
    /// On socket buffers.
    pub(crate) generic: Option<u32>,
}

pub(crate) fn attached_programs(interface_index: u32) -> io::Result<AttachedPrograms> {
    let link = read_link(&route_socket()?, interface_index)?;
    let xdp = attribute_in(link.get(LINK_HEADER_BYTES..).unwrap_or_default(), libc::IFLA_XDP);
    let mut programs = AttachedPrograms::default();
    for (kind, value) in attributes_in(xdp.unwrap_or_default()) {
        match kind {
            IFLA_XDP_DRV_PROG_ID => programs.in_driver = u32_at(value, 0),
            IFLA_XDP_SKB_PROG_ID => programs.generic = u32_at(value, 0),
            _ => {}
        }
    }
    Ok(programs)
}

/// Tells the host that a neighbour is in use (`NTF_USE`), as its own traffic would: it then checks a stale
/// one. Not for permanent neighbours, which would stop being permanent. Needs `CAP_NET_ADMIN`.
pub(crate) fn use_neighbour(socket: &OwnedFd, interface_index: u32, address: IpAddr) -> io::Result<()> {
    let bytes = neighbour_request(interface_index, address, libc::NTF_USE);
    request_reply(socket, &NetlinkMessage { kind: libc::RTM_NEWNEIGH, bytes }, NLM_F_ACK).map(drop)
}
