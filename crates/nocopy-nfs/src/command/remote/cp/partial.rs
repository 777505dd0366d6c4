//! A file of a server that is written on this host.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::thread;

use rustix::fs::{Timespec, Timestamps, UTIME_OMIT, futimens};

use super::super::Failure;
use super::compare::compare;
use super::directory::Directory;
use super::kinds::{missing_permissions, permissions};
use super::record::{BYTES_MAX, Earlier, INTERVAL_BYTES, Names, Version};
use super::{Copying, local};
use crate::client::{Client, Found, Url};
use crate::wire::nfs3::{Attributes, FileHandle};

/// How many files are synchronised at a time: a file system writes one journal entry for all that wait.
const SYNC_THREADS: usize = 8;

pub(super) struct Wanted {
    pub(super) found: Found,
    /// The directory of the server that it is in, and its name there, if that is another one.
    pub(super) from: Rc<Url>,
    pub(super) source: Option<OsString>,
    pub(super) directory: Rc<Directory>,
    pub(super) name: OsString,
}

impl Wanted {
    /// A source that the user names.
    pub(super) fn named(found: Found, url: &Url, directory: Rc<Directory>, name: OsString) -> Self {
        let above = url.path.parent().unwrap_or(&url.path).to_owned();
        let source = Some(url.path.file_name().unwrap_or_default().to_owned());
        Self { found, from: Rc::new(Url { path: above, ..url.clone() }), source, directory, name }
    }

    pub(super) fn url(&self) -> Url {
        match self.source.as_ref().unwrap_or(&self.name) {
            name if name.is_empty() => (*self.from).clone(),
            name => self.from.join(Path::new(name)),
        }
    }

    /// Its address, for messages.
    pub(super) fn name(&self) -> String {
        self.url().to_string()
    }

    /// The path of its copy, for messages.
    pub(super) fn path(&self) -> PathBuf {
        self.directory.path(&self.name)
    }
}

/// A file being copied, under its temporary name.
pub(super) struct Partial {
    /// The address of the original, for messages.
    url: Url,
    found: Found,
    directory: Rc<Directory>,
    names: Names,
    file: File,
    start: u64,
    /// How many bytes it has, and how many of them are recorded.
    bytes: u64,
    recorded: u64,
    record: Option<File>,
}

impl Partial {
    /// Opens the target; `None` if nothing is to be copied.
    pub(super) fn open(copying: &mut Copying<'_>, wanted: Wanted) -> Result<Option<Self>, Failure> {
        let url = wanted.url();
        let Wanted { found, directory, name, .. } = wanted;
        let is_resumed = copying.arguments.resume;
        if is_resumed && let Some(about) = there(&directory, &name, &found.attributes) {
            copying.originals.add(&found.attributes, directory.path(&name), &about);
            copying.counts.unchanged += 1;
            return Ok(None);
        }
        let names = Names::new(name);
        let failed = |error| local(&directory.path(&names.part), error);
        let source = Version::from(&found.attributes);
        let earlier = match is_resumed {
            true => earlier(&directory, &names, &source).map_err(failed)?,
            false => None,
        };
        let is_continued = earlier.is_some();
        let (file, record, start) = match earlier {
            Some((file, record, start)) => (file, Some(record), start),
            None => (make(&directory, &names).map_err(failed)?, None, 0),
        };
        (&file).seek(SeekFrom::Start(start)).map_err(failed)?;
        copying.counts.resumed_bytes += start;
        let mut partial =
            Self { url, found, directory, names, file, start, bytes: start, recorded: start, record };
        if is_continued {
            partial.note_done(&source).map_err(|error| partial.failed(error))?;
        }
        Ok(Some(partial))
    }

    pub(super) fn name(&self) -> String {
        self.url.to_string()
    }

    fn path(&self) -> PathBuf {
        self.directory.path(&self.names.part)
    }

    fn failed(&self, error: io::Error) -> Failure {
        local(&self.path(), error)
    }

    pub(super) fn source(&self) -> FileHandle {
        self.found.file
    }

    /// The end of the server's file when it was looked up.
    pub(super) fn size(&self) -> u64 {
        self.found.attributes.size
    }

