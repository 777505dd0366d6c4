//! The place of each file whose handle a client has: its parent's identity and its name. Stored in a file, for the next server.
//!
//! Wrong entries do no harm: the file at a place must have the identity that is looked for.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use nocopy::integration::KernelHandle;
use rustix::fs::{Mode, OFlags, openat, renameat};

use super::identity::Identity;

/// The index file's name, and its name until it is complete.
const NAME: &str = "index";
const NEW_NAME: &str = "index.new";

/// The first bytes of the file; they change with its format.
const MAGIC: &[u8; 16] = b"nocopy-nfs-ind/2";

/// Before name and handle: both identities, and the two lengths.
const HEAD_BYTES: usize = 2 * Identity::BYTES + 2 + 1;

/// The most nested directories; more are a cycle.
const DEPTH_MAX: usize = 512;

/// When the file has this many more entries than files, it is rewritten.
const SURPLUS_MAX: usize = 4096;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) parent: Identity,
    pub(super) name: Box<[u8]>,
    /// A handle by which the kernel opens the file wherever it is.
    pub(super) handle: Option<KernelHandle>,
}

#[derive(Debug)]
pub(super) struct Index {
    places: HashMap<Identity, Place>,
    directory: File,
    file: File,
    /// Entries in the file, including `unsaved`.
    entries: usize,
    unsaved: Vec<u8>,
    /// Whether the file must be rewritten, because an entry could not be written.
    is_behind: bool,
}

impl Index {
    /// Reads the file in a directory; an incomplete last entry of a killed server is dropped.
    pub(super) fn read(directory: File) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
        let mut file = File::from(openat(&directory, NAME, flags, Mode::RUSR | Mode::WUSR)?);
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let (places, unsaved) = (HashMap::new(), Vec::new());
        let mut index = Self { places, directory, file, entries: 0, unsaved, is_behind: false };
        let mut rest = bytes.strip_prefix(MAGIC).unwrap_or_default();
        while let Some((identity, place, behind)) = parse(rest) {
            index.places.insert(identity, place);
            index.entries += 1;
            rest = behind;
        }
        if !rest.is_empty() || bytes.len() < MAGIC.len() || index.surplus() > SURPLUS_MAX {
            index.rewrite()?;
        }
        Ok(index)
    }

    pub(super) fn place(&self, identity: Identity) -> Option<&Place> {
        self.places.get(&identity)
    }

    pub(super) fn path(&self, identity: Identity, root: Identity) -> Option<PathBuf> {
        let (mut at, mut names) = (identity, Vec::new());
        while at != root {
            let place = self.places.get(&at).filter(|_| names.len() < DEPTH_MAX)?;
            names.push(&*place.name);
            at = place.parent;
        }
        Some(names.iter().rev().map(|name| OsStr::from_bytes(name)).collect())
    }

    pub(super) fn learn(&mut self, identity: Identity, place: Place) {
        if self.places.get(&identity) == Some(&place) {
            return;
        }
        put(&mut self.unsaved, identity, &place);
        self.entries += 1;
        self.places.insert(identity, place);
    }

    /// Writes new entries. Errors: writing failed; after that, [`restore`](Self::restore) has to succeed first.
    pub(super) fn save(&mut self) -> io::Result<()> {
        if self.unsaved.is_empty() {
            return Ok(());
        }
        let saved = match (self.is_behind, self.surplus() > SURPLUS_MAX) {
            (true, _) => Err(io::ErrorKind::StorageFull.into()),
            (false, true) => self.rewrite(),
            (false, false) => self.file.write_all(&self.unsaved),
        };
        self.unsaved.clear();
        self.is_behind = saved.is_err();
        saved
    }

    /// Rewrites the file if writing failed: not with each call, because the file is large.
    pub(super) fn restore(&mut self) {
        if self.is_behind {
            self.is_behind = self.rewrite().is_err();
        }
    }

    /// Entries that were replaced by later ones. A file with two names, looked up by both in turn, adds one each time.
    fn surplus(&self) -> usize {
        self.entries.saturating_sub(2 * self.places.len())
    }

    /// The old file remains until the new one is complete, so a server that is killed meanwhile loses nothing.
    fn rewrite(&mut self) -> io::Result<()> {
        let mut bytes = MAGIC.to_vec();
        self.places.iter().for_each(|(identity, place)| put(&mut bytes, *identity, place));
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let mut file = File::from(openat(&self.directory, NEW_NAME, flags, Mode::RUSR | Mode::WUSR)?);
        file.write_all(&bytes)?;
        renameat(&self.directory, NEW_NAME, &self.directory, NAME)?;
        self.file = file;
        self.entries = self.places.len();
        Ok(())
    }
}

