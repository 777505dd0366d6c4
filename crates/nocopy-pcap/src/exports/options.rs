//! Settings before a handle is activated. They are passed to the system's libpcap, too, and its codes and
//! texts are returned.

use std::ffi::c_int;

use crate::abi::{ERROR, Pcap};
use crate::capture::Settings;
use crate::guard;
use crate::system::system_libpcap;
use crate::table;
use crate::text;

/// Passes a setting to the system's libpcap, and records it if libpcap accepts it (which it does only before
/// the handle is activated).
///
/// # Safety
/// The handle is one that the program may use.
unsafe fn set_and_record_option(
    handle: *mut Pcap,
    forward: unsafe extern "C-unwind" fn(*mut Pcap, c_int) -> c_int,
    value: c_int,
    record: impl FnOnce(&mut Settings),
) -> c_int {
    // SAFETY: the caller guarantees it.
    let result = unsafe { forward(handle, value) };
    let Some(ours) = table::find_handle(handle).filter(|_| result == 0) else { return result };
    let run = || match ours.change_settings(record) {
        Ok(()) => result,
        Err(words) => {
            // SAFETY: the handle is open.
            unsafe { text::set_error_text(handle, words) };
            ERROR
        }
    };
    // SAFETY: the handle is open.
    unsafe { guard::run_entry_point(handle, ERROR, run) }
}

macro_rules! options {
    ($(fn $name:ident($value:ident) $record:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(handle: *mut Pcap, $value: c_int) -> c_int {
            // SAFETY: the caller guarantees it.
            unsafe { set_and_record_option(handle, system_libpcap().$name, $value, $record) }
        }
    )*};
}

options! {
    fn pcap_set_snaplen(bytes) |settings| settings.snap_bytes_requested = bytes;
    fn pcap_set_promisc(on) |settings| settings.promiscuous = on != 0;
    fn pcap_set_rfmon(on) |settings| settings.monitor = on != 0;
    fn pcap_set_timeout(milliseconds) |settings| settings.timeout_ms = milliseconds;
    fn pcap_set_immediate_mode(on) |settings| settings.immediate = on != 0;
    fn pcap_set_buffer_size(bytes) |settings| if bytes > 0 { settings.buffer_bytes = bytes };
    fn pcap_set_tstamp_type(kind) |settings| settings.time_stamps = kind;
    fn pcap_set_tstamp_precision(precision) |settings| settings.nanoseconds = precision == crate::abi::NANOSECONDS;
    fn pcap_set_protocol_linux(protocol) |settings| settings.protocol = protocol;
}
