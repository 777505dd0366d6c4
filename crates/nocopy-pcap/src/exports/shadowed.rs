//! What the system's libpcap does only with a handle that it has activated: it does it with our handle's shadow.

use std::ffi::{c_char, c_int};

use crate::abi::{BpfProgram, ERROR, Opaque, Pcap};
use crate::guard;
use crate::system::system;
use crate::table;
use crate::text;

/// Calls something on the shadow of a handle, if it is ours and activated; texts of errors go to the handle.
///
/// # Safety
/// The handle is one that the program may use, and `call` may be done with it.
unsafe fn on_shadow<R>(
    handle: *mut Pcap,
    fallback: R,
    is_error: impl Fn(&R) -> bool,
    call: impl Fn(*mut Pcap) -> R,
) -> R {
    let Some(live) = table::find(handle).and_then(|ours| ours.live()) else { return call(handle) };
    let run = || {
        let shadow = live.shadow();
        let result = call(shadow);
        if is_error(&result) {
            // SAFETY: both are open.
            unsafe { text::copy(shadow, handle) };
        }
        result
    };
    // SAFETY: the handle is open.
    unsafe { guard::entry(handle, fallback, run) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pcap_compile(
    handle: *mut Pcap,
    program: *mut BpfProgram,
    expression: *const c_char,
    optimize: c_int,
    netmask: u32,
) -> c_int {
    // SAFETY: the program's word.
    let compile = |handle| unsafe { (system().pcap_compile)(handle, program, expression, optimize, netmask) };
    // SAFETY: the program's word.
    unsafe { on_shadow(handle, ERROR, |&result| result < 0, compile) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pcap_dump_open(handle: *mut Pcap, path: *const c_char) -> *mut Opaque {
    // SAFETY: the program's word.
    let open = |handle| unsafe { (system().pcap_dump_open)(handle, path) };
    // SAFETY: the program's word.
    unsafe { on_shadow(handle, std::ptr::null_mut(), |dumper| dumper.is_null(), open) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pcap_dump_open_append(handle: *mut Pcap, path: *const c_char) -> *mut Opaque {
    // SAFETY: the program's word.
    let open = |handle| unsafe { (system().pcap_dump_open_append)(handle, path) };
    // SAFETY: the program's word.
    unsafe { on_shadow(handle, std::ptr::null_mut(), |dumper| dumper.is_null(), open) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pcap_dump_fopen(handle: *mut Pcap, file: *mut Opaque) -> *mut Opaque {
    // SAFETY: the program's word.
    let open = |handle| unsafe { (system().pcap_dump_fopen)(handle, file) };
    // SAFETY: the program's word.
    unsafe { on_shadow(handle, std::ptr::null_mut(), |dumper| dumper.is_null(), open) }
}

macro_rules! of_shadow {
    ($(fn $name:ident;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(handle: *mut Pcap) -> c_int {
            // SAFETY: the program's word.
            unsafe { on_shadow(handle, ERROR, |_| false, |handle| (system().$name)(handle)) }
        }
    )*};
}

// Of a file's header: 0 for what is live, once it is activated.
of_shadow! {
    fn pcap_is_swapped;
    fn pcap_major_version;
    fn pcap_minor_version;
    fn pcap_datalink_ext;
}
