//! Functions that send: a datagram of a UDP socket joins others, or goes as it always did; other output is preceded by the burst.

use std::ffi::c_void;

use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t};
use nocopy_proto::run::sockets::{Flush, Plain};

use super::trampoline::function;
use crate::destination::Destination;
use crate::outgoing::{self, Datagram, Ticket, Verdict};
use crate::real::call;
use crate::run::Shape;
use crate::shared::{is_off, is_queued};
use crate::slots::{self, Kind, Slot};
use crate::{by_hand, environment};

function!(SEND = send);
function!(SENDTO = sendto);
function!(SENDMSG = sendmsg);
function!(SENDMMSG = sendmmsg);
function!(WRITE = write);
function!(WRITEV = writev);

/// Flags that say nothing of the datagram itself.
const HARMLESS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// Parts of a datagram that are put together; more are left to the kernel.
const PARTS_MAX: usize = 16;

/// How a datagram goes.
enum Way {
    /// The call returns this.
    Done(isize),
    /// The C library's function is to be called.
    Plainly(Option<Ticket>),
}

/// What to do with a datagram. `shape` is looked at for sockets that are not left alone only.
#[inline]
fn way(descriptor: i32, parts: &[iovec], flags: i32, shape: impl FnOnce() -> Option<Shape>) -> Way {
    if is_off() {
        return Way::Plainly(None);
    }
    let Some(slot) = slots::of(descriptor) else {
        before(Flush::Output);
        return Way::Plainly(None);
    };
    match slot.kind() {
        Kind::Other => {
            before(Flush::Output);
            Way::Plainly(None)
        }
        Kind::Alone => {
            before(Flush::Output);
            slot.pass(1);
            slot.record().alone(Plain::Alone);
            match slot.take_owed() {
                Some(errno) => Way::Done(failed(errno)),
                None => Way::Plainly(None),
            }
        }
        Kind::Active => joining(descriptor, parts, flags, shape()),
    }
}

#[inline]
fn before(why: Flush) {
    if is_queued() {
        outgoing::flush(why);
    }
}

fn joining(descriptor: i32, parts: &[iovec], flags: i32, shape: Option<Shape>) -> Way {
    let shape = shape.filter(|_| flags & !HARMLESS == 0);
    if environment::ways().is_by_hand
        && let Some(shape) = shape
        && slots::of(descriptor).is_some_and(Slot::is_udp) // from the second datagram on
        && by_hand::send(descriptor, shape, parts)
    {
        return Way::Done(shape.bytes as isize);
    }
    let dont_wait = flags & libc::MSG_DONTWAIT != 0;
    match outgoing::offer(Datagram { descriptor, shape, parts, dont_wait }) {
        Verdict::Joined => Way::Done(shape.map_or(0, |shape| shape.bytes as isize)),
        Verdict::Failed(errno) => Way::Done(failed(errno)),
        Verdict::Alone(ticket) => Way::Plainly(ticket),
    }
}

fn failed(errno: i32) -> isize {
    // SAFETY: this thread's `errno`.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// Says how a datagram fared that went as it always did.
#[inline]
fn told(ticket: Option<Ticket>, result: isize) -> isize {
    if let Some(ticket) = ticket {
        outgoing::sent(ticket, result >= 0);
    }
    result
}

/// # Safety
/// The address is as long as said, or null.
unsafe fn destination(address: *const c_void, bytes: socklen_t) -> Option<Destination> {
    if address.is_null() {
        return Some(Destination::CONNECTED);
    }
    // SAFETY: by contract.
    Destination::of(unsafe { std::slice::from_raw_parts(address.cast::<u8>(), bytes as usize) })
}

/// `send(2)`
///
/// # Safety
/// As of the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn send(
    descriptor: i32,
    data: *const c_void,
    bytes: usize,
    flags: i32,
) -> isize {
    let part = iovec { iov_base: data.cast_mut(), iov_len: bytes };
    let shape = || Some(Shape { bytes, destination: Destination::CONNECTED });
    match way(descriptor, &[part], flags, shape) {
        Way::Done(result) => result,
        Way::Plainly(ticket) => {
            // SAFETY: by contract.
            let result = unsafe {
                call!(SEND, (i32, *const c_void, usize, i32) -> isize, descriptor, data, bytes, flags)
            };
            told(ticket, result)
        }
    }
}

/// `sendto(2)`
///
/// # Safety
/// As of the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn sendto(
    descriptor: i32,
    data: *const c_void,
    bytes: usize,
    flags: i32,
    address: *const sockaddr,
    address_bytes: socklen_t,
) -> isize {
    let part = iovec { iov_base: data.cast_mut(), iov_len: bytes };
    // SAFETY: by contract.
    let to = || unsafe { destination(address.cast(), address_bytes) };
    match way(descriptor, &[part], flags, || Some(Shape { bytes, destination: to()? })) {
        Way::Done(result) => result,
        Way::Plainly(ticket) => {
            // SAFETY: by contract.
            let result = unsafe {
                call!(
                    SENDTO,
                    (i32, *const c_void, usize, i32, *const sockaddr, socklen_t) -> isize,
                    descriptor, data, bytes, flags, address, address_bytes
                )
            };
            told(ticket, result)
        }
    }
}

/// What a message is as a datagram; nothing if it is more than that.
///
/// # Safety
/// The message is as the kernel reads it.
unsafe fn shape_of(message: &msghdr) -> Option<Shape> {
    if message.msg_iovlen > PARTS_MAX || (!message.msg_control.is_null() && message.msg_controllen > 0) {
        return None;
    }
    // SAFETY: by contract.
    let (parts, destination) =
        unsafe { (parts_of(message), destination(message.msg_name, message.msg_namelen)?) };
    Some(Shape { bytes: length(parts)?, destination })
}

