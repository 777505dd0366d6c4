//! Writes blocks around packets in the memory that holds them: no packet is moved.
//!
//! The kernel reads the block's status word while the block is with the program. Those four bytes are the
//! body of a filler, so they may have any value.

use std::ops::Range;

use super::{
    FILLER_BYTES_MIN, InterfaceCounts, PACKET_HEAD_BYTES, PACKET_TAIL_BYTES, PacketHeader, STATISTICS_BYTES,
    filler_head, wrap_packet, write_filler, write_statistics,
};

/// Makes blocks in place, packet by packet, in the order of their addresses.
///
/// The first [`InPlaceWriter::HEAD_BYTES`] of the memory are not written; [`InPlaceWriter::finish`] returns
/// what belongs there. Another process may read a word in them meanwhile.
#[derive(Debug)]
pub struct InPlaceWriter<'a> {
    /// The block's bytes without its head.
    bytes: &'a mut [u8],
    counts: Option<InterfaceCounts>,
    snap_bytes: u32,
    first_bytes: usize,
    last: Option<LastPacket>,
    moved: u32,
}

/// The packet whose block ends where the next begins.
#[derive(Debug, Clone, Copy)]
struct LastPacket {
    packet: PacketHeader,
    start: usize,
    len: usize,
}

/// The finished memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FinishedBlocks {
    /// Bytes for the start of the memory. The four bytes after them are free.
    pub head: [u8; 8],
    /// Whole blocks, from the beginning of the memory on.
    pub bytes: usize,
    /// Packets moved by a few bytes to meet the alignment of the format.
    pub moved: u32,
}

/// There is not enough room in front of a packet, or it is outside the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "packet: no block can be written around it; it lies too close to the one before it, or outside the memory; write it elsewhere"
)]
pub struct NoRoomForBlock;

impl<'a> InPlaceWriter<'a> {
    /// At the beginning of the memory: eight of the first block, and four that stay as they are.
    pub const HEAD_BYTES: usize = 12;

    /// Begins with the memory behind its head; with counts in front of the packets, if there are any. No more
    /// than `snap_bytes` of a packet are kept.
    pub fn new(bytes: &'a mut [u8], counts: Option<InterfaceCounts>, snap_bytes: u32) -> Self {
        Self { bytes, counts, snap_bytes, first_bytes: 0, last: None, moved: 0 }
    }

    /// Makes a block around the packet at `place`, counted from the beginning of the memory. Everything
    /// between this packet and the one before it may be overwritten.
    ///
    /// # Errors
    /// There is no room; nothing has changed.
    pub fn add_packet(&mut self, packet: &PacketHeader, place: Range<usize>) -> Result<(), NoRoomForBlock> {
        let end = self.bytes.len() + Self::HEAD_BYTES;
        if place.start > place.end || place.end > end {
            return Err(NoRoomForBlock);
        }
        let len = place.len().min(self.snap_bytes as usize);
        let last_start = end.checked_sub(PACKET_TAIL_BYTES + len).ok_or(NoRoomForBlock)?;
        // Rounded down: also so that the padding fits.
        let start = place.start.min(last_start) / 4 * 4;
        let block = start.checked_sub(PACKET_HEAD_BYTES).filter(|block| *block >= self.next_block_start());
        let block = block.ok_or(NoRoomForBlock)?;
        self.end_block_at(block);
        if start != place.start {
            let from = place.start - Self::HEAD_BYTES;
            self.bytes.copy_within(from..from + len, start - Self::HEAD_BYTES);
            self.moved += 1;
        }
        self.last = Some(LastPacket { packet: *packet, start, len });
        Ok(())
    }

    /// The memory from `at` on, counted from its beginning, in which to look for the next packet.
    pub fn memory_after(&mut self, at: usize) -> Option<&mut [u8]> {
        self.bytes.get_mut(at.checked_sub(Self::HEAD_BYTES)?..)
    }

