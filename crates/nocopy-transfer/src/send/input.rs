//! The input for a recording: a file, or a pipe, which may be empty for now.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use nocopy::integration::{Wakeup, poll};
use rustix::event::{PollFd, PollFlags};

use nocopy_report::Interrupt;

/// How long to wait for a pipe before checking for an interrupt; a signal ends the wait.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(in crate::send) struct Input {
    file: File,
    /// Whether more input may follow later.
    may_pause: bool,
    /// What ends a wait for input; `None` if reading does not wait.
    patience: Option<Interrupt>,
}

impl Input {
    pub(in crate::send) fn open(path: &Path, interrupt: &Interrupt) -> io::Result<Self> {
        let input = Self::open_at_once(path)?;
        Ok(Self { patience: Some(interrupt.clone()), ..input })
    }

    /// Opens it, to be read without waiting, as after [`Self::wait_no_more`].
    pub(in crate::send) fn open_at_once(path: &Path) -> io::Result<Self> {
        // A named pipe can be opened at once, even if no program writes to it.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        Self::of_file(file)
    }

    /// Standard input, to be read without waiting. Other processes share it, so it must not be made non-blocking; it is only read when it
    /// is readable.
    pub(in crate::send) fn of_standard_input() -> io::Result<Self> {
        Self::of_file(File::from(io::stdin().as_fd().try_clone_to_owned()?))
    }

    fn of_file(file: File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        Ok(Self { may_pause: !metadata.is_file(), file, patience: None })
    }

    /// The file, or the input itself if it is a pipe.
    pub(in crate::send) fn into_file(self) -> Result<File, Self> {
        if self.may_pause { Err(self) } else { Ok(self.file) }
    }

    /// From now on reading returns [`io::ErrorKind::WouldBlock`] if there is nothing yet, so that the sender can do other work.
    pub(in crate::send) fn wait_no_more(&mut self) {
        self.patience = None;
    }

    /// Whether there is data to read, or the end, possibly after waiting.
    fn is_ready(&self) -> io::Result<bool> {
        loop {
            let timeout = if self.patience.is_some() { LOOK_INTERVAL } else { Duration::ZERO };
            if poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(timeout))? == Wakeup::Ready {
                return Ok(true);
            }
            if self.patience.as_ref().is_none_or(Interrupt::came) {
                return Ok(false);
            }
        }
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.may_pause && !self.is_ready()? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.file.read(buffer)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if self.may_pause && !self.is_ready()? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.file.read_vectored(buffers)
    }
}

impl Seek for Input {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}
