//! Datagrams in the buffers into which they were received: for the carrier of messages, which keeps few.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::Receiver;
use crate::facts::evidence::{Cause, Evidence};
use crate::memory::pool::Pool;
use crate::memory::receive_buffers::ReceiveBuffers;
use crate::sys::udp_receive::MessageReport;
use crate::udp::run::Run;

impl Receiver {
    /// Adds or closes a second socket, for [`receive_in_place`](Self::receive_in_place) alone.
    pub(crate) fn connect(&mut self, connected: Option<OwnedFd>) {
        self.connected = connected;
    }

    #[inline]
    pub(crate) fn connected_socket(&self) -> Option<BorrowedFd<'_>> {
        self.connected.as_ref().map(AsFd::as_fd)
    }

    pub(crate) fn coalesces(&self) -> bool {
        self.coalesces
    }

    /// Receives waiting datagrams, without waiting, and passes each run in place to `each`; returns the
    /// number of datagrams. They are taken from the connected socket if `from_connected` and there is one.
    /// Runs that are not kept are lost with the next call. Errors: the socket failed, or the pool has no
    /// buffer to receive into (`OutOfMemory`).
    #[inline]
    pub(crate) fn receive_in_place(
        &mut self,
        from_connected: bool,
        mut each: impl FnMut(ArrivedInPlace<'_>),
    ) -> io::Result<usize> {
        if !self.free.is_full() {
            self.refill()?;
        }
        let socket = self.connected.as_ref().filter(|_| from_connected).unwrap_or(&self.socket).as_fd();
        let received = match self.pattern.expects_single_message() {
            true => self.free.receive_first(socket),
            false => self.free.receive(socket, false),
        };
        let received = received.or_else(|error| self.retry_after_error(error, from_connected))?;
        self.pattern.note_call(received);
        if received == 0 {
            return Ok(0);
        }
        let (mut datagrams, mut bytes) = (0, 0);
        for index in 0..received {
            if let Some((from, congested, all)) = self.free.single_message(index) {
                datagrams += 1;
                bytes += all.len() as u64;
                each(match index + 1 == received {
                    true => ArrivedInPlace::Last(from, congested, all),
                    false => ArrivedInPlace::Lone(from, congested, all),
                });
                continue;
            }
            let message = self.free.message(index);
            datagrams += message.datagrams();
            bytes += message.bytes as u64;
            self.counters.truncated += u64::from(message.truncated);
            let is_last = index + 1 == received;
            each(ArrivedInPlace::Run(RunInPlace {
                buffers: &mut self.free,
                pool: &self.pool,
                index,
                message,
                is_last,
            }));
        }
        self.counters.runs += received as u64;
        self.ledger.add(Evidence::Copied(Cause::SocketCall), datagrams as u64, bytes);
        Ok(datagrams)
    }

    /// Bytes of the last datagram or run that was passed in place, which is in its buffer until the next
    /// call, unless it was [kept](RunInPlace::keep).
    #[inline]
    pub(crate) fn last_in_place(&self, range: Range<usize>) -> &[u8] {
        &self.free.last_buffer()[range]
    }
}

/// Whether messages arrive one by one, with a pause after each, as questions and answers do: then a call for
/// one is enough.
#[derive(Debug, Default)]
pub(super) struct ArrivalPattern {
    /// Messages of the last call.
    last: usize,
    /// No message came right after the last one.
    is_slow: bool,
}

impl ArrivalPattern {
    /// Whether the next call is likely to find one message, or none.
    #[inline]
    pub(super) fn expects_single_message(&self) -> bool {
        self.is_slow && self.last == 0
    }

    /// Takes note of what a call has found.
    #[inline]
    pub(super) fn note_call(&mut self, messages: usize) {
        let before = std::mem::replace(&mut self.last, messages);
        match (before, messages) {
            (0, 0 | 1) => {}
            (before, messages) => self.is_slow = before == 1 && messages == 0,
        }
    }
}

/// Something received, in place.
pub(crate) enum ArrivedInPlace<'a> {
    /// The last datagram of a call: its sender, its congestion mark, and its bytes.
    Last(SocketAddr, bool, &'a [u8]),
    /// A single datagram, with the same fields.
    Lone(SocketAddr, bool, &'a [u8]),
    /// A datagram with more data after it in the buffer, or several.
    Run(RunInPlace<'a>),
}

/// A run in its receive buffer.
pub(crate) struct RunInPlace<'a> {
    buffers: &'a mut ReceiveBuffers,
    pool: &'a Pool,
    index: usize,
    message: MessageReport,
    is_last: bool,
}

impl RunInPlace<'_> {
    /// Whether it is the last one of its call.
    #[inline]
    pub(crate) fn is_last(&self) -> bool {
        self.is_last
    }

    #[inline]
    pub(crate) fn message(&self) -> &MessageReport {
        &self.message
    }

    /// Its datagrams, contiguous.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        self.buffers.message_bytes(self.index, &self.message)
    }

    /// Takes the run with its buffer, and replaces the buffer from the pool. `None` if the pool would have no
    /// more than `reserve` buffers left.
    pub(crate) fn keep(&mut self, reserve: usize) -> Option<Run> {
        let other = if self.pool.available() > reserve { self.pool.take() } else { None };
        Some(Run::new(self.buffers.exchange(self.index, other?), &self.message))
    }
}
