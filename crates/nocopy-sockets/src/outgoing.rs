//! The burst of the process: there is one at a time, so that datagrams leave in the order in which they were sent, whichever thread and
//! socket they are of.
//!
//! All of it may run in a signal handler, and in one that interrupts a call to it: it takes no memory, waits for no lock of its own
//! thread, and calls the kernel only. A handler hands over what has joined the burst, and sends its own datagrams alone. So the two parts
//! of a call that a handler may interrupt are made for it: a datagram joins by one compare-and-exchange after its bytes are in place, and
//! a burst is handed over with signals blocked.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::Relaxed;

use nocopy_proto::run::sockets::{Alone, Flush, Plain};

use crate::environment;
use crate::record::Record;
use crate::run::{Run, Shape, Step};
use crate::shared::{Guard, Hold, SHARED, Word, is_queued};
use crate::slots::{self, Kind, Slot};
use crate::{fitness, sys, ticker};

/// Room for a burst, and for the kernel's answers while there is none.
const BUFFER_BYTES: usize = 64 << 10;

/// How long other output waits for a socket that has no room, altogether and at a time. Then the datagrams are lost, if their socket is
/// closed or their process ends, and otherwise overtaken.
const PATIENCE_MS: u32 = 1000;
const NAP_MS: u32 = 10;

/// Which burst is under way. Written while there is none.
#[derive(Debug, Clone, Copy)]
struct Head {
    descriptor: i32,
    cookie: u64,
    shape: Shape,
    slot: &'static Slot,
}

struct Buffer(UnsafeCell<[u8; BUFFER_BYTES]>);
struct Burst(UnsafeCell<MaybeUninit<Head>>);

// SAFETY: both are written under the lock, and read under it.
unsafe impl Sync for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Burst {}

static BUFFER: Buffer = Buffer(UnsafeCell::new([0; BUFFER_BYTES]));
static BURST: Burst = Burst(UnsafeCell::new(MaybeUninit::uninit()));

/// What is to be done with a datagram that the program sends.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// It has joined the burst: the call succeeds.
    Joined,
    /// The call fails with this error.
    Failed(i32),
    /// The kernel is to be called, and the result told by [`sent`].
    Alone(Option<Ticket>),
}

/// What is to be known of a datagram that goes alone.
#[derive(Debug)]
pub(crate) struct Ticket {
    slot: &'static Slot,
    /// `None`: it cannot join any burst.
    shape: Option<Shape>,
    plain: Plain,
}

/// What the kernel took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Handed {
    All,
    /// There is no room: the rest waits.
    Rest,
}

/// A datagram of the program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Datagram<'a> {
    pub(crate) descriptor: i32,
    /// `None` if it cannot join others: its flags, control data or address.
    pub(crate) shape: Option<Shape>,
    pub(crate) parts: &'a [libc::iovec],
    /// The call is not to wait (`MSG_DONTWAIT`).
    pub(crate) dont_wait: bool,
}

/// What to do with a datagram of a socket that is not left alone.
pub(crate) fn offer(datagram: Datagram<'_>) -> Verdict {
    let Some(slot) = slots::of(datagram.descriptor) else {
        flush(Flush::Output);
        return Verdict::Alone(None);
    };
    let mut waited_ms = 0;
    loop {
        let guard = match SHARED.lock.acquire() {
            Some(Hold::Ours(guard)) => guard,
            Some(Hold::Interrupted) => {
                flush(Flush::Changed);
                return Verdict::Alone(None);
            }
            None => return Verdict::Alone(None),
        };
        match take(&guard, slot, datagram) {
            Taken::Done(verdict) => return verdict,
            Taken::Again => {}
            Taken::NoRoom { descriptor, is_own } => {
                drop(guard);
                if is_own && (datagram.dont_wait || sys::is_nonblocking(descriptor)) {
                    return Verdict::Failed(libc::EAGAIN);
                }
                if !is_own && waited_ms >= PATIENCE_MS {
                    return Verdict::Alone(None);
                }
                sys::wait_for_room(descriptor, NAP_MS);
                waited_ms += NAP_MS;
            }
        }
    }
}

enum Taken {
    Done(Verdict),
    /// A signal handler came between.
    Again,
    /// A burst is in the way, of this socket or of another, and its socket has no room.
    NoRoom {
        descriptor: i32,
        is_own: bool,
    },
}

