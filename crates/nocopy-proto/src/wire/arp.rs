//! ARP for IPv4 over Ethernet (RFC 826): requests for the owner of an address, and replies.

use std::fmt;
use std::net::Ipv4Addr;

use thiserror::Error;

use super::emit::{BufferTooSmall, header_buffer};
use super::field::Field;
use super::{EtherType, MacAddress};

/// Bytes of a whole packet; there is no payload.
pub const HEADER_BYTES: usize = 28;

type HardwareType = Field<0, 2>;
type ProtocolType = Field<2, 2>;
type AddressBytes = Field<4, 2>;
type OperationCode = Field<6, 2>;
type SenderMac = Field<8, 6>;
type SenderIp = Field<14, 4>;
type TargetMac = Field<18, 6>;
type TargetIp = Field<24, 4>;

const ETHERNET: u16 = 1;
/// Six bytes of MAC address, four of IPv4 address.
const ETHERNET_IPV4_BYTES: [u8; 2] = [6, 4];

/// The kind of an ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operation(pub u16);

impl Operation {
    /// The sender asks for the owner of the target IP address.
    pub const REQUEST: Self = Self(1);
    /// The sender announces that it owns the sender IP address.
    pub const REPLY: Self = Self(2);
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::REQUEST => f.pad("request"),
            Self::REPLY => f.pad("reply"),
            Self(code) => f.pad(&format!("operation {code}")),
        }
    }
}

/// View of an ARP packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    header: &'a [u8; HEADER_BYTES],
}

/// Why bytes are not an ARP packet for IPv4 over Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ParseError {
    /// The bytes end inside the packet.
    #[error("ARP for IPv4 over Ethernet has 28 bytes, the packet has {packet_bytes}")]
    TooShort {
        /// The length of the packet.
        packet_bytes: usize,
    },
    /// ARP for another kind of link than Ethernet.
    #[error("ARP names hardware type {hardware_type}; only 1, Ethernet, is supported")]
    NotEthernet {
        /// The type in the packet.
        hardware_type: u16,
    },
    /// ARP for another network protocol than IPv4.
    #[error("ARP resolves addresses of {protocol}; only IPv4 is supported")]
    NotIpv4 {
        /// The type in the packet.
        protocol: EtherType,
    },
    /// The address lengths contradict the types.
    #[error("ARP for IPv4 over Ethernet says addresses of {mac_bytes} and {ip_bytes} bytes, not of 6 and 4")]
    AddressLengths {
        /// Bytes of a MAC address, by the packet.
        mac_bytes: u8,
        /// Bytes of an IP address, by the packet.
        ip_bytes: u8,
    },
}

impl<'a> Packet<'a> {
    /// Checks that `bytes` start with ARP for IPv4 over Ethernet. What follows is padding.
    ///
    /// # Errors
    /// When the packet is cut, or about other kinds of addresses.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let header: &[u8; HEADER_BYTES] =
            bytes.first_chunk().ok_or(ParseError::TooShort { packet_bytes: bytes.len() })?;
        let hardware_type = HardwareType::number(header);
        if hardware_type != ETHERNET {
            return Err(ParseError::NotEthernet { hardware_type });
        }
        let protocol = EtherType(ProtocolType::number(header));
        if protocol != EtherType::IPV4 {
            return Err(ParseError::NotIpv4 { protocol });
        }
        match AddressBytes::get(header) {
            ETHERNET_IPV4_BYTES => Ok(Self { header }),
            [mac_bytes, ip_bytes] => Err(ParseError::AddressLengths { mac_bytes, ip_bytes }),
        }
    }

    /// The kind of packet.
    #[inline]
    pub fn operation(&self) -> Operation {
        Operation(OperationCode::number(self.header))
    }

    /// The station that sent the packet.
    #[inline]
    pub fn sender_mac(&self) -> MacAddress {
        MacAddress(SenderMac::get(self.header))
    }

    /// The sender's IP address. In a probe (RFC 5227) it is 0.0.0.0.
    #[inline]
    pub fn sender_ip(&self) -> Ipv4Addr {
        Ipv4Addr::from(SenderIp::get(self.header))
    }

    /// In a reply the station that asked; without meaning in a request.
    #[inline]
    pub fn target_mac(&self) -> MacAddress {
        MacAddress(TargetMac::get(self.header))
    }

    /// The address asked for; in a reply the address of the station that asked.
    #[inline]
    pub fn target_ip(&self) -> Ipv4Addr {
        Ipv4Addr::from(TargetIp::get(self.header))
    }
}

