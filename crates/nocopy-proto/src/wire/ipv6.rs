//! IPv6 (RFC 8200): the fixed header, the extension headers, and the payload after them.

use std::net::Ipv6Addr;

use thiserror::Error;

use super::emit::{BufferTooSmall, header_buffer};
use super::field::Field;
use super::{IpAddresses, IpProtocol};

/// Bytes of the fixed header.
pub const HEADER_BYTES: usize = 40;

/// Extension headers that are walked over before giving up.
///
/// Each kind is useful once and destination options twice (RFC 8200 section 4.1), which makes five.
pub const EXTENSIONS_MAX: usize = 8;

/// Extension headers have a multiple of 8 bytes, at least 8.
const EXTENSION_UNIT_BYTES: usize = 8;

type VersionClassFlow = Field<0, 4>;
type PayloadBytes = Field<4, 2>;
type NextHeader = Field<6, 1>;
type HopLimit = Field<7, 1>;
type Source = Field<8, 16>;
type Destination = Field<24, 16>;

type ExtensionNextHeader = Field<0, 1>;
type ExtensionUnits = Field<1, 1>;
type FragmentOffset = Field<2, 2>;
type FragmentIdentification = Field<4, 4>;

/// 20 bits that are equal in the packets of one flow (RFC 6437); 0 is "no label".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlowLabel(u32);

impl FlowLabel {
    /// The label `value`, or `None` if that has more than 20 bits.
    pub const fn new(value: u32) -> Option<Self> {
        if value >> 20 == 0 { Some(Self(value)) } else { None }
    }

    /// The label as a number, at most 0xfffff.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// View of an IPv6 packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    header: &'a [u8; HEADER_BYTES],
    declared_bytes: Option<u32>,
    payload: &'a [u8],
}

/// Why bytes are not an IPv6 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ParseError {
    /// The bytes end inside the fixed header.
    #[error("the IPv6 header has 40 bytes, the packet has {packet_bytes}")]
    TooShort {
        /// The length of the packet.
        packet_bytes: usize,
    },
    /// The version is not 6.
    #[error("the IP version is {version}, not 6")]
    WrongVersion {
        /// The version in the header.
        version: u8,
    },
    /// The payload length is 0 and hop-by-hop options follow, so the real length should be an option, and
    /// more than 65,535 (RFC 2675).
    #[error(
        "the IPv6 payload length is 0, and the hop-by-hop options that follow have no jumbo payload length above 65535"
    )]
    NoJumboLength,
    /// The bytes end before the payload length.
    #[error("the IPv6 payload length says {declared_bytes} bytes, {present_bytes} follow the header")]
    PayloadBeyondPacket {
        /// Payload bytes declared.
        declared_bytes: usize,
        /// Bytes after the fixed header.
        present_bytes: usize,
    },
}

