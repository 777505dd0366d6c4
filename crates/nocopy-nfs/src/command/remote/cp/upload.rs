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
use super::super::follow::destination;
use super::directory::{Directory, OWNER};
use super::kinds::{DIRECTORY, NO_FILE, UNFINISHED, missing_there, other_permissions, time_of};
use super::outgoing::Job;
use super::record::is_unfinished;
use super::upload_others::{make_link, make_name, make_node};
use super::uploads::{Uploads, id_of};
use super::{Clients, Copying, is_same_directory, local};
use crate::client::{Client, Found, Url};
use crate::wire::nfs3::{FileHandle, NewAttributes, SetTime, Status};

/// A directory that was made, and gets its permissions and time when all is in it.
struct Entered {
    name: String,
    directory: FileHandle,
    new: NewAttributes,
}

pub(super) fn run(
    copying: &mut Copying<'_>,
    from: &[OsString],
    to: &Url,
    clients: &mut Clients,
) -> Result<(), Failure> {
    let (client, directory, name) = destination(to, &copying.arguments.reach, &copying.pool)?;
    clients.push(client);
    let client = clients.last_mut().expect("just put there");
    if from.len() > 1 && name.is_some() {
        return Err(Failure::NotDirectory { path: to.to_string() });
    }
    let (mut uploads, mut entered) = (Uploads::new()?, Vec::new());
    for word in copying.sources(from, |word| own_name(&super::local_path(word).ok()?).ok()) {
        let path = super::local_path(&word)?;
        let found = named(&path).and_then(|found| Ok((found, own_name(&path)?)));
        let ((from, source), own) = match found {
            Ok(found) => found,
            Err(error) => {
                copying.fail(local_path::text(&path), local(&path, error))?;
                continue;
            }
        };
        let name = name.clone().unwrap_or(own);
        let mut left = vec![Job { from, source, directory, name, above: Rc::new([]) }];
        while let Some(job) = left.pop() {
            copying.count(0)?;
            let name = job.name();
            match copy(copying, client, &mut uploads, job) {
                Ok(None) => {}
                Ok(Some((directory, below))) => {
                    left.extend(below);
                    entered.push(directory);
                }
                Err(failure) => copying.fail(name, failure)?,
            }
        }
    }
    uploads.finish(copying, client)?;
    // Those inside others first: their permissions may make what is in them unreachable.
    for directory in entered.into_iter().rev() {
        leave(copying, client, directory)?;
    }
    Ok(())
}

/// Copies a file, or makes a directory: that one is returned, with what is to be copied into it.
fn copy(
    copying: &mut Copying<'_>,
    client: &mut Client,
    uploads: &mut Uploads,
    job: Job,
) -> Result<Option<(Entered, Vec<Job>)>, Failure> {
    let about = job.from.look_up(&job.source).and_then(|found| found.ok_or(Errno::NOENT.into()));
    let about = about.map_err(|error| local(&job.path(), error))?;
    let is_recursive = copying.arguments.recursive;
    if about.is_dir() && is_recursive {
        return enter(copying, client, &job).map(Some);
    }
    let place = || [job.directory.as_bytes(), b"/", job.name.as_bytes()].concat();
    if about.is_dir() {
        copying.leave_out(job.name(), DIRECTORY);
    } else if is_unfinished(&job.name) {
        copying.leave_out(job.name(), UNFINISHED);
    } else if !is_recursive && !about.is_file() {
        copying.leave_out(job.name(), NO_FILE);
    } else if !copying.claim(place, || job.name()) {
        // It is noted.
    } else if has_name(copying, client, uploads, (&job, &about))? {
        // It is complete.
    } else if about.is_symlink() {
        make_link(copying, client, &job, &about)?;
        uploads.note_original(&about, || (job.directory, job.name));
    } else if !about.is_file() {
        if make_node(copying, client, &job, &about)? {
            uploads.note_original(&about, || (job.directory, job.name));
        }
    } else {
        uploads.begin(copying, client, job)?;
    }
    Ok(None)
}

/// Gives one more name to the copy of a file that has several. Returns whether there is such a copy, and it
/// has this name.
fn has_name(
    copying: &mut Copying<'_>,
    client: &mut Client,
    uploads: &mut Uploads,
    (job, about): (&Job, &Metadata),
) -> Result<bool, Failure> {
    let Some(id) = id_of(about) else { return Ok(false) };
    let Some((directory, name)) = uploads.original(id, copying, client)? else { return Ok(false) };
    match make_name(copying, client, job, (directory, name.as_bytes())) {
        Err(Failure::Client(error)) if error.status().is_some() => {
            copying.note(job.name(), format!("copied as a file of its own; {error}"));
            Ok(false)
        }
        done => done.map(|()| true),
    }
}

