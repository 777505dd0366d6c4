//! One line of text for a packet, in the manner of tcpdump's short form.
//!
//! Pure: text from bytes, into a string that the caller reuses. It never fails. Where the captured bytes end
//! before a header does, the line ends in `[|udp]`; where a header contradicts itself, in `[bad udp: …]` with
//! the reason. Lengths are those that headers declare, so a packet cut by a capture length is described as it
//! was.
//!
//! ```
//! use nocopy_proto::describe::{CapturedBytes, DescriptionStyle};
//!
//! let frame = [
//!     0x02, 0, 0, 0, 0, 2, 0x02, 0, 0, 0, 0, 1, 0x08, 0x00, // Ethernet
//!     0x45, 0, 0, 32, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, // IPv4
//!     0x23, 0x28, 0, 7, 0, 12, 0, 0, // UDP; four bytes of payload were not captured
//! ];
//! let mut line = String::new();
//! CapturedBytes { bytes: &frame, packet_bytes: 46 }.describe(DescriptionStyle::default(), &mut line);
//! assert_eq!(line, "IP 10.0.0.1.9000 > 10.0.0.2.7: UDP, length 4");
//! ```

mod arp;
mod icmp;
mod icmpv6;
mod ipv4;
mod ipv6;
mod link;
mod ports;
mod tcp;
mod udp;

use std::fmt;

use crate::wire::IpProtocol;
use ports::DisplayedPort;

/// A packet from its Ethernet header on, possibly cut by a capture length.
#[derive(Debug, Clone, Copy)]
pub struct CapturedBytes<'a> {
    /// The captured bytes, from the first.
    pub bytes: &'a [u8],
    /// Bytes the packet had.
    pub packet_bytes: usize,
}

/// Options of a line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DescriptionStyle {
    /// The link-level header: addresses, type, length.
    pub link: bool,
    /// Well-known ports by name.
    pub names: bool,
}

impl DescriptionStyle {
    /// Shows the link-level header.
    #[must_use]
    pub const fn with_link_header(self, on: bool) -> Self {
        Self { link: on, ..self }
    }

    /// Shows well-known ports by name.
    #[must_use]
    pub const fn with_port_names(self, on: bool) -> Self {
        Self { names: on, ..self }
    }
}

impl CapturedBytes<'_> {
    /// Appends the description to `line`: without line feed, and without any other control character.
    pub fn describe(self, style: DescriptionStyle, line: &mut String) {
        let part = PacketPart { bytes: self.bytes, declared_bytes: self.packet_bytes.max(self.bytes.len()) };
        // Writing to a string cannot fail.
        let _ = link::describe(&mut DescriptionLine { text: line, style }, part);
    }
}

struct DescriptionLine<'a> {
    text: &'a mut String,
    style: DescriptionStyle,
}

impl fmt::Write for DescriptionLine<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.text.push_str(text);
        Ok(())
    }
}

impl DescriptionLine<'_> {
    fn displayed_port(&self, number: u16) -> DisplayedPort {
        DisplayedPort { number, named: self.style.names }
    }
}

/// A part of a packet: its captured bytes, and its length by the header in front of it.
#[derive(Clone, Copy)]
struct PacketPart<'a> {
    bytes: &'a [u8],
    declared_bytes: usize,
}

impl<'a> PacketPart<'a> {
    /// The part after a header of `header_bytes`, of which `bytes` was captured.
    fn after_header(&self, header_bytes: usize, bytes: &'a [u8]) -> Self {
        Self { bytes, declared_bytes: self.declared_bytes.saturating_sub(header_bytes) }
    }
}

/// Ends the line at a header that cannot be read: it was cut, or it contradicts itself.
fn describe_unreadable_header(
    line: &mut DescriptionLine<'_>,
    name: &str,
    is_cut: bool,
    why: impl fmt::Display,
) -> fmt::Result {
    use fmt::Write;
    if is_cut { write!(line, "[|{name}]") } else { write!(line, "[bad {name}: {why}]") }
}

/// Properties that hold for any bytes, for the property tests here and the fuzz targets in `fuzz/`.
///
/// # Panics
/// When a description is not one line of printable text.
#[doc(hidden)]
pub fn assert_description_is_one_line(bytes: &[u8]) {
    for style in [
        DescriptionStyle::default(),
        DescriptionStyle::default().with_link_header(true).with_port_names(true),
    ] {
        // Whole; cut; and with a length that no header announces.
        for packet_bytes in [bytes.len(), bytes.len() + 1, 1 << 20, 0] {
            let mut line = String::new();
            CapturedBytes { bytes, packet_bytes }.describe(style, &mut line);
            assert!(!line.is_empty() && line.chars().all(|c| c == ' ' || c.is_ascii_graphic()), "{line:?}");
        }
    }
}

/// Protocols as they are called in a line.
struct ProtocolName(IpProtocol);

impl fmt::Display for ProtocolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            IpProtocol::ICMP => "ICMP",
            IpProtocol::TCP => "TCP",
            IpProtocol::UDP => "UDP",
            IpProtocol::ICMPV6 => "ICMP6",
            IpProtocol::NO_NEXT_HEADER => "no next header",
            IpProtocol(2) => "IGMP",
            IpProtocol(4) => "IPIP",
            IpProtocol(41) => "IP6-in-IP",
            IpProtocol(47) => "GRE",
            IpProtocol(50) => "ESP",
            IpProtocol(51) => "AH",
            IpProtocol(89) => "OSPF",
            IpProtocol(103) => "PIM",
            IpProtocol(112) => "VRRP",
            IpProtocol(132) => "SCTP",
            IpProtocol(number) => return write!(f, "ip-proto-{number}"),
        })
    }
}

#[cfg(test)]
mod tests;
