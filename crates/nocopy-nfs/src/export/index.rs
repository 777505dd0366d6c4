//! The place of each file whose handle a client has: its parent's identity and its name. Stored in a file,
//! for the next server.
//!
//! Wrong entries do no harm: the file at a place must have the identity that is looked for.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nocopy::integration::KernelHandle;
use rustix::fs::{Mode, OFlags, openat, renameat};

use super::identity::Identity;

/// The index file's name, and its name until it is complete.
const NAME: &str = "index";
const NEW_NAME: &str = "index.new";

/// The first bytes of the file; they change with its format. The one before had no entries of forgotten
/// files.
const MAGIC: &[u8; 16] = b"nocopy-nfs-ind/3";
const MAGIC_BEFORE: &[u8; 16] = b"nocopy-nfs-ind/2";

/// Before name and handle: both identities, and the two lengths.
const HEAD_BYTES: usize = 2 * Identity::BYTES + 2 + 1;

/// The most nested directories; more are a cycle.
const DEPTH_MAX: usize = 512;

/// Other threads can use the index between parts of this many entries.
const REWRITTEN_AT_ONCE: usize = 4096;

/// When the file has this many more entries than files, it is rewritten.
const SURPLUS_MAX: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) parent: Identity,
    pub(super) name: Box<[u8]>,
    /// A handle by which the kernel opens the file wherever it is.
    pub(super) handle: Option<KernelHandle>,
}

/// Where files are, in memory and in the index file. No thread waits for the disk while it holds the lock of
/// the memory.
#[derive(Debug)]
pub(super) struct Index {
    places: Mutex<Places>,
    stored: Mutex<Stored>,
}

#[derive(Debug, Default)]
struct Places {
    /// Each with the number of its entry.
    known: HashMap<Identity, (Place, u64)>,
    /// Entries that are not in the file yet.
    unsaved: Vec<u8>,
    /// The number of the newest entry, and of the newest one in the file.
    newest: u64,
    saved: u64,
    /// Entries in the file, including `unsaved`.
    entries: usize,
}

#[derive(Debug)]
struct Stored {
    directory: File,
    file: File,
    /// Whether the file must be rewritten, because an entry could not be written.
    is_behind: bool,
    /// Whether entries were written that a power failure could still lose.
    is_unsynced: bool,
}

/// Whether the index has the present place of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    No,
    /// In memory; after the next [`save`](Index::save) also in the file.
    Unsaved,
    Saved,
}

