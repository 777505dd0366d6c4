//! Functions that read packets.

use std::ffi::{c_int, c_uchar};
use std::ptr::{NonNull, null, null_mut};

use crate::abi::{ERROR, Handler, PacketHeader, Pcap};
use crate::capture::Packet;
use crate::guard;
use crate::handle::{Handle, Live, Reader};
use crate::system::system;
use crate::table;

/// Hands a packet to the program's callback.
fn deliver_to(handler: Option<Handler>, user: *mut c_uchar) -> impl FnMut(&PacketHeader, Packet<'_>) {
    move |header, packet| {
        let handler = handler.expect("a callback");
        // SAFETY: the caller guarantees it; header and packet stay until it returns.
        unsafe { handler(user, header, packet.bytes.as_ptr()) }
    }
}

/// This library's state of a handle, if it has any. Not a reference, because the state may be freed before the call ends.
#[inline]
fn ours(handle: *mut Pcap) -> Option<NonNull<Handle>> {
    // SAFETY: the caller guarantees it.
    table::find_pointer(handle).filter(|ours| unsafe { ours.as_ref() }.live().is_some())
}

/// Calls `read` for a capture of this library; returns `fallback` on an error.
///
/// # Safety
/// The handle is open, and `ours` is beside it.
unsafe fn read<R: Copy>(
    handle: *mut Pcap,
    ours: NonNull<Handle>,
    fallback: R,
    read: impl FnOnce(&Live, &mut Reader) -> R,
) -> R {
    // SAFETY: by contract.
    let run = || unsafe { Handle::read(ours, read) }.unwrap_or(fallback);
    // SAFETY: by contract.
    unsafe { guard::entry(handle, fallback, run) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pcap_dispatch(
    handle: *mut Pcap,
    count: c_int,
    handler: Option<Handler>,
    user: *mut c_uchar,
) -> c_int {
    match ours(handle) {
        // SAFETY: the handle is open.
        Some(ours) => unsafe {
            read(handle, ours, ERROR, |live, reader| {
                live.dispatch(reader, count, &mut deliver_to(handler, user))
            })
        },
        // SAFETY: the caller guarantees it.
        None => unsafe { (system().pcap_dispatch)(handle, count, handler, user) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pcap_loop(
    handle: *mut Pcap,
    count: c_int,
    handler: Option<Handler>,
    user: *mut c_uchar,
) -> c_int {
    match ours(handle) {
        // SAFETY: the handle is open.
        Some(ours) => unsafe {
            read(handle, ours, ERROR, |live, reader| {
                live.repeat(reader, count, &mut deliver_to(handler, user))
            })
        },
        // SAFETY: the caller guarantees it.
        None => unsafe { (system().pcap_loop)(handle, count, handler, user) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pcap_next(handle: *mut Pcap, header: *mut PacketHeader) -> *const c_uchar {
    let Some(ours) = ours(handle) else {
        // SAFETY: the caller guarantees it.
        return unsafe { (system().pcap_next)(handle, header) };
    };
    let run = |live: &Live, reader: &mut Reader| {
        let mut found = (null_mut(), null());
        if live.next(reader, &mut found) <= 0 {
            return null();
        }
        // SAFETY: the caller guarantees it; the found packet stays until the next call.
        unsafe { header.write(*found.0) };
        found.1
    };
    // SAFETY: the handle is open.
    unsafe { read(handle, ours, null(), run) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pcap_next_ex(
    handle: *mut Pcap,
    header: *mut *mut PacketHeader,
    packet: *mut *const c_uchar,
) -> c_int {
    let Some(ours) = ours(handle) else {
        // SAFETY: the caller guarantees it.
        return unsafe { (system().pcap_next_ex)(handle, header, packet) };
    };
    let run = |live: &Live, reader: &mut Reader| {
        let mut found = (null_mut(), null());
        let result = live.next(reader, &mut found);
        // SAFETY: the caller guarantees it. If there is no packet, the caller's old values stay.
        unsafe {
            if !found.0.is_null() {
                header.write(found.0);
            }
            if result > 0 {
                packet.write(found.1);
            }
        }
        result
    };
    // SAFETY: the handle is open.
    unsafe { read(handle, ours, ERROR, run) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pcap_breakloop(handle: *mut Pcap) {
    match table::find(handle).and_then(|ours| ours.live()) {
        Some(live) => live.stop.ask(), // also in a signal handler: no lock, no allocation, no panic
        // SAFETY: the caller guarantees it.
        None => unsafe { (system().pcap_breakloop)(handle) },
    }
}
