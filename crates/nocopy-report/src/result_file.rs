//! Files that results are written to.

use std::fs::{File, Metadata};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::{Failure, input_file, output_file};

/// An output file, opened before anything is measured, because two minutes of work must not end in
/// "permission denied". Its old content stays until there are new results.
#[derive(Debug)]
pub struct ResultFile {
    path: PathBuf,
    file: File,
}

impl ResultFile {
    /// Makes or opens the file (`-`: standard output); opens a file with content only if `force`. An
    /// interrupted command leaves an empty file.
    pub fn open(path: &Path, force: bool) -> Result<Self, Failure> {
        if input_file::is_standard_stream(path) {
            return Ok(Self { path: "standard output".into(), file: output_file::standard_output()? });
        }
        let may_overwrite = |existing: &Metadata| force || existing.len() == 0;
        let opened = output_file::open_with_options(path, File::options().write(true), may_overwrite, None);
        let (file, _) = opened.map_err(|source| Failure::output(path, source))?;
        Ok(Self { path: path.into(), file })
    }

    pub fn write(self, text: &str) -> Result<(), Failure> {
        self.truncated()?.append(text)
    }

    /// A file for lines that are written one by one.
    pub fn into_line_file(self) -> Result<LineFile, Failure> {
        Ok(LineFile(self.truncated()?))
    }

    /// Empties a regular file; a pipe or device stays unchanged.
    fn truncated(self) -> Result<Self, Failure> {
        let is_plain = self.file.metadata().is_ok_and(|metadata| metadata.is_file());
        match if is_plain { self.file.set_len(0) } else { Ok(()) } {
            Ok(()) => Ok(self),
            Err(source) => Err(Failure::Output { path: self.path, source }),
        }
    }

    fn append(&mut self, text: &str) -> Result<(), Failure> {
        self.file
            .write_all(text.as_bytes())
            .map_err(|source| Failure::Output { path: self.path.clone(), source })
    }
}

/// A file that is written line by line: [`LineFile::write`] returns when the kernel has the line.
#[derive(Debug)]
pub struct LineFile(ResultFile);

impl LineFile {
    /// Writes a line, to which the line feed is added.
    pub fn write(&mut self, line: &str) -> Result<(), Failure> {
        self.0.append(&format!("{line}\n"))
    }
}

/// The JSON of results, as written and printed.
pub fn json_text(results: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(results).map_err(|source| Failure::Print(source.into()))?;
    Ok(text + "\n")
}
