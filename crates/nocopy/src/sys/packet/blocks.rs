//! The receiving ring: the kernel copies packets into blocks and hands over whole ones (`TPACKET_V3`).

use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::VLAN_TAG_BYTES;
use super::arrival::vlan_tag;
use crate::metadata::VlanTag;
use crate::ring::Producer;
use crate::sys::memory::Mapping;
use crate::sys::xsk::{Descriptor, PACKET_CONTINUES};

/// Marks an address that lies in blocks: no area is that large.
pub(crate) const IN_BLOCKS: u64 = 1 << 63;

/// What is announced in place of a packet whose header cannot be believed: it lies nowhere, and is counted as such.
const NOWHERE: Descriptor = Descriptor { address: u64::MAX, len: 1, options: 0 };

/// Two hardware addresses: what stands in front of a VLAN tag.
const ADDRESSES_BYTES: usize = 12;

/// The blocks of a receiving ring, of which the one being read is ours.
#[derive(Debug)]
pub(super) struct Blocks {
    memory: Arc<Mapping>,
    block_bytes: u32,
    block_count: u32,
    /// The block that is ours, or comes next.
    block: u32,
    /// Where reading goes on in a block that is ours.
    cursor: Option<Cursor>,
}

#[derive(Debug, Clone, Copy)]
struct Cursor {
    /// The next packet's header, from the start of the block.
    header: u32,
    packets_left: u32,
}

/// Where a packet lies in the memory of the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Arrival {
    /// Its first byte, from the start of the first block.
    offset: u64,
    /// From its header to its first byte.
    header_bytes: u16,
    len: u32,
}

/// A header that contradicts itself, or the block it lies in; the rest of the block cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Incredible;

impl Blocks {
    pub(super) fn new(memory: Mapping, block_bytes: u32, block_count: u32) -> Self {
        assert!(memory.bytes() >= block_bytes as usize * block_count as usize, "less memory than blocks");
        let memory = Arc::new(memory);
        Self { memory, block_bytes, block_count, block: 0, cursor: None }
    }

    /// Gives a block back that was read to its end and takes the next, if the kernel has handed it over; returns whether
    /// there are packets to read.
    ///
    /// # Safety
    /// Nobody reads packets of the block any more.
    unsafe fn turn(&mut self) -> bool {
        match self.cursor {
            Some(Cursor { packets_left: 1.., .. }) => return true,
            Some(_) => {
                // Release: pairs with the kernel's read of the status before it writes into the block again.
                self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
                self.block = (self.block + 1) % self.block_count;
                self.cursor = None;
            }
            None => {}
        }
        // Acquire: pairs with the kernel's write of the status after those of the packets.
        if self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return false;
        }
        let description = offset_of!(libc::tpacket_block_desc, hdr) as u32;
        let word = |field: usize| self.word(description + field as u32);
        self.cursor = Some(Cursor {
            header: word(offset_of!(libc::tpacket_hdr_v1, offset_to_first_pkt)),
            packets_left: word(offset_of!(libc::tpacket_hdr_v1, num_pkts)),
        });
        true
    }

    /// The next packet of the block that is ours, with its VLAN tag put back where it was on the wire.
    ///
    /// # Errors
    /// Its header cannot be believed.
    fn next(&mut self) -> Option<Result<Arrival, Incredible>> {
        let Cursor { header, packets_left } = self.cursor.filter(|cursor| cursor.packets_left > 0)?;
        let is_last = packets_left == 1;
        let read = self.read(header, is_last);
        let (next, packets_left) = match read {
            Some((_, next)) => (next, packets_left - 1),
            None => (0, 0),
        };
        self.cursor = Some(Cursor { header: header.saturating_add(next), packets_left });
        Some(read.map(|(arrival, _)| arrival).ok_or(Incredible))
    }

    /// The packet of a header, and how far it is to the next header; `None` if it does not lie in the block, or the next header
    /// not behind it: the same bytes would be two packets.
    fn read(&self, at: u32, is_last: bool) -> Option<(Arrival, u32)> {
        let end = at.checked_add(size_of::<libc::tpacket3_hdr>() as u32)?;
        if end > self.block_bytes {
            return None;
        }
        // SAFETY: the header lies in the block (just checked), which is ours; it has no invalid bit patterns.
        let header: libc::tpacket3_hdr = unsafe { self.pointer(at).cast().read_unaligned() };
        let (len, mut header_bytes) = (header.tp_snaplen, u32::from(header.tp_mac));
        let first = at.checked_add(header_bytes)?;
        if first < end || first.checked_add(len)? > self.block_bytes {
            return None;
        }
        if !is_last && header.tp_next_offset < header_bytes + len {
            return None;
        }
        let mut len = len;
        if let Some(tag) = vlan_tag(&header)
            && first - VLAN_TAG_BYTES >= end
            && len as usize >= ADDRESSES_BYTES
        {
            self.insert_tag(first, tag);
            header_bytes -= VLAN_TAG_BYTES;
            len += VLAN_TAG_BYTES;
        }
        let offset = u64::from(self.block) * u64::from(self.block_bytes) + u64::from(at + header_bytes);
        let header_bytes = u16::try_from(header_bytes).ok()?;
        Some((Arrival { offset, header_bytes, len }, header.tp_next_offset))
    }

    /// Puts the tag that the kernel has taken out of a packet back behind the addresses, which move to the front.
    fn insert_tag(&self, first: u32, VlanTag { protocol, control }: VlanTag) {
        let addresses = self.pointer(first);
        // SAFETY: the caller checked that the addresses, and room for a tag in front of them, lie in the block, which is
        // ours; nobody has seen the packet yet.
        unsafe {
            let moved = addresses.sub(VLAN_TAG_BYTES as usize);
            moved.copy_from(addresses, ADDRESSES_BYTES);
            let tag = moved.add(ADDRESSES_BYTES);
            tag.cast::<[u8; 2]>().write(protocol.to_be_bytes());
            tag.add(2).cast::<[u8; 2]>().write(control.to_be_bytes());
        }
    }

    /// The word by which a block changes hands.
    fn status(&self) -> &AtomicU32 {
        let offset =
            offset_of!(libc::tpacket_block_desc, hdr) + offset_of!(libc::tpacket_hdr_v1, block_status);
        // SAFETY: inside the block's header, aligned, mapped as long as `self` lives; the kernel and we access it
        // atomically only.
        unsafe { AtomicU32::from_ptr(self.pointer(offset as u32).cast().as_ptr()) }
    }

    /// A word of the block's header.
    fn word(&self, at: u32) -> u32 {
        // SAFETY: inside the block's header, aligned; the block is ours.
        unsafe { self.pointer(at).cast::<u32>().read() }
    }

    /// A byte of the block that is ours.
    fn pointer(&self, at: u32) -> NonNull<u8> {
        debug_assert!(at < self.block_bytes && self.block < self.block_count);
        // SAFETY: inside the mapping, which is as long as all blocks (`new`).
        unsafe { self.memory.base().add(self.block as usize * self.block_bytes as usize + at as usize) }
    }
}

