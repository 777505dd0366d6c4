//! Reads the metadata in the header of a packet in a block (`struct tpacket3_hdr`, followed by
//! `struct sockaddr_ll`).

use std::ptr::NonNull;

use super::header::{time_ns, vlan_tag};
use crate::facts::metadata::{Arrival, Clock, Timestamp, Unsupported};

/// Offset of the packet's source address from its header.
const LINK_OFFSET: usize = size_of::<libc::tpacket3_hdr>().next_multiple_of(libc::TPACKET_ALIGNMENT);

/// Reads a packet's header, which is `header_bytes` in front of it.
///
/// # Safety
/// `header` points at a [`libc::tpacket3_hdr`] in a block that is ours, and so do the `header_bytes` from
/// there.
pub(crate) unsafe fn read_arrival(header: NonNull<u8>, header_bytes: usize) -> Arrival {
    let link = (header_bytes >= LINK_OFFSET + size_of::<libc::sockaddr_ll>()).then(|| {
        // SAFETY: it ends in front of the packet (just checked); it has no invalid bit patterns.
        unsafe { header.add(LINK_OFFSET).cast::<libc::sockaddr_ll>().read_unaligned() }
    });
    // SAFETY: by contract; it has no invalid bit patterns.
    arrival_from_header(&unsafe { header.cast::<libc::tpacket3_hdr>().read_unaligned() }, link.as_ref())
}

fn arrival_from_header(header: &libc::tpacket3_hdr, link: Option<&libc::sockaddr_ll>) -> Arrival {
    let ns = time_ns(header);
    let hash = header.hv1.tp_rxhash;
    Arrival {
        timestamp: Ok(Timestamp { ns, clock: Clock::Realtime }),
        // The kernel computes one if the card gave none; 0 is for packets without a flow.
        hash: if hash == 0 { Err(Unsupported::Absent) } else { Ok(hash) },
        vlan: vlan_tag(header).ok_or(Unsupported::Absent),
        outgoing: link.ok_or(Unsupported::Absent).map(|link| link.sll_pkttype == libc::PACKET_OUTGOING),
        checksum_unfinished: Ok(header.tp_status & libc::TP_STATUS_CSUMNOTREADY != 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::metadata::VlanTag;

    #[test]
    fn missing_hash_and_tag_are_reported() {
        // SAFETY: plain numbers.
        let mut header: libc::tpacket3_hdr = unsafe { std::mem::zeroed() };
        (header.tp_sec, header.tp_nsec) = (u32::MAX, 999_999_999);
        let timestamp = Ok(Timestamp { ns: 4_294_967_295_999_999_999, clock: Clock::Realtime });
        let (hash, vlan) = (Err(Unsupported::Absent), Err(Unsupported::Absent));
        let (outgoing, checksum_unfinished) = (Err(Unsupported::Absent), Ok(false));
        assert_eq!(
            arrival_from_header(&header, None),
            Arrival { timestamp, hash, vlan, outgoing, checksum_unfinished }
        );
        header.hv1.tp_rxhash = 7;
        header.hv1.tp_vlan_tci = 0x2005;
        header.tp_status = libc::TP_STATUS_VLAN_VALID | libc::TP_STATUS_CSUMNOTREADY;
        let vlan = Ok(VlanTag { protocol: 0x8100, control: 0x2005 });
        // SAFETY: plain numbers.
        let mut link: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let (outgoing, checksum_unfinished) = (Ok(false), Ok(true));
        let arrival = Arrival { timestamp, hash: Ok(7), vlan, outgoing, checksum_unfinished };
        assert_eq!(arrival_from_header(&header, Some(&link)), arrival);
        link.sll_pkttype = libc::PACKET_OUTGOING;
        assert_eq!(arrival_from_header(&header, Some(&link)).outgoing, Ok(true));
    }
}
