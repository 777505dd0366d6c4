//! Generated packets: a template written into each frame, and then the fields that differ.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nocopy_proto::wire::checksum::{ChecksumField, OnesComplementSum};
use nocopy_proto::wire::{ethernet, ipv4, udp, vlan};
use nocopy_proto::{IpAddresses, IpProtocol, UdpChecksum, UdpFrame};

use super::error::Error;
use super::source::{NextPacket, PacketSource, PeekResult};
use crate::Failure;

/// Default length, if payload and headers fit.
const FRAME_BYTES: usize = 64;

const SEQUENCE_BYTES: usize = 8;

// Places in IP headers: RFC 791 section 3.1, RFC 8200 section 3.
const IPV4_CHECKSUM: usize = 10;
const IPV4_SOURCE: usize = 12;
const IPV6_SOURCE: usize = 8;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum GeneratedPayload {
    /// A number in each packet, then zeros.
    Sequence,
    /// These bytes, then zeros.
    Bytes(Vec<u8>),
}

impl GeneratedPayload {
    fn bytes_min(&self) -> usize {
        match self {
            GeneratedPayload::Sequence => SEQUENCE_BYTES,
            GeneratedPayload::Bytes(bytes) => bytes.len(),
        }
    }
}

#[derive(Debug)]
pub(super) struct PacketTemplate {
    bytes: Vec<u8>,
    number: u64,
    sequence_at: Option<usize>,
    flows: Flows,
    tagged: bool,
    udp_at: usize,
    /// Sum of the constant parts that the UDP checksum covers; `None` if the checksum is left out.
    udp_sum: Option<OnesComplementSum>,
    /// Whether `udp_sum` is the complete sum, not only the part that a device completes.
    complete: bool,
}

#[derive(Debug)]
struct Flows {
    count: u64,
    source: IpAddr,
    source_port: u16,
    source_at: usize,
    /// IPv4's header checksum: its offset, and the sum of the header without the source address.
    header_checksum: Option<(usize, OnesComplementSum)>,
}

impl Flows {
    /// Source address and port of a packet's flow: first all ports of an address, then the next address.
    #[inline]
    fn source_of_packet(&self, number: u64) -> (AddressOctets, u16) {
        let flow = number % self.count;
        let ports = 0x1_0000 - u64::from(self.source_port);
        let port = self.source_port + (flow % ports) as u16;
        (AddressOctets::offset_from(self.source, flow / ports), port)
    }
}

/// An address of either family as bytes.
#[derive(Debug, Clone, Copy)]
struct AddressOctets {
    bytes: [u8; 16],
    count: usize,
}

impl AddressOctets {
    /// The address `offset` after `first`.
    #[inline]
    fn offset_from(first: IpAddr, offset: u64) -> Self {
        let mut bytes = [0; 16];
        match first {
            IpAddr::V4(first) => {
                let address = first.to_bits().wrapping_add(offset as u32);
                bytes[..4].copy_from_slice(&address.to_be_bytes());
                Self { bytes, count: 4 }
            }
            IpAddr::V6(first) => {
                let address = first.to_bits().wrapping_add(offset.into());
                Self { bytes: address.to_be_bytes(), count: 16 }
            }
        }
    }

    #[inline]
    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.count]
    }
}

