//! dlopen(3): a program that opens libpcap by a name or a path gets this library, which the loader would not
//! find by each of them.

#![cfg_attr(test, allow(dead_code))] // its own tests are no program

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int, c_void};

use crate::{loader, system};

/// What is opened, and the C library's function that opens it.
#[repr(C)]
struct DlopenTarget {
    file: *const c_char,
    function: *mut c_void,
}

/// # Safety
/// The file is null or ends with a zero.
unsafe extern "C" fn dlopen_target(file: *const c_char) -> DlopenTarget {
    // SAFETY: by contract.
    let is_libpcap = !file.is_null() && loader::is_libpcap_name(unsafe { CStr::from_ptr(file) });
    // Without the system's libpcap this library can do nothing: the program finds what there is, or nothing.
    let ours = if is_libpcap && system::is_libpcap_loaded() { loader::own_library_name() } else { None };
    DlopenTarget { file: ours.map_or(file, CStr::as_ptr), function: loader::real_dlopen_address() }
}

/// Jumps to the C library's function, which searches as the program that called this one may ask for
/// (`DT_RUNPATH`).
///
/// # Safety
/// As for the C library's.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn dlopen(_file: *const c_char, _flags: c_int) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        "push rsi",
        "call {dlopen_target}",
        "pop rsi",
        "mov rdi, rax",
        "jmp rdx",
        dlopen_target = sym dlopen_target,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "stp x1, x30, [sp, #-16]!",
        "bl {dlopen_target}",
        "mov x16, x1",
        "ldp x1, x30, [sp], #16",
        "br x16",
        dlopen_target = sym dlopen_target,
    );
}
