//! Bytes that are sent to a stream socket by reference to their pages: published data and ranges of files.
//!
//! A [`RangeTransfer`] is a source and how much of it was sent; a [`ReferenceSender`] sends the next piece of
//! it. Between two steps no bytes are in a pipe: the bytes that a step reports were accepted by the socket,
//! and all others are still to be sent. (vmsplice(2) needs a pipe. References that the socket did not accept
//! are discarded with the pipe and made again; that is rare, because a piece is no longer than the socket's
//! room, or the kernel waits for room. So thousands of full sockets do not need a pipe each.)

use nocopy_proto::errno::ErrorCause;
use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::net::SendFlags;

use super::Published;
use crate::engine::policy::{ExclusionReason, Policy, PolicyExplanation, Work, WorkUnit};
use crate::events::Half;
use crate::facts::evidence::Evidence;
use crate::facts::rejected::Reason as NotSent;
use crate::sys::clock::processor_time;
use crate::sys::fork::Generation;
use crate::sys::sealed::SealedFile;
use crate::sys::splice::{self, Pipe};
use crate::sys::stream;

/// The most bytes of a step: large compared with a call's cost, and far below a user's limit of pipe memory.
const PIECE_BYTES: usize = 256 << 10;

/// From this length on a piece is passed whole to a kernel that may wait: as many bytes as splice(2) hands to
/// the socket at a time.
const LONG_BYTES: usize = 64 << 10;

const PAGE_BYTES: usize = 4096;

/// How published data is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PublishedMethod {
    /// References to its mapped pages, through a pipe (vmsplice(2), splice(2)).
    Vmsplice,
    /// References to the pages of its file (sendfile(2)).
    Sendfile,
    /// A copy (send(2)).
    Copy,
}

impl PublishedMethod {
    /// All methods, in the order in which they are tried.
    pub const ALL: [Self; 3] = [Self::Vmsplice, Self::Sendfile, Self::Copy];

    /// Its name, as used by the command line and the bench.
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

/// A range of bytes being sent, and how many of them were sent.
#[derive(Debug)]
pub(super) struct RangeTransfer {
    source: TransferSource,
    /// The next byte of the source that the socket has not accepted.
    at: u64,
    range: Range<u64>,
}

#[derive(Debug)]
enum TransferSource {
    Published(Published),
    File(Arc<File>),
}

impl RangeTransfer {
    /// A range of published data, in bytes.
    pub(super) fn published(data: &Published, range: Range<u64>) -> Result<Self, NotSent> {
        let range = check_range(range, data.len() as u64)?;
        Ok(Self::from_start(TransferSource::Published(data.clone()), range))
    }

    /// A range of a file, in bytes.
    ///
    /// The file's own pages are sent, and the kernel never reports when it no longer reads them. So a write
    /// to the file changes the bytes that the peer receives, even some time after everything was handed over:
    /// until the peer has acknowledged them or, if it is on this machine, until it has *read* them. A file
    /// that is replaced by renaming another over it is safe; one that is written in place is not: publish its
    /// bytes, or send them from a buffer.
    ///
    /// If the file becomes shorter before the range was sent, the next step returns an error. Errors: the
    /// range does not lie within the file as it is now. (Special files have no known length.)
    pub(super) fn file(file: Arc<File>, range: Range<u64>) -> Result<Self, NotSent> {
        let about = file.metadata().map_err(NotSent::System)?;
        let range = check_range(range, if about.is_file() { about.len() } else { u64::MAX })?;
        Ok(Self::from_start(TransferSource::File(file), range))
    }

    fn from_start(source: TransferSource, range: Range<u64>) -> Self {
        Self { source, at: range.start, range }
    }

    /// Bytes that were not sent.
    pub(super) fn remaining(&self) -> u64 {
        // No underflow: `at` only grows by what was accepted of a piece, which is never longer than what is
        // left.
        self.range.end - self.at
    }

