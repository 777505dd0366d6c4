//! The numbers of zero-copy calls, until the kernel reports them finished.
//!
//! The kernel numbers the `MSG_ZEROCOPY` calls of a socket from 0, for all its descriptors together, and
//! reports completions in one error queue, among the errors of the network. So one sender at a time [makes
//! such calls](KernelSocket::claim_numbering), the next one continues its numbers, and only this module reads
//! the queue: a completion that another half reads is kept for that sender.
//!
//! It may number a call that fails. For example, with UDP segmentation after the MTU was lowered, the packet
//! is made, found too long, and its completion reported, although `sendmsg` returns `EINVAL`. So after any
//! failure the error queue is read before the next call, and the data of the failed call is held until it is
//! known whether it has a number.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{CallNote, Extent, Position};
use crate::sys::error_queue::{CompletionReport, ErrorQueueEntry, NetworkError, next_entry};
use crate::sys::fork::Generation;
use crate::sys::option;

const ERRORS_MAX: usize = 64;

/// The most entries read from the queue at a time, at under a microsecond each.
const READ_MAX: usize = 1024;

const BUSY: &str = "socket: cannot be shared now; the kernel has not reported yet how many MSG_ZEROCOPY calls were made on it; \
                    drain them, and try again";

const FORKED: &str = "socket: cannot be shared here; this process is a forked child, and its parent still numbers the MSG_ZEROCOPY \
                      calls; ask in the parent, before the fork";

/// A kernel socket with one or several senders, and their shared state.
#[derive(Debug)]
pub(crate) struct KernelSocket {
    descriptor: Arc<OwnedFd>,
    /// The process that reads the queue. A forked child must not read it, because its parent would miss those
    /// entries.
    generation: Generation,
    queue: Mutex<ErrorQueue>,
    /// Network errors read so far, including discarded ones.
    network_errors: AtomicU64,
}

/// Entries of the error queue that were read, but not taken by a sender.
#[derive(Debug)]
struct ErrorQueue {
    numbering: NumberingState,
    /// At most one for each call that the sender has in flight.
    completions: VecDeque<CompletionReport>,
    errors: VecDeque<NetworkError>,
}

#[derive(Debug, Clone, Copy)]
enum NumberingState {
    /// No sender makes `MSG_ZEROCOPY` calls; the next call gets this number.
    Free(u64),
    /// One sender makes the calls, or waits for their completions.
    Taken,
    /// The number of the next call is unknown: calls were made by others, or given up.
    Lost,
}

impl KernelSocket {
    /// A socket without earlier `MSG_ZEROCOPY` calls and without other descriptors.
    pub(crate) fn new(descriptor: Arc<OwnedFd>) -> Arc<Self> {
        let numbering = NumberingState::Free(0);
        let queue = ErrorQueue { numbering, completions: VecDeque::new(), errors: VecDeque::new() };
        let (queue, generation) = (Mutex::new(queue), Generation::current());
        Arc::new(Self { descriptor, generation, queue, network_errors: AtomicU64::new(0) })
    }

    /// Whether another half of this process uses the socket as well.
    pub(crate) fn is_shared(socket: &Arc<Self>) -> bool {
        Arc::strong_count(socket) > 1 || Arc::strong_count(&socket.descriptor) > 1
    }

    /// Makes the caller the only sender of `MSG_ZEROCOPY` calls, and returns the number of its first call.
    /// `None` while there is another sender, if the number is unknown, and in a forked child, because its
    /// parent may make further calls.
    pub(super) fn claim_numbering(&self) -> Option<u64> {
        let mut queue = self.lock_error_queue()?;
        let NumberingState::Free(next) = queue.numbering else { return None };
        queue.numbering = NumberingState::Taken;
        Some(next)
    }

    /// Ends the role of the only sender, which makes no more calls and waits for no completion. `next` is the
    /// number of the next call, if known.
    pub(super) fn release_numbering(&self, next: Option<u64>) {
        let Some(mut queue) = self.lock_error_queue() else { return };
        queue.numbering = next.map_or(NumberingState::Lost, NumberingState::Free);
        // They are of calls of the old sender; the next one must not get them.
        queue.completions.clear();
    }

    /// The next completion, for the sender that made the calls; `None` if there is none now.
    pub(super) fn next_completion(&self) -> Option<CompletionReport> {
        let mut queue = self.lock_error_queue()?;
        // Ends: each round takes an entry off the kernel's queue, and the first completion is enough.
        while queue.completions.is_empty() && self.read_one_entry(&mut queue) {}
        queue.completions.pop_front()
    }

    /// Reads the error queue, and returns how many network errors there were.
    pub(crate) fn read_error_queue(&self) -> u64 {
        let Some(mut queue) = self.lock_error_queue() else { return 0 };
        let before = self.network_error_count();
        // Limited, so that a flood of errors does not hold the lock that other halves wait for.
        (0..READ_MAX).take_while(|_| self.read_one_entry(&mut queue)).for_each(drop);
        self.network_error_count() - before
    }

