//! Links, FIFOs, sockets and devices of a server, made on this host.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{FileType as Kind, Timespec, makedev};
use rustix::io::Errno;

use super::super::Failure;
use super::directory::{Directory, Other};
use super::kinds::{DEVICE, missing_permissions, permissions};
use super::originals::has_more_names;
use super::partial::{Wanted, modified};
use super::record::Names;
use super::{Copying, local};
use crate::client::Client;
use crate::wire::nfs3::FileType;

/// Makes a symbolic link with the same target, wherever that leads.
pub(super) fn make_link(
    copying: &mut Copying<'_>,
    client: &mut Client,
    wanted: &Wanted,
) -> Result<(), Failure> {
    let target = client.read_link(wanted.found.file)?;
    if make(copying, wanted, &Other::Link(&target)).map_err(|error| local(&wanted.path(), error))? {
        copying.counts.links += 1;
    }
    Ok(())
}

/// Makes a FIFO, a socket or a device. A server decides what is behind a device, so that only its owner,
/// root, may use it.
pub(super) fn make_node(copying: &mut Copying<'_>, wanted: &Wanted) -> Result<(), Failure> {
    let about = &wanted.found.attributes;
    let kind = match about.file_type {
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::BlockDevice => Kind::BlockDevice,
        _ => Kind::CharacterDevice,
    };
    let is_device = matches!(kind, Kind::BlockDevice | Kind::CharacterDevice);
    let mode = permissions(about.mode) & if is_device { 0o600 } else { u32::MAX };
    let device = if is_device { makedev(about.device_major, about.device_minor) } else { 0 };
    match make(copying, wanted, &Other::Node { kind, mode, device }) {
        Ok(true) => copying.counts.nodes += 1,
        Ok(false) => {}
        // EACCES is that of the directory.
        Err(error) if is_device && Errno::from_io_error(&error) == Some(Errno::PERM) => {
            copying.leave_out(wanted.name(), DEVICE);
            return Ok(());
        }
        Err(error) => return Err(local(&wanted.path(), error)),
    }
    match missing_permissions(about.mode) {
        Some(what) => copying.note(wanted.name(), what),
        None if mode != about.mode & 0o7777 => copying.note(
            wanted.name(),
            format!("copied with the permissions {mode:o}; the server decides what this device is; set others with chmod(1) if that is meant"),
        ),
        None => {}
    }
    Ok(())
}

/// Gives one more name to the copy of a file that has several. Returns whether there is such a copy, and it
/// has this name.
pub(super) fn make_name(
    copying: &mut Copying<'_>,
    root: &Directory,
    wanted: &Wanted,
) -> Result<bool, Failure> {
    let Wanted { found, directory, name, .. } = wanted;
    let Some(copy) = copying.originals.find(&found.attributes, root) else { return Ok(false) };
    let make = |copy: &File| {
        let names = Names::new(name.clone());
        directory.make_other(&names, &Other::Name(copy), modified(&found.attributes))
    };
    let made = match copy {
        Ok(copy) if directory.has(name, &copy).is_ok_and(|is_it| is_it) => {
            copying.counts.unchanged += u64::from(copying.arguments.resume);
            return Ok(true);
        }
        Ok(copy) => make(&copy),
        Err(error) => Err(error),
    };
    match made.map_err(|error| local(&wanted.path(), error)) {
        Ok(()) => copying.counts.links += 1,
        Err(failure) if failure.concerns_all() => return Err(failure),
        Err(failure) => {
            copying.note(wanted.name(), format!("copied as a file of its own; {failure}"));
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns whether it was made; with `--resume` what is there already stays.
fn make(copying: &mut Copying<'_>, wanted: &Wanted, what: &Other<'_>) -> io::Result<bool> {
    let Wanted { directory, name, found, .. } = wanted;
    let time = modified(&found.attributes);
    if copying.arguments.resume && is_there(directory, wanted, what, time)? {
        copying.counts.unchanged += 1;
        note_original(copying, wanted);
        return Ok(false);
    }
    directory.make_other(&Names::new(name.clone()), what, time)?;
    note_original(copying, wanted);
    Ok(true)
}

fn note_original(copying: &mut Copying<'_>, wanted: &Wanted) {
    if has_more_names(&wanted.found.attributes)
        && let Ok(Some(about)) = wanted.directory.look_up(&wanted.name)
    {
        copying.originals.add(&wanted.found.attributes, wanted.path(), &about);
    }
}

fn is_there(directory: &Directory, wanted: &Wanted, what: &Other<'_>, time: Timespec) -> io::Result<bool> {
    let Some(about) = directory.look_up(&wanted.name)? else { return Ok(false) };
    if (about.mtime(), about.mtime_nsec()) != (time.tv_sec, time.tv_nsec) {
        return Ok(false);
    }
    Ok(match what {
        Other::Link(target) => about.is_symlink() && directory.target(&wanted.name)? == *target,
        Other::Node { kind, mode, device } => {
            (Kind::from_raw_mode(about.mode()), about.mode() & 0o7777, about.rdev())
                == (*kind, *mode, *device)
        }
        Other::Name(_) => false,
    })
}
