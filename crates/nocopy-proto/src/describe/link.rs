//! Ethernet, VLAN tags, and frames that are neither ARP nor IP.

use std::fmt::{self, Write};

use super::{DescriptionLine, PacketPart, arp, ipv4, ipv6};
use crate::wire::{EtherType, ethernet, vlan};

pub(super) fn describe(line: &mut DescriptionLine<'_>, part: PacketPart<'_>) -> fmt::Result {
    let Ok(frame) = ethernet::Frame::parse_cut(part.bytes) else { return line.write_str("[|ether]") };
    if line.style.link {
        write!(line, "{} > {}, ", frame.source(), frame.destination())?;
        describe_ether_type(line, frame.ether_type())?;
        write!(line, "length {}: ", part.declared_bytes)?;
    }
    let (mut ether_type, mut part) =
        (frame.ether_type(), part.after_header(ethernet::HEADER_BYTES, frame.payload()));
    while ether_type.is_vlan() {
        let Ok(tag) = vlan::Tag::parse_cut(part.bytes) else { return line.write_str("[|vlan]") };
        let (control, outer) = (tag.control(), ether_type);
        (ether_type, part) = (tag.ether_type(), part.after_header(vlan::TAG_BYTES, tag.payload()));
        let service = if outer == EtherType::SERVICE_VLAN { "service vlan" } else { "vlan" };
        write!(line, "{service} {}, p {}, ", control.vlan_id(), control.priority())?;
        if control.drop_eligible() {
            line.write_str("DEI, ")?;
        }
        if line.style.link {
            describe_ether_type(line, ether_type)?;
        }
    }
    match ether_type {
        EtherType::ARP => arp::describe(line, part),
        EtherType::IPV4 => ipv4::describe(line, part),
        EtherType::IPV6 => ipv6::describe(line, part),
        _ => match ether_type.declared_bytes() {
            Some(declared_bytes) => describe_llc(line, part, declared_bytes),
            None => describe_unknown_type(line, part, ether_type),
        },
    }
}

/// The type with its number, as the link-level header shows it.
fn describe_ether_type(line: &mut DescriptionLine<'_>, ether_type: EtherType) -> fmt::Result {
    match (ether_type_name(ether_type), ether_type.declared_bytes()) {
        (_, Some(_)) => line.write_str("802.3, "),
        (Some(name), None) => write!(line, "ethertype {name} (0x{:04x}), ", ether_type.0),
        (None, None) => write!(line, "ethertype 0x{:04x}, ", ether_type.0),
    }
}

fn describe_unknown_type(
    line: &mut DescriptionLine<'_>,
    part: PacketPart<'_>,
    ether_type: EtherType,
) -> fmt::Result {
    match ether_type_name(ether_type) {
        Some(name) => write!(line, "{name}, length {}", part.declared_bytes),
        None => write!(line, "ethertype 0x{:04x}, length {}", ether_type.0, part.declared_bytes),
    }
}

/// IEEE 802.3 with a length instead of a type: the header of IEEE 802.2 follows.
fn describe_llc(line: &mut DescriptionLine<'_>, part: PacketPart<'_>, declared_bytes: usize) -> fmt::Result {
    let missing = declared_bytes.saturating_sub(part.declared_bytes);
    line.write_str("802.3, ")?;
    match part.bytes {
        [0x42, 0x42, 0x03, ..] => line.write_str("STP")?,
        [0xaa, 0xaa, 0x03, a, b, c, d, e, ..] => {
            write!(line, "SNAP, oui 0x{a:02x}{b:02x}{c:02x}, type 0x{d:02x}{e:02x}")?;
        }
        [destination, source, control, ..] => {
            write!(line, "LLC, dsap 0x{destination:02x}, ssap 0x{source:02x}, control 0x{control:02x}")?;
        }
        _ => line.write_str("[|llc]")?,
    }
    write!(line, ", length {declared_bytes}")?;
    if missing > 0 {
        write!(line, ", truncated: {missing} bytes missing")?;
    }
    Ok(())
}

fn ether_type_name(ether_type: EtherType) -> Option<&'static str> {
    Some(match ether_type.0 {
        0x0800 => "IPv4",
        0x0806 => "ARP",
        0x0842 => "Wake-on-LAN",
        0x8100 => "802.1Q",
        0x86dd => "IPv6",
        0x8809 => "slow protocols",
        0x8847 => "MPLS",
        0x8863 => "PPPoE discovery",
        0x8864 => "PPPoE",
        0x888e => "EAPOL",
        0x88a8 => "802.1ad",
        0x88cc => "LLDP",
        0x88e5 => "MACsec",
        0x88f7 => "PTP",
        0x8906 => "FCoE",
        0x8915 => "RoCE",
        0x9000 => "loopback",
        0x9100 => "802.1Q-9100",
        0x9200 => "802.1Q-9200",
        _ => return None,
    })
}
