//! The output: a file, which is written by offset, or a pipe, which is written in order.

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::path::Path;
use std::time::Duration;

use nocopy::integration::{Wakeup, poll};
use rustix::event::{PollFd, PollFlags};
use rustix::io::pwritev;

use nocopy_report::output_file::{CreateOptions, OutputFile};
use nocopy_report::{Failure, Interrupt};

/// How long to wait for the reader of a pipe before checking for an interrupt.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Written at a time to an output that may wait for its reader: a pipe that can be written to has room for so
/// much.
pub(super) const PIPE_WRITE_BYTES: usize = 4096;

pub(super) fn open_output(
    path: &Path,
    making: CreateOptions,
    interrupt: &Interrupt,
) -> Result<OutputFile, Failure> {
    OutputFile::open(path, making, File::options().write(true), interrupt)
}

/// Waits until a file is on the disk: until then, the disk or the server of the file system may still refuse
/// the bytes. Pipes have no disk, and neither have files of the kernel.
pub(super) fn sync_to_disk(path: &Path, file: &File) -> Result<(), Failure> {
    let synced = match file.metadata() {
        Ok(about) if about.is_file() => file.sync_data(),
        _ => Ok(()),
    };
    match synced {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        synced => synced.map_err(|source| output_failure(path, source)),
    }
}

/// Waits until a pipe has room, but not for long; returns whether it may have.
pub(super) fn wait_for_pipe_room(file: &File) -> io::Result<bool> {
    Ok(poll(&mut [PollFd::new(file, PollFlags::OUT)], Some(POLL_INTERVAL))? == Wakeup::Ready)
}

/// An output that is written in order. The user may interrupt it while its reader does not read.
#[derive(Debug)]
pub(super) struct InterruptibleWriter {
    file: File,
    /// Whether writing may wait for the reader.
    may_wait: bool,
    interrupt: Interrupt,
}

impl InterruptibleWriter {
    pub(super) fn new(file: File, may_wait: bool, interrupt: Interrupt) -> Self {
        Self { file, may_wait, interrupt }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }
}

impl Write for InterruptibleWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let most = if self.may_wait { PIPE_WRITE_BYTES } else { usize::MAX };
        let mut has_room = !self.may_wait || wait_for_pipe_room(&self.file)?;
        loop {
            if !has_room && self.interrupt.was_interrupted() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "its reader does not read"));
            }
            if has_room {
                match self.file.write(&bytes[..bytes.len().min(most)]) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    written => return written,
                }
            }
            has_room = wait_for_pipe_room(&self.file)?;
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(super) fn output_failure(path: &Path, source: io::Error) -> Failure {
    match source.kind() {
        // `| head`: the reader has closed the pipe.
        io::ErrorKind::BrokenPipe => Failure::Print(source),
        _ => Failure::Output { path: path.into(), source },
    }
}

pub(super) fn write_all_at(file: &File, mut slices: &mut [IoSlice], mut offset: u64) -> io::Result<()> {
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match pwritev(file, slices, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                offset += written as u64;
                IoSlice::advance_slices(&mut slices, written);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
