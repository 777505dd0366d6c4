//! The frames that are sent, and the two duties that make methods comparable: a sender writes every byte
//! of every frame, a receiver reads every byte of every frame.

use std::hint::black_box;

use super::stage::Stage;

/// Ethernet, IPv4 and UDP without options.
pub(crate) const HEADER_BYTES: usize = 14 + 20 + 8;

/// A host that is nobody here: with it as destination a frame is seen as on a mirror port, and the
/// receiving kernel does not carry it through its IP stack. Locally administered, unicast.
const OTHER_HOST: [u8; 6] = [0x02, 0x6e, 0x63, 0x0f, 0xff, 0xff];

const UDP_PORT: u16 = 7070;

/// What a frame looks like before its sequence number.
#[derive(Debug, Clone)]
pub(crate) struct Template {
    bytes: Vec<u8>,
}

impl Template {
    /// To the other side itself.
    pub(crate) fn to_peer(stage: &Stage, frame_bytes: usize) -> Self {
        Self::udp(stage, stage.receiver.mac, frame_bytes)
    }

    /// Back from the other side.
    pub(crate) fn from_peer(stage: &Stage, frame_bytes: usize) -> Self {
        let mut template = Self::udp(stage, stage.sender.mac, frame_bytes);
        template.bytes[6..12].copy_from_slice(&stage.receiver.mac);
        let (source, destination) = (stage.receiver.ipv4.octets(), stage.sender.ipv4.octets());
        // The checksum is a sum: it does not change when the addresses trade places.
        template.bytes[26..30].copy_from_slice(&source);
        template.bytes[30..34].copy_from_slice(&destination);
        template
    }

    /// To a host that is not there.
    pub(crate) fn to_other_host(stage: &Stage, frame_bytes: usize) -> Self {
        Self::udp(stage, OTHER_HOST, frame_bytes)
    }

    fn udp(stage: &Stage, destination: [u8; 6], frame_bytes: usize) -> Self {
        let mut bytes: Vec<u8> = (0..frame_bytes).map(|index| index as u8).collect();
        bytes[..6].copy_from_slice(&destination);
        bytes[6..12].copy_from_slice(&stage.sender.mac);
        bytes[12..14].copy_from_slice(&0x0800_u16.to_be_bytes());
        let ip_bytes = u16::try_from(frame_bytes - 14).expect("a frame fits an IPv4 packet");
        let ip = &mut bytes[14..34];
        ip.copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        ip[2..4].copy_from_slice(&ip_bytes.to_be_bytes());
        ip[12..16].copy_from_slice(&stage.sender.ipv4.octets());
        ip[16..20].copy_from_slice(&stage.receiver.ipv4.octets());
        let checksum = internet_checksum(ip);
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        let udp = &mut bytes[34..HEADER_BYTES];
        udp[..2].copy_from_slice(&UDP_PORT.to_be_bytes());
        udp[2..4].copy_from_slice(&UDP_PORT.to_be_bytes());
        udp[4..6].copy_from_slice(&(ip_bytes - 20).to_be_bytes());
        // No checksum: zero, which RFC 768 allows.
        udp[6..8].copy_from_slice(&[0, 0]);
        Self { bytes }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Writes the whole frame into `buffer`, which is exactly as long.
    #[inline]
    pub(crate) fn write(&self, buffer: &mut [u8], sequence: u64) {
        buffer.copy_from_slice(&self.bytes);
        buffer[HEADER_BYTES..HEADER_BYTES + 8].copy_from_slice(&sequence.to_be_bytes());
    }
}

/// RFC 1071, for a header whose checksum field is zero.
fn internet_checksum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) as u16 + (folded >> 16) as u16)
}

/// Reads every byte, in a way the compiler cannot skip.
#[inline]
pub(crate) fn read(frame: &[u8]) {
    let words = frame.chunks_exact(8);
    let rest = words.remainder().iter().fold(0_u64, |sum, &byte| sum.wrapping_add(byte.into()));
    let sum = words.fold(rest, |sum, word| {
        sum.wrapping_add(u64::from_ne_bytes(word.try_into().expect("chunks of eight")))
    });
    black_box(sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_the_rfc_example_header() {
        // A header with its checksum in place sums to zero.
        let mut header = [0x45, 0, 0, 50, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2];
        let checksum = internet_checksum(&header);
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        assert_eq!(internet_checksum(&header), 0);
    }
}