/// A source that the user names, by its directory and its name there. Links on the way are followed, and so
/// is one that is the source.
fn named(path: &Path) -> io::Result<(Rc<Directory>, OsString)> {
    let text = path.as_os_str().as_bytes();
    match path.file_name().filter(|_| !text.ends_with(b"/") && !text.ends_with(b"/.")) {
        Some(_) if symlink_metadata(path)?.is_symlink() => {
            let behind = path.canonicalize()?;
            match behind.parent().zip(behind.file_name()) {
                Some((above, name)) => Ok((Rc::new(Directory::open_path(above)?), name.to_owned())),
                None => Ok((Rc::new(Directory::open_path(&behind)?), ".".into())),
            }
        }
        Some(name) => {
            let above = Directory::open_path(path.parent().unwrap_or(Path::new("")))?;
            Ok((Rc::new(above), name.to_owned()))
        }
        None => Ok((Rc::new(Directory::open_path(path)?), ".".into())),
    }
}

/// The name of the copy of a source: its own, and not that of the file to which it may be a link.
fn own_name(path: &Path) -> io::Result<OsString> {
    match path.components().next_back() {
        Some(Component::Normal(name)) => Ok(name.to_owned()),
        _ => Ok(path.canonicalize()?.file_name().unwrap_or(OsStr::new("root")).to_owned()),
    }
}

/// Makes a directory; returns what is to be copied into it.
fn enter(copying: &mut Copying<'_>, client: &mut Client, job: &Job) -> Result<(Entered, Vec<Job>), Failure> {
    let failed = |error| local(&job.path(), error);
    // Before it is made there, so that it is the one that was looked at.
    let from = Rc::new(job.from.enter(&job.source).map_err(failed)?);
    let about = from.about().map_err(failed)?;
    for made in &*job.above {
        check_apart(client, job, &from, made)?;
    }
    let made = make(client, job, about.mode())?;
    check_apart(client, job, &from, &made)?;
    copying.counts.directories += 1;
    let above: Rc<[Found]> = [&*job.above, &[made]].concat().into();
    let mut below = Vec::new();
    for name in from.names().map_err(failed)?.into_iter().rev() {
        if let Ok(Some(about)) = from.look_up(&name)
            && about.is_file()
        {
            copying.counts.expect(about.len());
        }
        let (from, source) = (Rc::clone(&from), name.clone());
        below.push(Job { from, source, directory: made.file, name, above: Rc::clone(&above) });
    }
    missing_there(&about).into_iter().for_each(|what| copying.note(job.name(), what));
    let new = NewAttributes {
        mode: Some(about.mode() & 0o7777),
        modified: SetTime::To(time_of(&about).0),
        ..NewAttributes::NONE
    };
    Ok((Entered { name: job.name(), directory: made.file, new }, below))
}

fn check_apart(client: &mut Client, job: &Job, from: &Directory, made: &Found) -> Result<(), Failure> {
    match is_same_directory(from, client, made)? {
        true => Err(Failure::IntoItself { path: job.name() }),
        false => Ok(()),
    }
}

/// Makes a directory, or finds the one that is there. While it is copied into, its owner may write in it.
fn make(client: &mut Client, job: &Job, mode: u32) -> Result<Found, Failure> {
    let new = NewAttributes { mode: Some(mode & 0o777 | OWNER), ..NewAttributes::NONE };
    match client.make_directory(job.directory, job.name.as_bytes(), new) {
        Err(error) if error.status() == Some(Status::Exists) => {
            let found = client.look_up(job.directory, job.name.as_bytes())?;
            if !found.is_directory() {
                return Err(error.into());
            }
            if found.attributes.mode & OWNER != OWNER {
                let mode = Some(found.attributes.mode | OWNER);
                // Of another user, it may be writable nevertheless.
                let _ = client.set_attributes(found.file, NewAttributes { mode, ..NewAttributes::NONE });
            }
            Ok(found)
        }
        made => Ok(made?),
    }
}

/// Gives a directory, which is complete, its permissions and its time.
fn leave(copying: &mut Copying<'_>, client: &mut Client, entered: Entered) -> Result<(), Failure> {
    let Entered { name, directory, new } = entered;
    match client.set_attributes(directory, new) {
        Ok(after) => {
            let found = after.map(|after| after.mode & 0o7777);
            let other = new.mode.zip(found).and_then(|(wanted, found)| other_permissions(wanted, found));
            other.into_iter().for_each(|what| copying.note(name.clone(), what));
            Ok(())
        }
        Err(error) => copying.fail(name, error.into()),
    }
}
