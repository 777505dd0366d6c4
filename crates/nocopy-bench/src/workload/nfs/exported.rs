//! What a server is to serve.

use std::path::PathBuf;

/// What a server exports.
#[derive(Debug)]
pub(super) struct Exported {
    pub(super) directory: PathBuf,
    /// Where it keeps files of its own.
    pub(super) scratch: PathBuf,
    pub(super) is_writable: bool,
}