    /// Ends the last block, and fills up to a multiple of `unit` if the memory is as long.
    pub fn finish(mut self, unit: usize) -> FinishedBlocks {
        let memory = self.bytes.len() + Self::HEAD_BYTES;
        let used = self.next_block_start();
        let whole = used.next_multiple_of(unit).min(memory / 4 * 4);
        let end = if whole - used >= FILLER_BYTES_MIN && self.last.is_some() { used } else { whole };
        self.end_block_at(end);
        write_filler(&mut self.bytes[end - Self::HEAD_BYTES..whole - Self::HEAD_BYTES]);
        let head = filler_head(u32::try_from(self.first_bytes).expect("blocks are shorter"));
        FinishedBlocks { head, bytes: whole, moved: self.moved }
    }

    /// The first possible start of the next block.
    fn next_block_start(&self) -> usize {
        match self.last {
            Some(LastPacket { start, len, .. }) => start + len.next_multiple_of(4) + PACKET_TAIL_BYTES,
            None => Self::HEAD_BYTES + 4 + self.counts.map_or(0, |_| STATISTICS_BYTES),
        }
    }

    /// Ends the last packet's block, or the blocks before the first packet, at `end`.
    fn end_block_at(&mut self, end: usize) {
        if let Some(LastPacket { packet, start, len }) = self.last {
            wrap_packet(self.memory_range(start - PACKET_HEAD_BYTES..end), &packet, len);
            return;
        }
        let mut first = end;
        if let Some(counts) = self.counts {
            first -= STATISTICS_BYTES;
            write_statistics(self.memory_range(first..end), &counts);
        }
        self.first_bytes = first;
        let rest = self.memory_range(Self::HEAD_BYTES..first);
        let (body, tail) = rest.split_at_mut(rest.len() - 4);
        body.fill(0);
        tail.copy_from_slice(&(first as u32).to_le_bytes());
    }