fn put(out: &mut Vec<u8>, identity: Identity, place: &Place) {
    out.extend_from_slice(&identity.to_bytes());
    out.extend_from_slice(&place.parent.to_bytes());
    let handle = place.handle.as_ref().map_or(&[][..], KernelHandle::as_bytes);
    out.extend_from_slice(&(place.name.len() as u16).to_be_bytes());
    out.push(handle.len() as u8);
    out.extend_from_slice(&place.name);
    out.extend_from_slice(handle);
}

/// The first entry, and the rest; `None` at the end or at an incomplete entry.
fn parse(bytes: &[u8]) -> Option<(Identity, Place, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    let (identity, head) = head.split_first_chunk()?;
    let (parent, lengths) = head.split_first_chunk()?;
    let (count, handle_bytes) = lengths.split_first_chunk()?;
    let (name, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*count)))?;
    let (handle, rest) = rest.split_at_checked(usize::from(handle_bytes[0]))?;
    let is_name = !name.is_empty() && !name.contains(&b'/') && name != b"." && name != b"..";
    let handle = KernelHandle::from_bytes(handle);
    let place = Place { parent: Identity::from_bytes(parent), name: name.into(), handle };
    is_name.then(|| (Identity::from_bytes(identity), place, rest))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use tempfile::TempDir;

    use super::*;

    fn identity(inode: u64) -> Identity {
        Identity { device: 1, inode, generation: 2 }
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
        let mut index = read(&directory);
        index.learn(identity(3), place(2, "file"));
        index.learn(identity(2), place(1, "directory"));
        index.save().unwrap();
        let next = read(&directory);
        assert_eq!(path(&next, 3).as_deref(), Some("directory/file"));
        assert_eq!(next.place(identity(2)), Some(&place(1, "directory")));
        index.learn(identity(2), place(1, "renamed"));
        index.save().unwrap();
        // A server that is killed while it writes.
        index.file.write_all(&[7; 60]).unwrap();
        let mut next = read(&directory);
        assert_eq!(path(&next, 3).as_deref(), Some("renamed/file"));
        next.learn(identity(4), place(2, "new"));
        next.save().unwrap();
        assert_eq!(path(&read(&directory), 4).as_deref(), Some("renamed/new"));
    }

    #[test]
    fn the_old_file_is_whole_until_the_new_one_is() {
        let directory = tempfile::tempdir().unwrap();
        let mut index = read(&directory);
        index.learn(identity(2), place(1, "file"));
        index.save().unwrap();
        let [file, old] = ["index", "old"].map(|name| directory.path().join(name));
        fs::hard_link(&file, &old).unwrap();
        index.rewrite().unwrap();
        assert_eq!(fs::read(&old).unwrap(), fs::read(&file).unwrap());
        assert_ne!(fs::metadata(&old).unwrap().ino(), fs::metadata(&file).unwrap().ino());
        index.learn(identity(3), place(1, "other"));
        index.save().unwrap();
        assert_eq!(path(&read(&directory), 3).as_deref(), Some("other"));
    }

    #[test]
    fn what_could_not_be_written_is_written_later() {
        let directory = tempfile::tempdir().unwrap();
        let mut index = read(&directory);
        index.file = File::options().write(true).open("/dev/full").unwrap();
        index.learn(identity(2), place(1, "file"));
        assert!(index.save().is_err());
        index.learn(identity(3), place(1, "other"));
        assert!(index.save().is_err() && index.save().is_ok());
        index.restore();
        assert_eq!([2, 3].map(|inode| path(&read(&directory), inode).is_some()), [true; 2]);
        index.learn(identity(4), place(1, "third"));
        index.save().unwrap();
        assert_eq!(path(&read(&directory), 4).as_deref(), Some("third"));
    }

    #[test]
    fn what_leads_nowhere_has_no_path() {
        let directory = tempfile::tempdir().unwrap();
        let mut index = read(&directory);
        index.learn(identity(3), place(4, "a"));
        index.learn(identity(4), place(3, "b"));
        index.learn(identity(5), place(6, "c"));
        assert_eq!([3, 5, 9].map(|inode| path(&index, inode)), [None, None, None]);
        assert_eq!(path(&index, 1).as_deref(), Some(""));
    }

    #[test]
    fn two_names_in_turns_do_not_let_the_file_grow() {
        let directory = tempfile::tempdir().unwrap();
        let mut index = read(&directory);
        for turn in 0..20_000 {
            index.learn(identity(2), place(1, if turn % 2 == 0 { "one" } else { "other" }));
            index.save().unwrap();
        }
        let bytes = index.file.metadata().unwrap().len();
        assert!(bytes < (SURPLUS_MAX as u64 + 8) * 64, "{bytes}");
        assert_eq!(path(&read(&directory), 2).as_deref(), Some("other"));
    }
}
