//! Received packets.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::Frame;
use super::pool::{DescriptorFault, Faults, FramePool};
use super::view::{AreaView, prefetch};
use crate::sys::xsk::Descriptor;

/// Takes received packets from the kernel: a pool and its [`AreaView`] as locals, during one batch.
#[derive(Clone, Copy)]
pub(crate) struct PacketClaimer<'half> {
    pool: &'half FramePool,
    view: AreaView,
}

impl FramePool {
    #[inline]
    pub(crate) fn claimer(&self) -> PacketClaimer<'_> {
        PacketClaimer { pool: self, view: self.view }
    }
}

impl<'half> PacketClaimer<'half> {
    /// Claims one packet if its state word is right; otherwise counts a fault.
    #[inline]
    pub(crate) fn claim(self, descriptor: Descriptor, faults: &mut Faults) -> Option<Packet<'half>> {
        let Descriptor { address, len, options } = descriptor;
        // SAFETY: the pool keeps the area alive.
        let Some(frame) = (unsafe { self.view.reclaim(address) }) else {
            // Packets in blocks of a packet ring are shorter than a frame.
            let words = u64::from(options) << 32 | u64::from(len);
            let ReservedFrame { data, words } = handle_not_lent(self.pool, faults, address, words);
            let (frame, start, len) = (words as u32, (words >> 48) as u16, (words >> 32) as u16);
            return Some(Packet { pool: self.pool, data: NonNull::new(data)?, frame, start, len });
        };
        let Some(start) = self.view.packet_start(address, len) else {
            handle_misaligned(self.pool, faults, frame);
            return None;
        };
        // The length fits in 16 bits: `packet_start` found the packet within a frame.
        Some(Packet { pool: self.pool, data: self.view.pointer_at(address), frame, start, len: len as u16 })
    }

    /// The bytes of a packet that was not claimed yet, if its state word is right.
    #[cold]
    pub(crate) fn peek_bytes(self, Descriptor { address, len, .. }: Descriptor) -> Option<&'half [u8]> {
        let data = match self.pool.packet_in_blocks(address, len) {
            Some(data) => data,
            None => {
                // SAFETY: the pool keeps the area alive.
                unsafe { self.view.is_lent(address) }.then_some(())?;
                self.view.packet_start(address, len)?;
                self.view.pointer_at(address)
            }
        };
        // SAFETY: the bytes lie in one frame or in the blocks (just checked), which exist as long as the
        // pool; after announcing them the kernel does not write them, and before the claim they have no other
        // owner.
        Some(unsafe { std::slice::from_raw_parts(data.as_ptr(), len as usize) })
    }

    /// Prefetches the first bytes of a packet that will be claimed soon.
    #[inline]
    pub(crate) fn prefetch(self, address: u64) {
        self.view.prefetch(address);
    }

    #[inline]
    pub(crate) fn pool(self) -> &'half FramePool {
        self.pool
    }
}

impl fmt::Debug for PacketClaimer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pool.fmt(f)
    }
}

/// The address of a packet (null: none) and, from the lowest bit: the frame reserved for it, its length, its
/// start.
#[repr(C)]
struct ReservedFrame {
    data: *mut u8,
    words: u64,
}

/// Handles an address of no frame that this half lent: a packet in the blocks of a packet ring, or a fault.
/// Like [`handle_misaligned`] it is a call that cannot unwind, because otherwise every loop over packets
/// would need more registers.
#[cold]
#[inline(never)]
extern "C" fn handle_not_lent(
    pool: &FramePool,
    faults: &mut Faults,
    address: u64,
    words: u64,
) -> ReservedFrame {
    let len = words as u32;
    if let Some((data, frame)) = pool.reserve_frame_for_packet(address, len) {
        let words = words >> 48 << 48 | u64::from(len as u16) << 32 | u64::from(frame);
        return ReservedFrame { data: data.as_ptr(), words };
    }
    // SAFETY: the pool keeps the area alive.
    let inside = unsafe { pool.view.frame_at(address) }.is_some();
    faults.count(if inside { DescriptorFault::NotLent } else { DescriptorFault::OutOfRange });
    ReservedFrame { data: std::ptr::null_mut(), words: 0 }
}

