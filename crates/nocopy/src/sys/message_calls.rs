//! Calls that send and receive messages, by their numbers: musl's functions of these names copy each header
//! and its control messages first, and make one call for each message of several; and glibc's make each call
//! a point of cancellation, by two atomics where a process has threads.

use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{c_int, c_void, mmsghdr, msghdr, socklen_t};

/// sendto(2): the number of bytes sent. Returns -1 with `errno` on an error.
///
/// # Safety
/// `address` is null, or of so many bytes that can be read.
#[inline(always)]
pub(crate) unsafe fn sendto(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    flags: c_int,
    address: *const c_void,
    address_bytes: socklen_t,
) -> isize {
    let (data, length) = (bytes.as_ptr(), bytes.len());
    // SAFETY: by contract; the kernel only reads.
    unsafe {
        libc::syscall(libc::SYS_sendto, socket.as_raw_fd(), data, length, flags, address, address_bytes)
            as isize
    }
}

/// sendmsg(2). Returns -1 with `errno` on an error.
///
/// # Safety
/// All that the header points to can be read, with the lengths that it has; the kernel writes nothing.
#[inline]
pub(crate) unsafe fn sendmsg(socket: BorrowedFd<'_>, header: *const msghdr, flags: c_int) -> isize {
    // SAFETY: by contract.
    unsafe { libc::syscall(libc::SYS_sendmsg, socket.as_raw_fd(), header, flags) as isize }
}

/// sendmmsg(2): the number of messages sent. Returns -1 with `errno` on an error.
///
/// # Safety
/// As of [`sendmsg`], for each; the kernel writes their `msg_len`.
#[inline]
pub(crate) unsafe fn sendmmsg(socket: BorrowedFd<'_>, headers: &mut [mmsghdr], flags: c_int) -> isize {
    let count = headers.len() as libc::c_uint;
    // SAFETY: by contract.
    unsafe {
        libc::syscall(libc::SYS_sendmmsg, socket.as_raw_fd(), headers.as_mut_ptr(), count, flags) as isize
    }
}

/// recvmsg(2). Returns -1 with `errno` on an error.
///
/// # Safety
/// All that the header points to can be written, with the lengths that it has.
#[inline]
pub(crate) unsafe fn recvmsg(socket: BorrowedFd<'_>, header: *mut msghdr, flags: c_int) -> isize {
    // SAFETY: by contract.
    unsafe { libc::syscall(libc::SYS_recvmsg, socket.as_raw_fd(), header, flags) as isize }
}

/// recvmmsg(2) without its timeout: the number of messages received. Returns -1 with `errno` on an error.
///
/// # Safety
/// As of [`recvmsg`], for each.
#[inline]
pub(crate) unsafe fn recvmmsg(socket: BorrowedFd<'_>, headers: &mut [mmsghdr], flags: c_int) -> isize {
    let (count, no_timeout) = (headers.len() as libc::c_uint, std::ptr::null_mut::<libc::timespec>());
    // SAFETY: by contract.
    unsafe {
        let headers = headers.as_mut_ptr();
        libc::syscall(libc::SYS_recvmmsg, socket.as_raw_fd(), headers, count, flags, no_timeout) as isize
    }
}