impl PacketTemplate {
    /// Frames of `frame_bytes`, or as many as headers and payload need. The default payload is a sequence, if
    /// it fits.
    pub(super) fn new(
        headers: &UdpFrame,
        payload: Option<GeneratedPayload>,
        frame_bytes: Option<u64>,
        flows: u32,
    ) -> Result<Self, Error> {
        let header_bytes = headers.header_bytes();
        let payload = payload.unwrap_or_else(|| match frame_bytes {
            Some(bytes) if bytes < (header_bytes + SEQUENCE_BYTES) as u64 => {
                GeneratedPayload::Bytes(Vec::new())
            }
            _ => GeneratedPayload::Sequence,
        });
        let bytes_min = header_bytes + payload.bytes_min();
        let frame_bytes = requested_frame_bytes(frame_bytes, bytes_min)?;
        let mut bytes = vec![0; frame_bytes];
        if let GeneratedPayload::Bytes(content) = &payload {
            bytes[header_bytes..bytes_min].copy_from_slice(content);
        }
        let (head, rest) = bytes.split_at_mut(header_bytes);
        headers.emit_headers(head, rest)?;
        let flows = Flows::new(headers, flows, &bytes);
        let udp_at = header_bytes - udp::HEADER_BYTES;
        let mut template = Self {
            number: 0,
            sequence_at: (payload == GeneratedPayload::Sequence).then_some(header_bytes),
            flows,
            tagged: headers.vlan.is_some(),
            udp_at,
            udp_sum: base_checksum_sum(headers, &bytes[udp_at..]),
            complete: headers.checksum == UdpChecksum::Computed,
            bytes: Vec::new(),
        };
        template.write_varying_fields(&mut bytes);
        template.bytes = bytes;
        Ok(template)
    }

    pub(super) fn frame_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The place of a checksum that a device completes.
    pub(super) fn offloaded_checksum(&self) -> Option<ChecksumField> {
        let left = self.udp_sum.is_some() && !self.complete;
        left.then_some(ChecksumField { start: self.udp_at as u16, offset: udp::CHECKSUM_OFFSET })
    }

    /// Writes the fields that differ into a frame with the template.
    #[inline]
    fn write_varying_fields(&self, frame: &mut [u8]) {
        let (source, port) = self.flows.source_of_packet(self.number);
        let number = self.number.to_be_bytes();
        let port = port.to_be_bytes();
        let source_at = self.flows.source_at;
        frame[source_at..source_at + source.count].copy_from_slice(source.as_slice());
        frame[self.udp_at..self.udp_at + 2].copy_from_slice(&port);
        if let Some(place) = self.sequence_at {
            frame[place..place + SEQUENCE_BYTES].copy_from_slice(&number);
        }
        if let Some((place, sum)) = self.flows.header_checksum {
            let checksum = sum.with(source.as_slice()).checksum();
            frame[place..place + 2].copy_from_slice(&checksum.to_be_bytes());
        }
        let Some(sum) = self.udp_sum.map(|sum| sum.with(source.as_slice())) else { return };
        let checksum = if self.complete {
            let sequence = if self.sequence_at.is_some() { &number[..] } else { &[] };
            // 0 would mean that there is no checksum (RFC 768).
            match sum.with(&port).with(sequence).checksum() {
                0 => u16::MAX,
                checksum => checksum,
            }
        } else {
            !sum.checksum()
        };
        let place = self.udp_at + usize::from(udp::CHECKSUM_OFFSET);
        frame[place..place + 2].copy_from_slice(&checksum.to_be_bytes());
    }
}

impl Flows {
    fn new(headers: &UdpFrame, count: u32, frame: &[u8]) -> Self {
        let ip_at = ethernet::HEADER_BYTES + headers.vlan.map_or(0, |_| vlan::TAG_BYTES);
        let source_at = ip_at + if headers.addresses.source().is_ipv4() { IPV4_SOURCE } else { IPV6_SOURCE };
        let header_checksum = headers.addresses.source().is_ipv4().then(|| {
            let header = &frame[ip_at..ip_at + ipv4::HEADER_BYTES];
            let before = &header[..IPV4_CHECKSUM];
            let destination = &header[IPV4_SOURCE + 4..];
            (ip_at + IPV4_CHECKSUM, OnesComplementSum::new().with(before).with(destination))
        });
        Self {
            count: count.into(),
            source: headers.addresses.source(),
            source_port: headers.source_port,
            source_at,
            header_checksum,
        }
    }
}

