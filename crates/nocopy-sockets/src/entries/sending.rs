//! Functions that send: a UDP datagram joins the burst or is sent as usual; before other output, the burst is
//! sent.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t};
use nocopy_proto::run::sockets::{Flush, UnbatchedCause};

use super::datagram::{IovecBuffer, destination_or_peer, shape_to_peer, single_iovec, sockaddr_slice};
use super::trampoline::function;
use crate::destination::Destination;
use crate::outgoing::{self, Datagram, SendDecision};
use crate::real::{call, call_at};
use crate::run::DatagramShape;
use crate::shared::{is_burst_queued, is_library_off};
use crate::slots::{self, DescriptorSlot, SocketKind};
use crate::{by_hand, environment, sys};

function!(SEND = send);
function!(SENDTO = sendto);
function!(SENDMSG = sendmsg);
function!(SENDMMSG = sendmmsg);
function!(WRITE = write);
function!(WRITEV = writev);

/// Flags that do not affect the datagram itself.
const HARMLESS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// The most datagrams that the kernel takes in one call (`UIO_MAXIOV`).
const MESSAGES_MAX: u32 = 1024;

/// Whether this library ignores a call. The check costs a few instructions, and reads only the memory of the
/// descriptor.
#[inline(always)]
fn is_call_skipped(descriptor: i32) -> bool {
    !is_burst_queued() && slots::slot_of(descriptor).is_none_or(|slot| is_library_off() || slot.try_skip())
}

/// Functions that send. Each has three parts, so that the fast paths need no registers and no stack for the
/// slow one: sockets that are skipped; datagrams that join a burst (`join`, if given); everything else
/// (`slow_path`).
macro_rules! sends {
    ($(
        $name:ident = $function:ident else $join:ident else $slow_path:ident($($argument:ident: $type:ty),*);
    )*) => { $(
        #[doc = concat!("`", stringify!($name), "(2)`")]
        ///
        /// # Safety
        /// As the C library's function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(crate) unsafe extern "C-unwind" fn $name(descriptor: i32, $($argument: $type),*) -> isize {
            #[inline(never)]
            unsafe fn join_or_send(descriptor: i32, $($argument: $type),*) -> isize {
                // SAFETY: by contract.
                match unsafe { $join(descriptor, $($argument),*) } {
                    Some(bytes) => bytes as isize,
                    // SAFETY: by contract.
                    None => unsafe { $slow_path(descriptor, $($argument),*) },
                }
            }
            match $function.resolved_address() {
                // SAFETY: by contract.
                Some(real) if is_call_skipped(descriptor) => unsafe {
                    call_at!(real.as_ptr(), (i32, $($type),*) -> isize, descriptor, $($argument),*)
                },
                // SAFETY: by contract.
                _ => unsafe { join_or_send(descriptor, $($argument),*) },
            }
        }
    )* };
}

sends! {
    send = SEND else join_send else slow_send(data: *const c_void, bytes: usize, flags: i32);
    sendto = SENDTO else join_sendto else slow_sendto(
        data: *const c_void, bytes: usize, flags: i32, address: *const sockaddr, address_bytes: socklen_t
    );
    sendmsg = SENDMSG else join_sendmsg else slow_sendmsg(message: *const msghdr, flags: i32);
    write = WRITE else join_write else slow_write(data: *const c_void, bytes: usize);
    writev = WRITEV else join_writev else slow_writev(first: *const iovec, count: i32);
}

/// Puts a datagram into the current burst. `parts` returns them if they have the burst's shape; called only
/// if the burst is the descriptor's, because other calls leave it to the kernel to read what their arguments
/// point to.
#[inline(always)]
fn join_burst<P: AsRef<[iovec]>>(
    descriptor: i32,
    flags: i32,
    parts: impl FnOnce(&DatagramShape) -> Option<P>,
) -> Option<usize> {
    if flags & !HARMLESS != 0 || !is_burst_queued() {
        return None;
    }
    outgoing::join_current_burst(descriptor, parts)
}

/// # Safety
/// As [`send`].
#[inline(always)]
unsafe fn join_send(descriptor: i32, data: *const c_void, bytes: usize, flags: i32) -> Option<usize> {
    join_burst(descriptor, flags, |shape| shape.matches(bytes, None).then(|| single_iovec(data, bytes)))
}

