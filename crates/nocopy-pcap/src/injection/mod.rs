//! Packets out: `pcap_inject` and `pcap_sendpacket`.
//!
//! libpcap sends each frame by one call of a packet socket, and so does this module, as long as a program
//! sends few. Then errors, local captures and traffic control are the same as with libpcap, because frames
//! take the same path through the kernel. For a program that sends frames as fast as it can, they are sent in
//! [`batches`]: by an AF_XDP socket in copy mode, 32 per system call. Batches bypass the queueing discipline
//! ([`discipline`]) and are not seen by packet sockets, so they are used only on interfaces without local
//! captures ([`local_captures`]); this is checked ten times a second.
//!
//! The kernel's error for a frame in a batch arrives too late for the call that sent it. The error is
//! *pending*: for each frame that was reported as sent but failed, a later call fails with that error. That
//! call's own frame is not sent, so that a repeated call sends it once. Errors that could not be reported are
//! in [`Injector::summary`].
//!
//! [`flusher`]: a thread that exists while there are batches, so that no frame waits for others longer than a
//! millisecond. [`process`]: exits and forks of the program.

mod batches;
mod discipline;
mod flusher;
mod interface;
mod local_captures;
mod lock;
mod process;
mod single;

use std::cell::Cell;
use std::ffi::CString;
use std::fmt::Write as _;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nocopy::port::Sender;
use rustix::fs::fstat;

use crate::packet_socket;
use batches::{QueueResult, XdpBatchSender};
use interface::Interface;
use lock::{ForkSafeLock, LockGuard};
pub(crate) use single::{SendResult, SingleSend};

/// A program sends fast if it sends this many frames within this time: 20,000 a second.
const MANY: u32 = 64;
const MANY_WITHIN: Duration = Duration::from_micros(3200);

/// How long to wait before an AF_XDP socket that was refused is tried again, and before an interface is
/// checked again.
const REFUSED_FOR: Duration = Duration::from_secs(1);
const RECHECK_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) struct Injector {
    /// The interface, by its number in the namespace of `socket`.
    index: u32,
    /// The capture's own packet socket, or a new one: a capture does not see what is sent by its own socket.
    socket: OwnedFd,
    inode: u64,
    /// Frames sent by `socket`, one by one.
    singly: AtomicU64,
    state: ForkSafeLock<InjectorState>,
    /// Whether the last wait for the state's lock failed. If a program left a call by siglongjmp(3), the lock
    /// is never released.
    is_stuck: AtomicBool,
}

struct InjectorState {
    method: SendMethod,
    /// Distinguishes the flusher of these batches from earlier ones.
    epoch: u64,
    /// Frames since `window`.
    recent: u32,
    window: Instant,
    /// No batches are begun before this time.
    not_before: Instant,
    /// Why batches are not used.
    refusal: Option<String>,
    pending_errors: PendingErrors,
    batched: u64,
    /// How often batches began.
    batch_starts: u64,
}

enum SendMethod {
    /// Frames are sent by the packet socket.
    Singly,
    Batches(Box<XdpBatchSender>),
}

/// Frames reported as sent that were not, by the error to report.
#[derive(Debug, Default)]
struct PendingErrors {
    frames: Vec<(i32, u64)>,
    lost: u64,
}

impl PendingErrors {
    fn record_error(&mut self, errno: i32, frames: u64) {
        if frames == 0 {
            return;
        }
        self.lost += frames;
        match self.frames.last_mut() {
            Some((last, count)) if *last == errno => *count += frames,
            _ => self.frames.push((errno, frames)),
        }
    }

    /// Fails if there is an error to report.
    #[inline]
    fn fail_if_pending(&mut self) -> io::Result<()> {
        if self.frames.is_empty() { Ok(()) } else { Err(self.take_first_error()) }
    }

    #[cold]
    fn take_first_error(&mut self) -> io::Error {
        // `fail_if_pending` has seen that there is one, and `add` adds no counts of 0.
        let (errno, count) = &mut self.frames[0];
        let error = io::Error::from_raw_os_error(*errno);
        *count -= 1;
        if *count == 0 {
            self.frames.remove(0);
        }
        error
    }

