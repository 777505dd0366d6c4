//! The receiving ring: the kernel copies packets into blocks and hands over whole ones (`TPACKET_V3`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::header::{self, FRONT_BYTES, VLAN_TAG_BYTES};
use super::memory::{BlockContents, BlockMemory};
use crate::ring::Producer;
use crate::sys::memory::Mapping;
use crate::sys::xsk::{Descriptor, PACKET_CONTINUES};

/// Marks an address in blocks: no area is that large.
pub(crate) const IN_BLOCKS: u64 = 1 << 63;

/// Announced in place of a packet whose header is invalid: its address is nowhere, and counts as a fault.
const NOWHERE: Descriptor = Descriptor { address: u64::MAX, len: 1, options: 0 };

/// The blocks of a receiving ring; the block being read is owned by this process.
#[derive(Debug)]
pub(super) struct ReceivingBlocks {
    memory: BlockMemory,
    /// The block being read, or the next one.
    block: u32,
    /// The unread part of a block being read.
    cursor: Option<BlockContents>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FoundPacket {
    /// Its first byte, from the start of the first block.
    offset: u64,
    /// Bytes from the packet's header to its first byte.
    header_bytes: u16,
    len: u32,
}

/// A header that contradicts itself or its block; the rest of the block cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct InvalidHeader {
    /// Packets lost with it, as the kernel counts.
    packets: u32,
}

impl ReceivingBlocks {
    pub(super) fn new(memory: BlockMemory) -> Self {
        Self { memory, block: 0, cursor: None }
    }

    /// Returns a block that was read to its end and takes the next, if the kernel has handed it over; returns
    /// whether there are packets to read.
    ///
    /// # Safety
    /// The packets of the block are not used any more.
    unsafe fn next_block(&mut self) -> bool {
        match self.cursor {
            Some(BlockContents { packets: 1.., .. }) => return true,
            Some(_) => {
                self.memory.return_block(self.block);
                self.block = (self.block + 1) % self.memory.block_count();
                self.cursor = None;
            }
            None => {}
        }
        if !self.memory.is_ours(self.block) {
            return false;
        }
        self.cursor = Some(self.memory.block_contents(self.block));
        true
    }

    /// The next packet of the current block, with its VLAN tag restored.
    fn next(&mut self) -> Option<Result<FoundPacket, InvalidHeader>> {
        let BlockContents { header, packets } = self.cursor.filter(|left| left.packets > 0)?;
        let is_last = packets == 1;
        let read = self.read_packet_at(header, is_last);
        let (next, left) = match read {
            Some((_, next)) => (next, packets - 1),
            None => (0, 0),
        };
        // A sum that is too large lies outside of the block, where `read` finds no header.
        self.cursor = Some(BlockContents { header: header.saturating_add(next), packets: left });
        Some(read.map(|(arrival, _)| arrival).ok_or(InvalidHeader { packets }))
    }

    /// The packet of a header, and the distance to the next header; `None` if the header is invalid.
    fn read_packet_at(&self, at: u32, is_last: bool) -> Option<(FoundPacket, u32)> {
        let block_bytes = self.memory.block_bytes();
        if at.checked_add(header::BYTES)? > block_bytes {
            return None;
        }
        let pointer = |at| self.memory.block_pointer(self.block, at);
        // SAFETY: the header lies in the block (just checked), which is ours; it has no invalid bit patterns.
        let header: libc::tpacket3_hdr = unsafe { pointer(at).cast().read_unaligned() };
        let first = header::packet_offset(&header, at, block_bytes, is_last)?;
        let (mut len, mut header_bytes) = (header.tp_snaplen, u32::from(header.tp_mac));
        if let Some(tag) = header::reinsertable_tag(&header) {
            // SAFETY: the addresses, and room for a tag in front of them, lie in the block
            // (`reinsertable_tag`), which is ours; nobody has seen the packet yet.
            let front = unsafe { pointer(first - VLAN_TAG_BYTES).cast::<[u8; FRONT_BYTES]>().as_mut() };
            header::insert_tag(front, tag);
            header_bytes -= VLAN_TAG_BYTES;
            len += VLAN_TAG_BYTES;
        }
        let offset = u64::from(self.block) * u64::from(block_bytes) + u64::from(at + header_bytes);
        let header_bytes = u16::try_from(header_bytes).ok()?;
        Some((FoundPacket { offset, header_bytes, len }, header.tp_next_offset))
    }
}

