//! A stream's receiving half for programs that read through [`io::Read`] and [`io::BufRead`], and what their
//! asynchronous forms share with them.

use std::io::{self, BufRead};

use super::error::ReceiveError;
use super::{NonblockingReceiver, Receiver};
use crate::events::{self, Half};
use crate::facts::evidence::{Cause, Evidence};
use crate::sys::tcp_receive;
use crate::tcp::chunk::Chunk;

impl io::Read for Receiver {
    /// Waits for bytes, and copies those that have arrived into a slice; counted as [`Cause::Slice`].
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        if self.unread.is_some() {
            let unread = self.unread_bytes();
            let bytes = unread.len().min(buffer.len());
            buffer[..bytes].copy_from_slice(&unread[..bytes]);
            self.consume(bytes);
            return Ok(bytes);
        }
        self.set_timeout(None)?;
        let received = self.retry_interrupted(|socket| tcp_receive::receive(socket, buffer, true))?;
        self.note_slice(received)?;
        Ok(received)
    }
}

/// What was not consumed is returned by the next call of any receiving method. It is no longer in the socket:
/// [`Pages::fill`](crate::tcp::Pages::fill) would leave it out.
impl io::BufRead for Receiver {
    /// Waits for bytes if all were consumed, and returns those that the kernel has copied into a buffer of
    /// the half: up to 64 KiB, or the length that was [set](crate::tcp::Builder::receive_method). No page is
    /// mapped.
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.unread.is_none() {
            let received = self.receive_within(None, NonblockingReceiver::next_slice)?;
            self.keep_unread(received);
        }
        Ok(self.unread_bytes())
    }

    fn consume(&mut self, bytes: usize) {
        self.0.consume_unread(bytes);
    }
}

impl NonblockingReceiver {
    /// The bytes of a chunk that were not consumed.
    pub(super) fn unread_bytes(&self) -> &[u8] {
        self.unread.as_ref().map_or(&[], Chunk::copied)
    }

    /// The next chunk to be read as a slice. It is always copied, because what is on mapped pages could not
    /// be lent, as its sender may still change it; and into the memory that was consumed last, which is in
    /// the cache.
    pub(super) fn next_slice(&mut self, waits: bool) -> Result<Option<Chunk>, ReceiveError> {
        let bytes = self.chooser.start_slice();
        self.wait_for_enough(waits)?;
        let received = self.receive_by_copy(waits, bytes, Cause::SocketCall)?;
        self.mapper.note_unused_call();
        Ok(received)
    }

    /// Counts a chunk without pages, and keeps it to be read in place.
    pub(super) fn keep_unread(&mut self, received: Option<Chunk>) {
        if let Some(chunk) = &received {
            chunk.add_to_ledger(&mut self.tally);
        }
        self.unread = received;
    }

    pub(super) fn consume_unread(&mut self, bytes: usize) {
        if let Some(chunk) = &mut self.unread {
            chunk.trim_front(bytes);
            if chunk.is_empty()
                && let Some(chunk) = self.unread.take()
            {
                self.recycle(chunk);
            }
        }
    }

    /// Counts bytes that were copied into a slice of the program; without any, notes the end of the stream.
    pub(super) fn note_slice(&mut self, received: usize) -> io::Result<()> {
        if received == 0 {
            self.note_end()?;
        } else {
            let evidence = Evidence::Copied(Cause::Slice);
            events::add_to_ledger(&mut self.tally, Half::TcpReceiver, evidence, 1, received as u64);
        }
        Ok(())
    }
}
