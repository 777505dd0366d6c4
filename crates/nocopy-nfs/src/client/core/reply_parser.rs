//! Splitting the bytes of one connection into reply headers and file data.

use std::mem;

use super::bad_reply::BadReply;
use crate::wire::nfs3::{Attributes, NfsResult, ReadHead};
use crate::wire::record::MARK_BYTES;
use crate::wire::rpc::Reply;
use crate::wire::xdr::{Reader, XdrError, padding};

/// The usual length of a READ reply before its data (with attributes, and an empty verifier): so much is
/// received at first. A longer header is received in two parts; with a shorter one, the first data is
/// received too, and copied.
const HEAD_BYTES: usize = 132;

/// Marks the last fragment of a record.
const LAST: u32 = 1 << 31;

const XID_BYTES: usize = size_of::<u32>();

/// The longest READ reply without data: a verifier of 400 bytes, a status and attributes.
const REFUSAL_BYTES_MAX: usize = 640;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpectedReply {
    Results { bytes_max: usize },
    Data { bytes_max: usize },
}

#[derive(Debug)]
pub(super) enum ReplyEvent {
    /// A whole record: without file data, or received in several fragments.
    Record { xid: u32, record: Vec<u8> },
    /// The header of a READ reply, and the data received with it.
    Data { xid: u32, head: ReadHead, first: Vec<u8> },
    /// The end of the data of a READ reply.
    End { xid: u32 },
    /// A fragment, stored until the record is complete.
    Fragment,
}

/// A wrong reply, with the number of its call if known.
pub(super) type InvalidReply = (Option<u32>, BadReply);

#[derive(Debug, Default)]
pub(super) struct ReplyParser {
    /// Received and not yet decoded, then `open` bytes to receive into.
    bytes: Vec<u8>,
    open: usize,
    /// How many bytes the next step needs.
    needed: usize,
    fragments: Vec<u8>,
    data: Option<RemainingReplyData>,
}

#[derive(Debug, Clone, Copy)]
struct RemainingReplyData {
    xid: u32,
    left: usize,
    padding: usize,
}

impl ReplyParser {
    /// The call whose buffer receives the next bytes, and how many.
    pub(super) fn awaited_data(&self) -> Option<(u32, usize)> {
        self.data.filter(|data| data.left > 0).map(|data| (data.xid, data.left))
    }

    /// Memory for the bytes that do not go into a call's buffer.
    pub(super) fn unparsed_buffer(&mut self) -> &mut [u8] {
        self.count_unparsed(0);
        let received = self.bytes.len();
        self.open = self.needed.max(HEAD_BYTES).saturating_sub(received).max(1);
        self.bytes.resize(received + self.open, 0);
        &mut self.bytes[received..]
    }

    /// Ends [`unparsed_buffer`](Self::unparsed_buffer): `bytes` were received.
    pub(super) fn count_unparsed(&mut self, bytes: usize) {
        let unused = self.open.checked_sub(bytes).expect("no more is received than there is space for");
        self.bytes.truncate(self.bytes.len() - unused);
        self.open = 0;
    }

    /// Counts bytes received into the buffer of the call of [`awaited_data`](Self::awaited_data).
    pub(super) fn count_data(&mut self, bytes: usize) {
        if let Some(data) = &mut self.data {
            data.left -= bytes;
        }
    }

    /// Whether no incomplete reply was received.
    pub(super) fn is_between_replies(&self) -> bool {
        self.bytes.len() == self.open && self.fragments.is_empty() && self.data.is_none()
    }

    /// The next step; `None` until more bytes were received.
    pub(super) fn next_event(
        &mut self,
        expected: impl Fn(u32) -> Option<ExpectedReply>,
    ) -> Result<Option<ReplyEvent>, InvalidReply> {
        if let Some(RemainingReplyData { xid, left, padding }) = self.data {
            self.needed = padding + HEAD_BYTES;
            if left > 0 || self.bytes.len() < padding {
                return Ok(None);
            }
            self.bytes.drain(..padding);
            self.data = None;
            self.needed = HEAD_BYTES;
            return Ok(Some(ReplyEvent::End { xid }));
        }
        let Some(mark) = self.bytes.first_chunk().copied().map(u32::from_be_bytes) else {
            return Ok(self.need_bytes(HEAD_BYTES));
        };
        let (is_last, bytes) = (mark & LAST != 0, (mark & !LAST) as usize);
        if !is_last || !self.fragments.is_empty() {
            return self.next_fragment(is_last, bytes, expected);
        }
        let Some(xid) = self.bytes.get(MARK_BYTES..).and_then(|rest| rest.first_chunk()) else {
            return Ok(self.need_bytes(HEAD_BYTES));
        };
        let xid = u32::from_be_bytes(*xid);
        if bytes < 8 {
            return Err((None, XdrError::TooShort { missing: 8 - bytes }.into()));
        }
        match expected(xid) {
            None => Err((None, BadReply::UnknownCall { xid })),
            Some(ExpectedReply::Results { bytes_max }) => self.next_record(xid, bytes, bytes_max),
            Some(ExpectedReply::Data { bytes_max }) => self.next_data(xid, bytes, bytes_max),
        }
    }

