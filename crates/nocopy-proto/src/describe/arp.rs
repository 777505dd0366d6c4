//! ARP.

use std::fmt::{self, Write};

use super::{DescriptionLine, PacketPart, describe_unreadable_header};
use crate::wire::arp::{HEADER_BYTES, Operation, Packet, ParseError};

pub(super) fn describe(line: &mut DescriptionLine<'_>, part: PacketPart<'_>) -> fmt::Result {
    line.write_str("ARP, ")?;
    let packet = match Packet::parse(part.bytes) {
        Ok(packet) => packet,
        Err(error) => {
            return describe_unreadable_header(
                line,
                "arp",
                matches!(error, ParseError::TooShort { .. }),
                error,
            );
        }
    };
    let (sender, target) = (packet.sender_ip(), packet.target_ip());
    match packet.operation() {
        Operation::REQUEST if sender == target => write!(line, "Announcement {sender}")?,
        Operation::REQUEST if sender.is_unspecified() => write!(line, "Probe {target}")?,
        Operation::REQUEST => write!(line, "Request who-has {target} tell {sender}")?,
        Operation::REPLY => write!(line, "Reply {sender} is-at {}", packet.sender_mac())?,
        Operation(code) => write!(line, "operation {code}")?,
    }
    write!(line, ", length {}", part.declared_bytes.max(HEADER_BYTES))
}
