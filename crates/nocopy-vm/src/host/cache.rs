//! The lab's cache of fetched files. It survives a clean checkout, and may be deleted whenever no lab runs.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::Error;

/// The cache, held by one process at a time while something may be missing.
pub(crate) struct LockedCache {
    directory: PathBuf,
    lock: File,
}

impl LockedCache {
    /// Waits for another lab that is preparing.
    pub(crate) fn lock() -> Result<Self, Error> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::NotRoot);
        }
        let base = match (env::var_os("XDG_CACHE_HOME"), env::var_os("HOME")) {
            (Some(cache), _) if Path::new(&cache).is_absolute() => PathBuf::from(cache),
            (_, Some(home_directory)) => Path::new(&home_directory).join(".cache"),
            _ => return Err(Error::NoHome),
        };
        let directory = base.join("nocopy/vm");
        fs::create_dir_all(&directory).map_err(Error::for_file(&directory))?;
        let path = directory.join("lock");
        let lock = File::create(&path).map_err(Error::for_file(&path))?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|errno| Error::for_file(path)(errno.into()))?;
        Ok(Self { directory, lock })
    }

    /// Lets other labs prepare: this lab's files are complete, and files are only added.
    pub(crate) fn into_unlocked_path(self) -> PathBuf {
        drop(self.lock);
        self.directory
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The directory of that name: there complete, or made by `fill` in a temporary place and then renamed,
    /// so that a kill in the middle leaves nothing that looks complete.
    pub(crate) fn filled_directory(
        &self,
        name: &str,
        fill: impl FnOnce(&Path) -> Result<(), Error>,
    ) -> Result<PathBuf, Error> {
        let entry = self.directory.join(name);
        if entry.exists() {
            return Ok(entry);
        }
        let temporary = self.directory.join(format!("{name}.incomplete"));
        // Left by a lab that was killed: this process has the lock, so no other lab uses it.
        if temporary.exists() {
            fs::remove_dir_all(&temporary).map_err(Error::for_file(&temporary))?;
        }
        fs::create_dir_all(&temporary).map_err(Error::for_file(&temporary))?;
        fill(&temporary)?;
        fs::rename(&temporary, &entry).map_err(Error::for_file(&entry))?;
        Ok(entry)
    }
}
