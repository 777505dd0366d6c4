//! Calls without a reply, and their results.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::Arc;

use nocopy::{Buffer, BufferMut};

use super::bad_reply::BadReply;
use super::receive_buffers::{DATA_PIECES_MAX, Pieces};
use super::reply_parser::ExpectedReply;
use crate::wire::nfs3::{Attributes, FileHandle, ReadHead, Status};
use crate::wire::rpc::Reply;
use crate::wire::xdr::padding;

/// The number of a request to the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(super) u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilePosition {
    pub file: FileHandle,
    pub offset: u64,
}

impl FilePosition {
    pub(super) fn advanced_by(self, bytes: usize) -> Self {
        Self { offset: self.offset.saturating_add(bytes as u64), ..self }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    #[error("NFS call: failed {0}; look at the log of the server")]
    Status(StatusText),
    /// The server did not accept the call, whatever its arguments.
    #[error(
        "NFS call: not accepted; the server replied {0:?}; check that it serves NFS version 3 to this user"
    )]
    Refused(Reply),
    #[error("NFS call: not answered; the client stopped waiting for the server; try again")]
    Unanswered,
    #[error("NFS call: not answered correctly; {0}; check that the server speaks NFS version 3")]
    BadReply(#[from] BadReply),
}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        Self::Status(StatusText(status))
    }
}

impl CallError {
    /// The server's status, if that is the cause.
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Status(StatusText(status)) => Some(*status),
            _ => None,
        }
    }
}

/// A status as the middle of an error: `(ENOENT); no such file or directory`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusText(pub Status);

impl std::fmt::Display for StatusText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, words) = match self.0 {
            Status::NotPermitted => ("EPERM", "not permitted"),
            Status::NoEntry => ("ENOENT", "no such file or directory"),
            Status::Io => ("EIO", "the server's disk failed"),
            Status::NoDevice | Status::NoSuchDevice => ("ENODEV", "no such device"),
            Status::Access => ("EACCES", "permission denied"),
            Status::Exists => ("EEXIST", "it exists already"),
            Status::CrossDevice => ("EXDEV", "that lies on another file system"),
            Status::NotDirectory => ("ENOTDIR", "not a directory"),
            Status::IsDirectory => ("EISDIR", "a directory"),
            Status::Invalid => ("EINVAL", "not possible with such a file"),
            Status::FileTooBig => ("EFBIG", "longer than the server's files can be"),
            Status::NoSpace => ("ENOSPC", "no space left on the server"),
            Status::ReadOnlyFileSystem => ("EROFS", "the export is to be read only"),
            Status::TooManyLinks => ("EMLINK", "it has as many links as are possible"),
            Status::NameTooLong => ("ENAMETOOLONG", "the name is too long"),
            Status::NotEmpty => ("ENOTEMPTY", "the directory is not empty"),
            Status::QuotaExceeded => ("EDQUOT", "the user's quota on the server is used up"),
            Status::Stale | Status::BadHandle => ("ESTALE", "the file no longer exists"),
            Status::Remote => ("EREMOTE", "it lies on another server"),
            Status::NotSynchronized => ("NFS3ERR_NOT_SYNC", "it was changed meanwhile"),
            Status::BadCookie => ("NFS3ERR_BAD_COOKIE", "the directory was changed meanwhile"),
            Status::NotSupported => ("NFS3ERR_NOTSUPP", "the server cannot do that"),
            Status::TooSmall => ("NFS3ERR_TOOSMALL", "the server needs more room for its reply"),
            Status::ServerFault => ("NFS3ERR_SERVERFAULT", "the server failed"),
            Status::BadType => ("NFS3ERR_BADTYPE", "the server has no files of that type"),
            Status::Jukebox => ("NFS3ERR_JUKEBOX", "the server is not ready yet"),
        };
        write!(f, "({name}); {words}")
    }
}

