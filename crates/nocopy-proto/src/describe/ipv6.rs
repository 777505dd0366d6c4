//! IPv6, its extension headers and fragments.

use std::fmt::{self, Write};

use super::{DescriptionLine, PacketPart, ProtocolName, describe_unreadable_header, icmpv6, tcp, udp};
use crate::wire::IpProtocol;
use crate::wire::ipv6::{Extension, ExtensionError, HEADER_BYTES, Packet, ParseError, UpperLayer};

pub(super) fn describe(line: &mut DescriptionLine<'_>, part: PacketPart<'_>) -> fmt::Result {
    line.write_str("IP6 ")?;
    let packet = match Packet::parse_cut(part.bytes) {
        Ok(packet) => packet,
        Err(error) => {
            return describe_unreadable_header(
                line,
                "ip6",
                matches!(error, ParseError::TooShort { .. }),
                error,
            );
        }
    };
    let present_bytes = part.declared_bytes.saturating_sub(HEADER_BYTES);
    let declared_bytes = packet.payload_bytes().map_or(present_bytes, |bytes| bytes as usize);
    let payload = PacketPart { bytes: packet.payload(), declared_bytes };
    match packet.upper_layer() {
        Ok(upper) => {
            let walked_bytes = payload.bytes.len() - upper.payload().len();
            describe_upper(line, &packet, &upper, payload.after_header(walked_bytes, upper.payload()))?;
        }
        Err(error) => {
            write!(line, "{} > {}: ", packet.source(), packet.destination())?;
            describe_unreadable_header(
                line,
                "ip6 extension",
                matches!(error, ExtensionError::TooShort { .. }),
                error,
            )?;
        }
    }
    match payload.declared_bytes.saturating_sub(present_bytes) {
        0 => Ok(()),
        missing => write!(line, ", truncated: {missing} bytes missing"),
    }
}

fn describe_upper(
    line: &mut DescriptionLine<'_>,
    packet: &Packet<'_>,
    upper: &UpperLayer<'_>,
    part: PacketPart<'_>,
) -> fmt::Result {
    let (source, destination, fragmentation) = (packet.source(), packet.destination(), upper.fragmentation());
    if fragmentation.is_some_and(|fragmentation| fragmentation.offset_bytes > 0) {
        write!(line, "{source} > {destination}: {}", ProtocolName(upper.protocol()))?;
    } else {
        match upper.protocol() {
            IpProtocol::TCP => tcp::describe(line, &source, &destination, part)?,
            IpProtocol::UDP => udp::describe(line, &source, &destination, part, fragmentation.is_some())?,
            IpProtocol::ICMPV6 => {
                write!(line, "{source} > {destination}: ")?;
                icmpv6::describe(line, part)?;
            }
            protocol => {
                write!(line, "{source} > {destination}: {}", ProtocolName(protocol))?;
                write!(line, ", length {}", part.declared_bytes)?;
            }
        }
    }
    describe_extensions(line, upper.extensions())?;
    if let Some(fragmentation) = fragmentation {
        let (offset, id) = (fragmentation.offset_bytes, fragmentation.identification);
        write!(line, ", fragment {id} at {offset}, {} bytes", part.declared_bytes)?;
        line.write_str(if fragmentation.more_fragments { ", more follow" } else { ", the last" })?;
    }
    Ok(())
}

fn describe_extensions<'a>(
    line: &mut DescriptionLine<'_>,
    extensions: impl Iterator<Item = Extension<'a>>,
) -> fmt::Result {
    let mut separator = ", ip6 headers [";
    for extension in extensions {
        let name = match extension.protocol() {
            IpProtocol::HOP_BY_HOP => "HBH",
            IpProtocol::IPV6_ROUTING => "RT",
            IpProtocol::DESTINATION_OPTIONS => "DSTOPT",
            _ => continue, // the fragment header has words of its own
        };
        write!(line, "{separator}{name}")?;
        separator = ",";
    }
    if separator == "," { line.write_str("]") } else { Ok(()) }
}
