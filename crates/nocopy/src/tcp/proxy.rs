//! Moves a stream from one socket to another, without its bytes entering the program.

use nocopy_proto::errno::Why;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::OFlags;
use rustix::net::Shutdown;

use crate::sys::splice::Pipe;

const PIPE_BYTES: usize = 256 << 10;

/// The result of a step, or what it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
enum Flow {
    /// Nothing has arrived: wait until the source is readable (`POLLIN`).
    SourceEmpty,
    /// The target accepts nothing now: wait until it is writable (`POLLOUT`), and not for the source.
    TargetFull,
    /// The source has ended, everything was moved, and the target's writing half is shut down.
    Done,
}

/// Which socket of a direction failed.
#[derive(Debug)]
enum DirectionError {
    Source(io::Error),
    Target(io::Error),
}

/// One direction of a proxy: from a socket to another, through its own pipe.
///
/// Memory is bounded: nothing is read while the target accepts nothing, so flow control stops the source's peer.
#[derive(Debug)]
struct Direction<'sockets> {
    from: BorrowedFd<'sockets>,
    to: BorrowedFd<'sockets>,
    pipe: Pipe,
    in_pipe: usize,
    moved: u64,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The source has ended.
    Draining,
    Done,
}

/// The most calls of a step, so that no direction starves the other.
const ROUNDS: usize = 16;

impl<'sockets> Direction<'sockets> {
    /// From one connected stream socket to another. Both must be non-blocking, or steps wait: splice(2) uses the mode of the open file.
    fn new(from: BorrowedFd<'sockets>, to: BorrowedFd<'sockets>) -> io::Result<Self> {
        let pipe = Pipe::new(PIPE_BYTES)?;
        Ok(Self { from, to, pipe, in_pipe: 0, moved: 0, state: State::Open })
    }

    /// Moves bytes without waiting; returns `None` if there may be more.
    ///
    /// # Errors
    /// A socket failed; the error names it. Bytes that were read and not written are lost with the direction.
    fn step(&mut self) -> Result<Option<Flow>, DirectionError> {
        for _ in 0..ROUNDS {
            let waits_for = if self.in_pipe > 0 { self.empty()? } else { self.fill()? };
            if waits_for.is_some() {
                return Ok(waits_for);
            }
        }
        Ok(None)
    }

    fn empty(&mut self) -> Result<Option<Flow>, DirectionError> {
        match self.pipe.empty(self.to, self.in_pipe, false) {
            Ok(bytes) => {
                self.in_pipe -= bytes;
                self.moved += bytes as u64;
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Some(Flow::TargetFull)),
            Err(error) => Err(DirectionError::Target(error)),
        }
    }

    /// The pipe is empty, so only the source can block.
    fn fill(&mut self) -> Result<Option<Flow>, DirectionError> {
        if self.state == State::Open {
            match self.pipe.fill(self.from, PIPE_BYTES) {
                Ok(0) => self.state = State::Draining,
                Ok(bytes) => self.in_pipe = bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Some(Flow::SourceEmpty));
                }
                Err(error) => return Err(DirectionError::Source(error)),
            }
            return Ok(None);
        }
        if self.state == State::Draining {
            rustix::net::shutdown(self.to, Shutdown::Write)
                .map_err(|error| DirectionError::Target(error.into()))?;
            self.state = State::Done;
        }
        Ok(Some(Flow::Done))
    }

    fn progress(&self) -> (u64, usize, State) {
        (self.moved, self.in_pipe, self.state)
    }
}

/// Bytes moved by a proxy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Proxied {
    /// From the first socket to the second.
    pub there: u64,
    /// From the second to the first.
    pub back: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    First,
    Second,
}

