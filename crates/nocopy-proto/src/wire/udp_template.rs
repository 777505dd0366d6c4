//! Prepared headers of a flow: the parts shared by all frames are written and summed once.

use super::checksum::{ChecksumField, OnesComplementSum};
use super::emit::{BufferTooSmall, PayloadTooLong};
use super::udp_flow::HEADER_BYTES as IPV4_HEADER_BYTES;
use super::{IpAddresses, IpProtocol, UdpChecksum, UdpFrame, UdpFrameError, ipv4, udp};

/// Ethernet, a VLAN tag, IPv6, UDP.
const HEADER_BYTES_MAX: usize = 14 + 4 + 40 + 8;

// Places in IP headers: RFC 791 section 3.1, RFC 8200 section 3.
const IPV4_LENGTH: usize = 2;
const IPV4_CHECKSUM: usize = 10;
const IPV6_LENGTH: usize = 4;
const UDP_LENGTH: usize = 4;

/// A [`UdpFrame`] ready to be written again and again: the same bytes as [`UdpFrame::emit_headers`] writes,
/// for less work a frame.
///
/// ```
/// # use nocopy_proto::{IpAddresses, MacAddress, UdpChecksum, UdpFrame, UdpTemplate};
/// # let flow = UdpFrame {
/// #     source_mac: MacAddress([2, 0, 0, 0, 0, 1]), destination_mac: MacAddress([2, 0, 0, 0, 0, 2]), vlan: None,
/// #     addresses: IpAddresses::V4 { source: [10, 0, 0, 1].into(), destination: [10, 0, 0, 2].into() },
/// #     traffic_class: 0, hop_limit: 64, source_port: 4660, destination_port: 7, checksum: UdpChecksum::Computed,
/// # };
/// let template = UdpTemplate::new(&flow)?;
/// let mut headers = [0; 42];
/// // A payload in two pieces.
/// template.emit(&mut headers, &[b"no", b"copy"])?;
/// let mut expected = [0; 42];
/// flow.emit_headers(&mut expected, b"nocopy")?;
/// assert_eq!(headers, expected);
/// # Ok::<(), nocopy_proto::wire::UdpFrameError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct UdpTemplate {
    /// The headers of an empty datagram.
    headers: [u8; HEADER_BYTES_MAX],
    flow: UdpFrame,
    /// Offset of the IP length, and the bytes it counts besides the UDP header and payload.
    ip_length: (usize, u16),
    /// IPv4's header checksum: its offset, and the sum of the header without it and without the length.
    ip_checksum: Option<(usize, OnesComplementSum)>,
    udp_at: usize,
    /// Sum of the parts that the UDP checksum covers, besides lengths and payload, if it is computed here.
    udp_sum: OnesComplementSum,
}

impl UdpTemplate {
    /// Prepares the headers of a flow.
    ///
    /// # Errors
    /// The checksum is omitted on IPv6.
    pub fn new(flow: &UdpFrame) -> Result<Self, UdpFrameError> {
        let mut headers = [0; HEADER_BYTES_MAX];
        flow.emit_headers(&mut headers, &[])?;
        let udp_at = flow.header_bytes() - udp::HEADER_BYTES;
        let ip_at = udp_at - flow.ip_header_bytes();
        let (ip_length, ip_checksum) = match flow.addresses {
            IpAddresses::V4 { .. } => {
                let header = &headers[ip_at..ip_at + ipv4::HEADER_BYTES];
                let sum = OnesComplementSum::new()
                    .with(&header[..IPV4_LENGTH])
                    .with(&header[IPV4_LENGTH + 2..IPV4_CHECKSUM])
                    .with(&header[IPV4_CHECKSUM + 2..]);
                ((ip_at + IPV4_LENGTH, ipv4::HEADER_BYTES as u16), Some((ip_at + IPV4_CHECKSUM, sum)))
            }
            IpAddresses::V6 { .. } => ((ip_at + IPV6_LENGTH, 0), None),
        };
        let pseudo = flow.addresses.pseudo_header_sum(IpProtocol::UDP, 0);
        let udp_sum = match flow.checksum {
            UdpChecksum::Computed => pseudo.with(&headers[udp_at..udp_at + UDP_LENGTH]),
            UdpChecksum::Offloaded | UdpChecksum::Omitted => pseudo,
        };
        Ok(Self { headers, flow: *flow, ip_length, ip_checksum, udp_at, udp_sum })
    }

    /// The flow it was made for.
    pub const fn flow(&self) -> &UdpFrame {
        &self.flow
    }

    /// Bytes of all headers together, 42 to 66.
    #[inline]
    pub const fn header_bytes(&self) -> usize {
        self.udp_at + udp::HEADER_BYTES
    }

    /// The place of the UDP checksum, if a device completes it.
    #[inline]
    pub fn offloaded_checksum_field(&self) -> Option<ChecksumField> {
        (self.flow.checksum == UdpChecksum::Offloaded).then(|| self.flow.checksum_field())
    }

