//! Sends a program's datagram alone, or adds it to the burst. A process has one burst at a time, so that
//! datagrams are sent in the order of the calls, whichever thread and socket made them.
//!
//! All of this may run in a signal handler, even one that interrupts this code: it allocates no memory, never
//! waits for a lock that its own thread holds, and calls only the kernel. A signal handler gives the pending
//! burst to the kernel first, and sends its own datagrams alone; `burst` describes why that is safe.

use std::ops::RangeInclusive;
use std::sync::atomic::Ordering::Relaxed;

use nocopy_proto::run::sockets::{BatchingStopCause, Flush, UnbatchedCause};

use crate::burst::{self, BurstProperties, HandoverResult, burst_properties, discard_burst, hand_over};
use crate::destination::Destination;
use crate::environment;
use crate::run::{DatagramShape, RunDecision, RunDetector};
use crate::shared::{
    BurstLockGuard, BurstStateWord, LockError, SHARED, is_burst_queued, is_library_off, is_vfork_child,
};
use crate::slots::{self, DescriptorSlot, SocketKind};
use crate::{eligibility, sys, ticker};

/// How long other output waits for a socket without room: in total for a burst, and per attempt. After that
/// the burst's datagrams are lost if their socket is closed or their process ends; otherwise they are
/// overtaken. (Output of the same socket waits as without this library.)
const WAIT_MS_MAX: u32 = 1000;
const WAIT_STEP_MS: u32 = 10;

/// How to send a datagram of the program.
#[derive(Debug)]
pub(crate) enum SendDecision {
    /// It has joined the burst: the call succeeds.
    Joined,
    Failed(i32),
    /// The datagrams before it, to this destination, wait for room: wait for it, and [offer](decide_send) it
    /// again.
    NoRoom(Destination),
    /// Call the kernel, and report the result to [`record_single_send`].
    SendSingly(Option<SingleSend>),
}

/// What [`record_single_send`] needs to know about a datagram that is sent alone.
#[derive(Debug)]
pub(crate) struct SingleSend {
    slot: &'static DescriptorSlot,
    /// `None`: it cannot join any burst.
    shape: Option<DatagramShape>,
    plain: UnbatchedCause,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Datagram<'a> {
    pub(crate) descriptor: i32,
    /// `None` if it cannot join others: its flags, control data or address.
    pub(crate) shape: Option<DatagramShape>,
    pub(crate) parts: &'a [libc::iovec],
    /// The call must not wait (`MSG_DONTWAIT`).
    pub(crate) dont_wait: bool,
}

/// Appends a datagram to the current burst, if it has the same shape and there is no obstacle, and returns
/// its bytes; otherwise [`decide_send`] decides what to do with it. `parts` compares its shape with the
/// burst's, if the burst is of the same descriptor.
#[inline]
pub(crate) fn join_current_burst<P: AsRef<[libc::iovec]>>(
    descriptor: i32,
    parts: impl FnOnce(&DatagramShape) -> Option<P>,
) -> Option<usize> {
    let joined = SHARED.lock.try_run_locked(|guard| {
        let word = BurstStateWord::load();
        if word.datagram_count() == 0 {
            return None;
        }
        let head = burst_properties(guard);
        if head.descriptor != descriptor || !head.has_room(word) {
            return None;
        }
        let parts = parts(&head.shape)?;
        burst::add_datagram(guard, word, head, parts.as_ref()).then_some(head.shape.bytes)
    });
    joined.flatten()
}

/// What a descriptor is, which is found out if it is not known; `None` if it is not tracked, or the library
/// is off.
#[inline]
pub(crate) fn classify_descriptor(descriptor: i32) -> Option<(&'static DescriptorSlot, SocketKind)> {
    let slot = slots::slot_of(descriptor).filter(|_| !is_library_off())?;
    Some((slot, slot.known_kind().unwrap_or_else(|| identify_descriptor(slot, descriptor))))
}

#[cold]
fn identify_descriptor(slot: &'static DescriptorSlot, descriptor: i32) -> SocketKind {
    let run = RunDetector::new(environment::settings().tuning);
    // SAFETY: the lock is held, and no other reference is alive.
    let kind = SHARED.lock.run_locked(|_| unsafe { slot.identify(descriptor, run) });
    kind.unwrap_or(SocketKind::Other)
}

