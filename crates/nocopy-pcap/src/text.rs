//! Texts of errors, in the buffers where programs look for them.

use std::ffi::{CStr, c_char};
use std::fmt::Display;

use crate::abi::{ERROR_BYTES, Pcap};
use crate::system::system_libpcap;

/// Writes a text that `pcap_geterr` returns.
///
/// # Safety
/// The handle is open.
pub(crate) unsafe fn set_error_text(handle: *mut Pcap, text: &(impl Display + ?Sized)) {
    // SAFETY: the handle is open, by contract; what is returned is its own buffer.
    unsafe { write_error_text((system_libpcap().pcap_geterr)(handle), text) };
}

/// Writes a text into a program's buffer, truncated to its size; does nothing without a buffer.
///
/// # Safety
/// The buffer has [`ERROR_BYTES`].
pub(crate) unsafe fn write_error_text(buffer: *mut c_char, text: &(impl Display + ?Sized)) {
    if buffer.is_null() {
        return;
    }
    let text = text.to_string();
    let mut end = text.len().min(ERROR_BYTES - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    // SAFETY: the buffer is longer than what is copied, by contract.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, end);
        buffer.add(end).write(0);
    }
}

/// Copies the error text of one handle to another.
///
/// # Safety
/// Both are open.
pub(crate) unsafe fn copy_error_text(from: *mut Pcap, to: *mut Pcap) {
    // SAFETY: by contract; the text ends with a zero.
    unsafe {
        let text = CStr::from_ptr((system_libpcap().pcap_geterr)(from)).to_string_lossy();
        set_error_text(to, &*text);
    }
}

/// The kernel's error in libpcap's form: the failed call, and the C library's text.
pub(crate) fn errno_text(operation: &str, error: &std::io::Error) -> String {
    let Some(errno) = error.raw_os_error() else { return format!("{operation}: {error}") };
    // SAFETY: takes a number; the text is good until the next call of this thread, and copied at once.
    let words = unsafe { CStr::from_ptr(libc::strerror(errno)) };
    format!("{operation}: {}", words.to_string_lossy())
}