/// The requested length, or the least that is needed.
fn requested_frame_bytes(frame_bytes: Option<u64>, bytes_min: usize) -> Result<usize, Error> {
    match frame_bytes {
        Some(frame_bytes) if frame_bytes < bytes_min as u64 => {
            Err(Error::FrameTooShort { frame_bytes, bytes_min })
        }
        Some(frame_bytes) => Ok(frame_bytes as usize),
        None => Ok(bytes_min.max(FRAME_BYTES)),
    }
}

/// The checksum sum of a UDP segment, without source address and port and with a sequence number of zero.
fn base_checksum_sum(headers: &UdpFrame, segment: &[u8]) -> Option<OnesComplementSum> {
    let no_source = match headers.addresses {
        IpAddresses::V4 { destination, .. } => IpAddresses::V4 { source: Ipv4Addr::UNSPECIFIED, destination },
        IpAddresses::V6 { destination, .. } => IpAddresses::V6 { source: Ipv6Addr::UNSPECIFIED, destination },
    };
    let pseudo = no_source.pseudo_header_sum(IpProtocol::UDP, segment.len() as u32);
    let checksum_at = usize::from(udp::CHECKSUM_OFFSET);
    match headers.checksum {
        UdpChecksum::Omitted => None,
        UdpChecksum::Offloaded => Some(pseudo),
        UdpChecksum::Computed => {
            let payload = &segment[udp::HEADER_BYTES..];
            // Bytes added after a payload of odd length must begin a word.
            let padding = &[0][..payload.len() % 2];
            Some(pseudo.with(&segment[2..checksum_at]).with(payload).with(padding))
        }
    }
}

impl PacketSource for PacketTemplate {
    #[inline]
    fn peek(&mut self) -> Result<PeekResult, Failure> {
        Ok(PeekResult::Packet(NextPacket { bytes: self.bytes.len(), tagged: self.tagged, recorded_ns: 0 }))
    }

