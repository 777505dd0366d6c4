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
//!   fail (`BurstMessage::invalidate`).

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{self, Relaxed};
use std::sync::atomic::compiler_fence;

use nocopy_proto::run::sockets::{BatchingStopCause, Flush};

use crate::run::DatagramShape;
use crate::shared::{BurstLockGuard, BurstStateWord, SHARED, is_vfork_child};
use crate::slots::{self, DescriptorSlot};
use crate::sys::{self, BurstMessage};

/// Room for a burst, and for the kernel's answers while there is none.
const BUFFER_BYTES: usize = 64 << 10;

/// The properties of the burst. Written only while there is no burst.
#[derive(Debug)]
pub(crate) struct BurstProperties {
    pub(crate) descriptor: i32,
    pub(crate) cookie: u64,
    pub(crate) shape: DatagramShape,
    pub(crate) room: usize,
    pub(crate) slot: &'static DescriptorSlot,
}

impl BurstProperties {
    /// Whether another datagram fits, and the kernel had room at the last call.
    #[inline]
    pub(crate) fn has_room(&self, word: BurstStateWord) -> bool {
        word.datagram_count() < self.room && !SHARED.is_stuck.load(Relaxed)
    }
}

struct LockProtected<T>(UnsafeCell<T>);

// SAFETY: written and read under the lock, or by a signal handler that interrupts the holder of the lock.
unsafe impl<T> Sync for LockProtected<T> {}

static BUFFER: LockProtected<[u8; BUFFER_BYTES]> = LockProtected(UnsafeCell::new([0; BUFFER_BYTES]));
static HEAD: LockProtected<MaybeUninit<BurstProperties>> =
    LockProtected(UnsafeCell::new(MaybeUninit::uninit()));

/// The call of the lock's holder, stored where signal handlers find it.
static MESSAGE: LockProtected<BurstMessage> = LockProtected(UnsafeCell::new(BurstMessage::EMPTY));

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandoverResult {
    All,
    /// There was no room; the remaining datagrams wait.
    Partial,
    /// Nothing was sent: the burst belongs to another process, whose memory this one shares.
    NotOwner,
}

enum SendCallResult {
    Accepted,
    Refused(i32),
    /// A signal handler handed the burst over in between.
    Overtaken,
}

/// The head of the burst; meaningful only while there is a burst.
pub(crate) fn burst_properties(_guard: &BurstLockGuard) -> &BurstProperties {
    // SAFETY: written before the first datagram joined the burst; the lock is held.
    unsafe { (*HEAD.0.get()).assume_init_ref() }
}

/// Sets the head of the burst that begins with the next [added](add_datagram) datagram.
pub(crate) fn set_burst_properties(_guard: &BurstLockGuard, head: BurstProperties) {
    // SAFETY: the lock is held, and there is no burst, so that a signal handler does not read it.
    unsafe { _ = (*HEAD.0.get()).write(head) };
}

/// Memory for the kernel's answers.
///
/// # Safety
/// There is no burst, and no other reference to it.
#[expect(clippy::mut_from_ref, reason = "the lock is held")]
pub(crate) unsafe fn scratch_memory(_guard: &BurstLockGuard) -> &mut [u8] {
    // SAFETY: by contract; the lock is held.
    unsafe { &mut *BUFFER.0.get() }
}

/// Appends a datagram to the burst, which has room for it, and hands the burst over if it is then full.
/// Returns whether the datagram joined, because a signal handler may have interfered.
#[inline]
pub(crate) fn add_datagram(
    guard: &BurstLockGuard,
    word: BurstStateWord,
    head: &BurstProperties,
    parts: &[libc::iovec],
) -> bool {
    // Before the word: a handler that interrupts here finds the burst without this datagram.
    copy_parts(word.datagram_count() * head.shape.bytes, parts);
    let joined = word.with_one_more();
    if !word.try_replace(joined) {
        return false;
    }
    if joined.datagram_count() >= head.room {
        hand_over(Flush::Full, Some(guard));
    }
    true
}

