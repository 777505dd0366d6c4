//! The half that sends.
#![expect(clippy::result_large_err, reason = "what is rejected comes back, and allocates nothing")]

#[cfg(feature = "tokio")]
mod asynchronous;
mod blocking;
mod flush;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

pub use blocking::Sender;
use flush::OpenCallNote;
pub(super) use flush::{CallPlan, QueuedRun};
use rustix::event::PollFlags;

use super::ancillary::Ancillary;
use super::choice;
use super::destinations::Destinations;
use super::message::{DATAGRAM_BYTES_MAX, Message, Outgoing};
use super::method::Method;
use super::outcome::SendOutcome;
use super::over_port;
use super::peer_error::PeerError;
use super::strangers::UnverifiedPeerLimit;
use crate::engine::address;
use crate::engine::half::sender_half;
use crate::engine::path::{PathEvidence, SocketPaths};
use crate::engine::policy::{Policy, Work};
use crate::engine::reaper::{self, CloseTimeouts};
use crate::facts::evidence::{Evidence, Ledger};
use crate::facts::method_explanation::Explanation;
use crate::facts::rejected::{Reason, Rejected};
use crate::memory::area::Frame;
use crate::memory::pool::{Buffer, BufferCache, BufferMut, Pool};
use crate::memory::send_queue::{Burst, Completed, KernelSocket, NoZeroCopyReason, SendQueue, Ticket};
use crate::stats::Stats;
use crate::sys::poll::ready_events;
use crate::sys::udp_send;

/// The most messages that are queued before they must be flushed.
const QUEUE_MAX: usize = 1024;

/// How long the kernel may need for a dropped socket: longer than resolving a neighbour takes (3 s, arp(7)),
/// or a queue stalls.
const CLOSE_TIMEOUTS: CloseTimeouts = CloseTimeouts { patience: Duration::from_secs(10), cut_off: None };

/// What never waits of a [`Sender`]: both it and its asynchronous form deref to this.
#[derive(Debug)]
pub struct NonblockingSender {
    pub(super) queue: SendQueue<Outgoing, OpenCallNote>,
    burst: Burst<OpenCallNote>,
    paths: PathEvidence,
    ledger: Ledger,
    /// 0 after close.
    queue_max: usize,
    pub(super) destinations: Destinations,
    /// If there is one, it is one of the methods.
    pub(super) port: Option<Box<over_port::Sender>>,
    pub(super) copies_over_port: bool,
    /// Unsent messages wait for completions, not for room in the socket.
    pub(super) awaits_completions: bool,
    pub(super) policy: Policy<Method>,
    strangers: UnverifiedPeerLimit,
    pub(super) outcome: SendOutcome,
}

impl NonblockingSender {
    pub(super) fn new(
        socket: Arc<KernelSocket>,
        pool: Pool,
        policy: Policy<Method>,
        paths: SocketPaths,
        return_buffers: bool,
    ) -> Self {
        Self {
            outcome: SendOutcome { errors_before: socket.network_error_count(), ..SendOutcome::default() },
            queue: SendQueue::new(socket, BufferCache::new(pool), return_buffers),
            burst: Burst::new(),
            paths: PathEvidence::new(paths),
            ledger: Ledger::default(),
            queue_max: QUEUE_MAX,
            destinations: Destinations::new(),
            port: None,
            copies_over_port: false,
            awaits_completions: false,
            policy,
            strangers: UnverifiedPeerLimit::default(),
        }
    }

    /// Sets the default destination. The socket behind a port is not connected itself.
    pub(super) fn set_peer(&mut self, to: SocketAddr) {
        if self.destinations.is_full() {
            self.forget_destinations();
        }
        self.destinations.set_connected(to, self.port.is_some());
    }

    /// An empty buffer; `None` while all are in use: [`flush`](Sender::flush) and [`reap`](Self::reap) free
    /// them.
    ///
    /// Over a port it is a frame, for one datagram that the port sends without a copy, as long as frames are
    /// free. Otherwise it is memory of the socket's pool, for up to 64 KiB. [`BufferMut::capacity`] shows
    /// which.
    #[inline]
    pub fn buffer(&mut self) -> Option<BufferMut> {
        if let Some(port) = &mut self.port
            && let Some(frame) = port.frame()
        {
            return Some(frame.into());
        }
        self.queue.cache_mut().take()
    }