    /// Bytes of the next piece, if there is room for it. It ends with a page, so that it fits into a pipe.
    fn next_piece_bytes(&self) -> usize {
        let bytes_max = PIECE_BYTES as u64 - self.at % PAGE_BYTES as u64;
        self.remaining().min(bytes_max) as usize
    }
}

fn check_range(range: Range<u64>, bytes: u64) -> Result<Range<u64>, NotSent> {
    if range.start > range.end || range.end > bytes {
        return Err(NotSent::OutOfRange { start: range.start, end: range.end, bytes });
    }
    Ok(range)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(super) enum StepOutcome {
    /// The socket accepted that many bytes. Call again, unless the transfer is done.
    Sent {
        /// At least 1.
        bytes: u64,
        /// [`Evidence::Unknown`] for sends by reference, because nothing reports whether they are copied.
        evidence: Evidence,
    },
    /// The socket has no room now: wait until it can be written to (`POLLOUT`).
    SocketFull,
    Done,
}

/// Why a transfer cannot continue. Bytes accepted before were sent.
#[derive(Debug, thiserror::Error)]
pub(super) enum TransferError {
    #[error(
        "source: it ended with {missing} bytes still to be sent; the file became shorter; close the connection, since the peer lacks these bytes"
    )]
    Ended { missing: u64 },
    /// The connection or its sending side is closed.
    #[error("connection: nothing more can be sent{cause}; connect again", cause = ErrorCause(.0))]
    Connection(#[source] io::Error),
    /// The kernel refuses to move such bytes to such a socket.
    #[error(
        "{call}: refused{cause}; the kernel or a sandbox does not allow it here, or the source cannot be read; send the bytes from a buffer", cause = ErrorCause(.source))]
    Refused { call: &'static str, source: io::Error },
}

/// State of a stream socket for sending by reference: the choice of the fastest method on it.
///
/// A step never waits for a non-blocking socket. Neither splice(2) nor sendfile(2) has a flag against
/// waiting, so for a blocking socket [`new`](Self::new) sets `SO_SNDTIMEO` to the minimum: without room a
/// step waits for one tick of the kernel's clock (1 to 10 ms).
///
/// No step raises `SIGPIPE`.
#[derive(Debug)]
pub(super) struct ReferenceSender {
    policy: Policy<PublishedMethod>,
    /// Files that ended before the range that was to be sent.
    pub(super) ended_early: u64,
    /// A call that could wait had no room for all of its bytes: the peer is slow, or the socket does not
    /// block. From then on pieces are cut to the room, until a whole piece fits.
    is_slow: bool,
}

/// Facts that the caller of a step knows.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StepOptions {
    /// Other bytes follow at once, and may share a segment with the last of these (`MSG_MORE`; sendfile(2)
    /// has no such flag).
    pub(super) more: bool,
    /// The caller waits for room anyway. Then a long piece is passed whole, and if the socket is blocking,
    /// the kernel waits inside the call: fewer and larger calls. Also, the kernel enlarges the send buffer
    /// only for callers that have waited.
    pub(super) waits: bool,
}

#[derive(Debug, Clone, Copy)]
struct TransferPiece {
    at: u64,
    bytes: usize,
    more: bool,
    /// Whether the kernel may wait for room.
    waits: bool,
    /// Whether it was not cut to the socket's room.
    is_whole: bool,
}

impl TransferPiece {
    fn into_accepted(self, bytes: usize) -> AcceptedPiece {
        AcceptedPiece { bytes, is_all: bytes == self.bytes }
    }
}

impl ReferenceSender {
    /// For a connected TCP socket; the method for published data is `pinned`, or found by measurement.
    pub(super) fn new(socket: BorrowedFd<'_>, pinned: Option<PublishedMethod>) -> io::Result<Self> {
        stream::limit_blocking_time(socket)?;
        let policy = pinned.map_or_else(|| Policy::new(&PublishedMethod::ALL), Policy::pinned);
        // At most a page is copied.
        let mut policy = policy
            .with_work_unit(WorkUnit::Writes)
            .with_plain_call(PublishedMethod::Copy, PAGE_BYTES as u32 + 1);
        policy.report_as(Half::TcpSender);
        Ok(Self { policy, ended_early: 0, is_slow: false })
    }

