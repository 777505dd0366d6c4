//! Files that results are written to.

use std::fs::{File, Metadata};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::{Failure, output_file};

/// An output file, opened before anything is measured: two minutes of work must not end in "permission denied". What it holds stays until
/// there is something to take its place.
#[derive(Debug)]
pub struct ResultFile {
    path: PathBuf,
    file: File,
}

impl ResultFile {
    /// Makes or opens it; one that has something in it only if `force`. An empty one is what an interrupted command leaves behind.
    pub fn open(path: &Path, force: bool) -> Result<Self, Failure> {
        let may_overwrite = |existing: &Metadata| force || existing.len() == 0;
        let opened = output_file::open(path, File::options().write(true), may_overwrite);
        let (file, _) = opened.map_err(|source| Failure::output(path, source))?;
        Ok(Self { path: path.into(), file })
    }

    pub fn write(mut self, text: &str) -> Result<(), Failure> {
        let is_plain = self.file.metadata().is_ok_and(|metadata| metadata.is_file());
        let emptied = if is_plain { self.file.set_len(0) } else { Ok(()) };
        emptied
            .and_then(|()| self.file.write_all(text.as_bytes()))
            .map_err(|source| Failure::Output { path: self.path, source })
    }

    pub fn write_json(self, results: &impl Serialize) -> Result<(), Failure> {
        self.write(&json(results)?)
    }
}

/// As it is written, and printed.
pub fn json(results: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(results).map_err(|source| Failure::Print(source.into()))?;
    Ok(text + "\n")
}
