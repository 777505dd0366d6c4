//! The memory of a receiving ring: blocks that change owner between the kernel and this process.
//!
//! Blocks are version 3 of the ring (`TPACKET_V3`), and hold as many packets as fit. A ring of *single*
//! packets is version 2, where each has its own place and header: it is treated as a block of one packet,
//! whose header is rewritten as one of version 3.

use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys::memory::Mapping;

/// Offset of a block's status word, by which it changes owner.
pub(super) const STATUS_OFFSET: u32 =
    (offset_of!(libc::tpacket_block_desc, hdr) + offset_of!(libc::tpacket_hdr_v1, block_status)) as u32;

/// Offset of the header that is written for a single packet: after its status word.
const SINGLE_HEADER_OFFSET: u32 = 16;

/// Room to request in front of single packets (`PACKET_RESERVE`), so that each begins at the same distance
/// from its header as a packet in a block.
pub(super) const SINGLE_RESERVE_BYTES: u32 = 34;

/// Bytes of a single packet's block in addition to the packet, rounded up.
pub(crate) const SINGLE_FRONT_BYTES: u32 = 128;

#[derive(Debug)]
pub(super) struct BlockMemory {
    mapping: Arc<Mapping>,
    /// Offset of a block's status word.
    status_at: u32,
    block_bytes: u32,
    block_count: u32,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct BlockContents {
    /// The first packet's header, from the start of the block.
    pub(super) header: u32,
    pub(super) packets: u32,
}

impl BlockMemory {
    pub(super) fn new(mapping: Mapping, block_bytes: u32, block_count: u32) -> Self {
        assert!(mapping.bytes() >= block_bytes as usize * block_count as usize, "less memory than blocks");
        assert!(block_bytes as usize >= size_of::<libc::tpacket_block_desc>(), "blocks without descriptions");
        Self { mapping: Arc::new(mapping), status_at: STATUS_OFFSET, block_bytes, block_count }
    }

    /// As [`new`](Self::new), for blocks of one packet each.
    pub(super) fn of_single_packets(mapping: Mapping, block_bytes: u32, block_count: u32) -> Self {
        let has_room = block_bytes > 0 && block_bytes.is_multiple_of(SINGLE_FRONT_BYTES);
        assert!(has_room, "no room for a packet");
        Self { status_at: 0, ..Self::new(mapping, block_bytes, block_count) }
    }

    pub(super) const fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    pub(super) const fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    pub(super) const fn block_count(&self) -> u32 {
        self.block_count
    }

    /// Whether the kernel has handed a block over.
    pub(super) fn is_ours(&self, block: u32) -> bool {
        // Acquire: pairs with the kernel's write of the status after those of the packets.
        self.status_word(block).load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// Returns a block to the kernel, which may write into it at once.
    pub(super) fn return_block(&self, block: u32) {
        // Release: pairs with the kernel's read of the status before it writes into the block again.
        self.status_word(block).store(libc::TP_STATUS_KERNEL, Ordering::Release);
    }

    /// The contents of a block that was just handed over, as the kernel describes them.
    pub(super) fn block_contents(&self, block: u32) -> BlockContents {
        if self.holds_single_packets() {
            self.write_header(block);
            return BlockContents { header: SINGLE_HEADER_OFFSET, packets: 1 };
        }
        let description = offset_of!(libc::tpacket_block_desc, hdr);
        let word = |field: usize| {
            // SAFETY: inside the block's description, aligned; the block is ours.
            unsafe { self.block_pointer(block, (description + field) as u32).cast::<u32>().read() }
        };
        BlockContents {
            header: word(offset_of!(libc::tpacket_hdr_v1, offset_to_first_pkt)),
            packets: word(offset_of!(libc::tpacket_hdr_v1, num_pkts)),
        }
    }

    /// Bytes that the kernel has written into a block that was just handed over, with its headers, as it
    /// reports.
    pub(super) fn written_bytes(&self, block: u32) -> u32 {
        let field = match self.holds_single_packets() {
            true => offset_of!(libc::tpacket2_hdr, tp_snaplen),
            false => offset_of!(libc::tpacket_block_desc, hdr) + offset_of!(libc::tpacket_hdr_v1, blk_len),
        };
        // SAFETY: inside the block's description or the packet's header, aligned; the block is ours.
        unsafe { self.block_pointer(block, field as u32).cast::<u32>().read() }
    }

    pub(super) const fn holds_single_packets(&self) -> bool {
        self.status_at == 0
    }

    /// Writes the header of a single packet like those in blocks, followed by its address.
    fn write_header(&self, block: u32) {
        const ADDRESS_OFFSET: u32 = size_of::<libc::tpacket2_hdr>() as u32;
        let [start, from] = [0, ADDRESS_OFFSET].map(|at| self.block_pointer(block, at));
        // SAFETY: inside the block (`of_single_packets`), which is ours, so the kernel neither reads nor
        // writes there; aligned, as blocks are multiples of 128; no bit pattern is invalid.
        let (header, address) = unsafe {
            (start.cast::<libc::tpacket2_hdr>().read(), from.cast::<libc::sockaddr_ll>().read_unaligned())
        };
        // SAFETY: all-zero is a valid header.
        let mut written: libc::tpacket3_hdr = unsafe { std::mem::zeroed() };
        (written.tp_sec, written.tp_nsec) = (header.tp_sec, header.tp_nsec);
        (written.tp_len, written.tp_snaplen) = (header.tp_len, header.tp_snaplen);
        written.tp_status = header.tp_status;
        // A packet that would begin before its header is rejected later.
        written.tp_mac = header.tp_mac.saturating_sub(SINGLE_HEADER_OFFSET as u16);
        written.hv1.tp_vlan_tci = header.tp_vlan_tci.into();
        written.hv1.tp_vlan_tpid = header.tp_vlan_tpid;
        let to = self.block_pointer(block, SINGLE_HEADER_OFFSET);
        let address_to = self.block_pointer(block, SINGLE_HEADER_OFFSET + size_of_val(&written) as u32);
        // SAFETY: inside the block, as above, and in front of the packet (`SINGLE_RESERVE_BYTES`), or of one
        // that is not believed.
        unsafe {
            to.cast::<libc::tpacket3_hdr>().write(written);
            address_to.cast::<libc::sockaddr_ll>().write_unaligned(address);
        }
    }

    fn status_word(&self, block: u32) -> &AtomicU32 {
        // SAFETY: inside the block, aligned, mapped as long as `self` lives; the kernel and we access it
        // atomically only.
        unsafe { AtomicU32::from_ptr(self.block_pointer(block, self.status_at).cast().as_ptr()) }
    }

    pub(super) fn block_pointer(&self, block: u32, at: u32) -> NonNull<u8> {
        debug_assert!(at < self.block_bytes && block < self.block_count);
        // SAFETY: inside the mapping, which is as long as all blocks (`new`).
        unsafe { self.mapping.base().add(block as usize * self.block_bytes as usize + at as usize) }
    }
}
