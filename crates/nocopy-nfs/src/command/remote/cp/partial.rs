//! A file of a server that is written on this host.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::super::Failure;
use super::compare::compare;
use super::{Copying, local, part_of};
use crate::client::{Client, Found};
use crate::wire::nfs3::{Attributes, FileHandle};

pub(super) struct Wanted {
    pub(super) found: Found,
    pub(super) to: PathBuf,
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

    pub(super) fn verify(&self, copying: &mut Copying<'_>, client: &mut Client) -> Result<(), Failure> {
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
