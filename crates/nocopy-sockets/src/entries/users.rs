//! Functions that change the user of all threads, one after the other: while one runs, no burst begins. A
//! thread that was started for one meanwhile would keep what the others give up.

use super::trampoline::function;
use crate::real::call;
use crate::{process, shared};

macro_rules! paused {
    ($($name:ident = $function:ident($($argument:ident: $kind:ty),*);)*) => { $(
        function!($function = $name);

        /// # Safety
        /// As the C library's function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(crate) unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> i32 {
            process::pause_for_credential_change();
            // SAFETY: the program's arguments.
            let result = unsafe { call!($function, ($($kind),*) -> i32, $($argument),*) };
            shared::end_burst_pause();
            result
        }
    )* };
}

paused! {
    setuid = SETUID(user: u32);
    setgid = SETGID(group: u32);
    seteuid = SETEUID(user: u32);
    setegid = SETEGID(group: u32);
    setreuid = SETREUID(real: u32, effective: u32);
    setregid = SETREGID(real: u32, effective: u32);
    setresuid = SETRESUID(real: u32, effective: u32, saved: u32);
    setresgid = SETRESGID(real: u32, effective: u32, saved: u32);
    setgroups = SETGROUPS(count: usize, groups: *const u32);
    initgroups = INITGROUPS(user: *const i8, group: u32);
}