/// Why no bytes, or not all, were moved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyError {
    /// Nothing was moved: both connections are unchanged.
    #[error(
        "proxy: no pipe to move bytes through{cause}; both connections are unchanged; raise 'ulimit -n', or close what is not needed", cause = Why(.0))]
    NotBegun(#[source] io::Error),
    /// The first connection failed. Both were reset, so that neither peer mistakes a part for the whole.
    #[error("proxy: the first connection failed{cause}; {} bytes had gone from the first to the second, and {} from the second to the first; both were reset; connect again", proxied.there, proxied.back, cause = Why(.source))]
    First {
        /// Bytes moved before the failure.
        proxied: Proxied,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The second connection failed; both were reset.
    #[error("proxy: the second connection failed{cause}; {} bytes had gone from the first to the second, and {} from the second to the first; both were reset; connect again", proxied.there, proxied.back, cause = Why(.source))]
    Second {
        /// Bytes moved before the failure.
        proxied: Proxied,
        /// The kernel's reason.
        source: io::Error,
    },
}

/// Moves bytes both ways between two connected stream sockets until both have ended, by splice(2): they do not enter the program.
///
/// The end of one direction is passed on (half-close), and the other direction continues. If a socket fails, the other is reset. The
/// calling thread waits in poll(2). During the call both sockets are non-blocking, for all their descriptors.
///
/// # Errors
/// See [`ProxyError`]: a connection was reset or timed out, or there is no descriptor left for a pipe.
///
/// ```
/// use std::io::{Read, Write};
/// use std::net::{Shutdown, TcpListener, TcpStream};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let connected = || std::io::Result::Ok((TcpStream::connect(listener.local_addr()?)?, listener.accept()?.0));
/// let ((mut client, first), (mut server, second)) = (connected()?, connected()?);
/// client.write_all(b"hello")?;
/// client.shutdown(Shutdown::Write)?;
/// server.shutdown(Shutdown::Write)?;
/// assert_eq!(nocopy::tcp::proxy(&first, &second)?.there, 5);
/// drop(second);
/// let mut text = String::new();
/// server.read_to_string(&mut text)?;
/// assert_eq!(text, "hello");
/// # Ok(())
/// # }
/// ```
pub fn proxy(first: impl AsFd, second: impl AsFd) -> Result<Proxied, ProxyError> {
    let (first, second) = (first.as_fd(), second.as_fd());
    let there = Direction::new(first, second).map_err(ProxyError::NotBegun)?;
    let back = Direction::new(second, first).map_err(ProxyError::NotBegun)?;
    let _first = NonBlocking::set(first).map_err(ProxyError::NotBegun)?;
    let _second = NonBlocking::set(second).map_err(ProxyError::NotBegun)?;
    let mut both = Both { first, second, there, back };
    let ended = both.run();
    let proxied = Proxied { there: both.there.moved, back: both.back.moved };
    ended.map_err(|(side, source)| {
        // Dissolving the association resets the connection. If it is closed already, that does not matter.
        let _ = (rustix::net::connect_unspec(first), rustix::net::connect_unspec(second));
        match side {
            Side::First => ProxyError::First { proxied, source },
            Side::Second => ProxyError::Second { proxied, source },
        }
    })?;
    Ok(proxied)
}

struct Both<'sockets> {
    first: BorrowedFd<'sockets>,
    second: BorrowedFd<'sockets>,
    there: Direction<'sockets>,
    back: Direction<'sockets>,
}

impl Both<'_> {
    fn run(&mut self) -> Result<(), (Side, io::Error)> {
        let mut before = None;
        loop {
            let there = self.there.step().map_err(|error| whose(error, Side::First, Side::Second))?;
            let back = self.back.step().map_err(|error| whose(error, Side::Second, Side::First))?;
            let (Some(there), Some(back)) = (there, back) else { continue };
            if (there, back) == (Flow::Done, Flow::Done) {
                return Ok(());
            }
            let now = Some((self.there.progress(), self.back.progress()));
            if before == now {
                // A socket that poll(2) calls ready may not be for splice(2): messages in an error queue, lack of memory. This avoids spinning.
                std::thread::sleep(PAUSE);
            }
            before = now;
            self.wait(there, back)?;
        }
    }

    fn wait(&self, there: Flow, back: Flow) -> Result<(), (Side, io::Error)> {
        let wanted = [(self.first, wants(there, back)), (self.second, wants(back, there))];
        let polled =
            wanted.iter().filter_map(|(socket, events)| Some(PollFd::from_borrowed_fd(*socket, (*events)?)));
        let mut polled: smallvec::SmallVec<[PollFd<'_>; 2]> = polled.collect();
        match rustix::event::poll(&mut polled, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err((Side::First, error.into())),
        }
        // No step would notice a failed target while its source sends nothing.
        for (side, socket) in [(Side::First, self.first), (Side::Second, self.second)] {
            match socket2::SockRef::from(&socket).take_error() {
                Ok(None) => {}
                Ok(Some(error)) | Err(error) => return Err((side, error)),
            }
        }
        Ok(())
    }
}

