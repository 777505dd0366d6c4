//! Bytes that go to a stream socket by reference to their pages: published data, ranges of files, what comes by a pipe.
//!
//! A [`Transfer`] says what goes, and how far it has come; a [`ByReference`] hands over the next piece of it. Between two steps nothing
//! is anywhere in between: what a step reports was taken by the socket, and all else is still to be sent. (vmsplice(2) goes by way of a
//! pipe. What the socket did not take of it is thrown away with the pipe and referred to anew; since a piece is no longer than what the
//! socket has room for, that is rare. So thousands of sockets that are full do not hold a pipe each.)

use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::net::SendFlags;

use super::Published;
use crate::engine::choice::Chooser;
use crate::engine::policy::{Explanation, Matter, Policy, Reason, Work};
use crate::facts::evidence::Evidence;
use crate::facts::rejected::Reason as NotSent;
use crate::sys::fork::Generation;
use crate::sys::sealed::Sealed;
use crate::sys::splice::{self, Pipe};
use crate::sys::stream;

/// At most so much a step: what a call costs is small against it, and the pipe for it is far from what a user may have of pipes.
const PIECE_BYTES: usize = 256 << 10;

const PAGE_BYTES: usize = 4096;

const NO_PIPE: &str =
    "the descriptor is not that of a pipe, so nothing can be moved out of it; pass the end that is read";

/// How published data goes to a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PublishedMethod {
    /// References to its mapped pages, by way of a pipe (vmsplice(2), splice(2)).
    Vmsplice,
    /// References to the pages of its file (sendfile(2)).
    Sendfile,
    /// A copy (send(2)).
    Copy,
}

impl PublishedMethod {
    /// All there are, in the order in which they are tried.
    pub const ALL: [Self; 3] = [Self::Vmsplice, Self::Sendfile, Self::Copy];

    /// Its name, as the command line and the bench say it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vmsplice => "published-vmsplice",
            Self::Sendfile => "published-sendfile",
            Self::Copy => "published-copy",
        }
    }
}

impl fmt::Display for PublishedMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A range of bytes on its way to a socket, and how far it has come.
#[derive(Debug)]
pub(super) struct Transfer {
    source: Source,
    /// The next byte of the source that the socket has not taken.
    at: u64,
    range: Range<u64>,
}

#[derive(Debug)]
enum Source {
    Published(Published),
    File(Arc<File>),
    Pipe(OwnedFd),
}

impl Transfer {
    /// A range of published data, in bytes.
    ///
    /// # Errors
    /// It does not lie within the data.
    pub(super) fn published(data: &Published, range: Range<u64>) -> Result<Self, NotSent> {
        let range = within(range, data.len() as u64)?;
        Ok(Self::of(Source::Published(data.clone()), range))
    }

    /// A range of a file, in bytes.
    ///
    /// What goes are the file's own pages, and the kernel never says when it has done with them. So who writes to the file
    /// changes what the peer receives, also some time after everything was handed over and even after it was received in part: until the peer
    /// has acknowledged it, and, on this machine, until the peer has *read* it. A file that is replaced by renaming another over it is
    /// safe; one that is written to in place is not: publish its bytes, or send them from a buffer.
    ///
    /// A file that becomes shorter before the range has gone is an error of the step that finds it.
    ///
    /// # Errors
    /// It does not lie within the file, as long as it is now. (Of what is no ordinary file no length is known.)
    pub(super) fn file(file: Arc<File>, range: Range<u64>) -> Result<Self, NotSent> {
        let about = file.metadata().map_err(NotSent::System)?;
        let range = within(range, if about.is_file() { about.len() } else { u64::MAX })?;
        Ok(Self::of(Source::File(file), range))
    }