    /// Passes the next piece of a transfer to the socket.
    ///
    /// Transfers are sent one after the other: each has to be done before the next is begun.
    /// Errors: see [`TransferError`]. Nothing of the transfer was sent by this call.
    pub(super) fn send_next_piece(
        &mut self,
        transfer: &mut RangeTransfer,
        socket: BorrowedFd<'_>,
        now: StepOptions,
    ) -> Result<StepOutcome, TransferError> {
        let left = transfer.remaining();
        if left == 0 {
            return Ok(StepOutcome::Done);
        }
        let now = StepOptions { waits: now.waits && !self.is_slow, ..now };
        let moved = limit_piece_to_room(transfer, socket, now).and_then(|piece| match &transfer.source {
            TransferSource::Published(data) => self.send_published_piece(data, piece, socket),
            TransferSource::File(file) => {
                Ok((self.note_room(piece, sendfile(file, piece, socket)?), Evidence::Unknown))
            }
        });
        match moved {
            Ok((0, _)) => {
                self.ended_early += 1;
                Err(TransferError::Ended { missing: left })
            }
            Ok((bytes, evidence)) => {
                let bytes = bytes as u64;
                transfer.at += bytes;
                Ok(StepOutcome::Sent { bytes, evidence })
            }
            Err(TransferError::Refused { source, .. }) if source.kind() == io::ErrorKind::WouldBlock => {
                Ok(StepOutcome::SocketFull)
            }
            Err(error) => Err(error),
        }
    }

    /// Notes whether the socket had room for the piece; returns the bytes of it that were moved.
    fn note_room(&mut self, piece: TransferPiece, moved: AcceptedPiece) -> usize {
        if piece.waits {
            self.is_slow = !moved.is_all;
        } else if piece.is_whole {
            self.is_slow = false;
        }
        moved.bytes
    }

