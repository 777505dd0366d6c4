//! Moves the core's bytes over TCP connections, and replaces lost connections.

use nocopy_proto::errno::ErrorCause;
use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nocopy::Wait;
use nocopy_report::boot_clock::BootInstant;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::core::{BadReply, CallError, Core};
use super::socket;

const BATCH_MAX: usize = 16;

/// After so many received bytes the program gets its data, while it is still in the processor's cache.
const TURN_BYTES: usize = 256 << 10;

/// The longest delay of a read that may share a call with later ones.
const JOIN_DELAY_MAX: Duration = Duration::from_millis(1);

/// The pause between two attempts to connect; it doubles each time.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// The pause before a read or write is repeated to a server that was not ready.
const NOT_READY: Duration = Duration::from_millis(500);

/// The client gives up after so many wrong replies without a right one between them.
const BAD_REPLIES_MAX: u32 = 3;

/// How to reach a server, and how long to wait for it.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectSettings {
    pub(super) address: SocketAddr,
    pub(super) connections: usize,
    pub(super) is_reserved: bool,
    /// How long to wait for a reply before the connection is replaced.
    pub(super) timeout: Duration,
    /// For how long to reconnect and repeat calls; `None`: forever.
    pub(super) give_up_after: Option<Duration>,
}

/// Why the client gave up the server.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    #[error(
        "{address}: cannot be connected to{cause}; check that an NFS server listens there ('nocopy serve nfs'), and that no firewall is in between", cause = ErrorCause(.source))]
    Connect { address: SocketAddr, source: io::Error },
    #[error(
        "{address}: no reply within {seconds:.0} s; every call was sent again, without success; check that the server is running"
    )]
    Unanswered { address: SocketAddr, seconds: f64 },
    #[error("{address}: the replies are malformed; {source}; check that an NFS server listens there")]
    BadReplies { address: SocketAddr, source: BadReply },
    #[error(
        "{address}: the sockets cannot be waited for{cause}; raise the limit of descriptors ('ulimit -n')", cause = ErrorCause(.source))]
    Wait { address: SocketAddr, source: io::Error },
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SocketCounts {
    pub(super) connects: u64,
    pub(super) lost: u64,
    pub(super) receives: u64,
    pub(super) sends: u64,
    pub(super) waits: u64,
}

#[derive(Debug, Default)]
struct Connection {
    stream: Option<TcpStream>,
    out: VecDeque<u32>,
    /// Bytes that were sent of the first call in `out`.
    sent: usize,
    is_full: bool,
    /// The receive buffer was empty at the last read.
    is_drained: bool,
    /// When bytes were received last, or the connection was made. A server forgets a client that was
    /// suspended for long, so this time counts; it does not count for giving up.
    last_received: Option<BootInstant>,
}

#[derive(Debug)]
pub(super) struct Transport {
    pub(super) core: Core,
    settings: ConnectSettings,
    connections: Vec<Connection>,
    /// Wrong replies since the last right one.
    bad_replies: u32,
    /// The start of the current time without replies or connections.
    failing_since: Option<Instant>,
    /// When to connect next, and the pause after that.
    retry_at: Option<Instant>,
    pause: Duration,
    was_connected: bool,
    /// When to repeat reads and writes for which the server was not ready.
    resume_at: Option<Instant>,
    counts: SocketCounts,
    first: usize,
    wait: Wait,
    /// Whether queued reads may wait for more reads, to share a call with them.
    may_delay_reads: bool,
}

impl Transport {
    pub(super) fn new(reach: ConnectSettings, xid: u32, credential: Vec<u8>) -> Self {
        let connections = (0..reach.connections).map(|_| Connection::default()).collect();
        let mut core = Core::new(reach.connections, xid, credential);
        core.set_delays_max(
            reach.give_up_after.map_or(u32::MAX, |most| (most.as_millis() / NOT_READY.as_millis()) as u32),
        );
        Self {
            core,
            settings: reach,
            connections,
            bad_replies: 0,
            failing_since: None,
            retry_at: None,
            pause: RETRY_MIN,
            was_connected: false,
            resume_at: None,
            counts: SocketCounts::default(),
            first: 0,
            wait: Wait::Interrupt,
            may_delay_reads: false,
        }
    }

    pub(super) fn set_wait(&mut self, wait: Wait) {
        self.wait = wait;
    }

    pub(super) fn socket_counts(&self) -> SocketCounts {
        self.counts
    }

    /// As [`drive`](Self::drive), for a program that waits for file data: reads may be delayed, to share
    /// calls.
    pub(super) fn drive_to_receive(&mut self, until: Option<Instant>) -> Result<(), TransportError> {
        self.may_delay_reads = true;
        let turned = self.drive(until);
        self.may_delay_reads = false;
        turned
    }

