//! Sends a program's datagram alone, or adds it to the burst. A process has one burst at a time, so that
//! datagrams are sent in the order of the calls, whichever thread and socket made them.
//!
//! All of this may run in a signal handler, even one that interrupts this code: it allocates no memory, never
//! waits for a lock that its own thread holds, and calls only the kernel. A signal handler gives the pending
//! burst to the kernel first, and sends its own datagrams alone; `burst` describes why that is safe.

use std::ops::RangeInclusive;
use std::sync::atomic::Ordering::Relaxed;

use nocopy_proto::run::sockets::{Alone, Flush, Plain};

use crate::burst::{self, Handed, Head, give_up, hand_over, head};
use crate::destination::Destination;
use crate::environment;
use crate::run::{Run, Shape, Step};
use crate::shared::{Denied, Guard, SHARED, Word, is_guest, is_off, is_queued};
use crate::slots::{self, Kind, Slot};
use crate::{fitness, sys, ticker};

/// How long other output waits for a socket without room: in total for a burst, and per attempt. After that
/// the burst's datagrams are lost if their socket is closed or their process ends; otherwise they are
/// overtaken. (Output of the same socket waits as without this library.)
const PATIENCE_MS: u32 = 1000;
const NAP_MS: u32 = 10;

/// How to send a datagram of the program.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// It has joined the burst: the call succeeds.
    Joined,
    Failed(i32),
    /// The datagrams before it, to this destination, wait for room: wait for it, and [offer] it again.
    NoRoom(Destination),
    /// Call the kernel, and report the result to [`sent`].
    Alone(Option<Ticket>),
}

/// What [`sent`] needs to know about a datagram that is sent alone.
#[derive(Debug)]
pub(crate) struct Ticket {
    slot: &'static Slot,
    /// `None`: it cannot join any burst.
    shape: Option<Shape>,
    plain: Plain,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Datagram<'a> {
    pub(crate) descriptor: i32,
    /// `None` if it cannot join others: its flags, control data or address.
    pub(crate) shape: Option<Shape>,
    pub(crate) parts: &'a [libc::iovec],
    /// The call must not wait (`MSG_DONTWAIT`).
    pub(crate) dont_wait: bool,
}

/// Appends a datagram to the current burst, if it has the same shape and there is no obstacle, and returns
/// its bytes; otherwise [`offer`] decides what to do with it. `parts` compares its shape with the burst's, if
/// the burst is of the same descriptor.
#[inline]
pub(crate) fn join<P: AsRef<[libc::iovec]>>(
    descriptor: i32,
    parts: impl FnOnce(&Shape) -> Option<P>,
) -> Option<usize> {
    let joined = SHARED.lock.try_with(|guard| {
        let word = Word::load();
        if word.count() == 0 {
            return None;
        }
        let head = head(guard);
        if head.descriptor != descriptor || !head.has_room(word) {
            return None;
        }
        let parts = parts(&head.shape)?;
        burst::add(guard, word, head, parts.as_ref()).then_some(head.shape.bytes)
    });
    joined.flatten()
}

/// What a descriptor is, which is found out if it is not known; `None` if it is not tracked, or the library
/// is off.
#[inline]
pub(crate) fn identified(descriptor: i32) -> Option<(&'static Slot, Kind)> {
    let slot = slots::of(descriptor).filter(|_| !is_off())?;
    Some((slot, slot.kind().unwrap_or_else(|| identify(slot, descriptor))))
}

#[cold]
fn identify(slot: &'static Slot, descriptor: i32) -> Kind {
    let run = Run::new(environment::ways().tuning);
    // SAFETY: the lock is held, and no other reference is alive.
    let kind = SHARED.lock.with(|_| unsafe { slot.identify(descriptor, run) });
    kind.unwrap_or(Kind::Other)
}

/// Decides what to do with a datagram of a socket that is not left alone.
pub(crate) fn offer(datagram: Datagram<'_>) -> Verdict {
    let Some(slot) = slots::of(datagram.descriptor) else {
        flush(Flush::Output);
        return Verdict::Alone(None);
    };
    loop {
        match SHARED.lock.with(|guard| take(guard, slot, datagram)) {
            Ok(Taken::Done(verdict)) => return verdict,
            Ok(Taken::Again) => {}
            Err(Denied::Interrupted) => {
                flush(Flush::Changed);
                return Verdict::Alone(None);
            }
            Err(Denied::Late) => return Verdict::Alone(None),
            Ok(Taken::NoRoom { descriptor, to }) => {
                let may_wait = !datagram.dont_wait && !sys::is_nonblocking(datagram.descriptor);
                match descriptor == datagram.descriptor {
                    true if may_wait => return Verdict::NoRoom(to),
                    true => return Verdict::Failed(libc::EAGAIN),
                    false if may_wait && has_waited(descriptor) => {}
                    false => return Verdict::Alone(None),
                }
            }
        }
    }
}

