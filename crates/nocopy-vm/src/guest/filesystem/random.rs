//! Random operations on one file by two descriptors of one client and by another client, against the bytes
//! that it should have.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use fastrand::Rng;

use super::{CheckDirectory, CheckFailure, CheckResult, FilesystemCheck, random_pattern, read_piece};

pub(super) const ALL: &[FilesystemCheck] = &[FilesystemCheck {
    name: "random operations leave the bytes they should",
    run: check_random_operations,
}];

/// The longest that the file gets, and the longest operation.
const FILE_BYTES_MAX: usize = 256 << 10;
const BYTES_MAX: usize = 48 << 10;
const OPERATIONS: usize = 150;

fn check_random_operations(directory: &CheckDirectory) -> CheckResult {
    let count = if directory.is_long { 40 * OPERATIONS } else { OPERATIONS };
    let mut random = Rng::with_seed(directory.seed);
    let mut file = RandomOperations::new(directory)?;
    for number in 0..count {
        let what = file.run_random_operation(&mut random).map_err(|CheckFailure(why)| {
            CheckFailure(format!("operation {number} of --seed {}: {why}", directory.seed))
        })?;
        file.log.push(what);
    }
    file.check_everywhere()
}

struct RandomOperations<'a> {
    directory: &'a CheckDirectory,
    name: String,
    open: [File; 2],
    expected: Vec<u8>,
    /// The operations so far, printed on a failure.
    log: Vec<String>,
}

impl<'a> RandomOperations<'a> {
    fn new(directory: &'a CheckDirectory) -> Result<Self, CheckFailure> {
        let name = "file".to_owned();
        let first = OpenOptions::new().read(true).write(true).create_new(true).open(directory.path(&name))?;
        let second = open_read_write(directory, &name)?;
        Ok(Self { directory, name, open: [first, second], expected: Vec::new(), log: Vec::new() })
    }

    fn run_random_operation(&mut self, random: &mut Rng) -> Result<String, CheckFailure> {
        let which = random.usize(..2);
        let (at, bytes) = (random.usize(..FILE_BYTES_MAX - BYTES_MAX), random.usize(1..=BYTES_MAX));
        Ok(match random.u32(..20) {
            0..7 => {
                let piece = random_pattern(random.u64(..), bytes);
                self.open[which].write_all_at(&piece, at as u64)?;
                self.record_expected_bytes(at, &piece);
                format!("write {bytes} at {at} by {which}")
            }
            7..12 => {
                self.check_read(which, at, bytes)?;
                format!("read {bytes} at {at} by {which}")
            }
            12 => {
                self.open[which].set_len(at as u64)?;
                self.expected.resize(at, 0);
                format!("cut to {at} by {which}")
            }
            13 => {
                let piece = random_pattern(
                    random.u64(..),
                    bytes.min(FILE_BYTES_MAX - self.expected.len().min(FILE_BYTES_MAX)),
                );
                self.open[which].seek(SeekFrom::End(0))?;
                self.open[which].write_all(&piece)?;
                let end = self.expected.len();
                self.record_expected_bytes(end, &piece);
                format!("write {} at the end by {which}", piece.len())
            }
            14 => {
                if random.bool() {
                    self.open[which].sync_all()?
                } else {
                    self.open[which].sync_data()?
                }
                format!("sync by {which}")
            }
            15 => {
                self.open[which] = open_read_write(self.directory, &self.name)?;
                format!("reopen {which}")
            }
            16 => {
                let new = format!("file {}", self.log.len());
                fs::rename(self.directory.path(&self.name), self.directory.path(&new))?;
                self.name = new;
                "rename".to_owned()
            }
            17 => {
                self.check_everywhere()?;
                "look from everywhere".to_owned()
            }
            _ => {
                self.write_by_other_client(at, &random_pattern(random.u64(..), bytes))?;
                format!("write {bytes} at {at} by the other client")
            }
        })
    }

    fn record_expected_bytes(&mut self, at: usize, piece: &[u8]) {
        self.expected.resize(self.expected.len().max(at + piece.len()), 0);
        self.expected[at..at + piece.len()].copy_from_slice(piece);
    }

    fn check_read(&self, which: usize, at: usize, bytes: usize) -> Result<(), CheckFailure> {
        let found = read_piece(&self.open[which], at as u64, bytes)?;
        let end = self.expected.len().min(at + bytes);
        self.compare_bytes(&found, self.expected.get(at..end).unwrap_or_default(), at)
    }

    fn compare_bytes(&self, found: &[u8], expected: &[u8], from: usize) -> Result<(), CheckFailure> {
        if found == expected {
            return Ok(());
        }
        let differs = found.iter().zip(expected).position(|(one, other)| one != other);
        let before = &self.log[self.log.len().saturating_sub(12)..];
        Err(CheckFailure(format!(
            "read {} bytes at {from}, not {}; the first that differs is at {:?}; before: {}",
            found.len(),
            expected.len(),
            differs.map(|at| from + at),
            before.join(", ")
        )))
    }

    /// What a client wrote others see when it has closed the file and they open it: so both descriptors are
    /// opened anew.
    fn sync_both_descriptors(&mut self) -> Result<(), CheckFailure> {
        for file in &self.open {
            file.sync_all()?;
        }
        Ok(())
    }

    fn check_everywhere(&mut self) -> CheckResult {
        self.sync_both_descriptors()?;
        for path in [self.directory.path(&self.name), self.directory.path_at_other_client(&self.name)] {
            self.compare_bytes(&fs::read(path)?, &self.expected, 0)?;
        }
        Ok(())
    }

    fn write_by_other_client(&mut self, at: usize, piece: &[u8]) -> CheckResult {
        self.sync_both_descriptors()?;
        let there = OpenOptions::new().write(true).open(self.directory.path_at_other_client(&self.name))?;
        there.write_all_at(piece, at as u64)?;
        there.sync_all()?;
        drop(there);
        self.record_expected_bytes(at, piece);
        self.open =
            [open_read_write(self.directory, &self.name)?, open_read_write(self.directory, &self.name)?];
        Ok(())
    }
}

fn open_read_write(directory: &CheckDirectory, name: &str) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).open(directory.path(name))
}
