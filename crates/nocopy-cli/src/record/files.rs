//! The files of a recording: their names, when the next begins, which are kept.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nocopy::disk::Writer;

use crate::Failure;
use crate::arguments::RecordArguments;

/// A file that is written, or was.
#[derive(Debug, Clone)]
pub(super) struct Recorded {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    pub(super) packets: u64,
    /// Deleted in favour of newer ones.
    pub(super) deleted: bool,
}

/// When a file is full.
#[derive(Debug, Clone, Copy)]
struct Rotation {
    bytes: Option<u64>,
    time: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct Files {
    output: PathBuf,
    overwrite: bool,
    rotation: Rotation,
    keep: Option<u32>,
    /// Those that are not deleted, the one being written last.
    kept: VecDeque<usize>,
    pub(super) all: Vec<Recorded>,
    /// The next, if it could not be made.
    refused: Option<PathBuf>,
    /// When this file was begun.
    begun_ns: u64,
}

impl Files {
    pub(super) fn new(arguments: &RecordArguments) -> Self {
        Self {
            output: arguments.output.clone(),
            overwrite: arguments.force,
            rotation: Rotation { bytes: arguments.rotate_size, time: arguments.rotate_time },
            keep: arguments.files,
            kept: VecDeque::new(),
            all: Vec::new(),
            refused: None,
            begun_ns: 0,
        }
    }

    /// Opens the first.
    pub(super) fn first(&mut self, now_ns: u64) -> Result<Writer, Failure> {
        let path = self.name(now_ns);
        let writer = Writer::create(&path, self.overwrite).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => Failure::Exists { path: path.clone() },
            _ => Failure::Output { path: path.clone(), source },
        })?;
        self.begin(path, now_ns);
        Ok(writer)
    }

    /// Goes on with the next, and deletes the one that is too many.
    pub(super) fn next(&mut self, writer: &mut Writer, now_ns: u64) -> io::Result<()> {
        let path = self.name(now_ns);
        if let Err(error) = writer.next_file(&path, self.overwrite) {
            self.refused = Some(path);
            return Err(error);
        }
        self.begin(path, now_ns);
        while self.keep.is_some_and(|keep| self.kept.len() > keep as usize) {
            let oldest = self.kept.pop_front().expect("more than none");
            // Somebody may have taken it away. One that stays is no reason to end the recording: the summary tells.
            let removed = std::fs::remove_file(&self.all[oldest].path);
            let is_gone = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
            self.all[oldest].deleted = removed.map_or_else(is_gone, |()| true);
        }
        Ok(())
    }

    fn begin(&mut self, path: PathBuf, now_ns: u64) {
        self.kept.push_back(self.all.len());
        self.all.push(Recorded { path, bytes: 0, packets: 0, deleted: false });
        self.begun_ns = now_ns;
    }

    /// Whether what comes belongs into the next file.
    pub(super) fn is_full(&self, bytes: u64, more: u64, time_ns: u64) -> bool {
        let too_large = self.rotation.bytes.is_some_and(|most| bytes + more > most);
        let age_ns = u128::from(time_ns.saturating_sub(self.begun_ns));
        too_large || self.rotation.time.is_some_and(|most| age_ns >= most.as_nanos())
    }

    /// The last one written.
    pub(super) fn current(&mut self) -> &mut Recorded {
        self.all.last_mut().expect("the first is opened before anything is written")
    }

    /// The one that an error is about.
    pub(super) fn path(&self) -> &Path {
        let last = self.all.last().map_or(&self.output, |file| &file.path);
        self.refused.as_ref().unwrap_or(last)
    }

    /// The output's name, with number and time in front of its extension where there may be several.
    fn name(&self, now_ns: u64) -> PathBuf {
        if self.rotation.bytes.is_none() && self.rotation.time.is_none() {
            return self.output.clone();
        }
        let stem = self.output.file_stem().unwrap_or_default().to_string_lossy();
        let number = self.all.len() + 1;
        let mut name = format!("{stem}-{number:05}-{}", stamp(now_ns / 1_000_000_000));
        if let Some(extension) = self.output.extension() {
            name = format!("{name}.{}", extension.to_string_lossy());
        }
        self.output.with_file_name(name)
    }
}

/// A time in UTC, such as `20261121T120530Z`.
fn stamp(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days are counted from 1 March of year 0, so that a leap day is the last of its year.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_of_the_calendar() {
        assert_eq!(stamp(0), "19700101T000000Z");
        assert_eq!(stamp(951_782_399), "20000228T235959Z");
        assert_eq!(stamp(951_782_400), "20000229T000000Z");
        assert_eq!(stamp(1_795_262_730), "20261121T120530Z");
        assert_eq!(stamp(4_107_542_399), "21000228T235959Z");
        assert_eq!(stamp(4_107_542_400), "21000301T000000Z");
    }
}
