//! What `nocopy run` tells the library, by the environment; a process with more rights than whoever started it does not listen.

use std::ffi::OsString;

/// Where the system's libpcap is, if not where the loader looks.
pub(crate) const SYSTEM_LIBPCAP: &str = "NOCOPY_SYSTEM_LIBPCAP";

/// A variable; nothing in a process that was started setuid or with capabilities of its file.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    // SAFETY: takes a number.
    let is_elevated = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if is_elevated { None } else { std::env::var_os(name) }
}
