//! The boundary that stops panics: a panic that unwinds into C is undefined behaviour.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::abi::Pcap;
use crate::text;

/// Runs the body of an exported function. After a panic it returns `fallback` and sets the error text of `handle`, unless that is null.
///
/// # Safety
/// The handle is open, or null.
pub(crate) unsafe fn entry<R>(handle: *mut Pcap, fallback: R, run: impl FnOnce() -> R) -> R {
    // `AssertUnwindSafe`: a panic may leave the state of a handle incomplete, but memory stays safe: later calls fail or go on.
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result,
        Err(panic) => {
            if !handle.is_null() {
                // SAFETY: by contract. A panic in here ends the process: `extern "C"` functions abort instead of unwinding.
                unsafe {
                    text::set(
                        handle,
                        &format!(
                            "nocopy: internal fault; {}; report it, and run the program without nocopy",
                            words(&*panic)
                        ),
                    )
                };
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
        // SAFETY: the handle is null.
        assert_eq!(unsafe { entry(std::ptr::null_mut(), -1, || panic!("as expected")) }, -1);
        // SAFETY: the handle is null.
        assert_eq!(unsafe { entry(std::ptr::null_mut(), -1, || 7) }, 7);
    }
}