fn take(guard: &Guard, slot: &'static Slot, datagram: Datagram<'_>) -> Taken {
    let word = Word::load();
    if word.count() > 0 {
        let head = head(guard);
        let is_own = head.descriptor == datagram.descriptor;
        let is_equal = is_own && Some(head.shape) == datagram.shape;
        let has_room = word.count() < head.shape.segments_max() && !SHARED.is_stuck.load(Relaxed);
        if is_equal && has_room {
            return join(guard, word, head, datagram);
        }
        let why = if is_equal { Flush::Full } else { Flush::Changed };
        if hand_over(why, Some(guard)) == Handed::Rest {
            return Taken::NoRoom { descriptor: head.descriptor, is_own };
        }
    }
    Taken::Done(match begin(guard, slot, datagram) {
        Some(verdict) => verdict,
        None => return Taken::Again,
    })
}

/// Puts a datagram behind those of the burst.
#[inline]
fn join(guard: &Guard, word: Word, head: Head, datagram: Datagram<'_>) -> Taken {
    copy(guard, word.count() * head.shape.bytes, datagram.parts);
    let joined = word.one_more();
    if !word.replace(joined) {
        return Taken::Again;
    }
    // SAFETY: the lock is held, and no other reference is alive.
    if let Some(socket) = unsafe { head.slot.socket() } {
        socket.run.joined();
    }
    let ways = environment::ways();
    if joined.count() >= head.shape.segments_max() {
        hand_over(Flush::Full, Some(guard));
    } else if ways.deadline_us == 0 {
        hand_over(Flush::Deadline, Some(guard));
    }
    Taken::Done(Verdict::Joined)
}

/// What to do with a datagram while there is no burst; nothing if a signal handler came between.
fn begin(guard: &Guard, slot: &'static Slot, datagram: Datagram<'_>) -> Option<Verdict> {
    // SAFETY: the lock is held, and no other reference is alive.
    let kind = unsafe { slot.identify(datagram.descriptor, Run::new(environment::ways().tuning)) };
    if let Some(errno) = slot.take_owed() {
        return Some(Verdict::Failed(errno));
    }
    // SAFETY: as above.
    let socket = unsafe { slot.socket() }.filter(|_| kind == Kind::Active);
    let (Some(socket), Some(shape)) = (socket, datagram.shape) else {
        let ticket = Ticket { slot, shape: None, plain: Plain::Unfit };
        return Some(Verdict::Alone((kind == Kind::Active).then_some(ticket)));
    };
    if socket.run.is_due() {
        let (decision, given_up) = socket.run.turn(sys::now_ns());
        if let Some(decision) = decision {
            slot.record().compared(decision.plain_ns, decision.batched_ns);
        }
        if let Some(datagrams) = given_up {
            return Some(leave(slot, Alone::Slower, datagrams));
        }
    }
    let mut step = socket.run.offer(shape, sys::now_ns);
    if step == Step::Examine {
        let now_ns = sys::now_ns();
        // SAFETY: there is no burst, and the lock is held.
        let scratch = unsafe { &mut *BUFFER.0.get() };
        let fit = fitness::examine(datagram.descriptor, socket.is_v6, now_ns, scratch);
        if let Err(datagrams) = socket.run.examined(fit, now_ns) {
            return Some(leave(slot, fit.err().unwrap_or(Alone::Not), datagrams));
        }
        step = socket.run.offer(shape, || now_ns);
    }
    match step {
        Step::Join => begin_burst(guard, slot, shape, datagram),
        Step::Alone(plain) => Some(Verdict::Alone(Some(Ticket { slot, shape: Some(shape), plain }))),
        Step::Examine => Some(Verdict::Alone(Some(Ticket { slot, shape: Some(shape), plain: Plain::NoRun }))),
    }
}

fn begin_burst(guard: &Guard, slot: &'static Slot, shape: Shape, datagram: Datagram<'_>) -> Option<Verdict> {
    let descriptor = datagram.descriptor;
    // SAFETY: the lock is held, and no other reference is alive.
    let cookie = unsafe { slot.socket() }.map(|socket| socket.cookie)?;
    if sys::cookie(descriptor) != Some(cookie) {
        // It is another socket than the one that was looked at, or none.
        slots::forget(descriptor);
        return Some(Verdict::Alone(None));
    }
    if environment::ways().deadline_us > 0 && !ticker::is_ready(flush_by_deadline) {
        return Some(leave(slot, Alone::NoThread, crate::run::ENTRY * 1000));
    }
    let word = Word::load();
    if word.count() > 0 {
        return None;
    }
    slot.record().begun(shape.destination, shape.bytes);
    SHARED.begun_ns.store(sys::now_ns(), Relaxed);
    // SAFETY: the lock is held, and there is no burst, so that a signal handler does not read it.
    unsafe { (*BURST.0.get()).write(Head { descriptor, cookie, shape, slot }) };
    match join(guard, word, head(guard), datagram) {
        Taken::Done(verdict) => Some(verdict),
        Taken::Again | Taken::NoRoom { .. } => None,
    }
}

