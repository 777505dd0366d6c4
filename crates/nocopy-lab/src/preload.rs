//! The libraries that are preloaded: where they are, and their names in `LD_PRELOAD`.

use std::env;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::process::geteuid;

use crate::Error;

/// Directories relative to this program: the build's own, cargo's for dependencies, and installed ones.
const BESIDE: [&str; 5] = ["", "deps", "../lib/nocopy", "../lib64/nocopy", "../lib"];
const INSTALLED: [&str; 3] = ["/usr/local/lib/nocopy", "/usr/lib/nocopy", "/usr/lib64/nocopy"];

/// The libraries of this project that are preloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreloadLibrary {
    /// In front of libpcap.
    Pcap,
    /// In front of the C library: it joins datagrams to bursts.
    Sockets,
}

impl PreloadLibrary {
    /// The name of its file.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Pcap => "libnocopy_pcap.so",
            Self::Sockets => "libnocopy_sockets.so",
        }
    }

    /// The first file in one of the usual places.
    ///
    /// # Errors
    /// It is in none of them.
    pub fn find_library(self) -> Result<PathBuf, Error> {
        let own = env::current_exe().ok();
        let directory = own.as_deref().and_then(Path::parent);
        let beside = directory.into_iter().flat_map(|own| BESIDE.map(|place| own.join(place)));
        let places = beside.chain(INSTALLED.map(PathBuf::from)).map(|place| place.join(self.file_name()));
        let places: Vec<PathBuf> = places.collect();
        let found = places.iter().find(|place| place.is_file()).cloned();
        found.ok_or(Error::NoLibrary { file: self.file_name(), places })
    }

    /// Its name in `LD_PRELOAD`, found in the usual places.
    ///
    /// # Errors
    /// As of [`find_library`](Self::find_library) and [`preloadable_path`].
    pub fn ld_preload_path(self) -> Result<PathBuf, Error> {
        let path = self.find_library()?;
        preloadable_path(&path.canonicalize().unwrap_or(path))
    }
}

/// A name for this library in `LD_PRELOAD`: its path or, as a name ends there at a blank or a colon, that of
/// a link to it.
///
/// The link lies in a directory where only this user can write: `/run` for root, `XDG_RUNTIME_DIR` for
/// others. It stays there for programs that are started later, until the user's session or the system ends.
/// There is one for each path.
///
/// # Errors
/// There is no such directory, or the link cannot be made.
pub fn preloadable_path(library: &Path) -> Result<PathBuf, Error> {
    if !has_separators(library) {
        return Ok(library.to_owned());
    }
    create_link_to(library).map_err(|source| Error::LibraryPath { path: library.into(), source })
}

fn create_link_to(library: &Path) -> io::Result<PathBuf> {
    let directory = if geteuid().is_root() {
        PathBuf::from("/run")
    } else {
        env::var_os("XDG_RUNTIME_DIR").ok_or_else(|| io::Error::other("XDG_RUNTIME_DIR is not set"))?.into()
    };
    create_link_in(&directory, library)
}

fn create_link_in(directory: &Path, library: &Path) -> io::Result<PathBuf> {
    let metadata = directory.metadata()?;
    let others_may_write = Mode::from_raw_mode(metadata.mode()).intersects(Mode::WGRP | Mode::WOTH);
    if has_separators(directory) || metadata.uid() != geteuid().as_raw() || others_may_write {
        let shown = directory.display();
        return Err(io::Error::other(format!("{shown} has a blank or a colon, or others can write there")));
    }
    let mut hasher = DefaultHasher::new();
    library.hash(&mut hasher);
    let link = directory.join(format!("nocopy-{:016x}.so", hasher.finish()));
    match symlink(library, &link) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && link.read_link()? != library => {
            Err(error)
        }
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(link),
    }
}

/// Whether `LD_PRELOAD` would have more than one name in this path (ld.so(8)).
fn has_separators(path: &Path) -> bool {
    path.as_os_str().as_bytes().iter().any(|byte| b" :\t\n".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    struct TestDirectory(PathBuf);

    impl TestDirectory {
        fn new(name: &str) -> Self {
            let path = PathBuf::from(format!("/tmp/nocopy-lab-{}-{name}", std::process::id()));
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
            Self(path)
        }
    }

    impl Drop for TestDirectory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_path_without_separators_is_unchanged() {
        assert_eq!(preloadable_path(Path::new("/lib/x.so")).unwrap(), Path::new("/lib/x.so"));
    }

    #[test]
    fn a_path_with_a_blank_or_a_colon_gets_one_link() {
        let directory = TestDirectory::new("links");
        for path in ["/a b/x.so", "/a:b/x.so", "/a\tb/x.so"] {
            let library = Path::new(path);
            let link = create_link_in(&directory.0, library).unwrap();
            assert!(!has_separators(&link) && link.read_link().unwrap() == library, "{link:?}");
            assert_eq!(create_link_in(&directory.0, library).unwrap(), link);
        }
        assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 3);
    }

    #[test]
    fn a_link_to_another_file_is_not_used() {
        let directory = TestDirectory::new("other");
        let library = Path::new("/a b/x.so");
        let link = create_link_in(&directory.0, library).unwrap();
        for other in ["file", "link"] {
            fs::remove_file(&link).unwrap();
            match other {
                "file" => fs::write(&link, "").unwrap(),
                _ => symlink("/elsewhere.so", &link).unwrap(),
            }
            assert!(create_link_in(&directory.0, library).is_err(), "{other}");
        }
    }

    #[test]
    fn a_directory_where_others_can_write_is_not_used() {
        let directory = TestDirectory::new("others");
        let library = Path::new("/a b/x.so");
        for mode in [0o775, 0o757, 0o1777] {
            fs::set_permissions(&directory.0, Permissions::from_mode(mode)).unwrap();
            let error = create_link_in(&directory.0, library).unwrap_err().to_string();
            assert!(error.ends_with("others can write there"), "{mode:o}: {error}");
        }
        assert!(create_link_in(Path::new("/nowhere"), library).is_err());
    }
}
