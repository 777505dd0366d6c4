//! The results as JSON.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::Failure;
use crate::bench::result::Report;

/// An output file, opened before anything is measured: two minutes of work must not end in "permission denied".
#[derive(Debug)]
pub(crate) struct JsonFile {
    path: PathBuf,
    file: File,
}

impl JsonFile {
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        let file = File::create(path).map_err(|source| Failure::Output { path: path.into(), source })?;
        Ok(Self { path: path.into(), file })
    }

    pub(crate) fn write(self, report: &Report) -> Result<(), Failure> {
        let mut output = BufWriter::new(self.file);
        serde_json::to_writer_pretty(&mut output, report)
            .map_err(std::io::Error::from)
            .and_then(|()| output.write_all(b"\n"))
            .and_then(|()| output.flush())
            .map_err(|source| Failure::Output { path: self.path, source })
    }
}
