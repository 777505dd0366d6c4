//! Functions that wait, and `getsockopt`, which returns errors. While there is a burst, they first try without waiting, so that a program
//! may look for answers between its datagrams without ending the burst. If they have to wait, they hand the burst over first.

use std::ffi::c_void;

use libc::{
    epoll_event, fd_set, iovec, mmsghdr, msghdr, pollfd, sigset_t, sockaddr, socklen_t, timespec, timeval,
};
use nocopy_proto::run::sockets::Flush;

use super::trampoline::instead;
use crate::outgoing::{self, flush};
use crate::real::call;
use crate::sys;

instead! {
    recv => in_recv;
    recvfrom => in_recvfrom;
    recvmsg => in_recvmsg;
    recvmmsg => in_recvmmsg;
    __recv_chk => in_recv_chk;
    __recvfrom_chk => in_recvfrom_chk;
    read => in_read;
    __read => in_inner_read;
    __read_chk => in_read_chk;
    readv => in_readv;
    poll => in_poll;
    __poll => in_inner_poll;
    __poll_chk => in_poll_chk;
    ppoll => in_ppoll;
    __ppoll_chk => in_ppoll_chk;
    select => in_select;
    __select => in_inner_select;
    pselect => in_pselect;
    epoll_wait => in_epoll_wait;
    epoll_pwait => in_epoll_pwait;
    epoll_pwait2 => in_epoll_pwait2;
    getsockopt => in_getsockopt;
}

/// First looks without waiting; if nothing has arrived, hands the burst over and waits as the program asked.
#[inline]
fn first_without_waiting<R: PartialOrd + From<i8>>(look: impl FnOnce() -> R, wait: impl FnOnce() -> R) -> R {
    let errno = errno();
    let found = look();
    if found >= R::from(0) {
        return found;
    }
    set_errno(errno);
    flush(Flush::Wait);
    wait()
}

fn errno() -> i32 {
    // SAFETY: this thread's.
    unsafe { *libc::__errno_location() }
}

fn set_errno(errno: i32) {
    // SAFETY: this thread's.
    unsafe { *libc::__errno_location() = errno };
}

unsafe extern "C-unwind" fn in_recv(descriptor: i32, data: *mut c_void, bytes: usize, flags: i32) -> isize {
    // SAFETY: the program's arguments.
    let receive = |flags| unsafe {
        call!(recv::REAL, (i32, *mut c_void, usize, i32) -> isize, descriptor, data, bytes, flags)
    };
    first_without_waiting(|| receive(flags | libc::MSG_DONTWAIT), || receive(flags))
}

unsafe extern "C-unwind" fn in_recv_chk(
    descriptor: i32,
    data: *mut c_void,
    bytes: usize,
    room: usize,
    flags: i32,
) -> isize {
    // SAFETY: the program's arguments.
    let receive = |flags| unsafe {
        call!(__recv_chk::REAL, (i32, *mut c_void, usize, usize, i32) -> isize, descriptor, data, bytes, room, flags)
    };
    first_without_waiting(|| receive(flags | libc::MSG_DONTWAIT), || receive(flags))
}

unsafe extern "C-unwind" fn in_recvfrom(
    descriptor: i32,
    data: *mut c_void,
    bytes: usize,
    flags: i32,
    address: *mut sockaddr,
    address_bytes: *mut socklen_t,
) -> isize {
    // SAFETY: the program's arguments.
    let receive = |flags| unsafe {
        call!(
            recvfrom::REAL,
            (i32, *mut c_void, usize, i32, *mut sockaddr, *mut socklen_t) -> isize,
            descriptor, data, bytes, flags, address, address_bytes
        )
    };
    first_without_waiting(|| receive(flags | libc::MSG_DONTWAIT), || receive(flags))
}

