//! TCP connections: received bytes are sent back unchanged. One thread serves all of them, so it knows the
//! share of each.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use nocopy::integration::{Wakeup, poll};
use nocopy_proto::message::network_of;
use rustix::event::{PollFd, PollFlags};

use super::summary::ServiceCounters;
use crate::exchange::{PATIENCE, SPIN, WaitMode};
use nocopy_report::Interrupt;

/// The most connections at a time. A further one ends an existing one.
const CONNECTIONS_MAX: usize = 256;

/// Connections accepted in a row, before other work.
const ACCEPTED_MAX: usize = 16;

/// Length of the pieces that keep bytes for a peer that does not read; each is read by one call.
const PIECE_BYTES: usize = 64 << 10;

/// The most bytes kept for one peer, from which the server then stops reading. It is more than the longest
/// message, so that a peer that sends a whole one before it reads gets it back.
const PENDING_BYTES_MAX: usize = (16 << 20) + 2 * PIECE_BYTES;

/// The most bytes kept for all peers: 256 MiB, including the piece that each may add before the next check.
/// Beyond that a connection is ended.
const KEPT_BYTES_MAX_ALL: usize = (256 << 20) - (CONNECTIONS_MAX + 1) * PIECE_BYTES;

pub(super) fn serve_streams(
    listener: &TcpListener,
    waiting: WaitMode,
    idle: Duration,
    interrupt: &Interrupt,
    served: &mut ServiceCounters,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let buffer = vec![0; PIECE_BYTES].into();
    let pause = None;
    EchoServer { listener, waiting, idle, connections: Vec::new(), buffer, pause, served }.run(interrupt)
}

struct EchoServer<'a> {
    listener: &'a TcpListener,
    waiting: WaitMode,
    idle: Duration,
    connections: Vec<EchoConnection>,
    buffer: Box<[u8]>,
    /// No connection is accepted before this time, because the machine was out of memory or descriptors.
    pause: Option<Instant>,
    served: &'a mut ServiceCounters,
}

impl EchoServer<'_> {
    fn run(&mut self, interrupt: &Interrupt) -> io::Result<()> {
        let mut moved = Instant::now();
        while !interrupt.was_interrupted() {
            let sleeps = match self.waiting {
                WaitMode::Spinning => false,
                WaitMode::Adaptive => moved.elapsed() >= SPIN,
                WaitMode::Blocking => true,
            };
            let may_accept = self.poll_sockets(sleeps)?;
            let now = Instant::now();
            if may_accept {
                self.accept(now);
            }
            if self.serve_ready_connections(now) {
                moved = now;
            }
            self.disconnect_idle(now);
        }
        Ok(())
    }

    /// Finds connections that may have something to do, possibly after a wait. Returns whether there may be a
    /// new one.
    fn poll_sockets(&mut self, sleeps: bool) -> io::Result<bool> {
        self.pause = self.pause.filter(|end| Instant::now() < *end);
        if !sleeps {
            self.connections.iter_mut().for_each(|connection| connection.is_ready = true);
            return Ok(self.pause.is_none());
        }
        let streams = self.connections.iter().map(|one| PollFd::new(&one.stream, one.poll_flags()));
        let listener = self.pause.is_none().then(|| PollFd::new(self.listener, PollFlags::IN));
        let mut descriptors: Vec<_> = streams.chain(listener).collect();
        if poll(&mut descriptors, Some(PATIENCE))? == Wakeup::Interrupted {
            return Ok(false);
        }
        let ready: Vec<bool> =
            descriptors.iter().map(|descriptor| !descriptor.revents().is_empty()).collect();
        for (connection, is_ready) in self.connections.iter_mut().zip(&ready) {
            connection.is_ready = *is_ready;
        }
        Ok(self.pause.is_none() && ready[self.connections.len()])
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPTED_MAX {
            match self.listener.accept() {
                Ok((stream, from)) => {
                    *self.served.connections.get_or_insert(0) += 1;
                    self.connections.extend(EchoConnection::new(stream, from.ip(), now).ok());
                    if self.connections.len() > CONNECTIONS_MAX {
                        self.evict_largest_user();
                    }
                }
                // If one connection fails, the next may work.
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return,
                    Some(libc::EINTR | libc::ECONNABORTED) => {}
                    Some(libc::EMFILE) if !self.connections.is_empty() => self.evict_largest_user(),
                    // The machine lacks memory or descriptors. The connection stays in the queue, and poll
                    // would return at once again.
                    _ => return self.pause = Some(now + PATIENCE),
                },
            }
        }
    }

    /// Ends a connection: in the network with the most connections, the one that was idle for longest.
    fn evict_largest_user(&mut self) {
        let first = largest_user(&self.connections, |_| 1, |connection| Reverse(connection.last_transfer));
        self.disconnect(first);
    }

    /// Reads and writes without waiting. Returns whether any byte was moved.
    fn serve_ready_connections(&mut self, now: Instant) -> bool {
        let Self { connections, buffer, served, .. } = self;
        let mut has_moved = false;
        connections.retain_mut(|connection| {
            if !std::mem::take(&mut connection.is_ready) {
                return true;
            }
            // An error of one connection ends only that one.
            let Ok(EchoCounts { read, written }) = connection.echo(buffer) else { return false };
            served.bytes += written as u64;
            if read + written > 0 {
                (has_moved, connection.last_transfer) = (true, now);
            }
            !connection.is_over()
        });
        while self.connections.iter().map(EchoConnection::pending_bytes).sum::<usize>() > KEPT_BYTES_MAX_ALL {
            let first =
                largest_user(&self.connections, EchoConnection::pending_bytes, EchoConnection::pending_bytes);
            self.disconnect(first);
        }
        has_moved
    }

    fn disconnect_idle(&mut self, now: Instant) {
        let before = self.connections.len();
        self.connections.retain(|connection| now.duration_since(connection.last_transfer) < self.idle);
        self.served.refused += (before - self.connections.len()) as u64;
    }

    fn disconnect(&mut self, connection: Option<usize>) {
        if let Some(index) = connection {
            self.connections.swap_remove(index);
            self.served.refused += 1;
        }
    }
}

