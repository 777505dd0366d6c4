//! IPv4, its options and fragments.

use std::fmt::{self, Write};

use super::{DescriptionLine, PacketPart, ProtocolName, describe_unreadable_header, icmp, tcp, udp};
use crate::wire::IpProtocol;
use crate::wire::ipv4::{Packet, ParseError};

pub(super) fn describe(line: &mut DescriptionLine<'_>, part: PacketPart<'_>) -> fmt::Result {
    line.write_str("IP ")?;
    let packet = match Packet::parse_cut(part.bytes) {
        Ok(packet) => packet,
        Err(error) => {
            use ParseError::{HeaderBeyondPacket, TooShort};
            return describe_unreadable_header(
                line,
                "ip",
                matches!(error, TooShort { .. } | HeaderBeyondPacket { .. }),
                error,
            );
        }
    };
    // Without a length, as hosts write it in packets that are still to be cut into segments, it is the
    // frame's.
    let total_bytes = packet.total_bytes().map_or(part.declared_bytes, usize::from);
    let declared_bytes = total_bytes.saturating_sub(packet.header_bytes());
    describe_upper(line, &packet, PacketPart { bytes: packet.payload(), declared_bytes })?;
    describe_options(line, packet.options())?;
    match total_bytes.saturating_sub(part.declared_bytes) {
        0 => Ok(()),
        missing => write!(line, ", truncated: {missing} bytes missing"),
    }
}

fn describe_upper(line: &mut DescriptionLine<'_>, packet: &Packet<'_>, part: PacketPart<'_>) -> fmt::Result {
    let (source, destination, fragmentation) =
        (packet.source(), packet.destination(), packet.fragmentation());
    if fragmentation.offset_bytes() > 0 {
        write!(line, "{source} > {destination}: {}", ProtocolName(packet.protocol()))?;
    } else {
        match packet.protocol() {
            IpProtocol::TCP => tcp::describe(line, &source, &destination, part)?,
            IpProtocol::UDP => udp::describe(line, &source, &destination, part, fragmentation.is_fragment())?,
            IpProtocol::ICMP => {
                write!(line, "{source} > {destination}: ")?;
                icmp::describe(line, part)?;
            }
            protocol => {
                write!(line, "{source} > {destination}: {}", ProtocolName(protocol))?;
                write!(line, ", length {}", part.declared_bytes)?;
            }
        }
    }
    if fragmentation.is_fragment() {
        let (offset, more) = (fragmentation.offset_bytes(), fragmentation.more_fragments());
        write!(line, ", fragment {} at {offset}, {} bytes", packet.identification(), part.declared_bytes)?;
        line.write_str(if more { ", more follow" } else { ", the last" })?;
    }
    Ok(())
}

/// The options by name (RFC 791), without padding options.
fn describe_options(line: &mut DescriptionLine<'_>, mut bytes: &[u8]) -> fmt::Result {
    let mut separator = ", ip options [";
    while let Some((&kind, rest)) = bytes.split_first() {
        match kind {
            0 => break,
            1 => {
                bytes = rest;
                continue;
            }
            _ => {}
        }
        line.write_str(separator)?;
        separator = ",";
        let length = rest.first().map_or(0, |length| usize::from(*length));
        match option_name(kind) {
            Some(name) => line.write_str(name)?,
            None => write!(line, "opt-{kind}")?,
        }
        match bytes.get(length..) {
            Some(rest) if length >= 2 => bytes = rest,
            _ => {
                line.write_str("[|opt]")?;
                break;
            }
        }
    }
    if separator == "," { line.write_str("]") } else { Ok(()) }
}

const fn option_name(kind: u8) -> Option<&'static str> {
    Some(match kind {
        7 => "RR",
        68 => "TS",
        130 => "SEC",
        131 => "LSRR",
        134 => "CIPSO",
        137 => "SSRR",
        148 => "RA",
        _ => return None,
    })
}
