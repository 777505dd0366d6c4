//! Corrects the checksums of a frame: IPv4, and what it and IPv6 carry of TCP, UDP, ICMP and ICMPv6.

use std::ops::Range;

use nocopy_proto::wire::checksum::OnesComplementSum;
use nocopy_proto::wire::ethernet::EtherType;
use nocopy_proto::wire::{ipv4, ipv6};
use nocopy_proto::{IpAddresses, IpProtocol};

const PPPOE_SESSION: u16 = 0x8864;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChecksumCorrection {
    /// All are right, or there are none.
    None,
    Made,
    /// The packet is incomplete, or its headers make no sense.
    Impossible,
}

/// Corrects what is wrong. A UDP checksum of 0 means that there is none, and stays.
pub(super) fn correct_checksums(frame: &mut [u8]) -> ChecksumCorrection {
    match find_network_layer(frame) {
        Some((EtherType::IPV4, at)) => correct_ipv4(frame, at),
        Some((EtherType::IPV6, at)) => correct_ipv6(frame, at),
        _ => ChecksumCorrection::None,
    }
}

/// The type of a frame, and where its payload begins: after tags, and after the header of a PPPoE session.
fn find_network_layer(frame: &[u8]) -> Option<(EtherType, usize)> {
    let number = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
    let mut at = 12;
    while EtherType(number(at)?).is_vlan() {
        at += 4;
    }
    match number(at)? {
        PPPOE_SESSION => match number(at + 8)? {
            0x0021 => Some((EtherType::IPV4, at + 10)),
            0x0057 => Some((EtherType::IPV6, at + 10)),
            _ => None,
        },
        other => Some((EtherType(other), at + 2)),
    }
}

fn correct_ipv4(frame: &mut [u8], at: usize) -> ChecksumCorrection {
    let Ok(packet) = ipv4::Packet::parse_cut(&frame[at..]) else { return ChecksumCorrection::Impossible };
    let (header_bytes, total_bytes) = (packet.header_bytes(), packet.total_bytes().map(usize::from));
    let Some(total_bytes) = total_bytes else { return ChecksumCorrection::Impossible };
    let protocol = packet.protocol();
    let addresses = match protocol {
        IpProtocol::TCP | IpProtocol::UDP => packet
            .final_destination()
            .map(|destination| IpAddresses::V4 { source: packet.source(), destination }),
        _ => Some(packet.addresses()),
    };
    let (is_fragment, is_right) = (packet.fragmentation().is_fragment(), packet.checksum_is_valid());
    let header = if is_right {
        ChecksumCorrection::None
    } else {
        write_checksum(&mut frame[at..at + header_bytes], 10, OnesComplementSum::new());
        ChecksumCorrection::Made
    };
    if is_fragment {
        return header;
    }
    let place = at + header_bytes..at + total_bytes;
    let upper = match addresses {
        Some(addresses) if place.end <= frame.len() => correct_upper_layer(frame, place, protocol, addresses),
        _ => ChecksumCorrection::Impossible,
    };
    if upper == ChecksumCorrection::None { header } else { upper }
}

fn correct_ipv6(frame: &mut [u8], at: usize) -> ChecksumCorrection {
    let Ok(packet) = ipv6::Packet::parse(&frame[at..]) else { return ChecksumCorrection::Impossible };
    let Ok(upper) = packet.upper_layer() else { return ChecksumCorrection::Impossible };
    if upper.fragmentation().is_some_and(|part| part.offset_bytes > 0 || part.more_fragments) {
        return ChecksumCorrection::None;
    }
    let destination = packet.payload_bytes().and_then(|_| upper.final_destination(packet.destination()));
    let Some(destination) = destination else { return ChecksumCorrection::Impossible };
    let addresses = IpAddresses::V6 { source: packet.source(), destination };
    let end = at + ipv6::HEADER_BYTES + packet.payload().len();
    let (protocol, bytes) = (upper.protocol(), upper.payload().len());
    correct_upper_layer(frame, end - bytes..end, protocol, addresses)
}

fn correct_upper_layer(
    frame: &mut [u8],
    mut place: Range<usize>,
    protocol: IpProtocol,
    addresses: IpAddresses,
) -> ChecksumCorrection {
    let is_ipv4 = matches!(addresses, IpAddresses::V4 { .. });
    let (at, bytes_min) = match protocol {
        IpProtocol::ICMP if is_ipv4 => (2, 4),
        IpProtocol::ICMPV6 if !is_ipv4 => (2, 4),
        IpProtocol::TCP => (16, 20),
        IpProtocol::UDP => (6, 8),
        _ => return ChecksumCorrection::None,
    };
    if place.len() < bytes_min {
        return ChecksumCorrection::Impossible;
    }
    if protocol == IpProtocol::UDP {
        let [.., high, low, a, b] = frame[place.start..place.start + 8] else { unreachable!("8 bytes") };
        let bytes = usize::from(u16::from_be_bytes([high, low]));
        if [a, b] == [0, 0] {
            return ChecksumCorrection::None;
        }
        if !(8..=place.len()).contains(&bytes) {
            return ChecksumCorrection::Impossible;
        }
        place.end = place.start + bytes;
    }
    let pseudo_header = match protocol {
        IpProtocol::ICMP => OnesComplementSum::new(),
        _ => addresses.pseudo_header_sum(protocol, place.len() as u32),
    };
    let segment = &mut frame[place];
    if pseudo_header.with(segment).is_valid() {
        return ChecksumCorrection::None;
    }
    write_checksum(segment, at, pseudo_header);
    if protocol == IpProtocol::UDP && segment[6..8] == [0, 0] {
        segment[6..8].fill(0xff);
    }
    ChecksumCorrection::Made
}

/// Writes the checksum of `bytes` into their field at `at`.
fn write_checksum(bytes: &mut [u8], at: usize, pseudo_header: OnesComplementSum) {
    bytes[at..at + 2].fill(0);
    let checksum = pseudo_header.with(bytes).checksum();
    bytes[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
}