/// Decides what to do with a datagram of a socket that is not skipped.
pub(crate) fn decide_send(datagram: Datagram<'_>) -> SendDecision {
    let Some(slot) = slots::slot_of(datagram.descriptor) else {
        flush_burst(Flush::Output);
        return SendDecision::SendSingly(None);
    };
    loop {
        match SHARED.lock.run_locked(|guard| try_join(guard, slot, datagram)) {
            Ok(JoinResult::Done(decision)) => return decision,
            Ok(JoinResult::Again) => {}
            Err(LockError::Interrupted) => {
                flush_burst(Flush::Changed);
                return SendDecision::SendSingly(None);
            }
            Err(LockError::TimedOut) => return SendDecision::SendSingly(None),
            Ok(JoinResult::NoRoom { descriptor, to }) => {
                let may_wait = !datagram.dont_wait && !sys::is_nonblocking(datagram.descriptor);
                match descriptor == datagram.descriptor {
                    true if may_wait => return SendDecision::NoRoom(to),
                    true => return SendDecision::Failed(libc::EAGAIN),
                    false if may_wait && wait_briefly_for_room(descriptor) => {}
                    false => return SendDecision::SendSingly(None),
                }
            }
        }
    }
}

enum JoinResult {
    Done(SendDecision),
    /// A signal handler interfered: try again.
    Again,
    /// The current burst, of this or another socket, cannot be sent because its socket has no room.
    NoRoom {
        descriptor: i32,
        to: Destination,
    },
}

fn try_join(guard: &BurstLockGuard, slot: &'static DescriptorSlot, datagram: Datagram<'_>) -> JoinResult {
    let word = BurstStateWord::load();
    if word.datagram_count() > 0 {
        let head = burst_properties(guard);
        let is_own = head.descriptor == datagram.descriptor;
        let is_equal = is_own && Some(head.shape) == datagram.shape;
        if is_equal && head.has_room(word) {
            let is_joined = burst::add_datagram(guard, word, head, datagram.parts);
            return if is_joined { JoinResult::Done(SendDecision::Joined) } else { JoinResult::Again };
        }
        let why = if is_equal { Flush::Full } else { Flush::Changed };
        match hand_over(why, Some(guard)) {
            HandoverResult::All => {}
            HandoverResult::Partial => {
                return JoinResult::NoRoom { descriptor: head.descriptor, to: head.shape.destination };
            }
            // The burst is the parent's, which waits for this one (vfork).
            HandoverResult::NotOwner => return JoinResult::Done(SendDecision::SendSingly(None)),
        }
    }
    decide_without_burst(guard, slot, datagram).map_or(JoinResult::Again, JoinResult::Done)
}

/// What to do with a datagram while there is no burst; `None` if a signal handler interfered.
fn decide_without_burst(
    guard: &BurstLockGuard,
    slot: &'static DescriptorSlot,
    datagram: Datagram<'_>,
) -> Option<SendDecision> {
    // The caller looked before it had the lock.
    if is_library_off() {
        return Some(SendDecision::SendSingly(None));
    }
    // SAFETY: the lock is held, and no other reference is alive.
    let kind =
        unsafe { slot.identify(datagram.descriptor, RunDetector::new(environment::settings().tuning)) };
    if let Some(errno) = slot.take_pending_error(datagram.descriptor) {
        return Some(SendDecision::Failed(errno));
    }
    // SAFETY: as above.
    let socket = unsafe { slot.udp_socket_state() }.filter(|_| kind == SocketKind::Active);
    let (Some(socket), Some(shape)) = (socket, datagram.shape) else {
        let single = SingleSend { slot, shape: None, plain: UnbatchedCause::Unfit };
        return Some(SendDecision::SendSingly((kind == SocketKind::Active).then_some(single)));
    };
    if socket.run.is_epoch_over() {
        let (decision, stopped) = socket.run.end_epoch(sys::now_ns());
        if let Some(decision) = decision {
            slot.socket_record().record_cost_comparison(decision.plain_ns, decision.batched_ns);
        }
        if let Some(datagrams) = stopped {
            return Some(skip_socket(slot, BatchingStopCause::Slower, datagrams));
        }
    }
    let mut step = socket.run.decide_datagram(shape, sys::now_ns);
    if step == RunDecision::CheckEligibility {
        let now_ns = sys::now_ns();
        // SAFETY: there is no burst.
        let scratch = unsafe { burst::scratch_memory(guard) };
        let eligible = eligibility::check_eligibility(datagram.descriptor, socket.is_v6, now_ns, scratch);
        if let Err(datagrams) = socket.run.record_eligibility(eligible, now_ns) {
            return Some(skip_socket(slot, eligible.err().unwrap_or(BatchingStopCause::Not), datagrams));
        }
        step = socket.run.decide_datagram(shape, || now_ns);
    }
    match step {
        RunDecision::Join => begin_burst(guard, slot, shape, datagram),
        RunDecision::SendSingly(plain) => {
            Some(SendDecision::SendSingly(Some(SingleSend { slot, shape: Some(shape), plain })))
        }
        RunDecision::CheckEligibility => Some(SendDecision::SendSingly(Some(SingleSend {
            slot,
            shape: Some(shape),
            plain: UnbatchedCause::NoRun,
        }))),
    }
}

