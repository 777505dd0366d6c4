//! PACKET_MMAP version 3: the kernel copies packets into blocks of a ring shared with us, and hands over
//! whole blocks. A minimal loop, without what a library would add.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::packet_socket::{
    EVERYTHING, PATIENCE, bind_to_interface, open_packet_socket, set_packet_option, set_promiscuous,
};
use crate::frame;
use crate::window::WindowGauge;

/// The best of what was tried at full rate: blocks of 64 KiB lose a third at 1400 bytes, 256 KiB a tenth, and
/// with few large ones nothing is won.
const BLOCK_BYTES: usize = 1 << 20;
const BLOCKS: usize = 8;
/// The frame size of the ring. Version 3 packs packets densely, and takes it only as a lower limit for
/// blocks.
const FRAME_BYTES: usize = 2048;
/// A block that does not fill is handed over after this.
const BLOCK_TIMEOUT_MS: u32 = 10;

#[derive(Debug)]
pub(crate) struct PacketRing {
    socket: OwnedFd,
    /// `BLOCKS * BLOCK_BYTES` long, mapped until drop.
    memory: NonNull<u8>,
    next_block: usize,
}

// SAFETY: the mapping belongs to this value alone, and memory is not bound to a thread.
unsafe impl Send for PacketRing {}

impl PacketRing {
    /// On an interface of the calling thread's namespace; alone, or in a group that shares the packets out by
    /// the processor they came in on.
    pub(crate) fn open(interface_index: u32, fanout_group: Option<u16>) -> io::Result<Self> {
        let socket = open_packet_socket()?;
        set_packet_option(&socket, libc::PACKET_VERSION, &libc::tpacket_versions::TPACKET_V3)?;
        let request = libc::tpacket_req3 {
            tp_block_size: BLOCK_BYTES as u32,
            tp_block_nr: BLOCKS as u32,
            tp_frame_size: FRAME_BYTES as u32,
            tp_frame_nr: (BLOCKS * BLOCK_BYTES / FRAME_BYTES) as u32,
            tp_retire_blk_tov: BLOCK_TIMEOUT_MS,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        set_packet_option(&socket, libc::PACKET_RX_RING, &request)?;
        let memory = map_ring(&socket, BLOCKS * BLOCK_BYTES)?;
        let ring = Self { socket, memory, next_block: 0 };
        bind_to_interface(&ring.socket, interface_index, EVERYTHING)?;
        if let Some(group) = fanout_group {
            let fanout = u32::from(group) | libc::PACKET_FANOUT_CPU << 16;
            set_packet_option(&ring.socket, libc::PACKET_FANOUT, &fanout)?;
        }
        set_promiscuous(&ring.socket, interface_index)?;
        Ok(ring)
    }

    pub(crate) fn receive(&mut self, gauge: &mut WindowGauge<'_>) -> io::Result<()> {
        while gauge.may_receive() {
            if self.next_block_status().load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
                self.wait_for_block()?;
                gauge.count_packets(0);
                continue;
            }
            gauge.count_packets(self.read_block());
            // Pairs with the kernel's read of the status before it writes into the block again.
            self.next_block_status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.next_block = (self.next_block + 1) % BLOCKS;
        }
        Ok(())
    }

    /// The status word of the next block, by which it changes owner.
    fn next_block_status(&self) -> &AtomicU32 {
        let offset = self.next_block * BLOCK_BYTES + std::mem::offset_of!(libc::tpacket_block_desc, hdr);
        // SAFETY: the status is the first word of the block's header, inside the mapping and aligned, for as
        // long as `self` lives; the kernel and we access it atomically only.
        unsafe { AtomicU32::from_ptr(self.memory.as_ptr().add(offset).cast()) }
    }

    /// Reads the packets of the next block, which was handed over; returns how many.
    fn read_block(&self) -> u64 {
        // SAFETY: a block lies wholly inside the mapping, and while its status says so the kernel does not
        // write into it; the slice is gone before the block is given back.
        let block = unsafe {
            std::slice::from_raw_parts(self.memory.as_ptr().add(self.next_block * BLOCK_BYTES), BLOCK_BYTES)
        };
        let word =
            |offset: usize| u32::from_ne_bytes(block[offset..offset + 4].try_into().expect("four bytes"));
        // struct tpacket_hdr_v1, after version and offset_to_priv: status, count, offset to the first packet.
        let header = std::mem::offset_of!(libc::tpacket_block_desc, hdr);
        let (count, mut at) = (word(header + 4), word(header + 8) as usize);
        for _ in 0..count {
            // struct tpacket3_hdr: next offset, two of time, captured length, length, status, then u16 mac.
            let (next, captured) = (word(at) as usize, word(at + 12) as usize);
            let mac = at + (word(at + 24) & 0xffff) as usize;
            frame::read_every_byte(&block[mac..mac + captured]);
            at += next;
        }
        count.into()
    }

    fn wait_for_block(&self) -> io::Result<()> {
        let mut waited =
            libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN | libc::POLLERR, revents: 0 };
        // SAFETY: one live entry.
        if unsafe { libc::poll(&raw mut waited, 1, PATIENCE.as_millis() as i32) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl Drop for PacketRing {
    fn drop(&mut self) {
        // SAFETY: mapped by `map_ring` with this length, and no reference into it is left.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), BLOCKS * BLOCK_BYTES) };
    }
}

pub(crate) fn map_ring(socket: &OwnedFd, bytes: usize) -> io::Result<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
    // SAFETY: a new mapping where the kernel likes; the ring was asked for with this size.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, socket.as_raw_fd(), 0) };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(memory.cast()).expect("the kernel does not map page zero unasked"))
}
