//! The functions of the C library that this library's own functions replace, and call.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// A function of the C library, as the loader finds it after this library. The address is the first field,
/// because assembly reads it.
#[repr(C)]
pub(crate) struct RealFunction {
    address: AtomicPtr<c_void>,
    name: &'static CStr,
}

impl RealFunction {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { address: AtomicPtr::new(std::ptr::null_mut()), name }
    }

    /// Looks the function up, unless that was done.
    pub(crate) fn resolve(&self) -> *mut c_void {
        let known = self.address.load(Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(found, Relaxed);
        found
    }

    /// The function's address, if it was looked up and found.
    #[inline(always)]
    pub(crate) fn resolved_address(&self) -> Option<NonNull<c_void>> {
        NonNull::new(self.address.load(Relaxed))
    }

    /// The address of a function that must exist.
    #[inline]
    pub(crate) fn address_or_abort(&self) -> *mut c_void {
        let known = self.address.load(Relaxed);
        if known.is_null() { self.resolve_or_abort() } else { known }
    }

    #[cold]
    fn resolve_or_abort(&self) -> *mut c_void {
        let found = self.resolve();
        if found.is_null() {
            // A program that calls what its C library does not have does not get so far.
            std::process::abort();
        }
        found
    }
}

unsafe extern "C" {
    // Where the linker has put the references to all functions.
    #[link_name = "__start_nocopy_functions"]
    static FIRST: [usize; 0];
    #[link_name = "__stop_nocopy_functions"]
    static END: [usize; 0];
}

// The linker's own names for that list are no functions that programs call. (Not every linker has an option
// for that; a reference that hides them is the same to all.)
std::arch::global_asm!(".hidden __start_nocopy_functions", ".hidden __stop_nocopy_functions");

/// Looks up all functions, so that no later call has to, which may run in a signal handler.
pub(crate) fn resolve_all_functions() {
    let (first, end) = ((&raw const FIRST).cast::<&RealFunction>(), (&raw const END).cast::<&RealFunction>());
    // SAFETY: the linker puts both around the section of that name, which has nothing but references.
    let all = unsafe { std::slice::from_raw_parts(first, end.offset_from_unsigned(first)) };
    all.iter().for_each(|function| _ = function.resolve());
}

/// Calls a function of the C library; the caller gives the types of its manual page.
macro_rules! call {
    ($function:expr, ($($type:ty),*) -> $result:ty, $($argument:expr),*) => {
        $crate::real::call_at!($function.address_or_abort(), ($($type),*) -> $result, $($argument),*)
    };
}

/// As [`call`], for a function given by its address.
macro_rules! call_at {
    ($address:expr, ($($type:ty),*) -> $result:ty, $($argument:expr),*) => {
        std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C-unwind" fn($($type),*) -> $result>(
            $address,
        )($($argument),*)
    };
}

pub(crate) use {call, call_at};

/// Looks up the address of a function of the C library, for an entry point in assembly that does not know it
/// yet.
pub(crate) extern "C" fn resolve_for_assembly(real: &RealFunction) -> *mut c_void {
    real.address_or_abort()
}
