//! Writing owned memory to a file past the page cache, one write at a time, by io_uring.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use io_uring::{IoUring, opcode, types};

use super::{Sectors, remaining_slices};
use crate::sys::poll::wait_readable;

pub(crate) struct WriteRing {
    uring: IoUring,
    flight: Option<WriteInFlight>,
}

/// A write that the kernel works on.
struct WriteInFlight {
    sectors: Vec<Sectors>,
    pieces: Vec<libc::iovec>,
}

// SAFETY: the pointers are into the sectors beside them, which are `Send`, and used by the kernel only.
unsafe impl Send for WriteInFlight {}

impl WriteRing {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { uring: IoUring::new(2)?, flight: None })
    }

    /// Starts to write the sectors, without their first `skipped` bytes.
    /// Errors: the kernel did not accept the write; the sectors are returned.
    /// Panics if another write is in progress.
    pub(crate) fn start_write(
        &mut self,
        file: BorrowedFd<'_>,
        sectors: Vec<Sectors>,
        skipped: usize,
        offset: u64,
    ) -> Result<(), (Vec<Sectors>, io::Error)> {
        assert!(self.flight.is_none(), "one write at a time");
        let pieces: Vec<_> = remaining_slices(&sectors, skipped)
            .map(|piece| libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() })
            .collect();
        let file = types::Fd(file.as_raw_fd());
        let write = opcode::Writev::new(file, pieces.as_ptr(), pieces.len() as u32).offset(offset).build();
        // SAFETY: the pieces, and the sectors they point into, which do not move, are kept until the write is
        // finished: they are returned only then (`finished`), and otherwise leaked (`drop`).
        let pushed = unsafe { self.uring.submission().push(&write) };
        assert!(pushed.is_ok(), "the queue has room for one");
        let flight = self.flight.insert(WriteInFlight { sectors, pieces });
        debug_assert!(flight.pieces.len() <= libc::UIO_MAXIOV as usize);
        match self.submit() {
            Ok(()) => Ok(()),
            Err(error) => {
                // Not accepted, and never will be: the ring is not used again.
                let flight = self.flight.take().expect("just put there");
                Err((flight.sectors, error))
            }
        }
    }

    fn submit(&mut self) -> io::Result<()> {
        loop {
            match self.uring.submit() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) => {
                    std::thread::yield_now();
                }
                submitted => return submitted.map(drop),
            }
        }
    }

    /// The sectors of a finished write, and how many bytes of them were written.
    pub(crate) fn take_finished_write(&mut self) -> Option<(Vec<Sectors>, io::Result<usize>)> {
        let entry = self.uring.completion().next()?;
        let result = usize::try_from(entry.result())
            .map_err(|_| io::Error::from_raw_os_error(entry.result().saturating_neg()));
        let flight = self.flight.take().expect("a completion is of a write");
        Some((flight.sectors, result))
    }

    /// Waits until the write is done, but not longer.
    pub(crate) fn wait(&self, timeout: Duration) -> io::Result<()> {
        wait_readable(self.as_fd(), timeout).map(drop)
    }
}

impl AsFd for WriteRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring has it open, and is borrowed as long.
        unsafe { BorrowedFd::borrow_raw(self.uring.as_raw_fd()) }
    }
}

impl Drop for WriteRing {
    fn drop(&mut self) {
        while self.flight.is_some() {
            if self.take_finished_write().is_none() && self.wait(Duration::from_secs(1)).is_err() {
                std::mem::forget(self.flight.take()); // the kernel may still read it
            }
        }
    }
}

impl fmt::Debug for WriteRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let busy = self.flight.is_some();
        f.debug_struct("WriteRing").field("busy", &busy).finish_non_exhaustive()
    }
}
