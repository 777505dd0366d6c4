//! Handles from creation to close.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;

use rustix::thread::CapabilitySet;

use crate::abi::{ERROR, Pcap};
use crate::guard;
use crate::handle::Handle;
use crate::system::system;
use crate::table;
use crate::text;

/// A handle of ours for a device that the program named.
///
/// # Safety
/// The name is null or ends with a zero.
unsafe fn handle_for(device: *const c_char) -> Box<Handle> {
    // SAFETY: by contract.
    let device = (!device.is_null()).then(|| unsafe { CStr::from_ptr(device) });
    Box::new(Handle::new(device))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pcap_create(device: *const c_char, text: *mut c_char) -> *mut Pcap {
    // SAFETY: the program's word.
    let handle = unsafe { (system().pcap_create)(device, text) };
    if handle.is_null() {
        return handle;
    }
    // Without our state the handle is the system's alone, and works.
    let run = || {
        // SAFETY: the program's word.
        table::insert(handle, unsafe { handle_for(device) });
    };
    // SAFETY: the handle is open.
    unsafe { guard::entry(handle, (), run) };
    handle
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pcap_activate(handle: *mut Pcap) -> c_int {
    let Some(ours) = table::find(handle) else {
        // SAFETY: the program's word.
        return unsafe { (system().pcap_activate)(handle) };
    };
    let run = || {
        if let Some(live) = ours.live() {
            // SAFETY: both handles are open; the shadow is activated, and says so.
            return unsafe {
                let result = (system().pcap_activate)(live.shadow());
                text::copy(live.shadow(), handle);
                result
            };
        }
        // SAFETY: the handle is open, and the system's.
        match unsafe { ours.activate(handle) } {
            Ok(()) => 0,
            Err(why) => {
                // SAFETY: the program's word.
                let result = unsafe { (system().pcap_activate)(handle) };
                if result >= 0 {
                    ours.is_theirs(&why);
                }
                result
            }
        }
    };
    // SAFETY: the handle is open.
    unsafe { guard::entry(handle, ERROR, run) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pcap_open_live(
    device: *const c_char,
    snap_bytes: c_int,
    promiscuous: c_int,
    timeout_ms: c_int,
    text: *mut c_char,
) -> *mut Pcap {
    let run = || {
        // SAFETY: the program's word.
        let ours = unsafe { handle_for(device) };
        {
            let mut settings = ours.settings();
            settings.snap_bytes_asked = snap_bytes;
            settings.promiscuous = promiscuous != 0;
            settings.timeout_ms = timeout_ms;
        }
        // SAFETY: the program's word.
        let handle = unsafe { (system().pcap_create)(device, text) };
        if handle.is_null() {
            return handle;
        }
        // SAFETY: the handle was opened above.
        match unsafe { ours.activate(handle) } {
            Ok(()) => {
                table::insert(handle, ours);
                handle
            }
            Err(why) => {
                // SAFETY: opened above, and closed once; then the program's word.
                let handle = unsafe {
                    close_unactivated(handle);
                    (system().pcap_open_live)(device, snap_bytes, promiscuous, timeout_ms, text)
                };
                if !handle.is_null() {
                    ours.is_theirs(&why);
                    table::insert(handle, ours);
                }
                handle
            }
        }
    };
    // SAFETY: no handle is open yet.
    unsafe { guard::entry(null_mut(), null_mut(), run) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pcap_close(handle: *mut Pcap) {
    let Some(ours) = table::remove(handle) else {
        // SAFETY: the program's word.
        return unsafe { (system().pcap_close)(handle) };
    };
    let is_live = ours.live().is_some();
    // SAFETY: no text is written: nobody could read it.
    unsafe { guard::entry(null_mut(), (), || ours.close(handle)) };
    // SAFETY: the program's word; where our capture was live, the system's never was.
    unsafe { if is_live { close_unactivated(handle) } else { (system().pcap_close)(handle) } }
}

/// Closes a handle that the system's libpcap has created and not activated. libpcap 1.10.3 then forgets its eventfd, unless an
/// activation failed before: so one fails, for want of a capability that this thread lays down meanwhile.
///
/// # Safety
/// The handle is open, and was never activated.
unsafe fn close_unactivated(handle: *mut Pcap) {
    if let Ok(sets) = rustix::thread::capabilities(None) {
        let mut without = sets;
        without.effective.remove(CapabilitySet::NET_RAW);
        if rustix::thread::set_capabilities(None, without).is_ok() {
            // SAFETY: by contract.
            unsafe { (system().pcap_activate)(handle) };
            // What a thread lays down it may take up again.
            let _ = rustix::thread::set_capabilities(None, sets);
        }
    }
    // SAFETY: by contract.
    unsafe { (system().pcap_close)(handle) };
}
