//! Files that results are written to.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::Failure;

/// An output file, opened before anything is measured: two minutes of work must not end in "permission denied". What it holds stays until
/// there is something to take its place.
#[derive(Debug)]
pub(crate) struct ResultFile {
    path: PathBuf,
    file: File,
}

impl ResultFile {
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        let opened = File::options().write(true).create(true).truncate(false).open(path);
        let file = opened.map_err(|source| Failure::Output { path: path.into(), source })?;
        Ok(Self { path: path.into(), file })
    }

    pub(crate) fn write(mut self, text: &str) -> Result<(), Failure> {
        let is_plain = self.file.metadata().is_ok_and(|metadata| metadata.is_file());
        let emptied = if is_plain { self.file.set_len(0) } else { Ok(()) };
        emptied
            .and_then(|()| self.file.write_all(text.as_bytes()))
            .map_err(|source| Failure::Output { path: self.path, source })
    }

    pub(crate) fn write_json(self, results: &impl Serialize) -> Result<(), Failure> {
        self.write(&json(results)?)
    }
}

/// As it is written, and printed.
pub(crate) fn json(results: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(results).map_err(|source| Failure::Print(source.into()))?;
    Ok(text + "\n")
}
