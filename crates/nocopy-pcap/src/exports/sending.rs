//! Functions that send packets, unchanged.

use std::ffi::{c_int, c_uchar};
use std::slice;

use crate::abi::{ERROR, Opaque, Pcap};
use crate::guard;
use crate::handle::LiveCapture;
use crate::system::system_libpcap;
use crate::table;

/// Sends a packet. While it waits, the call holds nothing, and nothing in this frame has to be dropped.
///
/// # Safety
/// The handle is open, and `live` is beside it.
unsafe fn send_packet(handle: *mut Pcap, live: &LiveCapture, packet: &[u8]) -> c_int {
    // SAFETY: by contract.
    match unsafe { guard::run_entry_point(handle, Ok(ERROR), || live.inject(packet)) } {
        Ok(result) => result,
        Err(single) => {
            let sent = single.send_frame(packet);
            // SAFETY: by contract.
            unsafe { guard::run_entry_point(handle, ERROR, || live.finish_inject(packet, sent)) }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_inject(handle: *mut Pcap, packet: *const Opaque, bytes: usize) -> c_int {
    // What libpcap refuses for its length alone, and the kernel for having no bytes at all, they refuse on
    // any handle, in their own words.
    let is_sendable = bytes > 0 && c_int::try_from(bytes).is_ok() && !packet.is_null();
    let Some(live) = table::find_handle(handle).and_then(|ours| ours.live_capture()).filter(|_| is_sendable)
    else {
        // SAFETY: the caller guarantees it.
        return unsafe { (system_libpcap().pcap_inject)(handle, packet, bytes) };
    };
    // SAFETY: the caller guarantees it.
    let packet = unsafe { slice::from_raw_parts(packet.cast(), bytes) };
    // SAFETY: the handle is open.
    unsafe { send_packet(handle, live, packet) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_sendpacket(
    handle: *mut Pcap,
    packet: *const c_uchar,
    bytes: c_int,
) -> c_int {
    let bytes_sendable = usize::try_from(bytes).ok().filter(|&bytes| bytes > 0 && !packet.is_null());
    let ours = table::find_handle(handle).and_then(|ours| ours.live_capture()).zip(bytes_sendable);
    let Some((live, len)) = ours else {
        // SAFETY: the caller guarantees it.
        return unsafe { (system_libpcap().pcap_sendpacket)(handle, packet, bytes) };
    };
    // SAFETY: the caller guarantees it.
    let packet = unsafe { slice::from_raw_parts(packet, len) };
    // SAFETY: the handle is open.
    unsafe { send_packet(handle, live, packet) }.min(0)
}
