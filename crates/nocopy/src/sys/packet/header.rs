//! The header of a packet in a block (`struct tpacket3_hdr`): checks, and the VLAN tag.

use crate::facts::metadata::VlanTag;

/// A VLAN tag, which the kernel removes from packets.
pub(super) const VLAN_TAG_BYTES: u32 = 4;

/// The two hardware addresses before a VLAN tag.
const ADDRESSES_BYTES: usize = 12;

/// Room for a tag, and the following addresses.
pub(super) const FRONT_BYTES: usize = VLAN_TAG_BYTES as usize + ADDRESSES_BYTES;

pub(super) const BYTES: u32 = size_of::<libc::tpacket3_hdr>() as u32;

/// Where a packet whose header is at `at` begins; `None` if it is not between the header and `end`, or
/// overlaps the next header: the same bytes would belong to two packets.
#[inline]
pub(super) fn packet_offset(header: &libc::tpacket3_hdr, at: u32, end: u32, is_last: bool) -> Option<u32> {
    let (len, header_bytes) = (header.tp_snaplen, u32::from(header.tp_mac));
    let first = at.checked_add(header_bytes)?;
    if header_bytes < BYTES || first.checked_add(len)? > end {
        return None;
    }
    // No overflow: the sum compared with `end` is no smaller.
    (is_last || header.tp_next_offset >= header_bytes + len).then_some(first)
}

/// The tag to be put back into a packet, if there is room for it between the header and the packet, and an
/// address on each side.
#[inline]
pub(super) fn reinsertable_tag(header: &libc::tpacket3_hdr) -> Option<VlanTag> {
    let tag = vlan_tag(header)?;
    let room = u32::from(header.tp_mac) >= BYTES + VLAN_TAG_BYTES;
    (room && header.tp_snaplen as usize >= ADDRESSES_BYTES).then_some(tag)
}

/// Puts a tag back after the addresses, which move to the front.
pub(super) fn insert_tag(front: &mut [u8; FRONT_BYTES], VlanTag { protocol, control }: VlanTag) {
    front.copy_within(VLAN_TAG_BYTES as usize.., 0);
    let [.., a, b, c, d] = front;
    [*a, *b] = protocol.to_be_bytes();
    [*c, *d] = control.to_be_bytes();
}

/// The tag that the kernel has removed; if the kernel does not report its EtherType (before Linux 3.14), that
/// of a customer tag.
#[inline]
pub(super) fn vlan_tag(header: &libc::tpacket3_hdr) -> Option<VlanTag> {
    let protocol = match header.tp_status & libc::TP_STATUS_VLAN_TPID_VALID {
        0 => libc::ETH_P_8021Q as u16,
        _ => header.hv1.tp_vlan_tpid,
    };
    let is_there = header.tp_status & libc::TP_STATUS_VLAN_VALID != 0;
    is_there.then_some(VlanTag { protocol, control: header.hv1.tp_vlan_tci as u16 })
}

/// Arrival time, by `CLOCK_REALTIME`. The card's own time would be here only if it had been requested
/// (`SO_TIMESTAMPING`, `PACKET_TIMESTAMP`), which this library does not.
#[inline]
pub(super) fn time_ns(header: &libc::tpacket3_hdr) -> u64 {
    u64::from(header.tp_sec) * 1_000_000_000 + u64::from(header.tp_nsec)
}

/// Reads the header in front of `bytes`; `None` if they are shorter.
pub(super) fn read_header(bytes: &[u8]) -> Option<libc::tpacket3_hdr> {
    let bytes = bytes.get(..BYTES as usize)?;
    // SAFETY: as many bytes as a header has, which has no invalid bit patterns.
    Some(unsafe { bytes.as_ptr().cast::<libc::tpacket3_hdr>().read_unaligned() })
}

/// Writes a header in front of `bytes`.
/// Panics if the bytes are shorter.
pub(super) fn write_header(bytes: &mut [u8], header: &libc::tpacket3_hdr) {
    let bytes = &mut bytes[..BYTES as usize];
    // SAFETY: as many bytes as a header has.
    unsafe { bytes.as_mut_ptr().cast::<libc::tpacket3_hdr>().write_unaligned(*header) };
}
