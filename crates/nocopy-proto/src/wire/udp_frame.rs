//! All headers of a UDP frame at once, in front of a payload that is already in place.

use thiserror::Error;

use super::checksum::ChecksumField;
use super::emit::{BufferTooSmall, EmitError, PayloadTooLong, length_with_header};
use super::vlan::{self, TagControl};
use super::{EtherType, IpAddresses, IpProtocol, MacAddress, ethernet, ipv4, ipv6, udp};

/// The headers shared by all frames of a flow: Ethernet, an optional VLAN tag, IPv4 or IPv6, and UDP.
///
/// The IP header has no options and the packet may not be fragmented, so one template fits any number of
/// frames without a counter. [`crate::wire`] has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UdpFrame {
    /// The station that sends the frame.
    pub source_mac: MacAddress,
    /// The station the frame is for: the destination's, or the next router's.
    pub destination_mac: MacAddress,
    /// Priority and VLAN of an 802.1Q tag; `None`: no tag.
    pub vlan: Option<TagControl>,
    /// Sender and receiver, which decide between IPv4 and IPv6.
    pub addresses: IpAddresses,
    /// Differentiated services (6 bits) and congestion notification (2 bits).
    pub traffic_class: u8,
    /// The most hops of the packet (IPv4: time to live).
    pub hop_limit: u8,
    /// The sender's port; 0 if it expects no answer.
    pub source_port: u16,
    /// The port the datagram is for.
    pub destination_port: u16,
    /// How the UDP checksum is made. IPv4's header checksum is always computed.
    pub checksum: UdpChecksum,
}

/// How the UDP checksum of a frame is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UdpChecksum {
    /// Computed, which reads the whole payload.
    Computed,
    /// Left out, which only IPv4 permits.
    Omitted,
    /// Left to the device that sends the frame: only the part of it that needs no payload is there, to be
    /// completed where [`UdpFrame::checksum_field`] says. No receiver accepts the frame as it is.
    Offloaded,
}

