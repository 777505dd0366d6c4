//! The burst to which the process adds datagrams (one burst at a time), and its handover to the kernel.
//!
//! A signal handler may interrupt this code anywhere, and then hands over the datagrams in the burst.
//! Blocking signals would prevent that, but costs two system calls for each burst. Instead:
//!
//! * A datagram joins by one instruction, after its bytes are in place.
//! * The kernel writes whether it took the burst into `msg_len` of sendmmsg(2), before the call returns. If a
//!   handler finds it written, it only notes that the burst has ended, because the interrupted code may never
//!   continue (siglongjmp(3)).
//! * A handler that runs before the call hands the burst over itself, and makes the interrupted code's call
//!   fail (`Message::invalidate`).

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{self, Relaxed};
use std::sync::atomic::compiler_fence;

use nocopy_proto::run::sockets::{Alone, Flush};

use crate::run::Shape;
use crate::shared::{BurstWord, Guard, SHARED, is_vfork_child};
use crate::slots::{self, Slot};
use crate::sys::{self, Message};

/// Room for a burst, and for the kernel's answers while there is none.
const BUFFER_BYTES: usize = 64 << 10;

/// The properties of the burst. Written only while there is no burst.
#[derive(Debug)]
pub(crate) struct BurstHead {
    pub(crate) descriptor: i32,
    pub(crate) cookie: u64,
    pub(crate) shape: Shape,
    pub(crate) room: usize,
    pub(crate) slot: &'static Slot,
}

impl BurstHead {
    /// Whether another datagram fits, and the kernel had room at the last call.
    #[inline]
    pub(crate) fn has_room(&self, word: BurstWord) -> bool {
        word.count() < self.room && !SHARED.is_stuck.load(Relaxed)
    }
}

struct UnderLock<T>(UnsafeCell<T>);

// SAFETY: written and read under the lock, or by a signal handler that interrupts the holder of the lock.
unsafe impl<T> Sync for UnderLock<T> {}

static BUFFER: UnderLock<[u8; BUFFER_BYTES]> = UnderLock(UnsafeCell::new([0; BUFFER_BYTES]));
static HEAD: UnderLock<MaybeUninit<BurstHead>> = UnderLock(UnsafeCell::new(MaybeUninit::uninit()));

/// The call of the lock's holder, stored where signal handlers find it.
static MESSAGE: UnderLock<Message> = UnderLock(UnsafeCell::new(Message::EMPTY));

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandoverResult {
    All,
    /// There was no room; the remaining datagrams wait.
    Partial,
    /// Nothing was sent: the burst belongs to another process, whose memory this one shares.
    NotOwner,
}

enum CallResult {
    Accepted,
    Refused(i32),
    /// A signal handler handed the burst over in between.
    Overtaken,
}

/// The head of the burst; meaningful only while there is a burst.
pub(crate) fn head(_guard: &Guard) -> &BurstHead {
    // SAFETY: written before the first datagram joined the burst; the lock is held.
    unsafe { (*HEAD.0.get()).assume_init_ref() }
}

/// Sets the head of the burst that begins with the next [added](add) datagram.
pub(crate) fn set_head(_guard: &Guard, head: BurstHead) {
    // SAFETY: the lock is held, and there is no burst, so that a signal handler does not read it.
    unsafe { _ = (*HEAD.0.get()).write(head) };
}

/// Memory for the kernel's answers.
///
/// # Safety
/// There is no burst, and no other reference to it.
#[expect(clippy::mut_from_ref, reason = "the lock is held")]
pub(crate) unsafe fn scratch(_guard: &Guard) -> &mut [u8] {
    // SAFETY: by contract; the lock is held.
    unsafe { &mut *BUFFER.0.get() }
}

/// Appends a datagram to the burst, which has room for it, and hands the burst over if it is then full.
/// Returns whether the datagram joined, because a signal handler may have interfered.
#[inline]
pub(crate) fn add(guard: &Guard, word: BurstWord, head: &BurstHead, parts: &[libc::iovec]) -> bool {
    // Before the word: a handler that interrupts here finds the burst without this datagram.
    copy(word.count() * head.shape.bytes, parts);
    let joined = word.one_more();
    if !word.replace(joined) {
        return false;
    }
    if joined.count() >= head.room {
        hand_over(Flush::Full, Some(guard));
    }
    true
}

#[inline]
fn copy(mut at: usize, parts: &[libc::iovec]) {
    let start = BUFFER.0.get().cast::<u8>();
    for part in parts {
        if part.iov_len > 0 {
            // SAFETY: the shape's bytes are those of all parts, which are not in the program's memory, and so
            // many datagrams fit (`segments_max`); the data are as they would be for the kernel, and are not
            // the buffer; the lock is held.
            unsafe { std::ptr::copy_nonoverlapping(part.iov_base.cast::<u8>(), start.add(at), part.iov_len) };
            at += part.iov_len;
        }
    }
}