/// Takes back a frame whose packet extends beyond its end.
#[cold]
#[inline(never)]
extern "C" fn handle_misaligned(pool: &FramePool, faults: &mut Faults, frame: u32) {
    faults.count(DescriptorFault::Misaligned);
    // Here, because the batch counts a descriptor with a fault as not claimed.
    pool.count_claimed(1);
    pool.push_free(frame);
}

/// A received packet, borrowed from its batch's half: read it, edit it in place, or [`take`](Packet::take)
/// it.
///
/// When it is dropped, its frame is lent again with the next batch, at almost no cost. A packet cannot move
/// to another thread, because this return is not synchronised; a taken frame can:
///
/// ```compile_fail,E0277
/// # fn outside(mut receiver: nocopy::Receiver) {
/// let packet = receiver.receive().unwrap().next().unwrap();
/// std::thread::scope(|scope| scope.spawn(move || packet.len()).join());
/// # }
/// ```
///
/// Packets that are not taken out of a batch are in the next one:
///
/// ```
/// # let (mut left, mut right) = nocopy::Port::memory_pair()?;
/// # left.sender().send_copy(b"hello")?;
/// # left.sender().send_copy(b"again")?;
/// # left.sender().flush()?;
/// let mut batch = right.receiver().receive()?;
/// let mut packet = batch.next().expect("a packet");
/// packet[0] = b'j'; // in the memory that it was received into
/// let frame = packet.take();
/// drop(batch); // the next packet comes with the next batch
/// assert_eq!(&*frame, b"jello");
/// assert_eq!(&*right.receiver().receive()?.next().expect("a packet"), b"again");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Packet<'half> {
    pub(super) pool: &'half FramePool,
    pub(super) data: NonNull<u8>,
    /// The frame that contains it; in a packet ring, the frame into which `take` copies it.
    frame: u32,
    /// Its offset in the frame; in a packet ring, its distance from the kernel's header.
    pub(super) start: u16,
    len: u16,
}

impl Packet<'_> {
    /// Takes ownership of the packet's frame. This copies nothing in AF_XDP modes. From a packet ring it is a
    /// copy, counted in `rx_copied_out` of [`Receiver::stats`](crate::port::NonblockingReceiver::stats).
    #[inline]
    pub fn take(self) -> Frame {
        if self.pool.has_blocks() {
            return self.copy_into_frame();
        }
        self.take_frame()
    }

    /// As [`Packet::take`], for a packet that lies in its frame.
    #[inline]
    pub(crate) fn take_frame(self) -> Frame {
        debug_assert!(!self.pool.has_blocks(), "it lies in a block");
        let packet = std::mem::ManuallyDrop::new(self);
        let shared = packet.pool.area_pointer();
        // SAFETY: the packet was the only owner of its frame, and is given up without being dropped.
        unsafe { Frame::new(shared, packet.data, packet.frame, packet.start, packet.len) }
    }

    /// Prefetches all further cache lines of a short packet at once, so that a reader does not wait for each.
    #[inline]
    pub(crate) fn prefetch(&self) {
        let first = self.data.as_ptr().cast_const();
        prefetch(first.wrapping_add(64));
        prefetch(first.wrapping_add(128));
    }

    #[cold]
    fn copy_into_frame(self) -> Frame {
        let packet = std::mem::ManuallyDrop::new(self);
        // SAFETY: the packet was the only owner of its frame, and is given up without being dropped.
        let mut frame = unsafe { packet.pool.empty_frame(packet.frame) };
        frame.fill(&packet).expect("packet rings announce pieces that fit a frame");
        packet.pool.copied.update(|copied| copied + 1);
        frame
    }
}

impl Deref for Packet<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `claim` checked that the bytes lie in one frame and that the frame had no other owner.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), usize::from(self.len)) }
    }
}

impl DerefMut for Packet<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes it exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), usize::from(self.len)) }
    }
}

impl Drop for Packet<'_> {
    #[inline]
    fn drop(&mut self) {
        self.pool.push_free(self.frame);
    }
}

impl fmt::Debug for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packet").field("frame", &self.frame).field("len", &self.len).finish_non_exhaustive()
    }
}
