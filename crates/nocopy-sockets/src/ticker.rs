//! The thread for the deadline: hands over a burst that has waited for further datagrams for 90 us.
//!
//! The thread exists only while there are bursts. The C library does not know it: `pthread_create` allocates
//! memory, which a function that a signal handler may call must not do. So the thread makes system calls
//! only, and uses nothing of the C library, not even `errno`. All signals are blocked in it. It ends before
//! calls that require a process with one thread, or that change all threads one by one ([`end_ticker`]).
//!
//! The thread sleeps until a timer signals it. Code that begins a burst postpones the timer when it is about
//! to expire ([`arm_deadline`]). So a sender that fills its bursts quickly never wakes the thread: on a
//! virtual machine, a wake-up costs tens of microseconds, and postponing the timer one, per passed deadline
//! instead of per burst. (The timer is made by `timer_create`, because a timerfd would be a descriptor among
//! the program's.)

use std::arch::naked_asm;
use std::cell::UnsafeCell;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, fence};

use crate::shared::{BurstStateWord, SHARED};
use crate::{environment, sys};

/// The thread ends after this time without a burst.
const IDLE_NS: u64 = 10_000_000;

/// A timer that fires sooner than after this share of the deadline is postponed.
const MARGIN_SHARE: u64 = 4;

/// A burst for which its socket has no room is tried again after this many deadlines.
const STUCK_TIMES: u64 = 10;

/// How often to check whether an ending thread has ended, and how long to sleep between checks.
const CHECKS_MAX: u32 = 10_000;
pub(crate) const CHECK_NS: u64 = 1_000_000;

const STACK_BYTES: usize = 64 << 10;

#[repr(C, align(16))]
pub(crate) struct ThreadStack(UnsafeCell<[u8; STACK_BYTES]>);

// SAFETY: one thread at a time uses it, as its stack.
unsafe impl Sync for ThreadStack {}

impl ThreadStack {
    pub(crate) const fn new() -> Self {
        Self(UnsafeCell::new([0; STACK_BYTES]))
    }

    /// Where a thread begins.
    pub(crate) fn top(&self) -> *mut u8 {
        self.0.get().wrapping_add(1).cast()
    }
}

static STACK: ThreadStack = ThreadStack::new();

/// Whether there is a thread for the deadline; starts one if there is none. Called by the holder of the lock.
pub(crate) fn ensure_ticker_runs() -> bool {
    SHARED.is_ticking.load(Acquire) || start_ticker()
}

/// Whether the thread exists; it ends only while the lock is held, or in a signal handler that interrupts the
/// holder.
#[inline]
pub(crate) fn is_ticker_running() -> bool {
    SHARED.is_ticking.load(Relaxed)
}

/// The function that hands over the burst with a given number.
static FLUSH: OnceLock<fn(u32)> = OnceLock::new();

/// Sets the function that hands over the burst with a given number, before the program starts: later, a fork
/// or a jump could leave it locked.
pub(crate) fn set_flush_function(flush: fn(u32)) {
    let _ = FLUSH.set(flush);
}

#[cold]
fn start_ticker() -> bool {
    let signals = sys::block_signals();
    let is_started = stop_thread_and_wait() && start_thread_with_timer();
    sys::set_blocked_signals(signals);
    is_started
}

fn start_thread_with_timer() -> bool {
    SHARED.stop.store(0, Relaxed);
    SHARED.fires_ns.store(0, Relaxed);
    SHARED.process.store(sys::process_id() as u32, Relaxed);
    // SAFETY: the stack is free, as the thread before is gone.
    let thread = unsafe { spawn_thread(FLAGS, STACK.top(), SHARED.ticker.as_ptr(), run_ticker) };
    if sys::result_errno(thread).is_some() {
        return false;
    }
    let timer = sys::create_thread_timer(thread as i32);
    SHARED.timer.store(timer.unwrap_or(NO_TIMER), Release);
    if timer.is_none() {
        stop_thread_and_wait();
    }
    SHARED.is_ticking.store(timer.is_some(), Release);
    timer.is_some()
}

/// Means that there is no timer.
const NO_TIMER: i32 = -1;

/// Makes the thread check the burst that begins now at its deadline. The caller holds the lock.
#[inline]
pub(crate) fn arm_deadline(now_ns: u64, deadline_ns: u64) {
    // Pairs with the fence in `run_ticker`: either this finds that the timer has fired, or the thread finds
    // the burst.
    fence(SeqCst);
    let fires_ns = SHARED.fires_ns.load(Relaxed);
    if fires_ns < now_ns + deadline_ns / MARGIN_SHARE || fires_ns > now_ns + deadline_ns {
        set_deadline_timer(now_ns + deadline_ns);
    }
}

/// The thread and a sender may do this at the same time. Whichever setting wins fires within the deadline of
/// the burst that each knows, and a noted time that is not the timer's is soon in the past.
fn set_deadline_timer(fires_ns: u64) {
    SHARED.fires_ns.store(fires_ns, Relaxed);
    sys::set_timer(SHARED.timer.load(Acquire), fires_ns);
}

