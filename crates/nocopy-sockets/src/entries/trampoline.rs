//! Entry points in assembly.

use std::arch::naked_asm;

use crate::real;

/// Keeps all registers that may hold arguments, calls the function in `r11` with these arguments, and restores the registers.
///
/// # Safety
/// To be called by the entry points below only.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub(super) unsafe extern "C" fn around() {
    naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "push rax",
        "push r10",
        "sub rsp, 128",
        "movups [rsp], xmm0",
        "movups [rsp + 16], xmm1",
        "movups [rsp + 32], xmm2",
        "movups [rsp + 48], xmm3",
        "movups [rsp + 64], xmm4",
        "movups [rsp + 80], xmm5",
        "movups [rsp + 96], xmm6",
        "movups [rsp + 112], xmm7",
        "call r11",
        "mov r11, rax",
        "movups xmm0, [rsp]",
        "movups xmm1, [rsp + 16]",
        "movups xmm2, [rsp + 32]",
        "movups xmm3, [rsp + 48]",
        "movups xmm4, [rsp + 64]",
        "movups xmm5, [rsp + 80]",
        "movups xmm6, [rsp + 96]",
        "movups xmm7, [rsp + 112]",
        "add rsp, 128",
        "pop r10",
        "pop rax",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "ret",
    )
}

/// The same for a function that is not found yet: its `Real` is in `r11`, its address is returned there.
///
/// # Safety
/// To be called by the entry points below only.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub(super) unsafe extern "C" fn find() {
    naked_asm!(
        "push rdi",
        "mov rdi, r11",
        "lea r11, [rip + {resolve}]",
        "call {around}",
        "pop rdi",
        "ret",
        resolve = sym real::resolve,
        around = sym around,
    )
}

/// Keeps all registers that may hold arguments, calls the function in `x17` with these arguments, and restores the registers.
///
/// # Safety
/// To be called by the entry points below only.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub(super) unsafe extern "C" fn around() {
    naked_asm!(
        "stp x29, x30, [sp, #-224]!",
        "stp x0, x1, [sp, #16]",
        "stp x2, x3, [sp, #32]",
        "stp x4, x5, [sp, #48]",
        "stp x6, x7, [sp, #64]",
        "str x8, [sp, #80]",
        "stp q0, q1, [sp, #96]",
        "stp q2, q3, [sp, #128]",
        "stp q4, q5, [sp, #160]",
        "stp q6, q7, [sp, #192]",
        "blr x17",
        "mov x17, x0",
        "ldp q0, q1, [sp, #96]",
        "ldp q2, q3, [sp, #128]",
        "ldp q4, q5, [sp, #160]",
        "ldp q6, q7, [sp, #192]",
        "ldr x8, [sp, #80]",
        "ldp x0, x1, [sp, #16]",
        "ldp x2, x3, [sp, #32]",
        "ldp x4, x5, [sp, #48]",
        "ldp x6, x7, [sp, #64]",
        "ldp x29, x30, [sp], #224",
        "ret",
    )
}

/// The same for a function that is not found yet: its `Real` is in `x17`, its address is returned there.
///
/// # Safety
/// To be called by the entry points below only.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub(super) unsafe extern "C" fn find() {
    naked_asm!(
        "stp x0, x30, [sp, #-16]!",
        "mov x0, x17",
        "adrp x17, {resolve}",
        "add x17, x17, :lo12:{resolve}",
        "bl {around}",
        "ldp x0, x30, [sp], #16",
        "ret",
        resolve = sym real::resolve,
        around = sym around,
    )
}

/// A function of the C library, by its name.
macro_rules! function {
    ($place:ident = $name:ident) => {
        pub(in $crate::entries) static $place: $crate::real::Real = {
            const NAME: &str = concat!(stringify!($name), "\0");
            match std::ffi::CStr::from_bytes_with_nul(NAME.as_bytes()) {
                Ok(name) => $crate::real::Real::new(name),
                Err(_) => panic!("a name without a zero"),
            }
        };
        const _: () = {
            #[used]
            #[unsafe(link_section = "nocopy_functions")]
            static REFERENCE: &$crate::real::Real = &$place;
        };
    };
}

/// Calls `hook` before functions, always or only while a burst is under way.
macro_rules! before {
    (always $hook:path; $($name:ident)*) => { $(
        $crate::entries::trampoline::entry!($name, $hook, "", "");
    )* };
    (queued $hook:path; $($name:ident)*) => { $(
        $crate::entries::trampoline::entry!(
            $name,
            $hook,
            "cmp dword ptr [rip + {word}], 0\nje 3f",
            "adrp x16, {word}\nldr w16, [x16, :lo12:{word}]\ncbz w16, 3f"
        );
    )* };
}

