//! The queue of a stream: buffers, cut into calls, and data sent by reference.
//!
//! Data sent without a copy is held until the peer has acknowledged its last byte. The kernel numbers only calls that sent something (in
//! `tcp_sendmsg_locked`, `net_zcopy_put_abort` takes back the number of a failed call).

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Method;
use super::by_reference::Transfer;
use crate::engine::path::Paths;
use crate::engine::reaper::{self, Parting};
use crate::engine::sending::{Place, Sending};
use crate::facts::evidence::Evidence;
use crate::memory::in_flight::kernel_socket::KernelSocket;
use crate::memory::in_flight::{Load, Note, Span, Ticket};
use crate::memory::pool::{self, Buffer, Cache};
use crate::sys::uring_send::UringRefused;

/// The most bytes of a call: enough that the call itself costs little, and few enough that memory returns while the next call is made.
const RUN_BYTES_MAX: usize = 1 << 20;

const RUN_PIECES_MAX: usize = 64;

const RING_SENDS: u32 = 256;

/// The number of pools registered with rings in this process from which on streams make rings only if asked: registered memory is locked,
/// and thousands of connections must not lock all memory.
const RINGS_MAX: usize = 64;

/// How long the peer of a dropped socket may need to acknowledge.
const PARTING: Parting = Parting { patience: Duration::from_secs(120), cut_off: Some(reset) };

#[derive(Debug, Clone, Copy)]
pub(super) enum Next {
    /// Bytes of buffers for one call.
    Run(Run),
    Reference,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) bytes: usize,
}

/// A call that the kernel accepted and has not completed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) run_bytes: usize,
    pub(super) method: Method,
    /// Whether its first packet may be shared with the previous call, so that its completion may report *copied* although it was not.
    pub(super) may_share: bool,
    /// When it was made, if the policy measures it.
    pub(super) since: Option<Instant>,
}

impl Note for Call {}

#[derive(Debug)]
pub(super) enum Item {
    Buffer(Buffer),
    Reference(Transfer),
}

impl Item {
    fn bytes_left(&self) -> u64 {
        match self {
            Self::Buffer(buffer) => buffer.len() as u64,
            Self::Reference(transfer) => transfer.bytes() - transfer.sent(),
        }
    }

    fn buffer(&self) -> Option<&Buffer> {
        if let Self::Buffer(buffer) = self { Some(buffer) } else { None }
    }
}

impl Load for Item {
    /// Data sent by reference is never returned.
    fn comes_back(&self) -> bool {
        self.buffer().is_some()
    }

    fn buffers(&self) -> &[Buffer] {
        self.buffer().map_or(&[], std::slice::from_ref)
    }

    fn into_buffers(self) -> impl Iterator<Item = Buffer> {
        if let Self::Buffer(buffer) = self { Some(buffer) } else { None }.into_iter()
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    pub(super) method: Method,
    pub(super) waits: bool,
    /// The evidence known at once; `None`: the completion will report it.
    pub(super) evidence: Option<Evidence>,
    /// Start of the policy's measurement, if there is one.
    pub(super) since: Option<Instant>,
    pub(super) run_bytes: usize,
}

#[derive(Debug)]
pub(super) struct Outbox {
    pub(super) sending: Sending<Item, (), Call>,
    /// Bytes of buffers not handed over, without data sent by reference, which is not limited.
    buffered_bytes: u64,
    referred_bytes: u128,
    pub(super) is_finished: bool,
    /// Data of the stream was removed from the queue.
    is_cut: bool,
    /// The last call by the ring sent a part, so its last packet is unfinished.
    is_packet_open: bool,
}

impl Outbox {
    pub(super) fn new(socket: Arc<OwnedFd>, cache: Cache, paths: Paths, return_buffers: bool) -> Self {
        Self {
            sending: Sending::new(KernelSocket::new(socket), cache, paths, return_buffers),
            buffered_bytes: 0,
            referred_bytes: 0,
            is_finished: false,
            is_cut: false,
            is_packet_open: false,
        }
    }

    pub(super) fn push(&mut self, item: Item) -> Ticket {
        match &item {
            Item::Buffer(buffer) => self.buffered_bytes += buffer.len() as u64,
            Item::Reference(_) => self.referred_bytes += u128::from(item.bytes_left()),
        }
        self.sending.push(item, ())
    }

    pub(super) fn queued_bytes(&self) -> u64 {
        u64::try_from(self.referred_bytes + u128::from(self.buffered_bytes)).unwrap_or(u64::MAX)
    }

    /// Queued bytes that lie in buffers.
    pub(super) fn buffered_bytes(&self) -> u64 {
        self.buffered_bytes
    }

    /// Whether sending the run without a copy would give the kernel more buffers of its pool than are left free.
    pub(super) fn exceeds_share(&self, run: Run) -> bool {
        let cache = self.sending.cache();
        let of_pool = |item: &&Item| item.buffer().is_some_and(|buffer| cache.owns(buffer));
        if run.bytes == 0 {
            return false;
        }
        let Span { first, last, .. } = self.span(run.bytes);
        let fresh = (first..=last).filter(|&ticket| !self.sending.messages().is_read(ticket));
        let fresh = fresh.map(|ticket| self.item(ticket)).filter(of_pool).count();
        let in_flight = self.sending.messages().read().filter(of_pool).count();
        fresh > 0 && in_flight + fresh > cache.pool().at_home()
    }

