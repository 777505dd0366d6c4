//! The files of a recording: their names, when the next begins, which are kept.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nocopy::integration::disk::Writer;
use nocopy_report::boot_clock::BootInstant;
use serde::Serialize;

use crate::Failure;
use crate::arguments::RecordArguments;
use nocopy_report::Interrupt;
use nocopy_report::output_file::{CreateOptions, OutputFile};

/// The most files that are remembered by name, so that a recording which rotates for ever does not grow for
/// ever; more only if all of them are to be deleted later.
const LISTED_MAX: usize = 1000;

#[derive(Debug, Clone)]
pub(super) struct RecordedFile {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    pub(super) packets: u64,
}

/// Totals of files whose names are not remembered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct FileTotals {
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) packets: u64,
}

impl FileTotals {
    fn add_file(&mut self, file: &RecordedFile) {
        self.files += 1;
        self.bytes += file.bytes;
        self.packets += file.packets;
    }
}

#[derive(Debug, Clone, Copy)]
struct RotationLimits {
    bytes: Option<u64>,
    time: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct RecordingFiles {
    output: PathBuf,
    creation: CreateOptions,
    rotation: RotationLimits,
    files_max: Option<u32>,
    opened_count: u64,
    /// The latest files; the last one is being written.
    pub(super) listed: VecDeque<RecordedFile>,
    pub(super) deleted: FileTotals,
    /// Older files that were not deleted: deleting was not requested, or failed.
    pub(super) earlier: FileTotals,
    /// The file that could not be made, if one could not.
    failed_path: Option<PathBuf>,
    /// When the current file was begun. The time in which the machine is suspended counts, as it does for who
    /// looks for the file of an hour.
    started: BootInstant,
    /// What ends the wait for the reader of a pipe.
    interrupt: Interrupt,
}

impl RecordingFiles {
    pub(super) fn new(arguments: &RecordArguments, interrupt: &Interrupt) -> Self {
        let creation = CreateOptions { force: arguments.force, permissions: arguments.permissions };
        let rotation = RotationLimits { bytes: arguments.rotate_size, time: arguments.rotate_time };
        Self::with_rotation(arguments.output.clone(), creation, rotation, arguments.files, interrupt.clone())
    }

    /// No file has been written yet.
    fn with_rotation(
        output: PathBuf,
        creation: CreateOptions,
        rotation: RotationLimits,
        files_max: Option<u32>,
        interrupt: Interrupt,
    ) -> Self {
        Self {
            output,
            creation,
            rotation,
            files_max,
            opened_count: 0,
            listed: VecDeque::new(),
            deleted: FileTotals::default(),
            earlier: FileTotals::default(),
            failed_path: None,
            started: BootInstant::now(),
            interrupt,
        }
    }

    pub(super) fn open_first_file(&mut self, now_ns: u64) -> Result<Writer, Failure> {
        let path = self.next_path(now_ns);
        let OutputFile { path, file, is_seekable, may_block } =
            OutputFile::open(&path, self.creation, &mut read_and_write_options(), &self.interrupt)?;
        let writer = if is_seekable { Writer::new(file) } else { Ok(Writer::for_stream(file, may_block)) };
        let writer = writer.map_err(|source| nocopy_report::Failure::output(&path, source))?;
        self.begin_file(path);
        Ok(writer)
    }

    /// Continues with the next file, and deletes the oldest if there are too many.
    pub(super) fn open_next_file(&mut self, writer: &mut Writer, now_ns: u64) -> io::Result<()> {
        let path = self.next_path(now_ns);
        let opened = self.creation.open(&path, &mut read_and_write_options(), &self.interrupt);
        if let Err(error) = opened.and_then(|file| writer.next_file(file)) {
            self.failed_path = Some(path);
            return Err(error);
        }
        self.begin_file(path);
        Ok(())
    }

    fn begin_file(&mut self, path: PathBuf) {
        self.opened_count += 1;
        self.listed.push_back(RecordedFile { path, bytes: 0, packets: 0 });
        self.started = BootInstant::now();
        let listed_max = self.files_max.map_or(LISTED_MAX, |files_max| files_max as usize);
        while self.listed.len() > listed_max {
            let oldest = self.listed.pop_front().expect("more than none");
            match self.files_max.is_some() && remove_if_exists(&oldest.path) {
                true => self.deleted.add_file(&oldest),
                false => self.earlier.add_file(&oldest),
            }
        }
    }

    /// Whether packets that were taken then belong into the next file. Their own times are of clocks that may
    /// be set meanwhile.
    pub(super) fn must_rotate(&self, bytes: u64, more: u64, taken: BootInstant) -> bool {
        let too_large = self.rotation.bytes.is_some_and(|max| bytes + more > max);
        let age = taken.since(self.started);
        too_large || self.rotation.time.is_some_and(|max| age >= max)
    }

