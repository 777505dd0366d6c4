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
use super::attributes::{copied_permissions, missing_permissions};
use super::compare::compare;
use super::directory::OpenDirectory;
use super::record::{BYTES_MAX, CopyNames, ExistingFile, INTERVAL_BYTES, SourceVersion};
use super::{CopyContext, local_failure};
use crate::client::{Client, FileInfo, Url};
use crate::wire::nfs3::{Attributes, FileHandle};

/// How many files are synchronised at a time: a file system writes one journal entry for all that wait.
const SYNC_THREADS: usize = 8;

pub(super) struct DownloadJob {
    pub(super) info: FileInfo,
    /// The directory of the server that it is in, and its name there, if that is another one.
    pub(super) from: Rc<Url>,
    pub(super) source: Option<OsString>,
    pub(super) directory: Rc<OpenDirectory>,
    pub(super) name: OsString,
}

impl DownloadJob {
    /// A source that the user names.
    pub(super) fn from_source_url(
        found: FileInfo,
        url: &Url,
        directory: Rc<OpenDirectory>,
        name: OsString,
    ) -> Self {
        let above = url.path.parent().unwrap_or(&url.path).to_owned();
        let source = Some(url.path.file_name().unwrap_or_default().to_owned());
        Self { info: found, from: Rc::new(Url { path: above, ..url.clone() }), source, directory, name }
    }

    pub(super) fn source_url(&self) -> Url {
        match self.source.as_ref().unwrap_or(&self.name) {
            name if name.is_empty() => (*self.from).clone(),
            name => self.from.join(Path::new(name)),
        }
    }

    /// Its address, for messages.
    pub(super) fn display_name(&self) -> String {
        self.source_url().to_string()
    }

    /// The path of its copy, for messages.
    pub(super) fn copy_path(&self) -> PathBuf {
        self.directory.entry_path(&self.name)
    }
}

/// A file being copied, under its temporary name.
pub(super) struct DownloadFile {
    /// The address of the original, for messages.
    url: Url,
    info: FileInfo,
    directory: Rc<OpenDirectory>,
    names: CopyNames,
    file: File,
    start: u64,
    /// How many bytes it has, and how many of them are recorded.
    bytes: u64,
    recorded: u64,
    record: Option<File>,
}

impl DownloadFile {
    /// Opens the target; `None` if nothing is to be copied.
    pub(super) fn open(context: &mut CopyContext<'_>, job: DownloadJob) -> Result<Option<Self>, Failure> {
        let url = job.source_url();
        let DownloadJob { info: found, directory, name, .. } = job;
        let is_resumed = context.arguments.resume;
        if is_resumed && let Some(metadata) = find_complete_copy(&directory, &name, &found.attributes) {
            context.hard_links.record_copy(&found.attributes, directory.entry_path(&name), &metadata);
            context.counts.unchanged += 1;
            return Ok(None);
        }
        let names = CopyNames::new(name);
        let failed = |error| local_failure(&directory.entry_path(&names.part), error);
        let source = SourceVersion::from(&found.attributes);
        let earlier = match is_resumed {
            true => find_resumable_part(&directory, &names, &source).map_err(failed)?,
            false => None,
        };
        let is_continued = earlier.is_some();
        let (file, record, start) = match earlier {
            Some((file, record, start)) => (file, Some(record), start),
            None => (create_part(&directory, &names).map_err(failed)?, None, 0),
        };
        (&file).seek(SeekFrom::Start(start)).map_err(failed)?;
        context.counts.resumed_bytes += start;
        let mut partial =
            Self { url, info: found, directory, names, file, start, bytes: start, recorded: start, record };
        if is_continued {
            partial.write_record(&source).map_err(|error| partial.part_failure(error))?;
        }
        Ok(Some(partial))
    }

    pub(super) fn display_name(&self) -> String {
        self.url.to_string()
    }

    fn part_path(&self) -> PathBuf {
        self.directory.entry_path(&self.names.part)
    }

    fn part_failure(&self, error: io::Error) -> Failure {
        local_failure(&self.part_path(), error)
    }

    pub(super) fn source_handle(&self) -> FileHandle {
        self.info.file
    }