    fn unreported_frames(&self) -> u64 {
        self.frames.iter().map(|(_, count)| count).sum()
    }
}

thread_local! {
    /// Whether this thread is sending: a signal handler that sends, too, must not wait for the interrupted
    /// call.
    static SENDING: Cell<bool> = const { Cell::new(false) };
}

struct SendingGuard;

impl SendingGuard {
    #[inline]
    fn try_begin() -> Option<Self> {
        (!SENDING.replace(true)).then(|| Self)
    }
}

impl Drop for SendingGuard {
    #[inline]
    fn drop(&mut self) {
        SENDING.set(false);
    }
}

impl Injector {
    /// For an interface; `capture` is the packet socket of the capture, if there is one, which does not
    /// receive what is sent on it.
    pub(crate) fn open(name: &str, capture: Option<BorrowedFd<'_>>) -> io::Result<Arc<Self>> {
        let socket = match capture {
            Some(capture) => capture.try_clone_to_owned()?,
            None => packet_socket::open(&CString::new(name)?, 0)?,
        };
        let index = packet_socket::bound_interface_index(socket.as_fd())?.cast_unsigned();
        let inode = fstat(&socket)?.st_ino;
        let now = Instant::now();
        let state = InjectorState {
            method: SendMethod::Singly,
            epoch: 0,
            recent: 0,
            window: now,
            not_before: now,
            refusal: None,
            pending_errors: PendingErrors::default(),
            batched: 0,
            batch_starts: 0,
        };
        let singly = AtomicU64::new(0);
        let (state, is_stuck) = (ForkSafeLock::new(state), AtomicBool::new(false));
        let injector = Arc::new(Self { index, socket, inode, singly, state, is_stuck });
        process::register_injector(&injector)?;
        Ok(injector)
    }

    /// Sends a frame within about a millisecond, or returns how to send it alone, without the lock: that may
    /// wait. Errors: the kernel's, for this frame, or for an earlier one that was reported as sent. On an
    /// error this frame is not sent.
    #[inline]
    pub(crate) fn inject(
        self: &Arc<Self>,
        frame: &[u8],
        nonblocking: bool,
    ) -> io::Result<Option<SingleSend>> {
        let single = Some(SingleSend { socket: self.socket.as_raw_fd(), nonblocking });
        let Some((_sending, mut state)) = self.begin_call() else { return Ok(single) };
        state.pending_errors.fail_if_pending()?;
        if let SendMethod::Batches(batches) = &mut state.method {
            match batches.queue_frame(frame, nonblocking) {
                Ok(QueueResult::Queued) => return Ok(None),
                Ok(QueueResult::Full) => return self.flush_full_batch(state).map(|()| None),
                Ok(QueueResult::Unfit) => {
                    let ended = state.drain_batches();
                    drop(state);
                    drop(ended);
                }
                Err(error) => return Err(error),
            }
        } else {
            state.count_recent_frame(self);
        }
        Ok(single)
    }

    /// Counts a frame that was sent alone.
    pub(crate) fn count_single_send(&self) {
        self.singly.fetch_add(1, Relaxed);
    }

    /// Sends the queued frames, and reports an error for the frame that filled the batch.
    #[cold]
    fn flush_full_batch(&self, mut state: LockGuard<'_, InjectorState>) -> io::Result<()> {
        let is_alone = matches!(&state.method, SendMethod::Batches(batches) if batches.staged == 1);
        let ended = state.flush_batch();
        // Otherwise the dropped frame may as well be another: the next call reports it, and does not send.
        let reported =
            if is_alone || ended.is_some() { state.pending_errors.fail_if_pending() } else { Ok(()) };
        drop(state);
        drop(ended);
        reported
    }

    /// Sends the queued frames, and ends the batches. If that is not possible, because another call is
    /// sending and does not end, the injector must stay.
    pub(crate) fn close(&self) -> ControlFlow<()> {
        let Some((_sending, mut state)) = self.begin_call() else { return ControlFlow::Break(()) };
        let sender = state.end_batches(Duration::MAX);
        drop(state);
        drop(sender); // may wait for frames to come back
        ControlFlow::Continue(())
    }

