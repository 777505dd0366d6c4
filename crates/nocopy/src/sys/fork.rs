//! Distinguishes a forked child from its parent.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// The number of forks between the first process and this one. Written only by the child, before it runs;
/// nothing else depends on it.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// A generation of processes. Things made in an earlier one belong to the parent: sockets are shared, memory
/// is a copy, or not mapped (`MADV_DONTFORK`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generation(u32);

impl Generation {
    /// This process's generation.
    ///
    /// # Panics
    /// If the C library has no memory for its fork handler.
    pub fn current() -> Self {
        // Not a lock: a child forked while another thread holds it would wait for ever. If the handler is
        // registered twice, it counts two for each fork, which works too.
        static IS_WATCHED: AtomicBool = AtomicBool::new(false);
        if !IS_WATCHED.load(Ordering::Relaxed) {
            // SAFETY: the handler only stores a number; the C library forgets it when it unloads what it lies
            // in.
            let result = unsafe { libc::pthread_atfork(None, None, Some(count_fork_in_child)) };
            assert_eq!(result, 0, "no memory to remember forks");
            IS_WATCHED.store(true, Ordering::Relaxed);
        }
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Whether this process is of a later generation.
    #[inline]
    pub fn is_outdated(self) -> bool {
        self.0 != GENERATION.load(Ordering::Relaxed)
    }
}

unsafe extern "C" fn count_fork_in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// A value that each process makes for itself, and never drops. A forked child does not use its parent's,
/// because a thread that does not exist in the child may hold its lock.
#[derive(Debug)]
pub(crate) struct PerProcess<T>(AtomicPtr<(Generation, T)>);

impl<T: Default + Send + Sync + 'static> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    pub(crate) fn get(&self) -> &'static T {
        let found = self.0.load(Ordering::Acquire); // partner: the exchange below
        // SAFETY: null, or of a box that was leaked below.
        if let Some((generation, value)) = unsafe { found.as_ref() }
            && !generation.is_outdated()
        {
            return value;
        }
        let made = Box::into_raw(Box::new((Generation::current(), T::default())));
        let placed = self.0.compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire);
        let value = placed.map_or_else(
            |others| {
                // SAFETY: from `into_raw`, and nobody else has seen it.
                drop(unsafe { Box::from_raw(made) });
                others // another thread of this process was first
            },
            |_| made,
        );
        // SAFETY: of a box that is leaked.
        unsafe { &(*value).1 }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use nocopy_lab::patience::{PATIENCE, uninterrupted};

    use super::*;

    /// Runs the work in a forked child. Fails if that panics or hangs.
    pub(crate) fn in_forked_child(work: impl FnOnce()) {
        // SAFETY: the child does the work with what this thread has, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: it ends a child that hangs.
            unsafe { libc::alarm(PATIENCE.as_secs() as u32) };
            let done = catch_unwind(AssertUnwindSafe(work));
            // SAFETY: nothing of this process is to be run in its place.
            unsafe { libc::_exit(if done.is_ok() { 7 } else { 8 }) }
        }
        let mut status = 0;
        // SAFETY: `status` is a place for one.
        let wait = || match unsafe { libc::waitpid(child, &raw mut status, 0) } {
            -1 => Err(std::io::Error::last_os_error()),
            child => Ok(child),
        };
        assert_eq!(uninterrupted(wait).unwrap(), child);
        assert_eq!((status & 0x7f, status >> 8), (0, 7), "the child's signal and its exit code");
    }

    #[test]
    fn a_forked_child_has_its_own_values() {
        static VALUE: PerProcess<AtomicU32> = PerProcess::new();
        VALUE.get().store(3, Ordering::Relaxed);
        assert_eq!(VALUE.get().load(Ordering::Relaxed), 3);
        in_forked_child(|| {
            assert_eq!(VALUE.get().load(Ordering::Relaxed), 0);
            VALUE.get().store(5, Ordering::Relaxed);
            assert_eq!(VALUE.get().load(Ordering::Relaxed), 5);
        });
        assert_eq!(VALUE.get().load(Ordering::Relaxed), 3);
    }
}