impl<'a> Packet<'a> {
    /// Checks that `bytes` contain the declared header and payload. Further bytes are padding.
    ///
    /// Extension headers count as payload here: see [`upper_layer`](Self::upper_layer).
    ///
    /// The length of a jumbogram is in its hop-by-hop options (RFC 2675): Linux makes these inside a host
    /// (BIG TCP). Where the length is 0 and TCP or UDP follows at once, the packet has all of `bytes`: hosts
    /// write that in packets that are still to be cut into segments.
    ///
    /// # Errors
    /// When the packet is cut, its lengths contradict each other, or it is not version 6.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let packet = Self::parse_cut(bytes)?;
        let present_bytes = packet.payload.len();
        match packet.payload_bytes().map(|bytes| bytes as usize) {
            Some(declared_bytes) if present_bytes < declared_bytes => {
                Err(ParseError::PayloadBeyondPacket { declared_bytes, present_bytes })
            }
            _ => Ok(packet),
        }
    }

    /// Checks the fixed header of a packet that may be cut after it; its payload is then shorter than
    /// declared. [`payload_bytes`](Self::payload_bytes) tells what there was.
    ///
    /// # Errors
    /// When the bytes end inside the header, it has no valid length, or the packet is not version 6.
    pub fn parse_cut(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let packet_bytes = bytes.len();
        let (header, rest) =
            bytes.split_first_chunk::<HEADER_BYTES>().ok_or(ParseError::TooShort { packet_bytes })?;
        let [version_and_class, ..] = VersionClassFlow::get(header);
        let version = version_and_class >> 4;
        if version != 6 {
            return Err(ParseError::WrongVersion { version });
        }
        let [next_header] = NextHeader::get(header);
        let declared_bytes = match (PayloadBytes::number(header), IpProtocol(next_header)) {
            (0, IpProtocol::HOP_BY_HOP) => jumbo_payload_bytes(rest)?,
            (0, IpProtocol::TCP | IpProtocol::UDP) => None,
            (bytes, _) => Some(bytes.into()),
        };
        let payload_bytes = declared_bytes.map_or(rest.len(), |bytes| bytes as usize);
        Ok(Self { header, declared_bytes, payload: rest.get(..payload_bytes).unwrap_or(rest) })
    }

    /// Differentiated services (6 bits) and congestion notification (2 bits).
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        (self.version_class_flow() >> 20) as u8
    }

    /// Equal in all packets of a flow.
    #[inline]
    pub fn flow_label(&self) -> FlowLabel {
        FlowLabel(self.version_class_flow() & 0xf_ffff)
    }

    /// Bytes after the fixed header, as declared: of a jumbogram, by its option. `None` if no header that is
    /// present says it.
    #[inline]
    pub fn payload_bytes(&self) -> Option<u32> {
        self.declared_bytes
    }

    /// The protocol at the start of the payload: an extension header or the upper protocol.
    #[inline]
    pub fn next_header(&self) -> IpProtocol {
        let [next_header] = NextHeader::get(self.header);
        IpProtocol(next_header)
    }

    /// The remaining hops.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        let [hops] = HopLimit::get(self.header);
        hops
    }

    /// The sender's address.
    #[inline]
    pub fn source(&self) -> Ipv6Addr {
        Ipv6Addr::from(Source::get(self.header))
    }

    /// The destination; before the end of a routing header, the next address on the way.
    #[inline]
    pub fn destination(&self) -> Ipv6Addr {
        Ipv6Addr::from(Destination::get(self.header))
    }

    /// Source and destination for transport checksums, if no routing header has segments left.
    #[inline]
    pub fn addresses(&self) -> IpAddresses {
        IpAddresses::V6 { source: self.source(), destination: self.destination() }
    }

    /// The bytes after the fixed header, up to the declared length, extension headers included.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Skips the extension headers.
    ///
    /// # Errors
    /// An extension header is cut or out of place, or there are more than [`EXTENSIONS_MAX`].
    pub fn upper_layer(&self) -> Result<UpperLayer<'a>, ExtensionError> {
        UpperLayer::parse(self.next_header(), self.payload)
    }

    fn version_class_flow(&self) -> u32 {
        u32::from_be_bytes(VersionClassFlow::get(self.header))
    }
}

/// The length in the jumbo payload option (RFC 2675 section 2) of the hop-by-hop options in front of `bytes`;
/// `None` if they are cut before it. Each round removes at least a byte.
fn jumbo_payload_bytes(bytes: &[u8]) -> Result<Option<u32>, ParseError> {
    const PADDING_BYTE: u8 = 0;
    const JUMBO: u8 = 0xc2;
    let Some(units) = bytes.get(1) else { return Ok(None) };
    let header_bytes = (1 + usize::from(*units)) * EXTENSION_UNIT_BYTES;
    let is_cut = bytes.len() < header_bytes;
    let mut options = bytes.get(2..header_bytes.min(bytes.len())).unwrap_or_default();
    loop {
        options = match *options {
            [PADDING_BYTE, ref rest @ ..] => rest,
            [JUMBO, 4, a, b, c, d, ..] => {
                let bytes = u32::from_be_bytes([a, b, c, d]);
                return if bytes > u16::MAX.into() {
                    Ok(Some(bytes))
                } else {
                    Err(ParseError::NoJumboLength)
                };
            }
            [_, length, ref rest @ ..] if rest.len() >= usize::from(length) => &rest[usize::from(length)..],
            _ if is_cut => return Ok(None),
            _ => return Err(ParseError::NoJumboLength),
        }
    }
}

/// The content of a fragment header (RFC 8200 section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fragmentation {
    /// Offset of the bytes after the fragment header in the whole packet. At most 65,528, a multiple of 8.
    pub offset_bytes: u16,
    /// Whether this is not the last fragment.
    pub more_fragments: bool,
    /// Equal in all fragments of one packet.
    pub identification: u32,
}

/// View of one extension header.
#[derive(Clone, Copy, Debug)]
pub struct Extension<'a> {
    protocol: IpProtocol,
    start: &'a [u8; EXTENSION_UNIT_BYTES],
    bytes: &'a [u8],
}

