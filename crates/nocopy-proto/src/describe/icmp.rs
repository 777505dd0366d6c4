//! ICMP for IPv4.

use std::fmt::{self, Write};

use super::{DescriptionLine, PacketPart, ProtocolName, describe_unreadable_header};
use crate::wire::icmp::{Body, Message, MessageType};
use crate::wire::{IpProtocol, ipv4, udp};

pub(super) fn describe(line: &mut DescriptionLine<'_>, part: PacketPart<'_>) -> fmt::Result {
    line.write_str("ICMP ")?;
    let message = match Message::parse(part.bytes) {
        Ok(message) => message,
        Err(error) => return describe_unreadable_header(line, "icmp", true, error),
    };
    match message.body() {
        Body::EchoRequest { identifier, sequence } => {
            write!(line, "echo request, id {identifier}, seq {sequence}")?;
        }
        Body::EchoReply { identifier, sequence } => {
            write!(line, "echo reply, id {identifier}, seq {sequence}")?;
        }
        Body::Unreachable { next_hop_mtu_bytes } => describe_unreachable(line, &message, next_hop_mtu_bytes)?,
        Body::Redirect { gateway } => describe_redirect(line, &message, gateway)?,
        Body::TimeExceeded if message.code() == 1 => line.write_str("ip reassembly time exceeded")?,
        Body::TimeExceeded => line.write_str("time exceeded in-transit")?,
        Body::Other => describe_other_type(line, &message)?,
    }
    write!(line, ", length {}", part.declared_bytes)
}

/// The packet that an error is about; it may be cut.
fn quoted_packet<'a>(message: &Message<'a>) -> Option<ipv4::Packet<'a>> {
    ipv4::Packet::parse_cut(message.payload()).ok()
}

fn describe_unreachable(
    line: &mut DescriptionLine<'_>,
    message: &Message<'_>,
    next_hop_mtu_bytes: u16,
) -> fmt::Result {
    let Some(about) = quoted_packet(message) else {
        return write!(line, "unreachable, code {}, [|ip]", message.code());
    };
    let (host, protocol) = (about.destination(), about.protocol());
    match message.code() {
        0 => write!(line, "net {host} unreachable"),
        1 => write!(line, "host {host} unreachable"),
        2 => write!(line, "{host} protocol {} unreachable", ProtocolName(protocol)),
        3 => {
            let name = if protocol == IpProtocol::TCP { "tcp" } else { "udp" };
            match destination_port_of(about.payload())
                .filter(|_| matches!(protocol, IpProtocol::TCP | IpProtocol::UDP))
            {
                Some(port) => write!(line, "{host} {name} port {} unreachable", line.displayed_port(port)),
                None => write!(line, "{host} {} port unreachable", ProtocolName(protocol)),
            }
        }
        4 => write!(line, "{host} unreachable - need to frag (mtu {next_hop_mtu_bytes})"),
        13 => write!(line, "host {host} unreachable - admin prohibited filter"),
        code => write!(line, "{host} unreachable, code {code}"),
    }
}

/// The destination port: UDP and TCP have it in the same place.
pub(super) fn destination_port_of(transport: &[u8]) -> Option<u16> {
    let header = transport.first_chunk::<{ udp::HEADER_BYTES }>()?;
    Some(u16::from_be_bytes([header[2], header[3]]))
}

fn describe_redirect(
    line: &mut DescriptionLine<'_>,
    message: &Message<'_>,
    gateway: std::net::Ipv4Addr,
) -> fmt::Result {
    match quoted_packet(message) {
        Some(about) => write!(line, "redirect {} to host {gateway}", about.destination()),
        None => write!(line, "redirect to host {gateway}, [|ip]"),
    }
}

fn describe_other_type(line: &mut DescriptionLine<'_>, message: &Message<'_>) -> fmt::Result {
    match message.message_type() {
        MessageType::PARAMETER_PROBLEM => line.write_str("parameter problem"),
        MessageType(9) => line.write_str("router advertisement"),
        MessageType(10) => line.write_str("router solicitation"),
        MessageType(13) => line.write_str("time stamp query"),
        MessageType(14) => line.write_str("time stamp reply"),
        MessageType(number) => write!(line, "type-{number}, code {}", message.code()),
    }
}
