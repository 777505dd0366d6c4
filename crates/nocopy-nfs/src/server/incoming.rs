//! The calls that a connection receives, within its share of the memory for calls.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, recv};

use super::Shared;
use super::networks::Member;
use crate::wire::record::{MARK_BYTES, Records};

/// How long a call may take to arrive whole. (Not one that is written into a file as it arrives, and so uses
/// no memory.)
const CALL_TIME_MAX: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) records: Records,
    pub(super) member: Member,
    /// Since when the rest of a call is missing; to be reset when a call has arrived whole.
    pub(super) partial: Option<Instant>,
    /// Nothing was received, for want of memory.
    is_starved: bool,
}

#[derive(Debug)]
pub(super) enum Received {
    Bytes(usize),
    Nothing,
    End,
    Broken,
}

impl Incoming {
    pub(super) fn new(records: Records, member: Member) -> Self {
        Self { records, member, partial: None, is_starved: false }
    }

    /// Receives what has arrived, if there is memory for it besides `held` bytes of other calls. At most one
    /// whole call is held, with the bytes received after it.
    pub(super) fn receive(
        &mut self,
        shared: &Shared,
        socket: &Arc<TcpStream>,
        held: usize,
        buffer: &mut [u8],
    ) -> Received {
        self.is_starved = false;
        if self.records.held() >= shared.core.call_bytes_max() + MARK_BYTES {
            return Received::Nothing;
        }
        let into_buffer = if self.records.long().is_none() { buffer.len() } else { 0 };
        let needed = self.records.reserved().max(self.records.held() + into_buffer);
        if !self.member.reserve(held + needed) {
            self.is_starved = true;
            return Received::Nothing;
        }
        let (socket, flags) = (&**socket, RecvFlags::DONTWAIT);
        let received = match self.records.long() {
            Some(long) => retry_on_intr(|| recv(socket, spare_capacity(long), flags)).map(|(count, _)| count),
            None => {
                let received = retry_on_intr(|| recv(socket, &mut *buffer, flags)).map(|(count, _)| count);
                self.records.push(&buffer[..received.unwrap_or(0)]);
                received
            }
        };
        match received {
            Ok(0) => Received::End,
            Ok(count) => Received::Bytes(count),
            Err(Errno::AGAIN) => Received::Nothing,
            Err(_) => Received::Broken,
        }
    }

    /// Frees memory that is no longer needed, and notes whether the rest of a call is missing. `is_asked`:
    /// the client may send it now.
    pub(super) fn settle(&mut self, held: usize, is_asked: bool, now: Instant) {
        // Refused if the call turned out to be longer: then no more of it is received for the time being.
        self.member.reserve(held + self.records.reserved());
        match is_asked && !self.is_starved && self.records.is_within() {
            true => drop(self.partial.get_or_insert(now)),
            false => self.partial = None,
        }
    }

    pub(super) fn is_starved(&self) -> bool {
        self.is_starved
    }

    /// Whether the rest of a call is missing for too long.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        self.partial.is_some_and(|since| now.saturating_duration_since(since) > CALL_TIME_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::super::networks::Networks;
    use super::*;

    #[test]
    fn a_call_that_does_not_arrive_is_overdue() {
        let member = Arc::new(Networks::default()).join([10, 0, 0, 1].into(), 0);
        let mut incoming = Incoming::new(Records::new(1 << 20), member);
        let (begin, late) = (Instant::now(), Instant::now() + 2 * CALL_TIME_MAX);
        incoming.settle(0, true, begin);
        assert!(!incoming.is_overdue(late), "nothing has begun");
        incoming.records.push(&[0x80, 0, 0, 8, 1, 2, 3]);
        incoming.settle(0, true, begin);
        assert!(!incoming.is_overdue(begin + CALL_TIME_MAX) && incoming.is_overdue(late));
        // More of it changes nothing.
        incoming.records.push(&[4]);
        incoming.settle(0, true, late);
        assert!(incoming.is_overdue(late));
        // The client is not to blame while the server does not receive.
        incoming.settle(0, false, late);
        assert!(!incoming.is_overdue(late + CALL_TIME_MAX));
        incoming.settle(0, true, begin);
        incoming.records.push(&[5, 6, 7, 8, 0x80]);
        assert!(incoming.records.take().unwrap().is_some());
        incoming.partial = None;
        incoming.settle(0, true, late);
        assert!(!incoming.is_overdue(late), "the next call has begun just now");
    }
}
