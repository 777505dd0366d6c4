//! AF_XDP sockets of every process, by the kernel's socket diagnosis (`linux/xdp_diag.h`,
//! CONFIG_XDP_SOCKETS_DIAG).

use std::io;

use rustix::net::netlink;

use super::netlink::{NetlinkMessage, attributes_in, netlink_socket, request_dump, u32_at};
use super::xsk::Statistics;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const XDP_SHOW_INFO: u32 = 1 << 0;
const XDP_SHOW_UMEM: u32 = 1 << 2;
const XDP_SHOW_STATS: u32 = 1 << 4;
const XDP_DIAG_INFO: u16 = 1;
const XDP_DIAG_UMEM: u16 = 5;
const XDP_DIAG_STATS: u16 = 9;
const XDP_DU_F_ZEROCOPY: u32 = 1 << 0;

/// Bytes of `struct xdp_diag_msg`, which comes before the attributes.
const MESSAGE_BYTES: usize = 16;
const INODE_BYTES: usize = 4;
/// Where the flags lie in `struct xdp_diag_umem`.
const UMEM_FLAGS_BYTES: usize = 32;

/// An AF_XDP socket of any process that is bound to an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct XskDiagnosis {
    pub(crate) inode: u32,
    pub(crate) interface_index: u32,
    pub(crate) queue: u32,
    pub(crate) zero_copy: bool,
    pub(crate) statistics: Statistics,
}

/// Sockets of the calling thread's network namespace; `None` if the kernel was built without this.
pub(crate) fn xdp_sockets() -> io::Result<Option<Vec<XskDiagnosis>>> {
    let show = XDP_SHOW_INFO | XDP_SHOW_UMEM | XDP_SHOW_STATS;
    let mut request = vec![u8::try_from(libc::AF_XDP).expect("small constant"), 0, 0, 0]; // family, protocol, padding
    request.extend([0; 4]); // of any inode
    request.extend(show.to_ne_bytes());
    request.extend([0; 8]); // of any cookie
    let socket = netlink_socket(Some(netlink::SOCK_DIAG))?;
    match request_dump(&socket, &NetlinkMessage { kind: SOCK_DIAG_BY_FAMILY, bytes: request }) {
        Ok(answers) => {
            Ok(Some(answers.iter().filter_map(|answer| parse_xsk_diagnosis(&answer.bytes)).collect()))
        }
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

fn parse_xsk_diagnosis(message: &[u8]) -> Option<XskDiagnosis> {
    let mut socket = XskDiagnosis {
        inode: u32_at(message, INODE_BYTES)?,
        interface_index: 0,
        queue: 0,
        zero_copy: false,
        statistics: Statistics::default(),
    };
    for (kind, value) in attributes_in(message.get(MESSAGE_BYTES..)?) {
        match kind {
            XDP_DIAG_INFO => (socket.interface_index, socket.queue) = (u32_at(value, 0)?, u32_at(value, 4)?),
            XDP_DIAG_UMEM => socket.zero_copy = u32_at(value, UMEM_FLAGS_BYTES)? & XDP_DU_F_ZEROCOPY != 0,
            XDP_DIAG_STATS => socket.statistics = parse_statistics(value)?,
            _ => {}
        }
    }
    Some(socket)
}

/// `struct xdp_diag_stats`.
fn parse_statistics(value: &[u8]) -> Option<Statistics> {
    let word = |number: usize| value.get(number * 8..)?.first_chunk().copied().map(u64::from_ne_bytes);
    Some(Statistics {
        rx_dropped: word(0)?,
        rx_invalid_descs: word(1)?,
        rx_ring_full: word(2)?,
        rx_fill_ring_empty_descs: word(3)?,
        tx_invalid_descs: word(4)?,
        tx_ring_empty_descs: word(5)?,
        ..Statistics::default()
    })
}
