//! The half that receives.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::peer_error::is_of_network;
use super::run::{Datagram, Run};
use crate::facts::evidence::{Cause, Evidence, Ledger};
use crate::memory::pool::{Buffer, Pool};
use crate::sys::option;
use crate::sys::readiness::Readiness;
use crate::sys::udp_receive::{self, Messages, RUN_BYTES_MAX};

/// The receiving half of a socket.
///
/// Datagrams of one sender that arrive together come as one [`Run`], if the kernel coalesces them (`UDP_GRO`), and are told apart in
/// place. Buffers are of at least 64 KiB for that; with smaller ones each datagram comes in its own, and what is longer is cut off
/// and [marked](Run::is_truncated).
///
/// **Waiting**: the descriptor by [`AsFd`] becomes readable; it is not the socket, and can only be waited on. As long as the sending half
/// has completions to read it is readable, too, so wait edge-triggered, or let [`receive_timeout`](Self::receive_timeout) wait: it
/// sleeps through.
#[derive(Debug)]
pub struct Receiver {
    pub(super) socket: Arc<OwnedFd>,
    readiness: Readiness,
    pool: Pool,
    messages: Messages,
    batch: usize,
    /// Buffers to receive into, as long as they can be. The last one is used first: it was used last, and is in the cache.
    free: Vec<Buffer>,
    /// What came by the last call and was not taken.
    runs: Vec<Run>,
    /// What the socket's own timeout is set to; `None` is for ever, as in a new socket.
    timeout: Option<Duration>,
    coalesces: bool,
    tally: Ledger,
    truncated: u64,
    drops: Drops,
}

/// Why nothing was received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// Datagrams wait in the kernel until there is a buffer, and are dropped and [counted](Receiver::dropped) when they are too many.
    #[error(
        "no buffer to receive into: all {total} of the pool are in use: drop or send some of what was taken, or make the pool larger"
    )]
    NoBuffers {
        /// Buffers of the pool.
        total: usize,
    },
    /// ICMP said that a datagram sent earlier did not arrive. The socket goes on, and so does what others send to it.
    #[error(
        "the network reported that something sent by this socket did not arrive ({0}): is the receiver there?"
    )]
    Reported(#[source] io::Error),
    /// The kernel refused.
    #[error("receiving failed: {0}")]
    Socket(#[source] io::Error),
}

impl From<ReceiveError> for io::Error {
    fn from(error: ReceiveError) -> Self {
        match error {
            ReceiveError::Reported(error) | ReceiveError::Socket(error) => error,
            error @ ReceiveError::NoBuffers { .. } => Self::new(io::ErrorKind::OutOfMemory, error),
        }
    }
}

impl ReceiveError {
    fn of(error: io::Error) -> Self {
        if is_of_network(&error) { Self::Reported(error) } else { Self::Socket(error) }
    }
}

/// How to wait for the first datagram.
#[derive(Clone, Copy)]
enum Patience {
    None,
    AsSet,
}

impl Receiver {
    /// How many buffers a call may fill, unless set. Runs do not care: 221 to 248 ns of processor time for each datagram of 1400 bytes
    /// with 1, 4, 8 and 16, on a busy machine. Datagrams that come alone share the call.
    pub(super) const BATCH: usize = 16;

    pub(super) fn new(socket: Arc<OwnedFd>, pool: Pool, batch: usize) -> io::Result<Self> {
        let batch = batch.clamp(1, pool.total());
        let coalesces = pool.buffer_bytes() >= RUN_BYTES_MAX && coalesce(&socket)?;
        Ok(Self {
            pool,
            messages: Messages::new(batch),
            batch,
            free: Vec::with_capacity(batch),
            runs: Vec::with_capacity(batch),
            timeout: None,
            coalesces,
            tally: Ledger::default(),
            truncated: 0,
            drops: Drops::default(),
            readiness: Readiness::to_receive(),
            socket,
        })
    }

    /// Waits for datagrams and returns those that are there, up to as many runs as a batch may have. A signal may end the wait
    /// early, with an empty batch.
    ///
    /// # Errors
    /// [`ReceiveError`].
    pub fn receive(&mut self) -> Result<Batch<'_>, ReceiveError> {
        self.set_timeout(None)?;
        self.take_batch(Patience::AsSet)
    }

    /// Like [`Receiver::receive`], but returns an empty batch when nothing came for `timeout`, rounded up to ticks of the kernel's
    /// clock (1 to 10 ms).
    ///
    /// # Errors
    /// [`ReceiveError`].
    pub fn receive_timeout(&mut self, timeout: Duration) -> Result<Batch<'_>, ReceiveError> {
        if timeout.is_zero() {
            return self.try_receive();
        }
        self.set_timeout(Some(timeout))?;
        self.take_batch(Patience::AsSet)
    }

    /// Returns what is there, possibly nothing, without waiting.
    ///
    /// # Errors
    /// [`ReceiveError`].
    #[inline]
    pub fn try_receive(&mut self) -> Result<Batch<'_>, ReceiveError> {
        self.take_batch(Patience::None)
    }

    /// The socket itself.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// What the last call received, less what was taken of it.
    #[cfg(feature = "tokio")]
    pub(super) fn last(&mut self) -> Batch<'_> {
        Batch { receiver: self }
    }

    /// The wait is the kernel's, in the receiving call. A poll before it would return at once, again and again, as long as
    /// completions of zero-copy sends wait in the error queue (`POLLERR` cannot be turned off): a sleeper in `recvmmsg` is woken by
    /// each of those, finds no datagram, and sleeps on for what is left of its time.
    fn set_timeout(&mut self, timeout: Option<Duration>) -> Result<(), ReceiveError> {
        if timeout != self.timeout {
            option::set_receive_timeout(&self.socket, timeout).map_err(ReceiveError::Socket)?;
            self.timeout = timeout;
        }
        Ok(())
    }

    fn take_batch(&mut self, patience: Patience) -> Result<Batch<'_>, ReceiveError> {
        self.refill()?;
        let buffers = self.free.iter_mut().rev().filter_map(Buffer::as_mut);
        let wait = matches!(patience, Patience::AsSet);
        let received = match self.messages.receive(self.socket.as_fd(), buffers, wait) {
            Ok(received) => received,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => 0,
            Err(error) => return Err(ReceiveError::of(error)),
        };
        for index in 0..received {
            let message = self.messages.message(index);
            let buffer = self.free.pop().expect("received into a buffer each");
            self.runs.push(Run::new(buffer, &message));
        }
        self.book();
        Ok(Batch { receiver: self })
    }

    /// Takes back the buffers of the last batch and fills up from the pool.
    fn refill(&mut self) -> Result<(), ReceiveError> {
        let capacity = self.pool.buffer_bytes();
        let left = self.runs.drain(..).rev().map(|run| {
            let mut buffer = run.into_buffer();
            buffer.resize(capacity);
            buffer
        });
        self.free.extend(left);
        while self.free.len() < self.batch {
            let Some(mut buffer) = self.pool.take() else { break };
            buffer.resize(capacity);
            self.free.push(buffer);
        }
        // Fewer than a batch are enough to go on.
        if self.free.is_empty() { Err(ReceiveError::NoBuffers { total: self.pool.total() }) } else { Ok(()) }
    }

    fn book(&mut self) {
        let (mut datagrams, mut bytes) = (0, 0);
        for run in &self.runs {
            datagrams += run.len() as u64;
            bytes += run.bytes().len() as u64;
            self.truncated += u64::from(run.is_truncated());
        }
        self.tally.add(Evidence::Copied(Cause::SocketCall), datagrams, bytes);
    }

    /// What came so far. The kernel copies every byte from its own buffers: [`Cause::SocketCall`].
    pub fn ledger(&self) -> Ledger {
        self.tally
    }

    /// Whether the kernel coalesces datagrams for this socket (`UDP_GRO`).
    pub fn coalesces(&self) -> bool {
        self.coalesces
    }

    /// Runs that did not fit into their buffer, and lost their ends: none with buffers of 64 KiB.
    pub fn truncated(&self) -> u64 {
        self.truncated
    }

    /// What the kernel has dropped at this socket since it was made, up to now.
    ///
    /// Asked of the kernel by a system call (`SO_MEMINFO`). `SO_RXQ_OVFL` would tell the same along with each datagram, but only once
    /// another one comes.
    ///
    /// # Errors
    /// The kernel's refusal; `Unsupported` before Linux 4.12.
    pub fn dropped(&mut self) -> io::Result<Dropped> {
        let packets = self.drops.until(udp_receive::dropped_packets(&self.socket)?);
        let buffer_bytes = rustix::net::sockopt::socket_recv_buffer_size(&self.socket)?;
        Ok(Dropped { packets, buffer_bytes })
    }
}

