//! The output of streams: each at its offset in a file, or one after the other into a pipe.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nocopy::tcp::MappedBytes;

use crate::Failure;
use crate::recv::output;
use nocopy_report::Interrupt;
use nocopy_report::output_file::{CreateOptions, OutputFile};

/// All streams write to it at the same time.
#[derive(Debug)]
pub(super) struct SharedOutput {
    opened: OutputFile,
    written_bytes: AtomicU64,
}

impl SharedOutput {
    pub(super) fn open(path: &Path, making: CreateOptions, interrupt: &Interrupt) -> Result<Self, Failure> {
        let opened = output::open_output(path, making, interrupt)?;
        Ok(Self { opened, written_bytes: AtomicU64::new(0) })
    }

    /// Whether streams may be written at the same time.
    pub(super) fn is_seekable(&self) -> bool {
        self.opened.is_seekable
    }

    /// Writes bytes at their offset or, without offsets, after those written last. Returns how many: all,
    /// unless it is asked to stop while the reader of the pipe does not read.
    pub(super) fn write(
        &self,
        offset: u64,
        bytes: MappedBytes<'_>,
        stop: &AtomicBool,
    ) -> Result<usize, Failure> {
        let written = self.write_all(offset, bytes, stop);
        let written = written.map_err(|source| output::output_failure(&self.opened.path, source))?;
        // Relaxed: it is read when all threads have ended.
        self.written_bytes.fetch_add(written as u64, Ordering::Relaxed);
        Ok(written)
    }

    fn write_all(&self, offset: u64, bytes: MappedBytes<'_>, stop: &AtomicBool) -> io::Result<usize> {
        let OutputFile { file, is_seekable, may_block, .. } = &self.opened;
        let most = if *may_block { output::PIPE_WRITE_BYTES } else { usize::MAX };
        let mut written = 0;
        while written < bytes.len() {
            let next = bytes.slice(written..bytes.len().min(written.saturating_add(most)));
            let place = is_seekable.then_some(offset + written as u64);
            let has_room = !may_block || output::wait_for_pipe_room(file)?;
            match if has_room { next.write_to(file, place) } else { Err(io::ErrorKind::WouldBlock.into()) } {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(more) => written += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // Relaxed: no other memory depends on it.
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    output::wait_for_pipe_room(file)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(written)
    }

    /// Waits until all that was written is on the disk.
    pub(super) fn sync(&self) -> Result<(), Failure> {
        Ok(output::sync_to_disk(&self.opened.path, &self.opened.file)?)
    }

    pub(super) fn description(&self) -> String {
        let bytes = self.written_bytes.load(Ordering::Relaxed);
        let how = if self.is_seekable() {
            "each where it belongs; what did not come is a hole"
        } else {
            "in order"
        };
        format!("{}: {bytes} bytes, {how}", self.opened.path.display())
    }
}
