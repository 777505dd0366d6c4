//! The boundary that stops panics, and the end of a thread: neither may unwind from this library's code into
//! C, or through it.
//!
//! A thread that is cancelled ends in a function of the C library that is a cancellation point, and unwinds
//! its stack from there; exit of a thread, longjmp and exceptions of C++ do so from a callback. Rust permits
//! that for frames that have nothing to drop, in functions of the ABI "C-unwind". So this library waits, and
//! calls the program, only between two entries, from such frames; in an entry the thread cannot be cancelled.

use std::any::Any;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

use crate::abi::Pcap;
use crate::text;

/// `PTHREAD_CANCEL_DISABLE`
const CANCEL_DISABLE: c_int = 1;

unsafe extern "C-unwind" {
    /// The thread may end in it, if it is enabled again.
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Runs the body of an exported function. After a panic it returns `fallback` and sets the error text of
/// `handle`, unless that is null.
///
/// # Safety
/// The handle is open, or null.
pub(crate) unsafe fn run_entry_point<R: Copy>(handle: *mut Pcap, fallback: R, run: impl FnOnce() -> R) -> R {
    let mut before = CANCEL_DISABLE;
    // SAFETY: the pointer is to a number.
    unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut before) };
    // SAFETY: by contract.
    let result = unsafe { catch_panic(handle, fallback, run) };
    // SAFETY: as above, and nothing here has to be dropped.
    unsafe { pthread_setcancelstate(before, null_mut()) };
    result
}

/// As [`run_entry_point`], for a body that calls no function of the C library that is a cancellation point.
///
/// # Safety
/// As [`run_entry_point`].
#[inline]
pub(crate) unsafe fn catch_panic<R: Copy>(handle: *mut Pcap, fallback: R, run: impl FnOnce() -> R) -> R {
    // `AssertUnwindSafe`: a panic may leave the state of a handle incomplete, but memory stays safe: later
    // calls fail or go on.
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result,
        Err(panic) => {
            if !handle.is_null() {
                // SAFETY: by contract.
                unsafe { set_panic_text(handle, &*panic) };
            }
            fallback
        }
    }
}

/// # Safety
/// The handle is open.
#[cold]
unsafe fn set_panic_text(handle: *mut Pcap, panic: &(dyn Any + Send)) {
    let text = format!(
        "nocopy: internal fault; {}; report it, and run the program without nocopy",
        panic_message(panic)
    );
    // SAFETY: by contract.
    unsafe { text::set_error_text(handle, &text) };
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let literal = panic.downcast_ref::<&str>().copied();
    literal.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_returns_the_fallback() {
        // SAFETY: the handle is null.
        assert_eq!(unsafe { run_entry_point(std::ptr::null_mut(), -1, || panic!("as expected")) }, -1);
        // SAFETY: the handle is null.
        assert_eq!(unsafe { run_entry_point(std::ptr::null_mut(), -1, || 7) }, 7);
    }
}
