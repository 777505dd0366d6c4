//! Transport checksums that a sender left to its device, in frames that never passed one.

use super::checksum::{ChecksumField, OnesComplementSum};
use super::{EtherType, IpAddresses, IpProtocol, ethernet, ipv4, ipv6, tcp, udp, vlan};

mod quick;

/// Bytes from SCTP's header to its checksum, and those of the checksum (RFC 9260 section 3.1).
const SCTP_CHECKSUM_OFFSET: usize = 8;
const SCTP_CHECKSUM_BYTES: usize = 4;

/// A checksum that is still to be finished.
///
/// Hosts leave the checksums of TCP and UDP to the card: the field then holds the sum of the pseudo-header
/// alone (Linux: `CHECKSUM_PARTIAL`). A frame from veth, from a tap or from a virtual machine's card has
/// never passed a card, and AF_XDP does not tell which checksums are missing. A field that equals the
/// pseudo-header's sum is taken for one; so is 0 in SCTP, which leaves its CRC32C in the same way.
///
/// A valid checksum equals that sum in one packet of 65,535, by chance. To finish it changes nothing: the
/// field is in the sum, so the result is the same value again. Of damaged packets, one in 65,536 becomes a
/// valid one. So finish checksums of packets from interfaces without a wire, and where a card has checked
/// what arrived.
///
/// Found are TCP, UDP and SCTP over IPv4 and IPv6, also behind VLAN tags, IPv4 options and IPv6 extension
/// headers. Left as they are:
/// * fragments: a host finishes the checksum before it cuts the packet;
/// * packets whose header says no length, because they were still to be cut into segments: their receiver
///   would not take them;
/// * ICMPv6, whose checksums Linux never leaves to a device;
/// * packets inside of packets (VXLAN, GENEVE, GRE, IP in IP, PPPoE, MPLS), and IPv4 with a source route. For
///   these, turn the offload off at the sender ('ethtool -K INTERFACE tx off').
///
/// ```
/// use nocopy_proto::wire::unfinished::UnfinishedChecksum;
/// use nocopy_proto::{UdpChecksum, UdpFrame, UdpPacket};
/// # use nocopy_proto::{IpAddresses, MacAddress};
/// # let flow = UdpFrame {
/// #     source_mac: MacAddress([2, 0, 0, 0, 0, 1]),
/// #     destination_mac: MacAddress([2, 0, 0, 0, 0, 2]),
/// #     vlan: None,
/// #     addresses: IpAddresses::V4 { source: [10, 0, 0, 1].into(), destination: [10, 0, 0, 2].into() },
/// #     traffic_class: 0,
/// #     hop_limit: 64,
/// #     source_port: 4660,
/// #     destination_port: 7,
/// #     checksum: UdpChecksum::Computed,
/// # };
/// let flow = UdpFrame { checksum: UdpChecksum::Offloaded, ..flow };
/// let mut frame = vec![7; flow.header_bytes() + 100];
/// let (headers, payload) = frame.split_at_mut(flow.header_bytes());
/// flow.emit_headers(headers, payload)?;
///
/// let unfinished = UnfinishedChecksum::find_in_frame(&frame).expect("left to a device");
/// unfinished.finish(&mut frame);
/// assert!(UdpPacket::parse(&frame)?.verify_checksum().is_ok());
/// assert_eq!(UnfinishedChecksum::find_in_frame(&frame), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnfinishedChecksum {
    kind: ChecksumKind,
    /// From the first byte of the frame: the transport header, and the end of its payload.
    start: usize,
    end: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChecksumKind {
    /// The Internet checksum, with its offset from the header.
    Internet(u16),
    Crc32c,
}

/// A checksum that was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputedChecksum {
    at: usize,
    bytes: [u8; SCTP_CHECKSUM_BYTES],
    count: usize,
}

impl ComputedChecksum {
    /// Where it belongs, from the first byte of the frame.
    pub fn offset(&self) -> usize {
        self.at
    }

    /// Its bytes: two, of SCTP four.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.count]
    }
}

impl UnfinishedChecksum {
    /// Whether an Ethernet frame surely has none: a quick look that costs a few instructions, for most frames
    /// of TCP and UDP. `false` is no answer; [`find_in_frame`](Self::find_in_frame) looks at everything.
    #[inline]
    pub fn is_ruled_out(frame: &[u8]) -> bool {
        quick::rules_out(frame)
    }

    /// The unfinished checksum of an Ethernet frame, if it has one.
    #[inline]
    pub fn find_in_frame(frame: &[u8]) -> Option<Self> {
        Self::find_in_first_piece(frame, frame.len())
    }

    /// As [`find_in_frame`](Self::find_in_frame), of a frame in several pieces: `bytes` is the first of them,
    /// which has all headers, and `frame_bytes` the length of all.
    #[inline]
    pub fn find_in_first_piece(bytes: &[u8], frame_bytes: usize) -> Option<Self> {
        if Self::is_ruled_out(bytes) { None } else { find_in_headers(bytes, frame_bytes) }
    }

    /// Where a device finds it, for a request to finish it; `None` for SCTP, which has no Internet checksum.
    /// The request covers all bytes from there to the end of the packet, so cut padding off: the packet ends
    /// at [`end_bytes`](Self::end_bytes).
    pub fn field_for_device(&self) -> Option<ChecksumField> {
        match self.kind {
            ChecksumKind::Internet(offset) => {
                Some(ChecksumField { start: u16::try_from(self.start).ok()?, offset })
            }
            ChecksumKind::Crc32c => None,
        }
    }