    /// Sends and receives without waiting; if there is nothing to send or receive, waits for it, at most
    /// until `until`. Errors: the server is given up, and all calls have failed.
    pub(super) fn drive(&mut self, until: Option<Instant>) -> Result<(), TransportError> {
        let turned = self.try_drive(until);
        if turned.is_err() {
            (0..self.connections.len()).for_each(|number| self.drop_connection(number));
            self.core.give_up(CallError::Unanswered);
            (self.bad_replies, self.failing_since) = (0, None);
            (self.retry_at, self.pause) = (None, RETRY_MIN);
        }
        turned
    }

    fn try_drive(&mut self, until: Option<Instant>) -> Result<(), TransportError> {
        let now = Instant::now();
        self.resume_delayed(now);
        self.connect_all(now)?;
        if self.send_and_receive()? || self.core.in_flight() == 0 {
            return Ok(());
        }
        if self.may_delay_reads && self.core.queued_count() > 0 {
            // Calls in flight may take long; queued reads should not wait for them.
            let soon = now + JOIN_DELAY_MAX;
            self.wait_for_sockets(Some(until.map_or(soon, |until| until.min(soon))))?;
            if self.send_and_receive()? {
                return Ok(());
            }
            self.may_delay_reads = false;
            if self.send_and_receive()? {
                return Ok(());
            }
        }
        self.wait_for_sockets(until)?;
        self.send_and_receive().map(drop)
    }

    /// Repeats reads and writes for which the server was not ready, after a pause.
    fn resume_delayed(&mut self, now: Instant) {
        if self.core.delayed_count() == 0 {
            self.resume_at = None;
        } else if *self.resume_at.get_or_insert(now + NOT_READY) <= now {
            self.core.resume_delayed();
            self.resume_at = None;
        }
    }

    /// Sends and receives without waiting; returns whether any byte was moved.
    fn send_and_receive(&mut self) -> Result<bool, TransportError> {
        let mut has_moved = self.detect_closed_idle_connections()?;
        if !(self.may_delay_reads && self.core.may_delay_queued()) {
            self.assign_calls();
        }
        for number in 0..self.connections.len() {
            has_moved |= self.send_calls(number);
        }
        self.poll_drained_connections()?;
        // Another connection is first each time, so that all are read from.
        let (count, mut left) = (self.connections.len(), TURN_BYTES);
        let first = self.first;
        for number in (0..count).map(|place| (first + place) % count) {
            if left == 0 {
                break;
            }
            has_moved |= self.receive_replies(number, &mut left)?;
            self.first = (number + 1) % count;
        }
        Ok(has_moved)
    }

    /// Detects connections that the server closed while no call was in flight.
    fn detect_closed_idle_connections(&mut self) -> Result<bool, TransportError> {
        let mut has_moved = false;
        if self.core.queued_count() == 0 {
            return Ok(false);
        }
        for number in 0..self.connections.len() {
            if self.connections[number].stream.is_none() || self.core.has_calls_in_flight(number) {
                continue;
            }
            self.connections[number].is_drained = false;
            has_moved |= self.receive_replies(number, &mut 0)?;
            if self.connections[number].stream.is_some() {
                self.connections[number].last_received = Some(BootInstant::now());
            }
        }
        Ok(has_moved)
    }

    fn connect_all(&mut self, now: Instant) -> Result<(), TransportError> {
        let ConnectSettings { address, is_reserved, timeout, give_up_after: patience, .. } = self.settings;
        if self.core.in_flight() == 0 {
            return Ok(());
        }
        if let Some((since, patience)) = self.failing_since.zip(patience)
            && now.duration_since(since) >= patience
        {
            return Err(TransportError::Unanswered { address, seconds: patience.as_secs_f64() });
        }
        if self.retry_at.is_some_and(|at| now < at) {
            return Ok(());
        }
        for number in 0..self.connections.len() {
            if self.connections[number].stream.is_some() {
                continue;
            }
            match socket::connect_with_timeout(
                address,
                is_reserved,
                patience.map_or(timeout, |most| most.min(timeout)),
            ) {
                Ok(stream) => {
                    self.counts.connects += 1;
                    (self.was_connected, self.retry_at) = (true, None);
                    let last_received = Some(BootInstant::now());
                    self.connections[number] =
                        Connection { stream: Some(stream), last_received, ..Connection::default() };
                }
                Err(source) if !self.was_connected => {
                    return Err(TransportError::Connect { address, source });
                }
                Err(_) => {
                    self.mark_failing();
                    self.back_off();
                    break;
                }
            }
        }
        Ok(())
    }

    fn mark_failing(&mut self) {
        self.failing_since.get_or_insert_with(Instant::now);
    }

