//! Entry points in assembly.

use std::arch::naked_asm;

use crate::real;
use crate::sys::by_processor;

/// Keeps all registers that may hold arguments, calls a function with these arguments, and restores the
/// registers. The function's address is in `r11` or `x17`, where its result is returned.
///
/// # Safety
/// Only the entry points below may call it.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn call_keeping_registers() {
    naked_asm!(by_processor!(
        x86_64: "
        push rdi
        push rsi
        push rdx
        push rcx
        push r8
        push r9
        push rax
        push r10
        sub rsp, 128
        movups [rsp], xmm0
        movups [rsp + 16], xmm1
        movups [rsp + 32], xmm2
        movups [rsp + 48], xmm3
        movups [rsp + 64], xmm4
        movups [rsp + 80], xmm5
        movups [rsp + 96], xmm6
        movups [rsp + 112], xmm7
        call r11
        mov r11, rax
        movups xmm0, [rsp]
        movups xmm1, [rsp + 16]
        movups xmm2, [rsp + 32]
        movups xmm3, [rsp + 48]
        movups xmm4, [rsp + 64]
        movups xmm5, [rsp + 80]
        movups xmm6, [rsp + 96]
        movups xmm7, [rsp + 112]
        add rsp, 128
        pop r10
        pop rax
        pop r9
        pop r8
        pop rcx
        pop rdx
        pop rsi
        pop rdi
        ret",
        aarch64: "
        stp x29, x30, [sp, #-224]!
        stp x0, x1, [sp, #16]
        stp x2, x3, [sp, #32]
        stp x4, x5, [sp, #48]
        stp x6, x7, [sp, #64]
        str x8, [sp, #80]
        stp q0, q1, [sp, #96]
        stp q2, q3, [sp, #128]
        stp q4, q5, [sp, #160]
        stp q6, q7, [sp, #192]
        blr x17
        mov x17, x0
        ldp q0, q1, [sp, #96]
        ldp q2, q3, [sp, #128]
        ldp q4, q5, [sp, #160]
        ldp q6, q7, [sp, #192]
        ldr x8, [sp, #80]
        ldp x0, x1, [sp, #16]
        ldp x2, x3, [sp, #32]
        ldp x4, x5, [sp, #48]
        ldp x6, x7, [sp, #64]
        ldp x29, x30, [sp], #224
        ret",
    ))
}

/// As the macros above, for a function whose address is not known yet: its `RealFunction` is in `r11` or
/// `x17`, where the address is returned.
///
/// # Safety
/// Only the entry points below may call it.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn find_keeping_registers() {
    naked_asm!(
        by_processor!(
            x86_64: "
            push rdi
            mov rdi, r11
            lea r11, [rip + {resolve}]
            call {around}
            pop rdi
            ret",
            aarch64: "
            stp x0, x30, [sp, #-16]!
            mov x0, x17
            adrp x17, {resolve}
            add x17, x17, :lo12:{resolve}
            bl {around}
            ldp x0, x30, [sp], #16
            ret",
        ),
        resolve = sym real::resolve_for_assembly,
        around = sym call_keeping_registers,
    )
}

/// Declares a function of the C library by its name.
macro_rules! function {
    ($function:ident = $name:ident) => {
        pub(in $crate::entries) static $function: $crate::real::RealFunction = {
            const NAME: &str = concat!(stringify!($name), "\0");
            match std::ffi::CStr::from_bytes_with_nul(NAME.as_bytes()) {
                Ok(name) => $crate::real::RealFunction::new(name),
                Err(_) => panic!("a name without a zero"),
            }
        };
        const _: () = {
            #[used]
            #[unsafe(link_section = "nocopy_functions")]
            static REFERENCE: &$crate::real::RealFunction = &$function;
        };
    };
}

/// Calls a hook before functions: always, only while a burst is under way (`queued`), or only while a thread
/// holds the lock (`locked`).
macro_rules! before {
    ($when:ident $hook:path; $($name:ident)*) => { $(
        $crate::entries::trampoline::entry!($name, $hook, $when);
    )* };
}

/// Jumps to a function of this library while a burst is under way, and to the C library's otherwise.
macro_rules! replaced {
    ($($name:ident => $ours:path;)*) => { $(
        $crate::entries::trampoline::entry!($name, $ours, replaced);
    )* };
}

/// Jumps to `3` if no burst is under way, or for hooks of the lock if it is free; does nothing for hooks that
/// must run `always`.
macro_rules! unless_queued {
    (always) => {
        ""
    };
    (locked) => {
        $crate::sys::by_processor!(
            x86_64: "
            cmp qword ptr [rip + {word} + 8], 0
            je 3f",
            aarch64: "
            adrp x16, {word}
            add x16, x16, :lo12:{word}
            ldr x16, [x16, #8]
            cbz x16, 3f",
        )
    };
    ($when:ident) => {
        $crate::sys::by_processor!(
            x86_64: "
            cmp dword ptr [rip + {word}], 0
            je 3f",
            aarch64: "
            adrp x16, {word}
            ldr w16, [x16, :lo12:{word}]
            cbz w16, 3f",
        )
    };
}

/// Calls the hook, or jumps to the function that is used instead of the C library's (`replaced`).
macro_rules! call_hook {
    (replaced) => {
        $crate::sys::by_processor!(x86_64: "jmp {hook}", aarch64: "b {hook}",)
    };
    ($when:ident) => {
        $crate::sys::by_processor!(
            x86_64: "
            lea r11, [rip + {hook}]
            call {around}",
            aarch64: "
            adrp x17, {hook}
            add x17, x17, :lo12:{hook}
            stp x29, x30, [sp, #-16]!
            bl {around}
            ldp x29, x30, [sp], #16",
        )
    };
}

/// Jumps to the C library's function. The assembly comment names the operands that not all variants use,
/// because each operand must be used.
macro_rules! jump_to_real {
    () => {
        $crate::sys::by_processor!(
            x86_64: "
            3:
            mov r11, [rip + {real}]
            test r11, r11
            je 4f
            jmp r11
            4:
            lea r11, [rip + {real}]
            call {find}
            jmp r11
            /* {word} {around} */",
            aarch64: "
            3:
            adrp x17, {real}
            ldr x17, [x17, :lo12:{real}]
            cbz x17, 4f
            br x17
            4:
            adrp x17, {real}
            add x17, x17, :lo12:{real}
            stp x29, x30, [sp, #-16]!
            bl {find}
            ldp x29, x30, [sp], #16
            br x17
            // {word} {around}",
        )
    };
}

/// Defines one exported function.
macro_rules! entry {
    ($name:ident, $hook:path, $when:ident) => {
        pub(super) mod $name {
            use std::arch::naked_asm;

            use super::*;
            use crate::entries::trampoline::{
                call_hook, call_keeping_registers, find_keeping_registers, jump_to_real, unless_queued,
            };
            use crate::shared::SHARED;

            crate::entries::trampoline::function!(REAL = $name);

            #[unsafe(naked)]
            #[cfg_attr(not(test), unsafe(no_mangle))]
            unsafe extern "C" fn $name() {
                naked_asm!(
                    unless_queued!($when),
                    call_hook!($when),
                    jump_to_real!(),
                    word = sym SHARED,
                    hook = sym $hook,
                    around = sym call_keeping_registers,
                    real = sym REAL,
                    find = sym find_keeping_registers,
                )
            }
        }
    };
}

pub(super) use {before, call_hook, entry, function, jump_to_real, replaced, unless_queued};