/// Blocks whose packets are announced on an rx ring, as those of an AF_XDP socket are.
#[derive(Debug)]
pub(crate) struct Announcer {
    blocks: Blocks,
    rx: Producer<Descriptor>,
    pieces: Pieces,
    /// A packet that waits for room.
    next: Option<Arrival>,
    /// Packets not announced because they would be more pieces than there may be.
    too_long: Arc<AtomicU64>,
}

/// How packets are cut.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pieces {
    pub(crate) bytes_max: u32,
    /// The most pieces of a packet.
    pub(crate) count_max: u32,
}

impl Announcer {
    pub(super) fn new(blocks: Blocks, rx: Producer<Descriptor>, pieces: Pieces) -> Self {
        let count_max = pieces.count_max.min(rx.capacity());
        assert!(pieces.bytes_max > 0, "packets in pieces of nothing");
        Self { blocks, rx, pieces: Pieces { count_max, ..pieces }, next: None, too_long: Arc::default() }
    }

    /// Packets not announced because they were too long.
    pub(crate) fn too_long(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.too_long)
    }

    /// The memory of the blocks: addresses announced are offsets in it, marked by [`IN_BLOCKS`].
    pub(crate) fn memory(&self) -> &Arc<Mapping> {
        &self.blocks.memory
    }

    /// Announces packets that have arrived, each whole. Who calls it has borrowed none that was announced before.
    pub(crate) fn run(&mut self) {
        if self.rx.in_flight() > 0 {
            return;
        }
        // SAFETY: what was announced was read, and who read it has borrowed none of it (above).
        if self.next.is_none() && !unsafe { self.blocks.turn() } {
            return;
        }
        while let Some(next) = self.next.take().map(Ok).or_else(|| self.blocks.next()) {
            let arrival = match next {
                Ok(arrival) => arrival,
                Err(Incredible) => {
                    // The rest of its block; counted one way or the other.
                    let unsaid = self.rx.push(NOWHERE).is_err();
                    self.too_long.fetch_add(unsaid.into(), Ordering::Relaxed);
                    break;
                }
            };
            // A division for long packets only.
            let is_short = arrival.len <= self.pieces.bytes_max;
            let pieces = if is_short { 1 } else { arrival.len.div_ceil(self.pieces.bytes_max) };
            if pieces > self.pieces.count_max {
                self.too_long.fetch_add(1, Ordering::Relaxed);
            } else if self.rx.free(pieces) < pieces {
                self.next = Some(arrival);
                break;
            } else {
                self.announce(arrival);
            }
        }
        self.rx.publish();
    }

    /// Says where a packet lies, piece by piece; there is room.
    fn announce(&mut self, Arrival { mut offset, mut header_bytes, mut len }: Arrival) {
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

#[cfg(all(test, not(nocopy_loom)))]
mod tests {
    use super::*;

    const BLOCK_BYTES: u32 = 4096;

    /// One block that holds what a kernel would never write.
    fn blocks(first: u32, packets: u32, header: Option<(u32, libc::tpacket3_hdr)>) -> Blocks {
        let (memory, _) = Mapping::area(BLOCK_BYTES as usize, None).unwrap();
        let blocks = Blocks::new(memory, BLOCK_BYTES, 1);
        let description = offset_of!(libc::tpacket_block_desc, hdr);
        let write = |field: usize, value: u32| {
            // SAFETY: inside the block, which nobody else knows.
            unsafe { blocks.pointer((description + field) as u32).cast::<u32>().write(value) };
        };
        write(offset_of!(libc::tpacket_hdr_v1, num_pkts), packets);
        write(offset_of!(libc::tpacket_hdr_v1, offset_to_first_pkt), first);
        write(offset_of!(libc::tpacket_hdr_v1, block_status), libc::TP_STATUS_USER);
        if let Some((at, header)) = header {
            // SAFETY: as above.
            unsafe { blocks.pointer(at).cast().write_unaligned(header) };
        }
        blocks
    }

    fn header(mac: u16, len: u32, next: u32) -> libc::tpacket3_hdr {
        // SAFETY: plain numbers.
        let zeroed: libc::tpacket3_hdr = unsafe { std::mem::zeroed() };
        libc::tpacket3_hdr { tp_mac: mac, tp_snaplen: len, tp_len: len, tp_next_offset: next, ..zeroed }
    }

    fn read_all(mut blocks: Blocks) -> Vec<Result<Arrival, Incredible>> {
        // SAFETY: nobody reads packets of a block that was never handed out.
        assert!(unsafe { blocks.turn() });
        std::iter::from_fn(|| blocks.next()).collect()
    }

    #[test]
    fn a_packet_is_where_its_header_says() {
        let arrivals = read_all(blocks(64, 1, Some((64, header(100, 60, 0)))));
        assert_eq!(arrivals, [Ok(Arrival { offset: 164, header_bytes: 100, len: 60 })]);
    }

    #[test]
    fn headers_that_lie_end_the_block() {
        let lies = [
            blocks(BLOCK_BYTES - 8, 1, None),                    // no room for a header
            blocks(u32::MAX, 1, None),                           // far outside
            blocks(64, 1, Some((64, header(100, 4096, 0)))),     // longer than the block
            blocks(64, 1, Some((64, header(100, u32::MAX, 0)))), // an overflow
            blocks(64, 1, Some((64, header(8, 60, 0)))),         // inside its own header
        ];
        for lie in lies {
            assert_eq!(read_all(lie), [Err(Incredible)]);
        }
        let beyond = read_all(blocks(64, u32::MAX, Some((64, header(100, 60, u32::MAX)))));
        assert_eq!((beyond.len(), beyond[1]), (2, Err(Incredible)));
        // The next header inside the packet, or the same again: bytes of two packets.
        for next in [0, 48, 159] {
            assert_eq!(read_all(blocks(64, 3, Some((64, header(100, 60, next))))), [Err(Incredible)]);
        }
        assert!(read_all(blocks(64, 2, Some((64, header(100, 60, 160)))))[0].is_ok());
    }

    #[test]
    fn a_tag_goes_back_between_addresses_and_type() {
        let mut tagged = header(100, 60, 0);
        tagged.tp_status = libc::TP_STATUS_VLAN_VALID | libc::TP_STATUS_VLAN_TPID_VALID;
        (tagged.hv1.tp_vlan_tci, tagged.hv1.tp_vlan_tpid) = (0x0123, 0x88a8);
        let mut blocks = blocks(64, 1, Some((64, tagged)));
        let packet: Vec<u8> = (0..60).collect();
        // SAFETY: as in `blocks`.
        unsafe { blocks.pointer(164).copy_from(NonNull::from(&packet[0]), packet.len()) };
        // SAFETY: as in `read_all`.
        assert!(unsafe { blocks.turn() });
        let arrival = blocks.next().unwrap().unwrap();
        assert_eq!(arrival, Arrival { offset: 160, header_bytes: 96, len: 64 });
        // SAFETY: the packet lies in the block.
        let bytes = unsafe { std::slice::from_raw_parts(blocks.pointer(160).as_ptr(), 64) };
        assert_eq!(bytes, [&packet[..12], &[0x88, 0xa8, 0x01, 0x23], &packet[12..]].concat());
    }
}
