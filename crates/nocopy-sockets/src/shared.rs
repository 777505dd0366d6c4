//! The state that all threads of the process share: the burst, the holder of the lock, and the thread for the
//! deadline.
//!
//! It lies on a separate page, which the kernel clears in the child of any fork (`MADV_WIPEONFORK`). So a
//! child begins without a burst, a holder of the lock and a thread, even after a fork for which the C library
//! calls no handlers.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence};

use crate::sys;

/// The library's state; all zeros at first. It fills the kernel's longest page.
#[cfg_attr(target_arch = "x86_64", repr(C, align(4096)))]
#[cfg_attr(target_arch = "aarch64", repr(C, align(65536)))]
pub(crate) struct SharedState {
    /// See [`BurstStateWord`]. Must be the first field: entry points in assembly look at its lower half,
    /// which is zero while no burst is under way.
    pub(crate) word: AtomicU64,
    /// The second field: entry points in assembly look at its owner.
    pub(crate) lock: BurstLock,
    /// The word of the burst for which the holder of the lock calls the kernel; 0 otherwise.
    pub(crate) sending: AtomicU64,
    /// Whether the socket had no room when the burst was last handed over.
    pub(crate) is_stuck: AtomicBool,
    /// How long other output has waited for room for the burst.
    pub(crate) waited_ms: AtomicU32,
    /// When the burst began, in nanoseconds of the monotonic clock.
    pub(crate) started_ns: AtomicU64,
    /// Whether the thread for the deadline runs, or is being started.
    pub(crate) is_ticking: AtomicBool,
    /// The thread's number. The kernel sets it, and clears it and wakes waiters when the thread has ended.
    pub(crate) ticker: AtomicU32,
    /// Asks the thread to end.
    pub(crate) stop: AtomicU32,
    /// The process whose state this is; 0 after a fork without handlers, until it starts that thread.
    pub(crate) process: AtomicU32,
    /// The timer that signals it, and when it fires, in nanoseconds of the monotonic clock.
    pub(crate) timer: AtomicI32,
    pub(crate) fires_ns: AtomicU64,
}

pub(crate) static SHARED: SharedState = SharedState {
    word: AtomicU64::new(0),
    lock: BurstLock { owner: AtomicUsize::new(0), stack: AtomicUsize::new(0) },
    sending: AtomicU64::new(0),
    is_stuck: AtomicBool::new(false),
    waited_ms: AtomicU32::new(0),
    started_ns: AtomicU64::new(0),
    is_ticking: AtomicBool::new(false),
    ticker: AtomicU32::new(0),
    stop: AtomicU32::new(0),
    process: AtomicU32::new(0),
    timer: AtomicI32::new(0),
    fires_ns: AtomicU64::new(0),
};

/// Why no burst may begin: the library is switched off, and how many calls that change all threads are under
/// way. 0: one may.
static OBSTACLES: AtomicU32 = AtomicU32::new(OFF);

const OFF: u32 = 1 << 31;

pub(crate) fn switch_library(on: bool) {
    match on {
        true => OBSTACLES.fetch_and(!OFF, Ordering::Relaxed),
        false => OBSTACLES.fetch_or(OFF, Ordering::Relaxed),
    };
}

/// Whether datagrams must be sent as without this library.
#[inline]
pub(crate) fn is_library_off() -> bool {
    OBSTACLES.load(Ordering::Relaxed) != 0
}

/// Whether the process filters its system calls, and the library makes none of its own any more. Forked
/// children are confined, too.
static IS_CONFINED: AtomicBool = AtomicBool::new(false);

pub(crate) fn set_confined() {
    IS_CONFINED.store(true, Ordering::Relaxed);
}

pub(crate) fn is_process_confined() -> bool {
    IS_CONFINED.load(Ordering::Relaxed)
}

/// Whether this is a child that shares the memory of another process, but not its descriptors (vfork(2)): the
/// state is the parent's. In confined processes, whose filters may forbid to ask, there is no state any more
/// that matters.
pub(crate) fn is_vfork_child() -> bool {
    let process = SHARED.process.load(Ordering::Relaxed);
    process != 0 && !is_process_confined() && process != sys::process_id() as u32
}

