//! The boundary that no panic passes: what unwinds into C is undefined.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::abi::Pcap;
use crate::text;

/// Runs what a program called; a panic becomes `fallback`, and a text for `handle`, if there is one.
///
/// # Safety
/// The handle is open, or null.
pub(crate) unsafe fn entry<R>(handle: *mut Pcap, fallback: R, run: impl FnOnce() -> R) -> R {
    // What a panic left half done is a handle that says so or goes on; memory is safe either way.
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result,
        Err(panic) => {
            if !handle.is_null() {
                // SAFETY: by contract. If this panics too, the process ends: `extern "C"` lets nothing through.
                unsafe { text::set(handle, &format!("nocopy: a fault of its own: {}", words(&*panic))) };
            }
            fallback
        }
    }
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let literal = panic.downcast_ref::<&str>().copied();
    literal.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_the_fallback() {
        // SAFETY: no handle.
        assert_eq!(unsafe { entry(std::ptr::null_mut(), -1, || panic!("as expected")) }, -1);
        // SAFETY: no handle.
        assert_eq!(unsafe { entry(std::ptr::null_mut(), -1, || 7) }, 7);
    }
}
