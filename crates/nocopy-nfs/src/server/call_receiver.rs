//! The calls that a connection receives, within its share of the memory for calls.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, recv};

use super::SharedState;
use super::networks::NetworkShare;
use crate::wire::record::{MARK_BYTES, RecordAssembler};

/// How long a call may take to arrive whole. (Not one that is written into a file as it arrives, and so uses
/// no memory.)
const CALL_TIME_MAX: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct CallReceiver {
    pub(super) records: RecordAssembler,
    pub(super) share: NetworkShare,
    /// Since when the rest of a call is missing; to be reset when a call has arrived whole.
    pub(super) partial_since: Option<Instant>,
    /// Nothing was received, for want of memory.
    is_starved: bool,
}

#[derive(Debug)]
pub(super) enum ReceiveResult {
    Bytes(usize),
    Nothing,
    End,
    Broken,
}

impl CallReceiver {
    pub(super) fn new(records: RecordAssembler, share: NetworkShare) -> Self {
        Self { records, share, partial_since: None, is_starved: false }
    }

    /// Receives what has arrived, if there is memory for it besides `held` bytes of other calls. At most one
    /// whole call is held, with the bytes received after it.
    pub(super) fn receive(
        &mut self,
        shared: &SharedState,
        socket: &Arc<TcpStream>,
        held: usize,
        buffer: &mut [u8],
    ) -> ReceiveResult {
        self.is_starved = false;
        if self.records.buffered_bytes() >= shared.core.call_bytes_max() + MARK_BYTES {
            return ReceiveResult::Nothing;
        }
        let into_buffer = if self.records.long_buffer().is_none() { buffer.len() } else { 0 };
        let needed = self.records.reserved_bytes().max(self.records.buffered_bytes() + into_buffer);
        if !self.share.reserve(held + needed) {
            self.is_starved = true;
            return ReceiveResult::Nothing;
        }
        let (socket, flags) = (&**socket, RecvFlags::DONTWAIT);
        let received = match self.records.long_buffer() {
            Some(long) => retry_on_intr(|| recv(socket, spare_capacity(long), flags)).map(|(count, _)| count),
            None => {
                let received = retry_on_intr(|| recv(socket, &mut *buffer, flags)).map(|(count, _)| count);
                self.records.push(&buffer[..received.unwrap_or(0)]);
                received
            }
        };
        match received {
            Ok(0) => ReceiveResult::End,
            Ok(count) => ReceiveResult::Bytes(count),
            Err(Errno::AGAIN) => ReceiveResult::Nothing,
            Err(_) => ReceiveResult::Broken,
        }
    }

    /// Frees memory that is no longer needed, and notes whether the rest of a call is missing. `is_asked`:
    /// the client may send it now.
    pub(super) fn release_unused(&mut self, held: usize, is_asked: bool, now: Instant) {
        // Refused if the call turned out to be longer: then no more of it is received for the time being.
        self.share.reserve(held + self.records.reserved_bytes());
        match is_asked && !self.is_starved && self.records.has_partial() {
            true => drop(self.partial_since.get_or_insert(now)),
            false => self.partial_since = None,
        }
    }

    pub(super) fn is_starved(&self) -> bool {
        self.is_starved
    }

    /// Whether the rest of a call is missing for too long.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        self.partial_since.is_some_and(|since| now.saturating_duration_since(since) > CALL_TIME_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::super::networks::ConnectedNetworks;
    use super::*;

    #[test]
    fn incomplete_calls_become_overdue() {
        let share = Arc::new(ConnectedNetworks::default()).join_network([10, 0, 0, 1].into(), 0);
        let mut receiver = CallReceiver::new(RecordAssembler::new(1 << 20), share);
        let (begin, late) = (Instant::now(), Instant::now() + 2 * CALL_TIME_MAX);
        receiver.release_unused(0, true, begin);
        assert!(!receiver.is_overdue(late), "nothing has begun");
        receiver.records.push(&[0x80, 0, 0, 8, 1, 2, 3]);
        receiver.release_unused(0, true, begin);
        assert!(!receiver.is_overdue(begin + CALL_TIME_MAX) && receiver.is_overdue(late));
        // More of it changes nothing.
        receiver.records.push(&[4]);
        receiver.release_unused(0, true, late);
        assert!(receiver.is_overdue(late));
        // The client is not to blame while the server does not receive.
        receiver.release_unused(0, false, late);
        assert!(!receiver.is_overdue(late + CALL_TIME_MAX));
        receiver.release_unused(0, true, begin);
        receiver.records.push(&[5, 6, 7, 8, 0x80]);
        assert!(receiver.records.take().unwrap().is_some());
        receiver.partial_since = None;
        receiver.release_unused(0, true, late);
        assert!(!receiver.is_overdue(late), "the next call has begun just now");
    }
}
