//! From files of this host to a server.

use std::ffi::{OsStr, OsString};
use std::fs::{Metadata, symlink_metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};
use std::rc::Rc;

use rustix::io::Errno;

use super::super::super::local_path;
use super::super::Failure;
use super::super::follow::open_destination;
use super::attributes::{
    DIRECTORY, SPECIAL_FILE, UNFINISHED, changed_permissions_message, lost_attributes, nfs_time,
};
use super::directory::{OWNER_MODE, OpenDirectory};
use super::record::is_unfinished_copy_name;
use super::upload_file::UploadJob;
use super::upload_special::{link_to_existing_copy, make_link, make_node};
use super::uploads::{Uploads, hard_link_id};
use super::{Clients, CopyContext, is_same_directory, local_failure};
use crate::client::{Client, FileInfo, Url};
use crate::wire::nfs3::{FileHandle, NewAttributes, SetTime, Status};

/// A directory that was made, and gets its permissions and time when all is in it.
struct UploadedDirectory {
    name: String,
    directory: FileHandle,
    new: NewAttributes,
}

pub(super) fn run(
    context: &mut CopyContext<'_>,
    from: &[OsString],
    to: &Url,
    clients: &mut Clients,
) -> Result<(), Failure> {
    let (client, directory, name) = open_destination(to, &context.arguments.server, &context.pool)?;
    clients.push(client);
    let client = clients.last_mut().expect("just put there");
    if from.len() > 1 && name.is_some() {
        return Err(Failure::NotDirectory { path: to.to_string() });
    }
    let (mut uploads, mut entered) = (Uploads::new()?, Vec::new());
    for word in context.unique_sources(from, |word| copy_name(&super::parse_local_path(word).ok()?).ok()) {
        let path = super::parse_local_path(&word)?;
        let found = open_source_directory(&path).and_then(|found| Ok((found, copy_name(&path)?)));
        let ((from, source), own) = match found {
            Ok(found) => found,
            Err(error) => {
                context.record_failure(local_path::to_text(&path), local_failure(&path, error))?;
                continue;
            }
        };
        let name = name.clone().unwrap_or(own);
        let mut left = vec![UploadJob { from, source, directory, name, above: Rc::new([]) }];
        while let Some(job) = left.pop() {
            context.count_progress(0)?;
            let name = job.display_name();
            match copy_entry(context, client, &mut uploads, job) {
                Ok(None) => {}
                Ok(Some((directory, below))) => {
                    left.extend(below);
                    entered.push(directory);
                }
                Err(failure) => context.record_failure(name, failure)?,
            }
        }
    }
    uploads.finish_all(context, client)?;
    // Those inside others first: their permissions may make what is in them unreachable.
    for directory in entered.into_iter().rev() {
        finish_directory(context, client, directory)?;
    }
    Ok(())
}

/// Copies a file, or makes a directory: that one is returned, with what is to be copied into it.
fn copy_entry(
    context: &mut CopyContext<'_>,
    client: &mut Client,
    uploads: &mut Uploads,
    job: UploadJob,
) -> Result<Option<(UploadedDirectory, Vec<UploadJob>)>, Failure> {
    let metadata = job.from.look_up(&job.source).and_then(|found| found.ok_or(Errno::NOENT.into()));
    let metadata = metadata.map_err(|error| local_failure(&job.source_path(), error))?;
    let is_recursive = context.arguments.recursive;
    if metadata.is_dir() && is_recursive {
        return enter_directory(context, client, &job).map(Some);
    }
    let place = || [job.directory.as_bytes(), b"/", job.name.as_bytes()].concat();
    if metadata.is_dir() {
        context.record_skip(job.display_name(), DIRECTORY);
    } else if is_unfinished_copy_name(&job.name) {
        context.record_skip(job.display_name(), UNFINISHED);
    } else if !is_recursive && !metadata.is_file() {
        context.record_skip(job.display_name(), SPECIAL_FILE);
    } else if !context.claim_place(place, || job.display_name()) {
        // It is noted.
    } else if link_to_copy(context, client, uploads, (&job, &metadata))? {
        // It is complete.
    } else if metadata.is_symlink() {
        make_link(context, client, &job, &metadata)?;
        uploads.remember_copy(&metadata, || (job.directory, job.name));
    } else if !metadata.is_file() {
        if make_node(context, client, &job, &metadata)? {
            uploads.remember_copy(&metadata, || (job.directory, job.name));
        }
    } else {
        uploads.begin_upload(context, client, job)?;
    }
    Ok(None)
}

/// Gives one more name to the copy of a file that has several. Returns whether there is such a copy, and it
/// has this name.
fn link_to_copy(
    context: &mut CopyContext<'_>,
    client: &mut Client,
    uploads: &mut Uploads,
    (job, metadata): (&UploadJob, &Metadata),
) -> Result<bool, Failure> {
    let Some(id) = hard_link_id(metadata) else { return Ok(false) };
    let Some((directory, name)) = uploads.wait_for_copy(id, context, client)? else { return Ok(false) };
    match link_to_existing_copy(context, client, job, (directory, name.as_bytes())) {
        Err(Failure::Client(error)) if error.status().is_some() => {
            context.add_failure(job.display_name(), format!("copied as a file of its own; {error}"));
            Ok(false)
        }
        done => done.map(|()| true),
    }
}

