//! What else than a port moves bytes without copies: sockets.

use std::fs;

use rustix::thread::CapabilitySet;

use super::{Gate, State};
use crate::sys::capability;

pub(super) fn io_uring() -> Gate {
    const NAME: &str = "io_uring";
    match fs::read_to_string("/proc/sys/kernel/io_uring_disabled").as_deref().map(str::trim) {
        Ok("0") => Gate::new(NAME, State::Open, "for every process"),
        Ok("1") if capability::holds(CapabilitySet::SYS_ADMIN) => {
            Gate::new(NAME, State::Open, "for privileged processes")
        }
        Ok(_) => Gate::new(NAME, State::Closed, "turned off").or_fix("'sysctl kernel.io_uring_disabled=0'"),
        Err(_) => Gate::new(NAME, State::Unknown, "the kernel has no switch to look at (before Linux 6.6)"),
    }
}
