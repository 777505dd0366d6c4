//! Handles from creation to close, and the filters that are compiled for them.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;

use super::exit;
use crate::abi::{BpfProgram, ERROR, Pcap};
use crate::capture::OpenedCapture;
use crate::guard;
use crate::handle::{Handle, StackMark};
use crate::system::system_libpcap;
use crate::table::{self, RemovedHandle};
use crate::text;

/// A handle of this library for the device that the program named.
///
/// # Safety
/// The name is null or ends with a zero.
unsafe fn new_handle(device: *const c_char) -> Box<Handle> {
    // SAFETY: by contract.
    let device = (!device.is_null()).then(|| unsafe { CStr::from_ptr(device) });
    Box::new(Handle::new(device))
}

fn register_handle(handle: *mut Pcap, ours: Box<Handle>) {
    table::insert_handle(handle, ours);
    exit::install_exit_handlers();
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_create(device: *const c_char, text: *mut c_char) -> *mut Pcap {
    // SAFETY: the caller guarantees it.
    let handle = unsafe { (system_libpcap().pcap_create)(device, text) };
    if handle.is_null() {
        return handle;
    }
    // Without our state the handle is the system's alone, and works.
    let run = || {
        // SAFETY: the caller guarantees it.
        register_handle(handle, unsafe { new_handle(device) });
    };
    // SAFETY: the handle is open.
    unsafe { guard::run_entry_point(handle, (), run) };
    handle
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_activate(handle: *mut Pcap) -> c_int {
    let Some(ours) = table::find_handle(handle).filter(|ours| !ours.is_activated()) else {
        // SAFETY: the caller guarantees it.
        return unsafe { (system_libpcap().pcap_activate)(handle) };
    };
    let run = || match ours.open_capture() {
        // SAFETY: the handle is open, and the system's.
        Ok(opened) => unsafe { ours.activate(handle, opened) },
        Err(why) => {
            // SAFETY: the caller guarantees it.
            let result = unsafe { (system_libpcap().pcap_activate)(handle) };
            if result >= 0 {
                ours.record_system_capture(&why);
            }
            result
        }
    };
    // SAFETY: the handle is open.
    unsafe { guard::run_entry_point(handle, ERROR, run) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_open_live(
    device: *const c_char,
    snap_bytes: c_int,
    promiscuous: c_int,
    timeout_ms: c_int,
    text: *mut c_char,
) -> *mut Pcap {
    let run = || {
        // SAFETY: the caller guarantees it.
        let ours = unsafe { new_handle(device) };
        let _ = ours.change_settings(|settings| {
            settings.snap_bytes_requested = snap_bytes;
            settings.promiscuous = promiscuous != 0;
            settings.timeout_ms = timeout_ms;
        }); // no other call knows it yet
        let why = match ours.open_capture() {
            Ok(opened) => {
                // SAFETY: the caller guarantees it.
                let handle = unsafe { (system_libpcap().pcap_create)(device, text) };
                if handle.is_null() {
                    return handle;
                }
                // SAFETY: created above, and closed if it is not given to the program.
                if unsafe { activate_with_settings(&ours, handle, opened) } {
                    register_handle(handle, ours);
                    return handle;
                }
                // SAFETY: created above, and closed once.
                unsafe { (system_libpcap().pcap_close)(handle) };
                None
            }
            Err(why) => Some(why),
        };
        // SAFETY: the caller guarantees it.
        let handle =
            unsafe { (system_libpcap().pcap_open_live)(device, snap_bytes, promiscuous, timeout_ms, text) };
        // A libpcap whose calls come here (`loader`) has created it by this library's functions, which know
        // it.
        if let Some(why) = why.filter(|_| !handle.is_null() && table::find_handle(handle).is_none()) {
            ours.record_system_capture(&why);
            register_handle(handle, ours);
        }
        handle
    };
    // SAFETY: no handle is open yet.
    unsafe { guard::run_entry_point(null_mut(), null_mut(), run) }
}

/// Gives the system's handle the settings of this library's, and starts a capture; false if that is
/// impossible.
///
/// # Safety
/// The handle is open, and not activated.
unsafe fn activate_with_settings(ours: &Handle, handle: *mut Pcap, opened: OpenedCapture) -> bool {
    let Ok(settings) = ours.settings() else { return false };
    // SAFETY: by contract.
    unsafe {
        (system_libpcap().pcap_set_snaplen)(handle, settings.snap_bytes_requested);
        (system_libpcap().pcap_set_promisc)(handle, settings.promiscuous.into());
        (system_libpcap().pcap_set_timeout)(handle, settings.timeout_ms);
        ours.activate(handle, opened) >= 0
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_close(handle: *mut Pcap) {
    let mark = StackMark::new();
    let run = || match table::remove_handle(handle, mark.position()) {
        Some(RemovedHandle::Free(ours)) => {
            // SAFETY: it came from a box, and nothing finds it any more.
            unsafe {
                ours.as_ref().stop(handle);
                Handle::close_and_free(ours);
            }
        }
        Some(RemovedHandle::InUse(ours)) => ours.stop_in_use(handle),
        None => {}
    };
    // SAFETY: no text is written: nobody could read it.
    unsafe { guard::run_entry_point(null_mut(), (), run) };
    // SAFETY: the caller guarantees it.
    unsafe { (system_libpcap().pcap_close)(handle) };
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_compile(
    handle: *mut Pcap,
    program: *mut BpfProgram,
    expression: *const c_char,
    optimize: c_int,
    netmask: u32,
) -> c_int {
    // SAFETY: the caller guarantees it.
    let compile =
        |handle| unsafe { (system_libpcap().pcap_compile)(handle, program, expression, optimize, netmask) };
    let live = table::find_handle(handle).and_then(|ours| ours.live_capture());
    if live.is_none_or(|live| !live.control.sees_vlan_tags_in_frames()) {
        return compile(handle);
    }
    // For its own captures the system's libpcap makes code that asks for a VLAN tag beside the frame; for
    // files it does not. It may wait for the names of hosts: so this frame has nothing to drop. SAFETY: the
    // handle is open; the one that is made is closed.
    unsafe {
        let (link_type, snap_bytes) =
            ((system_libpcap().pcap_datalink)(handle), (system_libpcap().pcap_snapshot)(handle));
        let dead = (system_libpcap().pcap_open_dead)(link_type, snap_bytes);
        if dead.is_null() {
            return guard::run_entry_point(handle, ERROR, || {
                text::set_error_text(handle, "malloc: Cannot allocate memory");
                ERROR
            });
        }
        let result = compile(dead);
        if result < 0 {
            guard::run_entry_point(handle, (), || text::copy_error_text(dead, handle));
        }
        (system_libpcap().pcap_close)(dead);
        result
    }
}
