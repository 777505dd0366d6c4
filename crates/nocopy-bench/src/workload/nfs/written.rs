//! A directory for clients to write to.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::exported::Exported;
use super::files;
use super::owner::give_away;

pub(super) const FILE: &str = "written";

static NUMBER: AtomicUsize = AtomicUsize::new(0);

/// A directory in memory, so that servers are compared and not a disk; removed when dropped.
#[derive(Debug)]
pub(super) struct Written {
    own: PathBuf,
}

impl Written {
    pub(super) fn make() -> io::Result<Self> {
        let _readable = files::ReadableByAll::begin();
        let directory = files::memory().ok_or(io::ErrorKind::StorageFull)?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let own = directory.join(format!("nocopy-bench-nfs-{}-{number}", std::process::id()));
        DirBuilder::new().mode(0o711).create(&own)?;
        let written = Self { own };
        for name in ["exported", "scratch"] {
            let made = written.own.join(name);
            DirBuilder::new().mode(0o700).create(&made)?;
            give_away(&made)?;
        }
        File::create(written.path(FILE))?;
        give_away(&written.path(FILE))?;
        Ok(written)
    }

    pub(super) fn exported(&self) -> Exported {
        let [directory, scratch] = ["exported", "scratch"].map(|name| self.own.join(name));
        Exported { directory, scratch, is_writable: true }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.own.join("exported").join(name)
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.own); // what is left over does no harm
    }
}
