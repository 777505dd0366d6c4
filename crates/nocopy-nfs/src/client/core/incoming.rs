//! One connection's bytes, taken apart: which belong to a reply's head, and which to a file.

use std::mem;

use super::bad_reply::BadReply;
use crate::wire::nfs3::{Attributes, NfsResult, ReadHead};
use crate::wire::record::MARK_BYTES;
use crate::wire::rpc::Reply;
use crate::wire::xdr::{Reader, XdrError, padding};

/// What stands before the bytes of a file where the server tells its attributes, and nothing in its verifier: so much is received of
/// a head at first. A head that is longer is received in two parts; of a shorter one, what lies behind it came along.
const HEAD_BYTES: usize = 132;

/// The last fragment of a record is marked.
const LAST: u32 = 1 << 31;

/// The longest reply to a read that has no bytes of a file: a verifier of 400 bytes, a status and attributes.
const REFUSAL_BYTES_MAX: usize = 640;

/// What is expected in reply to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    /// Results, in a record of at most so many bytes.
    Results { bytes_max: usize },
    /// At most so many bytes of a file.
    Data { bytes_max: usize },
}

/// What has been received.
#[derive(Debug)]
pub(super) enum Step {
    /// A whole record, which has no bytes of a file, or has come in several fragments.
    Record { xid: u32, record: Vec<u8> },
    /// The head of a reply to a read, and of the bytes of the file those that came along.
    Data { xid: u32, head: ReadHead, first: Vec<u8> },
    /// All bytes of the file that this reply has.
    End { xid: u32 },
    /// A part of a record, which was put to those before it.
    Fragment,
}

/// What cannot be understood, and the call whose reply it is, if that is known.
pub(super) type Broken = (Option<u32>, BadReply);

/// The replies of one connection, as far as they have come.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    /// Received, and not yet understood.
    bytes: Vec<u8>,
    /// So many at their end are space to receive into.
    open: usize,
    /// So many of them there have to be before there is more to understand.
    needed: usize,
    /// Fragments of a record before its last one.
    fragments: Vec<u8>,
    /// The bytes of a file that come next.
    data: Option<Data>,
}

#[derive(Debug, Clone, Copy)]
struct Data {
    xid: u32,
    left: usize,
    padding: usize,
}

impl Incoming {
    /// The call for whose buffer the next bytes are, and how many of them.
    pub(super) fn data(&self) -> Option<(u32, usize)> {
        self.data.filter(|data| data.left > 0).map(|data| (data.xid, data.left))
    }

    /// Where the bytes behind those are to be received.
    pub(super) fn open(&mut self) -> &mut [u8] {
        self.close(0);
        let received = self.bytes.len();
        self.open = self.needed.max(HEAD_BYTES).saturating_sub(received).max(1);
        self.bytes.resize(received + self.open, 0);
        &mut self.bytes[received..]
    }

    /// So many bytes were received there.
    pub(super) fn close(&mut self, bytes: usize) {
        let unused = self.open.checked_sub(bytes).expect("no more is received than there is space for");
        self.bytes.truncate(self.bytes.len() - unused);
        self.open = 0;
    }

    /// So many bytes were received into the buffer of the call that [`data`](Self::data) names.
    pub(super) fn note_data(&mut self, bytes: usize) {
        if let Some(data) = &mut self.data {
            data.left -= bytes;
        }
    }

    /// Nothing has been received of a reply that is not whole.
    pub(super) fn is_between_replies(&self) -> bool {
        self.bytes.len() == self.open && self.fragments.is_empty() && self.data.is_none()
    }

    /// What the received bytes mean; `None` until more of them are there.
    pub(super) fn next(
        &mut self,
        expected: impl Fn(u32) -> Option<Expected>,
    ) -> Result<Option<Step>, Broken> {
        if let Some(Data { xid, left, padding }) = self.data {
            self.needed = padding + HEAD_BYTES;
            if left > 0 || self.bytes.len() < padding {
                return Ok(None);
            }
            self.bytes.drain(..padding);
            self.data = None;
            self.needed = HEAD_BYTES;
            return Ok(Some(Step::End { xid }));
        }
        let Some(mark) = self.bytes.first_chunk().copied().map(u32::from_be_bytes) else {
            return Ok(self.wait_for(HEAD_BYTES));
        };
        let (is_last, bytes) = (mark & LAST != 0, (mark & !LAST) as usize);
        if !is_last || !self.fragments.is_empty() {
            return self.next_fragment(is_last, bytes, expected);
        }
        let Some(xid) = self.bytes.get(MARK_BYTES..).and_then(|rest| rest.first_chunk()) else {
            return Ok(self.wait_for(HEAD_BYTES));
        };
        let xid = u32::from_be_bytes(*xid);
        if bytes < 8 {
            return Err((None, XdrError::TooShort { missing: 8 - bytes }.into()));
        }
        match expected(xid) {
            None => Err((None, BadReply::UnknownCall { xid })),
            Some(Expected::Results { bytes_max }) => self.next_record(xid, bytes, bytes_max),
            Some(Expected::Data { bytes_max }) => self.next_data(xid, bytes, bytes_max),
        }
    }

