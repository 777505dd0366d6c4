//! Compares a copy with its original.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nocopy_report::input_file::content_ends_at;

use super::super::{Failure, cat};
use super::{CopyContext, local_failure};
use crate::client::Client;
use crate::wire::nfs3::FileHandle;

/// Reads the server's file, and compares it with the one of this host.
pub(super) fn compare(
    context: &mut CopyContext<'_>,
    client: &mut Client,
    theirs: FileHandle,
    (file, path): (&File, &Path),
) -> Result<(), Failure> {
    let length = file.metadata().map_err(|error| local_failure(path, error))?.len();
    let (mut at, mut mine) = (0, Vec::new());
    let differs = |at: u64| Failure::Differs { path: super::local_path::to_text(path), at };
    let pool = context.pool.clone();
    cat::read_to_end(client, theirs, 0..length, &pool, |theirs| {
        mine.resize(theirs.len(), 0);
        // If the local file is shorter, they differ from its end on.
        file.read_exact_at(&mut mine, at).map_err(|_| differs(length.max(at)))?;
        if let Some(place) = mine.iter().zip(theirs).position(|(mine, theirs)| mine != theirs) {
            return Err(differs(at + place as u64));
        }
        at += theirs.len() as u64;
        if context.interrupt.was_interrupted() { Err(Failure::Interrupted) } else { Ok(()) }
    })?;
    context.counts.verified_bytes += at;
    if content_ends_at(file, at) { Ok(()) } else { Err(differs(at)) }
}