    #[inline]
    fn write(&mut self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.bytes);
        if self.sequence_at.is_some() || self.flows.count > 1 {
            self.write_varying_fields(buffer);
        }
    }

    #[inline]
    fn advance(&mut self) {
        self.number += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nocopy_proto::MacAddress;
    use nocopy_proto::wire::vlan::TagControl;
    use proptest::prelude::*;

    fn test_headers(ipv6: bool, tagged: bool, checksum: UdpChecksum, source_port: u16) -> UdpFrame {
        let addresses = if ipv6 {
            IpAddresses::new("fd00::ffff:fffe".parse().unwrap(), "fd00::2".parse().unwrap())
        } else {
            IpAddresses::new("10.0.255.254".parse().unwrap(), "10.0.0.2".parse().unwrap())
        };
        UdpFrame {
            source_mac: MacAddress([2, 0, 0, 0, 0, 1]),
            destination_mac: MacAddress([2, 0, 0, 0, 0, 2]),
            vlan: tagged.then(|| TagControl::new(5, 3, false).unwrap()),
            addresses: addresses.unwrap(),
            traffic_class: 0,
            hop_limit: 64,
            source_port,
            destination_port: 9,
            checksum,
        }
    }

    /// The packet written from scratch.
    fn packet_from_scratch(
        headers: &UdpFrame,
        payload: &GeneratedPayload,
        frame_bytes: usize,
        flows: u64,
        number: u64,
    ) -> Vec<u8> {
        let flow = number % flows;
        let ports = 0x1_0000 - u64::from(headers.source_port);
        let source = match headers.addresses.source() {
            IpAddr::V4(first) => IpAddr::V4((first.to_bits() + (flow / ports) as u32).into()),
            IpAddr::V6(first) => IpAddr::V6((first.to_bits() + u128::from(flow / ports)).into()),
        };
        let headers = UdpFrame {
            addresses: IpAddresses::new(source, headers.addresses.destination()).unwrap(),
            source_port: headers.source_port + (flow % ports) as u16,
            ..*headers
        };
        let mut frame = vec![0; frame_bytes];
        let (head, rest) = frame.split_at_mut(headers.header_bytes());
        match payload {
            GeneratedPayload::Sequence => rest[..8].copy_from_slice(&number.to_be_bytes()),
            GeneratedPayload::Bytes(bytes) => rest[..bytes.len()].copy_from_slice(bytes),
        }
        headers.emit_headers(head, rest).unwrap();
        frame
    }

    proptest! {
        /// In every combination, patched packets equal those written from scratch, including checksums.
        #[test]
        fn patched_templates_equal_packets_written_from_scratch(
            ipv6: bool, tagged: bool, sequence: bool, offloaded: bool, content in proptest::collection::vec(any::<u8>(), 0..40),
            source_port in 65_000..=65_535_u16, extra in 0..40_usize, flows in 1..3000_u32, first: u64,
        ) {
            let checksum = if offloaded { UdpChecksum::Offloaded } else { UdpChecksum::Computed };
            let headers = test_headers(ipv6, tagged, checksum, source_port);
            let payload =
                if sequence { GeneratedPayload::Sequence } else { GeneratedPayload::Bytes(content) };
            let frame_bytes = headers.header_bytes() + payload.bytes_min() + extra;
            let mut template =
                PacketTemplate::new(&headers, Some(payload.clone()), Some(frame_bytes as u64), flows)
                    .unwrap();
            template.number = first >> 1;
            for _ in 0..3 {
                let mut frame = vec![0xaa; frame_bytes];
                template.write(&mut frame);
                let number = template.number;
                let expected = packet_from_scratch(&headers, &payload, frame_bytes, flows.into(), number);
                prop_assert_eq!(&frame, &expected);
                template.advance();
            }
            prop_assert_eq!(template.offloaded_checksum(), offloaded.then(|| headers.checksum_field()));
        }
    }

    #[test]
    fn frames_have_the_requested_or_needed_length() {
        let (v4, v6) = (
            test_headers(false, false, UdpChecksum::Omitted, 1),
            test_headers(true, true, UdpChecksum::Computed, 1),
        );
        let made = |headers, payload, bytes| PacketTemplate::new(headers, payload, bytes, 1);
        let bytes_of = |template: Result<PacketTemplate, Error>| template.unwrap().frame_bytes();
        assert_eq!(bytes_of(made(&v4, None, None)), 64);
        assert_eq!(bytes_of(made(&v6, None, None)), 74, "headers of 66 bytes, and a sequence");
        assert_eq!(bytes_of(made(&v4, Some(GeneratedPayload::Bytes(vec![7; 100])), None)), 142);
        assert_eq!(bytes_of(made(&v4, None, Some(42))), 42);
        assert!(made(&v4, None, Some(42)).unwrap().sequence_at.is_none());
        assert!(made(&v4, None, Some(50)).unwrap().sequence_at.is_some());
        for (headers, payload, bytes) in [
            (&v4, None, 41),
            (&v4, Some(GeneratedPayload::Sequence), 49),
            (&v6, Some(GeneratedPayload::Bytes(vec![7; 10])), 75),
        ] {
            let refused = made(headers, payload, Some(bytes)).unwrap_err();
            assert!(matches!(refused, Error::FrameTooShort { .. }), "{refused}");
        }
        let long = made(&v4, None, Some(42 + 65_508)).unwrap_err();
        assert!(matches!(long, Error::Headers(_)), "{long}");
    }

    #[test]
    fn a_zero_checksum_is_sent_as_all_ones() {
        let headers = test_headers(false, false, UdpChecksum::Computed, 1);
        // 65,536 sequences have all checksums.
        let mut template = PacketTemplate::new(&headers, None, None, 1).unwrap();
        let fields: Vec<[u8; 2]> = (0..0x1_0000)
            .map(|_| {
                let mut frame = vec![0; 64];
                template.write(&mut frame);
                template.advance();
                [frame[40], frame[41]]
            })
            .collect();
        assert!(fields.contains(&[0xff, 0xff]) && !fields.contains(&[0, 0]));
    }
}