    /// Takes back a buffer that was not sent, more cheaply than dropping it.
    #[inline]
    pub fn recycle(&mut self, buffer: impl Into<Buffer>) {
        let buffer = buffer.into();
        match (&mut self.port, buffer.is_frame()) {
            (Some(port), true) => {
                if let Ok(frame) = Frame::try_from(buffer) {
                    port.recycle(frame);
                }
            }
            _ => self.queue.cache_mut().put(buffer),
        }
    }

    /// Queues a message for the peer to which the socket is [connected](super::Socket::connect).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let peer = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// use nocopy::{Buffer, udp::{Message, Socket}};
    /// let mut socket = Socket::bind("127.0.0.1:0")?;
    /// socket.connect(peer.local_addr()?)?;
    /// let many = Buffer::from(vec![0; 10_000]); // memory of the program's own: three datagrams
    /// socket.sender().send(Message::segments(many, 4000))?;
    /// socket.sender().flush()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The unchanged message: the queue is full ([`Reason::Full`]; flush it), a datagram is longer than UDP
    /// allows, or the socket is not connected.
    #[inline(always)]
    pub fn send(&mut self, message: impl Into<Message>) -> Result<Ticket, Rejected<Message>> {
        let message = message.into();
        match self.destinations.connected() {
            Some(destination) => self.queue(message, destination),
            None => Err(Rejected { item: message, reason: Reason::NotConnected }),
        }
    }

    /// Queues a message for an address, also if the socket is connected to another. A name is looked up by
    /// every call, which blocks the thread meanwhile (a tokio program better calls
    /// `tokio::net::lookup_host` once); its first address is used.
    ///
    /// # Errors
    /// The unchanged message, as from [`send`](Self::send); or the name has no address.
    #[inline(always)]
    pub fn send_to(
        &mut self,
        message: impl Into<Message>,
        to: impl ToSocketAddrs,
    ) -> Result<Ticket, Rejected<Message>> {
        let message = message.into();
        match address::first_of(to) {
            Ok(to) => {
                let destination = self.destination(to);
                self.queue(message, destination)
            }
            Err(error) => Err(Rejected { item: message, reason: Reason::System(error) }),
        }
    }

    /// Queues a message for an address, as [`send_to`](Self::send_to) does, and sets more for its datagrams:
    /// ECN, and the address that they come from. On a connected socket the address may be the peer's.
    /// Messages with equal settings share calls, so each change within a queue costs at most one call.
    ///
    /// ```
    /// # let peer = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// use nocopy::Reason;
    /// use nocopy::udp::{Ancillary, Ecn, Message, Socket};
    /// let mut socket = Socket::bind("0.0.0.0:0")?;
    /// let (sender, to) = (socket.sender(), peer.local_addr()?);
    /// let ancillary = Ancillary { ecn: Some(Ecn::Ect0), source: Some([127, 0, 0, 2].into()) };
    /// sender.send_with(Message::segments(vec![7; 4000], 1000), to, ancillary)?; // all four datagrams
    /// sender.flush()?;
    /// let (bytes, from) = peer.recv_from(&mut [0; 2000])?;
    /// assert_eq!((bytes, from.ip()), (1000, [127, 0, 0, 2].into()));
    /// let foreign = Ancillary { source: Some([192, 0, 2, 1].into()), ..ancillary };
    /// let rejected = sender.send_with(vec![7; 10], to, foreign).unwrap_err();
    /// assert!(matches!(rejected.reason, Reason::ForeignSource { .. }), "{rejected}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`send_to`](Self::send_to); or the socket cannot send from that source
    /// ([`Reason::ForeignSource`]). The source is checked when something is first sent with it to an address;
    /// if the host loses it later, [`flush`](Sender::flush) returns an error.
    #[inline]
    pub fn send_with(
        &mut self,
        message: impl Into<Message>,
        to: impl ToSocketAddrs,
        ancillary: Ancillary,
    ) -> Result<Ticket, Rejected<Message>> {
        let message = message.into();
        let to = address::first_of(to).map_err(Reason::System);
        match to.and_then(|to| self.destination_with(to, ancillary)) {
            Ok(destination) => self.queue(message, destination),
            Err(reason) => Err(Rejected { item: message, reason }),
        }
    }