fn leave(slot: &'static Slot, why: Alone, datagrams: u32) -> Verdict {
    slot.leave_alone(why, datagrams);
    slot.record().alone(Plain::Alone);
    Verdict::Alone(None)
}

/// Says how a datagram that went alone fared.
pub(crate) fn sent(ticket: Ticket, is_sent: bool) {
    let Ticket { slot, shape, plain } = ticket;
    if is_sent {
        slot.record().alone(plain);
    }
    let Some(Hold::Ours(guard)) = SHARED.lock.acquire() else { return };
    let shape = shape.unwrap_or(Shape { bytes: 0, destination: crate::destination::Destination::CONNECTED });
    // SAFETY: the lock is held, and no other reference is alive.
    let Some(socket) = (unsafe { slot.socket() }) else { return };
    if let Some(datagrams) = socket.run.sent(shape, plain, is_sent, sys::now_ns) {
        slot.leave_alone(Alone::NoRuns, datagrams);
    }
    drop(guard);
}

/// Hands over the burst, before the program does something else. In a socket without room it may stay, where the program only waits.
pub(crate) fn flush(why: Flush) {
    let mut waited_ms = 0;
    while is_queued() {
        let hold = SHARED.lock.acquire();
        let (handed, descriptor) = match &hold {
            // SAFETY: a burst that is under way has a head, which this thread, interrupted or not, does not write now.
            None => return,
            Some(Hold::Ours(guard)) => (hand_over(why, Some(guard)), head(guard).descriptor),
            Some(Hold::Interrupted) => (hand_over(why, None), -1),
        };
        if handed == Handed::All || why == Flush::Wait {
            return;
        }
        if waited_ms >= PATIENCE_MS {
            if matches!(why, Flush::Close | Flush::Process) {
                give_up(why, matches!(hold, Some(Hold::Ours(_))));
            }
            return;
        }
        drop(hold);
        sys::wait_for_room(descriptor, NAP_MS);
        waited_ms += NAP_MS;
    }
}

/// Hands over the burst for the thread of the deadline.
fn flush_by_deadline(number: u32) {
    let Some(guard) = SHARED.lock.acquire_for_ticker() else { return };
    let word = Word::load();
    if word.count() > 0 && word.number() == number {
        hand_over(Flush::Deadline, Some(&guard));
    }
}

/// What was found of a socket's options, or of its peer, may hold no longer.
pub(crate) fn forget_findings(descriptor: i32) {
    let Some(slot) = slots::of(descriptor).filter(|slot| slot.kind() != Kind::Other) else { return };
    if let Some(Hold::Ours(_guard)) = SHARED.lock.acquire() {
        // SAFETY: the lock is held, and no other reference is alive.
        unsafe { slot.socket() }.into_iter().for_each(|socket| socket.run.forget());
    }
}

/// Whether the burst waits because its socket has no room.
pub(crate) fn is_any_stuck() -> bool {
    is_queued() && SHARED.is_stuck.load(Relaxed)
}

/// Whether a socket has a burst for which it had no room.
pub(crate) fn is_stuck(descriptor: i32) -> bool {
    if !is_any_stuck() {
        return false;
    }
    match SHARED.lock.acquire() {
        Some(Hold::Ours(guard)) => Word::load().count() > 0 && head(&guard).descriptor == descriptor,
        _ => false,
    }
}

/// Which burst it is; of use while there is one.
fn head(_guard: &Guard) -> Head {
    // SAFETY: written before the first datagram joined the burst; the lock is held.
    unsafe { (*BURST.0.get()).assume_init() }
}

fn copy(_guard: &Guard, at: usize, parts: &[libc::iovec]) {
    let mut at = at;
    let start = BUFFER.0.get().cast::<u8>();
    for part in parts {
        if part.iov_len > 0 {
            // SAFETY: the shape's bytes are those of all parts, and so many datagrams fit (`segments_max`); the program's memory is
            // as it would be for the kernel, and is not the buffer.
            unsafe { std::ptr::copy_nonoverlapping(part.iov_base.cast::<u8>(), start.add(at), part.iov_len) };
            at += part.iov_len;
        }
    }
}

