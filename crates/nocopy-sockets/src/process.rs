//! Start of the library in a process, forks, the end of the process, and conditions under which the library
//! stops doing anything. A child that shares the memory of its parent (vfork(2)) changes nothing of the
//! parent's.

use std::sync::atomic::Ordering;

use nocopy_proto::run::sockets::Flush;

use crate::shared::{self, PAGE_BYTES, SHARED};
use crate::{by_hand, eligibility, environment, jump, outgoing, record, slots, sys, ticker};

/// Called before the program starts.
pub(crate) fn start_library() {
    environment::read_environment();
    jump::find_mangling_key();
    record::map_report_file();
    ticker::set_flush_function(outgoing::flush_at_deadline);
    // SAFETY: the page is the library's own, and all zero; the kernel clears it in children, where the
    // handlers below are not called.
    unsafe { libc::madvise((&raw const SHARED).cast_mut().cast(), PAGE_BYTES, libc::MADV_WIPEONFORK) };
    // SAFETY: the handlers are functions of this library, which stays loaded (`build.rs`).
    unsafe { libc::pthread_atfork(Some(before_fork), None, Some(after_fork_in_child)) };
    record_process_id();
    shared::switch_library(true);
}

fn record_process_id() {
    if shared::is_process_confined() {
        return;
    }
    SHARED.process.store(sys::process_id() as u32, Ordering::Relaxed);
}

/// Switches the library off: no further burst begins. A current burst is handed over, even one that another
/// thread was about to begin.
pub(crate) fn switch_library_off() {
    if shared::is_vfork_child() {
        return outgoing::flush_burst(Flush::Process);
    }
    shared::switch_library(false);
    wait_for_lock_holder();
    if environment::settings().by_hand.is_some() {
        by_hand::flush_minimal_burst();
    }
    flush_and_end_ticker();
}

/// A thread that holds the lock now may have found the library on: the burst that it begins leaves with the
/// next [flush](outgoing::flush_burst). Those that take the lock from now on see that it is off.
fn wait_for_lock_holder() {
    let _ = SHARED.lock.run_locked(|_| ());
}

/// Hands over the burst, even one that another thread begins during this, and ends the thread for the
/// deadline.
fn flush_and_end_ticker() {
    outgoing::flush_burst(Flush::Process);
    if shared::is_vfork_child() {
        return;
    }
    ticker::end_ticker();
    outgoing::flush_burst(Flush::Process);
}

/// Switches the library off when the process ends.
pub(crate) fn end_library() {
    switch_library_off();
    outgoing::flush_before_closing(0..=i32::MAX, Flush::Process);
}

/// Switches the library off, because the process filters its system calls from now on, and the filter may
/// kill it for calls that bursts need. (A filter with which it was started is made for programs in general,
/// which make the same calls.)
pub(crate) fn switch_off_for_seccomp() {
    let is_vfork_child = shared::is_vfork_child();
    if !shared::is_library_off() && !is_vfork_child {
        record::record_confined();
    }
    switch_library_off();
    if !is_vfork_child {
        shared::set_confined();
    }
}

/// Ends the library's thread, so that only the program's own threads exist until the next burst.
pub(crate) fn end_library_thread() {
    flush_and_end_ticker();
    eligibility::forget_disciplines();
}

/// Ends the library's thread before a call that changes all threads that the C library knows; the next one is
/// started after it, with the rights that are left ([`shared::end_burst_pause`]).
pub(crate) fn pause_for_credential_change() {
    shared::begin_burst_pause();
    wait_for_lock_holder();
    end_library_thread();
}

/// Hands over the burst and ends the thread before a fork: the burst belongs to the parent, and a program
/// that inspects its threads must find only its own.
unsafe extern "C" fn before_fork() {
    flush_and_end_ticker();
}

unsafe extern "C" fn after_fork_in_child() {
    // SAFETY: the child of a fork has one thread. The page is as in a new process: also where the kernel
    // could not clear it.
    unsafe {
        std::ptr::write_bytes((&raw const SHARED).cast_mut().cast::<u8>(), 0, PAGE_BYTES);
        slots::forget_all_in_child();
    }
    record_process_id();
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::burst::tests::TestBurst;

    #[test]
    fn a_burst_begun_during_switch_off_is_sent() {
        let mut burst = TestBurst::begin(0);
        shared::switch_library(true);
        thread::scope(|scope| {
            let switching = scope.spawn(switch_library_off);
            while !shared::is_library_off() {
                thread::yield_now();
            }
            // Long enough for a thread that does not wait for the lock.
            (0..100).for_each(|_| thread::yield_now());
            burst.add_datagram(7);
            burst.unlock();
            switching.join().unwrap();
        });
        assert_eq!(burst.arrived_numbers(), [7]);
    }
}
