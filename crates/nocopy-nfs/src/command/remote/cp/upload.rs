//! From files of this host to a server.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::super::{Failure, connect};
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
    for from in from.iter().rev().map(PathBuf::from) {
        let own = from.canonicalize().map_err(|error| local(&from, error))?;
        let own = own.file_name().unwrap_or(OsStr::new("root")).to_owned();
        left.push(Job { from, directory, name: name.clone().unwrap_or(own) });
    }
    let mut uploads = Uploads::new()?;
    while let Some(job) = left.pop() {
        let name = job.from.display().to_string();
        let about = fs::symlink_metadata(&job.from).map_err(|error| local(&job.from, error));
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
            copying.fail(name, failure)?;
        }
    }
    uploads.finish(copying, client)
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
    let about = fs::metadata(&job.from).map_err(|error| local(&job.from, error))?;
    let new = NewAttributes { mode: Some(about.mode() & 0o777), ..NewAttributes::NONE };
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
    for entry in fs::read_dir(&job.from).map_err(|error| local(&job.from, error))? {
        let entry = entry.map_err(|error| local(&job.from, error))?;
        if let Ok(about) = entry.metadata().as_ref()
            && about.is_file()
        {
            copying.counts.files_all += 1;
            copying.counts.bytes_all += about.len();
        }
        below.push(Job { from: entry.path(), directory, name: entry.file_name() });
    }
    below.sort_by(|one, other| other.name.cmp(&one.name));
    Ok(below)
}