unsafe extern "C-unwind" fn in_recvfrom_chk(
    descriptor: i32,
    data: *mut c_void,
    bytes: usize,
    room: usize,
    flags: i32,
    address: *mut sockaddr,
    address_bytes: *mut socklen_t,
) -> isize {
    // SAFETY: the program's arguments.
    let receive = |flags| unsafe {
        call!(
            __recvfrom_chk::REAL,
            (i32, *mut c_void, usize, usize, i32, *mut sockaddr, *mut socklen_t) -> isize,
            descriptor, data, bytes, room, flags, address, address_bytes
        )
    };
    first_without_waiting(|| receive(flags | libc::MSG_DONTWAIT), || receive(flags))
}

unsafe extern "C-unwind" fn in_recvmsg(descriptor: i32, message: *mut msghdr, flags: i32) -> isize {
    // SAFETY: the program's arguments. A call that finds nothing changes nothing of the message.
    let receive =
        |flags| unsafe { call!(recvmsg::REAL, (i32, *mut msghdr, i32) -> isize, descriptor, message, flags) };
    first_without_waiting(|| receive(flags | libc::MSG_DONTWAIT), || receive(flags))
}

unsafe extern "C-unwind" fn in_recvmmsg(
    descriptor: i32,
    messages: *mut mmsghdr,
    count: u32,
    flags: i32,
    timeout: *mut timespec,
) -> i32 {
    // It goes on waiting after the first message, unless it was told not to: it cannot be tried.
    flush(Flush::Wait);
    // SAFETY: the program's arguments.
    unsafe {
        call!(
            recvmmsg::REAL,
            (i32, *mut mmsghdr, u32, i32, *mut timespec) -> i32,
            descriptor, messages, count, flags, timeout
        )
    }
}

/// Reads without waiting. A negative result means that nothing has arrived, or that the file does not support such reads.
fn read_at_once(descriptor: i32, parts: *const iovec, count: i32) -> isize {
    let current = usize::MAX; // where the descriptor is
    let flags = libc::RWF_NOWAIT as usize;
    let arguments = [descriptor as usize, parts as usize, count as usize, current, current, flags];
    // SAFETY: the program's arguments.
    unsafe { sys::call(libc::SYS_preadv2, arguments) }
}

fn read_part(descriptor: i32, data: *mut c_void, bytes: usize) -> isize {
    let part = iovec { iov_base: data, iov_len: bytes };
    read_at_once(descriptor, &raw const part, 1)
}

unsafe extern "C-unwind" fn in_read(descriptor: i32, data: *mut c_void, bytes: usize) -> isize {
    // SAFETY: the program's arguments.
    let wait = || unsafe { call!(read::REAL, (i32, *mut c_void, usize) -> isize, descriptor, data, bytes) };
    first_without_waiting(|| read_part(descriptor, data, bytes), wait)
}

unsafe extern "C-unwind" fn in_inner_read(descriptor: i32, data: *mut c_void, bytes: usize) -> isize {
    // SAFETY: the program's arguments.
    let wait = || unsafe { call!(__read::REAL, (i32, *mut c_void, usize) -> isize, descriptor, data, bytes) };
    first_without_waiting(|| read_part(descriptor, data, bytes), wait)
}

unsafe extern "C-unwind" fn in_read_chk(
    descriptor: i32,
    data: *mut c_void,
    bytes: usize,
    room: usize,
) -> isize {
    // SAFETY: the program's arguments.
    let wait = || unsafe {
        call!(__read_chk::REAL, (i32, *mut c_void, usize, usize) -> isize, descriptor, data, bytes, room)
    };
    // Too long a read ends the program, and is the C library's to notice.
    if bytes > room {
        return wait();
    }
    first_without_waiting(|| read_part(descriptor, data, bytes), wait)
}

unsafe extern "C-unwind" fn in_readv(descriptor: i32, parts: *const iovec, count: i32) -> isize {
    // SAFETY: the program's arguments.
    let wait = || unsafe { call!(readv::REAL, (i32, *const iovec, i32) -> isize, descriptor, parts, count) };
    first_without_waiting(|| read_at_once(descriptor, parts, count), wait)
}

