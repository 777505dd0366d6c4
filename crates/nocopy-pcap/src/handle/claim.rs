//! The right to use what a handle reads with, which one step of a call at a time has.
//!
//! A reading call has it while it looks for packets, and gives it back before it waits and before it calls
//! the program. So a thread may leave the call there in any way, and whichever call comes next finds the
//! handle whole: nothing has to be noticed or undone.
//!
//! Two things are left to find out, both by comparing positions on the stack ([`StackPosition`]): a call at
//! the same position as an earlier one of its thread, or above it, shows that the earlier one is over. A read
//! in a callback is refused, because it would give back the packet that the callback looks at; a read after
//! the callback was left is not. And if a signal handler left a step itself by siglongjmp(3), the next step
//! of that thread goes on.

use std::hint::black_box;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::timed_wait::poll_within;

/// Instead of a holder: nobody has it.
const FREE: usize = 0;

/// Instead of a thread: no thread is recorded.
const NONE: usize = 0;

/// How long another thread may take for a step: it waits for nothing, but may not get a processor.
const STEP_TIMEOUT: Duration = Duration::from_secs(1);

/// Where a call runs: its thread, and the lowest address of its [`StackMark`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct StackPosition {
    thread: usize,
    address: usize,
}

impl StackPosition {
    /// Whether a call from there may still go on in this thread, of which the caller is a part: its callback,
    /// or a signal handler.
    pub(crate) fn may_be_nested_in(self, outer: Self) -> bool {
        self.thread == outer.thread && !self.proves_call_ended(outer.address)
    }

    /// Whether this position proves that an earlier call of the same thread is over; `mark` is the lowest
    /// address of that call's mark.
    fn proves_call_ended(self, mark: usize) -> bool {
        if self.address + StackMark::BYTES <= mark {
            return false; // further down the same stack, or on another one
        }
        // Two marks that overlap, on any stack: the earlier call is over. On the thread's own stack a call
        // further up is enough, because that stack grows downward (on all processors that Linux supports XDP
        // on): code above a call runs only after that call is over.
        self.address < mark + StackMark::BYTES
            || thread_stack_range()
                .is_some_and(|stack| stack.contains(&mark) && stack.contains(&self.address))
    }
}

/// The stack that this thread was started with. `None` if the caller is a signal handler on a separate stack,
/// or if the C library cannot find it out (for the main thread it reads /proc).
#[cold]
fn thread_stack_range() -> Option<Range<usize>> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut start, mut bytes) = (null_mut(), 0);
    // SAFETY: all-zero is a valid `stack_t`.
    let mut signal_stack: libc::stack_t = unsafe { std::mem::zeroed() };
    // SAFETY: the pointers are to values of these types; the attributes are read where they were written, and
    // given back once.
    unsafe {
        // The memory of a signal stack may be a local variable, and so lie inside the thread's own stack.
        let is_known = libc::sigaltstack(null(), &raw mut signal_stack) == 0;
        if !is_known || signal_stack.ss_flags & libc::SS_ONSTACK != 0 {
            return None;
        }
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        let result = libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut start, &raw mut bytes);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        (result == 0).then(|| start.addr()..start.addr() + bytes)
    }
}

/// A block of stack memory that marks the position of a call that reads or closes. Functions that the call
/// itself calls lie below the block if they run on the same stack. If the program left the call by longjmp
/// and then calls again from the same function, the block of the new call overlaps this one or lies above it:
/// the block is larger than the stack frames between the program and any such call.
#[derive(Debug)]
#[repr(align(16))]
pub(crate) struct StackMark(MaybeUninit<[u8; Self::BYTES]>);

impl StackMark {
    /// More than the stack frames between the program and any mark.
    const BYTES: usize = 2048;

    /// Must stay in the local variable in which it is created, because its address is compared.
    pub(crate) const fn new() -> Self {
        Self(MaybeUninit::uninit())
    }

    #[inline]
    fn lowest_address(&self) -> usize {
        black_box(&raw const self.0).addr()
    }

