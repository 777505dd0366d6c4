//! The half that receives through the kernel's socket.

#[cfg(feature = "message")]
mod in_place;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[cfg(feature = "message")]
use in_place::ArrivalPattern;
#[cfg(feature = "message")]
pub(crate) use in_place::{ArrivedInPlace, RunInPlace};
use rustix::event::PollFlags;

#[cfg(feature = "futures")]
use super::batch::OwnedDatagram;
use super::batch::{Batch, BatchCursor};
use super::drops::{DropCounter, sk_drops_counter};
use super::peer_error::{PENDING_ERRORS_MAX, is_network_error};
use super::run::Run;
use crate::counter::counters;
use crate::engine::wait::{self, Wait, WaitSource, WakeupCoalescer};
use crate::events::{self, Half};
use crate::facts::evidence::{Cause, Evidence, Ledger};
use crate::facts::features;
use crate::facts::method_explanation::Explanation;
use crate::memory::pool::{Buffer, Pool};
use crate::memory::receive_buffers::ReceiveBuffers;
use crate::memory::send_queue::KernelSocket;
use crate::stats::Stats;
use crate::sys::option;
use crate::sys::poll::{Wakeup, ready_events, wait_readable};
use crate::sys::readiness::Readiness;
use crate::sys::udp_receive::{self, Diversion, RUN_BYTES_MAX};

/// Receives by `recvmmsg`, several datagrams per call, coalesced by the kernel.
#[derive(Debug)]
pub(crate) struct Receiver {
    socket: Arc<OwnedFd>,
    /// A second socket with its address, which is connected to one peer.
    connected: Option<OwnedFd>,
    /// Stores the network's errors for the sending half; `None` without a sending half.
    errors: Option<Arc<KernelSocket>>,
    readiness: Readiness,
    pool: Pool,
    /// Whether the kernel coalesces datagrams of one sender into runs.
    coalesces: bool,
    free: ReceiveBuffers,
    #[cfg(feature = "message")]
    pattern: ArrivalPattern,
    /// Runs of the last call that were not taken.
    runs: Vec<Run>,
    /// Parts of them were received elsewhere.
    has_diverted: bool,
    given: BatchCursor,
    /// The present timeout of the socket; `None` is for ever, as in a new socket.
    timeout: Option<Duration>,
    wait: Wait,
    coalescer: WakeupCoalescer,
    ledger: Ledger,
    counters: ReceiveCounters,
    drops: DropCounter,
}

/// Where to receive rows, if not into the buffers.
pub(in crate::udp) type RowTarget<'a, 'rows> = Option<&'a mut Diversion<'rows>>;

counters! {
    pub(crate) struct ReceiveCounters {
        /// Runs of datagrams that were longer than their buffer and were truncated; never with buffers of 64
        /// KiB.
        truncated,
        /// Calls for which the pool had no free buffer; the datagrams waited in the kernel.
        no_buffers,
        /// Filled buffers: coalesced datagrams share one.
        runs,
    }
}

#[derive(Debug, thiserror::Error)]
#[error(
    "receive: no buffer; all {total} of the pool are in use; drop or send some of the datagrams that were taken, or make the \
     pool larger"
)]
struct NoBuffersError {
    total: usize,
}

impl Receiver {
    /// How many buffers a call may fill by default. Coalesced (GRO) datagrams cost the same with any number:
    /// 221 to 248 ns of processor time per datagram of 1400 bytes with 1, 4, 8 and 16, on a busy machine.
    /// Uncoalesced ones share the cost of one call.
    pub(super) const BATCH: usize = 16;

    pub(super) fn new(socket: Arc<OwnedFd>, pool: Pool, batch: usize) -> io::Result<Self> {
        let batch = batch.clamp(1, pool.total());
        let coalesces = pool.buffer_bytes() >= RUN_BYTES_MAX && enable_coalescing(&socket)?;
        Ok(Self {
            pool,
            errors: None,
            coalesces,
            free: ReceiveBuffers::new(batch),
            #[cfg(feature = "message")]
            pattern: ArrivalPattern::default(),
            runs: Vec::with_capacity(batch),
            has_diverted: false,
            given: BatchCursor::ALL,
            timeout: None,
            wait: Wait::Interrupt,
            coalescer: WakeupCoalescer::default(),
            ledger: Ledger::default(),
            counters: ReceiveCounters::default(),
            drops: DropCounter::default(),
            readiness: Readiness::for_receiving(),
            socket,
            connected: None,
        })
    }