    /// The state, for calls of the program. `None` if the state is not available, and in a signal handler
    /// that interrupts a call, for which it would wait for ever.
    #[inline]
    fn begin_call(&self) -> Option<(SendingGuard, LockGuard<'_, InjectorState>)> {
        // First, so that a handler that interrupts this thread with the lock held does not wait for it.
        let sending = SendingGuard::try_begin()?;
        Some((sending, self.lock_state()?))
    }

    /// The locked state; `None` if another thread did not unlock it in time.
    #[inline]
    fn lock_state(&self) -> Option<LockGuard<'_, InjectorState>> {
        self.state.try_lock().or_else(|| self.wait_for_state())
    }

    #[cold]
    fn wait_for_state(&self) -> Option<LockGuard<'_, InjectorState>> {
        let timeout = if self.is_stuck.load(Relaxed) { Duration::ZERO } else { process::LOCK_TIMEOUT };
        let state = self.state.lock_within(timeout);
        self.is_stuck.store(state.is_none(), Relaxed);
        state
    }

    pub(crate) fn sent_frames(&self) -> u64 {
        let batched = self
            .begin_call()
            .map(|(_, state)| state.batched_frames().saturating_sub(state.pending_errors.lost));
        self.singly.load(Relaxed) + batched.unwrap_or(0)
    }

    /// How many frames were sent, and how, as text; `None` if none were.
    pub(crate) fn summary(&self) -> Option<String> {
        let singly = self.singly.load(Relaxed);
        let Some((_sending, state)) = self.begin_call() else {
            return Some(format!(
                "{singly} frames by packet socket; closed in the midst of sending, others are not counted"
            ));
        };
        let batched = state.batched_frames().saturating_sub(state.pending_errors.lost);
        if singly + batched + state.pending_errors.lost == 0 {
            return None;
        }
        let mut words = format!("{singly} frames by packet socket");
        if state.batch_starts > 0 {
            let _ = write!(words, ", {batched} by AF_XDP in batches");
        }
        if let Some(refusal) = &state.refusal {
            let _ = write!(words, "; not in batches: {refusal}");
        }
        if state.pending_errors.lost > 0 {
            let (lost, unreported) = (state.pending_errors.lost, state.pending_errors.unreported_frames());
            let _ = write!(
                words,
                "; {lost} lost after the call had returned, of which {unreported} were not reported"
            );
        }
        Some(words)
    }

    /// Whether batches may begin or continue: returns the interface, or the reason against it.
    fn check_batching_allowed(&self) -> Result<Interface, String> {
        let interface =
            Interface::query(self.socket.as_fd(), self.index).map_err(|error| error.to_string())?;
        if let Some(refusal) = interface.batching_refusal() {
            return Err(refusal.into());
        }
        if !interface::is_in_socket_namespace(self.socket.as_fd()) {
            return Err("the thread is in another network namespace than the handle".into());
        }
        match local_captures::find_local_capture(self.index, self.inode) {
            Ok(None) => Ok(interface),
            Ok(Some(inode)) => Err(format!("packet socket {inode} captures, and would not see the frames")),
            Err(error) => Err(format!("whether packet sockets capture is not known: {error}")),
        }
    }
}

impl Injector {
    /// Whether traffic control does nothing that frames would bypass.
    fn check_queueing_discipline(&self) -> Result<(), (String, Duration)> {
        let refusal = match discipline::find_bypassed_discipline(self.index) {
            Ok(None) => return Ok(()),
            Ok(Some(kind)) => format!("the queueing discipline {kind} would not see them"),
            Err(error) => format!("what traffic control would do with them is not known: {error}"),
        };
        Err((refusal, RECHECK_INTERVAL))
    }
}

impl Drop for Injector {
    fn drop(&mut self) {
        drop(self.state.get_mut().end_batches(Duration::MAX));
    }
}

impl InjectorState {
    /// Notices a program that sends many frames.
    #[inline]
    fn count_recent_frame(&mut self, injector: &Arc<Injector>) {
        self.recent += 1;
        if self.recent >= MANY {
            self.recent = 0;
            self.begin_batches_if_fast(injector);
        }
    }

