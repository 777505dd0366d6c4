//! Links, FIFOs, sockets and devices of this host, made on a server.

use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use rustix::fs::{major, minor};

use super::super::Failure;
use super::kinds::{DEVICE_THERE, NO_NODES, missing_there, permissions, time_of};
use super::outgoing::{Job, absent_as_none};
use super::record::Names;
use super::{Copying, local};
use crate::client::{Client, ClientError, Found};
use crate::wire::nfs3::{Attributes, FileHandle, FileType, NewAttributes, NewNode, SetTime, Status};

/// Makes a symbolic link with the same target, wherever that leads.
pub(super) fn make_link(
    copying: &mut Copying<'_>,
    client: &mut Client,
    job: &Job,
    about: &Metadata,
) -> Result<(), Failure> {
    let target = job.from.target(&job.source).map_err(|error| local(&job.path(), error))?;
    let new = NewAttributes { modified: SetTime::To(time_of(about).0), ..NewAttributes::NONE };
    if copying.arguments.resume
        && let Some(there) = there(client, job)?
        && there.attributes.file_type == FileType::SymbolicLink
        && has(&there.attributes, &new)
        && client.read_link(there.file)? == target
    {
        copying.counts.unchanged += 1;
        return Ok(());
    }
    let make = |client: &mut Client, name: &[u8]| client.make_link(job.directory, name, &target, new);
    make_other(client, job, &new, make)?;
    copying.counts.links += 1;
    missing_there(about).into_iter().for_each(|what| copying.note(job.name(), what));
    Ok(())
}

/// Makes a FIFO, a socket or a device. Returns whether it is there.
pub(super) fn make_node(
    copying: &mut Copying<'_>,
    client: &mut Client,
    job: &Job,
    about: &Metadata,
) -> Result<bool, Failure> {
    let new = NewAttributes {
        mode: Some(permissions(about.mode())),
        modified: SetTime::To(time_of(about).0),
        ..NewAttributes::NONE
    };
    let (kind, device) = (about.file_type(), [major(about.rdev()), minor(about.rdev())]);
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
        found.file_type == file_type && has(found, &new) && (!is_device || device_there == device)
    };
    if copying.arguments.resume && there(client, job)?.is_some_and(|there| is_it(&there.attributes)) {
        copying.counts.unchanged += 1;
        return Ok(true);
    }
    let make = |client: &mut Client, name: &[u8]| client.make_node(job.directory, name, node);
    match make_other(client, job, &new, make) {
        Ok(()) => copying.counts.nodes += 1,
        Err(error) if matches!(error.status(), Some(Status::NotSupported | Status::BadType)) => {
            copying.leave_out(job.name(), if is_device { DEVICE_THERE } else { NO_NODES });
            return Ok(false);
        }
        Err(error) if is_device && error.status() == Some(Status::NotPermitted) => {
            copying.leave_out(job.name(), DEVICE_THERE);
            return Ok(false);
        }
        Err(error) => return Err(error.into()),
    }
    missing_there(about).into_iter().for_each(|what| copying.note(job.name(), what));
    Ok(true)
}

/// Gives one more name to the copy of a file.
pub(super) fn make_name(
    copying: &mut Copying<'_>,
    client: &mut Client,
    job: &Job,
    (directory, name): (FileHandle, &[u8]),
) -> Result<(), Failure> {
    let copy = client.look_up(directory, name)?;
    let id = |found: &Found| (found.attributes.file_system, found.attributes.file_id);
    if there(client, job)?.is_some_and(|there| id(&there) == id(&copy)) {
        copying.counts.unchanged += u64::from(copying.arguments.resume);
        return Ok(());
    }
    let make = |client: &mut Client, name: &[u8]| client.link(copy.file, job.directory, name).map(|()| copy);
    make_other(client, job, &NewAttributes::NONE, make)?;
    copying.counts.links += 1;
    Ok(())
}

fn there(client: &mut Client, job: &Job) -> Result<Option<Found>, ClientError> {
    absent_as_none(client.look_up(job.directory, job.name.as_bytes()))
}

/// Makes something that is not written to. What has the name is replaced, once the new one is complete.
fn make_other(
    client: &mut Client,
    job: &Job,
    new: &NewAttributes,
    mut make: impl FnMut(&mut Client, &[u8]) -> Result<Found, ClientError>,
) -> Result<(), ClientError> {
    let (directory, names) = (job.directory, Names::new(job.name.clone()));
    let (whole, part) = (names.whole.as_bytes(), names.part.as_bytes());
    match make(client, whole) {
        Err(error) if error.status() == Some(Status::Exists) => {}
        made => return made.and_then(|made| complete(client, &made, new)),
    }
    absent_as_none(client.remove(directory, part))?;
    let made = make(client, part)?;
    let done = complete(client, &made, new);
    let done = done.and_then(|()| client.rename((directory, part), (directory, whole)));
    if done.is_err() {
        let _ = client.remove(directory, part);
    }
    done
}

/// Some servers give new links and FIFOs other permissions and times than asked for.
fn complete(client: &mut Client, made: &Found, new: &NewAttributes) -> Result<(), ClientError> {
    match has(&made.attributes, new) {
        true => Ok(()),
        false => client.set_attributes(made.file, *new).map(drop),
    }
}

fn has(found: &Attributes, new: &NewAttributes) -> bool {
    let time = match new.modified {
        SetTime::To(time) => time == found.modified,
        _ => true,
    };
    time && new.mode.is_none_or(|mode| mode == found.mode & 0o7777)
}
