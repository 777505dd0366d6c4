//! Capture files: blocks of the pcapng format, written whole or around packets in place.
//!
//! A file that is written in whole sectors has gaps between its blocks. They are filled by blocks and options
//! with numbers for local use (the highest bit set), which every reader must skip. Custom blocks have the
//! same purpose, but Wireshark shows each in its list of packets.
//!
//! The format: <https://www.ietf.org/archive/id/draft-ietf-opsawg-pcapng-03.html>. Everything is
//! little-endian, and times count nanoseconds since 1970.

mod in_place;

#[cfg(test)]
mod reader;

pub use in_place::{FinishedBlocks, InPlaceWriter, NoRoomForBlock};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
/// A block type for local use: "nc".
const FILLER: u32 = 0x8000_6e63;

const OPTION_END: u16 = 0;
const OPTION_FILLER: u16 = 0x8e63;
const SECTION_APPLICATION: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const INTERFACE_TIME_RESOLUTION: u16 = 9;
const INTERFACE_FILTER: u16 = 11;
const PACKET_FLAGS: u16 = 2;
const STATISTICS_RECEIVED: u16 = 4;
const STATISTICS_DROPPED: u16 = 5;

const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const LINK_ETHERNET: u16 = 1;
/// The index of the only interface.
const INTERFACE: u32 = 0;

/// Bytes of a block in front of a packet.
pub const PACKET_HEAD_BYTES: usize = 28;
/// Bytes of a block after a packet, and up to three more, so that the sum is a multiple of four.
pub const PACKET_TAIL_BYTES: usize = 8 + 4 + 4;
/// The least a filler fills.
pub const FILLER_BYTES_MIN: usize = 12;
/// A block with counts.
pub const STATISTICS_BYTES: usize = 12 + 12 + 2 * 12 + 4;
/// The most of a packet that other programs read (libpcap's `MAXIMUM_SNAPLEN`, Wireshark's limit for
/// Ethernet).
pub const SNAP_BYTES_MAX: u32 = 262_144;

/// The description of the source of packets in a file.
#[derive(Debug, Clone, Copy)]
pub struct InterfaceDescription<'a> {
    /// Its name.
    pub name: &'a str,
    /// The filter's words.
    pub filter: Option<&'a str>,
    /// The most captured bytes of a packet.
    pub snap_bytes: u32,
    /// The program that writes the file.
    pub application: &'a str,
}

/// Counts from the beginning of the capture until a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterfaceCounts {
    /// When, in nanoseconds since 1970.
    pub time_ns: u64,
    /// Packets that matched the filter.
    pub received: u64,
    /// The packets among them that were lost.
    pub dropped: u64,
}

/// The direction of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketDirection {
    /// Into the host.
    In,
    /// Sent by the interface.
    Out,
}

/// The values written in front of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketHeader {
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// How long it was on the wire, if it was cut.
    pub original_bytes: u32,
    /// The direction.
    pub direction: PacketDirection,
}

/// The beginning of a file, filled up to a multiple of `unit`: section header and interface description.
///
/// # Panics
/// If `unit` is no multiple of four.
pub fn file_head(interface: &InterfaceDescription<'_>, unit: usize) -> Vec<u8> {
    assert!(unit > 0 && unit.is_multiple_of(4), "no unit of blocks");
    let mut section = Vec::new();
    section.extend(BYTE_ORDER.to_le_bytes());
    section.extend(1_u16.to_le_bytes());
    section.extend(0_u16.to_le_bytes());
    section.extend((-1_i64).to_le_bytes()); // however long
    append_option(&mut section, SECTION_APPLICATION, interface.application.as_bytes());
    append_option(&mut section, OPTION_END, &[]);

    let mut description = Vec::new();
    description.extend(LINK_ETHERNET.to_le_bytes());
    description.extend(0_u16.to_le_bytes());
    description.extend(interface.snap_bytes.to_le_bytes());
    append_option(&mut description, INTERFACE_NAME, interface.name.as_bytes());
    append_option(&mut description, INTERFACE_TIME_RESOLUTION, &[9]); // 10^-9 s
    if let Some(filter) = interface.filter {
        let words = [&[0], filter.as_bytes()].concat(); // 0: in libpcap's words
        append_option(&mut description, INTERFACE_FILTER, &words);
    }
    append_option(&mut description, OPTION_END, &[]);

    let mut bytes = Vec::new();
    append_block(&mut bytes, SECTION_HEADER, &section);
    append_block(&mut bytes, INTERFACE_DESCRIPTION, &description);
    let used = bytes.len();
    bytes.resize(filled_length(used, unit), 0);
    write_filler(&mut bytes[used..]);
    bytes
}

