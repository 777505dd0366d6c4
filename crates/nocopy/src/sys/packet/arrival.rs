//! What the header in front of a packet in a block tells of it (`struct tpacket3_hdr`).

use std::ptr::NonNull;

use crate::metadata::{Arrival, Clock, Timestamp, Unsupported, VlanTag};

/// Reads a packet's header.
///
/// # Safety
/// `header` points at a [`libc::tpacket3_hdr`] in a block that is ours.
pub(crate) unsafe fn arrival(header: NonNull<u8>) -> Arrival {
    // SAFETY: by contract; it has no invalid bit patterns.
    read(&unsafe { header.cast::<libc::tpacket3_hdr>().read_unaligned() })
}

/// The tag's EtherType, where the kernel does not tell (before Linux 3.14) that of a customer's tag.
pub(super) fn vlan_tag(header: &libc::tpacket3_hdr) -> Option<VlanTag> {
    let protocol = match header.tp_status & libc::TP_STATUS_VLAN_TPID_VALID {
        0 => libc::ETH_P_8021Q as u16,
        _ => header.hv1.tp_vlan_tpid,
    };
    let is_there = header.tp_status & libc::TP_STATUS_VLAN_VALID != 0;
    is_there.then_some(VlanTag { protocol, control: header.hv1.tp_vlan_tci as u16 })
}

fn read(header: &libc::tpacket3_hdr) -> Arrival {
    // The card's own time is there only if somebody has asked for it (`SO_TIMESTAMPING`, `PACKET_TIMESTAMP`): we have not.
    let ns = u64::from(header.tp_sec) * 1_000_000_000 + u64::from(header.tp_nsec);
    let hash = header.hv1.tp_rxhash;
    Arrival {
        timestamp: Ok(Timestamp { ns, clock: Clock::Realtime }),
        // The kernel makes one up where the card gave none; 0 is for packets without a flow.
        hash: if hash == 0 { Err(Unsupported::Absent) } else { Ok(hash) },
        vlan: vlan_tag(header).ok_or(Unsupported::Absent),
    }
}

#[cfg(all(test, not(nocopy_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_header_without_hash_and_tag_says_so() {
        // SAFETY: plain numbers.
        let mut header: libc::tpacket3_hdr = unsafe { std::mem::zeroed() };
        (header.tp_sec, header.tp_nsec) = (u32::MAX, 999_999_999);
        let timestamp = Ok(Timestamp { ns: 4_294_967_295_999_999_999, clock: Clock::Realtime });
        let (hash, vlan) = (Err(Unsupported::Absent), Err(Unsupported::Absent));
        assert_eq!(read(&header), Arrival { timestamp, hash, vlan });
        header.hv1.tp_rxhash = 7;
        (header.hv1.tp_vlan_tci, header.tp_status) = (0x2005, libc::TP_STATUS_VLAN_VALID);
        let vlan = Ok(VlanTag { protocol: 0x8100, control: 0x2005 });
        assert_eq!(read(&header), Arrival { timestamp, hash: Ok(7), vlan });
    }
}