    /// Bytes of the frame without padding.
    pub fn end_bytes(&self) -> usize {
        self.end
    }

    /// Finishes it. `frame` is the one that was looked at.
    ///
    /// # Panics
    /// `frame` is shorter than that one.
    pub fn finish(&self, frame: &mut [u8]) {
        let finished = self.compute([&*frame]);
        frame[finished.at..finished.at + finished.count].copy_from_slice(finished.bytes());
    }

    /// The checksum of the frame, whose bytes lie in `pieces`.
    pub fn compute<'a>(&self, pieces: impl IntoIterator<Item = &'a [u8]>) -> ComputedChecksum {
        let mut first = 0;
        let covered = pieces.into_iter().map(|piece| {
            let from = self.start.saturating_sub(first).min(piece.len());
            let to = self.end.saturating_sub(first).min(piece.len());
            first += piece.len();
            &piece[from..to.max(from)]
        });
        let mut bytes = [0; SCTP_CHECKSUM_BYTES];
        let (offset, count) = match self.kind {
            ChecksumKind::Internet(offset) => {
                // 0 is sent in its other representation, as by the kernel (`skb_checksum_help`).
                let checksum =
                    match covered.fold(OnesComplementSum::new(), OnesComplementSum::with).checksum() {
                        0 => 0xffff,
                        checksum => checksum,
                    };
                bytes[..2].copy_from_slice(&u16::to_be_bytes(checksum));
                (usize::from(offset), 2)
            }
            // The field is 0, as it has to be in the sum (RFC 9260 appendix A).
            ChecksumKind::Crc32c => {
                bytes = covered.fold(0, crc32c::crc32c_append).to_le_bytes();
                (SCTP_CHECKSUM_OFFSET, SCTP_CHECKSUM_BYTES)
            }
        };
        ComputedChecksum { at: self.start + offset, bytes, count }
    }
}

/// Looks at all headers.
#[cold]
fn find_in_headers(bytes: &[u8], frame_bytes: usize) -> Option<UnfinishedChecksum> {
    let mut at = ethernet::HEADER_BYTES;
    loop {
        let [a, b] = *bytes.get(at - 2..at)?.first_chunk()?;
        match EtherType(u16::from_be_bytes([a, b])) {
            EtherType::IPV4 => return find_over_ipv4(bytes, at, frame_bytes),
            EtherType::IPV6 => return find_over_ipv6(bytes, at, frame_bytes),
            other if other.is_vlan() => at += vlan::TAG_BYTES,
            _ => return None,
        }
    }
}

/// Looks at a transport header.
fn find_in_transport_header(
    bytes: &[u8],
    protocol: IpProtocol,
    (start, end): (usize, usize),
    addresses: &IpAddresses,
) -> Option<UnfinishedChecksum> {
    let length = u32::try_from(end.checked_sub(start)?).ok()?;
    let offset = match protocol {
        IpProtocol::TCP => tcp::CHECKSUM_OFFSET,
        IpProtocol::UDP => udp::CHECKSUM_OFFSET,
        IpProtocol::SCTP => {
            let field = bytes.get(start + SCTP_CHECKSUM_OFFSET..)?.first_chunk::<SCTP_CHECKSUM_BYTES>()?;
            let is_unfinished = *field == [0; SCTP_CHECKSUM_BYTES] && length > 0;
            return is_unfinished.then_some(UnfinishedChecksum { kind: ChecksumKind::Crc32c, start, end });
        }
        _ => return None,
    };
    let field = bytes.get(start + usize::from(offset)..)?.first_chunk()?;
    // Never 0, because the protocol is not: a UDP checksum of 0 is none.
    let sum = !addresses.pseudo_header_sum(protocol, length).checksum();
    (u16::from_be_bytes(*field) == sum).then_some(UnfinishedChecksum {
        kind: ChecksumKind::Internet(offset),
        start,
        end,
    })
}

fn find_over_ipv4(bytes: &[u8], at: usize, frame_bytes: usize) -> Option<UnfinishedChecksum> {
    let packet = ipv4::Packet::parse_cut(bytes.get(at..)?).ok()?;
    let end = at + usize::from(packet.total_bytes()?);
    if end > frame_bytes || packet.fragmentation().is_fragment() {
        return None;
    }
    find_in_transport_header(bytes, packet.protocol(), (at + packet.header_bytes(), end), &packet.addresses())
}

fn find_over_ipv6(bytes: &[u8], at: usize, frame_bytes: usize) -> Option<UnfinishedChecksum> {
    let packet = ipv6::Packet::parse_cut(bytes.get(at..)?).ok()?;
    let first = at + ipv6::HEADER_BYTES;
    let end = first + packet.payload_bytes()? as usize;
    let headers = packet.upper_layer().ok()?;
    if end > frame_bytes || headers.fragmentation().is_some() {
        return None;
    }
    let start = first + packet.payload().len() - headers.payload().len();
    let destination = headers.final_destination(packet.destination())?;
    let addresses = IpAddresses::V6 { source: packet.source(), destination };
    find_in_transport_header(bytes, headers.protocol(), (start, end), &addresses)
}

#[cfg(test)]
mod tests;
