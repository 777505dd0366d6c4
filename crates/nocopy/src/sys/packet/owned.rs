//! Blocks of a receiving ring that are owned one by one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use nocopy_proto::pcapng::{self, InPlaceWriter, InterfaceCounts};

use super::header::{self, BYTES, FRONT_BYTES, VLAN_TAG_BYTES};
use super::memory::{self, BlockMemory, STATUS_OFFSET};
use crate::facts::metadata::VlanTag;

/// Offset of the part of a block that is exclusively ours: after the word that the kernel reads.
const OURS_OFFSET: u32 = STATUS_OFFSET + 4;

const _: () = assert!(OURS_OFFSET as usize == InPlaceWriter::HEAD_BYTES);

/// Marks a header whose packet has its tag restored. The kernel clears that byte.
const PUT_BACK: u8 = 0x6e;

/// The blocks of a ring, each of which has at most one owner.
#[derive(Debug)]
pub(crate) struct OwnedBlocks {
    ring: Arc<BlockRing>,
    next: u32,
}

#[derive(Debug)]
struct BlockRing {
    memory: BlockMemory,
    /// Blocks that the program holds: when the ring reaches one, its status word is still set.
    held: Box<[AtomicBool]>,
    held_count: AtomicU32,
}

impl OwnedBlocks {
    pub(super) fn new(memory: BlockMemory) -> Self {
        let held = (0..memory.block_count()).map(|_| AtomicBool::new(false)).collect();
        Self { ring: Arc::new(BlockRing { memory, held, held_count: AtomicU32::new(0) }), next: 0 }
    }

    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        let BlockRing { memory, held, .. } = &*self.ring;
        // Acquire: pairs with the release in `Block::drop`, behind which the block is the kernel's or newly
        // ours.
        !held[self.next as usize].load(Ordering::Acquire) && memory.is_ours(self.next)
    }

    /// The next block, if the kernel has handed it over, and how many of its bytes the kernel has written.
    pub(crate) fn take_block(&mut self) -> Option<(Block, u32)> {
        if !self.is_ready() {
            return None;
        }
        let BlockRing { memory, held, held_count } = &*self.ring;
        let block = self.next;
        held[block as usize].store(true, Ordering::Relaxed); // only this half reads it
        held_count.fetch_add(1, Ordering::Relaxed);
        self.next = (block + 1) % memory.block_count();
        let (bytes, contents) = (memory.written_bytes(block), memory.block_contents(block));
        Some((Block { ring: Arc::clone(&self.ring), block, contents, returns: true }, bytes))
    }

    /// Whether the program still holds the block before the next one to read.
    pub(crate) fn is_previous_block_held(&self) -> bool {
        let count = self.block_count();
        self.ring.held[((self.next + count - 1) % count) as usize].load(Ordering::Relaxed)
    }

    /// Blocks that the kernel cannot write to now. Computed without looking at each block, which would miss
    /// the cache.
    pub(crate) fn in_use_count(&self) -> u32 {
        let BlockRing { memory, held, held_count } = &*self.ring;
        let waits = |behind: &u32| {
            let block = (self.next + behind) % memory.block_count();
            // In this order: the status word of a block held by the program may be overwritten
            // (`Block::into_pcapng`).
            !held[block as usize].load(Ordering::Relaxed) && memory.is_ours(block)
        };
        let waiting = (0..self.block_count()).take_while(waits).count() as u32;
        // Only a number: a block that returns meanwhile is counted or not.
        held_count.load(Ordering::Relaxed) + waiting
    }

    pub(crate) fn block_count(&self) -> u32 {
        self.ring.memory.block_count()
    }

    pub(crate) fn total_bytes(&self) -> u64 {
        u64::from(self.block_count()) * u64::from(self.ring.memory.block_bytes())
    }

    pub(crate) fn holds_single_packets(&self) -> bool {
        self.ring.memory.holds_single_packets()
    }
}

/// A block of packets as the kernel filled it. It returns to the kernel when it is dropped, on any thread, in
/// any order, also after the end of its [`Capture`](crate::Capture).
#[derive(Debug)]
pub struct Block {
    ring: Arc<BlockRing>,
    block: u32,
    contents: memory::BlockContents,
    returns: bool,
}

impl Block {
    /// Packets in it, by the kernel's count.
    pub(crate) fn packet_count(&self) -> u32 {
        self.contents.packets
    }

