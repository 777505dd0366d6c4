//! A file system that a kernel unpacks into memory before anything else: an archive in the format `newc` of
//! cpio.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cpio::newc::{self, Builder};

use super::Error;

/// The kinds of a file's mode.
const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_777;

pub(crate) struct RamdiskWriter {
    to: BufWriter<File>,
    /// Paths that were added already.
    paths: HashSet<PathBuf>,
}

impl RamdiskWriter {
    pub(crate) fn new(to: BufWriter<File>) -> Self {
        Self { to, paths: HashSet::new() }
    }

    /// Adds a file of the host, or the target of a link, at this path.
    pub(crate) fn add_file(&mut self, from: &Path, there: &Path) -> Result<(), Error> {
        let file = File::open(from).map_err(Error::for_file(from))?;
        let about = file.metadata().map_err(Error::for_file(from))?;
        let mode = FILE | about.permissions().mode() & 0o777;
        self.write(there, mode, about.len(), file).map_err(Error::for_file(from))
    }

    pub(crate) fn add_bytes(&mut self, there: &Path, bytes: &[u8]) -> Result<(), Error> {
        self.write(there, FILE | 0o644, bytes.len() as u64, bytes).map_err(Error::for_file(there))
    }

    /// Adds the wanted files below `from`; a directory that is not wanted is left out with everything in it.
    pub(crate) fn add_tree(
        &mut self,
        from: &Path,
        there: &Path,
        is_wanted: &dyn Fn(&Path) -> bool,
    ) -> Result<(), Error> {
        let mut waiting = vec![from.to_owned()];
        while let Some(directory) = waiting.pop() {
            for entry in fs::read_dir(&directory).map_err(Error::for_file(&directory))? {
                let entry = entry.map_err(Error::for_file(&directory))?;
                let path = entry.path();
                let below = path.strip_prefix(from).expect("it was found below");
                if !is_wanted(below) {
                    continue;
                }
                let kind = entry.file_type().map_err(Error::for_file(&path))?;
                if kind.is_dir() {
                    self.add_directory(&there.join(below)).map_err(Error::for_file(&path))?;
                    waiting.push(path);
                } else if kind.is_symlink() {
                    let to = fs::read_link(&path).map_err(Error::for_file(&path))?;
                    let to = to.as_os_str().as_bytes();
                    self.write(&there.join(below), LINK, to.len() as u64, to)
                        .map_err(Error::for_file(&path))?;
                } else {
                    self.add_file(&path, &there.join(below))?;
                }
            }
        }
        Ok(())
    }

    pub(crate) fn finish(self) -> io::Result<()> {
        newc::trailer(self.to)?.flush()
    }

    fn add_directory(&mut self, there: &Path) -> io::Result<()> {
        self.write(there, DIRECTORY, 0, io::empty())
    }

    fn write(&mut self, there: &Path, mode: u32, bytes: u64, content: impl Read) -> io::Result<()> {
        let name = there.strip_prefix("/").unwrap_or(there);
        // The kernel makes no directory by itself.
        if let Some(parent) = name.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            self.add_directory(parent)?;
        }
        if !self.paths.insert(name.to_owned()) {
            return Ok(());
        }
        let bytes = u32::try_from(bytes).map_err(|_| io::Error::other("too long for the archive"))?;
        let text = name.to_str().ok_or_else(|| io::Error::other("not a name in UTF-8"))?;
        let number = u32::try_from(self.paths.len()).expect("fewer files");
        let mut entry = Builder::new(text).ino(number).mode(mode).write(&mut self.to, bytes);
        io::copy(&mut content.take(bytes.into()), &mut entry)?;
        entry.finish().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names, modes and contents of the entries of the archive.
    fn entries(path: &Path) -> Vec<(String, u32, String)> {
        let mut all = Vec::new();
        let mut file = File::open(path).unwrap();
        loop {
            let mut reader = newc::Reader::new(file).unwrap();
            if reader.entry().is_trailer() {
                return all;
            }
            let (name, mode) = (reader.entry().name().to_owned(), reader.entry().mode());
            let mut content = String::new();
            reader.read_to_string(&mut content).unwrap();
            all.push((name, mode, content));
            file = reader.finish().unwrap();
        }
    }

    #[test]
    fn ramdisk_directories_are_added_once_before_their_files() {
        let directory = tempfile::tempdir().unwrap();
        let (tree, archive) = (directory.path().join("tree"), directory.path().join("archive"));
        fs::create_dir_all(tree.join("usr/share")).unwrap();
        fs::create_dir_all(tree.join("lib")).unwrap();
        fs::write(tree.join("lib/real"), "library").unwrap();
        fs::write(tree.join("usr/share/manual"), "long").unwrap();
        std::os::unix::fs::symlink("real", tree.join("lib/link")).unwrap();
        let mut ramdisk = RamdiskWriter::new(BufWriter::new(File::create(&archive).unwrap()));
        ramdisk.add_tree(&tree, Path::new("/"), &|below| !below.starts_with("usr/share")).unwrap();
        ramdisk.add_file(&tree.join("lib/link"), Path::new("/far/away/copy")).unwrap();
        ramdisk.add_bytes(Path::new("/far/away/bytes"), b"text").unwrap();
        ramdisk.finish().unwrap();
        let entries = entries(&archive);
        let mut names: Vec<&str> = entries.iter().map(|(name, ..)| name.as_str()).collect();
        for (index, name) in names.iter().enumerate() {
            let parent = Path::new(name).parent().unwrap().to_str().unwrap();
            assert!(parent.is_empty() || names[..index].contains(&parent), "{name}: {names:?}");
        }
        names.sort_unstable();
        assert_eq!(
            names,
            ["far", "far/away", "far/away/bytes", "far/away/copy", "lib", "lib/link", "lib/real", "usr"]
        );
        let content = |name: &str| {
            let (_, mode, content) = entries.iter().find(|(found, ..)| found == name).unwrap();
            (mode & 0o170_000, content.as_str())
        };
        assert_eq!(content("lib/link"), (0o120_000, "real"));
        assert_eq!(content("far/away/copy"), (FILE, "library"));
        assert_eq!(content("far/away"), (0o040_000, ""));
    }
}
