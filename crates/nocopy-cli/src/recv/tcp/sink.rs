//! Where streams are written: each at its place in a file, or one behind the other down a pipe.

use std::io::{self, IoSlice, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Failure;
use crate::recv::output::{self, Opened, write_all_at};

/// Written by all streams at once.
#[derive(Debug)]
pub(super) struct Sink {
    opened: Opened,
    written_bytes: AtomicU64,
}

impl Sink {
    pub(super) fn open(path: &Path, force: bool) -> Result<Self, Failure> {
        Ok(Self { opened: Opened::open(path, force)?, written_bytes: AtomicU64::new(0) })
    }

    /// Whether streams may be written at the same time.
    pub(super) fn has_places(&self) -> bool {
        self.opened.has_places
    }

    /// Writes what belongs there; without places, behind what was written last.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        let Opened { path, file, has_places } = &self.opened;
        let written = match has_places {
            true => write_all_at(file, &mut [IoSlice::new(bytes)], offset),
            false => write_all(file, bytes),
        };
        written.map_err(|source| output::failure(path, source))?;
        // Relaxed: it is told when all threads have ended.
        self.written_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn words(&self) -> String {
        let bytes = self.written_bytes.load(Ordering::Relaxed);
        let how =
            if self.has_places() { "each where it belongs; what did not come is a hole" } else { "in order" };
        format!("{}: {bytes} bytes, {how}", self.opened.path.display())
    }
}

/// Also down a pipe that does not wait, which is somebody else's choice.
fn write_all(mut file: &std::fs::File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait_for_room(file)?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn wait_for_room(file: &std::fs::File) -> io::Result<()> {
    use rustix::event::{PollFd, PollFlags, poll};
    match poll(&mut [PollFd::new(file, PollFlags::OUT)], None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