    /// Delays the next attempt to connect, and the one after it for longer.
    fn back_off(&mut self) {
        self.retry_at = Some(Instant::now() + self.pause);
        self.pause = (2 * self.pause).min(RETRY_MAX);
    }

    fn drop_connection(&mut self, number: usize) {
        if self.connections[number].stream.is_none() {
            return;
        }
        self.counts.lost += 1;
        self.connections[number] = Connection::default();
        self.core.on_connection_lost(number);
        if self.core.in_flight() > 0 {
            // The first attempt is made at once.
            if self.failing_since.is_some() {
                self.back_off();
            }
            self.mark_failing();
        }
    }

    /// Assigns each queued call to the connection with the fewest calls in flight.
    fn assign_calls(&mut self) {
        if self.core.queued_count() == 0 {
            return;
        }
        let mut loads = vec![0; self.connections.len()];
        self.core.count_in_flight(&mut loads);
        while self.core.queued_count() > 0 {
            let takes = |connection: &Connection| {
                connection.stream.is_some() && !connection.is_full && connection.out.len() < BATCH_MAX
            };
            let numbers = (0..loads.len()).filter(|number| takes(&self.connections[*number]));
            let Some(number) = numbers.min_by_key(|number| loads[*number]) else { return };
            let Some(xid) = self.core.assign_next_call(number) else { return };
            self.connections[number].out.push_back(xid);
            loads[number] += self.core.request_count(xid);
        }
    }

