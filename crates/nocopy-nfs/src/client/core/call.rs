//! A call that has no reply yet, and what is known when it has one.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::Arc;

use nocopy::Buffer;

use super::bad_reply::BadReply;
use super::incoming::Expected;
use super::space::{DATA_PIECES_MAX, Pieces};
use crate::wire::nfs3::{Attributes, FileHandle, ReadHead, Status};
use crate::wire::rpc::Reply;
use crate::wire::xdr::padding;

/// What was asked of the core, told apart by a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(super) u64);

/// A place in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: FileHandle,
    /// Bytes from its start.
    pub offset: u64,
}

impl Place {
    pub(super) fn behind(self, bytes: usize) -> Self {
        Self { offset: self.offset.saturating_add(bytes as u64), ..self }
    }
}

/// Why a call did not do what it was to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The server says why.
    #[error("{0}")]
    Status(StatusText),
    /// The server did not even look at the arguments.
    #[error("the server does not take the call ({0:?})")]
    Refused(Reply),
    /// It was given up.
    #[error("the server does not answer")]
    Unanswered,
    /// A correct server never says that.
    #[error("the reply is not one to this call: {0}")]
    BadReply(#[from] BadReply),
}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        Self::Status(StatusText(status))
    }
}

impl CallError {
    /// What the server said, if that is the cause.
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Status(StatusText(status)) => Some(*status),
            _ => None,
        }
    }
}

/// A status in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusText(pub Status);

impl std::fmt::Display for StatusText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            Status::NotPermitted => "not permitted (EPERM)",
            Status::NoEntry => "no such file or directory (ENOENT)",
            Status::Io => "the server's disk failed (EIO)",
            Status::NoDevice | Status::NoSuchDevice => "no such device (ENODEV)",
            Status::Access => "permission denied (EACCES)",
            Status::Exists => "it exists already (EEXIST)",
            Status::CrossDevice => "that lies on another file system (EXDEV)",
            Status::NotDirectory => "not a directory (ENOTDIR)",
            Status::IsDirectory => "a directory (EISDIR)",
            Status::Invalid => "not possible with such a file (EINVAL)",
            Status::FileTooBig => "longer than the server's files can be (EFBIG)",
            Status::NoSpace => "no space left on the server (ENOSPC)",
            Status::ReadOnlyFileSystem => "the export is to be read only (EROFS)",
            Status::TooManyLinks => "it has as many links as are possible (EMLINK)",
            Status::NameTooLong => "the name is too long (ENAMETOOLONG)",
            Status::NotEmpty => "the directory is not empty (ENOTEMPTY)",
            Status::QuotaExceeded => "the user's quota on the server is used up (EDQUOT)",
            Status::Stale | Status::BadHandle => "the file is not there any more (ESTALE)",
            Status::Remote => "it lies on another server (EREMOTE)",
            Status::NotSynchronized => "it was changed meanwhile (NFS3ERR_NOT_SYNC)",
            Status::BadCookie => "the directory was changed meanwhile (NFS3ERR_BAD_COOKIE)",
            Status::NotSupported => "the server cannot do that (NFS3ERR_NOTSUPP)",
            Status::TooSmall => "the server needs more room for its reply (NFS3ERR_TOOSMALL)",
            Status::ServerFault => "the server failed (NFS3ERR_SERVERFAULT)",
            Status::BadType => "the server has no files of that type (NFS3ERR_BADTYPE)",
            Status::Jukebox => "the server is not ready yet (NFS3ERR_JUKEBOX)",
        })
    }
}

/// Bytes that are being read into a posted buffer.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) ticket: Ticket,
    pub(super) buffer: Buffer,
    /// Of the buffer's first byte.
    pub(super) place: Place,
    /// What the file's replies have brought so far, and what the call in flight asks for behind that.
    pub(super) filled: usize,
    pub(super) asked: usize,
    /// Of the reply that is being received.
    pub(super) head: Option<ReadHead>,
    /// So many of its bytes are in this buffer.
    pub(super) received: usize,
    /// How often the server was not ready.
    pub(super) delays: u32,
    /// Reads of what follows in the file, each behind the one before it: the same call asks for them, too.
    pub(super) joined: VecDeque<Reading>,
    /// A call that asked for more than this was refused, so this one is asked for alone.
    pub(super) is_alone: bool,
}