impl Index {
    /// Reads the file in a directory; an incomplete last entry of a killed server is dropped.
    pub(super) fn read(directory: File) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
        let mut file = File::from(openat(&directory, NAME, flags, Mode::RUSR | Mode::WUSR)?);
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let mut places = Places::default();
        let is_present = bytes.starts_with(MAGIC);
        let mut rest = match bytes.split_first_chunk() {
            Some((magic, rest)) if magic == MAGIC || magic == MAGIC_BEFORE => rest,
            _ => &[],
        };
        while let Some((identity, place, behind)) = parse(rest) {
            match place {
                Some(place) => drop(places.known.insert(identity, (place, 0))),
                None => drop(places.known.remove(&identity)),
            }
            places.entries += 1;
            rest = behind;
        }
        let is_rewritten = !rest.is_empty() || !is_present || places.surplus() > SURPLUS_MAX;
        let stored = Mutex::new(Stored { directory, file, is_behind: false, is_unsynced: false });
        let index = Self { places: Mutex::new(places), stored };
        if is_rewritten {
            index.rewrite(&mut index.stored())?;
        }
        Ok(index)
    }

    pub(super) fn place(&self, identity: Identity) -> Option<Place> {
        self.places().known.get(&identity).map(|(place, _)| place.clone())
    }

    pub(super) fn parent(&self, identity: Identity) -> Option<Identity> {
        self.places().known.get(&identity).map(|(place, _)| place.parent)
    }

    /// Whether it has this place of a file, with a kernel handle if one is wanted.
    pub(super) fn knows(&self, identity: Identity, parent: Identity, name: &[u8], has_handle: bool) -> Known {
        let places = self.places();
        match places.known.get(&identity) {
            Some((place, number))
                if (place.parent, &*place.name) == (parent, name)
                    && (place.handle.is_some() || !has_handle) =>
            {
                if *number <= places.saved {
                    Known::Saved
                } else {
                    Known::Unsaved
                }
            }
            _ => Known::No,
        }
    }

    pub(super) fn path(&self, identity: Identity, root: Identity) -> Option<PathBuf> {
        let places = self.places();
        let (mut at, mut names) = (identity, Vec::new());
        while at != root {
            let (place, _) = places.known.get(&at).filter(|_| names.len() < DEPTH_MAX)?;
            names.push(&*place.name);
            at = place.parent;
        }
        let mut path = PathBuf::with_capacity(names.iter().map(|name| name.len() + 1).sum());
        path.extend(names.iter().rev().map(|name| OsStr::from_bytes(name)));
        Some(path)
    }

    pub(super) fn learn(&self, identity: Identity, place: Place) {
        let mut places = self.places();
        if places.known.get(&identity).is_some_and(|(known, _)| *known == place) {
            return;
        }
        places.add(identity, Some(&place));
        let number = places.newest;
        places.known.insert(identity, (place, number));
    }

    /// Forgets a file that does not exist any more.
    pub(super) fn forget(&self, identity: Identity) {
        let mut places = self.places();
        if places.known.remove(&identity).is_some() {
            places.add(identity, None);
        }
    }

    pub(super) fn count(&self) -> usize {
        self.places().known.len()
    }

    /// The numbers of all file systems in it.
    pub(super) fn file_systems(&self) -> Vec<u64> {
        let places = self.places();
        let both =
            places.known.iter().flat_map(|(one, (place, _))| [one.file_system, place.parent.file_system]);
        both.collect::<HashSet<_>>().into_iter().collect()
    }

    /// Exported directories: parents that have no place themselves.
    pub(super) fn roots(&self) -> HashSet<Identity> {
        let places = self.places();
        let parents = places.known.values().map(|(place, _)| place.parent);
        parents.filter(|parent| !places.known.contains_key(parent)).collect()
    }

    pub(super) fn identities(&self) -> Vec<Identity> {
        self.places().known.keys().copied().collect()
    }

    /// Writes new entries, also those of other threads. Errors: writing failed; after that,
    /// [`tidy`](Self::tidy) has to succeed first.
    pub(super) fn save(&self) -> io::Result<()> {
        if self.places().is_saved() {
            return Ok(());
        }
        let mut stored = self.stored();
        // Perhaps written by another thread meanwhile.
        let Some((bytes, newest)) = self.places().take_unsaved() else { return Ok(()) };
        let saved = match stored.is_behind {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => stored.file.write_all(&bytes),
        };
        stored.is_behind = saved.is_err();
        stored.is_unsynced = true;
        self.places().saved = newest;
        saved
    }

    /// Rewrites the file if it has many entries too many, or if writing failed; writes it to the disk
    /// otherwise.
    pub(super) fn tidy(&self) {
        let mut stored = self.stored();
        if stored.is_behind || self.places().surplus() > SURPLUS_MAX {
            stored.is_behind = self.rewrite(&mut stored).is_err();
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
    fn rewrite(&self, stored: &mut Stored) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let mut file = File::from(openat(&stored.directory, NEW_NAME, flags, Mode::RUSR | Mode::WUSR)?);
        file.write_all(MAGIC)?;
        let identities = self.identities();
        let mut entries = 0;
        for part in identities.chunks(REWRITTEN_AT_ONCE) {
            let mut bytes = Vec::new();
            {
                let places = self.places();
                for identity in part {
                    if let Some((place, _)) = places.known.get(identity) {
                        put(&mut bytes, *identity, Some(place));
                        entries += 1;
                    }
                }
            }
            file.write_all(&bytes)?;
        }
        // Entries of other threads; some of them are in the file twice now, which changes nothing.
        let taken = self.places().take_unsaved();
        if let Some((bytes, _)) = &taken {
            file.write_all(bytes)?;
        }
        file.sync_all()?;
        renameat(&stored.directory, NEW_NAME, &stored.directory, NAME)?;
        stored.file = file;
        let mut places = self.places();
        places.entries =
            entries + count(&places.unsaved) + taken.as_ref().map_or(0, |(bytes, _)| count(bytes));
        places.saved = taken.map_or(places.saved, |(_, newest)| newest);
        drop(places);
        stored.is_unsynced = false;
        stored.directory.sync_all()
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stored(&self) -> MutexGuard<'_, Stored> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Places {
    fn add(&mut self, identity: Identity, place: Option<&Place>) {
        put(&mut self.unsaved, identity, place);
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
    fn surplus(&self) -> usize {
        self.entries.saturating_sub(2 * self.known.len())
    }
}

/// The number of entries in bytes of the file.
fn count(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    std::iter::from_fn(|| parse(rest).map(|(.., behind)| rest = behind)).count()
}

/// Appends an entry; without a place the file is forgotten.
fn put(out: &mut Vec<u8>, identity: Identity, place: Option<&Place>) {
    let handle = place.and_then(|place| place.handle.as_ref()).map_or(&[][..], KernelHandle::as_bytes);
    let name = place.map_or(&[][..], |place| &*place.name);
    out.extend_from_slice(&identity.to_bytes());
    out.extend_from_slice(&place.map_or(identity, |place| place.parent).to_bytes());
    out.extend_from_slice(&(name.len() as u16).to_be_bytes());
    out.push(handle.len() as u8);
    out.extend_from_slice(name);
    out.extend_from_slice(handle);
}

/// The first entry, and the rest; `None` at the end or at an incomplete entry.
fn parse(bytes: &[u8]) -> Option<(Identity, Option<Place>, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    let (identity, head) = head.split_first_chunk()?;
    let (parent, lengths) = head.split_first_chunk()?;
    let (count, handle_bytes) = lengths.split_first_chunk()?;
    let (name, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*count)))?;
    let (handle, rest) = rest.split_at_checked(usize::from(handle_bytes[0]))?;
    let identity = Identity::from_bytes(identity);
    if name.is_empty() {
        return Some((identity, None, rest));
    }
    let is_name = !name.contains(&b'/') && name != b"." && name != b"..";
    let handle = KernelHandle::from_bytes(handle);
    let place = Place { parent: Identity::from_bytes(parent), name: name.into(), handle };
    is_name.then_some((identity, Some(place), rest))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use tempfile::TempDir;

    use super::*;

    fn identity(inode: u64) -> Identity {
        Identity { file_system: 1, inode, generation: 2 }
    }

    fn place(parent: u64, name: &str) -> Place {
        let handle = KernelHandle::from_bytes(name.as_bytes());
        Place { parent: identity(parent), name: name.as_bytes().into(), handle }
    }

    fn path(index: &Index, inode: u64) -> Option<String> {
        index.path(identity(inode), identity(1)).map(|path| path.display().to_string())
    }

    fn read(directory: &TempDir) -> Index {
        Index::read(File::open(directory.path()).unwrap()).unwrap()
    }

    #[test]
    fn places_are_there_for_the_next_server() {
        let directory = tempfile::tempdir().unwrap();
        let index = read(&directory);
        index.learn(identity(3), place(2, "file"));
        index.learn(identity(2), place(1, "directory"));
        index.save().unwrap();
        let next = read(&directory);
        assert_eq!(path(&next, 3).as_deref(), Some("directory/file"));
        assert_eq!(next.place(identity(2)), Some(place(1, "directory")));
        index.learn(identity(2), place(1, "renamed"));
        index.save().unwrap();
        // A server that is killed while it writes.
        index.stored().file.write_all(&[7; 60]).unwrap();
        let next = read(&directory);
        assert_eq!(path(&next, 3).as_deref(), Some("renamed/file"));
        next.learn(identity(4), place(2, "new"));
        next.save().unwrap();
        assert_eq!(path(&read(&directory), 4).as_deref(), Some("renamed/new"));
    }

    #[test]
    fn the_old_file_is_whole_until_the_new_one_is() {
        let directory = tempfile::tempdir().unwrap();
        let index = read(&directory);
        index.learn(identity(2), place(1, "file"));
        index.save().unwrap();
        let [file, old] = ["index", "old"].map(|name| directory.path().join(name));
        fs::hard_link(&file, &old).unwrap();
        index.rewrite(&mut index.stored()).unwrap();
        assert_eq!(fs::read(&old).unwrap(), fs::read(&file).unwrap());
        assert_ne!(fs::metadata(&old).unwrap().ino(), fs::metadata(&file).unwrap().ino());
        index.learn(identity(3), place(1, "other"));
        index.save().unwrap();
        assert_eq!(path(&read(&directory), 3).as_deref(), Some("other"));
    }

    #[test]
    fn what_could_not_be_written_is_written_later() {
        let directory = tempfile::tempdir().unwrap();
        let index = read(&directory);
        index.stored().file = File::options().write(true).open("/dev/full").unwrap();
        index.learn(identity(2), place(1, "file"));
        assert!(index.save().is_err());
        index.learn(identity(3), place(1, "other"));
        assert!(index.save().is_err() && index.save().is_ok());
        index.tidy();
        assert_eq!([2, 3].map(|inode| path(&read(&directory), inode).is_some()), [true; 2]);
        index.learn(identity(4), place(1, "third"));
        index.save().unwrap();
        assert_eq!(path(&read(&directory), 4).as_deref(), Some("third"));
    }

    #[test]
    fn what_leads_nowhere_has_no_path() {
        let directory = tempfile::tempdir().unwrap();
        let index = read(&directory);
        index.learn(identity(3), place(4, "a"));
        index.learn(identity(4), place(3, "b"));
        index.learn(identity(5), place(6, "c"));
        assert_eq!([3, 5, 9].map(|inode| path(&index, inode)), [None, None, None]);
        assert_eq!(path(&index, 1).as_deref(), Some(""));
    }

    #[test]
    fn two_names_in_turns_do_not_let_the_file_grow() {
        let directory = tempfile::tempdir().unwrap();
        let index = read(&directory);
        for turn in 0..20_000 {
            index.learn(identity(2), place(1, if turn % 2 == 0 { "one" } else { "other" }));
            index.save().unwrap();
        }
        index.tidy();
        let bytes = index.stored().file.metadata().unwrap().len();
        assert!(bytes < (SURPLUS_MAX as u64 + 8) * 64, "{bytes}");
        assert_eq!(path(&read(&directory), 2).as_deref(), Some("other"));
    }

    #[test]
    fn files_that_are_gone_take_neither_memory_nor_disk() {
        let directory = tempfile::tempdir().unwrap();
        let index = read(&directory);
        index.learn(identity(2), place(1, "stays"));
        for inode in 10..20_000 {
            index.learn(identity(inode), place(1, "gone"));
            index.save().unwrap();
            index.forget(identity(inode));
            assert_eq!(index.count(), 1);
            index.save().unwrap();
            if inode % 1000 == 0 {
                index.tidy();
                let bytes = index.stored().file.metadata().unwrap().len();
                assert!(bytes < (SURPLUS_MAX as u64 + 8) * 64, "{bytes}");
            }
        }
        let next = read(&directory);
        assert_eq!((next.count(), path(&next, 2).as_deref()), (1, Some("stays")));
    }

    #[test]
    fn a_place_is_saved_once_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let index = read(&directory);
        let known = |name: &[u8]| index.knows(identity(2), identity(1), name, true);
        assert_eq!(known(b"file"), Known::No);
        index.learn(identity(2), place(1, "file"));
        assert_eq!((known(b"file"), known(b"other")), (Known::Unsaved, Known::No));
        index.save().unwrap();
        assert_eq!(known(b"file"), Known::Saved);
        assert_eq!(read(&directory).knows(identity(2), identity(1), b"file", true), Known::Saved);
    }

    /// A file of an earlier version, without entries of forgotten files.
    #[test]
    fn the_format_before_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let mut bytes = MAGIC_BEFORE.to_vec();
        put(&mut bytes, identity(2), Some(&place(1, "file")));
        fs::write(directory.path().join(NAME), bytes).unwrap();
        assert_eq!(path(&read(&directory), 2).as_deref(), Some("file"));
        assert!(fs::read(directory.path().join(NAME)).unwrap().starts_with(MAGIC));
    }
}