    /// Keeps errors of the network for the half that sends.
    pub(super) fn store_errors_for_sender(&mut self, socket: Arc<KernelSocket>) {
        self.errors = Some(socket);
    }

    pub(super) fn set_wait(&mut self, wait: Wait) {
        self.wait = wait;
    }

    /// Waits for datagrams and returns those that have arrived, in at most a batch of runs. The batch is
    /// empty if nothing arrives for `timeout`, rounded up to ticks of the kernel's clock (1 to 10 ms) if the
    /// kernel waits.
    pub(super) fn receive_within(&mut self, timeout: Option<Duration>) -> io::Result<Batch<'_>> {
        self.wait_for_runs(timeout, None)?;
        Ok(self.batch_of_runs())
    }

    /// Replaces the runs by those that are waiting, without waiting.
    pub(in crate::udp) fn receive_runs_now(&mut self, into: RowTarget<'_, '_>) -> io::Result<()> {
        self.receive_batch(false, into)
    }

    /// The runs of the last call.
    #[inline]
    pub(in crate::udp) fn runs(&self) -> &[Run] {
        &self.runs
    }

    pub(in crate::udp) fn runs_mut(&mut self) -> &mut [Run] {
        &mut self.runs
    }

    /// Whether the last call diverted rows, if there were so many datagrams.
    pub(in crate::udp) fn has_diverted(&self) -> bool {
        self.has_diverted
    }

    /// How much of the last call's datagrams was returned. The rest is not returned any more.
    pub(in crate::udp) fn take_cursor(&mut self) -> BatchCursor {
        std::mem::replace(&mut self.given, BatchCursor::ALL)
    }

    /// How much of the last call's datagrams was returned; the rest [remains](Self::remaining).
    pub(in crate::udp) fn set_cursor(&mut self, given: BatchCursor) {
        self.given = given;
    }

    /// What was not returned of the last call's datagrams.
    pub(in crate::udp) fn remaining(&mut self) -> Option<Batch<'_>> {
        self.has_remaining().then(|| self.batch_of_runs())
    }

    /// How many runs a call may receive.
    pub(in crate::udp) fn batch(&self) -> usize {
        self.free.count_max()
    }

    /// The longest datagram that is not truncated.
    pub(in crate::udp) fn buffer_bytes(&self) -> usize {
        self.pool.buffer_bytes()
    }

    /// Returns waiting datagrams, possibly none, without waiting.
    #[inline]
    pub(super) fn try_receive(&mut self) -> io::Result<Batch<'_>> {
        if !self.has_remaining() {
            self.receive_batch(false, None)?;
        }
        Ok(self.batch_of_runs())
    }

    /// Returns the next waiting datagram, taken, without waiting.
    #[cfg(feature = "futures")]
    #[inline]
    pub(super) fn try_take(&mut self) -> Option<io::Result<OwnedDatagram>> {
        if self.given.runs >= self.runs.len() {
            if let Err(error) = self.receive_batch(false, None) {
                return Some(Err(error));
            }
            self.given = BatchCursor::NOTHING;
        }
        self.given.take_next(&mut self.runs).map(Ok)
    }

    /// The runs as a batch of datagrams. Datagrams that are not read are in the next batch.
    #[inline]
    fn batch_of_runs(&mut self) -> Batch<'_> {
        // After a call it is `ALL`. After `has_remaining`, only `datagrams` counts: those given of the first
        // run.
        if self.given.runs > 0 {
            self.given = BatchCursor::NOTHING;
        }
        Batch::from_runs(&mut self.runs, &mut self.given)
    }

    /// Whether datagrams of the last batch are left, which then form the next batch.
    #[inline]
    fn has_remaining(&mut self) -> bool {
        if self.given.runs >= self.runs.len() {
            return false;
        }
        self.reclaim_runs(self.given.runs);
        self.given.runs = 0;
        true
    }

    pub(in crate::udp) fn wait_for_runs(
        &mut self,
        timeout: Option<Duration>,
        into: RowTarget<'_, '_>,
    ) -> io::Result<()> {
        if self.has_remaining() {
            return Ok(());
        }
        match self.wait {
            Wait::Interrupt => self.wait_in_call(timeout, into),
            how => self.spin_or_wait(how, timeout, into),
        }
    }

    /// Waits inside the receiving call. poll(2) would return at once, again and again, while completions of
    /// zero-copy sends wait in the error queue (`POLLERR` cannot be turned off). They also wake a thread that
    /// sleeps in `recvmmsg`, but the kernel finds no datagram there, and lets the thread sleep for the rest
    /// of its time.
    fn wait_in_call(&mut self, timeout: Option<Duration>, into: RowTarget<'_, '_>) -> io::Result<()> {
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return self.receive_batch(false, into);
        }
        if timeout != self.timeout {
            option::set_receive_timeout(&self.socket, timeout)?;
            self.timeout = timeout;
        }
        self.receive_batch(true, into)
    }

    /// Spins by non-blocking calls; then lets the kernel wait if `how` allows it.
    #[cold]
    fn spin_or_wait(
        &mut self,
        how: Wait,
        timeout: Option<Duration>,
        mut into: RowTarget<'_, '_>,
    ) -> io::Result<()> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let (how, until, sleeps) = match how {
            Wait::Adaptive { spin } => {
                let limit = Instant::now().checked_add(spin);
                (Wait::Spin, [limit, deadline].into_iter().flatten().min(), true)
            }
            how => (how, deadline, false),
        };
        let mut poll = SocketPoll { receiver: self, into: into.as_deref_mut(), failed: None };
        wait::wait(&mut poll, how, until)?;
        if let Some(error) = poll.failed {
            return Err(error);
        }
        if !sleeps || !self.runs.is_empty() {
            return Ok(());
        }
        self.wait_in_call(deadline.map(|end| end.saturating_duration_since(Instant::now())), into)
    }

    /// Whether a datagram is waiting. Errors do not count: the sending half takes them.
    pub(super) fn arm(&self) -> io::Result<bool> {
        let is_left = self.given.runs < self.runs.len();
        Ok(is_left || ready_events(self.socket(), PollFlags::IN)?.contains(PollFlags::IN))
    }

    /// Makes the descriptor of [`AsFd`]. Errors: no descriptor is left.
    #[cfg(feature = "tokio")]
    pub(super) fn open_descriptor(&self) -> io::Result<()> {
        self.readiness.open(self.socket(), [])
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn receive_batch(&mut self, wait: bool, into: RowTarget<'_, '_>) -> io::Result<()> {
        self.given = BatchCursor::ALL;
        self.refill()?;
        self.has_diverted = into.is_some();
        let received = match into {
            None => self.free.receive(self.socket.as_fd(), wait),
            Some(diversion) => self.free.receive_diverted(self.socket.as_fd(), wait, diversion),
        };
        let received = received.or_else(|error| self.retry_after_error(error, false))?;
        self.take_runs(received);
        Ok(())
    }

    #[cold]
    fn retry_after_error(&mut self, mut error: io::Error, from_connected: bool) -> io::Result<usize> {
        self.has_diverted = false;
        for _ in 0..PENDING_ERRORS_MAX {
            match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => return Ok(0),
                // It concerns a datagram sent earlier; the socket still works.
                _ if is_network_error(&error) => {
                    self.errors.iter().for_each(|socket| {
                        socket.read_error_queue();
                    });
                }
                _ => return Err(error),
            }
            let socket = self.connected.as_ref().filter(|_| from_connected).unwrap_or(&self.socket);
            error = match self.free.receive(socket.as_fd(), false) {
                Ok(received) => return Ok(received),
                Err(error) => error,
            };
        }
        Ok(0)
    }

    #[inline]
    fn take_runs(&mut self, received: usize) {
        let (mut datagrams, mut bytes) = (0, 0);
        for index in 0..received {
            let message = self.free.message(index);
            let buffer = self.free.pop().expect("received into a buffer each");
            let run = Run::new(buffer, &message);
            datagrams += if run.is_single() { 1 } else { run.len() as u64 };
            bytes += message.bytes as u64;
            self.counters.truncated += u64::from(message.truncated);
            self.runs.push(run);
        }
        self.counters.runs += received as u64;
        let evidence = Evidence::Copied(Cause::SocketCall);
        events::add_to_ledger(&mut self.ledger, Half::UdpReceiver, evidence, datagrams, bytes);
    }

    pub(in crate::udp) fn explain(&self) -> Explanation {
        let evidence = Evidence::Copied(Cause::SocketCall);
        let runs = match self.coalesces {
            true => "datagrams of one sender that arrive together share a buffer (UDP_GRO)".to_owned(),
            false => format!(
                "each datagram in a buffer of its own: these are shorter than 64 KiB, or the kernel is older than Linux {}",
                features::UDP_COALESCING.kernel
            ),
        };
        let compared = "compared with nothing, since the socket was opened without a port";
        Explanation::from_choice(
            &format_args!("UDP socket, {evidence}; {compared}\n  runs     {runs}"),
            evidence,
        )
    }

    /// Takes back the buffers of the last batch and takes more from the pool.
    fn refill(&mut self) -> io::Result<()> {
        self.reclaim_runs(self.runs.len());
        while !self.free.is_full()
            && let Some(buffer) = self.pool.take()
        {
            self.free.push(buffer);
        }
        // Fewer than a batch are enough.
        if self.free.is_empty() {
            self.counters.no_buffers += 1;
            let none = NoBuffersError { total: self.pool.total() };
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, none));
        }
        Ok(())
    }

    #[inline]
    fn reclaim_runs(&mut self, runs: usize) {
        for run in self.runs.drain(..runs).rev() {
            if let Some(buffer) = run.into_buffer() {
                self.free.push(buffer);
            }
        }
    }

    pub(super) fn recycle(&mut self, buffer: Buffer) {
        if self.pool.owns(&buffer)
            && let Ok(buffer) = buffer.try_into_mut()
        {
            self.free.push(buffer);
        }
    }

    /// The evidence so far. The kernel copies every byte from its own buffers: [`Cause::SocketCall`].
    pub(crate) fn ledger(&self) -> Ledger {
        self.ledger
    }

    pub(super) fn stats(&self) -> Stats {
        let dropped = self.drops.read_total(&self.socket).ok().map(sk_drops_counter);
        let stats = Stats::with_moved(self.ledger.datagrams(), self.ledger.bytes());
        stats.with_dropped(dropped).with_counters(self.counters.counters())
    }
}

