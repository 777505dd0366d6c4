//! Links, FIFOs, sockets and devices of a server, made on this host.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{FileType as Kind, Timespec, makedev};
use rustix::io::Errno;

use super::super::Failure;
use super::attributes::{DEVICE, copied_permissions, missing_permissions};
use super::directory::{OpenDirectory, SpecialFile};
use super::download_file::{DownloadJob, modification_time};
use super::hard_links::has_several_names;
use super::record::CopyNames;
use super::{CopyContext, local_failure};
use crate::client::Client;
use crate::wire::nfs3::FileType;

/// Makes a symbolic link with the same target, wherever that leads.
pub(super) fn make_link(
    context: &mut CopyContext<'_>,
    client: &mut Client,
    job: &DownloadJob,
) -> Result<(), Failure> {
    let target = client.read_link(job.info.file)?;
    if make_special(context, job, &SpecialFile::Link(&target))
        .map_err(|error| local_failure(&job.copy_path(), error))?
    {
        context.counts.links_made += 1;
    }
    Ok(())
}

/// Makes a FIFO, a socket or a device. A server decides what is behind a device, so that only its owner,
/// root, may use it.
pub(super) fn make_node(context: &mut CopyContext<'_>, job: &DownloadJob) -> Result<(), Failure> {
    let attributes = &job.info.attributes;
    let kind = match attributes.file_type {
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::BlockDevice => Kind::BlockDevice,
        _ => Kind::CharacterDevice,
    };
    let is_device = matches!(kind, Kind::BlockDevice | Kind::CharacterDevice);
    let mode = copied_permissions(attributes.mode) & if is_device { 0o600 } else { u32::MAX };
    let device = if is_device { makedev(attributes.device_major, attributes.device_minor) } else { 0 };
    match make_special(context, job, &SpecialFile::Node { kind, mode, device }) {
        Ok(true) => context.counts.special_files += 1,
        Ok(false) => {}
        // EACCES is that of the directory.
        Err(error) if is_device && Errno::from_io_error(&error) == Some(Errno::PERM) => {
            context.record_skip(job.display_name(), DEVICE);
            return Ok(());
        }
        Err(error) => return Err(local_failure(&job.copy_path(), error)),
    }
    match missing_permissions(attributes.mode) {
        Some(what) => context.add_failure(job.display_name(), what),
        None if mode != attributes.mode & 0o7777 => context.add_failure(
            job.display_name(),
            format!("copied with the permissions {mode:o}; the server decides what this device is; set others with chmod(1) if that is meant"),
        ),
        None => {}
    }
    Ok(())
}

/// Gives one more name to the copy of a file that has several. Returns whether there is such a copy, and it
/// has this name.
pub(super) fn link_to_existing_copy(
    context: &mut CopyContext<'_>,
    root: &OpenDirectory,
    job: &DownloadJob,
) -> Result<bool, Failure> {
    let DownloadJob { info: found, directory, name, .. } = job;
    let Some(copy) = context.hard_links.open_copy(&found.attributes, root) else { return Ok(false) };
    let make = |copy: &File| {
        let names = CopyNames::new(name.clone());
        directory.make_special(&names, &SpecialFile::HardLink(copy), modification_time(&found.attributes))
    };
    let made = match copy {
        Ok(copy) if directory.still_names_file(name, &copy).is_ok_and(|is_it| is_it) => {
            context.counts.unchanged += u64::from(context.arguments.resume);
            return Ok(true);
        }
        Ok(copy) => make(&copy),
        Err(error) => Err(error),
    };
    match made.map_err(|error| local_failure(&job.copy_path(), error)) {
        Ok(()) => context.counts.links_made += 1,
        Err(failure) if failure.affects_all_files() => return Err(failure),
        Err(failure) => {
            context.add_failure(job.display_name(), format!("copied as a file of its own; {failure}"));
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns whether it was made; with `--resume` what is there already stays.
fn make_special(
    context: &mut CopyContext<'_>,
    job: &DownloadJob,
    what: &SpecialFile<'_>,
) -> io::Result<bool> {
    let DownloadJob { directory, name, info: found, .. } = job;
    let time = modification_time(&found.attributes);
    if context.arguments.resume && exists_unchanged(directory, job, what, time)? {
        context.counts.unchanged += 1;
        remember_copy(context, job);
        return Ok(false);
    }
    directory.make_special(&CopyNames::new(name.clone()), what, time)?;
    remember_copy(context, job);
    Ok(true)
}

fn remember_copy(context: &mut CopyContext<'_>, job: &DownloadJob) {
    if has_several_names(&job.info.attributes)
        && let Ok(Some(metadata)) = job.directory.look_up(&job.name)
    {
        context.hard_links.record_copy(&job.info.attributes, job.copy_path(), &metadata);
    }
}

fn exists_unchanged(
    directory: &OpenDirectory,
    job: &DownloadJob,
    what: &SpecialFile<'_>,
    time: Timespec,
) -> io::Result<bool> {
    let Some(metadata) = directory.look_up(&job.name)? else { return Ok(false) };
    if (metadata.mtime(), metadata.mtime_nsec()) != (time.tv_sec, time.tv_nsec) {
        return Ok(false);
    }
    Ok(match what {
        SpecialFile::Link(target) => metadata.is_symlink() && directory.link_target(&job.name)? == *target,
        SpecialFile::Node { kind, mode, device } => {
            (Kind::from_raw_mode(metadata.mode()), metadata.mode() & 0o7777, metadata.rdev())
                == (*kind, *mode, *device)
        }
        SpecialFile::HardLink(_) => false,
    })
}