/// No burst begins from now on, until [`end_burst_pause`]. (If the call in between is left, none begins any
/// more.)
pub(crate) fn begin_burst_pause() {
    OBSTACLES.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn end_burst_pause() {
    OBSTACLES.fetch_sub(1, Ordering::Relaxed);
}

pub(crate) const PAGE_BYTES: usize = size_of::<SharedState>();

/// The state of the current burst in one word, so that a datagram joins it by one compare-and-exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BurstStateWord(u64);

impl BurstStateWord {
    #[inline]
    pub(crate) fn load() -> Self {
        // Acquire: pairs with the release of `try_replace`, which publishes the burst's bytes.
        Self(SHARED.word.load(Ordering::Acquire))
    }

    /// The word as a number, which is not 0 while there is a burst.
    #[inline]
    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    /// The number of the burst, among all bursts of the process.
    #[inline]
    pub(crate) fn burst_number(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Datagrams of the burst that the kernel has already, because they were sent one by one.
    #[inline]
    pub(crate) fn sent_count(self) -> usize {
        usize::from((self.0 >> 16) as u16)
    }

    /// All datagrams of the burst, including those that the kernel has.
    #[inline]
    pub(crate) fn datagram_count(self) -> usize {
        usize::from(self.0 as u16)
    }

    #[inline]
    fn from_fields(number: u32, first: usize, count: usize) -> Self {
        Self((u64::from(number) << 32) | ((first as u64 & 0xffff) << 16) | (count as u64 & 0xffff))
    }

    #[inline]
    pub(crate) fn with_one_more(self) -> Self {
        // No overflow into `first`: a burst has at most `SEGMENTS_MAX` datagrams.
        Self::from_fields(self.burst_number(), self.sent_count(), self.datagram_count() + 1)
    }

    pub(crate) fn with_sent_count(self, first: usize) -> Self {
        Self::from_fields(self.burst_number(), first, self.datagram_count())
    }

    /// The state without a burst; the next burst gets another number.
    pub(crate) fn ended(self) -> Self {
        Self::from_fields(self.burst_number().wrapping_add(1), 0, 0)
    }

    /// Replaces the word, unless it has changed because a signal handler of the same thread handed the burst
    /// over. The lock is held.
    #[inline]
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn try_replace(self, by: Self) -> bool {
        let found: u64;
        // Without `lock`, which costs as much as a hundred bytes' copy: no other thread writes the word, and
        // a handler of this one cannot come within an instruction. Stores are seen in their order here, which
        // is the release that pairs with the acquire of `load`.
        //
        // SAFETY: writes to the word only, as an atomic store would.
        unsafe {
            std::arch::asm!(
                "cmpxchg qword ptr [{word}], {by}",
                word = in(reg) SHARED.word.as_ptr(),
                by = in(reg) by.0,
                inout("rax") self.0 => found,
                options(nostack),
            );
        }
        found == self.0
    }

    /// Replaces the word, unless it has changed because a signal handler of the same thread handed the burst
    /// over.
    #[inline]
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn try_replace(self, by: Self) -> bool {
        SHARED.word.compare_exchange(self.0, by.0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

#[inline]
pub(crate) fn is_burst_queued() -> bool {
    // Relaxed: a thread that must see the burst of another has synchronised with it since.
    SHARED.word.load(Ordering::Relaxed) as u32 != 0
}

/// Who holds the lock: the address of a thread's own data, or this for the thread of the deadline.
const TICKER: usize = 1;

/// Attempts to take a lock, without and with sleeping: about a second in all, after which the caller
/// continues without it.
const SPINS: u32 = 200;
const ATTEMPTS_MAX: u32 = 20_000;
const SLEEP_NS: u64 = 50_000;

/// One holder at a time. A signal handler does not wait for the call that it interrupted.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct BurstLock {
    owner: AtomicUsize,
    /// The holder's stack pointer; 0 if it is not stored yet, because that is not done in one instruction.
    stack: AtomicUsize,
}

/// Why a call does not get the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockError {
    /// This thread holds the lock already: the caller is a signal handler that interrupted a call.
    Interrupted,
    /// Another thread did not release it in time.
    TimedOut,
}

/// Proves that the lock is held. It is [released](Self::release) by hand: what a thread leaves when it ends
/// in a signal handler must have nothing to drop.
#[derive(Debug)]
#[must_use]
pub(crate) struct BurstLockGuard {
    owner: usize,
}

impl BurstLock {
    #[inline]
    fn acquire_as(&self, owner: usize) -> Result<BurstLockGuard, usize> {
        // Acquire: pairs with the release of the holder before.
        let acquired = self.owner.compare_exchange(0, owner, Ordering::Acquire, Ordering::Relaxed);
        acquired?;
        self.stack.store(sys::stack_pointer(), Ordering::Relaxed);
        // A signal handler that jumped before the stack pointer was stored has released the lock, and may yet
        // have returned here.
        compiler_fence(Ordering::SeqCst);
        match self.owner.load(Ordering::Relaxed) {
            still if still == owner => Ok(BurstLockGuard { owner }),
            other => Err(other),
        }
    }

    /// `None` if the lock is taken.
    #[inline]
    pub(crate) fn try_acquire(&self) -> Option<BurstLockGuard> {
        self.acquire_as(sys::thread_identity()).ok()
    }

    /// Runs code under the lock; `None` if it is taken.
    #[inline]
    pub(crate) fn try_run_locked<R>(&self, run: impl FnOnce(&BurstLockGuard) -> R) -> Option<R> {
        self.try_acquire().map(|guard| guard.run_and_release(run))
    }

    /// Runs code under the lock.
    #[inline]
    pub(crate) fn run_locked<R>(&self, run: impl FnOnce(&BurstLockGuard) -> R) -> Result<R, LockError> {
        let own = sys::thread_identity();
        match self.acquire_as(own) {
            Ok(guard) => Ok(guard.run_and_release(run)),
            Err(owner) if owner == own => Err(LockError::Interrupted),
            Err(_) => self.wait_to_acquire(own).map(|guard| guard.run_and_release(run)),
        }
    }

    #[cold]
    fn wait_to_acquire(&self, own: usize) -> Result<BurstLockGuard, LockError> {
        for attempt in 0..ATTEMPTS_MAX {
            match attempt {
                ..SPINS => std::hint::spin_loop(),
                // A holder of lower priority would never run if all this did was to yield.
                _ if attempt % 2 == 0 => sys::yield_processor(),
                _ => sys::sleep_ns(SLEEP_NS),
            }
            if let Ok(guard) = self.acquire_as(own) {
                return Ok(guard);
            }
        }
        Err(LockError::TimedOut)
    }

    /// Whether this thread holds the lock.
    pub(crate) fn is_held_by_this_thread(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == sys::thread_identity()
    }

    /// Whether a jump of this thread to `target`, a stack pointer, leaves a call that holds the lock: it
    /// comes from a signal handler that interrupted the call. (If it only leads to another place in the
    /// handler, the call goes on.)
    pub(crate) fn is_abandoned_by_jump(&self, target: usize) -> bool {
        if !self.is_held_by_this_thread() {
            return false;
        }
        jump_leaves_call(
            self.stack.load(Ordering::Relaxed),
            sys::stack_pointer(),
            target,
            &sys::signal_stack_range(),
        )
    }

    /// Releases the lock of a call of this thread that never continues, and whose burst is handed over.
    pub(crate) fn release_abandoned(&self) {
        SHARED.sending.store(0, Ordering::Relaxed);
        BurstLockGuard { owner: sys::thread_identity() }.release();
    }

    /// Runs code under the lock for the thread of the deadline, which never waits.
    pub(crate) fn try_run_locked_for_ticker<R>(&self, run: impl FnOnce(&BurstLockGuard) -> R) -> Option<R> {
        self.acquire_as(TICKER).ok().map(|guard| guard.run_and_release(run))
    }
}

/// Whether a jump to `target` leaves a call that had the stack pointer `call`, interrupted by a handler that
/// has `now`. What a handler jumps to within itself is between the two if it runs on the call's stack, and is
/// on the stack for signals if it runs there.
fn jump_leaves_call(call: usize, now: usize, target: usize, signals: &Range<usize>) -> bool {
    if signals.contains(&target) {
        return signals.contains(&call) && target > call;
    }
    signals.contains(&call) || signals.contains(&now) || !(now..=call).contains(&target)
}

impl BurstLockGuard {
    #[inline]
    fn run_and_release<R>(self, run: impl FnOnce(&Self) -> R) -> R {
        let result = run(&self);
        self.release();
        result
    }

    #[inline]
    pub(crate) fn release(self) {
        // First: behind the release it would be the next holder's that is cleared.
        SHARED.lock.stack.store(0, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        // A signal handler that jumps here, within itself, releases the lock, because it finds no stack
        // pointer; then it may be another's. Release: pairs with the acquire of the next holder.
        let _ = SHARED.lock.owner.compare_exchange(self.owner, 0, Ordering::Release, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;
    use crate::burst::tests::lock_for_test;

    #[test]
    fn a_lock_released_by_a_jump_stays_with_its_next_holder() {
        let _test_lock = lock_for_test();
        let guard = SHARED.lock.try_acquire().unwrap();
        SHARED.lock.release_abandoned();
        let (is_taken, is_over) = (Barrier::new(2), Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                let next = SHARED.lock.try_acquire().unwrap();
                is_taken.wait();
                is_over.wait();
                next.release();
            });
            is_taken.wait();
            guard.release();
            let is_free = SHARED.lock.try_run_locked(|_| ()).is_some();
            is_over.wait();
            assert!(!is_free);
        });
    }

    #[test]
    fn jumps_out_of_and_within_handlers_are_distinguished() {
        let signals = 300..400;
        for (call, now, target, expected) in [
            (200, 100, 150, false),
            (200, 100, 250, true),
            // To another stack: of a coroutine.
            (200, 100, 50, true),
            (200, 100, 950, true),
            // On the stack for signals.
            (200, 350, 380, false),
            (200, 350, 250, true),
            (200, 350, 50, true),
            // A call of a handler there, and a handler that interrupted that.
            (350, 320, 330, false),
            (350, 320, 370, true),
            (350, 320, 200, true),
            // The call has not stored it yet.
            (0, 100, 250, true),
        ] {
            assert_eq!(jump_leaves_call(call, now, target, &signals), expected, "{call} {now} {target}");
        }
    }

    #[test]
    fn the_fields_of_a_burst_word_do_not_overlap() {
        let word = BurstStateWord::from_fields(u32::MAX, 3, 64);
        assert_eq!((word.burst_number(), word.sent_count(), word.datagram_count()), (u32::MAX, 3, 64));
        assert_eq!(word.with_one_more(), BurstStateWord::from_fields(u32::MAX, 3, 65));
        assert_eq!(word.with_sent_count(7), BurstStateWord::from_fields(u32::MAX, 7, 64));
        assert_eq!(word.ended(), BurstStateWord::from_fields(0, 0, 0));
    }
}