    #[inline]
    pub(super) fn next(&self) -> Option<Next> {
        if self.sending.queued() == 0 {
            return None;
        }
        Some(match self.item(self.sending.next().ticket) {
            Item::Buffer(_) => Next::Run(Run { bytes: self.span(RUN_BYTES_MAX).bytes }),
            Item::Reference(_) => Next::Reference,
        })
    }

    /// The transfer at the front of the queue, the socket, and whether bytes are queued after it: only then may a segment be held
    /// back.
    pub(super) fn next_reference(&mut self) -> Option<(&mut Transfer, BorrowedFd<'_>, bool)> {
        let mut behind =
            (self.sending.next().ticket + 1..self.sending.messages().end()).map(|ticket| self.item(ticket));
        let more = behind.any(|item| item.bytes_left() > 0);
        if !matches!(self.item(self.sending.next().ticket), Item::Reference(_)) {
            return None;
        }
        match self.sending.unread_mut() {
            (Some(Item::Reference(transfer)), socket) => Some((transfer, socket, more)),
            _ => None,
        }
    }

    /// Notes that the socket accepted bytes of the transfer at the front.
    pub(super) fn reference_went(&mut self, bytes: u64) {
        self.referred_bytes -= u128::from(bytes);
    }

    pub(super) fn pass_reference(&mut self) {
        let ticket = self.sending.next().ticket + 1;
        self.sending.pass_to(Place { ticket, bytes: 0 }, None);
    }

    /// Buffers from the front of the queue, at most that many bytes; empty if the queue does not begin with a buffer.
    fn span(&self, bytes_max: usize) -> Span {
        let Place { ticket: first, bytes: at } = self.sending.next();
        let mut span = Span { first, last: first, at, bytes: 0 };
        let end = self.sending.messages().end().min(first + RUN_PIECES_MAX as u64);
        for ticket in first..end {
            let Item::Buffer(buffer) = self.item(ticket) else { break };
            let begun = if ticket == first { at } else { 0 };
            span = Span { last: ticket, bytes: bytes_max.min(span.bytes + buffer.len() - begun), ..span };
            if span.bytes == bytes_max {
                break;
            }
        }
        span
    }

    #[inline]
    fn item(&self, ticket: u64) -> &Item {
        self.sending.messages().get(ticket).message.as_ref().expect("what is queued is held")
    }

    /// Sends bytes from the front of the queue, by one call, and returns how many. On an error of the kernel no byte was handed over.
    pub(super) fn send(&mut self, bytes: usize, how: How) -> io::Result<usize> {
        let span = self.span(bytes);
        if span.bytes == 0 {
            // Buffers without bytes: not passed to the kernel, which would take them for the end of a failed call.
            self.pass(0, how.evidence);
            return Ok(0);
        }
        let (may_share, run_bytes) = (self.is_packet_open, how.run_bytes);
        let call = Call { run_bytes, method: how.method, may_share: false, since: how.since };
        let kept = self.sending.kept_mut();
        let sent = match how.method {
            Method::Plain => kept.send_copied(span, how.waits)?,
            Method::ZeroCopy => kept.send_zero_copy(span, how.waits, call)?,
            Method::UringZeroCopy => {
                let sent = kept.send_by_ring(span, Call { may_share, ..call })?;
                self.is_packet_open = if sent > 0 { sent < bytes } else { may_share };
                sent
            }
        };
        self.pass(sent, how.evidence);
        Ok(sent)
    }

    fn pass(&mut self, mut bytes: usize, evidence: Option<Evidence>) {
        self.buffered_bytes -= bytes as u64;
        let mut to = self.sending.next();
        while to.ticket < self.sending.messages().end() {
            let Item::Buffer(buffer) = self.item(to.ticket) else { break };
            let left = buffer.len() - to.bytes;
            if bytes < left {
                to.bytes += bytes;
                break;
            }
            bytes -= left;
            to = Place { ticket: to.ticket + 1, bytes: 0 };
        }
        self.sending.pass_to(to, evidence);
    }

    /// Makes the ring, with the pool's memory registered, if there is none; if this process has many rings already, only if asked for.
    pub(super) fn open_ring(&mut self, asked_for: bool) -> Result<(), RingRefused> {
        if !self.sending.kept().has_ring() && !asked_for && pool::registrations() >= RINGS_MAX {
            return Err(RingRefused::Many);
        }
        self.sending.open_ring(RING_SENDS).map(drop).map_err(RingRefused::Kernel)
    }

    /// Removes the items that were not handed over, in order; the first may be partly sent. If the kernel still reads that one, it stays.
    pub(super) fn take_unsent(&mut self) -> Vec<Item> {
        self.is_cut |= self.queued_bytes() > 0;
        (self.buffered_bytes, self.referred_bytes) = (0, 0);
        self.sending.take_unsent()
    }

