//! Functions that return new descriptors: the library forgets the facts about these numbers, because it may
//! have missed their close.

use super::trampoline::function;
use crate::real::call;
use crate::slots;

function!(SOCKET = socket);

/// `socket(2)`
///
/// # Safety
/// As the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn socket(domain: i32, kind: i32, protocol: i32) -> i32 {
    // SAFETY: numbers.
    let descriptor = unsafe { call!(SOCKET, (i32, i32, i32) -> i32, domain, kind, protocol) };
    slots::forget_descriptor(descriptor);
    descriptor
}