    fn read_one_entry(&self, queue: &mut ErrorQueue) -> bool {
        let Ok(Some(entry)) = next_entry(self.as_fd()) else { return false };
        match entry {
            ErrorQueueEntry::Completion(report) => {
                if let NumberingState::Taken = queue.numbering {
                    queue.completions.push_back(report);
                }
            }
            ErrorQueueEntry::Network(error) => {
                self.network_errors.fetch_add(1, Relaxed); // a count alone: it is of no other memory
                if queue.errors.len() == ERRORS_MAX {
                    queue.errors.pop_front();
                }
                queue.errors.push_back(error);
            }
        }
        true
    }

    /// Network errors read so far.
    #[inline]
    pub(crate) fn network_error_count(&self) -> u64 {
        self.network_errors.load(Relaxed)
    }

    /// The latest network errors that were not taken yet, oldest first.
    pub(crate) fn take_errors(&self) -> VecDeque<NetworkError> {
        self.lock_error_queue().map(|mut queue| std::mem::take(&mut queue.errors)).unwrap_or_default()
    }

    /// `None` in a forked child, which must not lock: a thread of its parent may have held the lock at the
    /// fork.
    fn lock_error_queue(&self) -> Option<MutexGuard<'_, ErrorQueue>> {
        // Poisoning does not matter: no code that may panic leaves it half changed.
        (!self.generation.is_outdated()).then(|| self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl AsFd for KernelSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// The kernel's report of a finished call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallReport {
    pub(crate) copied: bool,
    /// Whether this is the first call of the kernel's report, which may cover several.
    pub(crate) is_first: bool,
}

/// A call that the kernel has accepted and not completed.
#[derive(Debug)]
pub(super) struct OpenCall<C> {
    /// The bytes that it took.
    pub(super) extent: Extent,
    pub(super) note: C,
}

/// A finished call, whose entries are held until it is [settled](super::SendQueue::settle).
#[derive(Debug)]
#[must_use = "its memory is never free"]
pub(crate) struct Completion<C> {
    pub(super) call: OpenCall<C>,
    /// Error: the ring refused the call, which sent nothing.
    pub(crate) outcome: io::Result<CallReport>,
    /// The number of its queue.
    pub(super) queue: u64,
}

impl<C: CallNote> Completion<C> {
    pub(crate) fn note(&self) -> C {
        self.call.note
    }

    /// Bytes that the call took.
    pub(crate) fn bytes(&self) -> usize {
        self.call.extent.bytes
    }

    pub(crate) fn start(&self) -> Position {
        self.call.extent.start
    }
}

/// Why a sender makes no MSG_ZEROCOPY calls.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.why())]
pub(crate) enum NoZeroCopyReason {
    /// Another sender makes them, or gave up calls that the kernel has not completed.
    Taken,
    /// There may be other descriptors of the socket, through which such calls may be made.
    Shared,
    /// Such calls were made before the socket was handed over, so their number is not known.
    #[cfg(feature = "tcp")]
    Used,
    Kernel(#[source] io::Error),
}

impl NoZeroCopyReason {
    pub(crate) fn why(&self) -> &'static str {
        match self {
            Self::Taken => {
                "another sender makes the MSG_ZEROCOPY calls of this socket, which the kernel numbers together; use io_uring, or one sender"
            }
            Self::Shared => {
                "the program may have other descriptors of this socket, and the kernel numbers the MSG_ZEROCOPY calls of all together; use \
                 io_uring, or a socket that was made here"
            }
            #[cfg(feature = "tcp")]
            Self::Used => {
                "the socket was used for zero-copy sends before it was handed over (SO_ZEROCOPY is set); hand it over unused"
            }
            Self::Kernel(_) => {
                "the kernel refuses SO_ZEROCOPY; use Linux 4.14 or newer for TCP sockets, 5.0 for UDP sockets"
            }
        }
    }
}

/// The MSG_ZEROCOPY calls of one sender.
#[derive(Debug)]
pub(super) struct NumberedCalls<C> {
    /// Calls without a report.
    pub(super) calls: CallTable<OpenCall<C>>,
    role: NumberingRole,
    /// No other call is made until it is resolved.
    pub(super) uncertain: Option<UncertainCall<C>>,
}

/// Whether this sender makes the calls of its socket. All such calls on a socket share one numbering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NumberingRole {
    /// This sender makes none.
    NotOurs,
    /// Only this sender makes them. Before the first call, the kernel kept `idle_bytes` for the socket in
    /// addition to its data: options, and later each such call until its completion was read (`sock_omalloc`
    /// of net/core/sock.c). `None` if the kernel does not report it (Linux 4.12 does).
    Ours { idle_bytes: Option<u32> },
    /// This sender made them and waits for the last completions. Other senders may make such calls now.
    Draining,
}

