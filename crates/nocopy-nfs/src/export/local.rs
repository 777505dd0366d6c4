//! File systems that answer by themselves.

use std::os::fd::AsFd;

use rustix::fs::fstatfs;

use super::magic_numbers::LOCAL;

/// Whether the attributes of a file need no other host and no other program.
pub(super) fn is_local_file_system(file: impl AsFd) -> bool {
    // The type of the field differs between processors.
    fstatfs(file).is_ok_and(|stat| LOCAL.contains(&(stat.f_type as u32)))
}
