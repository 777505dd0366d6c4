//! Pages on their way between files and sockets: references to them in a pipe.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::net::RecvFlags;

use crate::sys::fork::Generation;
use crate::sys::splice::Pipe;

const PAGE_BYTES: usize = 4096;

const SMALL_BYTES: usize = 64 << 10;

/// If the kernel has no limits.
const LARGE_BYTES_MAX: usize = 1 << 20;
const PAGES_MAX: usize = 1 << 16;

/// Pipes for [`Pages`], shared by the threads of a program.
///
/// Without privileges all programs of a user together may have a limited number of pages in pipes
/// (`pipe-user-pages-soft`, pipe(7); usually 64 MiB). So a pool takes at most three quarters of them: half of
/// these for pipes of 1 MiB (or `pipe-max-size`), the rest for pipes of 64 KiB. A forked child needs a pool
/// of its own.
#[derive(Debug, Clone)]
pub struct PagePool(Arc<PipePool>);

#[derive(Debug)]
struct PipePool {
    large_bytes: usize,
    pages_max: usize,
    count_max: usize,
    generation: Generation,
    state: Mutex<PipePoolState>,
}

#[derive(Debug, Default)]
struct PipePoolState {
    /// Empty pipes.
    large: Vec<Pipe>,
    small: Vec<Pipe>,
    /// Pages of all pipes, including those in use.
    pages: usize,
    count: usize,
}

impl PagePool {
    /// A pool of at most that many pipes; each takes two descriptors.
    pub fn new(pipes_max: usize) -> Self {
        let limit = |name: &str| {
            let text = fs::read_to_string(format!("/proc/sys/fs/{name}")).unwrap_or_default();
            text.trim().parse::<usize>().ok()
        };
        let pages = limit("pipe-user-pages-soft").filter(|pages| *pages > 0).unwrap_or(PAGES_MAX);
        let large_bytes = limit("pipe-max-size").unwrap_or(SMALL_BYTES).clamp(PAGE_BYTES, LARGE_BYTES_MAX);
        Self::with_limits(large_bytes, pages.min(PAGES_MAX) / 4 * 3, pipes_max)
    }

    fn with_limits(large_bytes: usize, pages_max: usize, count_max: usize) -> Self {
        let (generation, state) = (Generation::current(), Mutex::default());
        Self(Arc::new(PipePool { large_bytes, pages_max, count_max, generation, state }))
    }

    /// An empty pipe, with room for that many bytes of whole pages if possible; `None` if none is free: then
    /// copy the bytes.
    pub fn take(&self, bytes: usize) -> Option<Pages> {
        let pipes = &*self.0;
        if pipes.generation.is_outdated() {
            return None;
        }
        let mut state = pipes.lock();
        let large = if bytes > SMALL_BYTES {
            state.large.pop().or_else(|| pipes.open_pipe(&mut state, pipes.large_bytes, pipes.pages_max / 2))
        } else {
            None
        };
        let pipe = large
            .or_else(|| state.small.pop())
            .or_else(|| pipes.open_pipe(&mut state, SMALL_BYTES, pipes.pages_max))
            .or_else(|| state.large.pop())?;
        drop(state);
        Some(Pages { pool: self.clone(), pipe: Some(pipe), bytes: 0 })
    }
}

impl PipePool {
    /// A new pipe, unless the pages of all pipes would exceed the limit.
    fn open_pipe(&self, state: &mut PipePoolState, bytes: usize, pages_max: usize) -> Option<Pipe> {
        if state.pages + bytes / PAGE_BYTES > pages_max || state.count == self.count_max {
            return None;
        }
        // If other programs of the user have reached the limit, it has the kernel's minimum, perhaps two
        // pages.
        let pipe = Pipe::new(bytes).ok().filter(|pipe| pipe.capacity_bytes() >= SMALL_BYTES)?;
        state.pages += pipe.capacity_bytes() / PAGE_BYTES;
        state.count += 1;
        Some(pipe)
    }

    fn lock(&self) -> MutexGuard<'_, PipePoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of files and sockets that are moved by reference to their pages (splice(2)), and do not enter the
/// program.
///
/// They are put into a pipe first: so it is known how many there are before a header that says so is sent,
/// and a file that is shorter than expected does no harm. The pages of a file are its own: what is written to
/// the file before the peer has read them changes what it receives. Whether the kernel copies bytes on the
/// way is unknown ([`Evidence::Unknown`](crate::Evidence)).
///
/// A forked child has the same pipe as its parent, and must not use it. No call waits for the pipe, and none
/// raises `SIGPIPE`. Calls wait for a socket if it is blocking. When dropped, the pipe returns to its pool;
/// bytes that are left in it are lost.
///
/// ```
/// use std::io::{Read, Write};
/// use std::net::{Shutdown, TcpListener, TcpStream};
/// use nocopy::tcp::PagePool;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let connected = || std::io::Result::Ok((TcpStream::connect(listener.local_addr()?)?, listener.accept()?.0));
/// let ((mut client, from), (to, mut server)) = (connected()?, connected()?);
/// client.write_all(b"hello")?;
/// client.shutdown(Shutdown::Write)?;
/// let mut pages = PagePool::new(1).take(64 << 10).ok_or("no pipe is free")?;
/// while pages.fill(&from, None, 64 << 10)? > 0 {
///     while pages.buffered() > 0 {
///         pages.empty(&to, None, false)?;
///     }
/// }
/// drop(to);
/// let mut text = String::new();
/// server.read_to_string(&mut text)?;
/// assert_eq!(text, "hello");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Pages {
    pool: PagePool,
    /// `None` only while it is dropped.
    pipe: Option<Pipe>,
    bytes: usize,
}