impl AsFd for Receiver {
    /// A descriptor that is readable while something can be received; nothing can be sent on it.
    ///
    /// # Panics
    /// When it is first asked for, if the process has no descriptor left.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readiness.descriptor(self.socket())
    }
}

/// Turns coalescing on if the kernel knows it (Linux 5.0); without it each datagram is a run.
fn coalesce(socket: &impl AsFd) -> io::Result<bool> {
    match udp_receive::set_coalescing(socket, true) {
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(false),
        set => set.map(|()| true),
    }
}

/// A counter of 64 bits of one that the kernel keeps in 32.
#[derive(Debug, Default)]
pub(super) struct Drops {
    total: u64,
}

impl Drops {
    pub(super) fn until(&mut self, now: u32) -> u64 {
        self.total += u64::from(now.wrapping_sub(self.total as u32));
        self.total
    }
}

/// What the kernel dropped at a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropped {
    /// Packets: a datagram each, or a whole run that was coalesced before it was dropped.
    pub packets: u64,
    /// The size of the socket's receive buffer as the kernel counts: it includes what the kernel needs beside the bytes.
    pub buffer_bytes: usize,
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} packets dropped by the kernel", self.packets)?;
        if self.packets > 0 {
            write!(
                f,
                ": the receive buffer of {} bytes was full, or a checksum wrong: receive more often, or ask for a larger receive \
                 buffer, which net.core.rmem_max ('sysctl -w net.core.rmem_max={}') limits",
                self.buffer_bytes,
                self.buffer_bytes.saturating_mul(4)
            )?;
        }
        Ok(())
    }
}

/// What one call received. Its buffers are used again by the next call, unless taken.
#[derive(Debug)]
pub struct Batch<'a> {
    receiver: &'a mut Receiver,
}

impl<'a> Batch<'a> {
    /// Each buffer with what is in it.
    pub fn runs(&self) -> &[Run] {
        &self.receiver.runs
    }

    /// All datagrams, where they lie.
    pub fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> {
        self.runs().iter().flat_map(Run::datagrams)
    }

    /// How many datagrams there are.
    pub fn len(&self) -> usize {
        self.runs().iter().map(Run::len).sum()
    }

    /// Whether nothing came.
    pub fn is_empty(&self) -> bool {
        self.runs().is_empty()
    }

    /// Their bytes.
    pub fn bytes(&self) -> usize {
        self.runs().iter().map(|run| run.bytes().len()).sum()
    }

    /// Takes the runs with their buffers. The receiver goes on with others of the pool.
    pub fn take(self) -> impl Iterator<Item = Run> + 'a {
        self.receiver.runs.drain(..)
    }
}

#[cfg(test)]
mod tests;