/// The connection to end first: in the network with the largest share, the connection with the largest part
/// of it.
fn largest_user<P: Ord>(
    connections: &[EchoConnection],
    share: impl Fn(&EchoConnection) -> usize,
    part: impl Fn(&EchoConnection) -> P,
) -> Option<usize> {
    let mut shares = HashMap::<IpAddr, usize>::new();
    for connection in connections {
        *shares.entry(connection.network).or_default() += share(connection);
    }
    let key = |index: &usize| (shares[&connections[*index].network], part(&connections[*index]));
    (0..connections.len()).max_by_key(key)
}

struct EchoConnection {
    stream: TcpStream,
    network: IpAddr,
    pending: PendingBytes,
    is_ended: bool,
    /// Whether it may be readable or writable.
    is_ready: bool,
    /// When bytes were last received or sent.
    last_transfer: Instant,
}

struct EchoCounts {
    read: usize,
    written: usize,
}

impl EchoConnection {
    fn new(stream: TcpStream, from: IpAddr, now: Instant) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let pending = PendingBytes::default();
        Ok(Self {
            stream,
            network: network_of(from),
            pending,
            is_ended: false,
            is_ready: true,
            last_transfer: now,
        })
    }

    fn pending_bytes(&self) -> usize {
        self.pending.memory_bytes()
    }

    fn is_over(&self) -> bool {
        self.is_ended && self.pending.is_empty()
    }

    fn has_room(&self) -> bool {
        !self.is_ended && self.pending_bytes() + PIECE_BYTES <= PENDING_BYTES_MAX
    }

    fn poll_flags(&self) -> PollFlags {
        let mut wanted = PollFlags::empty();
        wanted.set(PollFlags::IN, self.has_room());
        wanted.set(PollFlags::OUT, !self.pending.is_empty());
        wanted
    }

    /// Writes kept bytes, reads once, and sends that back while there is room.
    fn echo(&mut self, buffer: &mut [u8]) -> io::Result<EchoCounts> {
        let mut written = 0;
        while let Some(first) = self.pending.first_piece() {
            let Some(more) = none_if_would_block(self.stream.write(first))? else { break };
            self.pending.discard_sent(more);
            written += more;
        }
        if !self.has_room() {
            return Ok(EchoCounts { read: 0, written });
        }
        let Some(read) = none_if_would_block(self.stream.read(buffer))? else {
            return Ok(EchoCounts { read: 0, written });
        };
        self.is_ended = read == 0;
        let mut sent = 0;
        if self.pending.is_empty() && read > 0 {
            sent = none_if_would_block(self.stream.write(&buffer[..read]))?.unwrap_or(0);
        }
        self.pending.push(&buffer[sent..read]);
        Ok(EchoCounts { read, written: written + sent })
    }
}