#[inline]
fn copy_parts(mut at: usize, parts: &[libc::iovec]) {
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
pub(crate) fn hand_over(why: Flush, guard: Option<&BurstLockGuard>) -> HandoverResult {
    if guard.is_some() {
        let result = BurstHandover { is_ours: true, message: MESSAGE.0.get() }.hand_over_remaining(why);
        SHARED.sending.store(0, Relaxed);
        return result;
    }
    // Nothing interrupts this one: two that were interrupted would be one too many.
    let signals = sys::block_signals();
    record_accepted_datagrams();
    // SAFETY: this is the only thread that uses it, and it is interrupted.
    unsafe { BurstMessage::invalidate(MESSAGE.0.get()) };
    let mut message = BurstMessage::EMPTY;
    let result = BurstHandover { is_ours: false, message: &raw mut message }.hand_over_remaining(why);
    sys::set_blocked_signals(signals);
    result
}

/// Notes the datagrams that the kernel got by a call of the interrupted code: the whole burst, or one.
fn record_accepted_datagrams() {
    let word = BurstStateWord::load();
    if word.datagram_count() > 0 && SHARED.sending.load(Relaxed) == word.bits() {
        // SAFETY: this is the only thread that uses it, and it is interrupted.
        let accepted = unsafe { BurstMessage::accepted_datagrams(MESSAGE.0.get()) };
        word.try_replace(word.with_sent_count(word.sent_count() + accepted));
    }
}

/// Errors that a call returns only because a signal handler interfered, and that the program would not see
/// without this library: the handler invalidated the call, left no room, closed the descriptor, or sent the
/// datagrams of a refused burst one by one.
const ERRORS_OF_OVERTAKEN: [i32; 6] =
    [libc::EMSGSIZE, libc::EAGAIN, libc::EBADF, libc::ENOTSOCK, libc::EIO, libc::EINVAL];

struct BurstHandover {
    /// Whether the caller holds the lock. If not, it is a signal handler that interrupted the holder, and has
    /// blocked signals.
    is_ours: bool,
    message: *mut BurstMessage,
}

impl BurstHandover {
    fn hand_over_remaining(&self, why: Flush) -> HandoverResult {
        let word = BurstStateWord::load();
        if word.datagram_count() == 0 {
            return HandoverResult::All;
        }
        // SAFETY: the burst has begun; this thread holds the lock, or interrupts itself where it does not
        // write the head.
        let head = unsafe { (*HEAD.0.get()).assume_init_ref() };
        // No underflow: `first` counts datagrams of this burst.
        let rest = word.datagram_count() - word.sent_count();
        if rest == 0 {
            // The interrupted code has sent it, and has not noted that it is over.
            self.end_burst(word, head, why);
            return HandoverResult::All;
        }
        if sys::socket_cookie(head.descriptor) != Some(head.cookie) {
            return self.on_replaced_socket(word, head, why);
        }
        match self.send_next(head, word, rest) {
            SendCallResult::Accepted => {
                self.end_burst(word, head, why);
                HandoverResult::All
            }
            SendCallResult::Overtaken => result_if_overtaken(),
            SendCallResult::Refused(errno) => self.on_refused(errno, word, head, why),
        }
    }

    /// The descriptor now belongs to another socket, or is closed.
    #[cold]
    fn on_replaced_socket(&self, word: BurstStateWord, head: &BurstProperties, why: Flush) -> HandoverResult {
        if is_vfork_child() {
            return HandoverResult::NotOwner;
        }
        self.discard_remaining(word, head, why);
        slots::forget_descriptor(head.descriptor);
        HandoverResult::All
    }

    #[cold]
    fn on_refused(
        &self,
        errno: i32,
        word: BurstStateWord,
        head: &BurstProperties,
        why: Flush,
    ) -> HandoverResult {
        match errno {
            libc::EAGAIN => return mark_stuck(),
            // Datagrams longer than the path takes are `EINVAL` of older kernels and `EMSGSIZE` of newer ones
            // (seen with 6.18).
            libc::EIO | libc::EINVAL | libc::EMSGSIZE => {
                if self.is_ours {
                    // SAFETY: the lock is held, and no other reference is alive.
                    let socket = unsafe { head.slot.udp_socket_state() };
                    socket
                        .into_iter()
                        .for_each(|socket| socket.run.record_refusal(head.shape.bytes, errno == libc::EIO));
                    head.slot.socket_record().record_skip(BatchingStopCause::Route);
                }
            }
            // It may be the error of a datagram before these, which the kernel tells once.
            errno => {
                head.slot.set_pending_error(errno);
                match self.send_next(head, word, word.datagram_count() - word.sent_count()) {
                    SendCallResult::Accepted => {
                        self.end_burst(word, head, why);
                        return HandoverResult::All;
                    }
                    SendCallResult::Overtaken => return result_if_overtaken(),
                    SendCallResult::Refused(libc::EAGAIN) => return mark_stuck(),
                    SendCallResult::Refused(_) => {}
                }
            }
        }
        self.send_singly(word, head, why)
    }

    fn send_singly(&self, mut word: BurstStateWord, head: &BurstProperties, why: Flush) -> HandoverResult {
        while word.sent_count() < word.datagram_count() {
            match self.send_next(head, word, 1) {
                SendCallResult::Accepted => {}
                SendCallResult::Overtaken => return result_if_overtaken(),
                SendCallResult::Refused(libc::EAGAIN) => return mark_stuck(),
                SendCallResult::Refused(errno) => {
                    head.slot.set_pending_error(errno);
                    head.slot.socket_record().count_refused(1);
                }
            }
            let next = word.with_sent_count(word.sent_count() + 1);
            if !word.try_replace(next) {
                return result_if_overtaken();
            }
            word = next;
        }
        self.end_burst(word, head, why);
        HandoverResult::All
    }

    /// Sends the next datagrams that the kernel does not have yet, in one call.
    #[inline]
    fn send_next(&self, head: &BurstProperties, word: BurstStateWord, datagrams: usize) -> SendCallResult {
        // Fits in 16 bits below: bursts are of datagrams of which two fit into `BURST_BYTES_MAX`.
        let bytes = head.shape.bytes;
        let payload = buffered_payload(word.sent_count() * bytes, datagrams * bytes);
        // SAFETY: the lock is held, so that only signal handlers use it meanwhile, as described above; or it
        // is the handler's own.
        unsafe {
            (*self.message).set_datagrams(
                head.shape.destination.sockaddr_bytes(),
                payload,
                bytes as u16,
                datagrams,
            )
        };
        // A handler that comes before this point is noticed below, and one that comes after it finds a
        // complete message.
        compiler_fence(Ordering::SeqCst);
        if self.is_ours {
            // Relaxed: only signal handlers of this thread act on it.
            SHARED.sending.store(word.bits(), Relaxed);
        }
        if BurstStateWord::load() != word {
            return SendCallResult::Overtaken;
        }
        // SAFETY: it is complete, and lives longer than the call.
        let errno = sys::result_errno(unsafe { sys::send_message(head.descriptor, self.message) });
        self.evaluate_result(errno, word, head)
    }

    /// Evaluates the kernel's answer to a call.
    #[inline]
    fn evaluate_result(
        &self,
        errno: Option<i32>,
        word: BurstStateWord,
        head: &BurstProperties,
    ) -> SendCallResult {
        // The word alone does not say it: the handler may have found no room.
        // SAFETY: as in `send_next`.
        let is_invalidated =
            errno == Some(libc::EMSGSIZE) && unsafe { BurstMessage::is_invalidated(self.message) };
        if BurstStateWord::load() == word && !is_invalidated {
            return errno.map_or(SendCallResult::Accepted, SendCallResult::Refused);
        }
        // The kernel reports an error once.
        if let Some(errno) = errno.filter(|errno| !ERRORS_OF_OVERTAKEN.contains(errno)) {
            head.slot.set_pending_error(errno);
        }
        SendCallResult::Overtaken
    }

    /// Ends the burst: the kernel has accepted or refused it.
    fn end_burst(&self, word: BurstStateWord, head: &BurstProperties, why: Flush) {
        if !word.try_replace(word.ended()) {
            return;
        }
        SHARED.is_stuck.store(false, Relaxed);
        SHARED.waited_ms.store(0, Relaxed);
        head.slot.socket_record().count_burst(why, word.datagram_count() as u64);
        if !self.is_ours {
            return;
        }
        // SAFETY: the lock is held, and no other reference is alive.
        if let Some(socket) = unsafe { head.slot.udp_socket_state() }
            && let Some(datagrams) = socket.run.record_burst(why, word.datagram_count() as u32)
        {
            head.slot.skip_datagrams(BatchingStopCause::ShortBursts, datagrams);
        }
    }

    /// Discards the datagrams that the kernel has not accepted, and counts them as lost.
    #[cold]
    fn discard_remaining(&self, word: BurstStateWord, head: &BurstProperties, why: Flush) {
        head.slot.socket_record().count_lost((word.datagram_count() - word.sent_count()) as u64);
        self.end_burst(word, head, why);
    }
}

/// A signal handler handed over the burst, or as much as there was room for.
#[cold]
fn result_if_overtaken() -> HandoverResult {
    if BurstStateWord::load().datagram_count() == 0 { HandoverResult::All } else { HandoverResult::Partial }
}

#[cold]
fn mark_stuck() -> HandoverResult {
    SHARED.is_stuck.store(true, Relaxed);
    HandoverResult::Partial
}

fn buffered_payload(at: usize, bytes: usize) -> &'static [u8] {
    // SAFETY: the lock is held, and these bytes were written before the datagrams joined.
    let buffer: &'static [u8; BUFFER_BYTES] = unsafe { &*BUFFER.0.get() };
    buffer.get(at..at + bytes).unwrap_or_default()
}

/// Gives the burst up; counts datagrams that the kernel has not accepted as lost.
pub(crate) fn discard_burst(why: Flush, is_ours: bool) {
    let word = BurstStateWord::load();
    if word.datagram_count() > 0 {
        // SAFETY: as in `BurstHandover::hand_over_remaining`.
        let head = unsafe { (*HEAD.0.get()).assume_init_ref() };
        BurstHandover { is_ours, message: MESSAGE.0.get() }.discard_remaining(word, head, why);
    }
}

#[cfg(test)]
pub(crate) mod tests;
