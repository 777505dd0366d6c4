//! Ethernet II and IEEE 802.3 frames, without preamble and frame check sequence (the device removes those).

use std::fmt;

use thiserror::Error;

use super::MacAddress;
use super::emit::{BufferTooSmall, header_buffer};
use super::field::Field;

/// Bytes of the header: two addresses and the type.
pub const HEADER_BYTES: usize = 14;

type Destination = Field<0, 6>;
type Source = Field<6, 6>;
type Type = Field<12, 2>;

/// What an Ethernet header or a VLAN tag says about the bytes that follow it.
///
/// Up to 1500 it is not a type but their number, as in IEEE 802.3 frames (spanning tree, LLC).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4.
    pub const IPV4: Self = Self(0x0800);
    /// ARP.
    pub const ARP: Self = Self(0x0806);
    /// A VLAN tag of a customer network (IEEE 802.1Q, "C-tag").
    pub const VLAN: Self = Self(0x8100);
    /// IPv6.
    pub const IPV6: Self = Self(0x86dd);
    /// A VLAN tag of a service provider (IEEE 802.1ad, "S-tag"), usually outside a [`VLAN`](Self::VLAN) tag.
    pub const SERVICE_VLAN: Self = Self(0x88a8);
    /// A provider's tag of devices older than IEEE 802.1ad. Linux leaves it in the frame.
    pub const OLD_SERVICE_VLAN: Self = Self(0x9100);
    /// As [`OLD_SERVICE_VLAN`](Self::OLD_SERVICE_VLAN), of other devices.
    pub const OTHER_SERVICE_VLAN: Self = Self(0x9200);

    /// The largest value that is a length (IEEE 802.3, 3.2.6).
    const LENGTH_MAX: u16 = 1500;

    /// Whether a VLAN tag follows.
    pub const fn is_vlan(self) -> bool {
        matches!(self, Self::VLAN | Self::SERVICE_VLAN | Self::OLD_SERVICE_VLAN | Self::OTHER_SERVICE_VLAN)
    }

    /// The number of payload bytes, if the value is a length and not a type.
    pub fn declared_bytes(self) -> Option<usize> {
        (self.0 <= Self::LENGTH_MAX).then_some(usize::from(self.0))
    }

    const fn known_name(self) -> Option<&'static str> {
        Some(match self {
            Self::IPV4 => "IPv4",
            Self::ARP => "ARP",
            Self::VLAN => "802.1Q VLAN",
            Self::IPV6 => "IPv6",
            Self::SERVICE_VLAN => "802.1ad VLAN",
            Self::OLD_SERVICE_VLAN => "VLAN tag 0x9100",
            Self::OTHER_SERVICE_VLAN => "VLAN tag 0x9200",
            _ => return None,
        })
    }
}

impl fmt::Display for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.known_name(), self.declared_bytes()) {
            (Some(name), _) => f.pad(name),
            (None, Some(bytes)) => f.pad(&format!("802.3, {bytes} bytes")),
            (None, None) => f.pad(&format!("type 0x{:04x}", self.0)),
        }
    }
}

/// View of an Ethernet frame.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    header: &'a [u8; HEADER_BYTES],
    payload: &'a [u8],
}

/// Why bytes are not an Ethernet frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ParseError {
    /// The bytes end inside the header.
    #[error("the Ethernet header has 14 bytes, the frame has {frame_bytes}")]
    TooShort {
        /// The length of the frame.
        frame_bytes: usize,
    },
    /// An 802.3 length reaches beyond the bytes.
    #[error("the 802.3 length says {declared_bytes} bytes, {present_bytes} follow the header")]
    LengthBeyondFrame {
        /// Payload bytes the header declares.
        declared_bytes: usize,
        /// Bytes after the header.
        present_bytes: usize,
    },
}