    /// The bytes of an earlier, unfinished copy.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// Writes the next bytes, and from time to time a record of those that are on the disk.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.put(bytes).map_err(|error| self.failed(error))?;
        self.bytes += bytes.len() as u64;
        let version = Version::from(&self.found.attributes);
        if version.may_have_record() && self.bytes - self.recorded >= INTERVAL_BYTES {
            self.note_done(&version).map_err(|error| self.failed(error))?;
        }
        Ok(())
    }

    /// Whether the server's file has holes. Which parts are holes it cannot say, but zeros in whole blocks
    /// can be some here.
    fn has_holes(&self) -> bool {
        self.found.attributes.used < self.found.attributes.size
    }

    /// Writes bytes behind the others.
    fn put(&self, bytes: &[u8]) -> io::Result<()> {
        if !self.has_holes() {
            return (&self.file).write_all(bytes);
        }
        for (at, some) in without_zeros(self.bytes, bytes) {
            self.file.write_all_at(some, at)?;
        }
        Ok(())
    }

    /// Makes the file as long as what was received, which may end in a hole.
    fn set_length(&self) -> io::Result<()> {
        if self.has_holes() { self.file.set_len(self.bytes) } else { Ok(()) }
    }

    fn note_done(&mut self, version: &Version) -> io::Result<()> {
        self.set_length()?;
        self.file.sync_data()?;
        let text = version.record(self.file.metadata()?.ino(), self.bytes);
        let record = match self.record.take() {
            Some(record) => record,
            None => self.directory.create(&self.names.record)?,
        };
        record.write_all_at(text.as_bytes(), 0)?;
        record.sync_data()?;
        (self.record, self.recorded) = (Some(record), self.bytes);
        Ok(())
    }

    pub(super) fn verify(&self, copying: &mut Copying<'_>, client: &mut Client) -> Result<(), Failure> {
        let compared = compare(copying, client, self.source(), (&self.file, &self.path()));
        compared.inspect_err(|failure| {
            if matches!(failure, Failure::Differs { .. }) {
                let _ = discard(&self.directory, &self.names); // nothing to go on with
            }
        })
    }

    /// Gives the file its permissions and time, once all bytes were written.
    pub(super) fn end(&self) -> Result<(), Failure> {
        let attributes = &self.found.attributes;
        let mode = fs::Permissions::from_mode(permissions(attributes.mode));
        let time = modified(attributes);
        let time =
            Timestamps { last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }, last_modification: time };
        let set = self.set_length().and_then(|()| self.file.set_permissions(mode));
        set.and_then(|()| Ok(futimens(&self.file, &time)?)).map_err(|error| self.failed(error))
    }

    /// Counts a file that has its name now.
    fn note_copied(&self, copying: &mut Copying<'_>) {
        copying.counts.files += 1;
        if let Ok(about) = self.file.metadata() {
            copying.originals.add(&self.found.attributes, self.directory.path(&self.names.whole), &about);
        }
        if let Some(what) = missing_permissions(self.found.attributes.mode) {
            copying.note(self.name(), what);
        }
    }

    /// Gives a file that is on the disk its name.
    fn rename(&self) -> Result<(), Failure> {
        let Self { directory, names, file, .. } = self;
        if !directory.has(&names.part, file).map_err(|error| self.failed(error))? {
            return Err(Failure::Replaced { path: super::local_path::text(&self.path()) });
        }
        let renamed = directory.rename(&names.part, &names.whole);
        renamed.map_err(|error| local(&directory.path(&names.whole), error))?;
        if self.record.is_some() {
            directory.remove(&names.record).map_err(|error| self.failed(error))?;
        }
        Ok(())
    }
}

/// Waits until complete files are on the disk, and gives them their names.
pub(super) fn finish(copying: &mut Copying<'_>, parts: &[Partial]) -> Result<(), Failure> {
    let files: Vec<&File> = parts.iter().map(|part| &part.file).collect();
    let sync = |some: &[&File]| some.iter().map(|file| file.sync_all()).collect::<Vec<_>>();
    let share = files.len().div_ceil(SYNC_THREADS).max(1);
    let synced: Vec<io::Result<()>> = thread::scope(|scope| {
        let begin = |some| (some, thread::Builder::new().spawn_scoped(scope, move || sync(some)));
        let begun: Vec<_> = files.chunks(share).map(begin).collect();
        let ended = begun.into_iter().flat_map(|(some, thread)| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(_) => sync(some), // no thread could be started
        });
        ended.collect()
    });
    for (part, synced) in parts.iter().zip(synced) {
        match synced.map_err(|error| part.failed(error)).and_then(|()| part.rename()) {
            Ok(()) => part.note_copied(copying),
            Err(failure) => copying.fail(part.name(), failure)?,
        }
    }
    Ok(())
}