fn begin_burst(
    guard: &BurstLockGuard,
    slot: &'static DescriptorSlot,
    shape: DatagramShape,
    datagram: Datagram<'_>,
) -> Option<SendDecision> {
    let (descriptor, now_ns) = (datagram.descriptor, sys::now_ns());
    let Some(cookie) = slot.verified_cookie(descriptor) else {
        // It is another socket than the one that was looked at, or none.
        slots::forget_descriptor(descriptor);
        return Some(SendDecision::SendSingly(None));
    };
    slot.socket_record().record_burst_start(shape.destination, shape.bytes);
    let deadline_ns = environment::settings().deadline_us.saturating_mul(1000);
    if deadline_ns > 0 && !ticker::is_ticker_running() && is_vfork_child() {
        // The thread would end with this process, and the parent believe that it has one.
        return Some(SendDecision::SendSingly(None));
    }
    if deadline_ns > 0 && !ticker::ensure_ticker_runs() {
        return Some(skip_socket(slot, BatchingStopCause::NoThread, crate::run::ENTRY * 1000));
    }
    let word = BurstStateWord::load();
    if word.datagram_count() > 0 {
        return None;
    }
    SHARED.started_ns.store(now_ns, Relaxed);
    burst::set_burst_properties(
        guard,
        BurstProperties { descriptor, cookie, shape, room: shape.segments_max(), slot },
    );
    if !burst::add_datagram(guard, word, burst_properties(guard), datagram.parts) {
        return None;
    }
    // A signal handler may have ended the thread meanwhile, or switched the library off.
    if deadline_ns == 0 || is_library_off() || !ticker::is_ticker_running() {
        hand_over(Flush::Deadline, Some(guard));
    } else {
        ticker::arm_deadline(now_ns, deadline_ns);
    }
    Some(SendDecision::Joined)
}

fn skip_socket(slot: &'static DescriptorSlot, why: BatchingStopCause, datagrams: u32) -> SendDecision {
    slot.skip_datagrams(why, datagrams);
    slot.socket_record().count_single_send(UnbatchedCause::Alone);
    SendDecision::SendSingly(None)
}

/// Records whether a datagram that was to go alone was sent.
pub(crate) fn record_single_send(single: SingleSend, is_sent: bool) {
    let SingleSend { slot, shape, plain } = single;
    if is_sent {
        slot.socket_record().count_single_send(plain);
    }
    let shape = shape.unwrap_or(DatagramShape { bytes: 0, destination: Destination::CONNECTED });
    let _ = SHARED.lock.run_locked(|_| {
        // SAFETY: the lock is held, and no other reference is alive.
        let Some(socket) = (unsafe { slot.udp_socket_state() }) else { return };
        if let Some(datagrams) = socket.run.record_send(shape, plain, is_sent, sys::now_ns) {
            slot.skip_datagrams(BatchingStopCause::NoRuns, datagrams);
        }
    });
}

/// Hands over the burst, before the program does something else. If the program only waits, the burst stays
/// if its socket has no room, or an error that the program waits for, and that the burst would take.
pub(crate) fn flush_burst(why: Flush) {
    while is_burst_queued() {
        let ours = SHARED.lock.run_locked(|guard| {
            // A burst that is under way has a head, which this thread, interrupted or not, does not write
            // now.
            let descriptor = burst_properties(guard).descriptor;
            let must_stay = why == Flush::Wait && sys::has_error(descriptor);
            (!must_stay).then(|| (hand_over(why, Some(guard)), descriptor))
        });
        let (result, descriptor) = match ours {
            Ok(Some(result)) => result,
            Ok(None) | Err(LockError::TimedOut) => return,
            Err(LockError::Interrupted) => (hand_over(why, None), -1),
        };
        if result != HandoverResult::Partial || why == Flush::Wait || !wait_briefly_for_room(descriptor) {
            return;
        }
    }
}