#[derive(Debug)]
pub(super) struct ReadRequest {
    pub(super) ticket: Ticket,
    pub(super) buffer: BufferMut,
    /// Place of the buffer's first byte.
    pub(super) place: FilePosition,
    /// Bytes filled by earlier replies, and bytes that the call in flight asks for.
    pub(super) filled: usize,
    pub(super) asked: usize,
    /// The header of the reply that is being received.
    pub(super) head: Option<ReadHead>,
    /// Bytes of that reply in this buffer.
    pub(super) received: usize,
    /// How often the server was not ready.
    pub(super) delays: u32,
    /// Reads of the following bytes of the file, which share the call.
    pub(super) joined: VecDeque<ReadRequest>,
    /// A shared call was refused, so this read gets its own.
    pub(super) is_unshared: bool,
}

impl ReadRequest {
    /// Whether the buffer may be exchanged for another of the pool: it is of the pool, and still empty.
    pub(super) fn is_exchangeable(&self, pool: &Range<usize>) -> bool {
        self.filled == 0 && self.received == 0 && pool.contains(&self.buffer.as_ptr().addr())
    }

    /// The buffer of this call that was posted last, if it was posted after `reading` and may be exchanged
    /// for its buffer.
    pub(super) fn latest_exchangeable_buffer(
        &mut self,
        reading: &Self,
        pool: &Range<usize>,
    ) -> Option<&mut BufferMut> {
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

    pub(super) fn new(ticket: Ticket, buffer: BufferMut, place: FilePosition) -> Self {
        let (filled, asked, received, delays) = (0, 0, 0, 0);
        let (head, joined, is_alone) = (None, VecDeque::new(), false);
        Self { ticket, buffer, place, filled, asked, head, received, delays, joined, is_unshared: is_alone }
    }

    /// Adds memory for the next `bytes` of the reply to `pieces`: its own buffer, then those of joined reads.
    /// Returns for how many bytes there was room.
    pub(super) fn add_buffers<'a>(&'a mut self, bytes: usize, pieces: &mut Pieces<'a>) -> usize {
        let start = self.filled + self.received;
        let (own, joined) = (&mut self.buffer, &mut self.joined);
        let behind = joined.iter_mut().map(|reading| (&mut reading.buffer, 0));
        let mut left = bytes;
        for (buffer, start) in std::iter::once((own, start)).chain(behind).take(DATA_PIECES_MAX) {
            let end = buffer.len().min(start + left);
            left -= end - start;
            pieces.push(IoSliceMut::new(&mut buffer[start..end]));
        }
        bytes - left
    }

    /// Counts `bytes` of the reply as received; `still` are to follow. Returns the reads that are complete,
    /// except the last of the reply.
    pub(super) fn count_received(&mut self, mut bytes: usize, still: usize) -> Vec<Self> {
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

    pub(super) fn is_joinable(&self) -> bool {
        !self.is_unshared && self.filled == 0 && self.asked >= self.buffer.len()
    }

    pub(super) fn end_position(&self) -> FilePosition {
        let last = self.joined.back().unwrap_or(self);
        last.place.advanced_by(last.buffer.len())
    }

    /// Whether its call includes, or included, other reads.
    pub(super) fn is_joined(&self) -> bool {
        self.asked > self.buffer.len() - self.filled
    }

    /// Incomplete reads of the call.
    pub(super) fn read_count(&self) -> usize {
        1 + self.joined.len()
    }

    pub(super) fn into_separate_reads(mut self) -> impl Iterator<Item = Self> {
        let joined = std::mem::take(&mut self.joined);
        std::iter::once(self).chain(joined)
    }
}

/// A write in progress, of a buffer or a part of one.
#[derive(Debug)]
pub(super) struct WriteRequest {
    pub(super) buffer: Arc<Buffer>,
    pub(super) range: Range<usize>,
    /// Place of the first byte of the range.
    pub(super) place: FilePosition,
    /// How often the server was not ready.
    pub(super) delays: u32,
}

impl WriteRequest {
    pub(super) fn data(&self) -> &[u8] {
        &self.buffer[self.range.clone()]
    }