/// Received bytes that were not sent back yet.
#[derive(Default)]
struct PendingBytes {
    /// Pieces of at most a fixed length: all but the last are full, and none is empty.
    pieces: VecDeque<Vec<u8>>,
    /// How many bytes of the first piece were sent.
    sent: usize,
}

impl PendingBytes {
    fn memory_bytes(&self) -> usize {
        self.pieces.len() * PIECE_BYTES
    }

    fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.pieces.back_mut().filter(|last| last.len() < PIECE_BYTES) {
                Some(last) => {
                    let (fitting, rest) = bytes.split_at(bytes.len().min(PIECE_BYTES - last.len()));
                    last.extend_from_slice(fitting);
                    bytes = rest;
                }
                None => self.pieces.push_back(Vec::with_capacity(PIECE_BYTES)),
            }
        }
    }

    fn first_piece(&self) -> Option<&[u8]> {
        self.pieces.front().map(|first| &first[self.sent..])
    }

    fn discard_sent(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.pieces.front().is_some_and(|first| first.len() == self.sent) {
            (self.sent, _) = (0, self.pieces.pop_front());
        }
    }
}

fn none_if_would_block<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection from an address, with `pieces` pieces in memory, which last moved bytes at
    /// `last_transfer`.
    fn test_connection(from: &str, pieces: usize, last_transfer: Instant) -> EchoConnection {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut connection = EchoConnection::new(stream, from.parse().unwrap(), last_transfer).unwrap();
        connection.pending.push(&vec![0; pieces * PIECE_BYTES]);
        connection
    }

    #[test]
    fn the_network_that_uses_most_is_evicted_first() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let connections = [
            test_connection("10.0.0.1", 6, after(40)),
            test_connection("2001:db8:0:1::1", 4, after(81)),
            test_connection("10.0.0.2", 5, start),
            test_connection("2001:db8:0:1::2", 3, after(80)),
            test_connection("::ffff:10.0.0.1", 0, after(89)),
            test_connection("2001:db8:0:1::3", 0, after(82)),
        ];
        // The subnet has the most connections and kept bytes, although no single address of it has.
        assert_eq!(largest_user(&connections, |_| 1, |one| Reverse(one.last_transfer)), Some(3));
        assert_eq!(
            largest_user(&connections, EchoConnection::pending_bytes, EchoConnection::pending_bytes),
            Some(1)
        );
        assert_eq!(largest_user(&connections[..1], |_| 1, |one| Reverse(one.last_transfer)), Some(0));
        assert_eq!(largest_user(&[], |_| 1, |one| Reverse(one.last_transfer)), None);
    }

    #[test]
    fn an_idle_connection_is_ended() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut served = ServiceCounters::new(crate::endpoint::Scheme::Tcp, listener.local_addr().unwrap());
        let mut server = EchoServer {
            listener: &listener,
            waiting: WaitMode::Blocking,
            idle: Duration::from_secs(10),
            connections: vec![
                test_connection("10.0.0.1", 0, after(17)),
                test_connection("10.0.0.1", 5, start),
            ],
            buffer: vec![0; PIECE_BYTES].into(),
            pause: None,
            served: &mut served,
        };
        server.disconnect_idle(after(20));
        assert_eq!((server.connections.len(), server.connections[0].pending_bytes()), (1, 0));
        server.disconnect_idle(after(27));
        assert_eq!((server.connections.len(), served.refused), (0, 2));
    }

    #[test]
    fn pending_bytes_stay_in_order_and_their_memory_is_counted() {
        let (mut kept, mut next, mut expected) = (PendingBytes::default(), 0_u32, 0_u32);
        for round in 0..400 {
            let bytes: Vec<u8> = (0..(round * 37) % 5000).map(|place: u32| (next + place) as u8).collect();
            kept.push(&bytes);
            next += bytes.len() as u32;
            let held: usize = kept.pieces.iter().map(Vec::capacity).sum();
            assert_eq!(held, kept.memory_bytes());
            assert!(kept.memory_bytes() <= (next - expected) as usize + 2 * PIECE_BYTES);
            while let Some(first) = kept.first_piece().filter(|_| round % 3 == 0 || round > 390) {
                let part = first.len().div_ceil(2);
                assert!(
                    first[..part]
                        .iter()
                        .enumerate()
                        .all(|(place, byte)| *byte == (expected + place as u32) as u8)
                );
                expected += part as u32;
                kept.discard_sent(part);
            }
        }
        assert!(kept.is_empty() && next == expected);
    }
}