    /// Sends as much as the socket accepts; returns whether anything was sent, or the connection was lost.
    fn send_calls(&mut self, number: usize) -> bool {
        let mut has_sent = false;
        while !self.connections[number].out.is_empty() && !self.connections[number].is_full {
            match self.send_once(number) {
                Ok(()) => has_sent = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.connections[number].is_full = true;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.drop_connection(number);
                    return true;
                }
            }
        }
        has_sent
    }

    fn send_once(&mut self, number: usize) -> io::Result<()> {
        let Self { core, connections, counts, .. } = self;
        let Connection { stream, out, sent, .. } = &mut connections[number];
        // `None`: the server replied to a call before it was sent completely.
        let pieces = unsent_pieces(core, out, *sent).ok_or(io::ErrorKind::InvalidData)?;
        let stream = stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        counts.sends += 1;
        *sent += stream.write_vectored(&pieces)?;
        while let Some(xid) = out.front() {
            let bytes =
                core.call_pieces(*xid).map_or(0, |pieces| pieces.iter().map(|piece| piece.len()).sum());
            if bytes > *sent {
                break;
            }
            *sent -= bytes;
            out.pop_front();
        }
        Ok(())
    }

    /// Receives, and returns whether anything was received. Stops after `left` bytes, at the end of a reply
    /// or read.
    fn receive_replies(&mut self, number: usize, left: &mut usize) -> Result<bool, TransportError> {
        let mut has_received = false;
        while !self.connections[number].is_drained {
            let Self { core, connections, counts, .. } = self;
            let connection = &mut connections[number];
            let Some(stream) = &mut connection.stream else { break };
            counts.receives += 1;
            let (room, received) = {
                // One call receives the rest of a reply's data and the next header.
                let mut space = core.receive_buffers(number);
                (space.total_bytes(), stream.read_vectored(space.pieces()))
            };
            match received {
                Ok(bytes @ 1..) => {
                    has_received = true;
                    connection.last_received = Some(BootInstant::now());
                    let before = core.counts();
                    if let Err(source) = core.handle_received(number, bytes) {
                        self.drop_after_bad_reply(number, source)?;
                        break;
                    }
                    let after = core.counts();
                    if after.replies > before.replies {
                        self.bad_replies = 0;
                    }
                    let is_for_program = after.replies > before.replies || after.reads > before.reads;
                    if is_for_program {
                        (self.failing_since, self.pause) = (None, RETRY_MIN);
                    }
                    *left = left.saturating_sub(bytes);
                    self.connections[number].is_drained = bytes < room;
                    if is_for_program && *left == 0 {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => connection.is_drained = true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => {
                    self.drop_connection(number);
                    return Ok(true);
                }
            }
        }
        Ok(has_received)
    }

    fn drop_after_bad_reply(&mut self, number: usize, source: BadReply) -> Result<(), TransportError> {
        self.drop_connection(number);
        self.bad_replies += 1;
        if self.bad_replies >= BAD_REPLIES_MAX {
            return Err(TransportError::BadReplies { address: self.settings.address, source });
        }
        Ok(())
    }

    /// The next timeout: to reconnect, to repeat a call, or to give up.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let silent = self.connections.iter().filter_map(|connection| connection.last_received).min();
        let ends = [
            self.retry_at,
            self.resume_at,
            self.failing_since.zip(self.settings.give_up_after).map(|(since, patience)| since + patience),
            silent.map(|last_received| {
                Instant::now() + self.settings.timeout.saturating_sub(last_received.elapsed())
            }),
        ];
        ends.into_iter().flatten().min()
    }

    /// All sockets, each with `true` if its send buffer is full.
    pub(super) fn sockets(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        self.connections.iter().filter_map(|connection| {
            let Connection { stream, is_full, .. } = connection;
            stream.as_ref().map(|stream| (stream.as_fd(), *is_full))
        })
    }

    fn wait_for_sockets(&mut self, until: Option<Instant>) -> Result<(), TransportError> {
        let now = Instant::now();
        let end = [until, self.next_timeout()].into_iter().flatten().min().unwrap_or(now + RETRY_MAX);
        self.counts.waits += 1;
        let spun = match self.wait {
            Wait::Spin => Some(end),
            Wait::Adaptive { spin } => Some(end.min(now + spin)),
            Wait::Coalesced { delay, .. } => {
                std::thread::sleep(delay.min(end.saturating_duration_since(now)));
                None
            }
            _ => None,
        };
        let is_there = match spun {
            Some(spun) => self.spin_until(spun)?,
            None => false,
        };
        if !is_there {
            self.poll_sockets(end.saturating_duration_since(Instant::now()))?;
        }
        self.drop_silent_connections();
        Ok(())
    }

    /// Polls without sleeping until there is something to do; returns `false` at `until`.
    fn spin_until(&mut self, until: Instant) -> Result<bool, TransportError> {
        loop {
            if self.poll_sockets(Duration::ZERO)? {
                return Ok(true);
            }
            if Instant::now() >= until {
                return Ok(false);
            }
            std::hint::spin_loop();
        }
    }

    /// Checks drained connections for new bytes. While others still have bytes, the client never waits, so it
    /// would not notice.
    fn poll_drained_connections(&mut self) -> Result<(), TransportError> {
        let drained = self.connections.iter().filter(|connection| connection.is_drained).count();
        if drained == 0 || drained == self.connections.len() {
            return Ok(());
        }
        self.poll_sockets(Duration::ZERO).map(drop)
    }

    /// Waits until a socket can be read, or written if full; returns `false` after `at_most`.
    fn poll_sockets(&mut self, at_most: Duration) -> Result<bool, TransportError> {
        let timeout = Timespec::try_from(at_most).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        let mut numbers = Vec::with_capacity(self.connections.len());
        let mut polled = Vec::with_capacity(self.connections.len());
        for (number, connection) in self.connections.iter().enumerate() {
            let Some(stream) = &connection.stream else { continue };
            let out = if connection.is_full { PollFlags::OUT } else { PollFlags::empty() };
            numbers.push(number);
            polled.push(PollFd::new(stream, PollFlags::IN | out));
        }
        let is_there = match poll(&mut polled, Some(&timeout)) {
            Ok(count) => count > 0,
            Err(Errno::INTR) => true,
            Err(error) => {
                return Err(TransportError::Wait { address: self.settings.address, source: error.into() });
            }
        };
        let ready: Vec<_> = numbers.into_iter().zip(polled.iter().map(PollFd::revents)).collect();
        for (number, events) in ready {
            let connection = &mut self.connections[number];
            let is_over = events.intersects(PollFlags::ERR | PollFlags::HUP);
            connection.is_full &= !(is_over || events.contains(PollFlags::OUT));
            connection.is_drained &= !(is_over || events.contains(PollFlags::IN));
        }
        Ok(is_there)
    }

    /// Drops connections on which calls are in flight and no reply has arrived in time.
    fn drop_silent_connections(&mut self) {
        for number in 0..self.connections.len() {
            let Some(last_received) = self.connections[number].last_received else { continue };
            if last_received.elapsed() < self.settings.timeout {
                continue;
            }
            match self.core.has_calls_in_flight(number) {
                true => self.drop_connection(number),
                false => self.connections[number].last_received = Some(BootInstant::now()),
            }
        }
    }
}

/// The unsent bytes of these calls, of which `sent` bytes were sent. `None` if a call has a reply already.
fn unsent_pieces<'a>(core: &'a Core, out: &VecDeque<u32>, sent: usize) -> Option<Vec<IoSlice<'a>>> {
    let mut left = sent;
    let mut all = Vec::with_capacity(3 * out.len());
    for xid in out {
        for piece in core.call_pieces(*xid)? {
            let skipped = left.min(piece.len());
            left -= skipped;
            if skipped < piece.len() {
                all.push(IoSlice::new(&piece[skipped..]));
            }
        }
    }
    Some(all)
}
