//! The location of each file whose handle a client has: its parent's identity and its name. Stored in a file,
//! for the next server.
//!
//! Wrong entries do no harm: the file at a location must have the identity that is looked for.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nocopy::integration::KernelHandle;
use rustix::fs::{Mode, OFlags, openat, renameat};

use super::identity::FileIdentity;

/// The index file's name, and its name until it is complete.
const NAME: &str = "index";
const NEW_NAME: &str = "index.new";

/// The first bytes of the file; they change with its format. The one before had no entries of forgotten
/// files.
const MAGIC: &[u8; 16] = b"nocopy-nfs-ind/3";
const MAGIC_BEFORE: &[u8; 16] = b"nocopy-nfs-ind/2";

/// Before name and handle: both identities, and the two lengths.
const HEAD_BYTES: usize = 2 * FileIdentity::BYTES + 2 + 1;

/// The most nested directories; more are a cycle.
const DEPTH_MAX: usize = 512;

/// Other threads can use the index between parts of this many entries.
const REWRITTEN_AT_ONCE: usize = 4096;

/// When the file has this many more entries than files, it is rewritten.
const SURPLUS_MAX: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileLocation {
    pub(super) parent: FileIdentity,
    pub(super) name: Box<[u8]>,
    /// A handle by which the kernel opens the file wherever it is.
    pub(super) handle: Option<KernelHandle>,
}

/// Where files are, in memory and in the index file. No thread waits for the disk while it holds the lock of
/// the memory.
#[derive(Debug)]
pub(super) struct FileIndex {
    table: Mutex<LocationTable>,
    index_file: Mutex<IndexFile>,
}

#[derive(Debug, Default)]
struct LocationTable {
    /// Each with the number of its entry.
    locations: HashMap<FileIdentity, (FileLocation, u64)>,
    /// Entries that are not in the file yet.
    unsaved: Vec<u8>,
    /// The number of the newest entry, and of the newest one in the file.
    newest: u64,
    saved: u64,
    /// Entries in the file, including `unsaved`.
    entries: usize,
}

#[derive(Debug)]
struct IndexFile {
    directory: File,
    file: File,
    /// Whether the file must be rewritten, because an entry could not be written.
    is_outdated: bool,
    /// Whether entries were written that a power failure could still lose.
    is_unsynced: bool,
}

/// Whether the index has the present location of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SaveState {
    Absent,
    /// In memory; after the next [`save`](FileIndex::save) also in the file.
    Unsaved,
    Saved,
}