    #[inline]
    fn destination_with(&mut self, to: SocketAddr, ancillary: Ancillary) -> Result<u32, Reason> {
        match self.destinations.number_with(to, ancillary) {
            Some(number) => Ok(number),
            None => self.add_destination_with(to, ancillary),
        }
    }

    #[cold]
    fn add_destination_with(&mut self, to: SocketAddr, ancillary: Ancillary) -> Result<u32, Reason> {
        if ancillary == Ancillary::default() {
            return Ok(self.destination(to));
        }
        let controls = ancillary.controls(self.queue.socket(), to)?;
        if self.destinations.is_full() {
            self.forget_destinations();
        }
        Ok(self.destinations.add_with(to, ancillary, controls))
    }

    #[inline]
    fn destination(&mut self, to: SocketAddr) -> u32 {
        if self.destinations.is_full() {
            self.forget_destinations();
        }
        self.destinations.number_of(to)
    }

    /// Forgets destinations without messages queued or in flight.
    #[cold]
    fn forget_destinations(&mut self) {
        // Destinations of calls in flight stay, too: the entries that a call reads are held until it is
        // settled.
        self.destinations.forget_unused(self.queue.entries().unfinished().map(|payload| payload.destination));
        self.paths.forget();
        self.policy.forget_all();
    }

    #[inline(always)]
    fn queue(&mut self, message: Message, destination: u32) -> Result<Ticket, Rejected<Message>> {
        let reason = if message.datagram_bytes > DATAGRAM_BYTES_MAX {
            Reason::TooLong { bytes_max: DATAGRAM_BYTES_MAX }
        } else if self.queued() >= self.queue_max {
            if self.queue_max == 0 { Reason::Finished } else { Reason::Full }
        } else {
            return Ok(self.queue.push(Outgoing { message, destination }));
        };
        Err(Rejected { item: message, reason })
    }

    /// Whether a copy of so many bytes can be sent at all.
    fn check_copy(&self, bytes: usize) -> Result<(), Reason> {
        if bytes > DATAGRAM_BYTES_MAX {
            return Err(Reason::TooLong { bytes_max: DATAGRAM_BYTES_MAX });
        }
        if self.queue_max == 0 { Err(Reason::Finished) } else { Ok(()) }
    }

    /// Sends a copy of the bytes, with nothing queued before them. `Full`: the port, or with `MSG_DONTWAIT`
    /// the socket, has no room.
    fn copy_now(&mut self, bytes: &[u8], destination: u32, flags: i32) -> Result<(), Reason> {
        match self.copies_over_port {
            true => self.copy_over_port(bytes, destination, flags),
            false => self.copy_by_call(bytes, destination, flags),
        }
    }

    /// Whether a datagram of that many bytes to an address that may be forged leaves room for those to
    /// others: to be asked before it is sent.
    #[doc(hidden)]
    pub fn has_room_for(&mut self, to: SocketAddr, bytes: usize) -> bool {
        self.strangers.may_send_to_unverified(self.queue.socket(), bytes, to)
    }

    /// Whether the next message is not refused because the queue is full.
    #[cfg(feature = "futures")]
    pub(crate) fn has_queue_room(&self) -> bool {
        self.queued() < self.queue_max || self.queue_max == 0
    }

    #[inline]
    pub(super) fn queued(&self) -> usize {
        self.queue.queued()
    }

    /// The number of calls and frames whose memory the kernel still reads.
    #[inline]
    pub fn in_flight(&self) -> usize {
        self.queue.in_flight() + self.port.as_ref().map_or(0, |port| port.in_flight())
    }