    fn wait_for<T>(&mut self, bytes: usize) -> Option<T> {
        self.needed = bytes;
        None
    }

    fn next_record(&mut self, xid: u32, bytes: usize, max: usize) -> Result<Option<Step>, Broken> {
        if bytes > max {
            return Err((Some(xid), BadReply::TooLong { bytes, max }));
        }
        if self.bytes.len() < MARK_BYTES + bytes {
            return Ok(self.wait_for(MARK_BYTES + bytes));
        }
        let record = self.take(bytes);
        Ok(Some(Step::Record { xid, record }))
    }

    fn next_data(&mut self, xid: u32, bytes: usize, bytes_max: usize) -> Result<Option<Step>, Broken> {
        let there = &self.bytes[MARK_BYTES..self.bytes.len().min(MARK_BYTES + bytes)];
        let mut input = Reader::new(there);
        match read_head(&mut input) {
            Ok(Some(head)) => {
                let head_bytes = there.len() - input.rest().len();
                check_data(&head, bytes - head_bytes, bytes_max).map_err(|error| (Some(xid), error))?;
                let count = head.count as usize;
                let first = input.rest()[..count.min(input.rest().len())].to_vec();
                self.bytes.drain(..MARK_BYTES + head_bytes + first.len());
                self.data = Some(Data { xid, left: count - first.len(), padding: padding(count) });
                Ok(Some(Step::Data { xid, head, first }))
            }
            Ok(None) => self.next_record(xid, bytes, REFUSAL_BYTES_MAX),
            Err(XdrError::TooShort { missing }) if there.len() < bytes => {
                Ok(self.wait_for((self.bytes.len() + missing).min(MARK_BYTES + bytes)))
            }
            Err(error) => Err((Some(xid), error.into())),
        }
    }

    /// A record in several fragments is put together, and its data are copied from there.
    fn next_fragment(
        &mut self,
        is_last: bool,
        bytes: usize,
        expected: impl Fn(u32) -> Option<Expected>,
    ) -> Result<Option<Step>, Broken> {
        let there = self.bytes.len().min(MARK_BYTES + bytes) - MARK_BYTES;
        let begin = self.fragments.iter().chain(&self.bytes[MARK_BYTES..][..there]);
        let begin: Vec<u8> = begin.take(4).copied().collect();
        let whole = self.fragments.len() + bytes;
        let xid = begin.first_chunk().copied().map(u32::from_be_bytes);
        let max = match xid.map(|xid| expected(xid).ok_or((None, BadReply::UnknownCall { xid }))) {
            None => REFUSAL_BYTES_MAX,
            Some(Ok(Expected::Results { bytes_max })) => bytes_max,
            Some(Ok(Expected::Data { bytes_max })) => REFUSAL_BYTES_MAX + bytes_max,
            Some(Err(unknown)) => return Err(unknown),
        };
        if whole > max {
            return Err((xid, BadReply::TooLong { bytes: whole, max }));
        }
        if bytes == 0 && !is_last {
            return Err((xid, BadReply::EmptyFragment));
        }
        if self.bytes.len() < MARK_BYTES + bytes {
            return Ok(self.wait_for(MARK_BYTES + bytes));
        }
        let fragment = self.take(bytes);
        self.fragments.extend(fragment);
        self.needed = HEAD_BYTES;
        if !is_last {
            return Ok(Some(Step::Fragment));
        }
        let xid = xid.ok_or((None, XdrError::TooShort { missing: 4 - whole.min(4) }.into()))?;
        Ok(Some(Step::Record { xid, record: mem::take(&mut self.fragments) }))
    }

    /// The body of the record, or the fragment, that stands first.
    fn take(&mut self, bytes: usize) -> Vec<u8> {
        let body = self.bytes[MARK_BYTES..][..bytes].to_vec();
        self.bytes.drain(..MARK_BYTES + bytes);
        self.needed = HEAD_BYTES;
        body
    }
}

/// What stands before the bytes of a file, if there are any; otherwise the reply is a refusal.
fn read_head(input: &mut Reader<'_>) -> Result<Option<ReadHead>, XdrError> {
    let (_, reply) = Reply::decode(input)?;
    if reply != Reply::Success {
        return Ok(None);
    }
    Ok(input.read::<NfsResult<ReadHead, Option<Attributes>>>()?.ok())
}

/// Whether a reply to a read has as many bytes behind its head as it says, and no more than were asked for.
pub(super) fn check_data(head: &ReadHead, behind: usize, asked: usize) -> Result<(), BadReply> {
    let count = head.count as usize;
    if head.count != head.data_bytes {
        return Err(BadReply::Counts { count: head.count, data_bytes: head.data_bytes });
    }
    if count > asked {
        return Err(BadReply::MoreThanAsked { bytes: count, asked });
    }
    if behind != count + padding(count) {
        return Err(BadReply::Length { data_bytes: count, behind });
    }
    Ok(())
}