/// A source that the user names, by its directory and its name there. Links on the way are followed, and so
/// is one that is the source.
fn open_source_directory(path: &Path) -> io::Result<(Rc<OpenDirectory>, OsString)> {
    let text = path.as_os_str().as_bytes();
    match path.file_name().filter(|_| !text.ends_with(b"/") && !text.ends_with(b"/.")) {
        Some(_) if symlink_metadata(path)?.is_symlink() => {
            let behind = path.canonicalize()?;
            match behind.parent().zip(behind.file_name()) {
                Some((above, name)) => Ok((Rc::new(OpenDirectory::open_path(above)?), name.to_owned())),
                None => Ok((Rc::new(OpenDirectory::open_path(&behind)?), ".".into())),
            }
        }
        Some(name) => {
            let above = OpenDirectory::open_path(path.parent().unwrap_or(Path::new("")))?;
            Ok((Rc::new(above), name.to_owned()))
        }
        None => Ok((Rc::new(OpenDirectory::open_path(path)?), ".".into())),
    }
}

/// The name of the copy of a source: its own, and not that of the file to which it may be a link.
fn copy_name(path: &Path) -> io::Result<OsString> {
    match path.components().next_back() {
        Some(Component::Normal(name)) => Ok(name.to_owned()),
        _ => Ok(path.canonicalize()?.file_name().unwrap_or(OsStr::new("root")).to_owned()),
    }
}

/// Makes a directory; returns what is to be copied into it.
fn enter_directory(
    context: &mut CopyContext<'_>,
    client: &mut Client,
    job: &UploadJob,
) -> Result<(UploadedDirectory, Vec<UploadJob>), Failure> {
    let failed = |error| local_failure(&job.source_path(), error);
    // Before it is made there, so that it is the one that was looked at.
    let from = Rc::new(job.from.open_subdirectory(&job.source).map_err(failed)?);
    let metadata = from.metadata().map_err(failed)?;
    for made in &*job.above {
        check_not_into_itself(client, job, &from, made)?;
    }
    let made = make_directory(client, job, metadata.mode())?;
    check_not_into_itself(client, job, &from, &made)?;
    context.counts.directories += 1;
    let above: Rc<[FileInfo]> = [&*job.above, &[made]].concat().into();
    let mut below = Vec::new();
    for name in from.entry_names().map_err(failed)?.into_iter().rev() {
        if let Ok(Some(metadata)) = from.look_up(&name)
            && metadata.is_file()
        {
            context.counts.count_expected(metadata.len());
        }
        let (from, source) = (Rc::clone(&from), name.clone());
        below.push(UploadJob { from, source, directory: made.file, name, above: Rc::clone(&above) });
    }
    lost_attributes(&metadata).into_iter().for_each(|what| context.add_failure(job.display_name(), what));
    let new = NewAttributes {
        mode: Some(metadata.mode() & 0o7777),
        modified: SetTime::To(nfs_time(&metadata).0),
        ..NewAttributes::NONE
    };
    Ok((UploadedDirectory { name: job.display_name(), directory: made.file, new }, below))
}

fn check_not_into_itself(
    client: &mut Client,
    job: &UploadJob,
    from: &OpenDirectory,
    made: &FileInfo,
) -> Result<(), Failure> {
    match is_same_directory(from, client, made)? {
        true => Err(Failure::IntoItself { path: job.display_name() }),
        false => Ok(()),
    }
}

/// Makes a directory, or finds the one that is there. While it is copied into, its owner may write in it.
fn make_directory(client: &mut Client, job: &UploadJob, mode: u32) -> Result<FileInfo, Failure> {
    let new = NewAttributes { mode: Some(mode & 0o777 | OWNER_MODE), ..NewAttributes::NONE };
    match client.make_directory(job.directory, job.name.as_bytes(), new) {
        Err(error) if error.status() == Some(Status::Exists) => {
            let found = client.look_up(job.directory, job.name.as_bytes())?;
            if !found.is_directory() {
                return Err(error.into());
            }
            if found.attributes.mode & OWNER_MODE != OWNER_MODE {
                let mode = Some(found.attributes.mode | OWNER_MODE);
                // Of another user, it may be writable nevertheless.
                let _ = client.set_attributes(found.file, NewAttributes { mode, ..NewAttributes::NONE });
            }
            Ok(found)
        }
        made => Ok(made?),
    }
}

/// Gives a directory, which is complete, its permissions and its time.
fn finish_directory(
    context: &mut CopyContext<'_>,
    client: &mut Client,
    entered: UploadedDirectory,
) -> Result<(), Failure> {
    let UploadedDirectory { name, directory, new } = entered;
    match client.set_attributes(directory, new) {
        Ok(after) => {
            let found = after.map(|after| after.mode & 0o7777);
            let other =
                new.mode.zip(found).and_then(|(wanted, found)| changed_permissions_message(wanted, found));
            other.into_iter().for_each(|what| context.add_failure(name.clone(), what));
            Ok(())
        }
        Err(error) => context.record_failure(name, error.into()),
    }
}
