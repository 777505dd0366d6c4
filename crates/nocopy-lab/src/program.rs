//! A program for other users.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, memfd_create};

/// A copy of a program, in memory, that any user can start: neither the permissions of its file nor those of
/// the directories above it matter. A checkout may lie in root's home, or have been built with a umask
/// of 077.
#[derive(Debug)]
pub struct ProgramForAnyUser(OwnedFd);

impl ProgramForAnyUser {
    /// Copies the program.
    ///
    /// # Errors
    /// The program cannot be read, or there is no memory for it.
    pub fn copy(program: &Path) -> io::Result<Self> {
        let mut copy = File::from(memfd_create("program", MemfdFlags::CLOEXEC)?);
        io::copy(&mut File::open(program)?, &mut copy)?;
        Ok(Self(copy.into()))
    }

    /// A path for a process that this one starts, until `self` is dropped.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }
}