/// # Safety
/// As [`sendto`].
#[inline(always)]
unsafe fn join_sendto(
    descriptor: i32,
    data: *const c_void,
    bytes: usize,
    flags: i32,
    address: *const sockaddr,
    address_bytes: socklen_t,
) -> Option<usize> {
    // SAFETY: by contract.
    let to = || unsafe { sockaddr_slice(address.cast(), address_bytes) };
    join_burst(descriptor, flags, |shape| shape.matches(bytes, to()).then(|| single_iovec(data, bytes)))
}

/// # Safety
/// As [`sendmsg`].
#[inline(always)]
unsafe fn join_sendmsg(descriptor: i32, message: *const msghdr, flags: i32) -> Option<usize> {
    let mut buffer = IovecBuffer::new();
    join_burst(descriptor, flags, |shape| {
        // SAFETY: by contract.
        let (parts, address) = unsafe { buffer.read_message(message) }?;
        shape.matches(parts.bytes, address).then_some(parts)
    })
}

/// # Safety
/// As [`write`].
#[inline(always)]
unsafe fn join_write(descriptor: i32, data: *const c_void, bytes: usize) -> Option<usize> {
    // SAFETY: by contract.
    unsafe { join_send(descriptor, data, bytes, 0) }
}

/// # Safety
/// As [`writev`].
#[inline(always)]
unsafe fn join_writev(descriptor: i32, first: *const iovec, count: i32) -> Option<usize> {
    let mut buffer = IovecBuffer::new();
    join_burst(descriptor, 0, |shape| {
        // SAFETY: by contract.
        let parts = unsafe { buffer.read_writev_iovecs(first, count) }?;
        shape.matches(parts.bytes, None).then_some(parts)
    })
}

/// Sends a datagram that has not joined a burst by the C library's function `real`, or begins a burst with
/// it; `datagram` returns its parts and shape if it may, and is called only for a UDP socket.
#[inline]
fn send_or_begin_burst<P: AsRef<[iovec]>>(
    descriptor: i32,
    flags: i32,
    datagram: impl FnOnce() -> Option<(P, DatagramShape)>,
    real: impl Fn() -> isize,
) -> isize {
    match outgoing::classify_descriptor(descriptor) {
        Some((_, SocketKind::Active)) => {
            send_on_active_socket(descriptor, flags, (flags & !HARMLESS == 0).then(datagram).flatten(), real)
        }
        Some((slot, SocketKind::Skipped)) => {
            flush_if_queued(Flush::Output);
            send_skipped(descriptor, slot, real)
        }
        Some((_, SocketKind::Other)) | None => {
            flush_if_queued(Flush::Output);
            real()
        }
    }
}

/// Sends a datagram of a socket that is skipped, and counts it.
#[cold]
fn send_skipped(descriptor: i32, slot: &DescriptorSlot, real: impl Fn() -> isize) -> isize {
    slot.count_skipped(1);
    slot.socket_record().count_single_send(UnbatchedCause::Alone);
    slot.take_pending_error(descriptor).map_or_else(real, fail_with_errno)
}

#[inline]
fn flush_if_queued(why: Flush) {
    if is_burst_queued() {
        outgoing::flush_burst(why);
    }
}

/// A datagram of a UDP socket that is not skipped; `datagram` is `None` if it can join no burst.
fn send_on_active_socket<P: AsRef<[iovec]>>(
    descriptor: i32,
    flags: i32,
    datagram: Option<(P, DatagramShape)>,
    real: impl Fn() -> isize,
) -> isize {
    let parts = datagram.as_ref().map_or(&[][..], |(parts, _)| parts.as_ref());
    let shape = datagram.as_ref().map(|(_, shape)| *shape);
    if let Some(mode) = environment::settings().by_hand
        && let Some(shape) = shape
        && by_hand::send_in_minimal_burst(descriptor, shape, parts, mode)
    {
        return shape.bytes as isize;
    }
    let dont_wait = flags & libc::MSG_DONTWAIT != 0;
    loop {
        return match outgoing::decide_send(Datagram { descriptor, shape, parts, dont_wait }) {
            SendDecision::Joined => shape.map_or(0, |shape| shape.bytes as isize),
            SendDecision::Failed(errno) => fail_with_errno(errno),
            SendDecision::NoRoom(to) => match wait_for_room_by_sending(descriptor, &to) {
                Ok(()) => continue,
                Err(errno) => fail_with_errno(errno),
            },
            SendDecision::SendSingly(None) => real(),
            SendDecision::SendSingly(Some(single)) => {
                let result = real();
                outgoing::record_single_send(single, result >= 0);
                result
            }
        };
    }
}