/// A MSG_ZEROCOPY call of datagrams failed. The kernel has numbered it if it made the packet before it found
/// that it cannot send it.
///
/// Usually its completion is reported before the call returns. But parts of the packet may still be in
/// flight, and read their memory: the first fragments of a long datagram, a copy for local receivers of a
/// multicast group. Then nothing is reported yet, and mistaking the next call's number for this one's would
/// free memory that the kernel reads. So a second call that fails deliberately (a *probe*) follows: its
/// reported number shows whether the first was numbered. Until that is known the memory is held, even if the
/// kernel had no memory for the second call.
#[derive(Debug)]
pub(super) struct UncertainCall<C> {
    /// Recorded as if it had sent nothing.
    failed: OpenCall<C>,
    /// Whether the next number, and the one after it, were reported.
    reported: [bool; 2],
    /// The probe failed with the same error, in the route look-up: neither call made a packet.
    pub(super) is_uncounted: bool,
    /// The probe was repeated, and not reported.
    pub(super) is_tried: bool,
}

impl<C: CallNote> NumberedCalls<C> {
    pub(super) fn without_calls() -> Self {
        Self { calls: CallTable::starting_at(0), role: NumberingRole::NotOurs, uncertain: None }
    }

    /// Makes this sender the one that makes MSG_ZEROCOPY calls on the socket; called before the first.
    pub(super) fn become_zero_copy_sender(&mut self, socket: &KernelSocket) -> Result<(), NoZeroCopyReason> {
        match self.role {
            NumberingRole::Ours { .. } => return Ok(()),
            NumberingRole::Draining => return Err(NoZeroCopyReason::Shared),
            NumberingRole::NotOurs => {}
        }
        // Before the claim: if the kernel refuses, the numbers stay free for another sender.
        option::allow_zero_copy(socket).map_err(NoZeroCopyReason::Kernel)?;
        let first = socket.claim_numbering().ok_or(NoZeroCopyReason::Taken)?;
        self.role = NumberingRole::Ours { idle_bytes: option::option_memory_bytes(socket).ok() };
        // No call is lost: without the role none was made.
        self.calls = CallTable::starting_at(first);
        Ok(())
    }