    /// Its packets, in the order of their arrival.
    pub fn packets(&mut self) -> impl Iterator<Item = Captured<'_>> {
        let memory::BlockContents { header, packets } = self.contents;
        let first = header.checked_sub(OURS_OFFSET).map_or(usize::MAX, |first| first as usize);
        let rest = self.bytes_mut().get_mut(first..).unwrap_or_default();
        BlockPackets { rest, left: packets }
    }

    /// Makes it a reader of single packets, with pauses.
    #[doc(hidden)]
    #[must_use]
    pub fn into_reader(self) -> BlockReader {
        let memory::BlockContents { header, packets } = self.contents;
        let at = header.checked_sub(OURS_OFFSET).map_or(usize::MAX, |first| first as usize);
        BlockReader { block: self, at, left: packets, malformed: 0 }
    }

    /// Makes it a piece of a pcapng file, in place: no packet is copied.
    #[doc(hidden)]
    #[must_use]
    pub fn into_pcapng(mut self, layout: &PcapngLayout) -> PcapngBlock {
        let memory::BlockContents { header, packets } = self.contents;
        let (laid, contents) = write_packets(self.bytes_mut(), header, packets, layout);
        let start = self.ring.memory.block_pointer(self.block, 0);
        // SAFETY: the first eight bytes of the block, which is ours. The kernel does not read them, as the
        // status is after them; for a single packet they are the status, which keeps its lowest bit
        // (`TP_STATUS_USER`) and so stays ours.
        unsafe { start.cast::<[u8; 8]>().write(laid.head) };
        PcapngBlock { block: self, bytes: laid.bytes, contents }
    }

    /// The whole block except its beginning, which the kernel reads.
    fn bytes_mut(&mut self) -> &mut [u8] {
        let memory = &self.ring.memory;
        let bytes = (memory.block_bytes() - OURS_OFFSET) as usize;
        let start = memory.block_pointer(self.block, OURS_OFFSET);
        // SAFETY: inside the block, which is handed out once (`OwnedBlocks::take`) and stays ours until it is
        // dropped; the kernel neither reads nor writes there meanwhile.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), bytes) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if !self.returns {
            return;
        }
        // Before `held` is cleared: otherwise the old status could be taken for that of a new block.
        self.ring.memory.return_block(self.block);
        self.ring.held_count.fetch_sub(1, Ordering::Relaxed);
        // Release: pairs with the acquire in `OwnedBlocks::take`.
        self.ring.held[self.block as usize].store(false, Ordering::Release);
    }
}

/// A packet in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Captured<'block> {
    /// The captured bytes, with the VLAN tag in its place.
    pub bytes: &'block [u8],
    /// The original length.
    pub original_bytes: u32,
    /// Arrival time, in nanoseconds since 1970 (`CLOCK_REALTIME`).
    pub time_ns: u64,
    /// The VLAN tag that the card or the kernel had removed.
    pub vlan: Option<VlanTag>,
    /// Whether the host sent it.
    pub outgoing: bool,
}

/// The packets of a [`Block`]. They end early if a header contradicts itself, which no known kernel causes.
#[derive(Debug)]
struct BlockPackets<'block> {
    /// Begins with the next packet's header.
    rest: &'block mut [u8],
    left: u32,
}

impl<'block> Iterator for BlockPackets<'block> {
    type Item = Captured<'block>;

    fn next(&mut self) -> Option<Captured<'block>> {
        let left = self.left.checked_sub(1)?;
        let rest = std::mem::take(&mut self.rest);
        let Some(PacketRecord { first, len, next, original_bytes, time_ns, vlan, outgoing }) =
            read_packet_record(rest, left == 0)
        else {
            self.left = 0;
            return None;
        };
        // In range, here and below: `packet_offset` found the packet in front of the next header, or the end.
        let (packet, rest) = rest.split_at_mut(next);
        (self.rest, self.left) = (rest, left);
        Some(Captured { bytes: &packet[first..first + len], original_bytes, time_ns, vlan, outgoing })
    }
}

/// A [`Block`] that is read packet by packet, and returns to the kernel when it is dropped.
#[derive(Debug)]
pub struct BlockReader {
    block: Block,
    /// The next packet's header, after the word that the kernel reads.
    at: usize,
    left: u32,
    malformed: u32,
}

