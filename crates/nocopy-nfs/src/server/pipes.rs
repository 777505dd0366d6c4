//! Pipes that hold references to pages, between a file and a socket.
//!
//! Without privileges a user's pipes may have a limited number of pages (`pipe-user-pages-soft`, usually 64 MiB), shared with
//! other programs of the user. So the pool takes at most three quarters: half of them for pipes of the longest read, the rest for small ones, which
//! hold less of a read, so that its reply is short. If none is free, the read is copied.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::{Errno, retry_on_intr};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice};

pub(super) const PAGE_BYTES: usize = 4096;

const SMALL_PAGES: usize = 16;

/// If the kernel has no limits.
pub(super) const LARGE_PAGES_MAX: usize = 256;
const PAGES_MAX: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Pipes {
    large_pages: usize,
    pages_max: usize,
    /// The most pipes; each takes two descriptors.
    count_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Empty pipes.
    large: Vec<Pipe>,
    small: Vec<Pipe>,
    /// Pages of all pipes, including those in use.
    pages: usize,
    count: usize,
}

#[derive(Debug)]
struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    pages: usize,
}

impl Pipes {
    pub(super) fn new(count_max: usize) -> Self {
        let limit = |name: &str| {
            let text = fs::read_to_string(format!("/proc/sys/fs/{name}")).unwrap_or_default();
            text.trim().parse::<usize>().ok()
        };
        let pages = limit("pipe-user-pages-soft").filter(|pages| *pages > 0).unwrap_or(PAGES_MAX);
        let large = limit("pipe-max-size").unwrap_or(SMALL_PAGES * PAGE_BYTES) / PAGE_BYTES;
        Self::with_limits(large.clamp(1, LARGE_PAGES_MAX), pages.min(PAGES_MAX) / 4 * 3, count_max)
    }

    fn with_limits(large_pages: usize, pages_max: usize, count_max: usize) -> Self {
        Self { large_pages, pages_max, count_max, state: Mutex::default() }
    }

    /// An empty pipe, with room for this many pages if possible.
    pub(super) fn take(self: &Arc<Self>, pages: usize) -> Option<Lease> {
        let mut state = self.lock();
        let is_large = pages > SMALL_PAGES;
        let free = match is_large {
            true => state.large.pop().or_else(|| self.open(&mut state, self.large_pages, self.pages_max / 2)),
            false => None,
        };
        let pipe = free
            .or_else(|| state.small.pop())
            .or_else(|| self.open(&mut state, SMALL_PAGES, self.pages_max))
            .or_else(|| state.large.pop())?;
        drop(state);
        Some(Lease { pool: Arc::clone(self), pipe: Some(pipe), held: 0 })
    }