enum Taken {
    Done(Verdict),
    /// A signal handler interfered: try again.
    Again,
    /// The current burst, of this or another socket, cannot be sent because its socket has no room.
    NoRoom {
        descriptor: i32,
        to: Destination,
    },
}

fn take(guard: &Guard, slot: &'static Slot, datagram: Datagram<'_>) -> Taken {
    let word = Word::load();
    if word.count() > 0 {
        let head = head(guard);
        let is_own = head.descriptor == datagram.descriptor;
        let is_equal = is_own && Some(head.shape) == datagram.shape;
        if is_equal && head.has_room(word) {
            let is_joined = burst::add(guard, word, head, datagram.parts);
            return if is_joined { Taken::Done(Verdict::Joined) } else { Taken::Again };
        }
        let why = if is_equal { Flush::Full } else { Flush::Changed };
        match hand_over(why, Some(guard)) {
            Handed::All => {}
            Handed::Rest => {
                return Taken::NoRoom { descriptor: head.descriptor, to: head.shape.destination };
            }
            // The burst is the parent's, which waits for this one (vfork).
            Handed::Nothing => return Taken::Done(Verdict::Alone(None)),
        }
    }
    begin(guard, slot, datagram).map_or(Taken::Again, Taken::Done)
}

/// What to do with a datagram while there is no burst; `None` if a signal handler interfered.
fn begin(guard: &Guard, slot: &'static Slot, datagram: Datagram<'_>) -> Option<Verdict> {
    // The caller looked before it had the lock.
    if is_off() {
        return Some(Verdict::Alone(None));
    }
    // SAFETY: the lock is held, and no other reference is alive.
    let kind = unsafe { slot.identify(datagram.descriptor, Run::new(environment::ways().tuning)) };
    if let Some(errno) = slot.take_owed(datagram.descriptor) {
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
        // SAFETY: there is no burst.
        let scratch = unsafe { burst::scratch(guard) };
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
    let (descriptor, now_ns) = (datagram.descriptor, sys::now_ns());
    let Some(cookie) = slot.verified(descriptor) else {
        // It is another socket than the one that was looked at, or none.
        slots::forget(descriptor);
        return Some(Verdict::Alone(None));
    };
    slot.record().begun(shape.destination, shape.bytes);
    let deadline_ns = environment::ways().deadline_us.saturating_mul(1000);
    if deadline_ns > 0 && !ticker::is_ticking() && is_guest() {
        // The thread would end with this process, and the parent believe that it has one.
        return Some(Verdict::Alone(None));
    }
    if deadline_ns > 0 && !ticker::is_ready() {
        return Some(leave(slot, Alone::NoThread, crate::run::ENTRY * 1000));
    }
    let word = Word::load();
    if word.count() > 0 {
        return None;
    }
    SHARED.begun_ns.store(now_ns, Relaxed);
    burst::set_head(guard, Head { descriptor, cookie, shape, room: shape.segments_max(), slot });
    if !burst::add(guard, word, head(guard), datagram.parts) {
        return None;
    }
    // A signal handler may have ended the thread meanwhile, or switched the library off.
    if deadline_ns == 0 || is_off() || !ticker::is_ticking() {
        hand_over(Flush::Deadline, Some(guard));
    } else {
        ticker::arm(now_ns, deadline_ns);
    }
    Some(Verdict::Joined)
}

fn leave(slot: &'static Slot, why: Alone, datagrams: u32) -> Verdict {
    slot.leave_alone(why, datagrams);
    slot.record().alone(Plain::Alone);
    Verdict::Alone(None)
}

/// Records whether a datagram that was to go alone was sent.
pub(crate) fn sent(ticket: Ticket, is_sent: bool) {
    let Ticket { slot, shape, plain } = ticket;
    if is_sent {
        slot.record().alone(plain);
    }
    let shape = shape.unwrap_or(Shape { bytes: 0, destination: Destination::CONNECTED });
    let _ = SHARED.lock.with(|_| {
        // SAFETY: the lock is held, and no other reference is alive.
        let Some(socket) = (unsafe { slot.socket() }) else { return };
        if let Some(datagrams) = socket.run.sent(shape, plain, is_sent, sys::now_ns) {
            slot.leave_alone(Alone::NoRuns, datagrams);
        }
    });
}

/// Hands over the burst, before the program does something else. If the program only waits, the burst stays
/// if its socket has no room, or an error that the program waits for, and that the burst would take.
pub(crate) fn flush(why: Flush) {
    while is_queued() {
        let ours = SHARED.lock.with(|guard| {
            // A burst that is under way has a head, which this thread, interrupted or not, does not write
            // now.
            let descriptor = head(guard).descriptor;
            let must_stay = why == Flush::Wait && sys::has_error(descriptor);
            (!must_stay).then(|| (hand_over(why, Some(guard)), descriptor))
        });
        let (handed, descriptor) = match ours {
            Ok(Some(handed)) => handed,
            Ok(None) | Err(Denied::Late) => return,
            Err(Denied::Interrupted) => (hand_over(why, None), -1),
        };
        if handed != Handed::Rest || why == Flush::Wait || !has_waited(descriptor) {
            return;
        }
    }
}

/// Waits a little for room for the burst, unless other output has done that for long enough.
fn has_waited(descriptor: i32) -> bool {
    if SHARED.waited_ms.load(Relaxed) >= PATIENCE_MS {
        return false;
    }
    sys::wait_for_room(descriptor, NAP_MS);
    SHARED.waited_ms.fetch_add(NAP_MS, Relaxed);
    true
}

/// Hands over the burst before these descriptors are closed, or if it is still not sent gives it up.
pub(crate) fn flush_before_closing(descriptors: RangeInclusive<i32>, why: Flush) {
    flush(why);
    if !is_queued() || is_guest() {
        return;
    }
    let ours = SHARED.lock.with(|guard| {
        if Word::load().count() > 0 && descriptors.contains(&head(guard).descriptor) {
            give_up(why, true);
        }
    });
    if ours == Err(Denied::Interrupted) && why == Flush::Process {
        give_up(why, false);
    }
}

/// Hands over the burst for the thread of the deadline.
pub(crate) fn flush_by_deadline(number: u32) {
    SHARED.lock.try_with_for_ticker(|guard| {
        let word = Word::load();
        if word.count() > 0 && word.number() == number {
            hand_over(Flush::Deadline, Some(guard));
        }
    });
}

/// Forgets the facts about a socket's options or its peer, because they may have changed.
pub(crate) fn forget_findings(descriptor: i32) {
    let is_known = |slot: &&Slot| matches!(slot.kind(), Some(Kind::Active | Kind::Alone));
    let Some(slot) = slots::of(descriptor).filter(is_known) else { return };
    let _ = SHARED.lock.with(|_| {
        // SAFETY: the lock is held, and no other reference is alive.
        unsafe { slot.socket() }.into_iter().for_each(|socket| socket.run.forget());
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::burst::tests::Burst;
    use crate::shared;

    #[test]
    fn no_burst_begins_once_the_library_is_off() {
        let mut burst = Burst::begin(0);
        let (descriptor, shape) = (burst.descriptor(), head(burst.guard()).shape);
        // SAFETY: the lock is held, and no other reference is alive.
        let run = unsafe { &mut burst.slot().socket().unwrap().run };
        for plain in [Plain::NoRun, Plain::First] {
            let _ = run.offer(shape, || 0);
            run.sent(shape, plain, true, || 0);
        }
        assert_eq!(run.offer(shape, || 0), Step::Join, "the next datagram begins a burst");
        burst.unlock();
        shared::switch(false);
        let verdict = offer(Datagram { descriptor, shape: Some(shape), parts: &[], dont_wait: false });
        assert!(matches!(verdict, Verdict::Alone(None)) && !is_queued(), "{verdict:?}");
    }

    #[test]
    fn a_burst_before_a_wait_takes_no_error() {
        let mut burst = Burst::begin(2);
        burst.refuse_one();
        burst.unlock();
        flush(Flush::Wait);
        assert!(is_queued(), "the wait ends by the error, and the burst leaves at its deadline");
        assert_eq!(burst.take_error(), Some(libc::ECONNREFUSED));
        flush(Flush::Wait);
        assert!(!is_queued());
        // Other steps hand it over all the same: the error is returned by the next send.
        drop(burst);
        let mut burst = Burst::begin(2);
        burst.refuse_one();
        burst.unlock();
        flush(Flush::Output);
        assert_eq!(
            (is_queued(), slots::of(burst.descriptor()).unwrap().take_owed(burst.descriptor())),
            (false, Some(libc::ECONNREFUSED))
        );
    }
}
