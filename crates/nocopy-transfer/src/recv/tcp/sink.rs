//! The output of streams: each at its offset in a file, or one after the other into a pipe.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nocopy::integration::poll;
use nocopy::tcp::MappedBytes;
use rustix::event::{PollFd, PollFlags};

use crate::Failure;
use crate::recv::output::{self, Opened};
use nocopy_report::output_file::PrivateFile;

/// How long to wait for the reader of a pipe before checking for an interrupt.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// All streams write to it at the same time.
#[derive(Debug)]
pub(super) struct Sink {
    opened: Opened,
    written_bytes: AtomicU64,
}

impl Sink {
    pub(super) fn open(path: &Path, making: PrivateFile) -> Result<Self, Failure> {
        let mut opened = Opened::open(path, making)?;
        if !opened.has_places
            && let Ok(own) = without_waiting(&opened.file)
        {
            opened.file = own;
        }
        Ok(Self { opened, written_bytes: AtomicU64::new(0) })
    }

    /// Whether streams may be written at the same time.
    pub(super) fn has_places(&self) -> bool {
        self.opened.has_places
    }

    /// Writes bytes at their offset or, without offsets, after those written last. Returns how many: all, unless it is asked to stop while
    /// the reader of the pipe does not read.
    pub(super) fn write(
        &self,
        offset: u64,
        bytes: MappedBytes<'_>,
        stop: &AtomicBool,
    ) -> Result<usize, Failure> {
        let written = self.write_all(offset, bytes, stop);
        let written = written.map_err(|source| output::failure(&self.opened.path, source))?;
        // Relaxed: it is read when all threads have ended.
        self.written_bytes.fetch_add(written as u64, Ordering::Relaxed);
        Ok(written)
    }

    fn write_all(&self, offset: u64, bytes: MappedBytes<'_>, stop: &AtomicBool) -> io::Result<usize> {
        let Opened { file, has_places, .. } = &self.opened;
        let mut written = 0;
        while written < bytes.len() {
            let rest = bytes.slice(written..bytes.len());
            let place = has_places.then_some(offset + written as u64);
            match rest.write_to(file, place) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(more) => written += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // Relaxed: no other memory depends on it.
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    wait_for_room(file)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(written)
    }

    /// Waits until all that was written is on the disk.
    pub(super) fn sync(&self) -> Result<(), Failure> {
        Ok(output::sync(&self.opened.path, &self.opened.file)?)
    }

    pub(super) fn words(&self) -> String {
        let bytes = self.written_bytes.load(Ordering::Relaxed);
        let how =
            if self.has_places() { "each where it belongs; what did not come is a hole" } else { "in order" };
        format!("{}: {bytes} bytes, {how}", self.opened.path.display())
    }
}

/// The same pipe, opened again so that writing never waits: the given descriptor is shared with other processes, and remains unchanged.
/// Other outputs are used as they are (a file has its own position, a socket cannot be opened).
fn without_waiting(pipe: &File) -> io::Result<File> {
    if !pipe.metadata()?.file_type().is_fifo() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path)
}

fn wait_for_room(file: &File) -> io::Result<()> {
    poll(&mut [PollFd::new(file, PollFlags::OUT)], Some(LOOK_INTERVAL)).map(drop)
}
