//! Steps before a function of the C library: hand over the burst, and forget the facts about a descriptor.
//!
//! "C-unwind": none of them unwinds, but a thread may end in a signal handler that interrupts them, and
//! unwinds through them.

use std::ops::RangeInclusive;

use nocopy_proto::run::sockets::Flush;

use crate::outgoing::{flush, flush_before_closing};
use crate::shared::{SHARED, is_queued};
use crate::{jump, process, slots, sys, ticker};

/// Functions that only hand over the burst, for a reason.
macro_rules! flushes {
    ($($name:ident = $why:ident;)*) => { $(
        pub(super) extern "C-unwind" fn $name() {
            flush(Flush::$why);
        }
    )* };
}

flushes! {
    output = Output;
    wait = Wait;
    dup = Close;
    process = Process;
}

/// Functions after which the process, or this program in it, is gone.
pub(super) extern "C-unwind" fn process_ends() {
    closing(0..=i32::MAX, Flush::Process);
}

fn closing(descriptors: RangeInclusive<i32>, why: Flush) {
    if is_queued() {
        flush_before_closing(descriptors, why);
    }
}

fn flush_if_queued(why: Flush) {
    if is_queued() {
        flush(why);
    }
}

/// Functions that receive from a descriptor, or wait for events of one. The burst stays if there is something
/// to receive, so that a program may look for answers between its datagrams. Looking takes nothing from the
/// descriptor, neither data nor an error. If the call waits all the same, because it wants more than there
/// is, the burst leaves at its deadline.
pub(super) extern "C-unwind" fn receive(descriptor: i32) {
    if !sys::is_readable(descriptor) {
        flush(Flush::Wait);
    }
}

/// `read(descriptor, …)`, `readv`: a stored file has something to read at any time. Files of /proc and /sys
/// may count datagrams.
pub(super) extern "C-unwind" fn read(descriptor: i32) {
    match sys::is_stored(descriptor) {
        Some(true) => {}
        Some(false) => flush(Flush::Wait),
        None => receive(descriptor),
    }
}

/// `getsockopt(descriptor, level, name, …)`
pub(super) extern "C-unwind" fn option(_descriptor: i32, level: i32, name: i32) {
    let is_error = (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR);
    flush(if is_error { Flush::Wait } else { Flush::Settings });
}

/// `close(descriptor)`
pub(super) extern "C-unwind" fn close(descriptor: i32) {
    closing(descriptor..=descriptor, Flush::Close);
    slots::forget(descriptor);
}

/// `dup2(old, new)`, `dup3(old, new, flags)`
pub(super) extern "C-unwind" fn replace(_old: i32, new: i32) {
    closing(new..=new, Flush::Close);
    slots::forget(new);
}

/// `close_range(first, last, flags)`
pub(super) extern "C-unwind" fn close_range(first: u32, last: u32) {
    let [first, last] = [first, last].map(|number| i32::try_from(number).unwrap_or(i32::MAX));
    closing(first..=last, Flush::Close);
    slots::forget_from(first, last);
}

/// `closefrom(first)`
pub(super) extern "C-unwind" fn close_from(first: i32) {
    closing(first..=i32::MAX, Flush::Close);
    slots::forget_from(first, i32::MAX);
}

/// `setsockopt(descriptor, …)`, `connect`, `bind`, `shutdown`, `ioctl`: the known facts about the socket may
/// have changed.
pub(super) extern "C-unwind" fn settings(descriptor: i32) {
    flush_if_queued(Flush::Settings);
    crate::outgoing::forget_eligibility(descriptor);
}

/// `fcntl(descriptor, command, …)`
pub(super) extern "C-unwind" fn control(_descriptor: i32) {
    flush_if_queued(Flush::Settings);
}

/// `longjmp(environment, value)`: a signal handler may leave the call of this library that it interrupted.
pub(super) unsafe extern "C-unwind" fn jump(environment: *const usize) {
    // SAFETY: the program's argument.
    if SHARED.lock.is_abandoned_by_jump(unsafe { jump::target(environment) }) {
        abandon_call();
    }
}

/// `pthread_exit(result)`, perhaps in a signal handler that interrupted a call of this library.
pub(super) extern "C-unwind" fn thread_ends() {
    if SHARED.lock.is_own() {
        abandon_call();
    }
    flush_if_queued(Flush::Process);
}

/// Does what the interrupted call would have done that never continues.
fn abandon_call() {
    flush(Flush::Wait);
    ticker::reset_after_abandon();
    SHARED.lock.release_abandoned();
}

/// Before functions that change threads one by one, or require a process with one thread.
pub(super) extern "C-unwind" fn quiesce() {
    process::quiesce();
}

/// `prctl(operation, …)`
pub(super) extern "C-unwind" fn process_control(operation: i32) {
    match operation {
        libc::PR_SET_SECCOMP => process::confine(),
        // Asked and told often, and no business of other threads.
        libc::PR_SET_NAME | libc::PR_GET_NAME => {}
        _ => process::quiesce(),
    }
}

/// `syscall(number, …)`: as the functions of the same names.
pub(super) extern "C-unwind" fn system_call(number: i64, first: i64, second: i64) {
    match number {
        libc::SYS_close => close(first as i32),
        libc::SYS_dup3 => replace(first as i32, second as i32),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_dup2 => replace(first as i32, second as i32),
        libc::SYS_close_range => close_range(first as u32, second as u32),
        libc::SYS_prctl => process_control(first as i32),
        libc::SYS_seccomp => process::confine(),
        libc::SYS_unshare
        | libc::SYS_setns
        | libc::SYS_chroot
        | libc::SYS_capset
        | libc::SYS_clone
        | libc::SYS_clone3
        | libc::SYS_setuid
        | libc::SYS_setgid
        | libc::SYS_setreuid
        | libc::SYS_setregid
        | libc::SYS_setfsuid
        | libc::SYS_setfsgid
        | libc::SYS_landlock_restrict_self
        | libc::SYS_setresuid
        | libc::SYS_setresgid
        | libc::SYS_setgroups => {
            process::quiesce();
        }
        libc::SYS_futex | libc::SYS_gettid | libc::SYS_getpid | libc::SYS_getrandom => {}
        _ => flush_if_queued(Flush::Output),
    }
}