    /// The next bytes that come out of a pipe, so many.
    ///
    /// If they were put into it by reference, the same holds as for a [`file`](Self::file).
    ///
    /// # Errors
    /// The descriptor is not that of a pipe.
    pub(super) fn pipe(reader: OwnedFd, bytes: u64) -> Result<Self, NotSent> {
        let about = rustix::fs::fstat(&reader).map_err(|error| NotSent::System(error.into()))?;
        if rustix::fs::FileType::from_raw_mode(about.st_mode) != rustix::fs::FileType::Fifo {
            return Err(NotSent::System(io::Error::new(io::ErrorKind::InvalidInput, NO_PIPE)));
        }
        Ok(Self::of(Source::Pipe(reader), 0..bytes))
    }

    fn of(source: Source, range: Range<u64>) -> Self {
        Self { source, at: range.start, range }
    }

    /// Whether the bytes come out of a pipe, nobody knows when.
    pub(super) fn is_of_pipe(&self) -> bool {
        matches!(self.source, Source::Pipe(_))
    }

    /// The pipe that the bytes come out of.
    pub(super) fn pipe_reader(&self) -> Option<&OwnedFd> {
        if let Source::Pipe(reader) = &self.source { Some(reader) } else { None }
    }

    /// Bytes in all.
    pub(super) fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Bytes that the socket has taken.
    pub(super) fn sent(&self) -> u64 {
        self.at - self.range.start
    }

    /// Whether all have gone.
    #[cfg(test)]
    pub(super) fn is_done(&self) -> bool {
        self.at == self.range.end
    }
}

fn within(range: Range<u64>, bytes: u64) -> Result<Range<u64>, NotSent> {
    if range.start > range.end || range.end > bytes {
        return Err(NotSent::OutOfRange { start: range.start, end: range.end, bytes });
    }
    Ok(range)
}

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(super) enum Step {
    /// The socket took so many bytes. Ask again, unless the transfer is done.
    Sent {
        /// At least 1.
        bytes: u64,
        /// What is known of copies: by reference nobody ever says, so that is [`Evidence::Unknown`].
        evidence: Evidence,
    },
    /// The socket has no room now: wait until it can be written to (`POLLOUT`).
    SocketFull,
    /// There is nothing in the pipe now: wait until it can be read (`POLLIN`).
    SourceEmpty,
    /// Nothing was left to be sent.
    Done,
}

/// Why a transfer does not go on. What the socket took before has gone; see [`Transfer::sent`].
#[derive(Debug, thiserror::Error)]
pub(super) enum TransferError {
    /// The file became shorter, or the pipe was closed by its writer.
    #[error(
        "the source ended with {missing} bytes still to be sent: the file was cut off, or the pipe closed; the peer lacks them, so close the connection"
    )]
    Ended {
        /// So many.
        missing: u64,
    },
    /// The connection is no more, or this end of it was closed.
    #[error("the connection takes no more ({0}); connect again")]
    Connection(#[source] io::Error),
    /// The kernel does not move such bytes to such a socket.
    #[error(
        "{call} is refused ({source}): the kernel or a sandbox does not allow it here, or the source cannot be read; send the bytes from a buffer"
    )]
    Refused {
        /// The call.
        call: &'static str,
        /// Its reason.
        source: io::Error,
    },
}

/// What a stream socket needs to send by reference: the choice of the way that is fastest on it.
///
/// A step never waits for the socket if that is non-blocking. Neither splice(2) nor sendfile(2) can be told so call by call; for a
/// blocking one [`new`](Self::new) sets `SO_SNDTIMEO` to the least there is, so that a step that finds less room than it was told of waits for
/// one tick of the kernel's clock (1 to 10 ms).
///
/// No step raises `SIGPIPE`.
#[derive(Debug)]
pub(super) struct ByReference {
    chooser: Chooser<PublishedMethod>,
    ended_early: u64,
}

/// What one step tries.
#[derive(Debug, Clone, Copy)]
struct Piece {
    at: u64,
    bytes: usize,
    more: bool,
}

