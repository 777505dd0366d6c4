//! A UDP datagram in an Ethernet frame: all views at once, for a receiver that expects nothing else.

use super::udp::{self, ChecksumError, ChecksumStatus, Datagram};
use super::{Ecn, EtherType, IpAddresses, IpProtocol, ethernet, ipv4, ipv6};

/// View of an untagged frame that holds a whole UDP datagram.
#[derive(Clone, Copy, Debug)]
pub struct UdpPacket<'a> {
    addresses: IpAddresses,
    datagram: Datagram<'a>,
    payload_at: usize,
    traffic_class: u8,
}

/// Why a frame is not a whole UDP datagram directly after an IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotUdp {
    /// The frame is shorter than an Ethernet header, or than its length.
    #[error(transparent)]
    Ethernet(#[from] ethernet::ParseError),
    /// Neither IPv4 nor IPv6, or tagged.
    #[error("the frame holds neither IPv4 nor IPv6")]
    NotIp,
    /// The IPv4 packet is malformed.
    #[error(transparent)]
    Ipv4(#[from] ipv4::ParseError),
    /// The IPv6 packet is malformed.
    #[error(transparent)]
    Ipv6(#[from] ipv6::ParseError),
    /// The checksum of the IPv4 header is wrong.
    #[error("the IPv4 header's checksum is wrong")]
    Ipv4Checksum,
    /// A fragment, another protocol, or IPv6 with extension headers.
    #[error("the packet is a fragment, or not UDP")]
    OtherProtocol,
    /// The UDP datagram is malformed.
    #[error(transparent)]
    Udp(#[from] udp::ParseError),
}

impl<'a> UdpPacket<'a> {
    /// Checks all headers and lengths of a frame; of checksums only that of the IPv4 header.
    ///
    /// # Errors
    /// The frame holds no whole UDP datagram, or one in a way that is not looked into: behind a VLAN tag or
    /// IPv6 extension headers.
    #[inline]
    pub fn parse(frame: &'a [u8]) -> Result<Self, NotUdp> {
        let ethernet = ethernet::Frame::parse(frame)?;
        let (addresses, payload, ip_header_bytes, traffic_class) = match ethernet.ether_type() {
            EtherType::IPV4 => {
                let packet = ipv4::Packet::parse(ethernet.payload())?;
                let header_bytes = packet.header_bytes();
                if packet.total_bytes().is_none() {
                    // Only TCP is sent without a length.
                    return Err(ipv4::ParseError::TotalBelowHeader { total_bytes: 0, header_bytes }.into());
                }
                if !packet.checksum_is_valid() {
                    return Err(NotUdp::Ipv4Checksum);
                }
                if packet.protocol() != IpProtocol::UDP || packet.fragmentation().is_fragment() {
                    return Err(NotUdp::OtherProtocol);
                }
                (packet.addresses(), packet.payload(), header_bytes, packet.type_of_service())
            }
            EtherType::IPV6 => {
                let packet = ipv6::Packet::parse(ethernet.payload())?;
                if packet.next_header() != IpProtocol::UDP {
                    return Err(NotUdp::OtherProtocol);
                }
                if packet.payload_bytes().is_none() {
                    return Err(udp::ParseError::TooShort { datagram_bytes: 0 }.into());
                }
                (packet.addresses(), packet.payload(), ipv6::HEADER_BYTES, packet.traffic_class())
            }
            _ => return Err(NotUdp::NotIp),
        };
        let payload_at = ethernet::HEADER_BYTES + ip_header_bytes + udp::HEADER_BYTES;
        Ok(Self { addresses, datagram: Datagram::parse(payload)?, payload_at, traffic_class })
    }

    /// Sender and receiver.
    #[inline]
    pub fn addresses(&self) -> &IpAddresses {
        &self.addresses
    }

    /// Whether routers may mark it, and whether one did.
    #[inline]
    pub fn ecn(&self) -> Ecn {
        Ecn::of_traffic_class(self.traffic_class)
    }

    /// The datagram.
    #[inline]
    pub fn datagram(&self) -> &Datagram<'a> {
        &self.datagram
    }

    /// The payload in the frame: its offset and length.
    #[inline]
    pub fn payload_range(&self) -> (usize, usize) {
        (self.payload_at, self.datagram.payload().len())
    }

    /// Compares the UDP checksum with the bytes.
    ///
    /// # Errors
    /// When it is wrong, or absent on IPv6.
    #[inline]
    pub fn verify_checksum(&self) -> Result<ChecksumStatus, ChecksumError> {
        self.datagram.verify_checksum(&self.addresses)
    }

    /// Whether the checksum was left to a device that has not computed it; see
    /// [`Datagram::checksum_is_unfinished`].
    #[inline]
    pub fn checksum_is_unfinished(&self) -> bool {
        self.datagram.checksum_is_unfinished(&self.addresses)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::udp_frame::tests::{any_checksum, any_flow};
    use super::super::{UdpChecksum, UdpFrame};
    use super::*;

    fn emitted_frame(flow: &UdpFrame, payload: &[u8], padding: usize) -> Vec<u8> {
        let mut frame = vec![0; flow.header_bytes()];
        flow.emit_headers(&mut frame, payload).unwrap();
        frame.extend_from_slice(payload);
        frame.resize(frame.len() + padding, 0xee);
        frame
    }

    proptest! {
        #[test]
        fn emitted_packets_are_parsed_back(
            flow in any_flow(), checksum in any_checksum(), payload in vec(any::<u8>(), 0..1500), padding in 0..20_usize,
        ) {
            let flow = UdpFrame { checksum, vlan: None, ..flow };
            prop_assume!(checksum != UdpChecksum::Omitted || flow.addresses.source().is_ipv4());
            let frame = emitted_frame(&flow, &payload, padding);
            let packet = UdpPacket::parse(&frame).unwrap();
            prop_assert_eq!(packet.addresses(), &flow.addresses);
            prop_assert_eq!(packet.ecn().bits(), flow.traffic_class % 4);
            let datagram = packet.datagram();
            prop_assert_eq!((datagram.source_port(), datagram.destination_port()), (flow.source_port, flow.destination_port));
            let (at, bytes) = packet.payload_range();
            prop_assert_eq!(&frame[at..at + bytes], &payload[..]);
            match checksum {
                UdpChecksum::Computed => prop_assert_eq!(packet.verify_checksum(), Ok(ChecksumStatus::Verified)),
                UdpChecksum::Omitted => prop_assert_eq!(packet.verify_checksum(), Ok(ChecksumStatus::Unprotected)),
                UdpChecksum::Offloaded => prop_assert!(packet.checksum_is_unfinished()),
            }
        }

        #[test]
        fn damage_is_detected_and_any_bytes_are_safe(
            flow in any_flow(), payload in vec(any::<u8>(), 0..100), at in any::<prop::sample::Index>(), bit in 0..8_u8,
            bytes in vec(any::<u8>(), 0..200),
        ) {
            let flow = UdpFrame { vlan: None, checksum: UdpChecksum::Computed, ..flow };
            let mut frame = emitted_frame(&flow, &payload, 0);
            // Ethernet's addresses are covered by no checksum here, nor are IPv6's class, label and hop
            // limit.
            let at = at.index(frame.len());
            let in_ipv6 = flow.addresses.source().is_ipv6();
            prop_assume!(at >= 14 && !(in_ipv6 && ((14..18).contains(&at) || at == 21)));
            frame[at] ^= 1 << bit;
            let intact = UdpPacket::parse(&frame).is_ok_and(|packet| packet.verify_checksum() == Ok(ChecksumStatus::Verified));
            prop_assert!(!intact, "a bit of byte {} was turned", at);
            if let Ok(packet) = UdpPacket::parse(&bytes) {
                let (at, length) = packet.payload_range();
                prop_assert_eq!(bytes.get(at..at + length), Some(packet.datagram().payload()));
            }
        }

        #[test]
        fn tagged_and_cut_frames_are_refused(flow in any_flow(), cut in any::<prop::sample::Index>()) {
            let tagged = UdpFrame { vlan: Some(crate::wire::vlan::TagControl::new(5, 0, false).unwrap()), ..flow };
            prop_assert!(matches!(UdpPacket::parse(&emitted_frame(&tagged, b"abc", 0)), Err(NotUdp::NotIp)));
            let plain = emitted_frame(&UdpFrame { vlan: None, ..flow }, b"abc", 0);
            prop_assert!(UdpPacket::parse(&plain[..cut.index(plain.len())]).is_err());
        }
    }
}