/// Gives the kernel the burst. `guard` is `None` in a signal handler that interrupted the lock's holder; then
/// the state of the socket stays unchanged.
pub(crate) fn hand_over(why: Flush, guard: Option<&Guard>) -> HandoverResult {
    if guard.is_some() {
        let result = Handover { is_ours: true, message: MESSAGE.0.get() }.run(why);
        SHARED.sending.store(0, Relaxed);
        return result;
    }
    // Nothing interrupts this one: two that were interrupted would be one too many.
    let signals = sys::block_signals();
    record_accepted();
    // SAFETY: this is the only thread that uses it, and it is interrupted.
    unsafe { Message::invalidate(MESSAGE.0.get()) };
    let mut message = Message::EMPTY;
    let result = Handover { is_ours: false, message: &raw mut message }.run(why);
    sys::set_signals(signals);
    result
}

/// Notes the datagrams that the kernel got by a call of the interrupted code: the whole burst, or one.
fn record_accepted() {
    let word = BurstWord::load();
    if word.count() > 0 && SHARED.sending.load(Relaxed) == word.bits() {
        // SAFETY: this is the only thread that uses it, and it is interrupted.
        let accepted = unsafe { Message::accepted(MESSAGE.0.get()) };
        word.replace(word.from(word.first() + accepted));
    }
}

/// Errors that a call returns only because a signal handler interfered, and that the program would not see
/// without this library: the handler invalidated the call, left no room, closed the descriptor, or sent the
/// datagrams of a refused burst one by one.
const ERRORS_OF_OVERTAKEN: [i32; 6] =
    [libc::EMSGSIZE, libc::EAGAIN, libc::EBADF, libc::ENOTSOCK, libc::EIO, libc::EINVAL];

struct Handover {
    /// Whether the caller holds the lock. If not, it is a signal handler that interrupted the holder, and has
    /// blocked signals.
    is_ours: bool,
    message: *mut Message,
}

impl Handover {
    fn run(&self, why: Flush) -> HandoverResult {
        let word = BurstWord::load();
        if word.count() == 0 {
            return HandoverResult::All;
        }
        // SAFETY: the burst has begun; this thread holds the lock, or interrupts itself where it does not
        // write the head.
        let head = unsafe { (*HEAD.0.get()).assume_init_ref() };
        // No underflow: `first` counts datagrams of this burst.
        let rest = word.count() - word.first();
        if rest == 0 {
            // The interrupted code has sent it, and has not noted that it is over.
            self.finish(word, head, why);
            return HandoverResult::All;
        }
        if sys::cookie(head.descriptor) != Some(head.cookie) {
            return self.on_replaced_socket(word, head, why);
        }
        match self.send(head, word, rest) {
            CallResult::Accepted => {
                self.finish(word, head, why);
                HandoverResult::All
            }
            CallResult::Overtaken => overtaken(),
            CallResult::Refused(errno) => self.on_refused(errno, word, head, why),
        }
    }

    /// The descriptor now belongs to another socket, or is closed.
    #[cold]
    fn on_replaced_socket(&self, word: BurstWord, head: &BurstHead, why: Flush) -> HandoverResult {
        if is_vfork_child() {
            return HandoverResult::NotOwner;
        }
        self.discard(word, head, why);
        slots::forget(head.descriptor);
        HandoverResult::All
    }

    #[cold]
    fn on_refused(&self, errno: i32, word: BurstWord, head: &BurstHead, why: Flush) -> HandoverResult {
        match errno {
            libc::EAGAIN => return no_room(),
            // Datagrams longer than the path takes are `EINVAL` of older kernels and `EMSGSIZE` of newer ones
            // (seen with 6.18).
            libc::EIO | libc::EINVAL | libc::EMSGSIZE => {
                if self.is_ours {
                    // SAFETY: the lock is held, and no other reference is alive.
                    let socket = unsafe { head.slot.socket() };
                    socket
                        .into_iter()
                        .for_each(|socket| socket.run.record_refusal(head.shape.bytes, errno == libc::EIO));
                    head.slot.record().record_skip(Alone::Route);
                }
            }
            // It may be the error of a datagram before these, which the kernel tells once.
            errno => {
                head.slot.set_pending_error(errno);
                match self.send(head, word, word.count() - word.first()) {
                    CallResult::Accepted => {
                        self.finish(word, head, why);
                        return HandoverResult::All;
                    }
                    CallResult::Overtaken => return overtaken(),
                    CallResult::Refused(libc::EAGAIN) => return no_room(),
                    CallResult::Refused(_) => {}
                }
            }
        }
        self.send_singly(word, head, why)
    }

