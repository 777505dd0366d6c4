//! Functions that read packets.

use std::ffi::{c_int, c_uchar};
use std::ptr::{null, null_mut};

use crate::abi::{ERROR, ERROR_BREAK, Handler, PacketHeader, Pcap};
use crate::capture::SleepResult;
use crate::guard;
use crate::handle::{ReadCall, ReadFunction, ReadStep, StackMark};
use crate::system::system;
use crate::table::{self, EnterError, HandleSlot};
use crate::text;

/// Reads. Between its steps a call holds nothing, and nothing in this frame has to be dropped: the program
/// may leave it.
///
/// # Safety
/// The handle is open when the call begins; the callback is what the program wants to be called.
unsafe fn read(
    handle: *mut Pcap,
    slot: HandleSlot,
    call: &mut ReadCall,
    handler: Option<Handler>,
    user: *mut c_uchar,
) -> c_int {
    let mut slept = None;
    loop {
        // SAFETY: by contract.
        match unsafe { step(handle, slot, call, slept.take()) } {
            ReadStep::Deliver => match handler {
                // SAFETY: by contract; the packet stays until the next step.
                Some(handler) => unsafe { handler(user, &raw const call.header, call.bytes) },
                None => return ERROR,
            },
            ReadStep::Sleep(sleep) => slept = Some(sleep.run()),
            ReadStep::Again => {}
            ReadStep::End(result) => return result,
        }
    }
}

/// # Safety
/// As [`read`].
#[inline]
unsafe fn step(
    handle: *mut Pcap,
    slot: HandleSlot,
    call: &mut ReadCall,
    slept: Option<SleepResult>,
) -> ReadStep {
    // SAFETY: by contract.
    if call.may_deliver_now() && unsafe { guard::quick(handle, false, || deliver_now(slot, call)) } {
        return ReadStep::Deliver;
    }
    let run = || match slot.enter(call.site) {
        Ok(guard) => match guard.live() {
            // SAFETY: this step is inside.
            Some(live) => live.step(unsafe { live.reader() }, call, slept),
            None => ReadStep::End(ERROR),
        },
        Err(EnterError::Closed) => ReadStep::End(ERROR_BREAK),
        Err(EnterError::Busy) => {
            // SAFETY: the handle is open: it would be lost otherwise.
            unsafe { text::set(handle, BUSY) };
            ReadStep::End(ERROR)
        }
    };
    // SAFETY: by contract; a panic in a handle that is closed is none of libpcap's.
    unsafe { guard::entry(handle, ReadStep::End(ERROR), run) }
}

const BUSY: &str =
    "handle: cannot be read; another call is reading its packets; wait until that has returned";

#[inline]
fn deliver_now(slot: HandleSlot, call: &mut ReadCall) -> bool {
    let Ok(guard) = slot.try_enter(call.site) else { return false };
    // SAFETY: this step is inside.
    guard.live().is_some_and(|live| live.deliver_now(unsafe { live.reader() }, call))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_dispatch(
    handle: *mut Pcap,
    count: c_int,
    handler: Option<Handler>,
    user: *mut c_uchar,
) -> c_int {
    let Some(slot) = table::find_for_reading(handle) else {
        // SAFETY: the caller guarantees it.
        return unsafe { (system().pcap_dispatch)(handle, count, handler, user) };
    };
    let mark = StackMark::new();
    let mut call = ReadCall::new(ReadFunction::Dispatch, count, mark.site());
    // SAFETY: the handle is open.
    unsafe { read(handle, slot, &mut call, handler, user) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_loop(
    handle: *mut Pcap,
    count: c_int,
    handler: Option<Handler>,
    user: *mut c_uchar,
) -> c_int {
    let Some(slot) = table::find_for_reading(handle) else {
        // SAFETY: the caller guarantees it.
        return unsafe { (system().pcap_loop)(handle, count, handler, user) };
    };
    let mark = StackMark::new();
    let mut call = ReadCall::new(ReadFunction::Loop, count, mark.site());
    // SAFETY: the handle is open.
    unsafe { read(handle, slot, &mut call, handler, user) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_next(handle: *mut Pcap, header: *mut PacketHeader) -> *const c_uchar {
    let Some(slot) = table::find_for_reading(handle) else {
        // SAFETY: the caller guarantees it.
        return unsafe { (system().pcap_next)(handle, header) };
    };
    let mark = StackMark::new();
    let mut call = ReadCall::new(ReadFunction::Next, 1, mark.site());
    // SAFETY: the handle is open.
    if unsafe { read(handle, slot, &mut call, None, null_mut()) } <= 0 {
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
    let Some(slot) = table::find_for_reading(handle) else {
        // SAFETY: the caller guarantees it.
        return unsafe { (system().pcap_next_ex)(handle, header, packet) };
    };
    let mark = StackMark::new();
    let mut call = ReadCall::new(ReadFunction::Next, 1, mark.site());
    // SAFETY: the handle is open.
    let result = unsafe { read(handle, slot, &mut call, None, null_mut()) };
    // SAFETY: the caller guarantees it. If there is no packet, the caller's old values stay.
    unsafe {
        if !call.header_slot.is_null() {
            header.write(call.header_slot);
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
        Some(live) => live.stop.request(),
        // SAFETY: the caller guarantees it.
        None => unsafe { (system().pcap_breakloop)(handle) },
    }
}