/// Memory that cannot be read.
static UNREADABLE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Called before the program starts.
#[cfg_attr(test, expect(dead_code, reason = "no program starts"))]
pub(super) fn map_unreadable_memory() {
    UNREADABLE.store(sys::map_unreadable_page().unwrap_or(ptr::null_mut()), Relaxed);
}

/// Waits for the room of a socket by a call that sends, so that a signal, the end of the thread or a jump
/// ends the wait as it ends the program's call. It sends nothing: only after it has found room does the
/// kernel look at the datagram's bytes, and they cannot be read.
fn wait_for_room_by_sending(descriptor: i32, to: &Destination) -> Result<(), i32> {
    let (before, to) = (errno(), to.sockaddr_bytes());
    let mut part = iovec { iov_base: UNREADABLE.load(Relaxed), iov_len: 1 };
    // SAFETY: all zero is a message without parts.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    if !to.is_empty() {
        (message.msg_name, message.msg_namelen) = (to.as_ptr().cast_mut().cast(), to.len() as u32);
    }
    let (message, flags) = (&raw const message, libc::MSG_NOSIGNAL);
    // SAFETY: the message outlives the call, and no frame from here to the program's has anything to drop.
    unsafe { call!(SENDMSG, (i32, *const msghdr, i32) -> isize, descriptor, message, flags) };
    match errno() {
        libc::EFAULT => {
            set_errno(before);
            Ok(())
        }
        errno => Err(errno),
    }
}

#[cold]
fn fail_with_errno(errno: i32) -> isize {
    set_errno(errno);
    -1
}

fn errno() -> i32 {
    // SAFETY: this thread's.
    unsafe { *libc::__errno_location() }
}

fn set_errno(errno: i32) {
    // SAFETY: this thread's.
    unsafe { *libc::__errno_location() = errno };
}

/// # Safety
/// As [`send`].
#[inline(never)]
unsafe fn slow_send(descriptor: i32, data: *const c_void, bytes: usize, flags: i32) -> isize {
    // SAFETY: by contract.
    send_or_begin_burst(
        descriptor,
        flags,
        || Some((single_iovec(data, bytes), shape_to_peer(bytes))),
        || unsafe { call!(SEND, (i32, *const c_void, usize, i32) -> isize, descriptor, data, bytes, flags) },
    )
}

/// # Safety
/// As [`sendto`].
#[inline(never)]
unsafe fn slow_sendto(
    descriptor: i32,
    data: *const c_void,
    bytes: usize,
    flags: i32,
    address: *const sockaddr,
    address_bytes: socklen_t,
) -> isize {
    // SAFETY: by contract.
    let to = || unsafe { sockaddr_slice(address.cast(), address_bytes) };
    let datagram = || {
        Some((single_iovec(data, bytes), DatagramShape { bytes, destination: destination_or_peer(to())? }))
    };
    // SAFETY: by contract.
    send_or_begin_burst(descriptor, flags, datagram, || unsafe {
        call!(
            SENDTO,
            (i32, *const c_void, usize, i32, *const sockaddr, socklen_t) -> isize,
            descriptor, data, bytes, flags, address, address_bytes
        )
    })
}

/// # Safety
/// As [`sendmsg`].
#[inline(never)]
unsafe fn slow_sendmsg(descriptor: i32, message: *const msghdr, flags: i32) -> isize {
    let mut buffer = IovecBuffer::new();
    // SAFETY: by contract.
    send_or_begin_burst(
        descriptor,
        flags,
        || unsafe { buffer.read_datagram(message) },
        || unsafe { call!(SENDMSG, (i32, *const msghdr, i32) -> isize, descriptor, message, flags) },
    )
}