impl FileIndex {
    /// Reads the file in a directory; an incomplete last entry of a killed server is dropped.
    pub(super) fn read(directory: File) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
        let mut file = File::from(openat(&directory, NAME, flags, Mode::RUSR | Mode::WUSR)?);
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let mut table = LocationTable::default();
        let is_present = bytes.starts_with(MAGIC);
        let mut rest = match bytes.split_first_chunk() {
            Some((magic, rest)) if magic == MAGIC || magic == MAGIC_BEFORE => rest,
            _ => &[],
        };
        while let Some((identity, location, behind)) = parse_entry(rest) {
            match location {
                Some(location) => drop(table.locations.insert(identity, (location, 0))),
                None => drop(table.locations.remove(&identity)),
            }
            table.entries += 1;
            rest = behind;
        }
        let is_rewritten = !rest.is_empty() || !is_present || table.surplus_entries() > SURPLUS_MAX;
        let stored = Mutex::new(IndexFile { directory, file, is_outdated: false, is_unsynced: false });
        let index = Self { table: Mutex::new(table), index_file: stored };
        if is_rewritten {
            index.rewrite(&mut index.lock_file())?;
        }
        Ok(index)
    }

    pub(super) fn location(&self, identity: FileIdentity) -> Option<FileLocation> {
        self.lock_table().locations.get(&identity).map(|(location, _)| location.clone())
    }

    pub(super) fn parent(&self, identity: FileIdentity) -> Option<FileIdentity> {
        self.lock_table().locations.get(&identity).map(|(location, _)| location.parent)
    }

    /// Whether it has this location of a file, with a kernel handle if one is wanted.
    pub(super) fn save_state(
        &self,
        identity: FileIdentity,
        parent: FileIdentity,
        name: &[u8],
        has_handle: bool,
    ) -> SaveState {
        let table = self.lock_table();
        match table.locations.get(&identity) {
            Some((location, number))
                if (location.parent, &*location.name) == (parent, name)
                    && (location.handle.is_some() || !has_handle) =>
            {
                if *number <= table.saved {
                    SaveState::Saved
                } else {
                    SaveState::Unsaved
                }
            }
            _ => SaveState::Absent,
        }
    }

    pub(super) fn path(&self, identity: FileIdentity, root: FileIdentity) -> Option<PathBuf> {
        let table = self.lock_table();
        let (mut at, mut names) = (identity, Vec::new());
        while at != root {
            let (location, _) = table.locations.get(&at).filter(|_| names.len() < DEPTH_MAX)?;
            names.push(&*location.name);
            at = location.parent;
        }
        let mut path = PathBuf::with_capacity(names.iter().map(|name| name.len() + 1).sum());
        path.extend(names.iter().rev().map(|name| OsStr::from_bytes(name)));
        Some(path)
    }

    pub(super) fn insert(&self, identity: FileIdentity, location: FileLocation) {
        let mut table = self.lock_table();
        if table.locations.get(&identity).is_some_and(|(known, _)| *known == location) {
            return;
        }
        table.append_entry(identity, Some(&location));
        let number = table.newest;
        table.locations.insert(identity, (location, number));
    }

    /// Forgets a file that does not exist any more.
    pub(super) fn remove(&self, identity: FileIdentity) {
        let mut table = self.lock_table();
        if table.locations.remove(&identity).is_some() {
            table.append_entry(identity, None);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.lock_table().locations.len()
    }

    /// The numbers of all file systems in it.
    pub(super) fn file_systems(&self) -> Vec<u64> {
        let table = self.lock_table();
        let both = table
            .locations
            .iter()
            .flat_map(|(one, (location, _))| [one.file_system, location.parent.file_system]);
        both.collect::<HashSet<_>>().into_iter().collect()
    }

    /// Exported directories: parents that have no location themselves.
    pub(super) fn roots(&self) -> HashSet<FileIdentity> {
        let table = self.lock_table();
        let parents = table.locations.values().map(|(location, _)| location.parent);
        parents.filter(|parent| !table.locations.contains_key(parent)).collect()
    }

    pub(super) fn identities(&self) -> Vec<FileIdentity> {
        self.lock_table().locations.keys().copied().collect()
    }

    /// Writes new entries, also those of other threads. Errors: writing failed; after that,
    /// [`compact_or_sync`](Self::compact_or_sync) has to succeed first.
    pub(super) fn save(&self) -> io::Result<()> {
        if self.lock_table().is_saved() {
            return Ok(());
        }
        let mut stored = self.lock_file();
        // Perhaps written by another thread meanwhile.
        let Some((bytes, newest)) = self.lock_table().take_unsaved() else { return Ok(()) };
        let saved = match stored.is_outdated {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => stored.file.write_all(&bytes),
        };
        stored.is_outdated = saved.is_err();
        stored.is_unsynced = true;
        self.lock_table().saved = newest;
        saved
    }

    /// Rewrites the file if it has many entries too many, or if writing failed; writes it to the disk
    /// otherwise.
    pub(super) fn compact_or_sync(&self) {
        let mut stored = self.lock_file();
        if stored.is_outdated || self.lock_table().surplus_entries() > SURPLUS_MAX {
            stored.is_outdated = self.rewrite(&mut stored).is_err();
        } else if std::mem::take(&mut stored.is_unsynced) {
            let file = stored.file.try_clone();
            // Others write to it meanwhile.
            drop(stored);
            // Errors: the next power failure may make handles stale, which nothing here can change.
            let _ = file.and_then(|file| file.sync_data());
        }
    }

    /// The old file remains until the new one is on the disk, so a server that is killed meanwhile loses
    /// nothing.
    fn rewrite(&self, stored: &mut IndexFile) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let mut file = File::from(openat(&stored.directory, NEW_NAME, flags, Mode::RUSR | Mode::WUSR)?);
        file.write_all(MAGIC)?;
        let identities = self.identities();
        let mut entries = 0;
        for part in identities.chunks(REWRITTEN_AT_ONCE) {
            let mut bytes = Vec::new();
            {
                let table = self.lock_table();
                for identity in part {
                    if let Some((location, _)) = table.locations.get(identity) {
                        encode_entry(&mut bytes, *identity, Some(location));
                        entries += 1;
                    }
                }
            }
            file.write_all(&bytes)?;
        }
        // Entries of other threads; some of them are in the file twice now, which changes nothing.
        let taken = self.lock_table().take_unsaved();
        if let Some((bytes, _)) = &taken {
            file.write_all(bytes)?;
        }
        file.sync_all()?;
        renameat(&stored.directory, NEW_NAME, &stored.directory, NAME)?;
        stored.file = file;
        let mut table = self.lock_table();
        table.entries =
            entries + entry_count(&table.unsaved) + taken.as_ref().map_or(0, |(bytes, _)| entry_count(bytes));
        table.saved = taken.map_or(table.saved, |(_, newest)| newest);
        drop(table);
        stored.is_unsynced = false;
        stored.directory.sync_all()
    }

    fn lock_table(&self) -> MutexGuard<'_, LocationTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_file(&self) -> MutexGuard<'_, IndexFile> {
        self.index_file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LocationTable {
    fn append_entry(&mut self, identity: FileIdentity, location: Option<&FileLocation>) {
        encode_entry(&mut self.unsaved, identity, location);
        self.entries += 1;
        self.newest += 1;
    }

    fn is_saved(&self) -> bool {
        self.saved == self.newest
    }

    /// The unsaved entries, and the number of the last one.
    fn take_unsaved(&mut self) -> Option<(Vec<u8>, u64)> {
        let bytes = std::mem::take(&mut self.unsaved);
        (!bytes.is_empty()).then_some((bytes, self.newest))
    }

    /// Entries that were replaced by later ones, or are of removed files. A file with two names, looked up by
    /// both in turn, adds one each time.
    fn surplus_entries(&self) -> usize {
        self.entries.saturating_sub(2 * self.locations.len())
    }
}

/// The number of entries in bytes of the file.
fn entry_count(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    std::iter::from_fn(|| parse_entry(rest).map(|(.., behind)| rest = behind)).count()
}

/// Appends an entry; without a location the file is forgotten.
fn encode_entry(out: &mut Vec<u8>, identity: FileIdentity, location: Option<&FileLocation>) {
    let handle =
        location.and_then(|location| location.handle.as_ref()).map_or(&[][..], KernelHandle::as_bytes);
    let name = location.map_or(&[][..], |location| &*location.name);
    out.extend_from_slice(&identity.to_bytes());
    out.extend_from_slice(&location.map_or(identity, |location| location.parent).to_bytes());
    out.extend_from_slice(&(name.len() as u16).to_be_bytes());
    out.push(handle.len() as u8);
    out.extend_from_slice(name);
    out.extend_from_slice(handle);
}

/// The first entry, and the rest; `None` at the end or at an incomplete entry.
fn parse_entry(bytes: &[u8]) -> Option<(FileIdentity, Option<FileLocation>, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    let (identity, head) = head.split_first_chunk()?;
    let (parent, lengths) = head.split_first_chunk()?;
    let (count, handle_bytes) = lengths.split_first_chunk()?;
    let (name, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*count)))?;
    let (handle, rest) = rest.split_at_checked(usize::from(handle_bytes[0]))?;
    let identity = FileIdentity::from_bytes(identity);
    if name.is_empty() {
        return Some((identity, None, rest));
    }
    let is_name = !name.contains(&b'/') && name != b"." && name != b"..";
    let handle = KernelHandle::from_bytes(handle);
    let location = FileLocation { parent: FileIdentity::from_bytes(parent), name: name.into(), handle };
    is_name.then_some((identity, Some(location), rest))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use tempfile::TempDir;

    use super::*;

    fn identity_of_inode(inode: u64) -> FileIdentity {
        FileIdentity { file_system: 1, inode, generation: 2 }
    }

    fn location_in_directory(parent: u64, name: &str) -> FileLocation {
        let handle = KernelHandle::from_bytes(name.as_bytes());
        FileLocation { parent: identity_of_inode(parent), name: name.as_bytes().into(), handle }
    }

    fn path_text(index: &FileIndex, inode: u64) -> Option<String> {
        index.path(identity_of_inode(inode), identity_of_inode(1)).map(|path| path.display().to_string())
    }

    fn read_index(directory: &TempDir) -> FileIndex {
        FileIndex::read(File::open(directory.path()).unwrap()).unwrap()
    }

    #[test]
    fn saved_locations_are_read_by_the_next_server() {
        let directory = tempfile::tempdir().unwrap();
        let index = read_index(&directory);
        index.insert(identity_of_inode(3), location_in_directory(2, "file"));
        index.insert(identity_of_inode(2), location_in_directory(1, "directory"));
        index.save().unwrap();
        let next = read_index(&directory);
        assert_eq!(path_text(&next, 3).as_deref(), Some("directory/file"));
        assert_eq!(next.location(identity_of_inode(2)), Some(location_in_directory(1, "directory")));
        index.insert(identity_of_inode(2), location_in_directory(1, "renamed"));
        index.save().unwrap();
        // A server that is killed while it writes.
        index.lock_file().file.write_all(&[7; 60]).unwrap();
        let next = read_index(&directory);
        assert_eq!(path_text(&next, 3).as_deref(), Some("renamed/file"));
        next.insert(identity_of_inode(4), location_in_directory(2, "new"));
        next.save().unwrap();
        assert_eq!(path_text(&read_index(&directory), 4).as_deref(), Some("renamed/new"));
    }

    #[test]
    fn rewriting_replaces_the_file_atomically() {
        let directory = tempfile::tempdir().unwrap();
        let index = read_index(&directory);
        index.insert(identity_of_inode(2), location_in_directory(1, "file"));
        index.save().unwrap();
        let [file, old] = ["index", "old"].map(|name| directory.path().join(name));
        fs::hard_link(&file, &old).unwrap();
        index.rewrite(&mut index.lock_file()).unwrap();
        assert_eq!(fs::read(&old).unwrap(), fs::read(&file).unwrap());
        assert_ne!(fs::metadata(&old).unwrap().ino(), fs::metadata(&file).unwrap().ino());
        index.insert(identity_of_inode(3), location_in_directory(1, "other"));
        index.save().unwrap();
        assert_eq!(path_text(&read_index(&directory), 3).as_deref(), Some("other"));
    }

    #[test]
    fn failed_writes_are_repeated_later() {
        let directory = tempfile::tempdir().unwrap();
        let index = read_index(&directory);
        index.lock_file().file = File::options().write(true).open("/dev/full").unwrap();
        index.insert(identity_of_inode(2), location_in_directory(1, "file"));
        assert!(index.save().is_err());
        index.insert(identity_of_inode(3), location_in_directory(1, "other"));
        assert!(index.save().is_err() && index.save().is_ok());
        index.compact_or_sync();
        assert_eq!([2, 3].map(|inode| path_text(&read_index(&directory), inode).is_some()), [true; 2]);
        index.insert(identity_of_inode(4), location_in_directory(1, "third"));
        index.save().unwrap();
        assert_eq!(path_text(&read_index(&directory), 4).as_deref(), Some("third"));
    }

    #[test]
    fn cyclic_and_unknown_locations_have_no_path() {
        let directory = tempfile::tempdir().unwrap();
        let index = read_index(&directory);
        index.insert(identity_of_inode(3), location_in_directory(4, "a"));
        index.insert(identity_of_inode(4), location_in_directory(3, "b"));
        index.insert(identity_of_inode(5), location_in_directory(6, "c"));
        assert_eq!([3, 5, 9].map(|inode| path_text(&index, inode)), [None, None, None]);
        assert_eq!(path_text(&index, 1).as_deref(), Some(""));
    }

    #[test]
    fn alternating_names_do_not_grow_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let index = read_index(&directory);
        for turn in 0..20_000 {
            index.insert(
                identity_of_inode(2),
                location_in_directory(1, if turn % 2 == 0 { "one" } else { "other" }),
            );
            index.save().unwrap();
        }
        index.compact_or_sync();
        let bytes = index.lock_file().file.metadata().unwrap().len();
        assert!(bytes < (SURPLUS_MAX as u64 + 8) * 64, "{bytes}");
        assert_eq!(path_text(&read_index(&directory), 2).as_deref(), Some("other"));
    }

    #[test]
    fn removed_files_take_no_memory_and_no_disk_space() {
        let directory = tempfile::tempdir().unwrap();
        let index = read_index(&directory);
        index.insert(identity_of_inode(2), location_in_directory(1, "stays"));
        for inode in 10..20_000 {
            index.insert(identity_of_inode(inode), location_in_directory(1, "gone"));
            index.save().unwrap();
            index.remove(identity_of_inode(inode));
            assert_eq!(index.len(), 1);
            index.save().unwrap();
            if inode % 1000 == 0 {
                index.compact_or_sync();
                let bytes = index.lock_file().file.metadata().unwrap().len();
                assert!(bytes < (SURPLUS_MAX as u64 + 8) * 64, "{bytes}");
            }
        }
        let next = read_index(&directory);
        assert_eq!((next.len(), path_text(&next, 2).as_deref()), (1, Some("stays")));
    }

    #[test]
    fn locations_are_saved_once_written() {
        let directory = tempfile::tempdir().unwrap();
        let index = read_index(&directory);
        let known = |name: &[u8]| index.save_state(identity_of_inode(2), identity_of_inode(1), name, true);
        assert_eq!(known(b"file"), SaveState::Absent);
        index.insert(identity_of_inode(2), location_in_directory(1, "file"));
        assert_eq!((known(b"file"), known(b"other")), (SaveState::Unsaved, SaveState::Absent));
        index.save().unwrap();
        assert_eq!(known(b"file"), SaveState::Saved);
        assert_eq!(
            read_index(&directory).save_state(identity_of_inode(2), identity_of_inode(1), b"file", true),
            SaveState::Saved
        );
    }

    /// A file of an earlier version, without entries of forgotten files.
    #[test]
    fn the_previous_format_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let mut bytes = MAGIC_BEFORE.to_vec();
        encode_entry(&mut bytes, identity_of_inode(2), Some(&location_in_directory(1, "file")));
        fs::write(directory.path().join(NAME), bytes).unwrap();
        assert_eq!(path_text(&read_index(&directory), 2).as_deref(), Some("file"));
        assert!(fs::read(directory.path().join(NAME)).unwrap().starts_with(MAGIC));
    }
}