/// Waits for events, but first checks without waiting. `look` and `wait` return the number of events.
///
/// If a socket had no room for its burst, the burst is tried again before the program learns that there is room; otherwise its next send
/// would be refused.
#[inline]
fn events(look: impl FnOnce() -> i32, wait: impl FnOnce() -> i32) -> i32 {
    let found = look();
    let found = if found == 0 {
        flush(Flush::Wait);
        wait()
    } else {
        found
    };
    if found > 0 && crate::shared::is_queued() && outgoing::is_any_stuck() {
        flush(Flush::Wait);
    }
    found
}

/// Removes `POLLOUT` from sockets whose burst still waits for room; returns how many descriptors have events left.
///
/// # Safety
/// `all` points to `count` entries.
unsafe fn withhold(all: *mut pollfd, count: libc::nfds_t, found: i32) -> i32 {
    if found <= 0 || !outgoing::is_any_stuck() {
        return found;
    }
    let mut left = found;
    for at in 0..count as usize {
        // SAFETY: by contract.
        let entry = unsafe { &mut *all.add(at) };
        if entry.revents & libc::POLLOUT != 0 && outgoing::is_stuck(entry.fd) {
            entry.revents &= !libc::POLLOUT;
            left -= i32::from(entry.revents == 0);
        }
    }
    left
}

/// How long a poll waits before it looks again, if `POLLOUT` was withheld.
const LOOK_AGAIN_MS: i32 = 1;

/// `poll` by one of its names.
///
/// # Safety
/// `all` points to `count` entries.
unsafe fn poll_by(all: *mut pollfd, count: libc::nfds_t, timeout: i32, real: impl Fn(i32) -> i32) -> i32 {
    let started_ns = sys::now_ns();
    let mut wait = timeout;
    loop {
        let found = events(|| real(0), || real(wait));
        // SAFETY: by contract.
        let left = unsafe { withhold(all, count, found) };
        if left != 0 || found == 0 {
            return left;
        }
        let elapsed_ms = i32::try_from((sys::now_ns() - started_ns) / 1_000_000).unwrap_or(i32::MAX);
        if timeout >= 0 && elapsed_ms >= timeout {
            return 0;
        }
        sys::sleep_ns(LOOK_AGAIN_MS as u64 * 1_000_000);
        wait = if timeout < 0 { timeout } else { (timeout - elapsed_ms).max(0) };
    }
}

unsafe extern "C-unwind" fn in_poll(all: *mut pollfd, count: libc::nfds_t, timeout: i32) -> i32 {
    // SAFETY: the program's arguments.
    let real =
        |timeout| unsafe { call!(poll::REAL, (*mut pollfd, libc::nfds_t, i32) -> i32, all, count, timeout) };
    // SAFETY: as above.
    unsafe { poll_by(all, count, timeout, real) }
}

unsafe extern "C-unwind" fn in_inner_poll(all: *mut pollfd, count: libc::nfds_t, timeout: i32) -> i32 {
    // SAFETY: the program's arguments.
    let real = |timeout| unsafe {
        call!(__poll::REAL, (*mut pollfd, libc::nfds_t, i32) -> i32, all, count, timeout)
    };
    // SAFETY: as above.
    unsafe { poll_by(all, count, timeout, real) }
}

unsafe extern "C-unwind" fn in_poll_chk(
    all: *mut pollfd,
    count: libc::nfds_t,
    timeout: i32,
    room: usize,
) -> i32 {
    // SAFETY: the program's arguments.
    let real = |timeout| unsafe {
        call!(__poll_chk::REAL, (*mut pollfd, libc::nfds_t, i32, usize) -> i32, all, count, timeout, room)
    };
    // SAFETY: as above.
    unsafe { poll_by(all, count, timeout, real) }
}