/// Blocks whose packets are announced on an rx ring, like those of an AF_XDP socket.
#[derive(Debug)]
pub(crate) struct PacketAnnouncer {
    blocks: ReceivingBlocks,
    rx: Producer<Descriptor>,
    pieces: PieceLimits,
    /// A packet that waits for room.
    next: Option<FoundPacket>,
    /// Packets not announced: with too many pieces, or with an invalid header.
    unannounced: Arc<AtomicU64>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct PieceLimits {
    pub(crate) bytes_max: u32,
    pub(crate) count_max: u32,
}

impl PacketAnnouncer {
    pub(super) fn new(blocks: ReceivingBlocks, rx: Producer<Descriptor>, pieces: PieceLimits) -> Self {
        let count_max = pieces.count_max.min(rx.capacity());
        assert!(pieces.bytes_max > 0, "packets in pieces of nothing");
        Self {
            blocks,
            rx,
            pieces: PieceLimits { count_max, ..pieces },
            next: None,
            unannounced: Arc::default(),
        }
    }

    /// Counts packets that were not announced.
    pub(crate) fn unannounced_counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.unannounced)
    }

    /// The memory of the blocks: addresses announced are offsets in it, marked by [`IN_BLOCKS`].
    pub(crate) fn block_mapping(&self) -> &Arc<Mapping> {
        self.blocks.memory.mapping()
    }

    /// Announces whole packets that have arrived. The caller must not borrow a packet that was announced
    /// before.
    pub(crate) fn announce_arrived(&mut self) {
        if self.rx.in_flight() > 0 {
            return;
        }
        // SAFETY: what was announced was read, and the reader has borrowed none of it (above).
        if self.next.is_none() && !unsafe { self.blocks.next_block() } {
            return;
        }
        while let Some(next) = self.next.take().map(Ok).or_else(|| self.blocks.next()) {
            let arrival = match next {
                Ok(arrival) => arrival,
                Err(InvalidHeader { packets }) => {
                    // The first packet is counted when its address turns out to be invalid.
                    let announced = u64::from(self.rx.push(NOWHERE).is_ok());
                    // No underflow: at least one packet is lost with the header.
                    self.unannounced.fetch_add(u64::from(packets) - announced, Ordering::Relaxed);
                    break;
                }
            };
            // Divides only for long packets.
            let is_short = arrival.len <= self.pieces.bytes_max;
            let pieces = if is_short { 1 } else { arrival.len.div_ceil(self.pieces.bytes_max) };
            if pieces > self.pieces.count_max {
                self.unannounced.fetch_add(1, Ordering::Relaxed);
            } else if self.rx.free_slots(pieces) < pieces {
                self.next = Some(arrival);
                break;
            } else {
                self.announce(arrival);
            }
        }
        self.rx.publish();
    }

    /// Announces the address of a packet, piece by piece; the ring has room.
    fn announce(&mut self, FoundPacket { mut offset, mut header_bytes, mut len }: FoundPacket) {
        // Ends: `new` has refused pieces of no bytes. The offset stays in the block, as the packet does
        // (`packet_offset`).
        loop {
            let piece = len.min(self.pieces.bytes_max);
            let continues = if piece < len { PACKET_CONTINUES } else { 0 };
            let options = u32::from(header_bytes) << 16 | continues;
            let _ = self.rx.push(Descriptor { address: IN_BLOCKS | offset, len: piece, options });
            (offset, header_bytes, len) = (offset + u64::from(piece), 0, len - piece);
            if len == 0 {
                break;
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::mem::offset_of;
    use std::ptr::NonNull;

    use super::*;

    const BLOCK_BYTES: u32 = 4096;

    /// A block with contents that no kernel writes.
    pub(in super::super) fn block_memory_with(
        first: u32,
        packets: u32,
        header: Option<(u32, libc::tpacket3_hdr)>,
    ) -> BlockMemory {
        let (memory, _) = Mapping::for_area(BLOCK_BYTES as usize, None, false).unwrap();
        let memory = BlockMemory::new(memory, BLOCK_BYTES, 1);
        let description = offset_of!(libc::tpacket_block_desc, hdr);
        let write = |field: usize, value: u32| {
            // SAFETY: inside the block, which nobody else knows.
            unsafe { memory.block_pointer(0, (description + field) as u32).cast::<u32>().write(value) };
        };
        write(offset_of!(libc::tpacket_hdr_v1, num_pkts), packets);
        write(offset_of!(libc::tpacket_hdr_v1, offset_to_first_pkt), first);
        write(offset_of!(libc::tpacket_hdr_v1, block_status), libc::TP_STATUS_USER);
        if let Some((at, header)) = header {
            // SAFETY: as above.
            unsafe { memory.block_pointer(0, at).cast().write_unaligned(header) };
        }
        memory
    }

    fn blocks_with(first: u32, packets: u32, header: Option<(u32, libc::tpacket3_hdr)>) -> ReceivingBlocks {
        ReceivingBlocks::new(block_memory_with(first, packets, header))
    }

    pub(in super::super) fn header_with(mac: u16, len: u32, next: u32) -> libc::tpacket3_hdr {
        // SAFETY: plain numbers.
        let zeroed: libc::tpacket3_hdr = unsafe { std::mem::zeroed() };
        libc::tpacket3_hdr { tp_mac: mac, tp_snaplen: len, tp_len: len, tp_next_offset: next, ..zeroed }
    }

    fn read_all_packets(mut blocks: ReceivingBlocks) -> Vec<Result<FoundPacket, InvalidHeader>> {
        // SAFETY: nobody reads packets of a block that was never handed out.
        assert!(unsafe { blocks.next_block() });
        std::iter::from_fn(|| blocks.next()).collect()
    }

    #[test]
    fn packets_are_found_by_their_headers() {
        let arrivals = read_all_packets(blocks_with(64, 1, Some((64, header_with(100, 60, 0)))));
        assert_eq!(arrivals, [Ok(FoundPacket { offset: 164, header_bytes: 100, len: 60 })]);
    }

    #[test]
    fn invalid_headers_end_the_block() {
        let lies = [
            blocks_with(BLOCK_BYTES - 8, 1, None), // no room for a header
            blocks_with(u32::MAX, 1, None),        // far outside
            blocks_with(64, 1, Some((64, header_with(100, 4096, 0)))), // longer than the block
            blocks_with(64, 1, Some((64, header_with(100, u32::MAX, 0)))), // an overflow
            blocks_with(64, 1, Some((64, header_with(8, 60, 0)))), // inside its own header
        ];
        for lie in lies {
            assert_eq!(read_all_packets(lie), [Err(InvalidHeader { packets: 1 })]);
        }
        let beyond = read_all_packets(blocks_with(64, u32::MAX, Some((64, header_with(100, 60, u32::MAX)))));
        assert_eq!((beyond.len(), beyond[1]), (2, Err(InvalidHeader { packets: u32::MAX - 1 })));
        // The next header inside the packet, or the same again: bytes of two packets.
        for next in [0, 48, 159] {
            let three = blocks_with(64, 3, Some((64, header_with(100, 60, next))));
            assert_eq!(read_all_packets(three), [Err(InvalidHeader { packets: 3 })]);
        }
        assert!(read_all_packets(blocks_with(64, 2, Some((64, header_with(100, 60, 160)))))[0].is_ok());
    }

    #[test]
    fn packets_after_an_invalid_header_are_counted() {
        let (rx, mut announced) = crate::ring::pair(4);
        let mut announcer = PacketAnnouncer::new(
            blocks_with(u32::MAX, 5, None),
            rx,
            PieceLimits { bytes_max: BLOCK_BYTES, count_max: 1 },
        );
        announcer.announce_arrived();
        let nowhere = announced.ready_entries(4).filter(|piece| *piece == NOWHERE).count();
        assert_eq!((nowhere, announcer.unannounced_counter().load(Ordering::Relaxed)), (1, 4));
    }

    #[test]
    fn a_vlan_tag_is_reinserted_after_the_addresses() {
        let mut tagged = header_with(100, 60, 0);
        tagged.tp_status = libc::TP_STATUS_VLAN_VALID | libc::TP_STATUS_VLAN_TPID_VALID;
        (tagged.hv1.tp_vlan_tci, tagged.hv1.tp_vlan_tpid) = (0x0123, 0x88a8);
        let mut blocks = blocks_with(64, 1, Some((64, tagged)));
        let packet: Vec<u8> = (0..60).collect();
        // SAFETY: as in `blocks`.
        unsafe { blocks.memory.block_pointer(0, 164).copy_from(NonNull::from(&packet[0]), packet.len()) };
        // SAFETY: as in `read_all_packets`.
        assert!(unsafe { blocks.next_block() });
        let arrival = blocks.next().unwrap().unwrap();
        assert_eq!(arrival, FoundPacket { offset: 160, header_bytes: 96, len: 64 });
        // SAFETY: the packet lies in the block.
        let bytes = unsafe { std::slice::from_raw_parts(blocks.memory.block_pointer(0, 160).as_ptr(), 64) };
        assert_eq!(bytes, [&packet[..12], &[0x88, 0xa8, 0x01, 0x23], &packet[12..]].concat());
    }
}
