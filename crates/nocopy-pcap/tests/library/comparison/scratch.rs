//! A directory for files of programs, whichever user runs them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Removed after the test; kept if the test fails.
pub(crate) struct ScratchDirectory(PathBuf);

impl ScratchDirectory {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("nocopy-pcap-{name}-{}", std::process::id()));
        create_shared_directory(&path);
        Self(path)
    }

    /// A subdirectory in which every user may write.
    pub(crate) fn create_subdirectory(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        create_shared_directory(&path);
        path
    }

    /// A copy of the library that every user may read: the build directory may be in a private home
    /// directory.
    pub(crate) fn copy_of_library(&self) -> PathBuf {
        let copy = self.0.join("libpcap.so.0.8");
        if !copy.exists() {
            fs::copy(built_library(), &copy).unwrap();
            fs::set_permissions(&copy, Permissions::from_mode(0o755)).unwrap();
        }
        copy
    }
}

fn create_shared_directory(path: &Path) {
    fs::create_dir(path).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
}

/// Built with the tests, into the directory of this program or the one above.
fn built_library() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let found = own.ancestors().skip(1).take(2).map(|directory| directory.join("libnocopy_pcap.so"));
    found.into_iter().find(|path| path.exists()).expect("cargo builds the library with its tests")
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}
