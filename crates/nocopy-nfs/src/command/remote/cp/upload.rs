//! From files of this host to a server.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;

use super::super::{Failure, connect};
use super::directory::Directory;
use super::outgoing::Job;
use super::record::is_unfinished;
use super::uploads::Uploads;
use super::{Clients, Copying, local};
use crate::client::{Client, Url};
use crate::wire::nfs3::{FileHandle, NewAttributes, Status};

pub(super) fn run(
    copying: &mut Copying<'_>,
    from: &[OsString],
    to: &Url,
    clients: &mut Clients,
) -> Result<(), Failure> {
    let (client, below) = connect(to, &copying.arguments.reach, Some(&copying.pool))?;
    clients.push(client);
    let client = clients.last_mut().expect("just put there");
    let (directory, name) = target(client, &below)?;
    if from.len() > 1 && name.is_some() {
        return Err(Failure::NotDirectory { path: to.to_string() });
    }
    let mut left = Vec::new();
    for path in from.iter().rev().map(Path::new) {
        if path.metadata().is_ok_and(|about| !about.is_file() && !about.is_dir()) {
            copying.fail(path.display().to_string(), Failure::Special { path: path.into() })?;
            continue;
        }
        let own = path.canonicalize().map_err(|error| local(path, error))?;
        let own = own.file_name().unwrap_or(OsStr::new("root")).to_owned();
        let (from, source) = named(path).map_err(|error| local(path, error))?;
        left.push(Job { from, source, directory, name: name.clone().unwrap_or(own) });
    }
    let mut uploads = Uploads::new()?;
    while let Some(job) = left.pop() {
        let path = job.path();
        let about = job.from.look_up(&job.source).and_then(|found| found.ok_or(ErrorKind::NotFound.into()));
        let about = about.map_err(|error| local(&path, error));
        let done = match about {
            Ok(about) if about.is_file() && !is_unfinished(&job.name) => {
                uploads.begin(copying, client, job)?;
                Ok(())
            }
            Ok(about) if about.is_dir() && copying.arguments.recursive => {
                enter(copying, client, &job).map(|below| left.extend(below))
            }
            Ok(_) => {
                copying.counts.left_out += 1;
                Ok(())
            }
            Err(failure) => Err(failure),
        };
        if let Err(failure) = done {
            copying.fail(path.display().to_string(), failure)?;
        }
    }
    uploads.finish(copying, client)
}

/// A source that the user names, by its directory and its name there. Links on the way are followed, and the last one only before a slash.
fn named(path: &Path) -> io::Result<(Rc<Directory>, OsString)> {
    let text = path.as_os_str().as_bytes();
    match path.file_name().filter(|_| !text.ends_with(b"/") && !text.ends_with(b"/.")) {
        Some(name) => {
            let above = Directory::open_path(path.parent().unwrap_or(Path::new("")))?;
            Ok((Rc::new(above), name.to_owned()))
        }
        None => Ok((Rc::new(Directory::open_path(path)?), ".".into())),
    }
}

/// The target directory and name; `None`: each source keeps its own name.
fn target(client: &mut Client, below: &Path) -> Result<(FileHandle, Option<OsString>), Failure> {
    match client.walk(below) {
        Ok(found) if found.is_directory() => return Ok((found.file, None)),
        Ok(_) => {}
        Err(error) if error.status() == Some(Status::NoEntry) => {}
        Err(error) => return Err(error.into()),
    }
    let above = client.walk(below.parent().unwrap_or(Path::new("")))?;
    Ok((above.file, below.file_name().map(OsStr::to_owned)))
}

/// Makes a directory; returns what is to be copied into it.
fn enter(copying: &mut Copying<'_>, client: &mut Client, job: &Job) -> Result<Vec<Job>, Failure> {
    let failed = |error| local(&job.path(), error);
    // Before it is made there, so that it is the one that was looked at.
    let from = Rc::new(job.from.enter(&job.source).map_err(failed)?);
    let mode = from.mode().map_err(failed)?;
    let new = NewAttributes { mode: Some(mode & 0o777), ..NewAttributes::NONE };
    let made = client.make_directory(job.directory, job.name.as_bytes(), new);
    let directory = match made {
        Err(error) if error.status() == Some(Status::Exists) => {
            let found = client.look_up(job.directory, job.name.as_bytes())?;
            if !found.is_directory() {
                return Err(error.into());
            }
            found.file
        }
        made => made?.file,
    };
    copying.counts.directories += 1;
    let mut below = Vec::new();
    for name in from.names().map_err(failed)?.into_iter().rev() {
        if let Ok(Some(about)) = from.look_up(&name)
            && about.is_file()
        {
            copying.counts.files_all += 1;
            copying.counts.bytes_all += about.len();
        }
        below.push(Job { from: Rc::clone(&from), source: name.clone(), directory, name });
    }
    Ok(below)
}
