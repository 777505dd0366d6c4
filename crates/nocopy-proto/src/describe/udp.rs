//! UDP.

use std::fmt::{self, Display, Write};

use super::{DescriptionLine, PacketPart, describe_unreadable_header};
use crate::wire::udp::{Datagram, HEADER_BYTES, ParseError};

pub(super) fn describe(
    line: &mut DescriptionLine<'_>,
    source: &dyn Display,
    destination: &dyn Display,
    part: PacketPart<'_>,
    is_fragment: bool,
) -> fmt::Result {
    let datagram = match Datagram::parse_cut(part.bytes) {
        Ok(datagram) => datagram,
        Err(error) => {
            write!(line, "{source} > {destination}: UDP, ")?;
            return describe_unreadable_header(
                line,
                "udp",
                matches!(error, ParseError::TooShort { .. }),
                error,
            );
        }
    };
    let ports =
        (line.displayed_port(datagram.source_port()), line.displayed_port(datagram.destination_port()));
    let length_bytes = usize::from(datagram.length_bytes());
    write!(line, "{source}.{} > {destination}.{}: UDP", ports.0, ports.1)?;
    write!(line, ", length {}", length_bytes - HEADER_BYTES)?;
    match length_bytes.saturating_sub(part.declared_bytes) {
        1.. if !is_fragment => {
            write!(line, " [bad udp: the packet has room for {} bytes]", part.declared_bytes)
        }
        _ => Ok(()),
    }
}