    /// Sends by the chosen method, or by another if the kernel refuses it, unless it was pinned. Processor
    /// time is measured, because the time that a peer does not read does not depend on the method.
    fn send_published_piece(
        &mut self,
        data: &Published,
        piece: TransferPiece,
        socket: BorrowedFd<'_>,
    ) -> Result<(usize, Evidence), TransferError> {
        loop {
            let choice = self.policy.choose(page_work(piece.bytes));
            let started = choice.measured.then(processor_time);
            match send_by_method(choice.method, data.sealed_file(), piece, socket) {
                Ok(moved) => {
                    let bytes = self.note_room(piece, moved);
                    if let Some(started) = started {
                        self.policy.record(
                            choice,
                            page_work(bytes),
                            processor_time().saturating_sub(started),
                        );
                    }
                    let evidence = match choice.method {
                        PublishedMethod::Vmsplice | PublishedMethod::Sendfile => Evidence::Unknown,
                        PublishedMethod::Copy => {
                            self.policy.copied_evidence(page_work(bytes).count, PAGE_BYTES)
                        }
                    };
                    return Ok((bytes, evidence));
                }
                Err(TransferError::Refused { source, .. })
                    if source.kind() != io::ErrorKind::WouldBlock
                        && !self.policy.is_pinned()
                        && choice.method != PublishedMethod::Copy =>
                {
                    self.policy.rule_out(choice.method, refusal_reason(&source));
                }
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn explain(&self) -> PolicyExplanation<PublishedMethod> {
        self.policy.explain()
    }
}

fn limit_piece_to_room(
    transfer: &RangeTransfer,
    socket: BorrowedFd<'_>,
    now: StepOptions,
) -> Result<TransferPiece, TransferError> {
    let (at, bytes) = (transfer.at, transfer.next_piece_bytes());
    if now.waits && bytes >= LONG_BYTES {
        // Without "more": held-back bytes would be few of so many, and could fill a small buffer.
        return Ok(TransferPiece { at, bytes, more: false, waits: true, is_whole: true });
    }
    let room =
        stream::send_room(socket).and_then(|room| room.ok_or_else(|| io::ErrorKind::WouldBlock.into()));
    let room = room.map_err(transfer_error("getsockopt(SO_MEMINFO)"))?;
    let is_whole = bytes <= room.bytes();
    let bytes = bytes.min(room.bytes());
    let more = (now.more || (bytes as u64) < transfer.remaining()) && room.is_ample_for(bytes);
    Ok(TransferPiece { at, bytes, more, waits: false, is_whole })
}

struct AcceptedPiece {
    bytes: usize,
    /// Whether the socket had room for all that it was handed.
    is_all: bool,
}

/// In pages, so that costs are compared by length, whatever room the socket had.
fn page_work(bytes: usize) -> Work {
    Work { destination: 0, bytes: PAGE_BYTES as u32, count: bytes.div_ceil(PAGE_BYTES) as u32 }
}

fn send_by_method(
    method: PublishedMethod,
    data: &SealedFile,
    piece: TransferPiece,
    socket: BorrowedFd<'_>,
) -> Result<AcceptedPiece, TransferError> {
    // Within the data, so within the address space.
    let range = piece.at as usize..piece.at as usize + piece.bytes;
    match method {
        PublishedMethod::Vmsplice => vmsplice(data, range, piece.more, socket),
        PublishedMethod::Sendfile => sendfile(data.file(), piece, socket),
        PublishedMethod::Copy => {
            let mut flags = SendFlags::NOSIGNAL;
            flags.set(SendFlags::MORE, piece.more);
            flags.set(SendFlags::DONTWAIT, !piece.waits);
            let sent = rustix::io::retry_on_intr(|| rustix::net::send(socket, &data[range.clone()], flags));
            sent.map(|bytes| piece.into_accepted(bytes)).map_err(|error| transfer_error("send")(error.into()))
        }
    }
}

fn sendfile(
    file: &File,
    piece: TransferPiece,
    socket: BorrowedFd<'_>,
) -> Result<AcceptedPiece, TransferError> {
    let sent = splice::sendfile(file, piece.at, socket, piece.bytes);
    sent.map(|bytes| piece.into_accepted(bytes)).map_err(transfer_error("sendfile"))
}

fn vmsplice(
    data: &SealedFile,
    range: Range<usize>,
    more: bool,
    socket: BorrowedFd<'_>,
) -> Result<AcceptedPiece, TransferError> {
    let lent = ForkCheckedPipe::take_or_open().map_err(transfer_error("pipe"))?;
    let loaded = lent.pipe.load_references(data, range).map_err(transfer_error("vmsplice"))?;
    let moved = lent.pipe.empty_into(socket, None, loaded, more).map_err(transfer_error("splice"))?;
    let is_all = moved == loaded;
    if is_all {
        lent.store_for_thread(); // empty again
    }
    Ok(AcceptedPiece { bytes: moved, is_all })
}

thread_local! {
    /// One empty pipe for all sockets of a thread.
    static PIPE: Cell<Option<ForkCheckedPipe>> = const { Cell::new(None) };
}

struct ForkCheckedPipe {
    pipe: Pipe,
    /// Detects a forked child, which has the same pipe: bytes that it writes would appear here.
    generation: Generation,
}

impl ForkCheckedPipe {
    fn take_or_open() -> io::Result<Self> {
        // None while the thread ends and its thread-locals are dropped.
        let kept = PIPE.try_with(Cell::take).ok().flatten().filter(|kept| !kept.generation.is_outdated());
        let generation = Generation::current();
        kept.map_or_else(|| Ok(Self { pipe: Pipe::new(PIECE_BYTES)?, generation }), Ok)
    }

    fn store_for_thread(self) {
        let _ = PIPE.try_with(|place| place.set(Some(self)));
    }
}

/// The error of a call, by its cause. The step handles `WouldBlock`.
fn transfer_error(call: &'static str) -> impl FnOnce(io::Error) -> TransferError {
    use io::ErrorKind as Kind;
    move |source| match source.kind() {
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

fn refusal_reason(error: &io::Error) -> ExclusionReason {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS) => ExclusionReason::Temporary(
            "there was no descriptor or no memory for it: raise 'ulimit -n', or the memory limit of the cgroup",
        ),
        _ => ExclusionReason::Unavailable("the kernel or a sandbox refuses the call"),
    }
}

#[cfg(test)]
mod tests;