/// One function: `$skip` jumps over the hook.
macro_rules! entry {
    ($name:ident, $hook:path, $skip:literal, $skip_aarch64:literal) => {
        pub(super) mod $name {
            use std::arch::naked_asm;

            use super::*;
            use crate::entries::trampoline::{around, find};
            use crate::shared::SHARED;

            crate::entries::trampoline::function!(REAL = $name);

            #[cfg(target_arch = "x86_64")]
            #[unsafe(naked)]
            #[cfg_attr(not(test), unsafe(no_mangle))]
            unsafe extern "C" fn $name() {
                naked_asm!(
                    $skip,
                    "lea r11, [rip + {hook}]",
                    "call {around}",
                    "3:",
                    "mov r11, [rip + {real}]",
                    "test r11, r11",
                    "je 4f",
                    "jmp r11",
                    "4:",
                    "lea r11, [rip + {real}]",
                    "call {find}",
                    "jmp r11",
                    "/* {word} */",
                    word = sym SHARED,
                    hook = sym $hook,
                    around = sym around,
                    real = sym REAL,
                    find = sym find,
                )
            }

            #[cfg(target_arch = "aarch64")]
            #[unsafe(naked)]
            #[cfg_attr(not(test), unsafe(no_mangle))]
            unsafe extern "C" fn $name() {
                naked_asm!(
                    $skip_aarch64,
                    "adrp x17, {hook}",
                    "add x17, x17, :lo12:{hook}",
                    "stp x29, x30, [sp, #-16]!",
                    "bl {around}",
                    "ldp x29, x30, [sp], #16",
                    "3:",
                    "adrp x17, {real}",
                    "ldr x17, [x17, :lo12:{real}]",
                    "cbz x17, 4f",
                    "br x17",
                    "4:",
                    "adrp x17, {real}",
                    "add x17, x17, :lo12:{real}",
                    "stp x29, x30, [sp, #-16]!",
                    "bl {find}",
                    "ldp x29, x30, [sp], #16",
                    "br x17",
                    "// {word}",
                    word = sym SHARED,
                    hook = sym $hook,
                    around = sym around,
                    real = sym REAL,
                    find = sym find,
                )
            }
        }
    };
}

/// Jumps to a function of this library while a burst is under way, and to the C library's otherwise.
macro_rules! instead {
    ($($name:ident => $ours:path;)*) => { $(
        pub(super) mod $name {
            use std::arch::naked_asm;

            use super::*;
            use crate::entries::trampoline::find;
            use crate::shared::SHARED;

            crate::entries::trampoline::function!(REAL = $name);

            #[cfg(target_arch = "x86_64")]
            #[unsafe(naked)]
            #[cfg_attr(not(test), unsafe(no_mangle))]
            unsafe extern "C" fn $name() {
                naked_asm!(
                    "cmp dword ptr [rip + {word}], 0",
                    "jne {ours}",
                    "mov r11, [rip + {real}]",
                    "test r11, r11",
                    "je 4f",
                    "jmp r11",
                    "4:",
                    "lea r11, [rip + {real}]",
                    "call {find}",
                    "jmp r11",
                    word = sym SHARED,
                    ours = sym $ours,
                    real = sym REAL,
                    find = sym find,
                )
            }

            #[cfg(target_arch = "aarch64")]
            #[unsafe(naked)]
            #[cfg_attr(not(test), unsafe(no_mangle))]
            unsafe extern "C" fn $name() {
                naked_asm!(
                    "adrp x16, {word}",
                    "ldr w16, [x16, :lo12:{word}]",
                    "cbz w16, 3f",
                    "b {ours}",
                    "3:",
                    "adrp x17, {real}",
                    "ldr x17, [x17, :lo12:{real}]",
                    "cbz x17, 4f",
                    "br x17",
                    "4:",
                    "adrp x17, {real}",
                    "add x17, x17, :lo12:{real}",
                    "stp x29, x30, [sp, #-16]!",
                    "bl {find}",
                    "ldp x29, x30, [sp], #16",
                    "br x17",
                    word = sym SHARED,
                    ours = sym $ours,
                    real = sym REAL,
                    find = sym find,
                )
            }
        }
    )* };
}

pub(super) use {before, entry, function, instead};