impl Pages {
    /// Bytes in the pipe.
    pub fn buffered(&self) -> usize {
        self.bytes
    }

    fn pipe(&self) -> &Pipe {
        self.pipe.as_ref().expect("it is not dropped")
    }

    /// Puts pages in, up to `bytes` bytes and to the room in the pipe: of a file from `offset` on, up to its
    /// end; or, without an offset, received ones of a stream socket. Returns how many bytes; 0: the file ends
    /// there, or the stream has ended.
    ///
    /// # Errors
    /// Nothing was put in: the file cannot be read, or its file system does not support splice(2)
    /// (`InvalidInput`); nothing has arrived at a non-blocking socket, or the pipe is full (`WouldBlock`);
    /// the connection failed; or an urgent byte is next in a socket, which splice(2) does not pass
    /// (`InvalidData`; if it is non-blocking, `WouldBlock`): recv(2) does.
    pub fn fill(&mut self, from: impl AsFd, offset: Option<u64>, bytes: usize) -> io::Result<usize> {
        match offset {
            Some(offset) => self.fill_from_file(from, offset, bytes),
            None => self.fill_from_socket(from, bytes),
        }
    }

    fn fill_from_file(&mut self, file: impl AsFd, offset: u64, bytes: usize) -> io::Result<usize> {
        let (mut offset, mut read) = (offset, 0);
        while read < bytes {
            match self.pipe().fill_from(&file, Some(&mut offset), bytes - read) {
                Ok(0) => break,
                Ok(count) => read += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock || read > 0 => break,
                Err(error) => return Err(error),
            }
        }
        self.bytes += read;
        Ok(read)
    }

    fn fill_from_socket(&mut self, socket: impl AsFd, bytes: usize) -> io::Result<usize> {
        let count = self.pipe().fill_from(&socket, None, bytes)?;
        if count == 0 && bytes > 0 && has_waiting_bytes(socket) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.bytes += count;
        Ok(count)
    }

    /// Moves what is in the pipe, as much as is accepted: into a file from `offset` on; or, without an
    /// offset, to a stream socket, where with `more` others follow at once, and may share a segment with the
    /// last of these (`MSG_MORE`). Returns how many bytes.
    ///
    /// # Errors
    /// The bytes stay in the pipe: a non-blocking socket accepts nothing now (`WouldBlock`); the connection
    /// failed; the file cannot be written; its file system does not support splice(2), nor does a file opened
    /// for appending (`InvalidInput`); or a page can no longer be read (`UnexpectedEof`).
    pub fn empty(&mut self, to: impl AsFd, offset: Option<u64>, more: bool) -> io::Result<usize> {
        let mut offset = offset;
        let count = self.pipe().empty_into(to, offset.as_mut(), self.bytes, more)?;
        if count == 0 && self.bytes > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.bytes -= count;
        Ok(count)
    }
}

/// Whether bytes wait in a socket.
fn has_waiting_bytes(socket: impl AsFd) -> bool {
    rustix::net::recv(socket, &mut [0_u8], RecvFlags::PEEK | RecvFlags::DONTWAIT)
        .is_ok_and(|(_, count)| count > 0)
}

/// Copies bytes out of the pipe; 0: it is empty.
impl io::Read for Pages {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.bytes == 0 {
            return Ok(0);
        }
        let count = self.pipe().read(buffer)?;
        self.bytes -= count;
        Ok(count)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let pipes = &*self.pool.0;
        let Some(pipe) = self.pipe.take().filter(|_| !pipes.generation.is_outdated()) else { return };
        let mut state = pipes.lock();
        if self.bytes > 0 {
            // As many as `open_pipe` added: a pipe keeps its size.
            state.pages -= pipe.capacity_bytes() / PAGE_BYTES;
            state.count -= 1;
        } else if pipe.capacity_bytes() > SMALL_BYTES {
            state.large.push(pipe);
        } else {
            state.small.push(pipe);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    const SMALL_PAGES: usize = SMALL_BYTES / PAGE_BYTES;

    fn patterned_bytes(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|place| (place * 7 % 251) as u8).collect()
    }

