//! The frames that are sent, and the two duties that make methods comparable: a sender writes every byte
//! of every frame, a receiver reads every byte of every frame.

use std::hint::black_box;

use nocopy_proto::{IpAddresses, MacAddress, UdpChecksum, UdpFrame};

use super::stage::{NetworkSite, SitePair};

/// Most packets a sender hands over at a time.
const BATCH_MAX: usize = 64;

/// The most bytes of a burst, so that they stay in the first-level cache.
const BATCH_BYTES: usize = 64 << 10;

/// Ethernet, IPv4 and UDP without options.
pub(crate) const HEADER_BYTES: usize = 14 + 20 + 8;

/// The address of another host: frames to it are received as on a mirror port, and the
/// receiving kernel does not pass them through its IP stack. Locally administered, unicast.
const OTHER_HOST: [u8; 6] = [0x02, 0x6e, 0x63, 0x0f, 0xff, 0xff];

const UDP_PORT: u16 = 7070;

const WANTED_PORT: u16 = 7071;

const DESTINATION_PORT_AT: usize = 14 + 20 + 2;

/// `udp dst port 7071`, as `tcpdump -ddd` compiles it.
pub(crate) const FILTER: &str = "16,40 0 0 12,21 0 4 34525,48 0 0 20,21 0 11 17,40 0 0 56,21 8 9 7071,21 0 8 2048,\
    48 0 0 23,21 0 6 17,40 0 0 20,69 4 0 8191,177 0 0 14,72 0 0 16,21 0 1 7071,6 0 0 262144,6 0 0 0";

/// The bytes of a frame before its sequence number.
#[derive(Debug, Clone)]
pub(crate) struct FrameTemplate {
    bytes: Vec<u8>,
}

impl FrameTemplate {
    /// To the other side.
    pub(crate) fn to_peer(stage: &SitePair, frame_bytes: usize) -> Self {
        Self::udp_frame(&stage.sender, &stage.receiver, stage.receiver.mac, frame_bytes)
    }

    /// To a socket of the other side.
    pub(crate) fn datagram_to_peer(stage: &SitePair, port: u16, payload_bytes: usize) -> Self {
        let headers = UdpFrame {
            destination_port: port,
            ..Self::udp_headers(&stage.sender, &stage.receiver, stage.receiver.mac)
        };
        Self::from_headers(headers, HEADER_BYTES + payload_bytes)
    }

    /// From the other side to this one.
    pub(crate) fn from_peer(stage: &SitePair, frame_bytes: usize) -> Self {
        Self::udp_frame(&stage.receiver, &stage.sender, stage.sender.mac, frame_bytes)
    }

    /// To a host that does not exist.
    pub(crate) fn to_other_host(stage: &SitePair, frame_bytes: usize) -> Self {
        Self::udp_frame(&stage.sender, &stage.receiver, OTHER_HOST, frame_bytes)
    }

    pub(crate) fn wanted_by_filter(stage: &SitePair, frame_bytes: usize) -> Self {
        let mut template = Self::to_other_host(stage, frame_bytes);
        template.bytes[DESTINATION_PORT_AT..][..2].copy_from_slice(&WANTED_PORT.to_be_bytes());
        template
    }

    fn udp_frame(from: &NetworkSite, to: &NetworkSite, destination_mac: [u8; 6], frame_bytes: usize) -> Self {
        Self::from_headers(Self::udp_headers(from, to, destination_mac), frame_bytes)
    }

    fn udp_headers(from: &NetworkSite, to: &NetworkSite, destination_mac: [u8; 6]) -> UdpFrame {
        UdpFrame {
            source_mac: MacAddress(from.mac),
            destination_mac: MacAddress(destination_mac),
            vlan: None,
            addresses: IpAddresses::V4 { source: from.ipv4, destination: to.ipv4 },
            traffic_class: 0,
            hop_limit: 64,
            source_port: UDP_PORT,
            destination_port: UDP_PORT,
            checksum: UdpChecksum::Omitted,
        }
    }

    fn from_headers(headers: UdpFrame, frame_bytes: usize) -> Self {
        let mut bytes: Vec<u8> = (0..frame_bytes).map(|index| index as u8).collect();
        let (head, payload) = bytes.split_at_mut(HEADER_BYTES);
        headers.emit_headers(head, payload).expect("a frame of at most an MTU has room for headers");
        Self { bytes }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Packets that a sender hands over at once, with every method.
    pub(crate) fn batch_size(&self) -> usize {
        (BATCH_BYTES / self.bytes.len()).clamp(1, BATCH_MAX)
    }

    #[inline]
    pub(crate) fn write_frame(&self, buffer: &mut [u8], sequence: u64) {
        buffer.copy_from_slice(&self.bytes);
        buffer[HEADER_BYTES..HEADER_BYTES + 8].copy_from_slice(&sequence.to_be_bytes());
    }
}

/// [`read_every_byte`], for receivers that may find something wrong with a packet.
pub(crate) fn try_read_every_byte(frame: &[u8]) -> std::io::Result<()> {
    read_every_byte(frame);
    Ok(())
}

/// Reads every byte, in a way the compiler cannot skip.
#[inline]
pub(crate) fn read_every_byte(frame: &[u8]) {
    let words = frame.chunks_exact(8);
    let rest = words.remainder().iter().fold(0_u64, |sum, &byte| sum.wrapping_add(byte.into()));
    let sum = words.fold(rest, |sum, word| {
        sum.wrapping_add(u64::from_ne_bytes(word.try_into().expect("chunks of eight")))
    });
    black_box(sum);
}