impl ByReference {
    /// For a connected TCP socket; the way published data goes is found by measurement, or always the one that is given.
    ///
    /// # Errors
    /// It is no socket.
    pub(super) fn new(socket: BorrowedFd<'_>, pinned: Option<PublishedMethod>) -> io::Result<Self> {
        stream::hardly_wait(socket)?;
        let policy = pinned.map_or_else(|| Policy::new(&PublishedMethod::ALL), Policy::pinned);
        // A page at most is copied.
        let chooser = Chooser::by(policy.about(Matter::Writes), PublishedMethod::Copy, PAGE_BYTES + 1);
        Ok(Self { chooser, ended_early: 0 })
    }

    /// Hands the next piece of a transfer to the socket, without waiting. `more`: other bytes follow at once, and may share a
    /// segment with the last of these (`MSG_MORE`; sendfile(2) cannot be told).
    ///
    /// Several transfers go one after the other: each has to be done before the next is begun.
    ///
    /// # Errors
    /// See [`TransferError`]. The transfer has not moved.
    pub(super) fn step(
        &mut self,
        transfer: &mut Transfer,
        socket: BorrowedFd<'_>,
        more: bool,
    ) -> Result<Step, TransferError> {
        let left = transfer.range.end - transfer.at;
        if left == 0 {
            return Ok(Step::Done);
        }
        let room = stream::room(socket).map_err(|error| failed("getsockopt(SO_MEMINFO)", error))?;
        let Some(room) = room else { return Ok(Step::SocketFull) };
        let bytes = left.min(room.bytes().min(PIECE_BYTES) as u64) as usize;
        let more = (more || (bytes as u64) < left) && room.is_ample_for(bytes);
        let piece = Piece { at: transfer.at, bytes, more };
        let moved = match &transfer.source {
            Source::Published(data) => self.published(data, piece, socket),
            Source::File(file) => sendfile(file, piece, socket).map(|moved| (moved, Evidence::Unknown)),
            // Not told of more: nobody knows when it comes.
            Source::Pipe(reader) => match splice::from_pipe(reader, socket, bytes, false) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(full_or_empty(reader)),
                moved => {
                    moved.map(|moved| (moved, Evidence::Unknown)).map_err(|error| failed("splice", error))
                }
            },
        };
        match moved {
            Ok((0, _)) => {
                self.ended_early += 1;
                Err(TransferError::Ended { missing: left })
            }
            Ok((bytes, evidence)) => {
                let bytes = bytes as u64;
                transfer.at += bytes;
                Ok(Step::Sent { bytes, evidence })
            }
            Err(TransferError::Refused { source, .. }) if source.kind() == io::ErrorKind::WouldBlock => {
                Ok(Step::SocketFull)
            }
            Err(error) => Err(error),
        }
    }

    /// By the chosen way; by another where the kernel refuses that, unless it was pinned.
    fn published(
        &mut self,
        data: &Published,
        piece: Piece,
        socket: BorrowedFd<'_>,
    ) -> Result<(usize, Evidence), TransferError> {
        loop {
            let choice = self.chooser.choose(work(piece.bytes));
            let started = choice.measured.then(Instant::now);
            let moved = hand_over(choice.method, data.region(), piece, socket);
            match moved {
                Ok(bytes) => {
                    if let Some(started) = started {
                        self.chooser.record(choice, work(bytes), started.elapsed());
                    }
                    return Ok((bytes, self.evidence(choice.method, piece.bytes)));
                }
                Err(TransferError::Refused { source, .. })
                    if source.kind() != io::ErrorKind::WouldBlock
                        && !self.chooser.is_pinned()
                        && choice.method != PublishedMethod::Copy =>
                {
                    self.chooser.rule_out(choice.method, why_not(&source));
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn evidence(&self, method: PublishedMethod, bytes: usize) -> Evidence {
        match method {
            PublishedMethod::Vmsplice | PublishedMethod::Sendfile => Evidence::Unknown,
            PublishedMethod::Copy => self.chooser.copied(bytes.div_ceil(PAGE_BYTES), PAGE_BYTES),
        }
    }

    /// Transfers whose source ended before they were done.
    pub(super) fn ended_early(&self) -> u64 {
        self.ended_early
    }

    /// Which way was chosen for published data and why.
    pub(super) fn explain(&self) -> Explanation<PublishedMethod> {
        self.chooser.explain()
    }
}

/// In pages, so that what a step costs is compared by its length, whatever the socket had room for.
fn work(bytes: usize) -> Work {
    Work { destination: 0, bytes: PAGE_BYTES as u32, count: bytes.div_ceil(PAGE_BYTES) as u32 }
}

fn hand_over(
    method: PublishedMethod,
    data: &Sealed,
    piece: Piece,
    socket: BorrowedFd<'_>,
) -> Result<usize, TransferError> {
    // Within the data, so within the address space.
    let range = piece.at as usize..piece.at as usize + piece.bytes;
    match method {
        PublishedMethod::Vmsplice => vmsplice(data, range, piece.more, socket),
        PublishedMethod::Sendfile => sendfile(data.file(), piece, socket),
        PublishedMethod::Copy => {
            let more = if piece.more { SendFlags::MORE } else { SendFlags::empty() };
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL | more;
            let sent = rustix::io::retry_on_intr(|| rustix::net::send(socket, &data[range.clone()], flags));
            sent.map_err(|error| failed("send", error.into()))
        }
    }
}

fn sendfile(file: &File, piece: Piece, socket: BorrowedFd<'_>) -> Result<usize, TransferError> {
    splice::sendfile(file, piece.at, socket, piece.bytes).map_err(|error| failed("sendfile", error))
}

fn vmsplice(
    data: &Sealed,
    range: Range<usize>,
    more: bool,
    socket: BorrowedFd<'_>,
) -> Result<usize, TransferError> {
    let lent = LentPipe::take().map_err(|error| failed("pipe", error))?;
    let loaded = lent.pipe.load(data, range).map_err(|error| failed("vmsplice", error))?;
    let moved = lent.pipe.empty(socket, loaded, more);
    let moved = moved.map_err(|error| failed("splice", error))?;
    if moved == loaded {
        lent.give_back(); // empty again
    }
    Ok(moved)
}

thread_local! {
    /// One for all sockets of a thread, empty.
    static PIPE: Cell<Option<LentPipe>> = const { Cell::new(None) };
}

struct LentPipe {
    pipe: Pipe,
    /// A forked child has the same pipe: what it put in would come out here.
    generation: Generation,
}

impl LentPipe {
    fn take() -> io::Result<Self> {
        // None where the thread ends and its own are gone.
        let kept = PIPE.try_with(Cell::take).ok().flatten().filter(|kept| !kept.generation.is_past());
        let generation = Generation::current();
        kept.map_or_else(|| Ok(Self { pipe: Pipe::new(PIECE_BYTES)?, generation }), Ok)
    }

    fn give_back(self) {
        let _ = PIPE.try_with(|place| place.set(Some(self)));
    }
}

/// Why moving out of a pipe would have to wait.
fn full_or_empty(reader: &OwnedFd) -> Step {
    if is_empty(reader) { Step::SourceEmpty } else { Step::SocketFull }
}

/// Whether nothing is in a pipe.
pub(super) fn is_empty(reader: impl AsFd) -> bool {
    matches!(rustix::io::ioctl_fionread(reader), Ok(0))
}

/// A call's error, for whom it concerns. `WouldBlock` is told apart by the step.
fn failed(call: &'static str, source: io::Error) -> TransferError {
    use io::ErrorKind as Kind;
    match source.kind() {
        Kind::BrokenPipe
        | Kind::ConnectionReset
        | Kind::ConnectionAborted
        | Kind::NotConnected
        | Kind::TimedOut
        | Kind::HostUnreachable
        | Kind::NetworkUnreachable
        | Kind::NetworkDown => TransferError::Connection(source),
        _ => TransferError::Refused { call, source },
    }
}

fn why_not(error: &io::Error) -> Reason {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS) => Reason::Temporary(
            "there was no descriptor or no memory for it: raise 'ulimit -n', or the memory limit of the cgroup",
        ),
        _ => Reason::Unavailable("the kernel or a sandbox refuses the call"),
    }
}

#[cfg(test)]
mod tests;
