//! Functions that send: a UDP datagram joins the burst or is sent as usual; before other output, the burst is sent.

use std::ffi::c_void;

use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t};
use nocopy_proto::run::sockets::{Flush, Plain};

use super::trampoline::function;
use crate::destination::Destination;
use crate::outgoing::{self, Datagram, Verdict};
use crate::real::{call, call_at};
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

/// Flags that do not affect the datagram itself.
const HARMLESS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// The most parts of a datagram that this library joins; a datagram with more is left to the kernel.
const PARTS_MAX: usize = 16;

/// Whether this library ignores a call. The check costs a few instructions, and reads only the memory of the descriptor.
#[inline(always)]
fn is_left_alone(descriptor: i32) -> bool {
    !is_queued() && slots::of(descriptor).is_none_or(|slot| is_off() || slot.passes())
}

/// Functions that send. Each has three parts, so that the fast paths need no registers and no stack for the slow one: sockets that are left
/// alone; datagrams that join a burst (`joins`, if given); everything else (`rest`).
macro_rules! sends {
    ($($name:ident = $place:ident else $joins:ident else $rest:ident($($argument:ident: $type:ty),*);)*) => { $(
        #[doc = concat!("`", stringify!($name), "(2)`")]
        ///
        /// # Safety
        /// As the C library's function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(crate) unsafe extern "C-unwind" fn $name(descriptor: i32, $($argument: $type),*) -> isize {
            #[inline(never)]
            unsafe fn joins_or_not(descriptor: i32, $($argument: $type),*) -> isize {
                // SAFETY: by contract.
                match unsafe { $joins(descriptor, $($argument),*) } {
                    Some(bytes) => bytes as isize,
                    // SAFETY: by contract.
                    None => unsafe { $rest(descriptor, $($argument),*) },
                }
            }
            match $place.known() {
                // SAFETY: by contract.
                Some(real) if is_left_alone(descriptor) => unsafe {
                    call_at!(real.as_ptr(), (i32, $($type),*) -> isize, descriptor, $($argument),*)
                },
                // SAFETY: by contract.
                _ => unsafe { joins_or_not(descriptor, $($argument),*) },
            }
        }
    )* };
}

sends! {
    send = SEND else join_send else rest_send(data: *const c_void, bytes: usize, flags: i32);
    sendto = SENDTO else join_sendto else rest_sendto(
        data: *const c_void, bytes: usize, flags: i32, address: *const sockaddr, address_bytes: socklen_t
    );
    sendmsg = SENDMSG else join_sendmsg else rest_sendmsg(message: *const msghdr, flags: i32);
    write = WRITE else join_write else rest_write(data: *const c_void, bytes: usize);
    writev = WRITEV else join_writev else rest_writev(first: *const iovec, count: i32);
}

/// Puts a datagram into the current burst if `is_like` accepts the burst's shape.
#[inline(always)]
fn join(descriptor: i32, parts: &[iovec], flags: i32, is_like: impl FnOnce(&Shape) -> bool) -> Option<usize> {
    if flags & !HARMLESS != 0 || !is_queued() {
        return None;
    }
    outgoing::join(descriptor, parts, is_like)
}

fn part(data: *const c_void, bytes: usize) -> iovec {
    iovec { iov_base: data.cast_mut(), iov_len: bytes }
}

/// # Safety
/// As [`send`].
#[inline(always)]
unsafe fn join_send(descriptor: i32, data: *const c_void, bytes: usize, flags: i32) -> Option<usize> {
    join(descriptor, &[part(data, bytes)], flags, |of| of.is(bytes, None))
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
    let to = || unsafe { bytes_of(address.cast(), address_bytes) };
    join(descriptor, &[part(data, bytes)], flags, |of| of.is(bytes, to()))
}

/// # Safety
/// As [`sendmsg`].
#[inline(always)]
unsafe fn join_sendmsg(descriptor: i32, message: *const msghdr, flags: i32) -> Option<usize> {
    // SAFETY: by contract.
    let (parts, shape) = unsafe { (parts_of(message), || shape_of(message)) };
    join(descriptor, parts, flags, |of| shape() == Some(*of))
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
    // SAFETY: by contract.
    let (parts, shape) = unsafe { vector(first, count) };
    join(descriptor, parts, 0, |of| shape == Some(*of))
}

