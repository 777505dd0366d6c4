//! Moving bytes by reference to their pages: pipes, splice(2), vmsplice(2), sendfile(2).
//!
//! None of these calls has `MSG_DONTWAIT`: whether a call waits for the *socket* is the socket's setting (see
//! [`stream`](super::stream)). None waits for the pipe. None raises `SIGPIPE`.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::retry_on_intr;
use rustix::pipe::{self, IoSliceRaw, PipeFlags, SpliceFlags};

use super::sealed::Sealed;
use super::sigpipe;

/// A pipe inside this process, for references to pages.
#[derive(Debug)]
pub(crate) struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
}

impl Pipe {
    /// A pipe for `bytes` bytes of whole pages; smaller if the user's limit of pipe memory is reached (pipe(7)).
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        let (reader, writer) = pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // EPERM: over pipe-max-size or pipe-user-pages-soft. A smaller pipe works, with more calls.
        let _ = pipe::fcntl_setpipe_size(&writer, bytes);
        Ok(Self { reader, writer })
    }

    /// Puts references to a range of bytes into the pipe, as many as there is room for; returns how many bytes that were.
    /// Panics if the range does not lie within the region.
    pub(crate) fn load(&self, region: &Sealed, range: Range<usize>) -> io::Result<usize> {
        let bytes = [IoSliceRaw::from_slice(&region[range])];
        // SAFETY: this is the end of the pipe that is written to, so the bytes are only read; nothing is a gift.
        Ok(retry_on_intr(|| unsafe { pipe::vmsplice(&self.writer, &bytes, SpliceFlags::NONBLOCK) })?)
    }

    /// Moves up to `bytes` bytes from a socket into the pipe; 0 is the end of the stream, `WouldBlock` means that nothing has arrived or
    /// the pipe is full.
    pub(crate) fn fill(&self, from: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
        splice(from, &self.writer, bytes, SpliceFlags::empty())
    }

    /// Moves up to `bytes` bytes out of the pipe into a socket. `more`: what follows may share a segment with them (`MSG_MORE`).
    pub(crate) fn empty(&self, to: BorrowedFd<'_>, bytes: usize, more: bool) -> io::Result<usize> {
        let more = if more { SpliceFlags::MORE } else { SpliceFlags::empty() };
        sigpipe::without(|| splice(&self.reader, to, bytes, more))
    }
}

fn splice(
    from: impl std::os::fd::AsFd,
    to: impl std::os::fd::AsFd,
    bytes: usize,
    flags: SpliceFlags,
) -> io::Result<usize> {
    let flags = flags | SpliceFlags::NONBLOCK;
    Ok(retry_on_intr(|| pipe::splice(&from, None, &to, None, bytes, flags))?)
}

/// Moves up to `bytes` bytes of a file, from `offset` on, into a socket; 0 is the end of the file.
pub(crate) fn sendfile(file: &File, offset: u64, to: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
    let call = || {
        let mut offset = offset;
        rustix::fs::sendfile(to, file, Some(&mut offset), bytes)
    };
    Ok(sigpipe::without(|| retry_on_intr(call))?)
}