    /// Adds a piece of the same buffer that follows; returns whether it is one.
    pub(super) fn append_if_adjacent(&mut self, piece: &Self) -> bool {
        let follows = Arc::ptr_eq(&self.buffer, &piece.buffer) && self.range.end == piece.range.start;
        if follows {
            self.range.end = piece.range.end;
        }
        follows
    }

    pub(super) fn split_at(self, bytes: usize) -> (Self, Self) {
        let Self { buffer, range, place, delays } = self;
        let middle = range.start + bytes;
        let rest = Self {
            buffer: Arc::clone(&buffer),
            range: middle..range.end,
            place: place.advanced_by(bytes),
            delays,
        };
        (Self { buffer, range: range.start..middle, place, delays }, rest)
    }
}

#[derive(Debug)]
pub(super) enum Request {
    Plain { ticket: Ticket, bytes_max: usize },
    Read(ReadRequest),
    Write(WriteRequest),
    Commit { file: FileHandle },
}

#[derive(Debug)]
pub(super) struct Call {
    /// The record without the data of a write.
    pub(super) head: Vec<u8>,
    pub(super) request: Request,
    /// The connection it was sent by; `None` while queued.
    pub(super) connection: Option<usize>,
    pub(super) times_sent: u32,
}

/// The longest reply to a write or a commit: a verifier of 400 bytes, attributes before and after.
const CHANGE_REPLY_BYTES_MAX: usize = 1024;

impl Call {
    pub(super) fn expected_reply(&self) -> ExpectedReply {
        match &self.request {
            Request::Plain { bytes_max, .. } => ExpectedReply::Results { bytes_max: *bytes_max },
            Request::Read(reading) => ExpectedReply::Data { bytes_max: reading.asked },
            Request::Write(_) | Request::Commit { .. } => {
                ExpectedReply::Results { bytes_max: CHANGE_REPLY_BYTES_MAX }
            }
        }
    }

    /// How many requests the reply will answer.
    pub(super) fn request_count(&self) -> usize {
        match &self.request {
            Request::Read(reading) => reading.read_count(),
            _ => 1,
        }
    }

    /// The read, if the call was not sent yet and may be shared.
    pub(super) fn joinable_unsent_read(&self) -> Option<&ReadRequest> {
        match &self.request {
            Request::Read(reading) if self.times_sent == 0 && reading.is_joinable() => Some(reading),
            _ => None,
        }
    }

    /// The bytes to send: the record up to its data, the data, the padding.
    pub(super) fn record_pieces(&self) -> [&[u8]; 3] {
        let data = match &self.request {
            Request::Write(writing) => writing.data(),
            _ => &[],
        };
        [&self.head, data, &[0; 3][..padding(data.len())]]
    }
}

#[derive(Debug)]
pub enum Completion {
    /// The results of a call, not decoded.
    Results {
        /// What [`Core::call`](super::Core::call) returned.
        ticket: Ticket,
        /// The bytes behind the header of the reply.
        results: Result<Vec<u8>, CallError>,
        /// The call was sent again after a connection was lost. A server that had executed it and does not
        /// remember may now return an error.
        is_repeated: bool,
    },
    Filled {
        /// What [`Core::post`](super::Core::post) returned.
        ticket: Ticket,
        buffer: BufferMut,
        /// Where in the file the data lies.
        place: FilePosition,
        outcome: Result<ReadMetadata, CallError>,
    },
    Committed {
        /// What [`Core::commit`](super::Core::commit) returned.
        ticket: Ticket,
        file: FileHandle,
        /// The first error of its writes or of the commit; it is then unknown which writes are on the disk.
        outcome: Result<(), CallError>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadMetadata {
    /// Whether these are the last bytes of the file.
    pub is_end: bool,
    /// The attributes of the file at that time, if the server sent them.
    pub attributes: Option<Attributes>,
}