    fn send_singly(&self, mut word: BurstWord, head: &BurstHead, why: Flush) -> HandoverResult {
        while word.first() < word.count() {
            match self.send(head, word, 1) {
                CallResult::Accepted => {}
                CallResult::Overtaken => return overtaken(),
                CallResult::Refused(libc::EAGAIN) => return no_room(),
                CallResult::Refused(errno) => {
                    head.slot.set_pending_error(errno);
                    head.slot.record().count_refused(1);
                }
            }
            let next = word.from(word.first() + 1);
            if !word.replace(next) {
                return overtaken();
            }
            word = next;
        }
        self.finish(word, head, why);
        HandoverResult::All
    }

    /// Sends the next datagrams that the kernel does not have yet, in one call.
    #[inline]
    fn send(&self, head: &BurstHead, word: BurstWord, datagrams: usize) -> CallResult {
        // Fits in 16 bits below: bursts are of datagrams of which two fit into `BURST_BYTES_MAX`.
        let bytes = head.shape.bytes;
        let payload = payload(word.first() * bytes, datagrams * bytes);
        // SAFETY: the lock is held, so that only signal handlers use it meanwhile, as described above; or it
        // is the handler's own.
        unsafe { (*self.message).set(head.shape.destination.bytes(), payload, bytes as u16, datagrams) };
        // A handler that comes before this point is noticed below, and one that comes after it finds a
        // complete message.
        compiler_fence(Ordering::SeqCst);
        if self.is_ours {
            // Relaxed: only signal handlers of this thread act on it.
            SHARED.sending.store(word.bits(), Relaxed);
        }
        if BurstWord::load() != word {
            return CallResult::Overtaken;
        }
        // SAFETY: it is complete, and lives longer than the call.
        let errno = sys::error(unsafe { sys::send(head.descriptor, self.message) });
        self.outcome(errno, word, head)
    }

    /// Evaluates the kernel's answer to a call.
    #[inline]
    fn outcome(&self, errno: Option<i32>, word: BurstWord, head: &BurstHead) -> CallResult {
        // The word alone does not say it: the handler may have found no room.
        // SAFETY: as in `send`.
        let is_invalidated =
            errno == Some(libc::EMSGSIZE) && unsafe { Message::is_invalidated(self.message) };
        if BurstWord::load() == word && !is_invalidated {
            return errno.map_or(CallResult::Accepted, CallResult::Refused);
        }
        // The kernel reports an error once.
        if let Some(errno) = errno.filter(|errno| !ERRORS_OF_OVERTAKEN.contains(errno)) {
            head.slot.set_pending_error(errno);
        }
        CallResult::Overtaken
    }

    /// Ends the burst: the kernel has accepted or refused it.
    fn finish(&self, word: BurstWord, head: &BurstHead, why: Flush) {
        if !word.replace(word.over()) {
            return;
        }
        SHARED.is_stuck.store(false, Relaxed);
        SHARED.waited_ms.store(0, Relaxed);
        head.slot.record().count_burst(why, word.count() as u64);
        if !self.is_ours {
            return;
        }
        // SAFETY: the lock is held, and no other reference is alive.
        if let Some(socket) = unsafe { head.slot.socket() }
            && let Some(datagrams) = socket.run.record_burst(why, word.count() as u32)
        {
            head.slot.skip(Alone::ShortBursts, datagrams);
        }
    }

    /// Discards the datagrams that the kernel has not accepted, and counts them as lost.
    #[cold]
    fn discard(&self, word: BurstWord, head: &BurstHead, why: Flush) {
        head.slot.record().count_lost((word.count() - word.first()) as u64);
        self.finish(word, head, why);
    }
}

/// A signal handler handed over the burst, or as much as there was room for.
#[cold]
fn overtaken() -> HandoverResult {
    if BurstWord::load().count() == 0 { HandoverResult::All } else { HandoverResult::Partial }
}

#[cold]
fn no_room() -> HandoverResult {
    SHARED.is_stuck.store(true, Relaxed);
    HandoverResult::Partial
}

fn payload(at: usize, bytes: usize) -> &'static [u8] {
    // SAFETY: the lock is held, and these bytes were written before the datagrams joined.
    let buffer: &'static [u8; BUFFER_BYTES] = unsafe { &*BUFFER.0.get() };
    buffer.get(at..at + bytes).unwrap_or_default()
}

/// Gives the burst up; counts datagrams that the kernel has not accepted as lost.
pub(crate) fn discard_burst(why: Flush, is_ours: bool) {
    let word = BurstWord::load();
    if word.count() > 0 {
        // SAFETY: as in `Handover::run`.
        let head = unsafe { (*HEAD.0.get()).assume_init_ref() };
        Handover { is_ours, message: MESSAGE.0.get() }.discard(word, head, why);
    }
}

#[cfg(test)]
pub(crate) mod tests;
