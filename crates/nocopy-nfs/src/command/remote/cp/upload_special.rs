//! Links, FIFOs, sockets and devices of this host, made on a server.

use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use rustix::fs::{major, minor};

use super::super::Failure;
use super::attributes::{NO_NODES, SERVER_DEVICE, copied_permissions, lost_attributes, nfs_time};
use super::record::CopyNames;
use super::upload_file::{UploadJob, absent_as_none};
use super::{CopyContext, local_failure};
use crate::client::{Client, ClientError, FileInfo};
use crate::wire::nfs3::{Attributes, FileHandle, FileType, NewAttributes, NewNode, SetTime, Status};

/// Makes a symbolic link with the same target, wherever that leads.
pub(super) fn make_link(
    context: &mut CopyContext<'_>,
    client: &mut Client,
    job: &UploadJob,
    metadata: &Metadata,
) -> Result<(), Failure> {
    let target =
        job.from.link_target(&job.source).map_err(|error| local_failure(&job.source_path(), error))?;
    let new = NewAttributes { modified: SetTime::To(nfs_time(metadata).0), ..NewAttributes::NONE };
    if context.arguments.resume
        && let Some(existing) = existing_file(client, job)?
        && existing.attributes.file_type == FileType::SymbolicLink
        && has_attributes(&existing.attributes, &new)
        && client.read_link(existing.file)? == target
    {
        context.counts.unchanged += 1;
        return Ok(());
    }
    let make = |client: &mut Client, name: &[u8]| client.make_link(job.directory, name, &target, new);
    make_special(client, job, &new, make)?;
    context.counts.links_made += 1;
    lost_attributes(metadata).into_iter().for_each(|what| context.add_failure(job.display_name(), what));
    Ok(())
}

/// Makes a FIFO, a socket or a device. Returns whether it is there.
pub(super) fn make_node(
    context: &mut CopyContext<'_>,
    client: &mut Client,
    job: &UploadJob,
    metadata: &Metadata,
) -> Result<bool, Failure> {
    let new = NewAttributes {
        mode: Some(copied_permissions(metadata.mode())),
        modified: SetTime::To(nfs_time(metadata).0),
        ..NewAttributes::NONE
    };
    let (kind, device) = (metadata.file_type(), [major(metadata.rdev()), minor(metadata.rdev())]);
    let file_type = if kind.is_fifo() {
        FileType::Fifo
    } else if kind.is_socket() {
        FileType::Socket
    } else if kind.is_block_device() {
        FileType::BlockDevice
    } else {
        FileType::CharacterDevice
    };
    let node = NewNode { file_type, attributes: new, major: device[0], minor: device[1] };
    let is_device = matches!(file_type, FileType::BlockDevice | FileType::CharacterDevice);
    let is_it = |found: &Attributes| {
        let device_there = [found.device_major, found.device_minor];
        found.file_type == file_type && has_attributes(found, &new) && (!is_device || device_there == device)
    };
    if context.arguments.resume
        && existing_file(client, job)?.is_some_and(|existing| is_it(&existing.attributes))
    {
        context.counts.unchanged += 1;
        return Ok(true);
    }
    let make = |client: &mut Client, name: &[u8]| client.make_node(job.directory, name, node);
    match make_special(client, job, &new, make) {
        Ok(()) => context.counts.special_files += 1,
        Err(error) if matches!(error.status(), Some(Status::NotSupported | Status::BadType)) => {
            context.record_skip(job.display_name(), if is_device { SERVER_DEVICE } else { NO_NODES });
            return Ok(false);
        }
        Err(error) if is_device && error.status() == Some(Status::NotPermitted) => {
            context.record_skip(job.display_name(), SERVER_DEVICE);
            return Ok(false);
        }
        Err(error) => return Err(error.into()),
    }
    lost_attributes(metadata).into_iter().for_each(|what| context.add_failure(job.display_name(), what));
    Ok(true)
}

/// Gives one more name to the copy of a file.
pub(super) fn link_to_existing_copy(
    context: &mut CopyContext<'_>,
    client: &mut Client,
    job: &UploadJob,
    (directory, name): (FileHandle, &[u8]),
) -> Result<(), Failure> {
    let copy = client.look_up(directory, name)?;
    let id = |found: &FileInfo| (found.attributes.file_system, found.attributes.file_id);
    if existing_file(client, job)?.is_some_and(|existing| id(&existing) == id(&copy)) {
        context.counts.unchanged += u64::from(context.arguments.resume);
        return Ok(());
    }
    let make = |client: &mut Client, name: &[u8]| client.link(copy.file, job.directory, name).map(|()| copy);
    make_special(client, job, &NewAttributes::NONE, make)?;
    context.counts.links_made += 1;
    Ok(())
}

fn existing_file(client: &mut Client, job: &UploadJob) -> Result<Option<FileInfo>, ClientError> {
    absent_as_none(client.look_up(job.directory, job.name.as_bytes()))
}

/// Makes something that is not written to. What has the name is replaced, once the new one is complete.
fn make_special(
    client: &mut Client,
    job: &UploadJob,
    new: &NewAttributes,
    mut make: impl FnMut(&mut Client, &[u8]) -> Result<FileInfo, ClientError>,
) -> Result<(), ClientError> {
    let (directory, names) = (job.directory, CopyNames::new(job.name.clone()));
    let (whole, part) = (names.complete.as_bytes(), names.part.as_bytes());
    match make(client, whole) {
        Err(error) if error.status() == Some(Status::Exists) => {}
        made => return made.and_then(|made| complete_attributes(client, &made, new)),
    }
    absent_as_none(client.remove(directory, part))?;
    let made = make(client, part)?;
    let done = complete_attributes(client, &made, new);
    let done = done.and_then(|()| client.rename((directory, part), (directory, whole)));
    if done.is_err() {
        let _ = client.remove(directory, part);
    }
    done
}

/// Some servers give new links and FIFOs other permissions and times than asked for.
fn complete_attributes(client: &mut Client, made: &FileInfo, new: &NewAttributes) -> Result<(), ClientError> {
    match has_attributes(&made.attributes, new) {
        true => Ok(()),
        false => client.set_attributes(made.file, *new).map(drop),
    }
}

fn has_attributes(found: &Attributes, new: &NewAttributes) -> bool {
    let time = match new.modified {
        SetTime::To(time) => time == found.modified,
        _ => true,
    };
    time && new.mode.is_none_or(|mode| mode == found.mode & 0o7777)
}