/// Waits a little for room for the burst, unless other output has done that for long enough.
fn wait_briefly_for_room(descriptor: i32) -> bool {
    if SHARED.waited_ms.load(Relaxed) >= WAIT_MS_MAX {
        return false;
    }
    sys::wait_until_writable(descriptor, WAIT_STEP_MS);
    SHARED.waited_ms.fetch_add(WAIT_STEP_MS, Relaxed);
    true
}

/// Hands over the burst before these descriptors are closed, or if it is still not sent gives it up.
pub(crate) fn flush_before_closing(descriptors: RangeInclusive<i32>, why: Flush) {
    flush_burst(why);
    if !is_burst_queued() || is_vfork_child() {
        return;
    }
    let ours = SHARED.lock.run_locked(|guard| {
        if BurstStateWord::load().datagram_count() > 0
            && descriptors.contains(&burst_properties(guard).descriptor)
        {
            discard_burst(why, true);
        }
    });
    if ours == Err(LockError::Interrupted) && why == Flush::Process {
        discard_burst(why, false);
    }
}

/// Hands over the burst for the thread of the deadline.
pub(crate) fn flush_at_deadline(number: u32) {
    SHARED.lock.try_run_locked_for_ticker(|guard| {
        let word = BurstStateWord::load();
        if word.datagram_count() > 0 && word.burst_number() == number {
            hand_over(Flush::Deadline, Some(guard));
        }
    });
}

/// Forgets the facts about a socket's options or its peer, because they may have changed.
pub(crate) fn forget_eligibility(descriptor: i32) {
    let is_known =
        |slot: &&DescriptorSlot| matches!(slot.known_kind(), Some(SocketKind::Active | SocketKind::Skipped));
    let Some(slot) = slots::slot_of(descriptor).filter(is_known) else { return };
    let _ = SHARED.lock.run_locked(|_| {
        // SAFETY: the lock is held, and no other reference is alive.
        unsafe { slot.udp_socket_state() }.into_iter().for_each(|socket| socket.run.forget_learned());
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::burst::tests::TestBurst;
    use crate::shared;

    #[test]
    fn no_burst_begins_once_the_library_is_off() {
        let mut burst = TestBurst::begin(0);
        let (descriptor, shape) = (burst.descriptor(), burst_properties(burst.guard()).shape);
        // SAFETY: the lock is held, and no other reference is alive.
        let run = unsafe { &mut burst.slot().udp_socket_state().unwrap().run };
        for plain in [UnbatchedCause::NoRun, UnbatchedCause::First] {
            let _ = run.decide_datagram(shape, || 0);
            run.record_send(shape, plain, true, || 0);
        }
        assert_eq!(run.decide_datagram(shape, || 0), RunDecision::Join, "the next datagram begins a burst");
        burst.unlock();
        shared::switch_library(false);
        let decision = decide_send(Datagram { descriptor, shape: Some(shape), parts: &[], dont_wait: false });
        assert!(matches!(decision, SendDecision::SendSingly(None)) && !is_burst_queued(), "{decision:?}");
    }

    #[test]
    fn a_flush_before_a_wait_does_not_consume_a_socket_error() {
        let mut burst = TestBurst::begin(2);
        burst.cause_refusal();
        burst.unlock();
        flush_burst(Flush::Wait);
        assert!(is_burst_queued(), "the wait ends by the error, and the burst leaves at its deadline");
        assert_eq!(burst.take_error(), Some(libc::ECONNREFUSED));
        flush_burst(Flush::Wait);
        assert!(!is_burst_queued());
        // Other steps hand it over all the same: the error is returned by the next send.
        drop(burst);
        let mut burst = TestBurst::begin(2);
        burst.cause_refusal();
        burst.unlock();
        flush_burst(Flush::Output);
        assert_eq!(
            (
                is_burst_queued(),
                slots::slot_of(burst.descriptor()).unwrap().take_pending_error(burst.descriptor())
            ),
            (false, Some(libc::ECONNREFUSED))
        );
    }
}