impl Reading {
    /// Whether it may be read into another buffer of the pool: nothing has been received, and it is memory of the pool.
    pub(super) fn is_exchangeable(&self, pool: &Range<usize>) -> bool {
        self.filled == 0 && self.received == 0 && pool.contains(&self.buffer.as_ptr().addr())
    }

    /// The buffer that was posted last of those of its call, if it was posted after that read and may be exchanged for its buffer.
    pub(super) fn latest_for(&mut self, reading: &Self, pool: &Range<usize>) -> Option<&mut Buffer> {
        let is_alike = |other: &Self| {
            other.is_exchangeable(pool)
                && other.buffer.len() == reading.buffer.len()
                && other.ticket > reading.ticket
        };
        match self.joined.iter().rposition(is_alike) {
            Some(number) => Some(&mut self.joined[number].buffer),
            None => is_alike(self).then_some(&mut self.buffer),
        }
    }

    /// Into a buffer, of which nothing is filled.
    pub(super) fn new(ticket: Ticket, buffer: Buffer, place: Place) -> Self {
        let (filled, asked, received, delays) = (0, 0, 0, 0);
        let (head, joined, is_alone) = (None, VecDeque::new(), false);
        Self { ticket, buffer, place, filled, asked, head, received, delays, joined, is_alone }
    }

    /// Where the next bytes of the reply go, at most so many: in its own buffer and in those behind it, as far as there is room in `pieces`.
    /// Returns for how many there is.
    pub(super) fn space<'a>(&'a mut self, bytes: usize, pieces: &mut Pieces<'a>) -> usize {
        let start = self.filled + self.received;
        let (own, joined) = (&mut self.buffer, &mut self.joined);
        let behind = joined.iter_mut().map(|reading| (&mut reading.buffer, 0));
        let mut left = bytes;
        for (buffer, start) in std::iter::once((own, start)).chain(behind).take(DATA_PIECES_MAX) {
            let memory = buffer.as_mut().expect("looked at when it was posted");
            let end = memory.len().min(start + left);
            left -= end - start;
            pieces.push(IoSliceMut::new(&mut memory[start..end]));
        }
        bytes - left
    }

    /// Counts bytes of the reply that were received into that space, of which so many are still to come behind them. Returns the reads that
    /// have all their bytes, but not the last one of the reply.
    pub(super) fn advance(&mut self, mut bytes: usize, still: usize) -> Vec<Self> {
        let mut full = Vec::new();
        loop {
            let room = self.buffer.len() - self.filled - self.received;
            let now = bytes.min(room);
            self.received += now;
            bytes -= now;
            if now < room || bytes + still == 0 {
                return full;
            }
            let Some(mut next) = self.joined.pop_front() else { return full };
            (next.head, next.asked) = (self.head, self.asked);
            next.joined = std::mem::take(&mut self.joined);
            self.filled = self.buffer.len();
            full.push(std::mem::replace(self, next));
        }
    }

    /// Whether a call that has not been sent may ask for it and for more.
    pub(super) fn is_joinable(&self) -> bool {
        !self.is_alone && self.filled == 0 && self.asked >= self.buffer.len()
    }

    /// Where the last of the reads of its call ends.
    pub(super) fn end(&self) -> Place {
        let last = self.joined.back().unwrap_or(self);
        last.place.behind(last.buffer.len())
    }

    /// Whether the call that it is asked for by asks, or asked, for others, too.
    pub(super) fn is_joined(&self) -> bool {
        self.asked > self.buffer.len() - self.filled
    }

    /// Of its call, those that do not have all their bytes.
    pub(super) fn count(&self) -> usize {
        1 + self.joined.len()
    }

    /// This one and those that were joined with it, each by itself.
    pub(super) fn split(mut self) -> impl Iterator<Item = Self> {
        let joined = std::mem::take(&mut self.joined);
        std::iter::once(self).chain(joined)
    }
}