    /// A new pipe, unless the pages of all pipes would exceed the limit.
    fn open(&self, state: &mut State, pages: usize, pages_max: usize) -> Option<Pipe> {
        if state.pages + pages > pages_max || state.count == self.count_max {
            return None;
        }
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        // EPERM: other programs of the user have reached the limit. The pipe then has the kernel's minimum, perhaps two pages.
        let _ = fcntl_setpipe_size(&writer, pages * PAGE_BYTES);
        let pages = fcntl_getpipe_size(&writer).ok()? / PAGE_BYTES;
        if pages < SMALL_PAGES {
            return None;
        }
        state.pages += pages;
        state.count += 1;
        Some(Pipe { reader, writer, pages })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pipe in use; when dropped it returns, or is closed if it is not empty.
#[derive(Debug)]
pub(super) struct Lease {
    pool: Arc<Pipes>,
    /// `None` only while it is dropped.
    pipe: Option<Pipe>,
    held: usize,
}

impl Lease {
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Puts references to pages of a file in, up to `bytes`, to the room in the pipe, and to the end of the file.
    pub(super) fn fill(&mut self, file: impl AsFd, offset: u64, bytes: usize) -> io::Result<()> {
        let pipe = self.pipe.as_ref().expect("it is not dropped");
        let mut offset = offset;
        while self.held < bytes {
            let wanted = bytes - self.held;
            let flags = SpliceFlags::NONBLOCK;
            match retry_on_intr(|| splice(&file, Some(&mut offset), &pipe.writer, None, wanted, flags)) {
                Ok(0) | Err(Errno::AGAIN) => break,
                Ok(count) => self.held += count,
                Err(_) if self.held > 0 => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Moves its contents to a socket, as much as that accepts; `more`: further bytes follow at once.
    /// Errors: the socket accepts no bytes now (`WouldBlock`), or is closed.
    pub(super) fn empty(&mut self, socket: impl AsFd, more: bool) -> io::Result<usize> {
        let pipe = self.pipe.as_ref().expect("it is not dropped");
        let more = if more { SpliceFlags::MORE } else { SpliceFlags::empty() };
        let flags = SpliceFlags::NONBLOCK | more;
        let count = retry_on_intr(|| splice(&pipe.reader, None, &socket, None, self.held, flags))?;
        if count == 0 {
            // The pages are no longer in memory, by a fault of the disk or of the file system.
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.held -= count;
        Ok(count)
    }
}

impl Lease {
    /// Takes received bytes of a socket, up to `bytes` and to the room in the pipe; 0: the socket has ended.
    /// Errors: the socket has no bytes now (`AGAIN`), or is closed.
    pub(super) fn receive(&mut self, socket: impl AsFd, bytes: usize) -> rustix::io::Result<usize> {
        let pipe = self.pipe.as_ref().expect("it is not dropped");
        let count =
            retry_on_intr(|| splice(&socket, None, &pipe.writer, None, bytes, SpliceFlags::NONBLOCK))?;
        self.held += count;
        Ok(count)
    }

    /// Moves its contents into a file, as much as possible at a time.
    /// Errors: no bytes could be moved; `INVAL`: the file accepts no references.
    pub(super) fn put(&mut self, file: impl AsFd, offset: u64) -> rustix::io::Result<usize> {
        let pipe = self.pipe.as_ref().expect("it is not dropped");
        let (held, mut offset) = (self.held, offset);
        let flags = SpliceFlags::empty();
        let count = retry_on_intr(|| splice(&pipe.reader, None, &file, Some(&mut offset), held, flags))?;
        self.held -= count;
        Ok(count)
    }

    /// Copies its contents into a buffer, up to its length.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> rustix::io::Result<usize> {
        let pipe = self.pipe.as_ref().expect("it is not dropped");
        let count = retry_on_intr(|| rustix::io::read(&pipe.reader, &mut *buffer))?;
        self.held -= count;
        Ok(count)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(pipe) = self.pipe.take() else { return };
        let mut state = self.pool.lock();
        if self.held > 0 {
            state.pages -= pipe.pages;
            state.count -= 1;
        } else if pipe.pages > SMALL_PAGES {
            state.large.push(pipe);
        } else {
            state.small.push(pipe);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn file(bytes: usize) -> fs::File {
        let mut file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..bytes).map(|place| (place * 7 % 251) as u8).collect();
        file.write_all(&content).unwrap();
        file
    }

    #[test]
    fn no_more_pages_are_taken_than_allowed() {
        let pipes = Arc::new(Pipes::with_limits(64, 64 * 4 + SMALL_PAGES * 3, 100));
        let large: Vec<Lease> = (0..2).map(|_| pipes.take(256).unwrap()).collect();
        let mut all: Vec<Lease> = std::iter::from_fn(|| pipes.take(256)).collect();
        let pages = |lease: &Lease| lease.pipe.as_ref().unwrap().pages;
        assert!(large.iter().all(|lease| pages(lease) == 64));
        assert!(all.iter().all(|lease| pages(lease) == SMALL_PAGES));
        assert_eq!(all.len(), (64 * 2 + SMALL_PAGES * 3) / SMALL_PAGES);
        assert!(pipes.take(1).is_none());
        // A pipe that is returned with contents is closed, so that another can be made.
        all[0].fill(file(100), 0, 100).unwrap();
        all.remove(0);
        assert!(pipes.lock().small.is_empty());
        let again = pipes.take(1).unwrap();
        assert!(pipes.take(1).is_none());
        drop((again, all, large));
        let state = pipes.lock();
        assert_eq!((state.large.len(), state.small.len()), (2, 11));
    }

    #[test]
    fn pipes_leave_descriptors_to_others() {
        let pipes = Arc::new(Pipes::with_limits(64, 1 << 20, 5));
        let all: Vec<Lease> = std::iter::from_fn(|| pipes.take(256)).collect();
        assert_eq!(all.len(), 5);
        drop(all);
        let mut one = pipes.take(1).unwrap();
        one.fill(file(100), 0, 100).unwrap();
        drop(one);
        let state = pipes.lock();
        assert_eq!((state.count, state.large.len()), (4, 4));
    }

    #[test]
    fn what_does_not_fit_makes_the_read_short() {
        let pipes = Arc::new(Pipes::with_limits(64, 64 * 4, 100));
        let (file, bytes) = (file(80 << 12), 64 << 12);
        for (offset, expected) in
            [(0, bytes), (100, bytes - 100), ((70 << 12) + 5, (10 << 12) - 5), (1 << 30, 0)]
        {
            let mut pipe = pipes.take(64).unwrap();
            pipe.fill(&file, offset, bytes).unwrap();
            assert_eq!(pipe.held(), expected, "from {offset} on");
            let (here, mut there) = UnixStream::pair().unwrap();
            let reader = std::thread::spawn(move || {
                let mut read = Vec::new();
                there.read_to_end(&mut read).map(|_| read).unwrap()
            });
            while pipe.held() > 0 {
                pipe.empty(&here, false).unwrap();
            }
            drop(here);
            let read = reader.join().unwrap();
            assert!(
                read.iter()
                    .enumerate()
                    .all(|(place, byte)| { *byte == ((offset as usize + place) * 7 % 251) as u8 })
            );
            assert_eq!(read.len(), expected);
        }
    }
}