    /// The end of the server's file when it was looked up.
    pub(super) fn listed_size(&self) -> u64 {
        self.info.attributes.size
    }

    /// The bytes of an earlier, unfinished copy.
    pub(super) fn resumed_bytes(&self) -> u64 {
        self.start
    }

    /// Writes the next bytes, and from time to time a record of those that are on the disk.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.append_data(bytes).map_err(|error| self.part_failure(error))?;
        self.bytes += bytes.len() as u64;
        let version = SourceVersion::from(&self.info.attributes);
        if version.may_have_record() && self.bytes - self.recorded >= INTERVAL_BYTES {
            self.write_record(&version).map_err(|error| self.part_failure(error))?;
        }
        Ok(())
    }

    /// Whether the server's file has holes. Which parts are holes it cannot say, but zeros in whole blocks
    /// can be some here.
    fn has_holes(&self) -> bool {
        self.info.attributes.used < self.info.attributes.size
    }

    /// Writes bytes behind the others.
    fn append_data(&self, bytes: &[u8]) -> io::Result<()> {
        if !self.has_holes() {
            return (&self.file).write_all(bytes);
        }
        for (at, some) in nonzero_blocks(self.bytes, bytes) {
            self.file.write_all_at(some, at)?;
        }
        Ok(())
    }

    /// Makes the file as long as what was received, which may end in a hole.
    fn set_length(&self) -> io::Result<()> {
        if self.has_holes() { self.file.set_len(self.bytes) } else { Ok(()) }
    }

    fn write_record(&mut self, version: &SourceVersion) -> io::Result<()> {
        self.set_length()?;
        self.file.sync_data()?;
        let text = version.format_record(self.file.metadata()?.ino(), self.bytes);
        let record = match self.record.take() {
            Some(record) => record,
            None => self.directory.create_file(&self.names.record)?,
        };
        record.write_all_at(text.as_bytes(), 0)?;
        record.sync_data()?;
        (self.record, self.recorded) = (Some(record), self.bytes);
        Ok(())
    }

    pub(super) fn verify_copy(
        &self,
        context: &mut CopyContext<'_>,
        client: &mut Client,
    ) -> Result<(), Failure> {
        let compared = compare(context, client, self.source_handle(), (&self.file, &self.part_path()));
        compared.inspect_err(|failure| {
            if matches!(failure, Failure::Differs { .. }) {
                let _ = remove_part_and_record(&self.directory, &self.names); // nothing to go on with
            }
        })
    }

    /// Gives the file its permissions and time, once all bytes were written.
    pub(super) fn set_attributes(&self) -> Result<(), Failure> {
        let attributes = &self.info.attributes;
        let mode = fs::Permissions::from_mode(copied_permissions(attributes.mode));
        let time = modification_time(attributes);
        let time =
            Timestamps { last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }, last_modification: time };
        let set = self.set_length().and_then(|()| self.file.set_permissions(mode));
        set.and_then(|()| Ok(futimens(&self.file, &time)?)).map_err(|error| self.part_failure(error))
    }

    /// Counts a file that has its name now.
    fn count_copied(&self, context: &mut CopyContext<'_>) {
        context.counts.files += 1;
        if let Ok(metadata) = self.file.metadata() {
            context.hard_links.record_copy(
                &self.info.attributes,
                self.directory.entry_path(&self.names.complete),
                &metadata,
            );
        }
        if let Some(what) = missing_permissions(self.info.attributes.mode) {
            context.add_failure(self.display_name(), what);
        }
    }

    /// Gives a file that is on the disk its name.
    fn rename_to_final_name(&self) -> Result<(), Failure> {
        let Self { directory, names, file, .. } = self;
        if !directory.still_names_file(&names.part, file).map_err(|error| self.part_failure(error))? {
            return Err(Failure::Replaced { path: super::local_path::to_text(&self.part_path()) });
        }
        let renamed = directory.rename(&names.part, &names.complete);
        renamed.map_err(|error| local_failure(&directory.entry_path(&names.complete), error))?;
        if self.record.is_some() {
            directory.remove(&names.record).map_err(|error| self.part_failure(error))?;
        }
        Ok(())
    }
}

