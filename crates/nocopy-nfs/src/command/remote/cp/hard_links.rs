//! Copies of files that have several names, so that the next name becomes one more name of the copy (a hard
//! link).

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::directory::OpenDirectory;
use super::record::SourceVersion;
use super::replaced_error;
use crate::wire::nfs3::Attributes;

/// Copies on this host, by the numbers that the server gives to their originals. Names of one file have its
/// size and times, too.
#[derive(Debug, Default)]
pub(super) struct HardLinks {
    copies: HashMap<(u64, SourceVersion), CopiedFile>,
}

#[derive(Debug)]
struct CopiedFile {
    path: PathBuf,
    id: (u64, u64),
}

pub(super) fn has_several_names(original: &Attributes) -> bool {
    original.links > 1
}

impl HardLinks {
    /// Numbers of another server mean other files.
    pub(super) fn clear(&mut self) {
        self.copies.clear();
    }

    pub(super) fn record_copy(&mut self, original: &Attributes, path: PathBuf, metadata: &Metadata) {
        if has_several_names(original) {
            self.copies
                .insert(original_key(original), CopiedFile { path, id: (metadata.dev(), metadata.ino()) });
        }
    }

    /// The copy of a file, below `root`; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be reached any more, or something else has its place.
    pub(super) fn open_copy(&self, original: &Attributes, root: &OpenDirectory) -> Option<io::Result<File>> {
        let copied = self.copies.get(&original_key(original)).filter(|_| has_several_names(original))?;
        Some(copied.reopen(root))
    }
}

impl CopiedFile {
    fn reopen(&self, root: &OpenDirectory) -> io::Result<File> {
        let below = self.path.strip_prefix(root.own_path()).map_err(|_| Errno::NOENT)?;
        let name = below.file_name().unwrap_or(OsStr::new("."));
        let file =
            root.open_descendant(below.parent().unwrap_or(Path::new("")))?.open_path_descriptor(name)?;
        let metadata = file.metadata()?;
        match (metadata.dev(), metadata.ino()) == self.id {
            true => Ok(file),
            false => Err(replaced_error()),
        }
    }
}

fn original_key(original: &Attributes) -> (u64, SourceVersion) {
    (original.file_system, SourceVersion::from(original))
}
