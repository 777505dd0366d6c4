//! Functions that read packets.

use std::ffi::{c_int, c_uchar};
use std::ptr::{null, null_mut};

use crate::abi::{ERROR, ERROR_BREAK, Handler, PacketHeader, Pcap};
use crate::capture::Slept;
use crate::guard;
use crate::handle::{Call, Footing, Reads, Step};
use crate::system::system;
use crate::table::{self, Found, Lost};
use crate::text;

/// Reads. Between its steps a call holds nothing, and nothing in this frame has to be dropped: the program
/// may leave it.
///
/// # Safety
/// The handle is open when the call begins; the callback is what the program wants to be called.
unsafe fn read(
    handle: *mut Pcap,
    found: Found,
    call: &mut Call,
    handler: Option<Handler>,
    user: *mut c_uchar,
) -> c_int {
    let mut slept = None;
    loop {
        // SAFETY: by contract.
        match unsafe { step(handle, found, call, slept.take()) } {
            Step::Deliver => match handler {
                // SAFETY: by contract; the packet stays until the next step.
                Some(handler) => unsafe { handler(user, &raw const call.header, call.bytes) },
                None => return ERROR,
            },
            Step::Sleep(sleep) => slept = Some(sleep.run()),
            Step::Again => {}
            Step::End(result) => return result,
        }
    }
}

/// # Safety
/// As [`read`].
#[inline]
unsafe fn step(handle: *mut Pcap, found: Found, call: &mut Call, slept: Option<Slept>) -> Step {
    // SAFETY: by contract.
    if call.may_deliver_at_once() && unsafe { guard::quick(handle, false, || deliver_at_once(found, call)) } {
        return Step::Deliver;
    }
    let run = || match found.enter(call.place) {
        Ok(inside) => match inside.live() {
            // SAFETY: this step is inside.
            Some(live) => live.step(unsafe { live.reader() }, call, slept),
            None => Step::End(ERROR),
        },
        Err(Lost::Closed) => Step::End(ERROR_BREAK),
        Err(Lost::Busy) => {
            // SAFETY: the handle is open: it would be lost otherwise.
            unsafe { text::set(handle, BUSY) };
            Step::End(ERROR)
        }
    };
    // SAFETY: by contract; a panic in a handle that is closed is none of libpcap's.
    unsafe { guard::entry(handle, Step::End(ERROR), run) }
}

const BUSY: &str =
    "handle: cannot be read; another call is reading its packets; wait until that has returned";

#[inline]
fn deliver_at_once(found: Found, call: &mut Call) -> bool {
    let Ok(inside) = found.try_enter(call.place) else { return false };
    // SAFETY: this step is inside.
    inside.live().is_some_and(|live| live.deliver_at_once(unsafe { live.reader() }, call))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_dispatch(
    handle: *mut Pcap,
    count: c_int,
    handler: Option<Handler>,
    user: *mut c_uchar,
) -> c_int {
    let Some(found) = table::find_for_reading(handle) else {
        // SAFETY: the caller guarantees it.
        return unsafe { (system().pcap_dispatch)(handle, count, handler, user) };
    };
    let footing = Footing::new();
    let mut call = Call::new(Reads::Dispatch, count, footing.place());
    // SAFETY: the handle is open.
    unsafe { read(handle, found, &mut call, handler, user) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_loop(
    handle: *mut Pcap,
    count: c_int,
    handler: Option<Handler>,
    user: *mut c_uchar,
) -> c_int {
    let Some(found) = table::find_for_reading(handle) else {
        // SAFETY: the caller guarantees it.
        return unsafe { (system().pcap_loop)(handle, count, handler, user) };
    };
    let footing = Footing::new();
    let mut call = Call::new(Reads::Loop, count, footing.place());
    // SAFETY: the handle is open.
    unsafe { read(handle, found, &mut call, handler, user) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_next(handle: *mut Pcap, header: *mut PacketHeader) -> *const c_uchar {
    let Some(found) = table::find_for_reading(handle) else {
        // SAFETY: the caller guarantees it.
        return unsafe { (system().pcap_next)(handle, header) };
    };
    let footing = Footing::new();
    let mut call = Call::new(Reads::Next, 1, footing.place());
    // SAFETY: the handle is open.
    if unsafe { read(handle, found, &mut call, None, null_mut()) } <= 0 {
        return null();
    }
    // SAFETY: the caller guarantees it.
    unsafe { header.write(call.header) };
    call.bytes
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_next_ex(
    handle: *mut Pcap,
    header: *mut *mut PacketHeader,
    packet: *mut *const c_uchar,
) -> c_int {
    let Some(found) = table::find_for_reading(handle) else {
        // SAFETY: the caller guarantees it.
        return unsafe { (system().pcap_next_ex)(handle, header, packet) };
    };
    let footing = Footing::new();
    let mut call = Call::new(Reads::Next, 1, footing.place());
    // SAFETY: the handle is open.
    let result = unsafe { read(handle, found, &mut call, None, null_mut()) };
    // SAFETY: the caller guarantees it. If there is no packet, the caller's old values stay.
    unsafe {
        if !call.kept_header.is_null() {
            header.write(call.kept_header);
        }
        if result > 0 {
            packet.write(call.bytes);
        }
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_breakloop(handle: *mut Pcap) {
    match table::find(handle).and_then(|ours| ours.live()) {
        // Also in a signal handler: no lock, no allocation, no panic, no cancellation point.
        Some(live) => live.stop.ask(),
        // SAFETY: the caller guarantees it.
        None => unsafe { (system().pcap_breakloop)(handle) },
    }
}