    pub(super) fn current_file(&mut self) -> &mut RecordedFile {
        self.listed.back_mut().expect("the first is opened before anything is written")
    }

    pub(super) fn current_path(&self) -> &Path {
        let last = self.listed.back().map_or(&self.output, |file| &file.path);
        self.failed_path.as_ref().unwrap_or(last)
    }

    /// The output's name, with number and time before its extension if there may be several.
    fn next_path(&self, now_ns: u64) -> PathBuf {
        if self.rotation.bytes.is_none() && self.rotation.time.is_none() {
            return self.output.clone();
        }
        let number = self.opened_count + 1;
        let mut name = self.output.file_stem().unwrap_or_default().to_owned();
        name.push(format!("-{number:05}-{}", utc_timestamp(now_ns / 1_000_000_000)));
        if let Some(extension) = self.output.extension() {
            name.push(".");
            name.push(extension);
        }
        self.output.with_file_name(name)
    }
}

/// How a file is opened: it is read again if a killed recording is cut back.
fn read_and_write_options() -> OpenOptions {
    let mut options = File::options();
    options.read(true).write(true);
    options
}

/// Deletes a file, and returns whether it no longer exists: another program may have deleted it before. A
/// failure does not end the recording, but is in the summary.
fn remove_if_exists(path: &Path) -> bool {
    std::fs::remove_file(path).map_or_else(|error| error.kind() == io::ErrorKind::NotFound, |()| true)
}

/// A time in UTC, such as `20261121T120530Z`.
fn utc_timestamp(seconds: u64) -> String {
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
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    /// Files that do not exist, so that deleting each succeeds.
    fn files_in_missing_directory(files_max: Option<u32>) -> RecordingFiles {
        let creation = CreateOptions { force: false, permissions: None };
        RecordingFiles::with_rotation(
            "/nonexistent/out.pcapng".into(),
            creation,
            RotationLimits { bytes: Some(1 << 20), time: None },
            files_max,
            Interrupt::catch().unwrap(),
        )
    }

    #[test]
    fn old_files_of_a_long_recording_are_counted_and_not_listed() {
        for (files_max, listed_count) in [(None, LISTED_MAX), (Some(2), 2), (Some(3000), 3000)] {
            let mut files = files_in_missing_directory(files_max);
            for _ in 0..5000 {
                files.begin_file(files.next_path(0));
                (files.current_file().bytes, files.current_file().packets) = (100, 3);
            }
            assert_eq!(files.listed.len(), listed_count);
            assert!(
                files.current_file().path.ends_with("out-05000-19700101T000000Z.pcapng"),
                "{:?}",
                files.current_file()
            );
            let count = 5000 - listed_count as u64;
            let counted = FileTotals { files: count, bytes: 100 * count, packets: 3 * count };
            let (deleted, earlier) = if files_max.is_some() {
                (counted, FileTotals::default())
            } else {
                (FileTotals::default(), counted)
            };
            assert_eq!((files.deleted, files.earlier), (deleted, earlier));
        }
    }

    #[test]
    fn file_names_that_are_not_utf8_are_unchanged() {
        let path = |name: &[u8]| PathBuf::from(OsStr::from_bytes(name));
        let mut files = files_in_missing_directory(None);
        files.output = path(b"/nonexistent/caf\xe9.\xff");
        assert_eq!(files.next_path(0), path(b"/nonexistent/caf\xe9-00001-19700101T000000Z.\xff"));
    }

    #[test]
    fn a_file_that_cannot_be_deleted_counts_as_earlier() {
        let mut files = files_in_missing_directory(Some(1));
        files.begin_file("/".into());
        files.begin_file("/nonexistent/next".into());
        assert_eq!((files.deleted.files, files.earlier.files), (0, 1));
    }

    #[test]
    fn rotation_by_time_ignores_the_wall_clock() {
        const HOUR: Duration = Duration::from_secs(3600);
        for now_ns in [0, 1 << 63] {
            let mut files = files_in_missing_directory(None);
            files.rotation = RotationLimits { bytes: None, time: Some(HOUR) };
            files.begin_file(files.next_path(now_ns));
            assert!(!files.must_rotate(0, 1, files.started) && files.must_rotate(0, 1, files.started + HOUR));
        }
    }

    #[test]
    fn timestamps_in_file_names_follow_the_calendar() {
        assert_eq!(utc_timestamp(0), "19700101T000000Z");
        assert_eq!(utc_timestamp(951_782_399), "20000228T235959Z");
        assert_eq!(utc_timestamp(951_782_400), "20000229T000000Z");
        assert_eq!(utc_timestamp(1_795_262_730), "20261121T120530Z");
        assert_eq!(utc_timestamp(4_107_542_399), "21000228T235959Z");
        assert_eq!(utc_timestamp(4_107_542_400), "21000301T000000Z");
    }
}
