//! The headers of a flow as they arrive, remembered: a sender of one datagram usually sends more, and
//! comparing costs less than parsing.

use super::checksum::OnesComplementSum;
use super::{IpAddresses, IpProtocol, UdpPacket, ethernet, ipv4, udp};

/// Ethernet, IPv4 without options, UDP: the headers of most flows.
pub(super) const HEADER_BYTES: usize = ethernet::HEADER_BYTES + ipv4::HEADER_BYTES + udp::HEADER_BYTES;

/// The header bytes shared by all frames of a UDP flow over IPv4, to recognise its frames.
///
/// ```
/// # use nocopy_proto::{IpAddresses, MacAddress, UdpChecksum, UdpFrame};
/// # use nocopy_proto::wire::{UdpFlow, UdpPacket};
/// # let flow = UdpFrame {
/// #     source_mac: MacAddress([2, 0, 0, 0, 0, 1]), destination_mac: MacAddress([2, 0, 0, 0, 0, 2]), vlan: None,
/// #     addresses: IpAddresses::V4 { source: [10, 0, 0, 1].into(), destination: [10, 0, 0, 2].into() },
/// #     traffic_class: 0, hop_limit: 64, source_port: 4660, destination_port: 7, checksum: UdpChecksum::Computed,
/// # };
/// # let frame_with = |payload: &[u8]| {
/// #     let mut frame = vec![0; 42];
/// #     flow.emit_headers(&mut frame, payload).unwrap();
/// #     frame.extend_from_slice(payload);
/// #     frame
/// # };
/// let (first, mut second) = (frame_with(b"first"), frame_with(b"second"));
/// let flow = UdpFlow::of_parsed_packet(&UdpPacket::parse(&first)?, &first).expect("it is IPv4");
/// assert_eq!(flow.payload_if_matching(&second), Some(&b"second"[..]));
/// second[45] ^= 1; // damaged on the way
/// assert_eq!(flow.payload_if_matching(&second), None);
/// # Ok::<(), nocopy_proto::wire::NotUdp>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct UdpFlow {
    /// Addresses of the link, EtherType, version and length of IP's header, type of service.
    front: [u8; 16],
    /// Fragmentation, time to live, protocol.
    middle: [u8; 4],
    /// Addresses of IP, ports.
    ends: [u8; 12],
    /// Sum of the IP header without length, identification and checksum.
    ip_sum: OnesComplementSum,
    /// Sum of pseudo-header and ports, without the lengths.
    udp_sum: OnesComplementSum,
    /// Sum of the pseudo-header alone, without the length.
    pseudo_sum: OnesComplementSum,
}

impl UdpFlow {
    /// The flow of a frame that was parsed; `None` if it is IPv6, or has IP options.
    pub fn of_parsed_packet(packet: &UdpPacket<'_>, frame: &[u8]) -> Option<Self> {
        let IpAddresses::V4 { .. } = packet.addresses() else { return None };
        let headers = frame.first_chunk::<HEADER_BYTES>()?;
        if packet.payload_range().0 != HEADER_BYTES {
            return None;
        }
        let FrameHeaderFields { front, middle, ends, .. } = FrameHeaderFields::of(headers);
        let pseudo_sum = packet.addresses().pseudo_header_sum(IpProtocol::UDP, 0);
        Some(Self {
            front,
            middle,
            ends,
            ip_sum: OnesComplementSum::new().with(&front[14..]).with(&middle).with(&ends[..8]),
            udp_sum: pseudo_sum.with(&ends[8..]),
            pseudo_sum,
        })
    }

    /// The payload of a frame that is of this flow, and right in its lengths and both of its checksums.
    /// `None` says nothing about the frame: it is to be [parsed](UdpPacket::parse). So are those without a
    /// UDP checksum, or with one that is not finished.
    #[inline]
    pub fn payload_if_matching<'f>(&self, frame: &'f [u8]) -> Option<&'f [u8]> {
        let (headers, rest) = frame.split_first_chunk::<HEADER_BYTES>()?;
        let parts = FrameHeaderFields::of(headers);
        if (parts.front, parts.middle, parts.ends) != (self.front, self.middle, self.ends) {
            return None;
        }
        let [ip_length, udp_length] = [parts.ip_length, parts.udp_length].map(u16::from_be_bytes);
        let payload_bytes = udp_length.checked_sub(udp::HEADER_BYTES as u16)?;
        if ip_length.checked_sub(ipv4::HEADER_BYTES as u16)? != udp_length || parts.udp_checksum == [0, 0] {
            return None;
        }
        let payload = rest.get(..usize::from(payload_bytes))?;
        let ip_sum = self.ip_sum.with_words([parts.ip_length, parts.identification, parts.ip_checksum]);
        let unfinished = self.pseudo_sum.with_words([parts.udp_length]).checksum();
        // The length counts twice: in the pseudo-header and in the header.
        let udp_sum = self.udp_sum.with_words([parts.udp_length, parts.udp_length, parts.udp_checksum]);
        let is_right = ip_sum.is_valid()
            && u16::from_be_bytes(parts.udp_checksum) != !unfinished
            && udp_sum.with(payload).is_valid();
        is_right.then_some(payload)
    }
}

