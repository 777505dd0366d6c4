//! A quick look at the most usual frames: TCP and UDP next to the header of IPv4 (without options) or IPv6,
//! without a VLAN tag.
//!
//! It answers only whether the field differs from the sum of the pseudo-header. If it does, nothing else
//! matters, such as whether the packet is a fragment; otherwise the general way looks at that, too. Every
//! instruction counts here: `cargo xtask instructions`, 'forward-looking'.

use super::{EtherType, IpProtocol, ethernet, ipv4, ipv6, tcp, udp};

/// Where IP and the transport start, and the least length of a frame that is looked at: up to the end of
/// TCP's header.
const IP: usize = ethernet::HEADER_BYTES;
const OVER_V4: usize = IP + ipv4::HEADER_BYTES;
const OVER_V6: usize = IP + ipv6::HEADER_BYTES;
const V4_BYTES: usize = OVER_V4 + tcp::HEADER_BYTES;
const V6_BYTES: usize = OVER_V6 + tcp::HEADER_BYTES;

/// Version 4 and a header without options.
const V4_NO_OPTIONS: u8 = 0x45;

/// Whether a frame surely has no unfinished checksum.
#[inline]
pub(super) fn rules_out(frame: &[u8]) -> bool {
    let Some(bytes) = frame.first_chunk::<V4_BYTES>() else { return false };
    if load_u16_word(bytes, IP - 2) != ether_type_word(EtherType::IPV4) || bytes[IP] != V4_NO_OPTIONS {
        return rules_out_v6(frame);
    }
    let addresses = load_u32_word(bytes, IP + 12) + load_u32_word(bytes, IP + 16);
    let (length, protocol) = (load_u16_word(bytes, IP + 2), IpProtocol(bytes[IP + 9]));
    let differs = |protocol, offset: u16| {
        let field = load_u16_word(bytes, OVER_V4 + usize::from(offset));
        differs_from_pseudo_header_sum(field, addresses, protocol, length, ipv4::HEADER_BYTES)
    };
    if protocol == IpProtocol::TCP {
        return differs(IpProtocol::TCP, tcp::CHECKSUM_OFFSET);
    }
    hint_second_choice();
    protocol == IpProtocol::UDP && differs(IpProtocol::UDP, udp::CHECKSUM_OFFSET)
}

#[inline(never)]
fn rules_out_v6(frame: &[u8]) -> bool {
    let Some(bytes) = frame.first_chunk::<V6_BYTES>() else { return false };
    if load_u16_word(bytes, IP - 2) != ether_type_word(EtherType::IPV6) {
        return false;
    }
    let addresses: u64 = (IP + 8..OVER_V6).step_by(4).map(|at| load_u32_word(bytes, at)).sum();
    let length = load_u16_word(bytes, IP + 4);
    let differs = |protocol, offset: u16| {
        differs_from_pseudo_header_sum(
            load_u16_word(bytes, OVER_V6 + usize::from(offset)),
            addresses,
            protocol,
            length,
            0,
        )
    };
    match IpProtocol(bytes[IP + 6]) {
        IpProtocol::TCP => differs(IpProtocol::TCP, tcp::CHECKSUM_OFFSET),
        IpProtocol::UDP => differs(IpProtocol::UDP, udp::CHECKSUM_OFFSET),
        _ => false,
    }
}

/// Tells the compiler which of two usual protocols comes first.
#[cold]
const fn hint_second_choice() {}

/// Whether a field differs from the sum of the addresses, the protocol, and a length less `header_bytes`.
///
/// All words are as this machine loads them: the sum is then swapped as they are (RFC 1071 section 2(B)). It
/// is not folded. In ones' complement 2^16 is 1, so numbers stand for the same 16 bits if they differ by a
/// multiple of 2^16 - 1; for the same reason a word of 32 bits is the sum of its halves, so the constants go
/// into the upper half of the negated field.
#[inline(always)]
fn differs_from_pseudo_header_sum(
    field: u32,
    addresses: u64,
    protocol: IpProtocol,
    length: u32,
    header_bytes: usize,
) -> bool {
    let swapped = |number: u8| u32::from(u16::from_ne_bytes([0, number]));
    let constants = (swapped(protocol.0) + 0xffff - swapped(header_bytes as u8)) % 0xffff;
    // No overflow: the upper half is less than 0xffff.
    let rest = length + (field ^ (constants << 16 | 0xffff));
    !(addresses + u64::from(rest)).is_multiple_of(0xffff)
}

const fn ether_type_word(EtherType(number): EtherType) -> u32 {
    number.to_be() as u32
}

#[inline(always)]
fn load_u16_word<const N: usize>(header: &[u8; N], at: usize) -> u32 {
    u32::from(u16::from_ne_bytes(*header[at..].first_chunk().expect("inside")))
}

#[inline(always)]
fn load_u32_word<const N: usize>(header: &[u8; N], at: usize) -> u64 {
    u64::from(u32::from_ne_bytes(*header[at..].first_chunk().expect("inside")))
}
