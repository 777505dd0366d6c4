//! Packets as they come from the kernel.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::Frame;
use super::pool::{Fault, Pool};
use super::view::{Place, View};
use crate::sys::xsk::Descriptor;

/// Takes received packets from the kernel: a pool with its [`View`] in a local, for the length of a batch.
#[derive(Clone, Copy)]
pub(crate) struct Claims<'half> {
    pool: &'half Pool,
    view: View,
}

impl Pool {
    /// The means of taking received packets from the kernel one by one.
    #[inline]
    pub(crate) fn claims(&self) -> Claims<'_> {
        Claims { pool: self, view: self.view }
    }
}

impl<'half> Claims<'half> {
    /// Takes one packet, if its word is good.
    #[inline]
    pub(crate) fn claim(self, descriptor: Descriptor) -> Result<Packet<'half>, Fault> {
        // SAFETY: the pool keeps the area alive.
        match unsafe { self.view.claim(descriptor.address, descriptor.len) } {
            Ok(Place { data, frame, start }) => {
                Ok(Packet { pool: self.pool, data, frame, start, len: descriptor.len as u16 })
            }
            Err((fault, frame)) => Err(self.pool.refuse(fault, frame)),
        }
    }

    /// Asks for the first bytes of a packet that will be claimed soon.
    #[inline]
    pub(crate) fn prefetch(self, address: u64) {
        self.view.prefetch(address);
    }

    /// The pool the packets come into.
    #[inline]
    pub(crate) fn pool(self) -> &'half Pool {
        self.pool
    }
}

impl fmt::Debug for Claims<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pool.fmt(f)
    }
}

/// A received packet, borrowed from its batch's half: read it, edit it in place, or [`take`](Packet::take) it.
///
/// Dropped, its frame goes back to the kernel with the next batch, at no cost worth counting. It stays on its thread, since
/// that way back is not synchronised; a taken frame may go anywhere:
///
/// ```compile_fail,E0277
/// # fn outside(mut receiver: nocopy::Receiver) {
/// let packet = receiver.receive().unwrap().next().unwrap();
/// std::thread::scope(|scope| scope.spawn(move || packet.len()).join());
/// # }
/// ```
pub struct Packet<'half> {
    pool: &'half Pool,
    data: NonNull<u8>,
    frame: u32,
    start: u16,
    len: u16,
}

impl Packet<'_> {
    /// Makes the frame yours. Costs nothing in AF_XDP modes: no byte moves.
    #[inline]
    pub fn take(self) -> Frame {
        let packet = std::mem::ManuallyDrop::new(self);
        let shared = packet.pool.area();
        // SAFETY: the packet was the only owner of its frame, and is given up without being dropped.
        unsafe { Frame::new(shared, packet.data, packet.frame, packet.start, packet.len) }
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
        self.pool.push(self.frame);
    }
}

impl fmt::Debug for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packet").field("frame", &self.frame).field("len", &self.len).finish_non_exhaustive()
    }
}
