//! Where a jump of the C library leads (longjmp(3)): the stack pointer that it restores.
//!
//! The C library mangles the stack pointers that setjmp(3) stores, by the same number for the life of a
//! process. The number is found by storing one that is known (the thread sanitizer does the same).

use std::arch::asm;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Words of a `jmp_buf`, at least.
const WORDS: usize = 64;

/// The word of the stack pointer, and by how many bits it is rotated after it is mangled.
#[cfg(target_arch = "x86_64")]
const STACK_AT: (usize, u32) = (6, 17);
#[cfg(target_arch = "aarch64")]
const STACK_AT: (usize, u32) = (13, 0);

static KEY: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    fn _setjmp();
}

/// Finds the number by which stack pointers are mangled.
pub(crate) fn find_mangling_key() {
    let mut environment = [MaybeUninit::<usize>::uninit(); WORDS];
    let stack: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: writes to `environment`, to which nothing jumps.
    unsafe {
        asm!(
            "mov r12, rsp",
            "call {store}@PLT",
            store = sym _setjmp,
            out("r12") stack,
            inout("rdi") environment.as_mut_ptr() => _,
            clobber_abi("C"),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: writes to `environment`, to which nothing jumps.
    unsafe {
        asm!(
            "mov x20, sp",
            "bl {store}",
            store = sym _setjmp,
            out("x20") stack,
            inout("x0") environment.as_mut_ptr() => _,
            clobber_abi("C"),
        );
    }
    // SAFETY: the C library has written it.
    KEY.store(unsafe { mangled_stack_pointer(environment.as_ptr().cast()) } ^ stack, Relaxed);
}

/// # Safety
/// `environment` is a `jmp_buf`.
unsafe fn mangled_stack_pointer(environment: *const usize) -> usize {
    // SAFETY: by contract.
    unsafe { environment.add(STACK_AT.0).read() }.rotate_right(STACK_AT.1)
}

/// The stack pointer that a jump restores.
///
/// # Safety
/// `environment` is a `jmp_buf` that setjmp(3) has written.
pub(crate) unsafe fn jump_target(environment: *const usize) -> usize {
    // SAFETY: by contract.
    unsafe { mangled_stack_pointer(environment) ^ KEY.load(Relaxed) }
}
