//! From files of this host to a server.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::super::{Failure, connect};
use super::compare::compare;
use super::{Clients, Copying, is_part, local, part_of};
use crate::client::{Client, ClientError, Found, Place, Url};
use crate::wire::nfs3::{FileHandle, HowToCreate, NewAttributes, SetTime, Status, Time};

/// Writes that wait for replies: what the network holds, and below the client's own limit.
const CALLS_MAX: usize = 64;

/// Where a file or directory of this host is to go.
struct Job {
    from: PathBuf,
    directory: FileHandle,
    name: OsString,
}

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
    while let Some(job) = left.pop() {
        let about = fs::symlink_metadata(&job.from).map_err(|error| local(&job.from, error));
        let done = match about {
            Ok(about) if about.is_file() && !is_part(&job.name) => copy_file(copying, client, &job),
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
            copying.fail(job.from.display().to_string(), failure)?;
        }
    }
    Ok(())
}

/// The directory to copy into, and the name in it; `None`: each has its own.
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

fn copy_file(copying: &mut Copying<'_>, client: &mut Client, job: &Job) -> Result<(), Failure> {
    let mut file = File::open(&job.from).map_err(|error| local(&job.from, error))?;
    let about = file.metadata().map_err(|error| local(&job.from, error))?;
    let modified = Time {
        seconds: about.mtime().clamp(0, u32::MAX.into()) as u32,
        nanoseconds: about.mtime_nsec() as u32,
    };
    if copying.arguments.resume && is_there(client, job, about.len(), modified)? {
        copying.counts.unchanged += 1;
        return Ok(());
    }
    let part = part_of(&job.name);
    let (to, start) = open(client, job, &part, copying.arguments.resume, about.len())?;
    copying.counts.resumed_bytes += start;
    write(copying, client, to.file, (&mut file, &job.from), start)?;
    if copying.arguments.verify {
        let compared = compare(copying, client, to.file, (&file, &job.from));
        if matches!(compared, Err(Failure::Differs { .. })) {
            let _ = client.remove(job.directory, part.as_bytes()); // nothing to go on with
        }
        compared?;
    }
    let new = NewAttributes {
        mode: Some(about.mode() & 0o777),
        modified: SetTime::To(modified),
        ..NewAttributes::NONE
    };
    client.set_attributes(to.file, new)?;
    client.rename((job.directory, part.as_bytes()), (job.directory, job.name.as_bytes()))?;
    copying.counts.files += 1;
    Ok(())
}

fn is_there(client: &mut Client, job: &Job, size: u64, modified: Time) -> Result<bool, ClientError> {
    match client.look_up(job.directory, job.name.as_bytes()) {
        Ok(found) => {
            let time = found.attributes.modified;
            let is_newer = (time.seconds, time.nanoseconds) >= (modified.seconds, modified.nanoseconds);
            Ok(found.is_regular() && found.attributes.size == size && is_newer)
        }
        Err(error) if error.status() == Some(Status::NoEntry) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The file that is copied to, and how much of it is there.
fn open(
    client: &mut Client,
    job: &Job,
    part: &OsStr,
    is_resumed: bool,
    size: u64,
) -> Result<(Found, u64), ClientError> {
    let new = NewAttributes { mode: Some(0o600), size: (!is_resumed).then_some(0), ..NewAttributes::NONE };
    let found = client.create(job.directory, part.as_bytes(), HowToCreate::Unchecked(new))?;
    let there = found.attributes.size;
    if there <= size {
        return Ok((found, there));
    }
    client.set_attributes(found.file, NewAttributes { size: Some(0), ..NewAttributes::NONE })?;
    Ok((found, 0))
}

/// Writes the file from a place on. In order, and each buffer full before the next: so what is on the server's disk after a commit is the
/// front of the file.
fn write(
    copying: &mut Copying<'_>,
    client: &mut Client,
    to: FileHandle,
    (file, path): (&mut File, &Path),
    start: u64,
) -> Result<(), Failure> {
    std::io::Seek::seek(file, std::io::SeekFrom::Start(start)).map_err(|error| local(path, error))?;
    let mut offset = start;
    loop {
        let mut buffer = match copying.pool.take() {
            Some(buffer) => buffer,
            None => {
                client.commit(to)?;
                copying.pool.take().expect("what is committed has given its buffers back")
            }
        };
        buffer.resize(buffer.capacity());
        let memory = buffer.as_mut().expect("of a pool");
        let count = fill(file, memory).map_err(|error| local(path, error))?;
        buffer.resize(count);
        if count == 0 {
            break;
        }
        let place = Place { file: to, offset };
        client.wait_for_room(CALLS_MAX)?;
        client.write(buffer, place).map_err(|rejected| Failure::Post(rejected.reason))?;
        client.try_flush()?;
        offset += count as u64;
        copying.note(count)?;
    }
    client.commit(to)?;
    Ok(())
}

fn fill(file: &mut File, memory: &mut [u8]) -> std::io::Result<usize> {
    let mut count = 0;
    while count < memory.len() {
        match file.read(&mut memory[count..]) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}