/// Sends a datagram that has not joined a burst by the C library's function `real`, or begins a burst with it; `shape` is computed only if
/// it may.
#[inline]
fn send_by(
    descriptor: i32,
    parts: &[iovec],
    flags: i32,
    shape: impl FnOnce() -> Option<Shape>,
    real: impl Fn() -> isize,
) -> isize {
    match slots::of(descriptor).filter(|_| !is_off()) {
        Some(slot) if slot.kind() == Kind::Active => {
            joining(descriptor, parts, flags, shape().filter(|_| flags & !HARMLESS == 0), real)
        }
        slot => {
            before(Flush::Output);
            slot.filter(|slot| slot.kind() == Kind::Alone).map_or_else(&real, |slot| alone(slot, &real))
        }
    }
}

/// Sends a datagram of a socket that is left alone, and counts it.
#[cold]
fn alone(slot: &Slot, real: impl Fn() -> isize) -> isize {
    slot.pass(1);
    slot.record().alone(Plain::Alone);
    slot.take_owed().map_or_else(real, failed)
}

#[inline]
fn before(why: Flush) {
    if is_queued() {
        outgoing::flush(why);
    }
}

/// A datagram of a socket that is not left alone, or not known.
fn joining(
    descriptor: i32,
    parts: &[iovec],
    flags: i32,
    shape: Option<Shape>,
    real: impl Fn() -> isize,
) -> isize {
    if let Some(way) = environment::ways().by_hand
        && let Some(shape) = shape
        && slots::of(descriptor).is_some_and(Slot::is_udp) // from the second datagram on
        && by_hand::send(descriptor, shape, parts, way)
    {
        return shape.bytes as isize;
    }
    let dont_wait = flags & libc::MSG_DONTWAIT != 0;
    match outgoing::offer(Datagram { descriptor, shape, parts, dont_wait }) {
        Verdict::Joined => shape.map_or(0, |shape| shape.bytes as isize),
        Verdict::Failed(errno) => failed(errno),
        Verdict::Alone(None) => real(),
        Verdict::Alone(Some(ticket)) => {
            let result = real();
            outgoing::sent(ticket, result >= 0);
            result
        }
    }
}

#[cold]
fn failed(errno: i32) -> isize {
    // SAFETY: this thread's `errno`.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// The bytes of an address; `None` if there is none.
///
/// # Safety
/// `address` is null or points to `bytes` bytes.
#[inline]
unsafe fn bytes_of<'a>(address: *const c_void, bytes: socklen_t) -> Option<&'a [u8]> {
    if address.is_null() {
        return None;
    }
    // SAFETY: by contract.
    Some(unsafe { std::slice::from_raw_parts(address.cast::<u8>(), bytes as usize) })
}

fn destination(address: Option<&[u8]>) -> Option<Destination> {
    address.map_or(Some(Destination::CONNECTED), Destination::of)
}

/// # Safety
/// As [`send`].
#[inline(never)]
unsafe fn rest_send(descriptor: i32, data: *const c_void, bytes: usize, flags: i32) -> isize {
    let shape = || Some(Shape { bytes, destination: Destination::CONNECTED });
    // SAFETY: by contract.
    send_by(descriptor, &[part(data, bytes)], flags, shape, || unsafe {
        call!(SEND, (i32, *const c_void, usize, i32) -> isize, descriptor, data, bytes, flags)
    })
}

/// # Safety
/// As [`sendto`].
#[inline(never)]
unsafe fn rest_sendto(
    descriptor: i32,
    data: *const c_void,
    bytes: usize,
    flags: i32,
    address: *const sockaddr,
    address_bytes: socklen_t,
) -> isize {
    // SAFETY: by contract.
    let to = || unsafe { bytes_of(address.cast(), address_bytes) };
    let shape = || Some(Shape { bytes, destination: destination(to())? });
    // SAFETY: by contract.
    send_by(descriptor, &[part(data, bytes)], flags, shape, || unsafe {
        call!(
            SENDTO,
            (i32, *const c_void, usize, i32, *const sockaddr, socklen_t) -> isize,
            descriptor, data, bytes, flags, address, address_bytes
        )
    })
}

/// The shape of a message as a datagram; `None` if it has more than that, or is null.
///
/// # Safety
/// The message is null, or valid for the kernel.
unsafe fn shape_of(message: *const msghdr) -> Option<Shape> {
    // SAFETY: by contract.
    let known = unsafe { message.as_ref() }?;
    if known.msg_iovlen > PARTS_MAX || (!known.msg_control.is_null() && known.msg_controllen > 0) {
        return None;
    }
    // SAFETY: by contract.
    let (parts, address) = unsafe { (parts_of(message), bytes_of(known.msg_name, known.msg_namelen)) };
    Some(Shape { bytes: length(parts)?, destination: destination(address)? })
}

/// # Safety
/// The message is null, or valid for the kernel.
unsafe fn parts_of<'a>(message: *const msghdr) -> &'a [iovec] {
    // SAFETY: by contract.
    unsafe { message.as_ref().map_or(&[], |message| parts(message.msg_iov, message.msg_iovlen)) }
}

/// # Safety
/// `first` points to `count` parts.
unsafe fn parts<'a>(first: *const iovec, count: usize) -> &'a [iovec] {
    if first.is_null() || count > PARTS_MAX {
        return &[];
    }
    // SAFETY: by contract.
    unsafe { std::slice::from_raw_parts(first, count) }
}

/// The parts that `writev` writes, and their shape as a datagram to the peer of a connected socket.
///
/// # Safety
/// `first` points to `count` parts.
unsafe fn vector<'a>(first: *const iovec, count: i32) -> (&'a [iovec], Option<Shape>) {
    let known = usize::try_from(count).ok().filter(|count| *count <= PARTS_MAX);
    // SAFETY: by contract.
    let parts = unsafe { parts(first, known.unwrap_or(0)) };
    let bytes = known.and_then(|_| length(parts));
    (parts, bytes.map(|bytes| Shape { bytes, destination: Destination::CONNECTED }))
}