/// Ends the thread, and waits until it no longer exists.
pub(crate) fn end_ticker() {
    if SHARED.ticker.load(Acquire) == 0 {
        return;
    }
    // Held, so that no other thread starts one meanwhile. The one that ends does not wait for the lock.
    let end = || {
        stop_thread_and_wait();
        SHARED.is_ticking.store(false, Release);
    };
    if SHARED.lock.run_locked(|_| end()).is_err() {
        end();
    }
}

/// Notes that the holder of the lock never continues, which may have been [ending](end_ticker) the thread:
/// the next burst starts another.
pub(crate) fn reset_after_abandoned_call() {
    if SHARED.stop.load(Relaxed) != 0 {
        SHARED.is_ticking.store(false, Release);
    }
}

/// Asks the thread to end, and waits until it has.
fn stop_thread_and_wait() -> bool {
    for _ in 0..CHECKS_MAX {
        let thread = SHARED.ticker.load(Acquire);
        if thread == 0 {
            return true;
        }
        SHARED.stop.store(1, Release);
        sys::wake_thread(thread);
        sys::futex_wait(&SHARED.ticker, thread, CHECK_NS);
        wait_until_thread_released(&SHARED.ticker, thread);
    }
    false
}

/// Waits until the kernel does not know the thread any more, whose memory is free a moment before its number
/// is: that is when `number` is
/// 0. Not without end: the number may be that of another thread by then.
pub(crate) fn wait_until_thread_released(number: &AtomicU32, thread: u32) {
    let mut checks = 0..CHECKS_MAX;
    while number.load(Acquire) == 0 && sys::thread_exists(thread) && checks.next().is_some() {
        sys::yield_processor();
    }
}

/// The flags of a thread of this process; the kernel writes its number, and clears it when the thread has
/// ended.
pub(crate) const FLAGS: usize = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID) as usize;

/// Starts a thread on a stack: `clone(flags, stack, number, tls, number)`, and `run` in the new one.
///
/// # Safety
/// The stack is free, and `number` stays.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn spawn_thread(
    flags: usize,
    stack: *mut u8,
    number: *mut u32,
    run: unsafe extern "C" fn() -> !,
) -> isize {
    naked_asm!(sys::by_processor!(
        x86_64: "
        mov r9, rcx
        mov r10, rdx
        xor r8d, r8d
        mov eax, 56
        syscall
        test rax, rax
        jnz 2f
        xor ebp, ebp
        call r9
        ud2
        2:
        ret",
        aarch64: "
        mov x9, x3
        mov x4, x2
        mov x3, xzr
        mov x8, #220
        svc #0
        cbnz x0, 2f
        mov x29, xzr
        blr x9
        brk #1
        2:
        ret",
    ))
}

unsafe extern "C" fn run_ticker() -> ! {
    sys::prctl(libc::PR_SET_NAME, c"nocopy-deadline".as_ptr() as usize);
    // Otherwise every wait is 50 us longer.
    sys::prctl(libc::PR_SET_TIMERSLACK, 1);
    let deadline_ns = environment::settings().deadline_us.saturating_mul(1000);
    let mut number = BurstStateWord::load().burst_number();
    while SHARED.stop.load(Acquire) == 0 {
        let is_signalled = sys::wait_for_wake_signal(IDLE_NS);
        // The time that the burst's thread compares with may be older than this.
        SHARED.fires_ns.store(0, Relaxed);
        fence(SeqCst); // pairs with that in `arm_deadline`
        let word = BurstStateWord::load();
        if word.datagram_count() > 0 {
            flush_burst_if_due(word, deadline_ns);
        } else if !is_signalled && word.burst_number() == number && try_retire() {
            break;
        }
        number = word.burst_number();
    }
    sys::delete_timer(SHARED.timer.load(Acquire));
    sys::end_thread()
}

/// Looks at the burst: it is handed over, or is younger than the timer thought, or must wait for room.
fn flush_burst_if_due(word: BurstStateWord, deadline_ns: u64) {
    let now_ns = sys::now_ns_by_syscall();
    let due_ns = SHARED.started_ns.load(Relaxed).saturating_add(deadline_ns);
    if due_ns > now_ns {
        return set_deadline_timer(due_ns);
    }
    FLUSH.get().into_iter().for_each(|flush| flush(word.burst_number()));
    if BurstStateWord::load().burst_number() == word.burst_number() {
        // Its socket has no room, or another thread has the lock.
        let times = if SHARED.is_stuck.load(Relaxed) { STUCK_TIMES } else { 1 };
        set_deadline_timer(now_ns + deadline_ns.max(1000) * times);
    }
}

/// Whether the thread may end: from then on the next burst starts another.
fn try_retire() -> bool {
    // Under the lock, so that no burst begins between the look and the note.
    let is_idle = SHARED.lock.try_run_locked_for_ticker(|_| {
        let is_idle = BurstStateWord::load().datagram_count() == 0;
        if is_idle {
            SHARED.is_ticking.store(false, Release);
        }
        is_idle
    });
    is_idle.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of a thread that has ended may be another's at once.
    #[test]
    fn a_reused_thread_number_is_not_waited_for_forever() {
        // SAFETY: takes nothing, and always succeeds.
        let own = unsafe { libc::gettid() }.cast_unsigned();
        assert!(sys::thread_exists(own));
        wait_until_thread_released(&AtomicU32::new(0), own);
    }
}
