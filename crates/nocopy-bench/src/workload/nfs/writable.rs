//! A directory for clients to write to.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::export::Export;
use super::files;
use super::owner::change_owner;

pub(super) const FILE: &str = "written";

static NUMBER: AtomicUsize = AtomicUsize::new(0);

/// A directory in memory, so that servers are compared and not a disk; removed when dropped.
#[derive(Debug)]
pub(super) struct WritableDirectory {
    own: PathBuf,
}

impl WritableDirectory {
    pub(super) fn make() -> io::Result<Self> {
        let _readable = files::ReadableUmaskGuard::begin();
        let directory = files::find_memory_directory().ok_or(io::ErrorKind::StorageFull)?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let own = directory.join(format!("nocopy-bench-nfs-{}-{number}", std::process::id()));
        DirBuilder::new().mode(0o711).create(&own)?;
        let writable = Self { own };
        for name in ["exported", "scratch"] {
            let directory = writable.own.join(name);
            DirBuilder::new().mode(0o700).create(&directory)?;
            change_owner(&directory)?;
        }
        File::create(writable.exported_path(FILE))?;
        change_owner(&writable.exported_path(FILE))?;
        Ok(writable)
    }

    pub(super) fn export(&self) -> Export {
        let [directory, scratch] = ["exported", "scratch"].map(|name| self.own.join(name));
        Export { directory, scratch, is_writable: true }
    }

    pub(super) fn exported_path(&self, name: &str) -> PathBuf {
        self.own.join("exported").join(name)
    }
}

impl Drop for WritableDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.own); // what is left over does no harm
    }
}
