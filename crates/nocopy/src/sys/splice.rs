//! Moving bytes by reference to their pages: pipes, splice(2), vmsplice(2), sendfile(2).
//!
//! None of these calls has `MSG_DONTWAIT`: whether a call waits for the *socket* is the socket's setting (see
//! [`stream`](super::stream)). None waits for the pipe. None raises `SIGPIPE`.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::retry_on_intr;
use rustix::pipe::{self, IoSliceRaw, PipeFlags, SpliceFlags};

use super::sealed::SealedFile;
use super::sigpipe;

/// A pipe inside this process, for references to pages.
#[derive(Debug)]
pub(crate) struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    bytes: usize,
}

impl Pipe {
    /// A pipe for `bytes` bytes of whole pages; smaller if the user's limit of pipe memory is reached
    /// (pipe(7)).
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        let (reader, writer) = pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // EPERM: over pipe-max-size or pipe-user-pages-soft. A smaller pipe works, with more calls.
        let _ = pipe::fcntl_setpipe_size(&writer, bytes);
        let bytes = pipe::fcntl_getpipe_size(&writer)?;
        Ok(Self { reader, writer, bytes })
    }

    /// How many bytes of whole pages it has room for.
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.bytes
    }

    /// Puts references to a range of bytes into the pipe, as many as there is room for; returns how many
    /// bytes that were. Panics if the range does not lie within the region.
    pub(crate) fn load_references(&self, region: &SealedFile, range: Range<usize>) -> io::Result<usize> {
        let bytes = [IoSliceRaw::from_slice(&region[range])];
        // SAFETY: this is the end of the pipe that is written to, so the bytes are only read; nothing is a
        // gift.
        Ok(retry_on_intr(|| unsafe { pipe::vmsplice(&self.writer, &bytes, SpliceFlags::NONBLOCK) })?)
    }

    /// Moves up to `bytes` bytes from a socket or, with an offset, from a file into the pipe; 0 is the end,
    /// `WouldBlock` means that nothing has arrived or the pipe is full.
    pub(crate) fn fill_from(
        &self,
        from: impl AsFd,
        offset: Option<&mut u64>,
        bytes: usize,
    ) -> io::Result<usize> {
        let mut offset = offset;
        let call =
            || pipe::splice(&from, offset.as_deref_mut(), &self.writer, None, bytes, SpliceFlags::NONBLOCK);
        Ok(retry_on_intr(call)?)
    }

    /// Moves up to `bytes` bytes out of the pipe into a socket or, with an offset, into a file. `more`: what
    /// follows may share a segment with them (`MSG_MORE`).
    pub(crate) fn empty_into(
        &self,
        to: impl AsFd,
        offset: Option<&mut u64>,
        bytes: usize,
        more: bool,
    ) -> io::Result<usize> {
        let more = if more { SpliceFlags::MORE } else { SpliceFlags::empty() };
        let (flags, mut offset) = (SpliceFlags::NONBLOCK | more, offset);
        let call = || pipe::splice(&self.reader, None, &to, offset.as_deref_mut(), bytes, flags);
        Ok(sigpipe::without_sigpipe(|| retry_on_intr(call))?)
    }

    /// Copies bytes out of the pipe.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(retry_on_intr(|| rustix::io::read(&self.reader, &mut *buffer))?)
    }
}

/// Moves up to `bytes` bytes of a file, from `offset` on, into a socket; 0 is the end of the file.
pub(crate) fn sendfile(file: &File, offset: u64, to: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
    let call = || {
        let mut offset = offset;
        rustix::fs::sendfile(to, file, Some(&mut offset), bytes)
    };
    Ok(sigpipe::without_sigpipe(|| retry_on_intr(call))?)
}
