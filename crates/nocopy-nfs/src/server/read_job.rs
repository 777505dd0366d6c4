//! Turns a read call into its reply.

use std::io::IoSliceMut;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;

use nocopy::tcp::Pages;
use rustix::buffer::spare_capacity;
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2, retry_on_intr};

use super::SharedState;
use super::core::{ReadCall, encode_read_reply};
use super::reply_queue::{OutgoingReply, QueuedMemory};
use super::statistics::CopyCause;
use crate::export::{OpenFile, status_from_errno};
use crate::wire::nfs3::{Attributes, NfsResult, Refusal, Status};
use crate::wire::xdr::padding;

const PAGE_BYTES: usize = 4096;

/// Bytes of a read's reply before the bytes of the file.
const HEAD_BYTES: usize = 132;

/// Up to this many bytes a copy costs no more than a pipe.
pub(super) const COPY_BYTES_MAX: usize = 8 << 10;

/// The limit without a pipe, or when much memory is in use. Small, because every client may have one.
const NO_PIPE_BYTES_MAX: usize = 64 << 10;

/// An uncached file is fetched in parts of this size while others are served: the kernel's work for one part
/// delays others on the same processor, and its own readahead, of megabytes, for longer than many reads take.
const FETCH_BYTES: u64 = 64 << 10;

/// How much is fetched in advance for a client that reads a file from start to end.
const AHEAD_BYTES: u64 = 1 << 20;

/// How often to repeat the read of a file whose end moved meanwhile.
const GROWTH_MAX: usize = 4;

/// The result of a read: attributes, bytes, and whether the file ends there.
type ReadOutcome = NfsResult<(Attributes, usize, bool), Option<Attributes>>;

/// Whether a byte of a file can be read without waiting for the disk (which also begins to read it if not);
/// `None` if the file system does not report it. (cachestat(2) reports it for all pages, but not before Linux
/// 6.5, nor for files of other users.)
fn is_byte_cached(file: impl AsFd, offset: u64) -> Option<bool> {
    let read = || preadv2(&file, &mut [IoSliceMut::new(&mut [0])], offset, ReadWriteFlags::NOWAIT);
    match retry_on_intr(read) {
        Ok(_) => Some(true),
        Err(Errno::AGAIN) => Some(false),
        Err(_) => None,
    }
}

#[derive(Debug)]
pub(super) struct ReadJob {
    pub(super) call: ReadCall,
    pub(super) file: Arc<OpenFile>,
}

impl ReadJob {
    /// Whether all bytes of the read are in memory; `None` if the kernel does not report it.
    pub(super) fn is_cached(&self) -> Option<bool> {
        let size = self.file.attributes().ok()?.size;
        let bytes = size.saturating_sub(self.call.offset).min(self.call.bytes as u64);
        if bytes == 0 {
            return Some(true);
        }
        let last = self.call.offset + bytes - 1;
        nocopy::integration::is_cached(&*self.file, self.call.offset, bytes).or_else(|| {
            Some(is_byte_cached(&*self.file, self.call.offset)? && is_byte_cached(&*self.file, last)?)
        })
    }

    /// Requests the pages from the disk without waiting.
    pub(super) fn prefetch(&self) {
        let (begin, bytes) = (self.call.offset, self.call.bytes as u64);
        let before = begin.checked_sub(PAGE_BYTES as u64);
        let is_known = |at| nocopy::integration::is_cached(&*self.file, at, PAGE_BYTES as u64) == Some(true);
        let ahead = if before.is_some_and(is_known) { AHEAD_BYTES } else { 0 };
        let end = begin.saturating_add(bytes + ahead);
        for at in (begin..end).step_by(FETCH_BYTES as usize) {
            // A file system without this reads later.
            let _ = fadvise(&*self.file, at, NonZeroU64::new(FETCH_BYTES.min(end - at)), Advice::WillNeed);
            thread::yield_now();
        }
    }

    /// Reads, and waits for the disk if necessary.
    pub(super) fn make_reply(&self, shared: &SharedState, queued: &QueuedMemory) -> OutgoingReply {
        let bytes = self.call.bytes;
        let copied_bytes = bytes.min(if queued.is_over_share() { NO_PIPE_BYTES_MAX } else { usize::MAX });
        if shared.settings.is_stable {
            return self.reply_by_copy(copied_bytes, CopyCause::Stable);
        }
        if bytes <= COPY_BYTES_MAX {
            return self.reply_by_copy(bytes, CopyCause::Small);
        }
        match shared.pages.take((self.call.offset % PAGE_BYTES as u64) as usize + bytes) {
            Some(pages) => self.reply_by_reference(pages, copied_bytes),
            None => self.reply_by_copy(bytes.min(NO_PIPE_BYTES_MAX), CopyCause::NoPipe),
        }
    }