/// The part of an earlier copy, the record, and how many bytes it proves; `None` if there are none.
fn earlier(directory: &Directory, names: &Names, source: &Version) -> io::Result<Option<(File, File, u64)>> {
    if !source.may_have_record() {
        return Ok(None);
    }
    let [record, part] = [&names.record, &names.part].map(|name| {
        let file = directory.existing(name).ok()?;
        let about = file.metadata().ok().filter(Metadata::is_file)?;
        Some((file, about))
    });
    let Some(((mut record, about_record), (part, about))) = record.zip(part) else { return Ok(None) };
    let mut text = Vec::new();
    (&mut record).take(BYTES_MAX as u64).read_to_end(&mut text)?;
    let Some(done) = source.proven(&text, about.ino()) else { return Ok(None) };
    // Whom a file system takes this process for shows in a file that it makes.
    directory.remove(&names.record)?;
    let own = directory.create(&names.record)?;
    let user = own.metadata()?.uid();
    if ![&about_record, &about].iter().all(|about| Earlier::from(*about).is_of(user)) || done > about.len() {
        return Ok(None);
    }
    part.set_len(done)?;
    Ok(Some((part, own, done)))
}

/// Makes an empty part without a record.
fn make(directory: &Directory, names: &Names) -> io::Result<File> {
    discard(directory, names)?;
    directory.create(&names.part)
}

/// Removes what has the names of the part and the record; first the record, and on the disk, too: it must not
/// be there with another part.
fn discard(directory: &Directory, names: &Names) -> io::Result<()> {
    if directory.remove(&names.record)? {
        directory.sync()?;
    }
    directory.remove(&names.part).map(drop)
}

fn there(directory: &Directory, name: &OsStr, attributes: &Attributes) -> Option<Metadata> {
    let time = modified(attributes);
    let about = directory.look_up(name).ok().flatten()?;
    let is_newer = (about.mtime(), about.mtime_nsec()) >= (time.tv_sec, time.tv_nsec);
    (about.is_file() && about.len() == attributes.size && is_newer).then_some(about)
}

pub(super) fn modified(attributes: &Attributes) -> Timespec {
    let time = attributes.modified;
    Timespec { tv_sec: time.seconds.into(), tv_nsec: time.nanoseconds.min(999_999_999).into() }
}

/// The parts of some bytes of a file that are not blocks of zeros, each with its offset.
fn without_zeros(offset: u64, bytes: &[u8]) -> Vec<(u64, &[u8])> {
    const BLOCK: usize = 4096;
    const ZEROS: [u8; BLOCK] = [0; BLOCK];
    let mut parts: Vec<(u64, &[u8])> = Vec::new();
    let (mut begin, mut at) = (0, 0);
    while at < bytes.len() {
        // Blocks of the file, of which the first and the last may be in other pieces in part.
        let end = bytes.len().min(at + BLOCK - (offset + at as u64) as usize % BLOCK);
        if bytes[at..end] == ZEROS[..end - at] {
            if begin < at {
                parts.push((offset + begin as u64, &bytes[begin..at]));
            }
            begin = end;
        }
        at = end;
    }
    if begin < at {
        parts.push((offset + begin as u64, &bytes[begin..at]));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_zeros_are_left_out() {
        let mut bytes = vec![0; 5 * 4096];
        for place in [4096 * 2, 4096 * 3 - 1, 5 * 4096 - 1] {
            bytes[place] = 1;
        }
        for (offset, skip) in [(0, 0), (100, 100), (8192, 0), (8191, 8191), (4095, 4095)] {
            let bytes = &bytes[skip..];
            let parts = without_zeros(offset, bytes);
            let mut copy = vec![0; bytes.len()];
            for (at, some) in &parts {
                copy[(at - offset) as usize..][..some.len()].copy_from_slice(some);
            }
            assert_eq!(copy, bytes);
            assert_eq!(parts.iter().map(|(_, some)| some.len()).sum::<usize>(), 2 * 4096, "{offset}");
        }
        assert_eq!(without_zeros(7, b"\0\0"), []);
        assert_eq!(without_zeros(7, b"\0x"), [(7, &b"\0x"[..])]);
    }
}