fn length(parts: &[iovec]) -> Option<usize> {
    parts.iter().try_fold(0_usize, |sum, part| sum.checked_add(part.iov_len))
}

/// # Safety
/// As [`sendmsg`].
#[inline(never)]
unsafe fn rest_sendmsg(descriptor: i32, message: *const msghdr, flags: i32) -> isize {
    // SAFETY: by contract.
    let (parts, shape) = unsafe { (parts_of(message), || shape_of(message)) };
    // SAFETY: by contract.
    send_by(descriptor, parts, flags, shape, || unsafe {
        call!(SENDMSG, (i32, *const msghdr, i32) -> isize, descriptor, message, flags)
    })
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

/// Sends messages of one shape one by one; returns `None` if their shapes differ.
///
/// # Safety
/// As [`sendmmsg`].
unsafe fn many(descriptor: i32, messages: *mut mmsghdr, count: u32, flags: i32) -> Option<i32> {
    if messages.is_null() || count < 2 {
        return None;
    }
    // SAFETY: by contract; the kernel writes lengths there, and so does this.
    let all = unsafe { std::slice::from_raw_parts_mut(messages, count as usize) };
    // SAFETY: by contract.
    let shape = unsafe { shape_of(&raw const all[0].msg_hdr) }?;
    // SAFETY: by contract.
    let is_equal = |one: &mmsghdr| unsafe { shape_of(&raw const one.msg_hdr) } == Some(shape);
    if flags & !HARMLESS != 0 || !all.iter().all(is_equal) {
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

/// # Safety
/// As [`write`].
#[inline(never)]
unsafe fn rest_write(descriptor: i32, data: *const c_void, bytes: usize) -> isize {
    let shape = || Some(Shape { bytes, destination: Destination::CONNECTED });
    // SAFETY: by contract.
    send_by(descriptor, &[part(data, bytes)], 0, shape, || unsafe {
        call!(WRITE, (i32, *const c_void, usize) -> isize, descriptor, data, bytes)
    })
}

/// # Safety
/// As [`writev`].
#[inline(never)]
unsafe fn rest_writev(descriptor: i32, first: *const iovec, count: i32) -> isize {
    // SAFETY: by contract.
    let (parts, shape) = unsafe { vector(first, count) };
    // SAFETY: by contract.
    send_by(
        descriptor,
        parts,
        0,
        || shape,
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