    fn reply_by_reference(&self, mut pages: Pages, copied_bytes: usize) -> OutgoingReply {
        for attempt in 1..=GROWTH_MAX {
            let count = match pages.fill(&*self.file, Some(self.call.offset), self.call.bytes) {
                Ok(count) => count,
                Err(error) => {
                    return match Errno::from_io_error(&error) {
                        Some(Errno::INVAL) => self.reply_by_copy(copied_bytes, CopyCause::NoSplice),
                        errno => self.refusal_reply(errno.unwrap_or(Errno::IO)),
                    };
                }
            };
            let Some(found) = self.final_outcome(self.outcome_after(count), attempt) else { continue };
            let head = encode_read_reply(self.call.xid, found);
            return match found {
                Ok((_, count, _)) if count > 0 => OutgoingReply::from_pipe(head, pages, padding(count)),
                _ => OutgoingReply::from_bytes(head),
            };
        }
        self.refusal_reply(Errno::IO)
    }

    fn reply_by_copy(&self, bytes: usize, cause: CopyCause) -> OutgoingReply {
        for attempt in 1..=GROWTH_MAX {
            let mut reply = Vec::with_capacity(HEAD_BYTES + bytes + padding(bytes));
            reply.resize(HEAD_BYTES, 0);
            if let Err(error) = self.fill_reply(&mut reply, HEAD_BYTES + bytes) {
                return self.refusal_reply(error);
            }
            let count = reply.len() - HEAD_BYTES;
            let Some(found) = self.final_outcome(self.outcome_after(count), attempt) else { continue };
            let head = encode_read_reply(self.call.xid, found);
            if found.is_err() {
                return OutgoingReply::from_bytes(head);
            }
            reply[..HEAD_BYTES].copy_from_slice(&head);
            reply.resize(reply.len() + padding(count), 0);
            return OutgoingReply::from_copied(reply, cause, count);
        }
        self.refusal_reply(Errno::IO)
    }

    /// Continues reading until a reply has that many bytes, or the file ends.
    fn fill_reply(&self, reply: &mut Vec<u8>, bytes: usize) -> rustix::io::Result<()> {
        while reply.len() < bytes {
            let offset = self.call.offset + (reply.len() - HEAD_BYTES) as u64;
            match retry_on_intr(|| pread(&*self.file, spare_capacity(reply), offset))? {
                0 => break,
                _ => reply.truncate(bytes),
            }
        }
        Ok(())
    }

    /// The attributes and end of the file after that many bytes were read. Where a file that is said to be
    /// empty has bytes (procfs), more may follow.
    fn outcome_after(&self, count: usize) -> ReadOutcome {
        let attributes = self.file.attributes().map_err(|status| Refusal { status, rest: None })?;
        let has_length = attributes.size > 0 || count == 0;
        let is_end = has_length && self.call.offset.saturating_add(count as u64) >= attributes.size;
        Ok((attributes, count, is_end))
    }

    /// `None` if the file is to be read again: nothing was read, and now there is something. Clients treat a
    /// reply without bytes and without end as an error; so a file that has nothing there again and again
    /// ends, whatever length is reported (sysfs).
    fn final_outcome(&self, found: ReadOutcome, attempt: usize) -> Option<ReadOutcome> {
        match found {
            Ok((attributes, 0, false)) if self.call.bytes > 0 => {
                (attempt == GROWTH_MAX).then_some(Ok((attributes, 0, true)))
            }
            found => Some(found),
        }
    }

    fn refusal(&self, status: Status) -> Refusal<Option<Attributes>> {
        Refusal { status, rest: self.file.attributes().ok() }
    }

    fn refusal_reply(&self, error: Errno) -> OutgoingReply {
        OutgoingReply::from_bytes(encode_read_reply(
            self.call.xid,
            Err(self.refusal(status_from_errno(error, Status::Stale))),
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn cached_and_uncached_pages_are_distinguished() {
        const BYTES: u64 = 16 << 20;
        let is_cached = |file: &std::fs::File| nocopy::integration::is_cached(file, BYTES - 4096, 4096);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; BYTES as usize]).unwrap();
        let hint = is_byte_cached(&file, BYTES - 1);
        assert_ne!(hint, Some(false), "it was just written");
        assert_eq!(
            is_cached(&file).is_some() && hint.is_some(),
            is_cached(&file) == Some(true) && hint == Some(true)
        );
        file.sync_all().unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        // Files of a file system in memory are never dropped from memory.
        if is_cached(&file) == Some(false) {
            assert_ne!(is_byte_cached(&file, BYTES - 1), Some(true));
        }
    }
}
