//! What is kept of file systems besides the index: the directories that were exported before, and device
//! numbers in handles of earlier versions, which had those instead of numbers that stay.
//!
//! Such a number belongs to the file system on which a file of the index still is at its location: its
//! handles stay valid.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Write as _};

use rustix::fs::{Mode, OFlags, openat, renameat};
use rustix::io::Errno;

use super::identity::FileIdentity;
use super::index::FileIndex;

const NAME: &str = "file-systems";
const NEW_NAME: &str = "file-systems.new";

/// The most former directories that are remembered.
const ROOTS_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct FileSystemNumbers {
    directory: File,
    /// Device numbers of which it is not known whose they were.
    unclaimed: Vec<u64>,
    /// The others, by the number that the file system would have without them.
    claimed: HashMap<u64, u64>,
    /// Directories that were exported with this state, the last one last.
    roots: Vec<FileIdentity>,
}

impl FileSystemNumbers {
    /// Reads the file in the directory of the index; without one, an earlier version has made the index.
    pub(super) fn read(directory: File, index: &FileIndex) -> io::Result<Self> {
        let mut numbers =
            Self { directory, unclaimed: Vec::new(), claimed: HashMap::new(), roots: Vec::new() };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(&numbers.directory, NAME, flags, Mode::empty()) {
            Ok(file) => {
                let mut text = String::new();
                File::from(file).read_to_string(&mut text)?;
                text.lines().for_each(|line| numbers.parse_line(line));
            }
            Err(Errno::NOENT) => {
                numbers.unclaimed = index.file_systems();
                numbers.roots = index.roots().into_iter().take(ROOTS_MAX).collect();
                numbers.write_file()?;
            }
            Err(error) => return Err(error.into()),
        }
        Ok(numbers)
    }

    /// The number of a file system in handles: the natural one, or the one in handles of before, which `find`
    /// finds among those of which it is not known whose they were.
    pub(super) fn handle_number(&mut self, natural: u64, find: impl FnOnce(&[u64]) -> Option<u64>) -> u64 {
        if let Some(number) = self.claimed.get(&natural) {
            return *number;
        }
        if self.unclaimed.is_empty() {
            return natural;
        }
        let Some(device) = find(&self.unclaimed) else { return natural };
        self.unclaimed.retain(|one| *one != device);
        self.claimed.insert(natural, device);
        // If that fails, the next server finds the same.
        let _ = self.write_file();
        device
    }

    /// Notes what is exported.
    pub(super) fn record_root(&mut self, root: FileIdentity) -> io::Result<()> {
        if self.roots.last() == Some(&root) {
            return Ok(());
        }
        self.roots.retain(|one| *one != root);
        self.roots.push(root);
        let surplus = self.roots.len().saturating_sub(ROOTS_MAX);
        self.roots.drain(..surplus);
        self.write_file()
    }

    /// What was exported before.
    pub(super) fn former_roots(&self) -> Vec<FileIdentity> {
        self.roots.split_last().map_or(Vec::new(), |(_, former)| former.to_vec())
    }

    fn parse_line(&mut self, line: &str) {
        let words: Vec<_> = line.split(' ').map(|word| u64::from_str_radix(word, 16)).collect();
        match words[..] {
            [Ok(device)] => self.unclaimed.push(device),
            [Ok(device), Ok(natural)] => drop(self.claimed.insert(natural, device)),
            [Ok(file_system), Ok(inode), Ok(generation)] => {
                self.roots.push(FileIdentity { file_system, inode, generation: generation.cast_signed() });
            }
            _ => {}
        }
    }

    fn write_file(&self) -> io::Result<()> {
        let mut text = String::new();
        self.unclaimed.iter().try_for_each(|device| writeln!(text, "{device:x}")).expect("memory");
        let mut claimed = self.claimed.iter();
        claimed.try_for_each(|(natural, device)| writeln!(text, "{device:x} {natural:x}")).expect("memory");
        for FileIdentity { file_system, inode, generation } in &self.roots {
            writeln!(text, "{file_system:x} {inode:x} {:x}", generation.cast_unsigned()).expect("memory");
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(&self.directory, NEW_NAME, flags, Mode::RUSR | Mode::WUSR)?);
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        renameat(&self.directory, NEW_NAME, &self.directory, NAME)?;
        self.directory.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::super::tests::Scene;
    use super::super::*;

    /// Of a version that had device numbers in handles: the machine may have been restarted since, or not.
    #[test]
    fn handles_of_an_earlier_version_stay_valid() {
        let scene = Scene::new();
        let stat =
            |below: &str| file::stat(fs::File::open(scene.path("exported").join(below)).unwrap()).unwrap();
        let now = identity::device_number(&stat(""));
        for (device, file_systems) in [(now, &[now][..]), (0x7_0000_0003, &[0x7_0000_0003]), (now, &[now, 9])]
        {
            let _ = fs::remove_dir_all(scene.path("state"));
            let old = |device, below: &str| {
                let of = identity::FileSystem { number: device, has_volatile_inodes: false };
                let file = fs::File::open(scene.path("exported").join(below)).unwrap();
                FileIdentity::from_stat(of, &stat(below), &file, c"")
            };
            let ExportState { key, index, .. } =
                ExportState::open(Some(&scene.path("state")), Path::new("/exported")).unwrap();
            for &device in file_systems {
                for (parent, name, path) in [("", "below", "below"), ("below", "file", "below/file")] {
                    let location = FileLocation {
                        parent: old(device, parent),
                        name: name.as_bytes().into(),
                        handle: None,
                    };
                    index.insert(old(device, path), location);
                }
            }
            index.save().unwrap();
            drop(index);
            fs::remove_file(scene.path("state/file-systems")).unwrap();
            let known = HandleKey::new(key, old(device, ""), &[]).make_handle(old(device, "below/file"));
            for server in ["the first", "the next"] {
                let export = scene.open_export();
                let file =
                    export.file_by_handle(&known).unwrap_or_else(|status| panic!("{server}: {status:?}"));
                let attributes = file.attributes().unwrap();
                assert_eq!(attributes.file_system, device);
                assert_eq!(export.walk(&Caller::Server, Path::new("below/file")), Ok(known));
            }
        }
    }
}
