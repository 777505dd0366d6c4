//! Functions that wait for events of several descriptors. While there is a burst, they first look without
//! waiting, so that a program may look for answers between its datagrams without ending the burst. If they
//! have to wait, they hand the burst over first.
//!
//! The look is the program's own call without its timeout. The kernel begins each such call with the same
//! look, and returns what it finds.

use std::ptr;

use libc::{epoll_event, nfds_t, pollfd, sigset_t, timespec};
use nocopy_proto::run::sockets::Flush;

use super::trampoline::replaced;
use crate::outgoing::flush_burst;
use crate::real::call;

replaced! {
    poll => replacement_poll;
    __poll => replacement_inner_poll;
    __poll_chk => replacement_poll_chk;
    ppoll => replacement_ppoll;
    __ppoll_chk => replacement_ppoll_chk;
    epoll_wait => replacement_epoll_wait;
    epoll_pwait => replacement_epoll_pwait;
}

static NO_TIMEOUT: timespec = timespec { tv_sec: 0, tv_nsec: 0 };

/// Calls a function with a timeout of zero, and if it finds nothing, with the program's.
#[inline]
fn poll_first<T>(no_timeout: T, timeout: T, real: impl Fn(T) -> i32) -> i32 {
    match real(no_timeout) {
        0 => {
            flush_burst(Flush::Wait);
            real(timeout)
        }
        found => found,
    }
}

/// As [`poll_first`]; a timeout that the kernel refuses is left to it.
///
/// # Safety
/// `timeout` is null, or valid for the C library, which reads it.
unsafe fn poll_first_if_valid(timeout: *const timespec, real: impl Fn(*const timespec) -> i32) -> i32 {
    // SAFETY: by contract.
    let is_valid = unsafe { timeout.as_ref() }
        .is_none_or(|time| time.tv_sec >= 0 && (0..1_000_000_000).contains(&time.tv_nsec));
    if !is_valid {
        flush_burst(Flush::Wait);
        return real(timeout);
    }
    poll_first(ptr::from_ref(&NO_TIMEOUT), timeout, real)
}

unsafe extern "C-unwind" fn replacement_poll(all: *mut pollfd, count: nfds_t, timeout: i32) -> i32 {
    poll_first(0, timeout, |timeout| {
        // SAFETY: the program's arguments.
        unsafe { call!(poll::REAL, (*mut pollfd, nfds_t, i32) -> i32, all, count, timeout) }
    })
}

unsafe extern "C-unwind" fn replacement_inner_poll(all: *mut pollfd, count: nfds_t, timeout: i32) -> i32 {
    poll_first(0, timeout, |timeout| {
        // SAFETY: the program's arguments.
        unsafe { call!(__poll::REAL, (*mut pollfd, nfds_t, i32) -> i32, all, count, timeout) }
    })
}

unsafe extern "C-unwind" fn replacement_poll_chk(
    all: *mut pollfd,
    count: nfds_t,
    timeout: i32,
    room: usize,
) -> i32 {
    poll_first(0, timeout, |timeout| {
        // SAFETY: the program's arguments.
        unsafe {
            call!(__poll_chk::REAL, (*mut pollfd, nfds_t, i32, usize) -> i32, all, count, timeout, room)
        }
    })
}

unsafe extern "C-unwind" fn replacement_ppoll(
    all: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    signals: *const sigset_t,
) -> i32 {
    // SAFETY: the program's arguments.
    unsafe {
        poll_first_if_valid(timeout, |timeout| {
            call!(
                ppoll::REAL,
                (*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> i32,
                all, count, timeout, signals
            )
        })
    }
}

unsafe extern "C-unwind" fn replacement_ppoll_chk(
    all: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    signals: *const sigset_t,
    room: usize,
) -> i32 {
    // SAFETY: the program's arguments.
    unsafe {
        poll_first_if_valid(timeout, |timeout| {
            call!(
                __ppoll_chk::REAL,
                (*mut pollfd, nfds_t, *const timespec, *const sigset_t, usize) -> i32,
                all, count, timeout, signals, room
            )
        })
    }
}

unsafe extern "C-unwind" fn replacement_epoll_wait(
    descriptor: i32,
    found: *mut epoll_event,
    room: i32,
    timeout: i32,
) -> i32 {
    poll_first(0, timeout, |timeout| {
        // SAFETY: the program's arguments.
        unsafe {
            call!(
                epoll_wait::REAL,
                (i32, *mut epoll_event, i32, i32) -> i32,
                descriptor, found, room, timeout
            )
        }
    })
}

unsafe extern "C-unwind" fn replacement_epoll_pwait(
    descriptor: i32,
    found: *mut epoll_event,
    room: i32,
    timeout: i32,
    signals: *const sigset_t,
) -> i32 {
    poll_first(0, timeout, |timeout| {
        // SAFETY: the program's arguments.
        unsafe {
            call!(
                epoll_pwait::REAL,
                (i32, *mut epoll_event, i32, i32, *const sigset_t) -> i32,
                descriptor, found, room, timeout, signals
            )
        }
    })
}