    /// The bytes at a place, counted from the beginning of the memory.
    fn memory_range(&mut self, place: Range<usize>) -> &mut [u8] {
        &mut self.bytes[place.start - Self::HEAD_BYTES..place.end - Self::HEAD_BYTES]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::reader::{ParsedBlock, read_blocks};
    use super::super::{PacketDirection, packet_block_bytes, write_packet};
    use super::*;

    const UNIT: usize = 512;
    /// Bytes between two packets, at least; the kernel's ring has more.
    const GAP_BYTES: usize = 80;
    /// The word that another process reads.
    const WORD: [u8; 4] = [1, 0, 0, 0x55];

    fn numbered_packet(number: u8) -> PacketHeader {
        let direction = if number.is_multiple_of(2) { PacketDirection::In } else { PacketDirection::Out };
        PacketHeader { time_ns: u64::from(number) << 31, original_bytes: 2000, direction }
    }

    fn write_in_place(
        memory: &mut [u8],
        counts: Option<InterfaceCounts>,
        snap: u32,
        places: &[Range<usize>],
    ) -> FinishedBlocks {
        memory[8..12].copy_from_slice(&WORD);
        let mut blocks = InPlaceWriter::new(&mut memory[InPlaceWriter::HEAD_BYTES..], counts, snap);
        for (number, place) in (0..).zip(places) {
            blocks.add_packet(&numbered_packet(number), place.clone()).unwrap();
        }
        let laid = blocks.finish(UNIT);
        memory[..8].copy_from_slice(&laid.head);
        laid
    }

    #[test]
    fn a_ring_block_becomes_the_expected_bytes() {
        let mut memory = vec![0xaa; 1024];
        let (first, second): (Vec<u8>, Vec<u8>) = ((0..61).collect(), (100..170).collect());
        memory[132..193].copy_from_slice(&first);
        memory[284..354].copy_from_slice(&second);
        let laid = write_in_place(&mut memory, None, 1 << 18, &[132..193, 284..354]);
        assert_eq!((laid.bytes, laid.moved), (512, 0));

        let mut expected = Vec::new();
        let word = |expected: &mut Vec<u8>, word: u32| expected.extend(word.to_le_bytes());
        word(&mut expected, 0x8000_6e63); // a filler of 104 bytes, with the word of somebody else
        word(&mut expected, 104);
        expected.extend(WORD);
        expected.resize(100, 0);
        word(&mut expected, 104);
        word(&mut expected, 6); // a packet, up to the next at 256
        word(&mut expected, 152);
        for field in [0, 0, 0, 61, 2000] {
            word(&mut expected, field);
        }
        expected.extend(&first);
        expected.extend([0, 0, 0]);
        expected.extend([2, 0, 4, 0, 1, 0, 0, 0]); // inwards
        expected.extend([0x63, 0x8e, 40, 0]); // filled
        expected.resize(252, 0);
        word(&mut expected, 152);
        let mut last = vec![0; packet_block_bytes(70)];
        write_packet(&mut last, &numbered_packet(1), &second);
        expected.extend(last);
        word(&mut expected, 0x8000_6e63);
        word(&mut expected, 140);
        expected.resize(508, 0);
        word(&mut expected, 140);
        assert_eq!(memory[..512], expected);
        assert!(memory[512..].iter().all(|byte| *byte == 0xaa), "what is behind is left alone");
    }

    #[test]
    fn packets_that_do_not_fit_are_refused() {
        let mut memory = [0; 1024];
        let mut blocks = InPlaceWriter::new(&mut memory, None, 1 << 18);
        for place in [0..10, 40..50, 1030..1037, Range { start: 200, end: 100 }, usize::MAX - 5..usize::MAX] {
            assert_eq!(
                blocks.add_packet(&numbered_packet(0), place.clone()),
                Err(NoRoomForBlock),
                "{place:?}"
            );
        }
        blocks.add_packet(&numbered_packet(0), 100..200).unwrap();
        for place in [200..210, 243..250, 100..200] {
            assert_eq!(blocks.add_packet(&numbered_packet(0), place), Err(NoRoomForBlock));
        }
        blocks.add_packet(&numbered_packet(0), 244..250).unwrap();
    }

    #[test]
    fn memory_without_packets_is_a_filler_or_counts() {
        let counts = InterfaceCounts { time_ns: 1, received: 2, dropped: 3 };
        let mut memory = [0xaa; 1024];
        let laid = write_in_place(&mut memory, None, 100, &[]);
        assert_eq!(read_blocks(&memory[..laid.bytes]), [ParsedBlock::Filler]);
        let laid = write_in_place(&mut memory, Some(counts), 100, &[]);
        assert_eq!(read_blocks(&memory[..laid.bytes]), [ParsedBlock::Filler, ParsedBlock::Counts(counts)]);
    }

    proptest! {
        /// With packets anywhere: each is read back unchanged, and the blocks end with a unit.
        #[test]
        fn packets_written_in_place_are_read_back(
            shape in prop::collection::vec((0..12_usize, 0..400_usize), 0..20),
            behind in 0..40_usize,
            counted in any::<bool>(),
            snap in prop_oneof![Just(1_u32 << 18), 1..100_u32],
        ) {
            let (mut places, mut end) = (Vec::new(), 60);
            for (more, len) in shape {
                let start = end + GAP_BYTES + more;
                end = start + len;
                places.push(start..end);
            }
            // As close to the end as in the kernel's ring, or closer.
            let mut memory = vec![0; (end + behind).next_multiple_of(UNIT).max(UNIT)];
            for (at, byte) in memory.iter_mut().enumerate() {
                *byte = (at * 7 + at / 256) as u8;
            }
            let data = |place: &Range<usize>| {
                let mut data = memory[place.clone()].to_vec();
                data.truncate(snap as usize);
                data
            };
            let mut expected = vec![ParsedBlock::Filler];
            let counts = counted.then_some(InterfaceCounts { time_ns: 5, received: 6, dropped: 7 });
            expected.extend(counts.map(ParsedBlock::Counts));
            expected.extend((0..).zip(&places).map(|(number, place)| {
                let packet = PacketHeader { original_bytes: 2000, ..numbered_packet(number) };
                ParsedBlock::Packet { packet, data: data(place) }
            }));
            let laid = write_in_place(&mut memory, counts, snap, &places);
            prop_assert_eq!(laid.bytes % UNIT, 0);
            prop_assert_eq!(&memory[8..12], &WORD);
            let mut found = read_blocks(&memory[..laid.bytes]);
            if found.len() > expected.len() {
                prop_assert_eq!(found.pop(), Some(ParsedBlock::Filler));
            }
            prop_assert_eq!(found, expected);
        }
    }
}