/// An ARP packet for IPv4 over Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Repr {
    /// The kind of packet.
    pub operation: Operation,
    /// The station that sends the packet.
    pub sender_mac: MacAddress,
    /// The sender's IP address.
    pub sender_ip: Ipv4Addr,
    /// In a reply the station that asked; in a request [`MacAddress::UNSPECIFIED`].
    pub target_mac: MacAddress,
    /// The address asked for; in a reply the address of the station that asked.
    pub target_ip: Ipv4Addr,
}

impl Repr {
    /// Copies the packet out of a view.
    pub fn parse(packet: &Packet<'_>) -> Self {
        Self {
            operation: packet.operation(),
            sender_mac: packet.sender_mac(),
            sender_ip: packet.sender_ip(),
            target_mac: packet.target_mac(),
            target_ip: packet.target_ip(),
        }
    }

    /// Writes the packet into the first [`HEADER_BYTES`] of `buffer`.
    ///
    /// # Errors
    /// When `buffer` is shorter than that; it is then unchanged.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<(), BufferTooSmall> {
        let header: &mut [u8; HEADER_BYTES] = header_buffer(buffer)?;
        HardwareType::put_number(header, ETHERNET);
        ProtocolType::put_number(header, EtherType::IPV4.0);
        AddressBytes::put(header, ETHERNET_IPV4_BYTES);
        OperationCode::put_number(header, self.operation.0);
        SenderMac::put(header, self.sender_mac.0);
        SenderIp::put(header, self.sender_ip.octets());
        TargetMac::put(header, self.target_mac.0);
        TargetIp::put(header, self.target_ip.octets());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::captured;
    use proptest::prelude::*;

    #[test]
    fn a_captured_arp_request_is_parsed() {
        let bytes = &captured::ARP_REQUEST[14..];
        let packet = Packet::parse(bytes).unwrap();
        let repr = Repr::parse(&packet);
        assert_eq!(repr.operation, Operation::REQUEST);
        assert_eq!(repr.sender_mac, MacAddress([2, 0, 0, 0, 0, 1]));
        assert_eq!(repr.sender_ip, Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(repr.target_mac, MacAddress::UNSPECIFIED);
        assert_eq!(repr.target_ip, Ipv4Addr::new(10, 0, 0, 2));
        let mut emitted = [0xaa; HEADER_BYTES];
        repr.emit(&mut emitted).unwrap();
        assert_eq!(emitted, bytes);
    }

    #[test]
    fn other_kinds_of_arp_are_distinguished() {
        let error_with = |at: usize, byte| {
            let mut bytes = captured::ARP_REQUEST;
            bytes[14 + at] = byte;
            Packet::parse(&bytes[14..]).unwrap_err()
        };
        assert_eq!(error_with(1, 6), ParseError::NotEthernet { hardware_type: 6 });
        assert_eq!(error_with(2, 0x86), ParseError::NotIpv4 { protocol: EtherType(0x8600) });
        assert_eq!(error_with(5, 16), ParseError::AddressLengths { mac_bytes: 6, ip_bytes: 16 });
        for packet_bytes in 0..HEADER_BYTES {
            let cut = &captured::ARP_REQUEST[14..14 + packet_bytes];
            assert_eq!(Packet::parse(cut).unwrap_err(), ParseError::TooShort { packet_bytes });
        }
    }

    proptest! {
        #[test]
        fn emit_then_parse(
            operation: u16, sender_mac: [u8; 6], sender_ip: [u8; 4], target_mac: [u8; 6], target_ip: [u8; 4],
        ) {
            let repr = Repr {
                operation: Operation(operation),
                sender_mac: MacAddress(sender_mac),
                sender_ip: sender_ip.into(),
                target_mac: MacAddress(target_mac),
                target_ip: target_ip.into(),
            };
            let mut bytes = [0; HEADER_BYTES];
            repr.emit(&mut bytes).unwrap();
            prop_assert_eq!(Repr::parse(&Packet::parse(&bytes).unwrap()), repr);
        }
    }
}