    fn file_with_bytes(bytes: usize) -> fs::File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&patterned_bytes(bytes)).unwrap();
        file
    }

    #[test]
    fn a_page_pool_stays_within_its_limit() {
        let pool = PagePool::with_limits(64 * PAGE_BYTES, 64 * 4 + SMALL_PAGES * 3, 100);
        let large: Vec<Pages> = (0..2).map(|_| pool.take(1 << 20).unwrap()).collect();
        let mut all: Vec<Pages> = std::iter::from_fn(|| pool.take(1 << 20)).collect();
        assert!(large.iter().all(|pages| pages.pipe().capacity_bytes() == 64 * PAGE_BYTES));
        assert!(all.iter().all(|pages| pages.pipe().capacity_bytes() == SMALL_BYTES));
        assert_eq!(all.len(), (64 * 2 + SMALL_PAGES * 3) / SMALL_PAGES);
        assert!(pool.take(1).is_none());
        // A pipe that is returned with contents is closed, so that another can be made.
        all[0].fill(file_with_bytes(100), Some(0), 100).unwrap();
        all.remove(0);
        assert!(pool.0.lock().small.is_empty());
        let again = pool.take(1).unwrap();
        assert!(pool.take(1).is_none());
        drop((again, all, large));
        let state = pool.0.lock();
        assert_eq!((state.large.len(), state.small.len()), (2, 11));
    }

    #[test]
    fn a_pool_opens_no_more_pipes_than_allowed() {
        let pool = PagePool::with_limits(64 * PAGE_BYTES, 1 << 20, 5);
        let all: Vec<Pages> = std::iter::from_fn(|| pool.take(1 << 20)).collect();
        assert_eq!(all.len(), 5);
        drop(all);
        let mut one = pool.take(1).unwrap();
        one.fill(file_with_bytes(100), Some(0), 100).unwrap();
        drop(one);
        let state = pool.0.lock();
        assert_eq!((state.count, state.large.len()), (4, 4));
    }

    #[test]
    fn bytes_beyond_the_pipes_room_stay_in_the_file() {
        let pool = PagePool::with_limits(64 * PAGE_BYTES, 64 * 4, 100);
        let (file, bytes) = (file_with_bytes(80 << 12), 64 << 12);
        for (offset, expected) in
            [(0, bytes), (100, bytes - 100), ((70 << 12) + 5, (10 << 12) - 5), (1 << 30, 0)]
        {
            let mut pages = pool.take(bytes).unwrap();
            assert_eq!(pages.fill(&file, Some(offset), bytes).unwrap(), expected, "from {offset} on");
            assert_eq!(pages.buffered(), expected);
            let (here, mut there) = UnixStream::pair().unwrap();
            let reader = thread::spawn(move || {
                let mut read = Vec::new();
                there.read_to_end(&mut read).map(|_| read).unwrap()
            });
            while pages.buffered() > 0 {
                pages.empty(&here, None, false).unwrap();
            }
            drop(here);
            let whole = patterned_bytes(80 << 12);
            let from = (offset as usize).min(whole.len());
            assert!(reader.join().unwrap() == whole[from..from + expected]);
        }
    }

    #[test]
    fn received_pages_can_be_sent_written_and_copied() {
        let (pool, sent) = (PagePool::new(1), patterned_bytes(600_000));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let receiver = listener.accept().unwrap().0;
        let target = tempfile::NamedTempFile::new().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| sender.write_all(&sent).unwrap());
            let mut pages = pool.take(1 << 20).unwrap();
            let mut at = 0;
            while at < 500_000 {
                pages.fill(&receiver, None, 500_000 - at).unwrap();
                while pages.buffered() > 0 {
                    at += pages.empty(&target, Some(at as u64), false).unwrap();
                }
            }
            let mut rest = Vec::new();
            while rest.len() < 100_000 {
                pages.fill(&receiver, None, 100_000 - rest.len()).unwrap();
                pages.read_to_end(&mut rest).unwrap();
            }
            assert!(rest == sent[500_000..]);
        });
        drop(sender);
        let mut pages = pool.take(1).unwrap();
        assert_eq!(pages.fill(&receiver, None, 1).unwrap(), 0, "the stream has ended");
        receiver.set_nonblocking(true).unwrap();
        assert!(fs::read(target.path()).unwrap() == sent[..500_000]);
    }

    #[test]
    fn pages_for_a_closed_peer_are_an_error_not_a_signal() {
        let (here, there) = UnixStream::pair().unwrap();
        drop(there);
        let mut pages = PagePool::new(1).take(1).unwrap();
        pages.fill(file_with_bytes(100), Some(0), 100).unwrap();
        assert_eq!(pages.empty(&here, None, false).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(pages.buffered(), 100);
    }
}