static AT_ONCE: timespec = timespec { tv_sec: 0, tv_nsec: 0 };

unsafe extern "C-unwind" fn in_ppoll(
    all: *mut pollfd,
    count: libc::nfds_t,
    timeout: *const timespec,
    signals: *const sigset_t,
) -> i32 {
    let real = |timeout| {
        // SAFETY: the program's arguments.
        unsafe {
            call!(
                ppoll::REAL,
                (*mut pollfd, libc::nfds_t, *const timespec, *const sigset_t) -> i32,
                all, count, timeout, signals
            )
        }
    };
    let found = events(|| real(&raw const AT_ONCE), || real(timeout));
    // SAFETY: as above.
    unsafe { withhold(all, count, found) }
}

unsafe extern "C-unwind" fn in_ppoll_chk(
    all: *mut pollfd,
    count: libc::nfds_t,
    timeout: *const timespec,
    signals: *const sigset_t,
    room: usize,
) -> i32 {
    let real = |timeout| {
        // SAFETY: the program's arguments.
        unsafe {
            call!(
                __ppoll_chk::REAL,
                (*mut pollfd, libc::nfds_t, *const timespec, *const sigset_t, usize) -> i32,
                all, count, timeout, signals, room
            )
        }
    };
    let found = events(|| real(&raw const AT_ONCE), || real(timeout));
    // SAFETY: as above.
    unsafe { withhold(all, count, found) }
}

/// Functions before which the burst is always sent.
macro_rules! after_a_flush {
    ($($entry:ident = $function:ident by $why:ident($($argument:ident: $type:ty),*);)*) => { $(
        unsafe extern "C-unwind" fn $entry($($argument: $type),*) -> i32 {
            flush(Flush::$why);
            // SAFETY: the program's arguments.
            unsafe { call!($function::REAL, ($($type),*) -> i32, $($argument),*) }
        }
    )* };
}

// A select that finds nothing clears the sets: it cannot be tried.
after_a_flush! {
    in_select = select by Wait(
        end: i32, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval
    );
    in_inner_select = __select by Wait(
        end: i32, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval
    );
    in_pselect = pselect by Wait(
        end: i32, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec,
        signals: *const sigset_t
    );
    in_getsockopt = getsockopt by Settings(
        descriptor: i32, level: i32, name: i32, value: *mut c_void, bytes: *mut socklen_t
    );
}

unsafe extern "C-unwind" fn in_epoll_wait(
    descriptor: i32,
    found: *mut epoll_event,
    room: i32,
    timeout: i32,
) -> i32 {
    // SAFETY: the program's arguments.
    let real = |timeout| unsafe {
        call!(epoll_wait::REAL, (i32, *mut epoll_event, i32, i32) -> i32, descriptor, found, room, timeout)
    };
    events(|| real(0), || real(timeout))
}

unsafe extern "C-unwind" fn in_epoll_pwait(
    descriptor: i32,
    found: *mut epoll_event,
    room: i32,
    timeout: i32,
    signals: *const sigset_t,
) -> i32 {
    // SAFETY: the program's arguments.
    let real = |timeout| unsafe {
        call!(
            epoll_pwait::REAL,
            (i32, *mut epoll_event, i32, i32, *const sigset_t) -> i32,
            descriptor, found, room, timeout, signals
        )
    };
    events(|| real(0), || real(timeout))
}

unsafe extern "C-unwind" fn in_epoll_pwait2(
    descriptor: i32,
    found: *mut epoll_event,
    room: i32,
    timeout: *const timespec,
    signals: *const sigset_t,
) -> i32 {
    let real = |timeout| {
        // SAFETY: the program's arguments.
        unsafe {
            call!(
                epoll_pwait2::REAL,
                (i32, *mut epoll_event, i32, *const timespec, *const sigset_t) -> i32,
                descriptor, found, room, timeout, signals
            )
        }
    };
    events(|| real(&raw const AT_ONCE), || real(timeout))
}