    /// Gives up memory that the kernel still reads, and continues to send: all of it if its pages can be replaced; otherwise none, and the
    /// reaper keeps it. Returns how many calls were given up, and the bytes that return later.
    pub(super) fn give_up(&mut self) -> (usize, usize) {
        drop(self.take_unsent());
        let mut kept = self.sending.kept_mut().take();
        let calls = kept.in_flight();
        if kept.is_replaceable() {
            reaper::leaked(kept.abandon());
            return (calls, 0);
        }
        let bytes = kept.read_bytes();
        reaper::leave(&mut kept, PARTING);
        (calls, bytes)
    }

    /// Ends the stream: the peer sees the end after the bytes that were handed over. If some are left, it sees a reset instead, so that it
    /// does not mistake a part for the whole.
    pub(super) fn end(&mut self) {
        if std::mem::replace(&mut self.is_finished, true) {
            return;
        }
        // Fails if the connection is closed already, which does not matter.
        if self.queued_bytes() == 0 && !self.is_cut {
            let _ = rustix::net::shutdown(self.sending.socket(), rustix::net::Shutdown::Write);
        } else {
            reset(self.sending.socket());
        }
    }
}

/// Ends a connection at once, in both directions: the kernel drops unacknowledged data, and completes all calls.
fn reset(socket: BorrowedFd<'_>) {
    if rustix::net::connect_unspec(socket).is_err() {
        // If another thread receives, some kernels refuse (`EBUSY`): then the reset comes when the last half is closed.
        let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum RingRefused {
    #[error(transparent)]
    Kernel(UringRefused),
    #[error("{}", Self::MANY)]
    Many,
}

impl RingRefused {
    const MANY: &str = "this process already has many io_uring rings, each of which locks memory; choose `uring-zerocopy` explicitly";

    /// The reason as a short constant text.
    pub(super) fn why(&self) -> &'static str {
        match self {
            Self::Kernel(refused) => refused.why(),
            Self::Many => Self::MANY,
        }
    }
}

impl Drop for Outbox {
    /// Queued data is not sent. Memory is kept while the kernel still reads it. In a forked child the stream belongs to the parent, and
    /// continues.
    fn drop(&mut self) {
        if !self.sending.kept().is_inherited() {
            self.end();
            drop(self.take_unsent());
        }
        reaper::leave(self.sending.kept_mut(), PARTING);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use nocopy_lab::patience::wait_until;

    use super::*;
    use crate::memory::pool::Pool;

    fn outbox(pool: &Pool) -> (Outbox, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let paths = Paths::of(&stream, None);
        let outbox = Outbox::new(Arc::new(stream.into()), Cache::new(pool.clone()), paths, false);
        (outbox, listener.accept().unwrap().0)
    }

    #[test]
    fn queued_bytes_are_a_sum_that_does_not_overflow() {
        let (mut outbox, _peer) = outbox(&Pool::new(1, 4096).unwrap());
        let device = Arc::new(std::fs::File::open("/dev/zero").unwrap());
        let device = |bytes| Item::Reference(Transfer::file(Arc::clone(&device), 0..bytes).unwrap());
        outbox.push(device(3 << 30));
        outbox.push(Item::Buffer(b"the end of it".to_vec().into()));
        assert_eq!(outbox.queued_bytes(), (3 << 30) + 13);
        outbox.push(device(u64::MAX));
        outbox.push(device(u64::MAX));
        assert_eq!(outbox.queued_bytes(), u64::MAX);
        assert_eq!(outbox.take_unsent().len(), 4);
        assert_eq!(outbox.queued_bytes(), 0);
    }

    /// The peer does not read, so most of the data stays in the kernel.
    #[test]
    fn a_reset_brings_back_what_a_silent_peer_does_not_acknowledge() {
        for method in [Method::ZeroCopy, Method::UringZeroCopy] {
            let pool = Pool::new(64, 64 << 10).unwrap();
            let (mut outbox, _peer) = outbox(&pool);
            match method {
                Method::ZeroCopy => outbox.sending.kept_mut().allow_zero_copy().unwrap(),
                _ if outbox.open_ring(true).is_err() => return,
                _ => {}
            }
            // More than the peer's kernel buffers.
            while let Some(mut buffer) = pool.take() {
                buffer.resize(buffer.capacity());
                outbox.push(Item::Buffer(buffer));
            }
            while let Some(Next::Run(run)) = outbox.next() {
                let how = How { method, waits: false, evidence: None, since: None, run_bytes: run.bytes };
                if outbox.send(run.bytes, how).is_err() {
                    break;
                }
            }
            assert!(outbox.sending.in_flight() > 0);
            outbox.take_unsent();
            reset(outbox.sending.socket());
            wait_until("all of it is free", || {
                outbox.sending.kept_mut().reap_unseen();
                outbox.sending.in_flight() == 0 && pool.at_home() == pool.total()
            });
        }
    }
}
