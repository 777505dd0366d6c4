//! Start of the library in a process, forks, the end of the process, and conditions under which the library
//! stops doing anything. A child that shares the memory of its parent (vfork(2)) changes nothing of the
//! parent's.

use std::sync::atomic::Ordering;

use nocopy_proto::run::sockets::Flush;

use crate::shared::{self, PAGE_BYTES, SHARED};
use crate::{by_hand, eligibility, environment, jump, outgoing, record, slots, sys, ticker};

/// Called before the program starts.
pub(crate) fn begin() {
    environment::read();
    jump::find_key();
    record::open();
    ticker::set_flush(outgoing::flush_by_deadline);
    // SAFETY: the page is the library's own, and all zero; the kernel clears it in children, where the
    // handlers below are not called.
    unsafe { libc::madvise((&raw const SHARED).cast_mut().cast(), PAGE_BYTES, libc::MADV_WIPEONFORK) };
    // SAFETY: the handlers are functions of this library, which stays loaded (`build.rs`).
    unsafe { libc::pthread_atfork(Some(before_fork), None, Some(in_child)) };
    record_process();
    shared::switch(true);
}

fn record_process() {
    if shared::is_confined() {
        return;
    }
    SHARED.process.store(sys::process() as u32, Ordering::Relaxed);
}

/// Switches the library off: no further burst begins. A current burst is handed over, even one that another
/// thread was about to begin.
pub(crate) fn switch_off() {
    if shared::is_vfork_child() {
        return outgoing::flush(Flush::Process);
    }
    shared::switch(false);
    wait_for_lock_holder();
    if environment::settings().by_hand.is_some() {
        by_hand::finish();
    }
    flush_and_end_ticker();
}

/// A thread that holds the lock now may have found the library on: the burst that it begins leaves with the
/// next [flush](outgoing::flush). Those that take the lock from now on see that it is off.
fn wait_for_lock_holder() {
    let _ = SHARED.lock.with(|_| ());
}

/// Hands over the burst, even one that another thread begins during this, and ends the thread for the
/// deadline.
fn flush_and_end_ticker() {
    outgoing::flush(Flush::Process);
    if shared::is_vfork_child() {
        return;
    }
    ticker::end();
    outgoing::flush(Flush::Process);
}

/// Switches the library off when the process ends.
pub(crate) fn end() {
    switch_off();
    outgoing::flush_before_closing(0..=i32::MAX, Flush::Process);
}

/// Switches the library off, because the process filters its system calls from now on, and the filter may
/// kill it for calls that bursts need. (A filter with which it was started is made for programs in general,
/// which make the same calls.)
pub(crate) fn confine() {
    let is_vfork_child = shared::is_vfork_child();
    if !shared::is_off() && !is_vfork_child {
        record::record_confined();
    }
    switch_off();
    if !is_vfork_child {
        shared::confine();
    }
}

/// Ends the library's thread, so that only the program's own threads exist until the next burst.
pub(crate) fn quiesce() {
    flush_and_end_ticker();
    eligibility::forget_disciplines();
}

/// Ends the library's thread before a call that changes all threads that the C library knows; the next one is
/// started after it, with the rights that are left ([`shared::end_pause`]).
pub(crate) fn pause() {
    shared::begin_pause();
    wait_for_lock_holder();
    quiesce();
}

/// Hands over the burst and ends the thread before a fork: the burst belongs to the parent, and a program
/// that inspects its threads must find only its own.
unsafe extern "C" fn before_fork() {
    flush_and_end_ticker();
}

unsafe extern "C" fn in_child() {
    // SAFETY: the child of a fork has one thread. The page is as in a new process: also where the kernel
    // could not clear it.
    unsafe {
        std::ptr::write_bytes((&raw const SHARED).cast_mut().cast::<u8>(), 0, PAGE_BYTES);
        slots::begin_process();
    }
    record_process();
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::burst::tests::Burst;

    #[test]
    fn a_burst_begun_during_switch_off_is_sent() {
        let mut burst = Burst::begin(0);
        shared::switch(true);
        thread::scope(|scope| {
            let switching = scope.spawn(switch_off);
            while !shared::is_off() {
                thread::yield_now();
            }
            // Long enough for a thread that does not wait for the lock.
            (0..100).for_each(|_| thread::yield_now());
            burst.add(7);
            burst.unlock();
            switching.join().unwrap();
        });
        assert_eq!(burst.arrived(), [7]);
    }
}