impl BlockReader {
    /// Packets that follow.
    pub fn packets_left(&self) -> u32 {
        self.left
    }

    /// Packets lost because the kernel's headers contradict themselves; no known kernel causes this.
    pub fn malformed_count(&self) -> u32 {
        self.malformed
    }

    /// The next packet; `None` after the last.
    #[inline]
    pub fn next_packet(&mut self) -> Option<Captured<'_>> {
        let left = self.left.checked_sub(1)?;
        let rest = self.block.bytes_mut().get_mut(self.at..).unwrap_or_default();
        let Some(PacketRecord { first, len, next, original_bytes, time_ns, vlan, outgoing }) =
            read_packet_record(rest, left == 0)
        else {
            self.malformed += std::mem::take(&mut self.left);
            return None;
        };
        (self.at, self.left) = (self.at + next, left);
        Some(Captured { bytes: &rest[first..first + len], original_bytes, time_ns, vlan, outgoing })
    }

    /// The memory in which the block's packets lie, with headers between them; the VLAN tags of packets that
    /// were returned are in their places.
    pub fn memory(&self) -> &[u8] {
        let memory = &self.block.ring.memory;
        let bytes = (memory.block_bytes() - OURS_OFFSET) as usize;
        let start = memory.block_pointer(self.block.block, OURS_OFFSET);
        // SAFETY: as in `bytes_mut`; nothing of ours writes while this is borrowed.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), bytes) }
    }

    /// Drops the block without returning it to the kernel: for forked children, whose parent uses the same
    /// memory.
    pub fn disown(mut self) {
        self.block.returns = false;
    }
}

/// The checked place of a packet, relative to its header.
#[derive(Debug)]
struct PacketRecord {
    first: usize,
    len: usize,
    /// The next packet's header, or the end.
    next: usize,
    original_bytes: u32,
    time_ns: u64,
    vlan: Option<VlanTag>,
    outgoing: bool,
}

/// Reads the header in front of `rest`, and puts a tag back into its packet if that was not done yet; `None`
/// if the header is invalid.
fn read_packet_record(rest: &mut [u8], is_last: bool) -> Option<PacketRecord> {
    let mut header = header::read_header(rest)?;
    let end = u32::try_from(rest.len()).ok()?;
    let first = header::packet_offset(&header, 0, end, is_last)?;
    let outgoing = is_outgoing(&rest[..first as usize]);
    let vlan = header::vlan_tag(&header);
    let marked = header.tp_padding[7] == PUT_BACK;
    if let Some(tag) = header::reinsertable_tag(&header).filter(|_| !marked) {
        let front = (first - VLAN_TAG_BYTES) as usize;
        let front: &mut [u8; FRONT_BYTES] =
            (&mut rest[front..front + FRONT_BYTES]).try_into().expect("as long");
        header::insert_tag(front, tag);
        header.tp_mac -= VLAN_TAG_BYTES as u16;
        header.tp_snaplen += VLAN_TAG_BYTES;
        header.tp_len = header.tp_len.saturating_add(VLAN_TAG_BYTES);
        header.tp_padding[7] = PUT_BACK;
        header::write_header(rest, &header);
    }
    Some(PacketRecord {
        first: usize::from(header.tp_mac),
        len: header.tp_snaplen as usize,
        next: if is_last { rest.len() } else { rest.len().min(header.tp_next_offset as usize) },
        original_bytes: header.tp_len,
        time_ns: header::time_ns(&header),
        vlan,
        outgoing,
    })
}

/// Whether an address (`struct sockaddr_ll`) after a header marks a sent packet.
fn is_outgoing(header: &[u8]) -> bool {
    let kind = BYTES as usize + std::mem::offset_of!(libc::sockaddr_ll, sll_pkttype);
    header.get(kind) == Some(&libc::PACKET_OUTGOING)
}

/// How a block becomes a piece of a file.
#[derive(Debug, Clone, Copy)]
pub struct PcapngLayout {
    /// The counts so far, if the file is to contain them.
    pub counts: Option<InterfaceCounts>,
    /// The most bytes of a packet that are kept.
    pub snap_bytes: u32,
    /// The most packets that are kept.
    pub packets_max: u64,
    /// The piece is a multiple of this many bytes, a power of two up to a page.
    pub unit_bytes: usize,
}