    #[inline]
    pub(crate) fn position(&self) -> StackPosition {
        // SAFETY: takes nothing, and always succeeds.
        StackPosition { thread: unsafe { libc::pthread_self() } as usize, address: self.lowest_address() }
    }
}

/// Who has the right: one step at a time.
#[derive(Debug)]
pub(crate) struct Claim {
    /// [`FREE`], or the lowest address of the mark of the call whose step has it.
    holder: AtomicUsize,
    /// The thread of that call, stored after it took the right and cleared before it returns it. So if a
    /// thread reads its own number here, one of its own calls took it and did not return it.
    thread: AtomicUsize,
}

impl Claim {
    pub(crate) const fn new() -> Self {
        Self { holder: AtomicUsize::new(FREE), thread: AtomicUsize::new(NONE) }
    }

    /// Takes it if nobody has it.
    #[inline]
    pub(crate) fn try_acquire(&self, position: StackPosition) -> bool {
        self.replace_holder(FREE, position)
    }

    /// Takes it, and waits for a step of another thread. False in a signal handler that interrupted a step,
    /// and if a step does not end.
    pub(crate) fn acquire(&self, position: StackPosition) -> bool {
        let attempt = || {
            let found = self.holder.load(Ordering::Relaxed);
            let is_own = found != FREE && self.thread.load(Ordering::Relaxed) == position.thread;
            if is_own && !position.proves_call_ended(found) {
                return Some(false);
            }
            ((found == FREE || is_own) && self.replace_holder(found, position)).then_some(true)
        };
        poll_within(STEP_TIMEOUT, attempt).unwrap_or(false)
    }

    #[inline]
    fn replace_holder(&self, found: usize, position: StackPosition) -> bool {
        // Acquire: pairs with the release in `release`.
        let acquired = self
            .holder
            .compare_exchange(found, position.address, Ordering::Acquire, Ordering::Relaxed)
            .is_ok();
        if acquired {
            self.thread.store(position.thread, Ordering::Relaxed);
        }
        acquired
    }

    /// Returns it; only for the step that has it.
    #[inline]
    pub(crate) fn release(&self) {
        self.thread.store(NONE, Ordering::Relaxed);
        // Release: pairs with the acquire in `replace_holder`.
        self.holder.store(FREE, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs something further down the stack, as a function that a reading call calls.
    #[inline(never)]
    fn run_deeper_on_stack<R>(run: impl FnOnce(StackPosition) -> R) -> R {
        run(black_box(&StackMark::new()).position())
    }

    #[test]
    fn only_one_step_at_a_time_has_the_claim() {
        let claim = Claim::new();
        let mark = StackMark::new();
        assert!(claim.try_acquire(mark.position()) && !claim.try_acquire(mark.position()));
        assert!(
            !run_deeper_on_stack(|position| claim.acquire(position)),
            "a signal handler does not wait for the step it interrupted"
        );
        std::thread::scope(|scope| {
            let other = scope.spawn(|| claim.acquire(StackMark::new().position()));
            claim.release();
            assert!(other.join().unwrap(), "another thread waits for the step");
        });
        claim.release();
        assert!(claim.try_acquire(mark.position()));
    }

    #[test]
    fn a_step_left_by_siglongjmp_does_not_block_its_thread() {
        let claim = Claim::new();
        assert!(run_deeper_on_stack(|position| claim.acquire(position)));
        assert!(
            run_deeper_on_stack(|position| claim.acquire(position)),
            "called from the same function again"
        );
        assert!(claim.acquire(StackMark::new().position()), "called from further up the stack");
    }

    #[test]
    fn a_call_may_be_nested_unless_its_position_proves_the_outer_ended() {
        let mark = StackMark::new();
        let (outer, first) = (mark.position(), run_deeper_on_stack(|position| position));
        assert!(
            run_deeper_on_stack(|position| position.may_be_nested_in(outer))
                && !outer.may_be_nested_in(first)
        );
        assert!(
            !run_deeper_on_stack(|position| position.may_be_nested_in(first)),
            "the second call of one function"
        );
        let elsewhere =
            std::thread::scope(|scope| scope.spawn(|| StackMark::new().position()).join().unwrap());
        assert!(!elsewhere.may_be_nested_in(outer));
    }
}