/// The headers of a frame of IPv4 without options, cut.
struct FrameHeaderFields {
    front: [u8; 16],
    ip_length: [u8; 2],
    identification: [u8; 2],
    middle: [u8; 4],
    ip_checksum: [u8; 2],
    ends: [u8; 12],
    udp_length: [u8; 2],
    udp_checksum: [u8; 2],
}

impl FrameHeaderFields {
    #[inline]
    fn of(headers: &[u8; HEADER_BYTES]) -> Self {
        Self {
            front: header_field::<0, 16>(headers),
            ip_length: header_field::<16, 2>(headers),
            identification: header_field::<18, 2>(headers),
            middle: header_field::<20, 4>(headers),
            ip_checksum: header_field::<24, 2>(headers),
            ends: header_field::<26, 12>(headers),
            udp_length: header_field::<38, 2>(headers),
            udp_checksum: header_field::<40, 2>(headers),
        }
    }
}

#[inline]
fn header_field<const AT: usize, const N: usize>(headers: &[u8; HEADER_BYTES]) -> [u8; N] {
    super::field::Field::<AT, N>::get(headers)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::udp_frame::tests::{any_checksum, any_flow};
    use super::super::{UdpChecksum, UdpFrame};
    use super::*;

    fn emitted_frame(flow: &UdpFrame, payload: &[u8]) -> Option<Vec<u8>> {
        let mut frame = vec![0; flow.header_bytes()];
        flow.emit_headers(&mut frame, payload).ok()?;
        frame.extend_from_slice(payload);
        Some(frame)
    }

    proptest! {
        /// Proves that a frame is recognised only if parsing it gives the same, however it was changed.
        #[test]
        fn recognised_frames_equal_parsed_frames(
            flow in any_flow(), checksum in any_checksum(), payloads in (vec(any::<u8>(), 0..90), vec(any::<u8>(), 0..90)),
            damage in prop::option::of((any::<prop::sample::Index>(), 1_u8..)), padding in 0_usize..20, cut in 0_usize..3,
        ) {
            let flow = UdpFrame { checksum, vlan: None, ..flow };
            let (Some(first), Some(mut second)) = (emitted_frame(&flow, &payloads.0), emitted_frame(&flow, &payloads.1)) else {
                return Ok(());
            };
            let Ok(packet) = UdpPacket::parse(&first) else { return Ok(()) };
            let Some(known) = UdpFlow::of_parsed_packet(&packet, &first) else {
                let is_ipv6 = matches!(flow.addresses, IpAddresses::V6 { .. });
                prop_assert!(is_ipv6);
                return Ok(());
            };
            second.resize(second.len() + padding, 0);
            second.truncate(second.len() - cut);
            if let Some((place, bits)) = damage {
                let at = place.index(second.len());
                second[at] ^= bits;
            }
            let found = known.payload_if_matching(&second);
            if damage.is_none() && padding >= cut && checksum == UdpChecksum::Computed {
                prop_assert_eq!(found, Some(&payloads.1[..]));
            }
            if let Some(payload) = found {
                let parsed = UdpPacket::parse(&second).unwrap();
                prop_assert!(parsed.verify_checksum().is_ok() && !parsed.checksum_is_unfinished());
                prop_assert_eq!(parsed.datagram().payload(), payload);
                prop_assert_eq!(parsed.addresses(), packet.addresses());
                prop_assert_eq!(parsed.datagram().source_port(), packet.datagram().source_port());
                prop_assert_eq!(parsed.datagram().destination_port(), packet.datagram().destination_port());
                prop_assert_eq!(parsed.ecn(), packet.ecn());
                prop_assert_eq!(parsed.payload_range().0, HEADER_BYTES);
            }
        }
    }
}
