//! From a server into files of this host.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::super::{Failure, Reached, reach};
use super::batch::Batch;
use super::compare::compare;
use super::{Clients, Copying, is_part, local, part_of, url};
use crate::client::{Client, Found};
use crate::wire::nfs3::{Attributes, FileHandle};

const OPEN_MAX: usize = 256;

pub(super) fn run(
    copying: &mut Copying<'_>,
    from: &[OsString],
    to: &Path,
    clients: &mut Clients,
) -> Result<(), Failure> {
    let is_directory = to.is_dir();
    if from.len() > 1 && !is_directory {
        return Err(Failure::NotDirectory { path: to.display().to_string() });
    }
    for source in from {
        let url = url(source)?;
        let Reached { client, found } = reach(&url, &copying.arguments.reach, Some(&copying.pool))?;
        clients.push(client);
        let client = clients.last_mut().expect("just put there");
        let target = match url.path.file_name() {
            Some(name) if is_directory => to.join(name),
            _ => to.to_owned(),
        };
        copy(copying, client, &found, target)?;
    }
    Ok(())
}

pub(super) struct Wanted {
    found: Found,
    to: PathBuf,
}

impl Wanted {
    pub(super) fn name(&self) -> String {
        self.to.display().to_string()
    }
}

/// A file being copied, under its temporary name.
pub(super) struct Partial {
    wanted: Wanted,
    file: File,
    path: PathBuf,
    start: u64,
}

impl Partial {
    /// Opens the target; `None` if nothing is to be copied.
    pub(super) fn open(copying: &mut Copying<'_>, wanted: Wanted) -> Result<Option<Self>, Failure> {
        let Wanted { found, to } = &wanted;
        let is_resumed = copying.arguments.resume;
        if is_resumed && is_there(to, &found.attributes) {
            copying.counts.unchanged += 1;
            return Ok(None);
        }
        let name = to.file_name().unwrap_or(OsStr::from_bytes(b"file"));
        let path = to.with_file_name(part_of(name));
        let (file, start) = open(&path, is_resumed, found.attributes.size)?;
        copying.counts.resumed_bytes += start;
        Ok(Some(Self { wanted, file, path, start }))
    }

    pub(super) fn name(&self) -> String {
        self.wanted.name()
    }

    pub(super) fn source(&self) -> FileHandle {
        self.wanted.found.file
    }

    /// The end of the server's file when it was looked up.
    pub(super) fn size(&self) -> u64 {
        self.wanted.found.attributes.size
    }

    /// The bytes of an earlier, incomplete copy.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.file.write_all(bytes).map_err(|error| local(&self.path, error))
    }

    fn verify(&self, copying: &mut Copying<'_>, client: &mut Client) -> Result<(), Failure> {
        let compared = compare(copying, client, self.source(), (&self.file, &self.path));
        compared.inspect_err(|failure| {
            if matches!(failure, Failure::Differs { .. }) {
                let _ = fs::remove_file(&self.path); // nothing to go on with
            }
        })
    }

    pub(super) fn finish(self, copying: &mut Copying<'_>) -> Result<(), Failure> {
        let Self { wanted: Wanted { found, to }, file, path, .. } = self;
        let mode = fs::Permissions::from_mode(found.attributes.mode & 0o777);
        file.set_permissions(mode).map_err(|error| local(&path, error))?;
        file.set_modified(modified(&found.attributes)).map_err(|error| local(&path, error))?;
        fs::rename(&path, &to).map_err(|error| local(&to, error))?;
        copying.counts.files += 1;
        Ok(())
    }
}

/// Copies a file, or a directory with its contents: iteratively, so that the server's depth does not matter.
fn copy(copying: &mut Copying<'_>, client: &mut Client, found: &Found, to: PathBuf) -> Result<(), Failure> {
    if !found.is_directory() {
        return copy_files(copying, client, vec![Wanted { found: *found, to }]);
    }
    if !copying.arguments.recursive {
        copying.counts.left_out += 1;
        return Ok(());
    }
    let mut left = vec![Wanted { found: *found, to }];
    while let Some(directory) = left.pop() {
        match enter(copying, client, &directory) {
            Ok((files, directories)) => {
                copy_files(copying, client, files)?;
                left.extend(directories.into_iter().rev());
            }
            Err(failure) => copying.fail(directory.name(), failure)?,
        }
    }
    Ok(())
}

fn copy_files(copying: &mut Copying<'_>, client: &mut Client, all: Vec<Wanted>) -> Result<(), Failure> {
    let is_wanted =
        |wanted: &Wanted| wanted.found.is_regular() && !wanted.to.file_name().is_some_and(is_part);
    let (files, others): (Vec<_>, Vec<_>) = all.into_iter().partition(is_wanted);
    copying.counts.left_out += others.len() as u64;
    for wanted in &files {
        copying.counts.files_all += 1;
        copying.counts.bytes_all += wanted.found.attributes.size;
    }
    let mut files = files.into_iter().peekable();
    // Files to be compared are processed in groups, so that no more files are open than a process may have.
    let at_once = if copying.arguments.verify { OPEN_MAX } else { usize::MAX };
    while files.peek().is_some() {
        let some: Vec<_> = files.by_ref().take(at_once).collect();
        for partial in Batch::new(some).run(copying, client)? {
            let name = partial.name();
            let verified = partial.verify(copying, client);
            if let Err(failure) = verified.and_then(|()| partial.finish(copying)) {
                copying.fail(name, failure)?;
            }
        }
    }
    Ok(())
}

/// Makes a directory; returns the files and the directories that are to be copied into it.
fn enter(
    copying: &mut Copying<'_>,
    client: &mut Client,
    directory: &Wanted,
) -> Result<(Vec<Wanted>, Vec<Wanted>), Failure> {
    let Wanted { found, to } = directory;
    let entries = client.list(found.file)?;
    match fs::create_dir(to) {
        // Links are not copied: a link of this host could lead elsewhere.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && to.is_dir() => {}
        made => made.map_err(|error| local(to, error))?,
    }
    copying.counts.directories += 1;
    let wanted = entries
        .into_iter()
        .map(|entry| Wanted { found: entry.found, to: to.join(OsString::from_vec(entry.name)) });
    Ok(wanted.partition(|wanted| !wanted.found.is_directory()))
}

/// The target file, and how much of it exists.
fn open(part: &Path, is_resumed: bool, size: u64) -> Result<(File, u64), Failure> {
    // Links are not followed, because the name belongs to this copy.
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(!is_resumed).mode(0o600);
    options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
    let mut file = options.open(part).map_err(|error| local(part, error))?;
    if !is_resumed {
        return Ok((file, 0));
    }
    let there = file.metadata().map_err(|error| local(part, error))?.len();
    let start = if there <= size { there } else { 0 };
    file.set_len(start).map_err(|error| local(part, error))?;
    file.seek(SeekFrom::Start(start)).map_err(|error| local(part, error))?;
    Ok((file, start))
}

fn is_there(to: &Path, attributes: &Attributes) -> bool {
    fs::metadata(to).is_ok_and(|about| {
        about.is_file()
            && about.len() == attributes.size
            && about.modified().is_ok_and(|time| time >= modified(attributes))
    })
}

fn modified(attributes: &Attributes) -> SystemTime {
    let time = attributes.modified;
    SystemTime::UNIX_EPOCH + Duration::new(time.seconds.into(), time.nanoseconds.min(999_999_999))
}
