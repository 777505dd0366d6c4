//! The files that a server is to serve.

use std::path::PathBuf;

#[derive(Debug)]
pub(super) struct Export {
    pub(super) directory: PathBuf,
    /// A directory for the server's own files.
    pub(super) scratch: PathBuf,
    pub(super) is_writable: bool,
}