    /// Writes all headers into the first [`header_bytes`](Self::header_bytes) of `headers`. The payload, in
    /// pieces, is read for its length, and for its bytes only if the checksum is computed.
    ///
    /// # Errors
    /// When `headers` is too small or the payload too long; `headers` is then unchanged.
    #[inline]
    pub fn emit(&self, headers: &mut [u8], payload: &[&[u8]]) -> Result<(), UdpFrameError> {
        let (needed_bytes, buffer_bytes) = (self.header_bytes(), headers.len());
        let Some(headers) = headers.get_mut(..needed_bytes) else {
            return Err(BufferTooSmall { needed_bytes, buffer_bytes }.into());
        };
        let payload_bytes = payload.iter().map(|piece| piece.len()).sum();
        let limit_bytes = self.flow.payload_bytes_max();
        if payload_bytes > limit_bytes {
            return Err(PayloadTooLong { payload_bytes, limit_bytes }.into());
        }
        match headers.first_chunk_mut::<IPV4_HEADER_BYTES>().filter(|_| needed_bytes == IPV4_HEADER_BYTES) {
            // A length that is known is copied without a call.
            Some(headers) => *headers = *self.headers.first_chunk().expect("it is longer"),
            None => headers.copy_from_slice(&self.headers[..needed_bytes]),
        }
        let udp_length = (udp::HEADER_BYTES + payload_bytes) as u16;
        let (at, more) = self.ip_length;
        let ip_length = (udp_length + more).to_be_bytes(); // within 16 bits: looked at above
        write_word(headers, at, ip_length);
        if let Some((at, sum)) = self.ip_checksum {
            write_word(headers, at, sum.with_words([ip_length]).checksum().to_be_bytes());
        }
        let udp_length = udp_length.to_be_bytes();
        write_word(headers, self.udp_at + UDP_LENGTH, udp_length);
        let checksum = match self.flow.checksum {
            UdpChecksum::Omitted => return Ok(()),
            UdpChecksum::Offloaded => !self.udp_sum.with_words([udp_length]).checksum(),
            UdpChecksum::Computed => {
                // The length counts twice: in the pseudo-header and in the header.
                let sum = self.udp_sum.with_words([udp_length, udp_length]);
                match payload.iter().fold(sum, |sum, piece| sum.with(piece)).checksum() {
                    0 => u16::MAX, // 0 would mean that there is none (RFC 768)
                    checksum => checksum,
                }
            }
        };
        write_word(headers, self.udp_at + usize::from(udp::CHECKSUM_OFFSET), checksum.to_be_bytes());
        Ok(())
    }
}

#[inline]
fn write_word(bytes: &mut [u8], at: usize, word: [u8; 2]) {
    bytes[at..at + 2].copy_from_slice(&word);
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::udp_frame::tests::{any_checksum, any_flow, ipv4_flow, ipv6_flow};
    use super::*;

    proptest! {
        #[test]
        fn a_template_emits_the_flows_headers(
            flow in any_flow(), checksum in any_checksum(), pieces in vec(vec(any::<u8>(), 0..700), 0..4),
        ) {
            let flow = UdpFrame { checksum, ..flow };
            let payload = pieces.concat();
            let mut expected = vec![0xaa; flow.header_bytes() + 3];
            let written = flow.emit_headers(&mut expected, &payload);
            let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            match UdpTemplate::new(&flow) {
                Err(error) => prop_assert_eq!(written, Err(error)),
                Ok(template) => {
                    let mut headers = vec![0xaa; expected.len()];
                    template.emit(&mut headers, &pieces).unwrap();
                    prop_assert_eq!(&headers, &expected);
                    prop_assert_eq!(template.header_bytes(), flow.header_bytes());
                    let left = (checksum == UdpChecksum::Offloaded).then(|| flow.checksum_field());
                    prop_assert_eq!(template.offloaded_checksum_field(), left);
                }
            }
        }
    }

    #[test]
    fn a_template_has_the_flows_length_limits() {
        for flow in [ipv4_flow(), ipv6_flow()] {
            let template = UdpTemplate::new(&flow).unwrap();
            let longest = vec![7; flow.payload_bytes_max()];
            let (mut headers, mut expected) = ([0; 66], [0; 66]);
            template.emit(&mut headers, &[&longest]).unwrap();
            flow.emit_headers(&mut expected, &longest).unwrap();
            assert_eq!(headers, expected);
            for (space, pieces) in [(66, &[&longest[..], &[0]][..]), (flow.header_bytes() - 1, &[])] {
                let mut headers = [0xaa; 66];
                let refused = template.emit(&mut headers[..space], pieces).unwrap_err();
                assert_eq!(headers, [0xaa; 66]);
                assert_eq!(Err(refused), flow.emit_headers(&mut headers[..space], &pieces.concat()));
            }
        }
    }

    #[test]
    fn a_template_sends_a_zero_checksum_as_ffff() {
        let template = UdpTemplate::new(&ipv4_flow()).unwrap();
        // Over 65,536 payloads each checksum occurs.
        let fields: Vec<[u8; 2]> = (0..=u16::MAX)
            .map(|number| {
                let mut headers = [0; 42];
                template.emit(&mut headers, &[&number.to_be_bytes()]).unwrap();
                [headers[40], headers[41]]
            })
            .collect();
        assert!(fields.contains(&[0xff, 0xff]) && !fields.contains(&[0, 0]));
    }
}