    /// If only one message is queued, nothing is in flight, and the message is to be sent by one copying
    /// call, sends it, without the bookkeeping of other methods. Returns `false` if it did nothing.
    #[inline(always)]
    fn send_only_message(&mut self) -> bool {
        if self.queue.queued() != 1 || self.queue.in_flight() > 0 {
            return false;
        }
        let head = self.queue.head();
        let Outgoing { message, destination } = self.queue.entries().payload(head.ticket);
        let ([bytes], destination) = (message.pieces(), *destination) else { return false };
        let (method, count, segment_bytes) = match message.datagrams {
            1 => (Method::Socket, 1, None),
            // Datagrams fit in 16 bits: `queue` refuses longer ones.
            many if head.bytes == 0 && udp_send::is_cut_by_one_call(many, bytes.len()) => {
                (Method::Gso, many as u32, Some(message.datagram_bytes as u16))
            }
            _ => return false,
        };
        let work = Work { destination, bytes: message.datagram_bytes as u32, count };
        // Messages wait for room no longer, so the descriptor must not either.
        let is_alone = self.outcome.late.is_none() && !self.queue.wants_room();
        if !is_alone || !self.policy.uses_unmeasured(work, method) {
            return false;
        }
        let to = self.destinations.get(destination).kernel();
        if udp_send::send_to_destination(self.queue.socket(), bytes, segment_bytes, to, 0).is_err() {
            return false; // it is tried anew, and the error looked into
        }
        let bytes = bytes.len();
        let evidence = self.policy.copied_evidence(count, bytes); // the length matters for one datagram only
        self.count_sent(count, bytes, Some(evidence));
        self.queue.free_only(evidence);
        true
    }

    /// Hands over as much as there is room for now. Returns `false` if something is left.
    ///
    /// # Errors
    /// As [`flush`](Sender::flush).
    pub fn try_flush(&mut self) -> io::Result<bool> {
        self.outcome.flushes += 1;
        let (is_all, is_taken) = self.flush_queue_and_port(libc::MSG_DONTWAIT)?;
        Ok(is_all && is_taken)
    }

    #[inline]
    pub(super) fn network_error_count(&self) -> u64 {
        self.queue.kernel_socket().network_error_count()
    }