/// Bytes that are being written: a buffer, or a part of one.
#[derive(Debug)]
pub(super) struct Writing {
    pub(super) buffer: Arc<Buffer>,
    pub(super) range: Range<usize>,
    /// Of the first byte of the range.
    pub(super) place: Place,
    /// How often the server was not ready.
    pub(super) delays: u32,
}

impl Writing {
    pub(super) fn data(&self) -> &[u8] {
        &self.buffer[self.range.clone()]
    }

    /// Its first bytes, and the rest.
    pub(super) fn split(self, bytes: usize) -> (Self, Self) {
        let Self { buffer, range, place, delays } = self;
        let middle = range.start + bytes;
        let rest = Self {
            buffer: Arc::clone(&buffer),
            range: middle..range.end,
            place: place.behind(bytes),
            delays,
        };
        (Self { buffer, range: range.start..middle, place, delays }, rest)
    }
}

/// What a call is for.
#[derive(Debug)]
pub(super) enum Work {
    Plain { ticket: Ticket, bytes_max: usize },
    Read(Reading),
    Write(Writing),
    Commit { file: FileHandle },
}

/// A call that has no reply yet.
#[derive(Debug)]
pub(super) struct Call {
    /// The record, but for the data of a write.
    pub(super) head: Vec<u8>,
    pub(super) work: Work,
    /// The connection it was sent by; `None` while it waits to be sent.
    pub(super) connection: Option<usize>,
    pub(super) times_sent: u32,
}

/// The longest reply to a write or a commit: a verifier of 400 bytes, attributes before and after.
const CHANGE_REPLY_BYTES_MAX: usize = 1024;

impl Call {
    pub(super) fn expected(&self) -> Expected {
        match &self.work {
            Work::Plain { bytes_max, .. } => Expected::Results { bytes_max: *bytes_max },
            Work::Read(reading) => Expected::Data { bytes_max: reading.asked },
            Work::Write(_) | Work::Commit { .. } => Expected::Results { bytes_max: CHANGE_REPLY_BYTES_MAX },
        }
    }

    /// How many things were asked for that its reply answers.
    pub(super) fn count(&self) -> usize {
        match &self.work {
            Work::Read(reading) => reading.count(),
            _ => 1,
        }
    }

    /// A read that has not been sent yet.
    pub(super) fn unsent_read(&self) -> Option<&Reading> {
        match &self.work {
            Work::Read(reading) if self.times_sent == 0 && reading.is_joinable() => Some(reading),
            _ => None,
        }
    }

    /// What is sent: the record up to its data, the data, and what fills them up.
    pub(super) fn pieces(&self) -> [&[u8]; 3] {
        let data = match &self.work {
            Work::Write(writing) => writing.data(),
            _ => &[],
        };
        [&self.head, data, &[0; 3][..padding(data.len())]]
    }
}

/// What has become of something that was asked.
#[derive(Debug)]
pub enum Done {
    /// The results of a call, as they came; they are still to be taken apart.
    Results {
        /// What [`Core::call`](super::Core::call) returned.
        ticket: Ticket,
        /// The bytes behind the head of the reply.
        results: Result<Vec<u8>, CallError>,
        /// The call was sent again after its connection was lost: a server that had made it before, and does not remember that, answers
        /// as if it could not be made.
        is_repeated: bool,
    },
    /// A posted buffer comes back.
    Filled {
        /// What [`Core::post`](super::Core::post) returned.
        ticket: Ticket,
        /// As long as what was read, with it.
        buffer: Buffer,
        /// Where in the file that lies.
        place: Place,
        /// How it ended.
        outcome: Result<ReadEnd, CallError>,
    },
    /// All that was written to a file before is on the server's disk, or is not.
    Committed {
        /// What [`Core::commit`](super::Core::commit) returned.
        ticket: Ticket,
        /// The file.
        file: FileHandle,
        /// The first error of its writes, or of the commit; what was written is then not known.
        outcome: Result<(), CallError>,
    },
}

/// How a read ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadEnd {
    /// The file ended with these bytes, when the server looked.
    pub is_end: bool,
    /// What the server knew of the file then.
    pub attributes: Option<Attributes>,
}