/// Why the headers of a UDP frame were not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum UdpFrameError {
    /// The space for headers is too small; it is unchanged.
    #[error(transparent)]
    BufferTooSmall(#[from] BufferTooSmall),
    /// The payload does not fit one packet; the space for headers is unchanged.
    #[error(transparent)]
    PayloadTooLong(#[from] PayloadTooLong),
    /// IPv6 packets need a UDP checksum (RFC 8200 section 8.1).
    #[error("UDP checksum: cannot be omitted; IPv6 needs it (RFC 8200); compute it, or use IPv4")]
    ChecksumOmittedOnIpv6,
}

impl From<EmitError> for UdpFrameError {
    fn from(error: EmitError) -> Self {
        match error {
            EmitError::BufferTooSmall(error) => error.into(),
            EmitError::PayloadTooLong(error) => error.into(),
        }
    }
}

impl UdpFrame {
    /// Bytes of all headers together, 42 to 66: where the payload begins in the frame.
    pub const fn header_bytes(&self) -> usize {
        let vlan = if self.vlan.is_some() { vlan::TAG_BYTES } else { 0 };
        ethernet::HEADER_BYTES + vlan + self.ip_header_bytes() + udp::HEADER_BYTES
    }

    /// The place of the UDP checksum in the frame, for a device that completes it.
    pub const fn checksum_field(&self) -> ChecksumField {
        let start = (self.header_bytes() - udp::HEADER_BYTES) as u16; // at most 58
        ChecksumField { start, offset: udp::CHECKSUM_OFFSET }
    }

    /// The longest payload of one packet, whatever the link allows: 65,507 bytes on IPv4, 65,527 on IPv6.
    pub const fn payload_bytes_max(&self) -> usize {
        // IPv4's length counts its own header, IPv6's does not.
        let counted = match self.addresses {
            IpAddresses::V4 { .. } => ipv4::HEADER_BYTES,
            IpAddresses::V6 { .. } => 0,
        };
        u16::MAX as usize - counted - udp::HEADER_BYTES
    }

    /// Writes all headers into the first [`header_bytes`](Self::header_bytes) of `headers`, and returns how
    /// many that are.
    ///
    /// `payload` is what follows them; usually both are one frame, split at `header_bytes`. It is read for
    /// its length, and for its bytes only if the checksum is computed. A frame below 60 bytes is not padded
    /// here: the device does that.
    ///
    /// # Errors
    /// When `headers` is too small, the payload too long, or the checksum omitted on IPv6; `headers` is then
    /// unchanged.
    pub fn emit_headers(&self, headers: &mut [u8], payload: &[u8]) -> Result<usize, UdpFrameError> {
        let (needed_bytes, buffer_bytes) = (self.header_bytes(), headers.len());
        let Some((headers, _)) = headers.split_at_mut_checked(needed_bytes) else {
            return Err(BufferTooSmall { needed_bytes, buffer_bytes }.into());
        };
        if payload.len() > self.payload_bytes_max() {
            let limit_bytes = self.payload_bytes_max();
            return Err(PayloadTooLong { payload_bytes: payload.len(), limit_bytes }.into());
        }
        let udp = self.udp_header(payload)?;

        let (link, rest) = headers.split_at_mut(needed_bytes - self.ip_header_bytes() - udp::HEADER_BYTES);
        let (ip, transport) = rest.split_at_mut(self.ip_header_bytes());
        self.emit_link(link)?;
        self.emit_ip(ip, length_with_header(udp::HEADER_BYTES as u16, payload.len())?)?;
        udp.emit(transport)?;
        Ok(needed_bytes)
    }

    pub(super) const fn ip_header_bytes(&self) -> usize {
        match self.addresses {
            IpAddresses::V4 { .. } => ipv4::HEADER_BYTES,
            IpAddresses::V6 { .. } => ipv6::HEADER_BYTES,
        }
    }

    fn udp_header(&self, payload: &[u8]) -> Result<udp::Repr, UdpFrameError> {
        let (source, destination) = (self.source_port, self.destination_port);
        match (self.checksum, self.addresses) {
            (UdpChecksum::Computed, _) => {
                Ok(udp::Repr::with_checksum(source, destination, &self.addresses, payload)?)
            }
            (UdpChecksum::Omitted, IpAddresses::V4 { .. }) => {
                Ok(udp::Repr::without_checksum(source, destination, payload.len())?)
            }
            (UdpChecksum::Offloaded, _) => {
                Ok(udp::Repr::with_partial_checksum(source, destination, &self.addresses, payload.len())?)
            }
            (UdpChecksum::Omitted, IpAddresses::V6 { .. }) => Err(UdpFrameError::ChecksumOmittedOnIpv6),
        }
    }

    fn emit_link(&self, buffer: &mut [u8]) -> Result<(), BufferTooSmall> {
        let ip = match self.addresses {
            IpAddresses::V4 { .. } => EtherType::IPV4,
            IpAddresses::V6 { .. } => EtherType::IPV6,
        };
        let ether_type = if self.vlan.is_some() { EtherType::VLAN } else { ip };
        ethernet::Repr { destination: self.destination_mac, source: self.source_mac, ether_type }
            .emit(buffer)?;
        match self.vlan {
            Some(control) => {
                vlan::Repr { control, ether_type: ip }.emit(&mut buffer[ethernet::HEADER_BYTES..])
            }
            None => Ok(()),
        }
    }

    fn emit_ip(&self, buffer: &mut [u8], payload_bytes: u16) -> Result<(), EmitError> {
        match self.addresses {
            IpAddresses::V4 { source, destination } => ipv4::Repr {
                type_of_service: self.traffic_class,
                identification: 0,
                fragmentation: ipv4::Fragmentation::FORBIDDEN,
                time_to_live: self.hop_limit,
                protocol: IpProtocol::UDP,
                source,
                destination,
                payload_bytes,
            }
            .emit(buffer),
            IpAddresses::V6 { source, destination } => Ok(ipv6::Repr {
                traffic_class: self.traffic_class,
                flow_label: ipv6::FlowLabel::default(),
                payload_bytes,
                next_header: IpProtocol::UDP,
                hop_limit: self.hop_limit,
                source,
                destination,
            }
            .emit(buffer)?),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::wire::{captured, oracle};
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn flow_between(addresses: IpAddresses) -> UdpFrame {
        UdpFrame {
            source_mac: MacAddress([2, 0, 0, 0, 0, 1]),
            destination_mac: MacAddress([2, 0, 0, 0, 0, 2]),
            vlan: None,
            addresses,
            traffic_class: 0,
            hop_limit: 64,
            source_port: 4660,
            destination_port: 7,
            checksum: UdpChecksum::Computed,
        }
    }

    pub(crate) fn ipv4_flow() -> UdpFrame {
        flow_between(IpAddresses::V4 { source: [10, 0, 0, 1].into(), destination: [10, 0, 0, 2].into() })
    }

    pub(crate) fn ipv6_flow() -> UdpFrame {
        let (source, destination) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
        flow_between(IpAddresses::V6 { source, destination })
    }

    fn emitted_frame(template: &UdpFrame, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0xaa; template.header_bytes()];
        assert_eq!(template.emit_headers(&mut bytes, payload), Ok(template.header_bytes()));
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn ipv4_frames_equal_the_kernels() {
        let mut expected = captured::UDP_V4;
        // The kernel numbers its packets although they cannot be fragmented. The number that is missing is
        // added to the checksum: 8ea3 + 9824 = 126c7, folded 26c8.
        expected[18..20].copy_from_slice(&[0x00, 0x00]);
        expected[24..26].copy_from_slice(&[0x26, 0xc8]);
        assert_eq!(emitted_frame(&ipv4_flow(), b"nocopy!"), expected);
    }

    #[test]
    fn ipv6_frames_equal_the_kernels() {
        let mut expected = captured::UDP_V6;
        // The kernel draws a flow label; it is in no checksum.
        expected[15..18].copy_from_slice(&[0, 0, 0]);
        assert_eq!(emitted_frame(&ipv6_flow(), b"nocopy!"), expected);
    }

    #[test]
    fn a_tag_goes_between_addresses_and_type() {
        let plain = emitted_frame(&ipv4_flow(), b"nocopy!");
        let tagged = emitted_frame(
            &UdpFrame { vlan: Some(TagControl::new(5, 6, false).unwrap()), ..ipv4_flow() },
            b"nocopy!",
        );
        assert_eq!(tagged[..12], plain[..12]);
        assert_eq!(tagged[12..16], [0x81, 0x00, 0xc0, 0x05]);
        assert_eq!(tagged[16..], plain[12..]);
    }

    #[test]
    fn an_omitted_checksum_changes_no_other_field() {
        let mut expected = emitted_frame(&ipv4_flow(), b"nocopy!");
        expected[40..42].copy_from_slice(&[0, 0]);
        assert_eq!(
            emitted_frame(&UdpFrame { checksum: UdpChecksum::Omitted, ..ipv4_flow() }, b"nocopy!"),
            expected
        );
    }

    #[test]
    fn refused_frames_do_not_change_the_buffer() {
        let mut space = [0xaa; 66];
        let mut refused = |template: UdpFrame, header_bytes: usize, payload: &[u8]| {
            let error = template.emit_headers(&mut space[..header_bytes], payload).unwrap_err();
            assert_eq!(space, [0xaa; 66]);
            error
        };
        assert_eq!(
            refused(ipv4_flow(), 41, b""),
            UdpFrameError::BufferTooSmall(BufferTooSmall { needed_bytes: 42, buffer_bytes: 41 })
        );
        let omitted = UdpFrame { checksum: UdpChecksum::Omitted, ..ipv6_flow() };
        assert_eq!(refused(omitted, 66, b""), UdpFrameError::ChecksumOmittedOnIpv6);
        for template in [ipv4_flow(), ipv6_flow()] {
            let limit_bytes = template.payload_bytes_max();
            let payload_bytes = limit_bytes + 1;
            assert_eq!(
                refused(template, 66, &vec![0; payload_bytes]),
                UdpFrameError::PayloadTooLong(PayloadTooLong { payload_bytes, limit_bytes })
            );
        }
    }

    #[test]
    fn the_longest_payloads_fit() {
        for template in [ipv4_flow(), ipv6_flow()] {
            let payload = vec![7; template.payload_bytes_max()];
            oracle::check_udp_frame(&template, &payload, &emitted_frame(&template, &payload));
        }
    }

    proptest! {
        #[test]
        fn every_field_survives_a_round_trip(
            template in any_flow(), payload in vec(any::<u8>(), 0..1500), padding in 0..20_usize,
        ) {
            let mut bytes = emitted_frame(&template, &payload);
            bytes.extend(vec![0xee; padding]);
            oracle::check_udp_frame(&template, &payload, &bytes);
        }

        #[test]
        fn a_completed_offloaded_checksum_equals_the_computed(
            template in any_flow(), payload in vec(any::<u8>(), 0..1500),
        ) {
            let mut frame = emitted_frame(&UdpFrame { checksum: UdpChecksum::Offloaded, ..template }, &payload);
            prop_assert_eq!(template.checksum_field().complete(&mut frame), Ok(()));
            let computed = UdpFrame { checksum: UdpChecksum::Computed, ..template };
            prop_assert_eq!(frame, emitted_frame(&computed, &payload));
        }

        #[test]
        fn cuts_and_damage_never_panic(
            template in any_flow(), payload in vec(any::<u8>(), 0..64),
            damage in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        ) {
            let mut bytes = emitted_frame(&template, &payload);
            for (at, byte) in damage {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            for end in 0..=bytes.len() {
                oracle::walk_views(&bytes[..end]);
                oracle::check_round_trips(&bytes[..end]);
            }
        }
    }

    pub(crate) fn any_checksum() -> impl Strategy<Value = UdpChecksum> {
        prop_oneof![Just(UdpChecksum::Computed), Just(UdpChecksum::Omitted), Just(UdpChecksum::Offloaded)]
    }

    /// Any flow that can be written.
    pub(crate) fn any_flow() -> impl Strategy<Value = UdpFrame> {
        let addresses = prop_oneof![
            any::<[u32; 2]>().prop_map(|[source, destination]| IpAddresses::V4 {
                source: source.into(),
                destination: destination.into()
            }),
            any::<[u128; 2]>().prop_map(|[source, destination]| IpAddresses::V6 {
                source: source.into(),
                destination: destination.into()
            }),
        ];
        let link = (any::<[[u8; 6]; 2]>(), any::<Option<u16>>());
        (link, addresses, any::<[u8; 2]>(), any::<[u16; 2]>(), any::<bool>()).prop_map(
            |((macs, vlan), addresses, bytes, ports, omit)| {
                let is_v4 = matches!(addresses, IpAddresses::V4 { .. });
                UdpFrame {
                    source_mac: MacAddress(macs[0]),
                    destination_mac: MacAddress(macs[1]),
                    vlan: vlan.map(TagControl),
                    addresses,
                    traffic_class: bytes[0],
                    hop_limit: bytes[1],
                    source_port: ports[0],
                    destination_port: ports[1],
                    checksum: if omit && is_v4 { UdpChecksum::Omitted } else { UdpChecksum::Computed },
                }
            },
        )
    }
}