/// Why the extension headers cannot be walked over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ExtensionError {
    /// The packet ends inside an extension header.
    #[error("the {protocol} header needs {needed_bytes} bytes, {present_bytes} are left of the packet")]
    TooShort {
        /// Which header.
        protocol: IpProtocol,
        /// The length that it declares, at least 8.
        needed_bytes: usize,
        /// Bytes that are present.
        present_bytes: usize,
    },
    /// Hop-by-hop options follow another extension header (RFC 8200 section 4.1).
    #[error("hop-by-hop options follow another extension header, they may only be the first")]
    HopByHopNotFirst,
    /// More than any sensible packet has.
    #[error("there are more than {EXTENSIONS_MAX} IPv6 extension headers")]
    TooMany,
}

impl<'a> Extension<'a> {
    /// Whether `protocol` is an extension header that is walked over. Encryption and authentication (ESP, AH)
    /// are not: they are handled as upper protocols.
    const fn is_extension_header(protocol: IpProtocol) -> bool {
        matches!(
            protocol,
            IpProtocol::HOP_BY_HOP
                | IpProtocol::IPV6_ROUTING
                | IpProtocol::IPV6_FRAGMENT
                | IpProtocol::DESTINATION_OPTIONS
        )
    }

    /// The extension header at the start of `bytes`, and the bytes after it.
    fn split_first(protocol: IpProtocol, bytes: &'a [u8]) -> Result<(Self, &'a [u8]), ExtensionError> {
        let too_short =
            |needed_bytes| ExtensionError::TooShort { protocol, needed_bytes, present_bytes: bytes.len() };
        let start = bytes.first_chunk().ok_or(too_short(EXTENSION_UNIT_BYTES))?;
        // The length counts units after the first. A fragment header has no length, the byte is reserved.
        let further_units = match protocol {
            IpProtocol::IPV6_FRAGMENT => 0,
            _ => usize::from(ExtensionUnits::get(start)[0]),
        };
        let header_bytes = (1 + further_units) * EXTENSION_UNIT_BYTES;
        let (bytes, rest) = bytes.split_at_checked(header_bytes).ok_or(too_short(header_bytes))?;
        Ok((Self { protocol, start, bytes }, rest))
    }

    /// Which extension header this is.
    #[inline]
    pub fn protocol(&self) -> IpProtocol {
        self.protocol
    }

    /// The protocol after it.
    #[inline]
    pub fn next_header(&self) -> IpProtocol {
        let [next_header] = ExtensionNextHeader::get(self.start);
        IpProtocol(next_header)
    }

    /// The whole extension header, unparsed: a multiple of 8 bytes, next-header and length bytes included.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The content of a fragment header; `None` for other extension headers.
    #[inline]
    pub fn fragmentation(&self) -> Option<Fragmentation> {
        let field = FragmentOffset::number(self.start);
        (self.protocol == IpProtocol::IPV6_FRAGMENT).then(|| Fragmentation {
            offset_bytes: field & 0xfff8,
            more_fragments: field & 1 != 0,
            identification: u32::from_be_bytes(FragmentIdentification::get(self.start)),
        })
    }
}

/// View of an IPv6 payload, split into extension headers and the upper protocol's bytes.
#[derive(Clone, Copy, Debug)]
pub struct UpperLayer<'a> {
    extensions: Extensions<'a>,
    fragmentation: Option<Fragmentation>,
    protocol: IpProtocol,
    payload: &'a [u8],
}

impl<'a> UpperLayer<'a> {
    /// Each round removes at least 8 bytes, and there are at most [`EXTENSIONS_MAX`], so the loop ends.
    fn parse(first: IpProtocol, bytes: &'a [u8]) -> Result<Self, ExtensionError> {
        let mut upper = Self {
            extensions: Extensions { protocol: first, bytes, count: 0 },
            fragmentation: None,
            protocol: first,
            payload: bytes,
        };
        while Extension::is_extension_header(upper.protocol) && !upper.is_later_fragment() {
            match (upper.protocol, upper.extensions.count) {
                (_, EXTENSIONS_MAX) => return Err(ExtensionError::TooMany),
                (IpProtocol::HOP_BY_HOP, 1..) => return Err(ExtensionError::HopByHopNotFirst),
                _ => {}
            }
            let (extension, rest) = Extension::split_first(upper.protocol, upper.payload)?;
            upper.fragmentation = upper.fragmentation.or(extension.fragmentation());
            upper.protocol = extension.next_header();
            upper.payload = rest;
            upper.extensions.count += 1;
        }
        Ok(upper)
    }

