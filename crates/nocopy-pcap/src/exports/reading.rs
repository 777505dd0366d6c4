//! Functions that read packets.

use std::ffi::{c_int, c_uchar};
use std::ptr::{null, null_mut};

use crate::abi::{ERROR, ERROR_BREAK, Handler, PacketHeader, Pcap};
use crate::capture::SleepResult;
use crate::guard;
use crate::handle::{ReadAction, ReadCall, ReadCallKind, StackMark};
use crate::system::system_libpcap;
use crate::table::{self, ClaimError, HandleSlot};
use crate::text;

/// Reads. Between its steps a call holds nothing, and nothing in this frame has to be dropped: the program
/// may leave it.
///
/// # Safety
/// The handle is open when the call begins; the callback is what the program wants to be called.
unsafe fn read_packets(
    handle: *mut Pcap,
    slot: HandleSlot,
    call: &mut ReadCall,
    handler: Option<Handler>,
    user: *mut c_uchar,
) -> c_int {
    let mut slept = None;
    loop {
        // SAFETY: by contract.
        match unsafe { run_step(handle, slot, call, slept.take()) } {
            ReadAction::Deliver => match handler {
                // SAFETY: by contract; the packet stays until the next step.
                Some(handler) => unsafe { handler(user, &raw const call.header, call.bytes) },
                None => return ERROR,
            },
            ReadAction::Sleep(sleep) => slept = Some(sleep.perform_sleep()),
            ReadAction::Again => {}
            ReadAction::End(result) => return result,
        }
    }
}

/// # Safety
/// As [`read_packets`].
#[inline]
unsafe fn run_step(
    handle: *mut Pcap,
    slot: HandleSlot,
    call: &mut ReadCall,
    slept: Option<SleepResult>,
) -> ReadAction {
    // SAFETY: by contract.
    if call.may_deliver_now() && unsafe { guard::catch_panic(handle, false, || try_fetch_packet(slot, call)) }
    {
        return ReadAction::Deliver;
    }
    let run = || match slot.begin_step(call.position) {
        Ok(guard) => match guard.live_capture() {
            // SAFETY: this step is inside.
            Some(live) => live.run_step(unsafe { live.reader_state() }, call, slept),
            None => ReadAction::End(ERROR),
        },
        Err(ClaimError::Closed) => ReadAction::End(ERROR_BREAK),
        Err(ClaimError::Busy) => {
            // SAFETY: the handle is open: it would be lost otherwise.
            unsafe { text::set_error_text(handle, BUSY) };
            ReadAction::End(ERROR)
        }
    };
    // SAFETY: by contract; a panic in a handle that is closed is none of libpcap's.
    unsafe { guard::run_entry_point(handle, ReadAction::End(ERROR), run) }
}

const BUSY: &str =
    "handle: cannot be read; another call is reading its packets; wait until that has returned";

#[inline]
fn try_fetch_packet(slot: HandleSlot, call: &mut ReadCall) -> bool {
    let Ok(guard) = slot.try_begin_step(call.position) else { return false };
    // SAFETY: this step is inside.
    guard.live_capture().is_some_and(|live| live.try_fetch_packet(unsafe { live.reader_state() }, call))
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
        return unsafe { (system_libpcap().pcap_dispatch)(handle, count, handler, user) };
    };
    let mark = StackMark::new();
    let mut call = ReadCall::new(ReadCallKind::Dispatch, count, mark.position());
    // SAFETY: the handle is open.
    unsafe { read_packets(handle, slot, &mut call, handler, user) }
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
        return unsafe { (system_libpcap().pcap_loop)(handle, count, handler, user) };
    };
    let mark = StackMark::new();
    let mut call = ReadCall::new(ReadCallKind::Loop, count, mark.position());
    // SAFETY: the handle is open.
    unsafe { read_packets(handle, slot, &mut call, handler, user) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_next(handle: *mut Pcap, header: *mut PacketHeader) -> *const c_uchar {
    let Some(slot) = table::find_for_reading(handle) else {
        // SAFETY: the caller guarantees it.
        return unsafe { (system_libpcap().pcap_next)(handle, header) };
    };
    let mark = StackMark::new();
    let mut call = ReadCall::new(ReadCallKind::Next, 1, mark.position());
    // SAFETY: the handle is open.
    if unsafe { read_packets(handle, slot, &mut call, None, null_mut()) } <= 0 {
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
        return unsafe { (system_libpcap().pcap_next_ex)(handle, header, packet) };
    };
    let mark = StackMark::new();
    let mut call = ReadCall::new(ReadCallKind::Next, 1, mark.position());
    // SAFETY: the handle is open.
    let result = unsafe { read_packets(handle, slot, &mut call, None, null_mut()) };
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
    match table::find_handle(handle).and_then(|ours| ours.live_capture()) {
        // Also in a signal handler: no lock, no allocation, no panic, no cancellation point.
        Some(live) => live.stop.request(),
        // SAFETY: the caller guarantees it.
        None => unsafe { (system_libpcap().pcap_breakloop)(handle) },
    }
}