    /// Lets others make such calls on the socket; this sender makes no more.
    pub(super) fn share_socket(&mut self, socket: &KernelSocket, is_inherited: bool) -> io::Result<()> {
        match self.role {
            NumberingRole::Draining => return Ok(()),
            _ if is_inherited => return Err(io::Error::new(io::ErrorKind::Unsupported, FORKED)),
            NumberingRole::Ours { .. } if self.uncertain.is_none() => {}
            NumberingRole::NotOurs if socket.claim_numbering().is_some() => {}
            NumberingRole::Ours { .. } | NumberingRole::NotOurs => {
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, BUSY));
            }
        }
        self.role = NumberingRole::Draining;
        Ok(())
    }

    /// Whether this sender makes such calls.
    pub(super) fn is_zero_copy_sender(&self) -> bool {
        matches!(self.role, NumberingRole::Ours { .. })
    }

    /// Records a call that failed: `failed` has no bytes.
    pub(super) fn push_uncertain(&mut self, failed: OpenCall<C>) -> &mut UncertainCall<C> {
        let call = UncertainCall { failed, reported: [false; 2], is_uncounted: false, is_tried: false };
        self.uncertain.insert(call)
    }

    /// The next report of such calls; also reads the other entries of the error queue.
    pub(super) fn next_report(&self, socket: &KernelSocket) -> Option<CompletionReport> {
        if self.role == NumberingRole::NotOurs {
            socket.read_error_queue();
            return None;
        }
        socket.next_completion()
    }

    /// Moves the calls of a report to those that are finished. Returns how many of its numbers were of calls
    /// that were never made, or already finished.
    pub(super) fn finish_reported_calls(
        &mut self,
        report: CompletionReport,
        finished: &mut VecDeque<(OpenCall<C>, io::Result<CallReport>)>,
    ) -> u64 {
        let first = self.calls.full_number(report.first);
        let named = first..first + i64::from(report.last.wrapping_sub(report.first)) + 1;
        let mut expected = 0;
        // `clamp_to_table` cuts the range to the table, so a report of 2^32 numbers costs no more rounds than
        // there are calls.
        for number in self.calls.clamp_to_table(&named) {
            let Some(call) = self.calls.take(number) else { continue };
            finished.push_back((call, Ok(CallReport { copied: report.copied, is_first: expected == 0 })));
            expected += 1;
        }
        if let Some(uncertain) = &mut self.uncertain {
            let next = self.calls.next_number().cast_signed();
            // The two numbers after the recorded calls belong to the failed call and its probe.
            for (number, reported) in (next..).zip(&mut uncertain.reported) {
                if named.contains(&number) && !std::mem::replace(reported, true) {
                    expected += 1;
                }
            }
        }
        // Not negative: each expected number lies in the range and is counted once.
        let unknown = (named.end - named.start - expected).cast_unsigned();
        // The calls of other senders are reported here, too.
        if self.role == NumberingRole::Draining { 0 } else { unknown }
    }

    /// Whether there is an uncertain call, and the kernel has no open calls: it reads no memory, and all
    /// completions were read. Call it before completions are read, for
    /// [`resolve_uncertain`](Self::resolve_uncertain), because another half may read some at the same time.
    pub(super) fn kernel_holds_no_call(&self, socket: &KernelSocket) -> bool {
        let NumberingRole::Ours { idle_bytes: Some(idle) } = self.role else { return false };
        self.uncertain.is_some() && option::option_memory_bytes(socket).is_ok_and(|bytes| bytes <= idle)
    }

    /// Finds out from the reports whether the failed call was numbered, if they suffice. Returns the call if
    /// nothing reads its memory. `was_quiet`: before the reports were read, the kernel held no call.
    pub(super) fn resolve_uncertain(&mut self, was_quiet: bool) -> Option<OpenCall<C>> {
        // Without a report, the kernel may have had too little memory for the probe: then nothing is known.
        let UncertainCall { failed, reported, .. } =
            self.uncertain.take_if(|call| call.reported != [false; 2] || call.is_uncounted || was_quiet)?;
        // Each number that was reported is skipped or pushed; otherwise all later numbers would be off.
        match reported {
            [false, false] => {}
            // Either call has the number; the other has none.
            [true, false] => self.calls.skip_number(),
            [true, true] => (0..2).for_each(|_| self.calls.skip_number()),
            // It has the first number, and is still read; the probe has the second.
            [false, true] => {
                self.calls.push(failed);
                self.calls.skip_number();
                return None;
            }
        }
        Some(failed)
    }

    /// The end of the sender: others may make such calls, if their number is known.
    pub(super) fn release_numbering(&self, socket: &KernelSocket) {
        if self.role != NumberingRole::NotOurs {
            let is_known =
                self.is_zero_copy_sender() && self.calls.open_count() == 0 && self.uncertain.is_none();
            socket.release_numbering(is_known.then(|| self.calls.next_number()));
        }
    }
}

/// Calls by number, as both sides count them. Completions may come in any order, and for several calls at
/// once.
#[derive(Debug)]
pub(super) struct CallTable<C> {
    first: u64,
    calls: VecDeque<Option<C>>,
    open: usize,
}

impl<C> CallTable<C> {
    /// No calls; the first gets the number `first`.
    pub(super) fn starting_at(first: u64) -> Self {
        Self { first, calls: VecDeque::new(), open: 0 }
    }

    pub(super) fn push(&mut self, call: C) -> u64 {
        self.calls.push_back(Some(call));
        self.open += 1;
        self.first + self.calls.len() as u64 - 1
    }

    /// Takes call `number`; `None` if there is none, or it is finished already, because the kernel's number
    /// is not trusted.
    pub(super) fn take(&mut self, number: u64) -> Option<C> {
        let place = number.checked_sub(self.first)?;
        let call = self.calls.get_mut(usize::try_from(place).ok()?)?.take()?;
        self.open -= 1;
        self.forget_front();
        Some(call)
    }

    /// Skips a number that the kernel gave to a finished call.
    fn skip_number(&mut self) {
        self.calls.push_back(None);
        self.forget_front();
    }

    fn forget_front(&mut self) {
        while let Some(None) = self.calls.front() {
            self.calls.pop_front();
            self.first += 1;
        }
    }

    /// The full number for the kernel's 32-bit `low`: the one nearest to the open calls, possibly below them.
    fn full_number(&self, low: u32) -> i64 {
        // Right as long as fewer than 2^31 calls are open.
        let away = low.wrapping_sub(self.first as u32).cast_signed();
        self.first.cast_signed() + i64::from(away)
    }

    /// The part of a range that may be open.
    fn clamp_to_table(&self, range: &Range<i64>) -> Range<u64> {
        // Negative numbers are before all calls. Both ends are clamped to the table, so the result may be
        // empty.
        let within = |number: i64| u64::try_from(number).unwrap_or(0).clamp(self.first, self.next_number());
        within(range.start)..within(range.end)
    }

    /// How many are not finished.
    pub(super) fn open_count(&self) -> usize {
        self.open
    }

    /// The number after the last call.
    pub(super) fn next_number(&self) -> u64 {
        self.first + self.calls.len() as u64
    }
}

#[cfg(test)]
mod tests;
