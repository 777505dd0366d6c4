//! Where a release's files are.

use std::path::{Path, PathBuf};

use crate::step::repository_root;

/// The released files, below the root of the repository.
pub(super) const FILES: &str = "target/release-files";

pub(super) fn release_path(name: impl AsRef<Path>) -> PathBuf {
    repository_root().join(FILES).join(name)
}

/// The directory of one release, with what it needs to go on.
pub(super) fn work_directory(version: &str) -> PathBuf {
    repository_root().join(format!("target/release-{version}"))
}
