//! Messages in the buffers into which they were received.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use super::ReceiveBuffers;
use crate::memory::pool::BufferMut;
use crate::sys::udp_receive::MessageReport;

impl ReceiveBuffers {
    /// The bytes of a message that the last call received, in place, if no buffer was taken since.
    #[inline]
    pub(crate) fn message_bytes(&self, index: usize, message: &MessageReport) -> &[u8] {
        // In range: a call fills at most as many buffers as there are, the topmost first.
        &self.free[self.free.len() - 1 - index][..message.bytes]
    }

    /// Sender, ECN mark and bytes of a message, in place, if nothing else is known about it
    /// ([`RecvmmsgArguments::plain_ipv4_datagram`]) and no buffer was taken since the call.
    #[inline]
    pub(crate) fn single_message(&self, index: usize) -> Option<(SocketAddr, bool, &[u8])> {
        let (from, congested, bytes) = self.call.plain_ipv4_datagram(index)?;
        let bytes = self.free.get(self.free.len() - 1 - index)?.get(..bytes)?;
        Some((from, congested, bytes))
    }

    /// All of the buffer into which the last call received its last message, if no buffer was taken since.
    #[inline]
    pub(crate) fn last_buffer(&self) -> &[u8] {
        let place = self.free.len().checked_sub(self.call.received_count());
        place.and_then(|place| self.free.get(place)).map_or(&[], |buffer| &buffer[..])
    }

    /// Replaces the buffer that a message was received into by another, and returns it. Panics if the last
    /// call received fewer messages.
    pub(crate) fn exchange(&mut self, index: usize, mut other: BufferMut) -> BufferMut {
        let place = self.free.len() - 1 - index;
        other.resize(other.capacity());
        self.call.set_slot(self.count_max - 1 - place, &mut other);
        std::mem::replace(&mut self.free[place], other)
    }

    /// Receives a message into the buffer that is filled next, if there is a message
    /// ([`RecvmmsgArguments::receive_one_into_slot`]). Panics if there is no buffer.
    #[inline]
    pub(crate) fn receive_first(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let first = self.count_max - self.free.len();
        // SAFETY: as in `receive`, for the first of those slots.
        unsafe { self.call.receive_one_into_slot(first, socket) }
    }
}