const PAUSE: Duration = Duration::from_millis(1);

/// The events polled for a socket that is the source of one direction and the target of the other; `None`: none.
///
/// A source that is not waited for is not polled: its end may be known already, and poll(2) would report it each time.
fn wants(as_source: Flow, as_target: Flow) -> Option<PollFlags> {
    let mut wanted = match as_target {
        Flow::TargetFull => Some(PollFlags::OUT),
        // Failures are reported in any case.
        Flow::SourceEmpty => Some(PollFlags::empty()),
        Flow::Done => None,
    };
    if as_source == Flow::SourceEmpty {
        *wanted.get_or_insert(PollFlags::empty()) |= PollFlags::IN;
    }
    wanted
}

fn whose(error: DirectionError, source: Side, target: Side) -> (Side, io::Error) {
    match error {
        DirectionError::Source(error) => (source, error),
        DirectionError::Target(error) => (target, error),
    }
}

/// Makes a socket non-blocking until it is dropped.
struct NonBlocking<'socket> {
    socket: BorrowedFd<'socket>,
    was: bool,
}

impl<'socket> NonBlocking<'socket> {
    fn set(socket: BorrowedFd<'socket>) -> io::Result<Self> {
        let was = rustix::fs::fcntl_getfl(socket)?.contains(OFlags::NONBLOCK);
        rustix::io::ioctl_fionbio(socket, true)?;
        Ok(Self { socket, was })
    }
}

impl Drop for NonBlocking<'_> {
    fn drop(&mut self) {
        // It could be set, so it can be restored.
        let _ = rustix::io::ioctl_fionbio(self.socket, self.was);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (stream, listener.accept().unwrap().0)
    }

    #[test]
    fn a_direction_goes_step_by_step() {
        let ((left, first), (second, right)) = (pair(), pair());
        first.set_nonblocking(true).unwrap();
        second.set_nonblocking(true).unwrap();
        let mut direction = Direction::new(first.as_fd(), second.as_fd()).unwrap();
        assert_eq!(direction.step().unwrap(), Some(Flow::SourceEmpty));
        (&left).write_all(b"hello").unwrap();
        assert_eq!(direction.step().unwrap(), Some(Flow::SourceEmpty));
        assert_eq!(direction.progress(), (5, 0, State::Open));
        drop(left);
        assert_eq!(direction.step().unwrap(), Some(Flow::Done));
        assert_eq!(direction.step().unwrap(), Some(Flow::Done));
        let mut received = Vec::new();
        (&right).read_to_end(&mut received).unwrap();
        assert_eq!(received, b"hello");
    }

    #[test]
    fn a_reset_is_an_error_of_the_source() {
        let ((left, first), (second, _right)) = (pair(), pair());
        first.set_nonblocking(true).unwrap();
        let mut direction = Direction::new(first.as_fd(), second.as_fd()).unwrap();
        socket2::SockRef::from(&left).set_linger(Some(Duration::ZERO)).unwrap();
        drop(left);
        let error = loop {
            match direction.step() {
                Ok(Some(Flow::SourceEmpty)) => std::thread::yield_now(),
                Ok(other) => panic!("{other:?}"),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, DirectionError::Source(_)), "{error:?}");
    }
}
