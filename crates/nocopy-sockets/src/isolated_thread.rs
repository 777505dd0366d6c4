//! A short-lived thread, without the program's descriptors: what it opens takes none of their numbers. A
//! program may count on a number, as one that closes its standard input and expects that the next file it
//! opens is that.
//!
//! Like the [thread for the deadline](crate::ticker) it makes system calls only.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::Acquire, Ordering::Release};

use crate::sys;
use crate::ticker::{CHECK_NS, FLAGS, ThreadStack, spawn_thread, wait_until_thread_released};

/// What it does, with memory of its caller; the result.
pub(crate) type Work = fn(&mut [u8]) -> u32;

static STACK: ThreadStack = ThreadStack::new();

struct ThreadTask<'a> {
    work: Work,
    memory: &'a mut [u8],
    result: u32,
}

/// What is to be done, in a variable of the caller.
static TASK: AtomicPtr<ThreadTask<'_>> = AtomicPtr::new(std::ptr::null_mut());

/// The number of the thread while there is one; cleared by the kernel.
static THREAD: AtomicU32 = AtomicU32::new(0);

/// Does something in such a thread. `None`: there is no room for a thread. One caller at a time: the holder
/// of the lock.
pub(crate) fn run_in_isolated_thread(work: Work, memory: &mut [u8]) -> Option<u32> {
    let mut task = ThreadTask { work, memory, result: 0 };
    TASK.store((&raw mut task).cast(), Release);
    let signals = sys::block_signals();
    // SAFETY: the stack is free, as the thread before is gone, which the caller waited for.
    let thread = unsafe { spawn_thread(FLAGS, STACK.top(), THREAD.as_ptr(), run_task) };
    let is_started = sys::result_errno(thread).is_none();
    // A wait for the end is woken by the kernel; the time is for a wake-up that is missed.
    while is_started && THREAD.load(Acquire) != 0 {
        sys::futex_wait(&THREAD, thread as u32, CHECK_NS);
    }
    if is_started {
        // Others may look whether the process has one thread.
        wait_until_thread_released(&THREAD, thread as u32);
    }
    sys::set_blocked_signals(signals);
    is_started.then_some(task.result)
}

unsafe extern "C" fn run_task() -> ! {
    // Before Linux 5.9 the thread keeps the program's.
    sys::unshare_descriptors();
    // SAFETY: the caller waits with its variable for the end of this thread, and blocks signals.
    let task = unsafe { &mut *TASK.load(Acquire) };
    task.result = (task.work)(task.memory);
    sys::end_thread()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::burst::tests::lock_for_test;

    #[test]
    fn the_isolated_thread_has_no_descriptor_of_the_program() {
        let _test_lock = lock_for_test();
        let _open: Vec<File> = (0..3).map(|_| File::open("/dev/null").unwrap()).collect();
        let lowest = |_: &mut [u8]| {
            let socket = sys::open_netlink_socket();
            sys::close(socket as i32);
            socket as u32
        };
        assert_eq!([(); 3].map(|()| run_in_isolated_thread(lowest, &mut [])), [Some(0); 3]);
        let sum = |memory: &mut [u8]| memory.iter().copied().map(u32::from).sum();
        assert_eq!(run_in_isolated_thread(sum, &mut [1, 2, 3]), Some(6));
    }
}
