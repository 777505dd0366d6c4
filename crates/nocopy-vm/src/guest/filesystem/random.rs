//! Random operations on one file by two descriptors of one client and by another client, against the bytes
//! that it should have.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use fastrand::Rng;

use super::{Broken, Check, Done, Ground, pattern, piece};

pub(super) const ALL: &[Check] =
    &[Check { name: "random operations leave the bytes they should", run: operations }];

/// The longest that the file gets, and the longest operation.
const FILE_BYTES_MAX: usize = 256 << 10;
const BYTES_MAX: usize = 48 << 10;
const OPERATIONS: usize = 150;

fn operations(ground: &Ground) -> Done {
    let count = if ground.is_long { 40 * OPERATIONS } else { OPERATIONS };
    let mut random = Rng::with_seed(ground.seed);
    let mut exercised = Exercised::new(ground)?;
    for number in 0..count {
        let what = exercised
            .step(&mut random)
            .map_err(|Broken(why)| Broken(format!("operation {number} of --seed {}: {why}", ground.seed)))?;
        exercised.log.push(what);
    }
    exercised.look_everywhere()
}

struct Exercised<'a> {
    ground: &'a Ground,
    name: String,
    open: [File; 2],
    expected: Vec<u8>,
    /// The operations so far, printed on a failure.
    log: Vec<String>,
}

impl<'a> Exercised<'a> {
    fn new(ground: &'a Ground) -> Result<Self, Broken> {
        let name = "file".to_owned();
        let first = OpenOptions::new().read(true).write(true).create_new(true).open(ground.path(&name))?;
        let second = open(ground, &name)?;
        Ok(Self { ground, name, open: [first, second], expected: Vec::new(), log: Vec::new() })
    }

    fn step(&mut self, random: &mut Rng) -> Result<String, Broken> {
        let which = random.usize(..2);
        let (at, bytes) = (random.usize(..FILE_BYTES_MAX - BYTES_MAX), random.usize(1..=BYTES_MAX));
        Ok(match random.u32(..20) {
            0..7 => {
                let piece = pattern(random.u64(..), bytes);
                self.open[which].write_all_at(&piece, at as u64)?;
                self.put(at, &piece);
                format!("write {bytes} at {at} by {which}")
            }
            7..12 => {
                self.read(which, at, bytes)?;
                format!("read {bytes} at {at} by {which}")
            }
            12 => {
                self.open[which].set_len(at as u64)?;
                self.expected.resize(at, 0);
                format!("cut to {at} by {which}")
            }
            13 => {
                let piece = pattern(
                    random.u64(..),
                    bytes.min(FILE_BYTES_MAX - self.expected.len().min(FILE_BYTES_MAX)),
                );
                self.open[which].seek(SeekFrom::End(0))?;
                self.open[which].write_all(&piece)?;
                let end = self.expected.len();
                self.put(end, &piece);
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
                self.open[which] = open(self.ground, &self.name)?;
                format!("reopen {which}")
            }
            16 => {
                let new = format!("file {}", self.log.len());
                fs::rename(self.ground.path(&self.name), self.ground.path(&new))?;
                self.name = new;
                "rename".to_owned()
            }
            17 => {
                self.look_everywhere()?;
                "look from everywhere".to_owned()
            }
            _ => {
                self.write_there(at, &pattern(random.u64(..), bytes))?;
                format!("write {bytes} at {at} by the other client")
            }
        })
    }

    fn put(&mut self, at: usize, piece: &[u8]) {
        self.expected.resize(self.expected.len().max(at + piece.len()), 0);
        self.expected[at..at + piece.len()].copy_from_slice(piece);
    }

    fn read(&self, which: usize, at: usize, bytes: usize) -> Result<(), Broken> {
        let found = piece(&self.open[which], at as u64, bytes)?;
        let end = self.expected.len().min(at + bytes);
        self.same(&found, self.expected.get(at..end).unwrap_or_default(), at)
    }

    fn same(&self, found: &[u8], expected: &[u8], from: usize) -> Result<(), Broken> {
        if found == expected {
            return Ok(());
        }
        let differs = found.iter().zip(expected).position(|(one, other)| one != other);
        let before = &self.log[self.log.len().saturating_sub(12)..];
        Err(Broken(format!(
            "read {} bytes at {from}, not {}; the first that differs is at {:?}; before: {}",
            found.len(),
            expected.len(),
            differs.map(|at| from + at),
            before.join(", ")
        )))
    }

    /// What a client wrote others see when it has closed the file and they open it: so both descriptors are
    /// opened anew.
    fn settle(&mut self) -> Result<(), Broken> {
        for file in &self.open {
            file.sync_all()?;
        }
        Ok(())
    }

    fn look_everywhere(&mut self) -> Done {
        self.settle()?;
        for path in [self.ground.path(&self.name), self.ground.seen_there(&self.name)] {
            self.same(&fs::read(path)?, &self.expected, 0)?;
        }
        Ok(())
    }

    fn write_there(&mut self, at: usize, piece: &[u8]) -> Done {
        self.settle()?;
        let there = OpenOptions::new().write(true).open(self.ground.seen_there(&self.name))?;
        there.write_all_at(piece, at as u64)?;
        there.sync_all()?;
        drop(there);
        self.put(at, piece);
        self.open = [open(self.ground, &self.name)?, open(self.ground, &self.name)?];
        Ok(())
    }
}

fn open(ground: &Ground, name: &str) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).open(ground.path(name))
}
