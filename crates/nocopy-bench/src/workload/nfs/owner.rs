//! The owner of served files, as whom the server runs.

use std::fs;
use std::io;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::geteuid;

/// The owner of files if this process is root: user and group `nobody`.
const NOBODY: u32 = 65_534;

/// If this process is root, the server runs as the owner of the files instead.
pub(super) fn run_as_owner(command: &mut Command) {
    if geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
}

pub(super) fn change_owner(path: &Path) -> io::Result<()> {
    if geteuid().is_root() { chown(path, Some(NOBODY), Some(NOBODY)) } else { Ok(()) }
}

/// With everything in it.
pub(super) fn change_owner_recursively(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let (entry, path) = entry.map(|entry| (entry.file_type(), entry.path()))?;
        if entry?.is_dir() { change_owner_recursively(&path)? } else { change_owner(&path)? }
    }
    change_owner(directory)
}