    fn need_bytes<T>(&mut self, bytes: usize) -> Option<T> {
        self.needed = bytes;
        None
    }

    fn next_record(
        &mut self,
        xid: u32,
        bytes: usize,
        max: usize,
    ) -> Result<Option<ReplyEvent>, InvalidReply> {
        if bytes > max {
            return Err((Some(xid), BadReply::TooLong { bytes, max }));
        }
        if self.bytes.len() < MARK_BYTES + bytes {
            return Ok(self.need_bytes(MARK_BYTES + bytes));
        }
        let record = self.take_record_body(bytes);
        Ok(Some(ReplyEvent::Record { xid, record }))
    }

    fn next_data(
        &mut self,
        xid: u32,
        bytes: usize,
        bytes_max: usize,
    ) -> Result<Option<ReplyEvent>, InvalidReply> {
        let there = &self.bytes[MARK_BYTES..self.bytes.len().min(MARK_BYTES + bytes)];
        let mut input = Reader::new(there);
        match decode_read_head(&mut input) {
            Ok(Some(head)) => {
                let head_bytes = there.len() - input.rest().len();
                check_data_length(&head, bytes - head_bytes, bytes_max)
                    .map_err(|error| (Some(xid), error))?;
                let count = head.count as usize;
                let first = input.rest()[..count.min(input.rest().len())].to_vec();
                self.bytes.drain(..MARK_BYTES + head_bytes + first.len());
                self.data =
                    Some(RemainingReplyData { xid, left: count - first.len(), padding: padding(count) });
                Ok(Some(ReplyEvent::Data { xid, head, first }))
            }
            Ok(None) => self.next_record(xid, bytes, REFUSAL_BYTES_MAX),
            Err(XdrError::TooShort { missing }) if there.len() < bytes => {
                Ok(self.need_bytes((self.bytes.len() + missing).min(MARK_BYTES + bytes)))
            }
            Err(error) => Err((Some(xid), error.into())),
        }
    }

    /// Collects a record in several fragments; its data is copied from there.
    fn next_fragment(
        &mut self,
        is_last: bool,
        bytes: usize,
        expected: impl Fn(u32) -> Option<ExpectedReply>,
    ) -> Result<Option<ReplyEvent>, InvalidReply> {
        let there = self.bytes.len().min(MARK_BYTES + bytes) - MARK_BYTES;
        let begin = self.fragments.iter().chain(&self.bytes[MARK_BYTES..][..there]);
        let begin: Vec<u8> = begin.take(XID_BYTES).copied().collect();
        let whole = self.fragments.len() + bytes;
        let xid = begin.first_chunk().copied().map(u32::from_be_bytes);
        let max = match xid.map(|xid| expected(xid).ok_or((None, BadReply::UnknownCall { xid }))) {
            // The number says how long the reply may be.
            None if whole >= XID_BYTES => {
                return Ok(self.need_bytes(MARK_BYTES + XID_BYTES - self.fragments.len()));
            }
            None => XID_BYTES,
            Some(Ok(ExpectedReply::Results { bytes_max })) => bytes_max,
            Some(Ok(ExpectedReply::Data { bytes_max })) => REFUSAL_BYTES_MAX + bytes_max,
            Some(Err(unknown)) => return Err(unknown),
        };
        if whole > max {
            return Err((xid, BadReply::TooLong { bytes: whole, max }));
        }
        if bytes == 0 && !is_last {
            return Err((xid, BadReply::EmptyFragment));
        }
        if self.bytes.len() < MARK_BYTES + bytes {
            return Ok(self.need_bytes(MARK_BYTES + bytes));
        }
        let fragment = self.take_record_body(bytes);
        self.fragments.extend(fragment);
        self.needed = HEAD_BYTES;
        if !is_last {
            return Ok(Some(ReplyEvent::Fragment));
        }
        let xid = xid.ok_or((None, XdrError::TooShort { missing: 4 - whole.min(4) }.into()))?;
        Ok(Some(ReplyEvent::Record { xid, record: mem::take(&mut self.fragments) }))
    }

    /// Removes the body of the first record or fragment.
    fn take_record_body(&mut self, bytes: usize) -> Vec<u8> {
        let body = self.bytes[MARK_BYTES..][..bytes].to_vec();
        self.bytes.drain(..MARK_BYTES + bytes);
        self.needed = HEAD_BYTES;
        body
    }
}

/// The header of a READ reply with data; `None` if the read was refused.
fn decode_read_head(input: &mut Reader<'_>) -> Result<Option<ReadHead>, XdrError> {
    let (_, reply) = Reply::decode(input)?;
    if reply != Reply::Success {
        return Ok(None);
    }
    Ok(input.read::<NfsResult<ReadHead, Option<Attributes>>>()?.ok())
}

/// Checks that a READ reply has as many bytes as its header announces, and no more than were asked for.
pub(super) fn check_data_length(head: &ReadHead, behind: usize, asked: usize) -> Result<(), BadReply> {
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
