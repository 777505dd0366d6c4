//! Functions that send packets, unchanged.

use std::ffi::{c_int, c_uchar};
use std::slice;

use crate::abi::{ERROR, Opaque, Pcap};
use crate::guard;
use crate::handle::Live;
use crate::system::system;
use crate::table;

/// Sends a packet. While it waits, the call holds nothing, and nothing in this frame has to be dropped.
///
/// # Safety
/// The handle is open, and `live` is beside it.
unsafe fn send(handle: *mut Pcap, live: &Live, packet: &[u8]) -> c_int {
    // SAFETY: by contract.
    match unsafe { guard::entry(handle, Ok(ERROR), || live.inject(packet)) } {
        Ok(result) => result,
        Err(single) => {
            let sent = single.run(packet);
            // SAFETY: by contract.
            unsafe { guard::entry(handle, ERROR, || live.end_inject(packet, sent)) }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_inject(handle: *mut Pcap, packet: *const Opaque, bytes: usize) -> c_int {
    // What libpcap refuses for its length alone, and the kernel for having no bytes at all, they refuse on
    // any handle, in their own words.
    let is_sendable = bytes > 0 && c_int::try_from(bytes).is_ok() && !packet.is_null();
    let Some(live) = table::find(handle).and_then(|ours| ours.live()).filter(|_| is_sendable) else {
        // SAFETY: the caller guarantees it.
        return unsafe { (system().pcap_inject)(handle, packet, bytes) };
    };
    // SAFETY: the caller guarantees it.
    let packet = unsafe { slice::from_raw_parts(packet.cast(), bytes) };
    // SAFETY: the handle is open.
    unsafe { send(handle, live, packet) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_sendpacket(
    handle: *mut Pcap,
    packet: *const c_uchar,
    bytes: c_int,
) -> c_int {
    let bytes_sendable = usize::try_from(bytes).ok().filter(|&bytes| bytes > 0 && !packet.is_null());
    let ours = table::find(handle).and_then(|ours| ours.live()).zip(bytes_sendable);
    let Some((live, len)) = ours else {
        // SAFETY: the caller guarantees it.
        return unsafe { (system().pcap_sendpacket)(handle, packet, bytes) };
    };
    // SAFETY: the caller guarantees it.
    let packet = unsafe { slice::from_raw_parts(packet, len) };
    // SAFETY: the handle is open.
    unsafe { send(handle, live, packet) }.min(0)
}