    /// Whether the payload is a later fragment, whose header is in another packet.
    fn is_later_fragment(&self) -> bool {
        self.fragmentation.is_some_and(|fragmentation| fragmentation.offset_bytes != 0)
    }

    /// The extension headers that were walked over, in order.
    pub fn extensions(&self) -> Extensions<'a> {
        self.extensions
    }

    /// The content of the first fragment header, if there is one.
    ///
    /// With an offset above 0, the payload is a later piece and does *not* start with the upper protocol's
    /// header.
    #[inline]
    pub fn fragmentation(&self) -> Option<Fragmentation> {
        self.fragmentation
    }

    /// Where the packet ends its way, if its next stop is `destination`: the address that transport checksums
    /// cover. `None` if a routing header lists it in a way that is not known here.
    pub fn final_destination(&self, destination: Ipv6Addr) -> Option<Ipv6Addr> {
        const LISTS_START: usize = 8;
        let is_routing = |extension: &Extension<'_>| extension.protocol() == IpProtocol::IPV6_ROUTING;
        let Some(routing) = self.extensions().find(is_routing) else { return Some(destination) };
        let addresses = routing.bytes().get(LISTS_START..)?;
        let address = match *routing.bytes() {
            [_, _, _, 0, ..] => return Some(destination), // no stops are left
            // A list (RFC 5095), and a mobile node's home (RFC 6275 section 6.4).
            [_, _, 0 | 2, ..] => addresses.last_chunk()?,
            // Segments, of which the first is the last stop (RFC 8754 section 2).
            [_, _, 4, ..] => addresses.first_chunk()?,
            _ => return None,
        };
        Some(Ipv6Addr::from(*address))
    }

    /// The protocol of the payload.
    #[inline]
    pub fn protocol(&self) -> IpProtocol {
        self.protocol
    }

    /// The bytes after the last extension header, up to the packet's declared length.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// The extension headers of a packet, in order.
#[derive(Clone, Copy, Debug)]
pub struct Extensions<'a> {
    protocol: IpProtocol,
    bytes: &'a [u8],
    /// The rest of the headers, which `UpperLayer::parse` has found complete.
    count: usize,
}

impl<'a> Iterator for Extensions<'a> {
    type Item = Extension<'a>;

    fn next(&mut self) -> Option<Extension<'a>> {
        self.count = self.count.checked_sub(1)?;
        // Splits at the same places as `UpperLayer::parse`, by the same function, so no error is possible.
        let (extension, rest) = Extension::split_first(self.protocol, self.bytes).ok()?;
        (self.protocol, self.bytes) = (extension.next_header(), rest);
        Some(extension)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count, Some(self.count))
    }
}

impl ExactSizeIterator for Extensions<'_> {}

/// A fixed IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Repr {
    /// Differentiated services (6 bits) and congestion notification (2 bits).
    pub traffic_class: u8,
    /// Equal in all packets of a flow.
    pub flow_label: FlowLabel,
    /// Bytes that follow, extension headers included. 0 before hop-by-hop options would declare a jumbogram.
    pub payload_bytes: u16,
    /// The protocol at the start of the payload: an extension header or the upper protocol.
    pub next_header: IpProtocol,
    /// The most hops of the packet.
    pub hop_limit: u8,
    /// The sender's address.
    pub source: Ipv6Addr,
    /// The destination.
    pub destination: Ipv6Addr,
}

impl Repr {
    /// Copies the fixed header out of a view.
    pub fn parse(packet: &Packet<'_>) -> Self {
        Self {
            traffic_class: packet.traffic_class(),
            flow_label: packet.flow_label(),
            payload_bytes: PayloadBytes::number(packet.header),
            next_header: packet.next_header(),
            hop_limit: packet.hop_limit(),
            source: packet.source(),
            destination: packet.destination(),
        }
    }

    /// Writes the header into the first [`HEADER_BYTES`] of `buffer`.
    ///
    /// # Errors
    /// When `buffer` is shorter than that; it is then unchanged.
    #[inline]
    pub fn emit(&self, buffer: &mut [u8]) -> Result<(), BufferTooSmall> {
        let header: &mut [u8; HEADER_BYTES] = header_buffer(buffer)?;
        let version_class_flow = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label.get();
        VersionClassFlow::put(header, version_class_flow.to_be_bytes());
        PayloadBytes::put_number(header, self.payload_bytes);
        NextHeader::put(header, [self.next_header.0]);
        HopLimit::put(header, [self.hop_limit]);
        Source::put(header, self.source.octets());
        Destination::put(header, self.destination.octets());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
