//! The functions that programs call instead of the C library's. Each handles the burst before the C library's
//! function, or replaces it.
//!
//! Most are a few instructions: if there is no burst, they jump to the C library's function, and leave the
//! registers and the stack as they are. So a function may have any parameters, return twice (`vfork`), not
//! return, or be cancelled. `exports.txt` is the reviewed list.

#[allow(non_snake_case, reason = "the C library's names")]
mod before;
mod datagram;
mod hooks;
mod opening;
mod sending;
mod trampoline;
mod users;
mod waiting;

/// Runs before the program, and before libraries that depend on this one.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = {
    extern "C" fn start_before_main() {
        crate::real::resolve_all_functions();
        sending::map_unreadable_memory();
        crate::process::start_library();
    }
    start_before_main
};

/// Sends waiting datagrams when the program has ended by `exit` or by returning from `main`, after its own
/// handlers.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = {
    extern "C" fn end_after_main() {
        crate::process::end_library();
    }
    end_after_main
};
