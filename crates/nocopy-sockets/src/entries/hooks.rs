//! Steps before a function of the C library: hand over the burst, and forget the facts about a descriptor.
//!
//! "C-unwind": none of them unwinds, but a thread may end in a signal handler that interrupts them, and
//! unwinds through them.

use std::ops::RangeInclusive;

use nocopy_proto::run::sockets::Flush;

use crate::outgoing::{flush_before_closing, flush_burst};
use crate::shared::{SHARED, is_burst_queued};
use crate::{jump, process, slots, sys, ticker};

/// Functions that only hand over the burst, for a reason.
macro_rules! flushes {
    ($($name:ident = $why:ident;)*) => { $(
        pub(super) extern "C-unwind" fn $name() {
            flush_burst(Flush::$why);
        }
    )* };
}

flushes! {
    before_output = Output;
    before_wait = Wait;
    before_dup = Close;
    before_process_call = Process;
}

/// Functions after which the process, or this program in it, is gone.
pub(super) extern "C-unwind" fn before_process_end() {
    flush_closing_if_queued(0..=i32::MAX, Flush::Process);
}

fn flush_closing_if_queued(descriptors: RangeInclusive<i32>, why: Flush) {
    if is_burst_queued() {
        flush_before_closing(descriptors, why);
    }
}

fn flush_if_queued(why: Flush) {
    if is_burst_queued() {
        flush_burst(why);
    }
}

/// Functions that receive from a descriptor, or wait for events of one. The burst stays if there is something
/// to receive, so that a program may look for answers between its datagrams. Looking takes nothing from the
/// descriptor, neither data nor an error. If the call waits all the same, because it wants more than there
/// is, the burst leaves at its deadline.
pub(super) extern "C-unwind" fn before_receive(descriptor: i32) {
    if !sys::is_readable(descriptor) {
        flush_burst(Flush::Wait);
    }
}

/// `read(descriptor, …)`, `readv`: a stored file has something to read at any time. Files of /proc and /sys
/// may count datagrams.
pub(super) extern "C-unwind" fn before_read(descriptor: i32) {
    match sys::is_stored_file(descriptor) {
        Some(true) => {}
        Some(false) => flush_burst(Flush::Wait),
        None => before_receive(descriptor),
    }
}

/// `getsockopt(descriptor, level, name, …)`
pub(super) extern "C-unwind" fn before_getsockopt(_descriptor: i32, level: i32, name: i32) {
    let is_error = (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR);
    flush_burst(if is_error { Flush::Wait } else { Flush::Settings });
}

/// `close(descriptor)`
pub(super) extern "C-unwind" fn before_close(descriptor: i32) {
    flush_closing_if_queued(descriptor..=descriptor, Flush::Close);
    slots::forget_descriptor(descriptor);
}

/// `dup2(old, new)`, `dup3(old, new, flags)`
pub(super) extern "C-unwind" fn before_dup2(_old: i32, new: i32) {
    flush_closing_if_queued(new..=new, Flush::Close);
    slots::forget_descriptor(new);
}

/// `close_range(first, last, flags)`
pub(super) extern "C-unwind" fn before_close_range(first: u32, last: u32) {
    let [first, last] = [first, last].map(|number| i32::try_from(number).unwrap_or(i32::MAX));
    flush_closing_if_queued(first..=last, Flush::Close);
    slots::forget_descriptors(first, last);
}

/// `closefrom(first)`
pub(super) extern "C-unwind" fn before_closefrom(first: i32) {
    flush_closing_if_queued(first..=i32::MAX, Flush::Close);
    slots::forget_descriptors(first, i32::MAX);
}

/// `setsockopt(descriptor, …)`, `connect`, `bind`, `shutdown`, `ioctl`: the known facts about the socket may
/// have changed.
pub(super) extern "C-unwind" fn before_socket_change(descriptor: i32) {
    flush_if_queued(Flush::Settings);
    crate::outgoing::forget_eligibility(descriptor);
}

/// `fcntl(descriptor, command, …)`
pub(super) extern "C-unwind" fn before_fcntl(_descriptor: i32) {
    flush_if_queued(Flush::Settings);
}

/// `longjmp(environment, value)`: a signal handler may leave the call of this library that it interrupted.
pub(super) unsafe extern "C-unwind" fn before_longjmp(environment: *const usize) {
    // SAFETY: the program's argument.
    if SHARED.lock.is_abandoned_by_jump(unsafe { jump::jump_target(environment) }) {
        abandon_interrupted_call();
    }
}

/// `pthread_exit(result)`, perhaps in a signal handler that interrupted a call of this library.
pub(super) extern "C-unwind" fn before_pthread_exit() {
    if SHARED.lock.is_held_by_this_thread() {
        abandon_interrupted_call();
    }
    flush_if_queued(Flush::Process);
}

/// Does what the interrupted call would have done that never continues.
fn abandon_interrupted_call() {
    flush_burst(Flush::Wait);
    ticker::reset_after_abandoned_call();
    SHARED.lock.release_abandoned();
}

/// Before functions that change threads one by one, or require a process with one thread.
pub(super) extern "C-unwind" fn before_thread_change() {
    process::end_library_thread();
}

/// `prctl(operation, …)`
pub(super) extern "C-unwind" fn before_prctl(operation: i32) {
    match operation {
        libc::PR_SET_SECCOMP => process::switch_off_for_seccomp(),
        // Asked and told often, and no business of other threads.
        libc::PR_SET_NAME | libc::PR_GET_NAME => {}
        _ => process::end_library_thread(),
    }
}

/// `syscall(number, …)`: as the functions of the same names.
pub(super) extern "C-unwind" fn before_syscall(number: i64, first: i64, second: i64) {
    match number {
        libc::SYS_close => before_close(first as i32),
        libc::SYS_dup3 => before_dup2(first as i32, second as i32),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_dup2 => before_dup2(first as i32, second as i32),
        libc::SYS_close_range => before_close_range(first as u32, second as u32),
        libc::SYS_prctl => before_prctl(first as i32),
        libc::SYS_seccomp => process::switch_off_for_seccomp(),
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
            process::end_library_thread();
        }
        libc::SYS_futex | libc::SYS_gettid | libc::SYS_getpid | libc::SYS_getrandom => {}
        _ => flush_if_queued(Flush::Output),
    }
}
