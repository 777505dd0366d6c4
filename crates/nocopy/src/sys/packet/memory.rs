//! The memory of a receiving ring: blocks that change hands between the kernel and us.

use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys::memory::Mapping;

/// From the beginning of a block to the word by which it changes hands.
pub(super) const STATUS_OFFSET: u32 =
    (offset_of!(libc::tpacket_block_desc, hdr) + offset_of!(libc::tpacket_hdr_v1, block_status)) as u32;

/// All blocks of a ring.
#[derive(Debug)]
pub(super) struct BlockMemory {
    mapping: Arc<Mapping>,
    block_bytes: u32,
    block_count: u32,
}

/// What the kernel says of a block's contents.
#[derive(Debug, Clone, Copy)]
pub(super) struct Contents {
    /// The first packet's header, from the start of the block.
    pub(super) header: u32,
    pub(super) packets: u32,
}

impl BlockMemory {
    pub(super) fn new(mapping: Mapping, block_bytes: u32, block_count: u32) -> Self {
        assert!(mapping.bytes() >= block_bytes as usize * block_count as usize, "less memory than blocks");
        assert!(block_bytes as usize >= size_of::<libc::tpacket_block_desc>(), "blocks without descriptions");
        Self { mapping: Arc::new(mapping), block_bytes, block_count }
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
        self.status(block).load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// Gives a block back to the kernel, which may write into it at once.
    pub(super) fn give_back(&self, block: u32) {
        // Release: pairs with the kernel's read of the status before it writes into the block again.
        self.status(block).store(libc::TP_STATUS_KERNEL, Ordering::Release);
    }

    /// What lies in a block that is ours, by the kernel's word.
    pub(super) fn contents(&self, block: u32) -> Contents {
        let description = offset_of!(libc::tpacket_block_desc, hdr);
        let word = |field: usize| {
            // SAFETY: inside the block's description, aligned; the block is ours.
            unsafe { self.pointer(block, (description + field) as u32).cast::<u32>().read() }
        };
        Contents {
            header: word(offset_of!(libc::tpacket_hdr_v1, offset_to_first_pkt)),
            packets: word(offset_of!(libc::tpacket_hdr_v1, num_pkts)),
        }
    }

    /// The word by which a block changes hands.
    fn status(&self, block: u32) -> &AtomicU32 {
        // SAFETY: inside the block's description, aligned, mapped as long as `self` lives; the kernel and we access it
        // atomically only.
        unsafe { AtomicU32::from_ptr(self.pointer(block, STATUS_OFFSET).cast().as_ptr()) }
    }

    /// A byte of a block.
    pub(super) fn pointer(&self, block: u32, at: u32) -> NonNull<u8> {
        debug_assert!(at < self.block_bytes && block < self.block_count);
        // SAFETY: inside the mapping, which is as long as all blocks (`new`).
        unsafe { self.mapping.base().add(block as usize * self.block_bytes as usize + at as usize) }
    }
}