/// Waits until complete files are on the disk, and gives them their names.
pub(super) fn sync_and_rename(context: &mut CopyContext<'_>, parts: &[DownloadFile]) -> Result<(), Failure> {
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
        match synced.map_err(|error| part.part_failure(error)).and_then(|()| part.rename_to_final_name()) {
            Ok(()) => part.count_copied(context),
            Err(failure) => context.record_failure(part.display_name(), failure)?,
        }
    }
    Ok(())
}

/// The part of an earlier copy, the record, and how many bytes it proves; `None` if there are none.
fn find_resumable_part(
    directory: &OpenDirectory,
    names: &CopyNames,
    source: &SourceVersion,
) -> io::Result<Option<(File, File, u64)>> {
    if !source.may_have_record() {
        return Ok(None);
    }
    let [record, part] = [&names.record, &names.part].map(|name| {
        let file = directory.open_existing(name).ok()?;
        let metadata = file.metadata().ok().filter(Metadata::is_file)?;
        Some((file, metadata))
    });
    let Some(((mut record, record_metadata), (part, metadata))) = record.zip(part) else { return Ok(None) };
    let mut text = Vec::new();
    (&mut record).take(BYTES_MAX as u64).read_to_end(&mut text)?;
    let Some(done) = source.proven_bytes(&text, metadata.ino()) else { return Ok(None) };
    // Whom a file system takes this process for shows in a file that it makes.
    directory.remove(&names.record)?;
    let own = directory.create_file(&names.record)?;
    let user = own.metadata()?.uid();
    if ![&record_metadata, &metadata]
        .iter()
        .all(|metadata| ExistingFile::from(*metadata).is_exclusively_owned_by(user))
        || done > metadata.len()
    {
        return Ok(None);
    }
    part.set_len(done)?;
    Ok(Some((part, own, done)))
}

/// Makes an empty part without a record.
fn create_part(directory: &OpenDirectory, names: &CopyNames) -> io::Result<File> {
    remove_part_and_record(directory, names)?;
    directory.create_file(&names.part)
}

/// Removes what has the names of the part and the record; first the record, and on the disk, too: it must not
/// be there with another part.
fn remove_part_and_record(directory: &OpenDirectory, names: &CopyNames) -> io::Result<()> {
    if directory.remove(&names.record)? {
        directory.sync()?;
    }
    directory.remove(&names.part).map(drop)
}

fn find_complete_copy(directory: &OpenDirectory, name: &OsStr, attributes: &Attributes) -> Option<Metadata> {
    let time = modification_time(attributes);
    let metadata = directory.look_up(name).ok().flatten()?;
    let is_newer = (metadata.mtime(), metadata.mtime_nsec()) >= (time.tv_sec, time.tv_nsec);
    (metadata.is_file() && metadata.len() == attributes.size && is_newer).then_some(metadata)
}

pub(super) fn modification_time(attributes: &Attributes) -> Timespec {
    let time = attributes.modified;
    Timespec { tv_sec: time.seconds.into(), tv_nsec: time.nanoseconds.min(999_999_999).into() }
}

/// The parts of some bytes of a file that are not blocks of zeros, each with its offset.
fn nonzero_blocks(offset: u64, bytes: &[u8]) -> Vec<(u64, &[u8])> {
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
    fn zero_blocks_are_skipped() {
        let mut bytes = vec![0; 5 * 4096];
        for place in [4096 * 2, 4096 * 3 - 1, 5 * 4096 - 1] {
            bytes[place] = 1;
        }
        for (offset, skip) in [(0, 0), (100, 100), (8192, 0), (8191, 8191), (4095, 4095)] {
            let bytes = &bytes[skip..];
            let parts = nonzero_blocks(offset, bytes);
            let mut copy = vec![0; bytes.len()];
            for (at, some) in &parts {
                copy[(at - offset) as usize..][..some.len()].copy_from_slice(some);
            }
            assert_eq!(copy, bytes);
            assert_eq!(parts.iter().map(|(_, some)| some.len()).sum::<usize>(), 2 * 4096, "{offset}");
        }
        assert_eq!(nonzero_blocks(7, b"\0\0"), []);
        assert_eq!(nonzero_blocks(7, b"\0x"), [(7, &b"\0x"[..])]);
    }
}
