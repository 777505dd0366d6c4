//! Protocol numbers and pairs of addresses, for IPv4 and IPv6.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::checksum::OnesComplementSum;

/// The protocol after an IP header: IPv4 "protocol", IPv6 "next header" (IANA protocol numbers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpProtocol(pub u8);

impl IpProtocol {
    /// IPv6 hop-by-hop options, an extension header.
    pub const HOP_BY_HOP: Self = Self(0);
    /// ICMP for IPv4.
    pub const ICMP: Self = Self(1);
    /// TCP.
    pub const TCP: Self = Self(6);
    /// UDP.
    pub const UDP: Self = Self(17);
    /// IPv6 routing header, an extension header.
    pub const IPV6_ROUTING: Self = Self(43);
    /// IPv6 fragment header, an extension header.
    pub const IPV6_FRAGMENT: Self = Self(44);
    /// ICMP for IPv6.
    pub const ICMPV6: Self = Self(58);
    /// IPv6: no header follows.
    pub const NO_NEXT_HEADER: Self = Self(59);
    /// SCTP.
    pub const SCTP: Self = Self(132);
    /// IPv6 destination options, an extension header.
    pub const DESTINATION_OPTIONS: Self = Self(60);

    const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::HOP_BY_HOP => "IPv6 hop-by-hop options",
            Self::ICMP => "ICMP",
            Self::TCP => "TCP",
            Self::UDP => "UDP",
            Self::SCTP => "SCTP",
            Self::IPV6_ROUTING => "IPv6 routing",
            Self::IPV6_FRAGMENT => "IPv6 fragment",
            Self::ICMPV6 => "ICMPv6",
            Self::NO_NEXT_HEADER => "IPv6 no next header",
            Self::DESTINATION_OPTIONS => "IPv6 destination options",
            _ => return None,
        })
    }
}

impl fmt::Display for IpProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => f.pad(&format!("protocol {}", self.0)),
        }
    }
}

/// Source and destination of a packet, both IPv4 or both IPv6.
///
/// Transport checksums cover these addresses (the pseudo-header), so they are computed and verified with
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpAddresses {
    /// Both addresses are IPv4.
    V4 {
        /// The sender's address.
        source: Ipv4Addr,
        /// The destination.
        destination: Ipv4Addr,
    },
    /// Both addresses are IPv6.
    V6 {
        /// The sender's address.
        source: Ipv6Addr,
        /// The destination. For a checksum: the *final* destination, if a routing header still lists others.
        destination: Ipv6Addr,
    },
}

impl IpAddresses {
    /// Pairs two addresses; `None` if they are of different families.
    pub const fn new(source: IpAddr, destination: IpAddr) -> Option<Self> {
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Some(Self::V4 { source, destination }),
            (IpAddr::V6(source), IpAddr::V6(destination)) => Some(Self::V6 { source, destination }),
            _ => None,
        }
    }

    /// The sender's address.
    pub const fn source(&self) -> IpAddr {
        match *self {
            Self::V4 { source, .. } => IpAddr::V4(source),
            Self::V6 { source, .. } => IpAddr::V6(source),
        }
    }

    /// The destination.
    pub const fn destination(&self) -> IpAddr {
        match *self {
            Self::V4 { destination, .. } => IpAddr::V4(destination),
            Self::V6 { destination, .. } => IpAddr::V6(destination),
        }
    }

    /// The pair reversed, as in a reply.
    #[must_use]
    pub const fn reversed(&self) -> Self {
        match *self {
            Self::V4 { source, destination } => Self::V4 { source: destination, destination: source },
            Self::V6 { source, destination } => Self::V6 { source: destination, destination: source },
        }
    }

    /// The sum to start a transport checksum from (RFC 768 for IPv4, RFC 8200 section 8.1 for IPv6).
    ///
    /// `upper_bytes` counts the transport header and its payload.
    pub fn pseudo_header_sum(&self, protocol: IpProtocol, upper_bytes: u32) -> OnesComplementSum {
        // The length has 16 bits for IPv4 and 32 for IPv6, the protocol 8 and 32: the leading zeros make no
        // difference to the sum, so both families are written in the wider shape.
        let sum = OnesComplementSum::new().with(&upper_bytes.to_be_bytes()).with(&[0, 0, 0, protocol.0]);
        match self {
            Self::V4 { source, destination } => sum.with(&source.octets()).with(&destination.octets()),
            Self::V6 { source, destination } => sum.with(&source.octets()).with(&destination.octets()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: IpAddresses =
        IpAddresses::V4 { source: Ipv4Addr::new(10, 0, 0, 1), destination: Ipv4Addr::new(10, 0, 0, 2) };

    #[test]
    fn addresses_of_two_families_are_refused() {
        let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
        assert_eq!(IpAddresses::new(V4.source(), v6), None);
        assert_eq!(IpAddresses::new(v6, V4.source()), None);
        assert_eq!(IpAddresses::new(V4.source(), V4.destination()), Some(V4));
        assert_eq!(V4.reversed().source(), V4.destination());
        assert_eq!(V4.reversed().reversed(), V4);
    }

    #[test]
    fn the_ipv4_pseudo_header_sum_matches() {
        // 0a00 + 0001 + 0a00 + 0002 + 0011 (UDP) + 000b (length) = 141f
        assert_eq!(V4.pseudo_header_sum(IpProtocol::UDP, 11).checksum(), !0x141f);
    }

    #[test]
    fn protocols_print_their_name_or_number() {
        assert_eq!(IpProtocol::UDP.to_string(), "UDP");
        assert_eq!(IpProtocol(253).to_string(), "protocol 253");
    }
}