/// The least multiple of `unit` up to which `used` bytes can be filled: to it there is nothing, or room for a
/// filler.
pub fn filled_length(used: usize, unit: usize) -> usize {
    let whole = used.next_multiple_of(unit);
    if whole == used { whole } else { (used + FILLER_BYTES_MIN).next_multiple_of(unit) }
}

/// Makes one filler of `bytes`; nothing if they are empty.
///
/// # Panics
/// If a filler cannot be that short, or not of that many bytes.
pub fn write_filler(bytes: &mut [u8]) {
    if let Some(body) = write_block_frame(bytes, FILLER) {
        body.fill(0);
    }
}

/// The beginning of a filler of `bytes` bytes, whose rest is written separately.
fn filler_head(bytes: u32) -> [u8; 8] {
    let [a, b, c, d] = FILLER.to_le_bytes();
    let [e, f, g, h] = bytes.to_le_bytes();
    [a, b, c, d, e, f, g, h]
}

/// Writes counts into the first [`STATISTICS_BYTES`] of `bytes`.
///
/// # Panics
/// There are fewer bytes.
pub fn write_statistics(bytes: &mut [u8], counts: &InterfaceCounts) {
    let mut body = Vec::with_capacity(STATISTICS_BYTES);
    body.extend(INTERFACE.to_le_bytes());
    body.extend(time_words(counts.time_ns));
    append_option(&mut body, STATISTICS_RECEIVED, &counts.received.to_le_bytes());
    append_option(&mut body, STATISTICS_DROPPED, &counts.dropped.to_le_bytes());
    append_option(&mut body, OPTION_END, &[]);
    let there = write_block_frame(&mut bytes[..STATISTICS_BYTES], INTERFACE_STATISTICS).expect("not empty");
    there.copy_from_slice(&body);
}

/// Bytes of a packet's block.
pub const fn packet_block_bytes(len: usize) -> usize {
    PACKET_HEAD_BYTES + len.next_multiple_of(4) + PACKET_TAIL_BYTES
}

/// Copies a packet into the front of `bytes`, as a block of [`packet_block_bytes`].
///
/// # Panics
/// There are fewer bytes.
pub fn write_packet(bytes: &mut [u8], packet: &PacketHeader, data: &[u8]) {
    let bytes = &mut bytes[..packet_block_bytes(data.len())];
    bytes[PACKET_HEAD_BYTES..][..data.len()].copy_from_slice(data);
    wrap_packet(bytes, packet, data.len());
}

/// Makes a block of `bytes` around a packet that begins at [`PACKET_HEAD_BYTES`], with options up to the end.
fn wrap_packet(bytes: &mut [u8], packet: &PacketHeader, len: usize) {
    let captured = u32::try_from(len).expect("a packet is shorter");
    let body = write_block_frame(bytes, ENHANCED_PACKET).expect("not empty");
    let (head, rest) = body.split_at_mut(PACKET_HEAD_BYTES - 8);
    head[..4].copy_from_slice(&INTERFACE.to_le_bytes());
    head[4..12].copy_from_slice(&time_words(packet.time_ns));
    head[12..16].copy_from_slice(&captured.to_le_bytes());
    head[16..].copy_from_slice(&packet.original_bytes.max(captured).to_le_bytes());
    let behind = &mut rest[len..];
    let padding = behind.len() % 4;
    behind.fill(0); // also ends the options
    let options = &mut behind[padding..];
    let flags: u32 = match packet.direction {
        PacketDirection::In => 1,
        PacketDirection::Out => 2,
    };
    options[..2].copy_from_slice(&PACKET_FLAGS.to_le_bytes());
    options[2..4].copy_from_slice(&4_u16.to_le_bytes());
    options[4..8].copy_from_slice(&flags.to_le_bytes());
    let room = options.len() - 8 - 4;
    if room > 0 {
        let filled = u16::try_from(room - 4).expect("less than a sector");
        options[8..10].copy_from_slice(&OPTION_FILLER.to_le_bytes());
        options[10..12].copy_from_slice(&filled.to_le_bytes());
    }
}