impl<'a> Frame<'a> {
    /// Checks that `bytes`, a whole frame, are as long as the header declares.
    ///
    /// # Errors
    /// The frame is shorter than its header or than its 802.3 length.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let frame = Self::parse_cut(bytes)?;
        let (declared_bytes, present_bytes) = (frame.ether_type().declared_bytes(), frame.payload.len());
        match declared_bytes {
            Some(declared_bytes) if present_bytes < declared_bytes => {
                Err(ParseError::LengthBeyondFrame { declared_bytes, present_bytes })
            }
            _ => Ok(frame),
        }
    }

    /// Checks the header of a frame that may be cut after it; its payload is then shorter than declared.
    ///
    /// # Errors
    /// When the bytes end inside the header.
    pub fn parse_cut(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let frame_bytes = bytes.len();
        let (header, rest) = bytes.split_first_chunk().ok_or(ParseError::TooShort { frame_bytes })?;
        let declared_bytes = EtherType(Type::number(header)).declared_bytes();
        let payload = declared_bytes.and_then(|declared_bytes| rest.get(..declared_bytes)).unwrap_or(rest);
        Ok(Self { header, payload })
    }

    /// The station or group the frame is for.
    #[inline]
    pub fn destination(&self) -> MacAddress {
        MacAddress(Destination::get(self.header))
    }

    /// The station that sent the frame.
    #[inline]
    pub fn source(&self) -> MacAddress {
        MacAddress(Source::get(self.header))
    }

    /// The type of the payload. If it is a VLAN tag, continue with [`vlan::TagStack`](super::vlan::TagStack).
    #[inline]
    pub fn ether_type(&self) -> EtherType {
        EtherType(Type::number(self.header))
    }

    /// The bytes after the header.
    ///
    /// With a type, they may end in padding up to the smallest frame (60 bytes), which only the next header
    /// can tell from data. With an 802.3 length, padding is cut off.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// An Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Repr {
    /// The station or group the frame is for.
    pub destination: MacAddress,
    /// The station that sends the frame.
    pub source: MacAddress,
    /// What follows the header.
    pub ether_type: EtherType,
}

impl Repr {
    /// Copies the header out of a view.
    pub fn parse(frame: &Frame<'_>) -> Self {
        Self { destination: frame.destination(), source: frame.source(), ether_type: frame.ether_type() }
    }

    /// Writes the header into the first [`HEADER_BYTES`] of `buffer`.
    ///
    /// # Errors
    /// When `buffer` is shorter than that; it is then unchanged.
    #[inline]
    pub fn emit(&self, buffer: &mut [u8]) -> Result<(), BufferTooSmall> {
        let header: &mut [u8; HEADER_BYTES] = header_buffer(buffer)?;
        Destination::put(header, self.destination.0);
        Source::put(header, self.source.0);
        Type::put_number(header, self.ether_type.0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::captured;
    use proptest::prelude::*;

    #[test]
    fn a_captured_ethernet_frame_is_parsed() {
        let frame = Frame::parse(&captured::UDP_V4).unwrap();
        assert_eq!(frame.destination().to_string(), "02:00:00:00:00:02");
        assert_eq!(frame.source().to_string(), "02:00:00:00:00:01");
        assert_eq!(frame.ether_type(), EtherType::IPV4);
        assert_eq!(frame.payload(), &captured::UDP_V4[14..]);
    }

    #[test]
    fn an_802_3_length_removes_padding() {
        // A spanning-tree frame says that 38 bytes follow and is padded to 60.
        let mut bytes = [0; 60];
        bytes[13] = 38;
        assert_eq!(Frame::parse(&bytes).unwrap().payload().len(), 38);
        assert_eq!(
            Frame::parse(&bytes[..51]).unwrap_err(),
            ParseError::LengthBeyondFrame { declared_bytes: 38, present_bytes: 37 }
        );
        assert_eq!(Frame::parse(&bytes[..13]).unwrap_err(), ParseError::TooShort { frame_bytes: 13 });
    }

    #[test]
    fn ether_types_and_lengths_are_printed_differently() {
        assert_eq!(EtherType::SERVICE_VLAN.to_string(), "802.1ad VLAN");
        assert_eq!(EtherType(1500).to_string(), "802.3, 1500 bytes");
        assert_eq!(EtherType(0x88cc).to_string(), "type 0x88cc");
    }

    #[test]
    fn a_buffer_too_small_is_not_changed() {
        let repr = Repr::parse(&Frame::parse(&captured::UDP_V4).unwrap());
        let mut buffer = [0xaa; 13];
        assert_eq!(repr.emit(&mut buffer), Err(BufferTooSmall { needed_bytes: 14, buffer_bytes: 13 }));
        assert_eq!(buffer, [0xaa; 13]);
    }

    proptest! {
        #[test]
        fn emit_then_parse(destination: [u8; 6], source: [u8; 6], ether_type: u16) {
            let repr = Repr {
                destination: MacAddress(destination),
                source: MacAddress(source),
                ether_type: EtherType(ether_type),
            };
            let mut bytes = [0; HEADER_BYTES + 1500];
            repr.emit(&mut bytes).unwrap();
            prop_assert_eq!(Repr::parse(&Frame::parse(&bytes).unwrap()), repr);
        }
    }
}
