//! Functions that set or query an activated handle.

use std::ffi::{c_char, c_int, c_uint};
use std::ptr::null;
use std::slice;

use crate::abi::{BpfProgram, ERROR, Pcap, SNAP_BYTES_MAX, Statistics};
use crate::capture::{Direction, Filter, has_backward_jump};
use crate::guard;
use crate::handle::LiveCapture;
use crate::system::system_libpcap;
use crate::table;
use crate::text;

/// What `pcap_get_required_select_timeout` points at (libpcap's `netdown_timeout`).
static POLL_INTERVAL: libc::timeval = libc::timeval { tv_sec: 0, tv_usec: 1000 };

const LOOPS: &str =
    "filter: refused; it jumps backwards, as 'ip6 protochain' does; filter for the protocol itself";

/// Calls `ours` for a handle that this library activated, or the system's libpcap for others.
///
/// # Safety
/// The handle is one that the program may use.
unsafe fn call_live_or_system<R: Copy>(
    handle: *mut Pcap,
    fallback: R,
    ours: impl FnOnce(&'static LiveCapture) -> R,
    theirs: impl FnOnce() -> R,
) -> R {
    match table::find_handle(handle).and_then(|found| found.live_capture()) {
        // SAFETY: the handle is open.
        Some(live) => unsafe { guard::run_entry_point(handle, fallback, || ours(live)) },
        None => theirs(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_setfilter(handle: *mut Pcap, program: *mut BpfProgram) -> c_int {
    let ours = |live: &LiveCapture| {
        // SAFETY: the caller guarantees it.
        let Some(program) = (unsafe { program.as_ref() }) else {
            return live.fail_with_text("setfilter: No filter specified");
        };
        if program.instructions.is_null() {
            return live.fail_with_text("BPF program is not valid");
        }
        // SAFETY: the caller guarantees this number of instructions.
        let instructions = unsafe { slice::from_raw_parts(program.instructions, program.len as usize) };
        match Filter::new(instructions) {
            Ok(filter) => live.set_filter(filter),
            Err(_) if has_backward_jump(instructions) => live.fail_with_text(LOOPS),
            Err(_) => live.fail_with_text("BPF program is not valid"),
        }
    };
    // SAFETY: the caller guarantees it.
    unsafe { call_live_or_system(handle, ERROR, ours, || (system_libpcap().pcap_setfilter)(handle, program)) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_setdirection(handle: *mut Pcap, direction: c_uint) -> c_int {
    let ours = |live: &LiveCapture| match direction {
        0 => live.set_direction(Direction::Both),
        1 => live.set_direction(Direction::In),
        2 => live.set_direction(Direction::Out),
        _ => live.fail_with_text("Invalid direction"),
    };
    // SAFETY: the caller guarantees it.
    unsafe {
        call_live_or_system(handle, ERROR, ours, || (system_libpcap().pcap_setdirection)(handle, direction))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_stats(handle: *mut Pcap, statistics: *mut Statistics) -> c_int {
    let ours = |live: &LiveCapture| match live.control.counts() {
        Ok(counts) => {
            // The numbers of this interface wrap around.
            let reported = Statistics {
                received: counts.received as c_uint,
                dropped: counts.dropped as c_uint,
                interface_dropped: counts.interface_dropped as c_uint,
            };
            // SAFETY: the caller guarantees it.
            unsafe { statistics.write(reported) };
            0
        }
        Err(words) => live.fail_with_text(&words),
    };
    // SAFETY: the caller guarantees it.
    unsafe { call_live_or_system(handle, ERROR, ours, || (system_libpcap().pcap_stats)(handle, statistics)) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_getnonblock(handle: *mut Pcap, text: *mut c_char) -> c_int {
    let ours = |live: &LiveCapture| c_int::from(live.is_nonblocking());
    // SAFETY: the caller guarantees it.
    unsafe { call_live_or_system(handle, ERROR, ours, || (system_libpcap().pcap_getnonblock)(handle, text)) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_setnonblock(handle: *mut Pcap, on: c_int, text: *mut c_char) -> c_int {
    let ours = |live: &LiveCapture| match live.set_nonblocking(on != 0) {
        Ok(()) => 0,
        Err(words) => {
            // SAFETY: the caller guarantees it.
            unsafe { text::write_error_text(text, &words) };
            live.fail_with_text(&words)
        }
    };
    let theirs = || {
        // For when it is activated.
        if let Some(found) = table::find_handle(handle)
            && let Err(words) = found.change_settings(|settings| settings.nonblocking = on != 0)
        {
            // SAFETY: the caller guarantees it.
            unsafe { text::write_error_text(text, words) };
            return ERROR;
        }
        // SAFETY: the caller guarantees it.
        unsafe { (system_libpcap().pcap_setnonblock)(handle, on, text) }
    };
    // SAFETY: the caller guarantees it.
    unsafe { call_live_or_system(handle, ERROR, ours, theirs) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_bufsize(handle: *mut Pcap) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe {
        call_live_or_system(handle, ERROR, |_| SNAP_BYTES_MAX, || (system_libpcap().pcap_bufsize)(handle))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_fileno(handle: *mut Pcap) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe {
        call_live_or_system(handle, ERROR, LiveCapture::descriptor, || (system_libpcap().pcap_fileno)(handle))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_get_selectable_fd(handle: *mut Pcap) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe {
        call_live_or_system(handle, ERROR, LiveCapture::descriptor, || {
            (system_libpcap().pcap_get_selectable_fd)(handle)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_get_required_select_timeout(handle: *mut Pcap) -> *const libc::timeval {
    let ours =
        |live: &LiveCapture| if live.control.needs_polling() { &raw const POLL_INTERVAL } else { null() };
    // SAFETY: the caller guarantees it.
    unsafe {
        call_live_or_system(handle, null(), ours, || {
            (system_libpcap().pcap_get_required_select_timeout)(handle)
        })
    }
}
