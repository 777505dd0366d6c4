//! A strict reader for tests, limited to the blocks that are written here.

use super::*;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ParsedBlock {
    Packet { packet: PacketHeader, data: Vec<u8> },
    Counts(InterfaceCounts),
    Filler,
    Other(u32),
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn read_time(bytes: &[u8], at: usize) -> u64 {
    u64::from(read_u32(bytes, at)) << 32 | u64::from(read_u32(bytes, at + 4))
}

/// Every block of `bytes`, which end with one.
pub(super) fn read_blocks(mut bytes: &[u8]) -> Vec<ParsedBlock> {
    let mut blocks = Vec::new();
    while !bytes.is_empty() {
        let len = read_u32(bytes, 4) as usize;
        assert!(len >= 12 && len.is_multiple_of(4), "a block of {len} bytes");
        assert_eq!(read_u32(bytes, len - 4) as usize, len, "a block ends as it begins");
        let (block, rest) = bytes.split_at(len);
        blocks.push(match read_u32(block, 0) {
            ENHANCED_PACKET => parse_packet(&block[8..len - 4]),
            INTERFACE_STATISTICS => parse_counts(&block[8..len - 4]),
            FILLER => ParsedBlock::Filler,
            kind => ParsedBlock::Other(kind),
        });
        bytes = rest;
    }
    blocks
}

fn parse_packet(body: &[u8]) -> ParsedBlock {
    assert_eq!(read_u32(body, 0), INTERFACE);
    let captured = read_u32(body, 12) as usize;
    let options = parse_options(&body[20 + captured.next_multiple_of(4)..]);
    assert!(options[1..].iter().all(|(code, _)| *code == OPTION_FILLER));
    let direction = match options[0] {
        (PACKET_FLAGS, [1, 0, 0, 0]) => PacketDirection::In,
        (PACKET_FLAGS, [2, 0, 0, 0]) => PacketDirection::Out,
        other => panic!("{other:?}"),
    };
    let packet = PacketHeader { time_ns: read_time(body, 4), original_bytes: read_u32(body, 16), direction };
    ParsedBlock::Packet { packet, data: body[20..20 + captured].to_vec() }
}

fn parse_counts(body: &[u8]) -> ParsedBlock {
    let options = parse_options(&body[12..]);
    let number = |at: usize, code| {
        assert_eq!(options[at].0, code);
        u64::from_le_bytes(options[at].1.try_into().unwrap())
    };
    let (received, dropped) = (number(0, STATISTICS_RECEIVED), number(1, STATISTICS_DROPPED));
    ParsedBlock::Counts(InterfaceCounts { time_ns: read_time(body, 4), received, dropped })
}

/// Options up to their end, which is the end of the block.
fn parse_options(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut options = Vec::new();
    loop {
        let half = |at| u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap());
        let (code, len) = (half(0), usize::from(half(2)));
        let end = 4 + len.next_multiple_of(4);
        if code == OPTION_END {
            assert_eq!((len, bytes.len()), (0, 4));
            return options;
        }
        options.push((code, &bytes[4..4 + len]));
        bytes = &bytes[end..];
    }
}