/// # Safety
/// The message is as the kernel reads it.
unsafe fn parts_of(message: &msghdr) -> &[iovec] {
    // SAFETY: by contract.
    unsafe { parts(message.msg_iov, message.msg_iovlen) }
}

/// # Safety
/// There are so many parts.
unsafe fn parts<'a>(first: *const iovec, count: usize) -> &'a [iovec] {
    if first.is_null() || count > PARTS_MAX {
        return &[];
    }
    // SAFETY: by contract.
    unsafe { std::slice::from_raw_parts(first, count) }
}

fn length(parts: &[iovec]) -> Option<usize> {
    parts.iter().try_fold(0_usize, |sum, part| sum.checked_add(part.iov_len))
}

/// `sendmsg(2)`
///
/// # Safety
/// As of the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn sendmsg(descriptor: i32, message: *const msghdr, flags: i32) -> isize {
    // SAFETY: by contract.
    match unsafe { way_of_message(descriptor, message, flags) } {
        Way::Done(result) => result,
        Way::Plainly(ticket) => {
            // SAFETY: by contract.
            let result =
                unsafe { call!(SENDMSG, (i32, *const msghdr, i32) -> isize, descriptor, message, flags) };
            told(ticket, result)
        }
    }
}

/// # Safety
/// The message is as the kernel reads it, or null.
unsafe fn way_of_message(descriptor: i32, message: *const msghdr, flags: i32) -> Way {
    // SAFETY: by contract.
    match unsafe { message.as_ref() } {
        // SAFETY: by contract.
        Some(message) => unsafe { way(descriptor, parts_of(message), flags, || shape_of(message)) },
        None => way(descriptor, &[], flags, || None),
    }
}

/// `sendmmsg(2)`: datagrams of one shape join one by one; others go as they always did.
///
/// # Safety
/// As of the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn sendmmsg(
    descriptor: i32,
    messages: *mut mmsghdr,
    count: u32,
    flags: i32,
) -> i32 {
    let kind = slots::of(descriptor).map(|slot| (slot, slot.kind()));
    if let (Some((slot, Kind::Active)), false) = (kind, is_off()) {
        // SAFETY: by contract.
        if let Some(sent) = unsafe { many(descriptor, messages, count, flags) } {
            return sent;
        }
        slot.record().alone_many(Plain::Unfit, count.into());
    }
    before(Flush::Output);
    if let Some((slot, Kind::Alone)) = kind {
        slot.pass(count);
        slot.record().alone_many(Plain::Alone, count.into());
    }
    // SAFETY: by contract.
    unsafe { call!(SENDMMSG, (i32, *mut mmsghdr, u32, i32) -> i32, descriptor, messages, count, flags) }
}

/// Sends messages of one shape one by one; nothing if they are of several.
///
/// # Safety
/// As of [`sendmmsg`].
unsafe fn many(descriptor: i32, messages: *mut mmsghdr, count: u32, flags: i32) -> Option<i32> {
    if messages.is_null() || count < 2 {
        return None;
    }
    // SAFETY: by contract; the kernel writes lengths there, and so does this.
    let all = unsafe { std::slice::from_raw_parts_mut(messages, count as usize) };
    // SAFETY: by contract.
    let shape = unsafe { shape_of(&all[0].msg_hdr) }?;
    // SAFETY: by contract.
    if flags & !HARMLESS != 0 || !all.iter().all(|one| unsafe { shape_of(&one.msg_hdr) } == Some(shape)) {
        return None;
    }
    for (at, one) in all.iter_mut().enumerate() {
        // SAFETY: by contract.
        let sent = unsafe { sendmsg(descriptor, &raw const one.msg_hdr, flags) };
        if sent < 0 {
            return Some(if at > 0 { at as i32 } else { -1 });
        }
        one.msg_len = sent as u32;
    }
    Some(count as i32)
}

/// `write(2)`
///
/// # Safety
/// As of the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn write(descriptor: i32, data: *const c_void, bytes: usize) -> isize {
    let part = iovec { iov_base: data.cast_mut(), iov_len: bytes };
    let shape = || Some(Shape { bytes, destination: Destination::CONNECTED });
    match way(descriptor, &[part], 0, shape) {
        Way::Done(result) => result,
        Way::Plainly(ticket) => {
            // SAFETY: by contract.
            let result =
                unsafe { call!(WRITE, (i32, *const c_void, usize) -> isize, descriptor, data, bytes) };
            told(ticket, result)
        }
    }
}

/// `writev(2)`
///
/// # Safety
/// As of the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn writev(descriptor: i32, first: *const iovec, count: i32) -> isize {
    let known = usize::try_from(count).ok().filter(|count| *count <= PARTS_MAX);
    // SAFETY: by contract.
    let parts = unsafe { parts(first, known.unwrap_or(0)) };
    let shape = || {
        known?;
        Some(Shape { bytes: length(parts)?, destination: Destination::CONNECTED })
    };
    match way(descriptor, parts, 0, shape) {
        Way::Done(result) => result,
        Way::Plainly(ticket) => {
            // SAFETY: by contract.
            let result =
                unsafe { call!(WRITEV, (i32, *const iovec, i32) -> isize, descriptor, first, count) };
            told(ticket, result)
        }
    }
}

/// `send` by its other name.
///
/// # Safety
/// As of the C library's.
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
/// As of the C library's.
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
/// As of the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn __write(descriptor: i32, data: *const c_void, bytes: usize) -> isize {
    // SAFETY: by contract.
    unsafe { write(descriptor, data, bytes) }
}