    /// Errors that the network reported since the last call, oldest first; at most the last 64, but all are
    /// counted (`peer_errors` of the [stats](Self::stats)). Senders that share a socket (over ports on
    /// several queues) share its errors; each error is returned once.
    ///
    /// ```
    /// # use nocopy::udp::Socket;
    /// # let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// # let mut socket = Socket::bind("127.0.0.1:0")?;
    /// # let closed = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// # closed.connect(client.local_addr()?)?; // takes nothing from others
    /// # let to = closed.local_addr()?;
    /// let error = loop {
    ///     socket.sender().send_copy_to(b"hello", to)?; // no socket receives there
    ///     if let Some(error) = socket.sender().errors().next() {
    ///         break error;
    ///     }
    /// };
    /// assert_eq!(error.to, Some(to));
    /// assert_eq!(error.error.kind(), std::io::ErrorKind::ConnectionRefused);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn errors(&mut self) -> impl Iterator<Item = PeerError> + use<> {
        self.reap();
        self.queue.kernel_socket().take_errors().into_iter().map(PeerError::from)
    }

    /// The next message whose buffers are free again, if the builder was set to [return
    /// them](super::Builder::return_buffers).
    ///
    /// ```
    /// use nocopy::udp::Socket;
    /// # let peer = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// let mut socket = Socket::builder().return_buffers(true).bind("127.0.0.1:0")?;
    /// let ticket = socket.sender().send_to(vec![7; 100], peer.local_addr()?)?;
    /// assert!(socket.sender().completed().is_none()); // queued only
    /// assert!(socket.sender().drain(std::time::Duration::from_secs(5))?);
    /// let completed = socket.sender().completed().expect("it was sent");
    /// assert_eq!(completed.ticket, ticket);
    /// println!("{}", completed.evidence); // whether this message was copied
    /// let bytes: Vec<u8> = completed.item.into_iter().next().unwrap().into_owner().unwrap();
    /// assert_eq!(bytes, [7; 100]); // the program's own memory again
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn completed(&mut self) -> Option<Completed<Message>> {
        let Completed { ticket, evidence, item } = self.queue.completed()?;
        Some(Completed { ticket, evidence, item: item.message })
    }

    /// Prepares for a wait on the descriptor ([`AsFd`]): it becomes readable when memory is free again, and,
    /// if [`try_flush`](Self::try_flush) left something, when there is room. Returns true if it is readable
    /// already; free memory was then taken back.
    ///
    /// # Errors
    /// As [`flush`](Sender::flush).
    pub fn arm(&mut self) -> io::Result<bool> {
        if self.reap() > 0 {
            return Ok(true);
        }
        if let Some(port) = &mut self.port {
            // Without reading completions: arming the port detects those.
            let is_away = !port.is_idle();
            self.queue.descriptor(); // made before what it is to watch
            self.queue.watch_other(port.port().as_fd(), is_away);
            if is_away && port.arm()? {
                return Ok(true);
            }
        }
        let socket = self.queue.socket();
        let events = ready_events(socket, PollFlags::OUT)?;
        if events.contains(PollFlags::ERR) {
            // An error without a notice would make the descriptor readable for good; it concerns an earlier
            // datagram.
            let _ = rustix::net::sockopt::socket_error(socket);
        }
        Ok(self.queue.wants_room() && events.contains(PollFlags::OUT))
    }

    /// The kernel socket, for options and calls that this type lacks. ([`AsFd`] returns a descriptor that can
    /// only be waited on.)
    ///
    /// From then on nothing is sent by `MSG_ZEROCOPY`: the kernel numbers such calls of all senders on a
    /// socket together, and reports only numbers when memory is free. Plain calls and io_uring, whose
    /// completions name their call, are still used. Only this sender may read the error queue: memory whose
    /// completion was read elsewhere returns only when the sender is dropped.
    ///
    /// ```
    /// # let mut socket = nocopy::udp::Socket::bind("127.0.0.1:0")?;
    /// use rustix::net::sockopt;
    /// let socket = socket.sender().kernel_socket()?;
    /// sockopt::set_ip_tos(socket, 0x10)?;
    /// assert_eq!(sockopt::ip_tos(socket)?, 0x10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `ResourceBusy`: another sender makes such calls on this socket (over a port on another queue), or such
    /// a call failed, and the kernel has not reported yet whether it was numbered; [`drain`](Sender::drain),
    /// and try again. `Unsupported` in a forked child, unless its parent asked for the socket before the
    /// fork, because the parent may continue such calls.
    pub fn kernel_socket(&mut self) -> io::Result<BorrowedFd<'_>> {
        self.reap();
        self.queue.share_socket()?;
        choice::exclude_zero_copy(&mut self.policy, NoZeroCopyReason::Shared.why());
        Ok(self.queue.socket())
    }

    /// The evidence for the bytes sent, complete when their memory is free.
    pub fn ledger(&self) -> Ledger {
        let mut ledger = self.ledger;
        ledger += self.port.as_ref().map(|port| port.ledger()).unwrap_or_default();
        ledger
    }

    /// All counters. `moved` counts datagrams that the kernel accepted, not those that arrived; over a port
    /// there is a counter for each path: `over_port`, and each reason to send through the kernel. Refused
    /// datagrams are also counted by the kernel's error: `refused_ENETUNREACH`, and so on. With sockets over
    /// all queues, the first has the `peer_errors` of all.
    pub fn stats(&self) -> Stats {
        let counts_elsewhere = self.port.as_ref().is_some_and(|port| port.counts_elsewhere());
        let network_errors = (!counts_elsewhere).then(|| self.network_error_count());
        let stats = self.outcome.stats(network_errors, self.queue.unknown_completions());
        match &self.port {
            None => stats,
            Some(port) => port.with_sent_counters(stats),
        }
    }

    /// The methods in use, and why. Single datagrams under 4 KiB are not mentioned: without a port they use a
    /// plain call, and the ledger has them as [below threshold](crate::Cause::BelowThreshold). Over a port,
    /// the port's explanation is included.
    pub fn explain(&self) -> Explanation {
        let ways = self.policy.explain();
        match self.port.as_ref().map(|port| port.port().explain()) {
            None => Explanation::from_choice(&ways, Evidence::Unknown),
            Some(port) => port.prefixed_with(&ways),
        }
    }
}

sender_half!(NonblockingSender, BufferMut);

impl AsFd for NonblockingSender {
    /// A descriptor that is readable while memory is free again ([`reap`](Self::reap)), and, after
    /// [`try_flush`](Self::try_flush) left something in the queue, while there is room for more. Nothing can
    /// be sent on it: see [`kernel_socket`](Self::kernel_socket).
    ///
    /// # Panics
    /// At the first call, if the process has no descriptor left.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.descriptor()
    }
}

impl Drop for NonblockingSender {
    /// Queued messages are not sent. Memory is kept while the kernel still reads it.
    fn drop(&mut self) {
        reaper::hand_over_to_reaper(&mut self.queue, CLOSE_TIMEOUTS);
    }
}
