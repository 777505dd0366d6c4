//! ICMP for IPv6.

use std::fmt::{self, Write};

use super::icmp::destination_port_of;
use super::{DescriptionLine, PacketPart, ProtocolName, describe_unreadable_header};
use crate::wire::icmpv6::{Body, Message, MessageType};
use crate::wire::{IpProtocol, ipv6};

pub(super) fn describe(line: &mut DescriptionLine<'_>, part: PacketPart<'_>) -> fmt::Result {
    line.write_str("ICMP6, ")?;
    let message = match Message::parse(part.bytes) {
        Ok(message) => message,
        Err(error) => return describe_unreadable_header(line, "icmp6", true, error),
    };
    match message_type_name(message.message_type()) {
        Some(name) => line.write_str(name)?,
        None => write!(line, "type-{}, code {}", message.message_type().0, message.code())?,
    }
    match message.body() {
        Ok(body) => describe_body(line, &message, &body)?,
        Err(_) => line.write_str(", [|icmp6]")?,
    }
    write!(line, ", length {}", part.declared_bytes)
}

const fn message_type_name(message_type: MessageType) -> Option<&'static str> {
    Some(match message_type {
        MessageType::UNREACHABLE => "destination unreachable",
        MessageType::PACKET_TOO_BIG => "packet too big",
        MessageType::TIME_EXCEEDED => "time exceeded",
        MessageType::PARAMETER_PROBLEM => "parameter problem",
        MessageType::ECHO_REQUEST => "echo request",
        MessageType::ECHO_REPLY => "echo reply",
        MessageType::LISTENER_QUERY => "multicast listener query",
        MessageType::LISTENER_REPORT => "multicast listener report",
        MessageType::LISTENER_DONE => "multicast listener done",
        MessageType::ROUTER_SOLICITATION => "router solicitation",
        MessageType::ROUTER_ADVERTISEMENT => "router advertisement",
        MessageType::NEIGHBOR_SOLICITATION => "neighbor solicitation",
        MessageType::NEIGHBOR_ADVERTISEMENT => "neighbor advertisement",
        MessageType::REDIRECT => "redirect",
        MessageType::LISTENER_REPORT_V2 => "multicast listener report v2",
        _ => return None,
    })
}

fn describe_body(line: &mut DescriptionLine<'_>, message: &Message<'_>, body: &Body<'_>) -> fmt::Result {
    match *body {
        Body::Echo { identifier, sequence } => write!(line, ", id {identifier}, seq {sequence}"),
        Body::Neighbor { target } if message.message_type() == MessageType::NEIGHBOR_SOLICITATION => {
            write!(line, ", who has {target}")
        }
        Body::Neighbor { target } => write!(line, ", tgt is {target}"),
        Body::Redirect { target, destination } => write!(line, ", {destination} to {target}"),
        Body::Listener { group } if group.is_unspecified() => Ok(()),
        Body::Listener { group } => write!(line, ", {group}"),
        Body::ListenerReportV2 { records } => write!(line, ", {records} group record(s)"),
        Body::Error { parameter, packet } => describe_error(line, message, parameter, packet),
        Body::Other => Ok(()),
    }
}

fn describe_error(
    line: &mut DescriptionLine<'_>,
    message: &Message<'_>,
    parameter: u32,
    packet: &[u8],
) -> fmt::Result {
    match (message.message_type(), message.code()) {
        (MessageType::UNREACHABLE, code) => describe_unreachable(line, code, packet),
        (MessageType::PACKET_TOO_BIG, _) => write!(line, ", mtu {parameter}"),
        (MessageType::TIME_EXCEEDED, 1) => line.write_str(" (reassembly)"),
        (MessageType::TIME_EXCEEDED, _) => line.write_str(" in-transit"),
        (_, code) => write!(line, ", code {code}, octet {parameter}"),
    }
}

fn describe_unreachable(line: &mut DescriptionLine<'_>, code: u8, packet: &[u8]) -> fmt::Result {
    match code {
        0 => line.write_str(", unreachable route"),
        1 => line.write_str(", unreachable prohibited"),
        3 => line.write_str(", unreachable address"),
        4 => line.write_str(", unreachable port"),
        _ => write!(line, ", code {code}"),
    }?;
    let Ok(about) = ipv6::Packet::parse_cut(packet) else { return line.write_str(", [|ip6]") };
    write!(line, ", {}", about.destination())?;
    let Some(upper) = about.upper_layer().ok().filter(|_| code == 4) else { return Ok(()) };
    let name = match upper.protocol() {
        IpProtocol::TCP => "tcp",
        IpProtocol::UDP => "udp",
        protocol => return write!(line, " {}", ProtocolName(protocol)),
    };
    destination_port_of(upper.payload())
        .map_or(Ok(()), |port| write!(line, " {name} port {}", line.displayed_port(port)))
}