impl AsFd for Receiver {
    /// A descriptor that is readable while something can be received; nothing can be sent on it.
    /// Panics at the first call, if the process has no descriptor left.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readiness.descriptor(self.socket())
    }
}

/// Polls for datagrams by non-blocking calls. The receiver holds the datagrams of the last call.
struct SocketPoll<'a, 'rows> {
    receiver: &'a mut Receiver,
    into: RowTarget<'a, 'rows>,
    failed: Option<io::Error>,
}

impl WaitSource for SocketPoll<'_, '_> {
    /// Compared with a system call, a clock read costs nothing.
    fn polls_per_clock_read(&self) -> u32 {
        1
    }

    fn is_ready(&mut self) -> bool {
        self.failed = self.receiver.receive_batch(false, self.into.as_deref_mut()).err();
        self.failed.is_some() || !self.receiver.runs.is_empty()
    }

    fn arm(&mut self) -> io::Result<bool> {
        Ok(false)
    }

    fn refill_and_wake(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn wait_readable(&mut self, timeout: Duration) -> io::Result<Wakeup> {
        wait_readable(self.receiver.socket(), timeout)
    }

    /// The kernel drops by bytes, so no number of datagrams limits the sleep.
    fn read_count_and_room(&self) -> (u32, u32) {
        (self.receiver.ledger.datagrams() as u32, u32::MAX)
    }

    fn coalescer(&mut self) -> &mut WakeupCoalescer {
        &mut self.receiver.coalescer
    }
}

/// Turns coalescing on, and returns whether the kernel supports it ([`features::UDP_COALESCING`]); without it
/// each datagram is a run.
fn enable_coalescing(socket: &impl AsFd) -> io::Result<bool> {
    match udp_receive::set_coalescing(socket, true) {
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(false),
        set => set.map(|()| true),
    }
}

#[cfg(test)]
mod tests;