/// Gives the kernel the burst. `guard` is missing in a signal handler that interrupted the holder of the lock: then what is known of the
/// socket is left as it is.
fn hand_over(why: Flush, guard: Option<&Guard>) -> Handed {
    let signals = sys::block_signals();
    let handed = hand_over_blocked(why, guard.is_some());
    sys::set_signals(signals);
    handed
}

fn hand_over_blocked(why: Flush, is_ours: bool) -> Handed {
    let word = Word::load();
    if word.count() == 0 {
        return Handed::All;
    }
    // SAFETY: the burst has begun; this thread holds the lock, or interrupts itself where it does not write the head.
    let head = unsafe { (*BURST.0.get()).assume_init() };
    let record = head.slot.record();
    if sys::cookie(head.descriptor) != Some(head.cookie) {
        record.lost((word.count() - word.first()) as u64);
        finish(word, &head, why, is_ours);
        return Handed::All;
    }
    match burst(&head, word) {
        Ok(()) => {}
        Err(libc::EAGAIN) => return stuck(),
        Err(errno @ (libc::EIO | libc::EINVAL)) => {
            if is_ours {
                // SAFETY: the lock is held, and no other reference is alive.
                let socket = unsafe { head.slot.socket() };
                socket
                    .into_iter()
                    .for_each(|socket| socket.run.refused(head.shape.bytes, errno == libc::EIO));
                record.left_alone(Alone::Route);
            }
            if singly(&head, word, record) == Handed::Rest {
                return stuck();
            }
        }
        Err(errno) => {
            // It may be the error of a datagram before these, which the kernel tells once.
            head.slot.owe(errno);
            let is_sent = match burst(&head, word) {
                Ok(()) => true,
                Err(libc::EAGAIN) => return stuck(),
                Err(_) => false,
            };
            if !is_sent && singly(&head, word, record) == Handed::Rest {
                return stuck();
            }
        }
    }
    finish(word, &head, why, is_ours);
    Handed::All
}

fn stuck() -> Handed {
    SHARED.is_stuck.store(true, Relaxed);
    Handed::Rest
}

/// Sends what the kernel has not yet, in one call.
fn burst(head: &Head, word: Word) -> Result<(), i32> {
    let (bytes, rest) = (head.shape.bytes, word.count() - word.first());
    let segment = (rest > 1).then_some(bytes as u16);
    let result = sys::send(
        head.descriptor,
        head.shape.destination.bytes(),
        payload(word.first() * bytes, rest * bytes),
        segment,
    );
    sys::error(result).map_or(Ok(()), Err)
}

/// Sends them one by one.
fn singly(head: &Head, word: Word, record: Record) -> Handed {
    let bytes = head.shape.bytes;
    let mut word = word;
    while word.first() < word.count() {
        let sent = sys::send(
            head.descriptor,
            head.shape.destination.bytes(),
            payload(word.first() * bytes, bytes),
            None,
        );
        match sys::error(sent) {
            None => {}
            Some(libc::EAGAIN) => return Handed::Rest,
            Some(errno) => {
                head.slot.owe(errno);
                record.refused(1);
            }
        }
        let next = word.from(word.first() + 1);
        // Signals are blocked: nothing comes between.
        word.replace(next);
        word = next;
    }
    Handed::All
}

/// Some of the burst's bytes.
fn payload(at: usize, bytes: usize) -> &'static [u8] {
    // SAFETY: the lock is held, and these bytes were written before the datagrams joined.
    let buffer: &'static [u8; BUFFER_BYTES] = unsafe { &*BUFFER.0.get() };
    buffer.get(at..at + bytes).unwrap_or_default()
}

/// The burst is over.
fn finish(word: Word, head: &Head, why: Flush, is_ours: bool) {
    head.slot.record().burst(why, word.count() as u64);
    SHARED.is_stuck.store(false, Relaxed);
    let now = Word::load();
    now.replace(now.over());
    if !is_ours {
        return;
    }
    // SAFETY: the lock is held, and no other reference is alive.
    if let Some(socket) = unsafe { head.slot.socket() }
        && let Some(datagrams) = socket.run.flushed(why, word.count() as u32)
    {
        head.slot.leave_alone(Alone::ShortBursts, datagrams);
    }
}

/// Counts what the kernel does not take as lost.
fn give_up(why: Flush, is_ours: bool) {
    let word = Word::load();
    if word.count() > 0 {
        // SAFETY: as in `hand_over_blocked`.
        let head = unsafe { (*BURST.0.get()).assume_init() };
        head.slot.record().lost((word.count() - word.first()) as u64);
        finish(word, &head, why, is_ours);
    }
}