/// Writes the beginning and the end of a block, and returns the bytes between; `None` if the memory is too
/// short.
fn write_block_frame(bytes: &mut [u8], kind: u32) -> Option<&mut [u8]> {
    if bytes.is_empty() {
        return None;
    }
    assert!(bytes.len() >= FILLER_BYTES_MIN && bytes.len().is_multiple_of(4), "{} bytes", bytes.len());
    let len = u32::try_from(bytes.len()).expect("blocks are shorter").to_le_bytes();
    let (head, rest) = bytes.split_at_mut(8);
    let (body, tail) = rest.split_at_mut(rest.len() - 4);
    head[..4].copy_from_slice(&kind.to_le_bytes());
    head[4..].copy_from_slice(&len);
    tail.copy_from_slice(&len);
    Some(body)
}

fn append_block(bytes: &mut Vec<u8>, kind: u32, body: &[u8]) {
    let start = bytes.len();
    bytes.resize(start + 8 + body.len() + 4, 0);
    write_block_frame(&mut bytes[start..], kind).expect("not empty").copy_from_slice(body);
}

fn append_option(bytes: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    bytes.extend(code.to_le_bytes());
    bytes.extend((value.len() as u16).to_le_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// A time, upper half first.
fn time_words(ns: u64) -> [u8; 8] {
    let [a, b, c, d, e, f, g, h] = ns.to_le_bytes();
    [e, f, g, h, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::reader::{ParsedBlock, read_blocks};
    use super::*;

    const UNIT: usize = 4096;

    #[test]
    fn a_file_head_describes_the_interface_and_fills_a_unit() {
        let interface = InterfaceDescription {
            name: "eth0",
            filter: Some("udp"),
            snap_bytes: SNAP_BYTES_MAX,
            application: "nocopy 1",
        };
        let bytes = file_head(&interface, UNIT);
        assert_eq!(bytes.len(), UNIT);
        let section =
            [&[0x0a, 0x0d, 0x0d, 0x0a, 44, 0, 0, 0][..], &[0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0]].concat();
        assert_eq!(bytes[..16], section);
        assert_eq!(bytes[24..36], [4, 0, 8, 0, b'n', b'o', b'c', b'o', b'p', b'y', b' ', b'1']);
        assert_eq!(bytes[44..60], [1, 0, 0, 0, 48, 0, 0, 0, 1, 0, 0, 0, 0, 0, 4, 0]);
        assert_eq!(bytes[60..76], [2, 0, 4, 0, b'e', b't', b'h', b'0', 9, 0, 1, 0, 9, 0, 0, 0]);
        assert_eq!(bytes[76..84], [11, 0, 4, 0, 0, b'u', b'd', b'p']);
        assert_eq!(
            read_blocks(&bytes),
            [
                ParsedBlock::Other(SECTION_HEADER),
                ParsedBlock::Other(INTERFACE_DESCRIPTION),
                ParsedBlock::Filler
            ]
        );
    }

    #[test]
    fn counts_and_packets_are_separate_blocks() {
        let mut bytes = [0xff; 400];
        let counts = InterfaceCounts { time_ns: 1 << 33 | 5, received: 7, dropped: 2 };
        write_statistics(&mut bytes, &counts);
        let first =
            PacketHeader { time_ns: 1 << 60 | 9, original_bytes: 100, direction: PacketDirection::Out };
        write_packet(&mut bytes[STATISTICS_BYTES..], &first, &[1, 2, 3, 4, 5]);
        let end = STATISTICS_BYTES + packet_block_bytes(5);
        write_filler(&mut bytes[end..]);
        let packet = ParsedBlock::Packet { packet: first, data: vec![1, 2, 3, 4, 5] };
        assert_eq!(read_blocks(&bytes), [ParsedBlock::Counts(counts), packet, ParsedBlock::Filler]);
    }

    #[test]
    fn the_rest_of_a_unit_is_empty_or_a_filler() {
        for used in (4..=UNIT).step_by(4) {
            let whole = filled_length(used, UNIT);
            assert!(whole == used || whole - used >= FILLER_BYTES_MIN, "{used}");
            assert_eq!(whole, if (UNIT - 8..UNIT).contains(&used) { 2 * UNIT } else { UNIT }, "{used}");
        }
    }
}