/// `sendmmsg(2)`: datagrams of one shape join one by one; others are sent as without this library.
///
/// # Safety
/// As the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn sendmmsg(
    descriptor: i32,
    messages: *mut mmsghdr,
    count: u32,
    flags: i32,
) -> i32 {
    let kind = outgoing::classify_descriptor(descriptor);
    if let Some((slot, SocketKind::Active)) = kind {
        // SAFETY: by contract.
        if let Some(sent) = unsafe { send_equal_messages(descriptor, messages, count, flags) } {
            return sent;
        }
        slot.socket_record().count_single_sends(UnbatchedCause::Unfit, count.into());
    }
    flush_if_queued(Flush::Output);
    if let Some((slot, SocketKind::Skipped)) = kind {
        slot.count_skipped(count);
        slot.socket_record().count_single_sends(UnbatchedCause::Alone, count.into());
    }
    // SAFETY: by contract.
    unsafe { call!(SENDMMSG, (i32, *mut mmsghdr, u32, i32) -> i32, descriptor, messages, count, flags) }
}

/// Sends messages of one shape one by one; returns `None` if their shapes differ.
///
/// # Safety
/// As [`sendmmsg`].
unsafe fn send_equal_messages(
    descriptor: i32,
    messages: *mut mmsghdr,
    count: u32,
    flags: i32,
) -> Option<i32> {
    if messages.is_null() || count < 2 {
        return None;
    }
    // SAFETY: by contract.
    let message = |at: usize| unsafe { messages.add(at) };
    // SAFETY: by contract.
    let shape = |at| unsafe {
        let mut buffer = IovecBuffer::new();
        buffer.read_datagram(&raw const (*message(at)).msg_hdr).map(|(_, shape)| shape)
    };
    let (first, count) = (shape(0)?, count.min(MESSAGES_MAX) as usize);
    if flags & !HARMLESS != 0 || !(1..count).all(|at| shape(at) == Some(first)) {
        return None;
    }
    let errno = errno();
    for at in 0..count {
        // SAFETY: by contract; the kernel writes lengths there, and so does this.
        unsafe {
            let sent = sendmsg(descriptor, &raw const (*message(at)).msg_hdr, flags);
            if sent < 0 && at == 0 {
                return Some(-1);
            }
            if sent < 0 {
                set_errno(errno);
                return Some(at as i32);
            }
            (*message(at)).msg_len = sent as u32;
        }
    }
    Some(count as i32)
}

/// # Safety
/// As [`write`].
#[inline(never)]
unsafe fn slow_write(descriptor: i32, data: *const c_void, bytes: usize) -> isize {
    // SAFETY: by contract.
    send_or_begin_burst(
        descriptor,
        0,
        || Some((single_iovec(data, bytes), shape_to_peer(bytes))),
        || unsafe { call!(WRITE, (i32, *const c_void, usize) -> isize, descriptor, data, bytes) },
    )
}

/// # Safety
/// As [`writev`].
#[inline(never)]
unsafe fn slow_writev(descriptor: i32, first: *const iovec, count: i32) -> isize {
    let mut buffer = IovecBuffer::new();
    send_or_begin_burst(
        descriptor,
        0,
        || {
            // SAFETY: by contract.
            let parts = unsafe { buffer.read_writev_iovecs(first, count) }?;
            Some((parts, shape_to_peer(parts.bytes)))
        },
        // SAFETY: by contract.
        || unsafe { call!(WRITEV, (i32, *const iovec, i32) -> isize, descriptor, first, count) },
    )
}

/// `send` by its other name.
///
/// # Safety
/// As the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn __send(
    descriptor: i32,
    data: *const c_void,
    bytes: usize,
    flags: i32,
) -> isize {
    // SAFETY: by contract.
    unsafe { send(descriptor, data, bytes, flags) }
}

/// `sendmmsg` by its other name.
///
/// # Safety
/// As the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn __sendmmsg(
    descriptor: i32,
    messages: *mut mmsghdr,
    count: u32,
    flags: i32,
) -> i32 {
    // SAFETY: by contract.
    unsafe { sendmmsg(descriptor, messages, count, flags) }
}

/// `write` by its other name.
///
/// # Safety
/// As the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn __write(descriptor: i32, data: *const c_void, bytes: usize) -> isize {
    // SAFETY: by contract.
    unsafe { write(descriptor, data, bytes) }
}