/// The contents of a piece of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contents {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub packet_bytes: u64,
    /// Packets lost because the kernel's headers contradict themselves; no known kernel causes this.
    pub malformed: u64,
    /// Packets beyond `packets_max`.
    pub left_out: u64,
    /// Packets moved by a few bytes, because they were not aligned to four.
    pub moved: u64,
    /// Arrival time of its first packet, in nanoseconds since 1970.
    pub first_ns: Option<u64>,
    /// Arrival time of its last packet.
    pub last_ns: Option<u64>,
}

/// A [`Block`] that is a piece of a pcapng file.
#[derive(Debug)]
pub struct PcapngBlock {
    block: Block,
    bytes: usize,
    contents: Contents,
}

impl PcapngBlock {
    /// Its contents.
    pub fn contents(&self) -> &Contents {
        &self.contents
    }
}

impl AsRef<[u8]> for PcapngBlock {
    /// Whole pcapng blocks.
    fn as_ref(&self) -> &[u8] {
        let memory = &self.block.ring.memory;
        assert!(self.bytes <= memory.block_bytes() as usize, "more than a block");
        let start = memory.block_pointer(self.block.block, 0);
        // SAFETY: inside the block, which is ours; the kernel only reads in it meanwhile.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.bytes) }
    }
}

/// Lays a block's packets out, header by header.
fn write_packets(
    bytes: &mut [u8],
    mut at: u32,
    packets: u32,
    layout: &PcapngLayout,
) -> (pcapng::FinishedBlocks, Contents) {
    let mut blocks = InPlaceWriter::new(bytes, layout.counts, layout.snap_bytes);
    let mut contents = Contents::default();
    let wanted = u64::from(packets).min(layout.packets_max);
    for number in 0..wanted {
        let is_last = number + 1 == u64::from(packets);
        let place = blocks.memory_after(at as usize).and_then(|rest| read_packet_record(rest, is_last));
        let added = place.and_then(|place| {
            let direction =
                if place.outgoing { pcapng::PacketDirection::Out } else { pcapng::PacketDirection::In };
            let packet = pcapng::PacketHeader {
                time_ns: place.time_ns,
                original_bytes: place.original_bytes,
                direction,
            };
            let first = at as usize + place.first;
            blocks.add_packet(&packet, first..first + place.len).ok()?;
            Some(place)
        });
        let Some(PacketRecord { len, next, time_ns, .. }) = added else {
            contents.malformed = wanted - number;
            break;
        };
        contents.packets += 1;
        contents.packet_bytes += len.min(layout.snap_bytes as usize) as u64;
        contents.first_ns.get_or_insert(time_ns);
        contents.last_ns = Some(time_ns);
        at = at.saturating_add(next as u32);
    }
    contents.left_out = u64::from(packets) - wanted;
    let laid = blocks.finish(layout.unit_bytes);
    contents.moved = laid.moved.into();
    (laid, contents)
}

#[cfg(test)]
mod tests {
    use super::super::blocks::tests::{block_memory_with, header_with};
    use super::*;

    #[test]
    fn malformed_packets_are_counted() {
        // The second header would lie far outside.
        let memory = || block_memory_with(64, 5, Some((64, header_with(100, 60, u32::MAX))));
        let (mut whole, _) = OwnedBlocks::new(memory()).take_block().unwrap();
        assert_eq!((whole.packets().count(), whole.packet_count()), (1, 5));
        let mut reader = OwnedBlocks::new(memory()).take_block().unwrap().0.into_reader();
        assert!(reader.next_packet().is_some() && reader.next_packet().is_none());
        assert_eq!((reader.packets_left(), reader.malformed_count()), (0, 4));
    }

    #[test]
    fn packets_lie_in_the_memory_of_their_block() {
        let memory = block_memory_with(64, 1, Some((64, header_with(100, 60, 0))));
        let (mut block, _) = OwnedBlocks::new(memory).take_block().unwrap();
        let expected = 164 - OURS_OFFSET as usize;
        block.bytes_mut()[expected] = 7;
        let mut reader = block.into_reader();
        let packet = reader.next_packet().unwrap();
        let (start, bytes) = (packet.bytes.as_ptr().addr(), packet.bytes.len());
        let memory = reader.memory();
        assert_eq!((start - memory.as_ptr().addr(), bytes), (expected, 60));
        assert_eq!((memory[expected], memory.len()), (7, (4096 - OURS_OFFSET) as usize));
    }
}
