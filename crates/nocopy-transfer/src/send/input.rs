//! Input that is sent: a file, or a pipe, which may be empty for now.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use nocopy::integration::{Wakeup, poll};
use rustix::event::{PollFd, PollFlags};

use nocopy_report::Interrupt;
use nocopy_report::input_file::{self, InputKind, shrunk_error};

/// How long to wait for a pipe before checking for an interrupt; a signal ends the wait.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(in crate::send) struct Input {
    file: File,
    /// If it is a file with a length: that, and where it is read. Of everything else more may follow later.
    position: Option<FilePosition>,
    /// What ends a wait for input; `None` if reading does not wait.
    interrupt: Option<Interrupt>,
}

#[derive(Debug, Clone, Copy)]
struct FilePosition {
    bytes: u64,
    at: u64,
}

impl Input {
    pub(in crate::send) fn open(path: &Path, interrupt: &Interrupt) -> io::Result<Self> {
        let input = Self::open_without_waiting(path)?;
        Ok(Self { interrupt: Some(interrupt.clone()), ..input })
    }

    /// Opens a file, or standard input for `-`, to be read without waiting, as after [`Self::stop_waiting`].
    pub(in crate::send) fn open_without_waiting(path: &Path) -> io::Result<Self> {
        let mut file = match input_file::is_standard_stream(path) {
            // Other processes share it, so it must not be made non-blocking; it is only read when it is
            // readable.
            true => input_file::open_input(path)?,
            // A named pipe can be opened at once, even if no program writes to it.
            false => OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?,
        };
        let position = match input_file::input_kind(&file)? {
            InputKind::Stored { bytes } => Some(FilePosition { bytes, at: file.stream_position()? }),
            InputKind::Stream => None,
        };
        Ok(Self { position, file, interrupt: None })
    }

    /// The file and its length, or the input itself if it has none.
    pub(in crate::send) fn into_file(self) -> Result<(File, u64), Self> {
        match self.position {
            Some(FilePosition { bytes, .. }) => Ok((self.file, bytes)),
            None => Err(self),
        }
    }

    /// From now on reading returns [`io::ErrorKind::WouldBlock`] if there is nothing yet, so that the sender
    /// can do other work.
    pub(in crate::send) fn stop_waiting(&mut self) {
        self.interrupt = None;
    }

    /// Whether there is data to read, or the end, possibly after waiting.
    fn wait_readable(&self) -> io::Result<bool> {
        loop {
            let timeout = if self.interrupt.is_some() { POLL_INTERVAL } else { Duration::ZERO };
            if poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(timeout))? == Wakeup::Ready {
                return Ok(true);
            }
            if self.interrupt.as_ref().is_none_or(Interrupt::was_interrupted) {
                return Ok(false);
            }
        }
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(buffer)])
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if self.position.is_none() && !self.wait_readable()? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = self.file.read_vectored(buffers)?;
        match &mut self.position {
            // A longer one is read to its end.
            Some(position) if count == 0 && position.at < position.bytes => Err(shrunk_error()),
            Some(position) => {
                position.at += count as u64;
                Ok(count)
            }
            None => Ok(count),
        }
    }
}

impl Seek for Input {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = self.file.seek(to)?;
        self.position = self.position.map(|stored| FilePosition { at, ..stored });
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_may_grow_but_not_shrink_while_it_is_read() {
        let path = std::env::temp_dir().join(format!("nocopy-send-input-{}", std::process::id()));
        let read_after = |change: fn(&File)| {
            fs::write(&path, [7; 1000]).unwrap();
            let file = OpenOptions::new().append(true).open(&path).unwrap();
            let mut input = Input::open_without_waiting(&path).unwrap();
            input.read_exact(&mut [0; 500]).unwrap();
            change(&file);
            let mut rest = Vec::new();
            let read = input.read_to_end(&mut rest).map_err(|error| error.kind());
            let again =
                input.rewind().and_then(|()| input.read_to_end(&mut rest)).map_err(|error| error.kind());
            (read, again)
        };
        let grown = read_after(|file| io::Write::write_all(&mut &*file, &[8; 100]).unwrap());
        let shrunk = read_after(|file| file.set_len(700).unwrap());
        fs::remove_file(&path).unwrap();
        assert_eq!(grown, (Ok(600), Ok(1100)));
        let refused = Err(io::ErrorKind::UnexpectedEof);
        assert_eq!(shrunk, (refused, refused));
    }

    #[test]
    fn a_file_with_a_wrong_length_is_read_to_its_end() {
        let path = Path::new("/sys/class/net/lo/address"); // reported with 4096 bytes
        let input = Input::open_without_waiting(path).unwrap();
        let mut text = String::new();
        let mut input = input.into_file().unwrap_err();
        input.read_to_string(&mut text).unwrap();
        assert_eq!(text, fs::read_to_string(path).unwrap());
    }
}