    #[cold]
    fn begin_batches_if_fast(&mut self, injector: &Arc<Injector>) {
        let now = Instant::now();
        let many = now - self.window <= MANY_WITHIN;
        self.window = now;
        if !many || now < self.not_before || process::is_exiting() {
            return;
        }
        let begun = injector
            .check_batching_allowed()
            .map_err(|refusal| (refusal, RECHECK_INTERVAL))
            .and_then(|interface| {
                injector.check_queueing_discipline()?;
                let batches = XdpBatchSender::open(&interface).map_err(|error| (error, REFUSED_FOR))?;
                // The thread compares the epoch under the state's lock, which the caller holds until it is
                // increased below.
                let flusher = flusher::start_flusher(injector, self.epoch + 1);
                flusher.map_err(|error| (format!("no thread to flush them: {error}"), REFUSED_FOR))?;
                Ok(batches)
            });
        self.window = Instant::now();
        match begun {
            Ok(batches) => {
                self.epoch += 1;
                self.batch_starts += 1;
                self.refusal = None;
                self.method = SendMethod::Batches(Box::new(batches));
            }
            Err((refusal, pause)) => {
                self.refusal = Some(refusal);
                self.not_before = now + pause;
            }
        }
    }

    /// Makes the kernel send the queued frames. An error ends the batches: their sender is returned, to be
    /// dropped without the lock.
    fn flush_batch(&mut self) -> Option<Sender> {
        let SendMethod::Batches(batches) = &mut self.method else { return None };
        match batches.flush() {
            Ok(dropped) => {
                self.pending_errors.record_error(libc::ENOBUFS, dropped);
                None
            }
            Err(error) => self.abandon_batches(sender_errno(&error), &error.to_string()),
        }
    }

    /// Ends the batches with frames still queued in them.
    fn abandon_batches(&mut self, errno: i32, refusal: &str) -> Option<Sender> {
        let SendMethod::Batches(mut batches) = std::mem::replace(&mut self.method, SendMethod::Singly) else {
            return None;
        };
        self.batched += batches.frames;
        self.pending_errors.record_error(errno, batches.queued_frames());
        self.refusal = Some(refusal.into());
        self.not_before = Instant::now() + RECHECK_INTERVAL;
        Some(batches.sender)
    }

    /// Waits for [`batches::CHECKS_MAX`] sleeps at most until the kernel has accepted the queued frames, so
    /// that frames sent by a packet socket do not overtake them. Returns as [`InjectorState::flush_batch`].
    fn drain_batches(&mut self) -> Option<Sender> {
        for _ in 0..batches::CHECKS_MAX {
            let ended = self.flush_batch();
            let SendMethod::Batches(batches) = &mut self.method else { return ended };
            if batches.queued_frames() == 0 {
                break;
            }
            std::thread::sleep(batches::CHECK_INTERVAL);
        }
        None
    }

    /// Ends the batches for some time, after their frames were sent if possible; returns as
    /// [`InjectorState::flush_batch`].
    fn end_batches(&mut self, pause: Duration) -> Option<Sender> {
        let ended = self.drain_batches();
        let SendMethod::Batches(mut batches) = std::mem::replace(&mut self.method, SendMethod::Singly) else {
            return ended;
        };
        self.batched += batches.frames;
        self.pending_errors.record_error(libc::ENOBUFS, batches.queued_frames());
        let now = Instant::now();
        self.not_before = now.checked_add(pause).unwrap_or(now + REFUSED_FOR);
        Some(batches.sender)
    }

    /// Ends the batches in a forked child, which shares them with its parent; the parent sends queued frames.
    fn end_batches_in_forked_child(&mut self) {
        if let SendMethod::Batches(batches) = std::mem::replace(&mut self.method, SendMethod::Singly) {
            batches.sender.disown();
        }
    }

    fn batched_frames(&self) -> u64 {
        match &self.method {
            SendMethod::Batches(batches) => self.batched + batches.frames,
            SendMethod::Singly => self.batched,
        }
    }
}

/// The kernel's errno in an error of a sender.
fn sender_errno(error: &io::Error) -> i32 {
    match error.kind() {
        io::ErrorKind::NetworkDown => libc::ENETDOWN,
        io::ErrorKind::NotConnected => libc::ENXIO,
        _ => error.raw_os_error().unwrap_or(libc::EIO),
    }
}

#[cfg(test)]
mod tests;
