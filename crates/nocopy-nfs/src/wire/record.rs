//! Messages in a stream (RFC 5531, section 11): fragments with a length in front; the last of a record is
//! marked.

use std::borrow::Cow;

/// Longer records, which are writes, are assembled in memory of their own.
const LONG_BYTES: usize = 16 << 10;

/// With more memory than this, an empty buffer is freed.
const KEPT_BYTES_MAX: usize = 4 * LONG_BYTES;

/// How much of a long record must have arrived before it is begun: everything before the data of a write,
/// with any credential.
pub const BEGIN_BYTES: usize = 1 << 10;

/// In the word before a fragment: marks the last fragment of a record.
const LAST: u32 = 1 << 31;

/// The length of the word before a fragment.
pub const MARK_BYTES: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the message has at least {bytes} bytes, and at most {max} are accepted")]
pub struct RecordTooLong {
    pub bytes: usize,
    pub max: usize,
}

/// The most bytes of a record, by its kind.
#[derive(Debug, Clone, Copy)]
pub struct RecordLimits {
    /// Of a record that `is_long` accepts by its first [`BEGIN_BYTES`].
    pub long: usize,
    /// Of any other record.
    pub other: usize,
    pub is_long: fn(&[u8]) -> bool,
}

/// Assembles records from the bytes of a stream.
///
/// It holds bytes that were [pushed](Self::push) and not yet taken, and one record up to the limit: a longer
/// record is refused as soon as a fragment announces it, and its first bytes tell its kind.
#[derive(Debug)]
pub struct RecordAssembler {
    limits: RecordLimits,
    bytes: Vec<u8>,
    start: usize,
    fragments: Vec<u8>,
    /// The record returned last is in `fragments`.
    is_given: bool,
    long: Option<LongRecord>,
}

/// A record, and how many bytes were copied to assemble it.
pub type CountedRecord<'a> = (Cow<'a, [u8]>, usize);

/// The beginning of a long, incomplete record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartialRecord<'a> {
    pub begin: &'a [u8],
    pub bytes: usize,
}

/// The received part of a long record, and its length.
#[derive(Debug)]
struct LongRecord {
    bytes: Vec<u8>,
    whole: usize,
    /// How many bytes were copied for it.
    moved: usize,
}

impl RecordAssembler {
    /// With the same limit for all records.
    pub fn new(max: usize) -> Self {
        Self::with_limits(RecordLimits { long: max, other: max, is_long: |_| true })
    }

    pub fn with_limits(limits: RecordLimits) -> Self {
        Self { limits, bytes: Vec::new(), start: 0, fragments: Vec::new(), is_given: false, long: None }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        if let Some(LongRecord { bytes: long, whole, moved }) = &mut self.long {
            let missing = whole.saturating_sub(long.len()).min(rest.len());
            long.extend_from_slice(&rest[..missing]);
            *moved += missing;
            rest = &rest[missing..];
        }
        self.bytes.drain(..self.start);
        self.start = 0;
        if self.bytes.is_empty() && self.bytes.capacity() > KEPT_BYTES_MAX {
            self.bytes = Vec::new();
        }
        self.bytes.extend_from_slice(rest);
    }

    /// Memory that may receive bytes instead of `push`: a long record is received into its final memory.
    pub fn long_buffer(&mut self) -> Option<&mut Vec<u8>> {
        self.long.as_mut().filter(|long| long.bytes.len() < long.whole).map(|long| &mut long.bytes)
    }

    /// A long incomplete record that is next, before [`take`](Self::take) begins to assemble it.
    pub fn partial_long_record(&self) -> Option<PartialRecord<'_>> {
        let is_between = self.long.is_none() && (self.is_given || self.fragments.is_empty());
        let (mark, begin) = self.bytes[self.start..].split_first_chunk().filter(|_| is_between)?;
        let mark = u32::from_be_bytes(*mark);
        let bytes = (mark & !LAST) as usize;
        let is_long = mark & LAST != 0 && bytes > LONG_BYTES && bytes <= self.limits.long;
        (is_long && begin.len() >= BEGIN_BYTES && begin.len() < bytes)
            .then_some(PartialRecord { begin, bytes })
    }

    /// Removes the record that is [partial](Self::partial_long_record), whose rest is received elsewhere. Its
    /// beginning is in the bytes from the returned place on.
    ///
    /// # Panics
    /// There is no long record.
    pub fn take_partial(&mut self) -> (Vec<u8>, usize) {
        assert!(self.partial_long_record().is_some(), "a long record is begun");
        (std::mem::take(&mut self.bytes), std::mem::take(&mut self.start) + MARK_BYTES)
    }

    /// Bytes of memory in use.
    pub fn buffered_bytes(&self) -> usize {
        let long = self.long.as_ref().map_or(0, |long| long.bytes.len());
        self.bytes.len() - self.start + self.fragments.len() + long
    }

    /// Bytes of memory in use, and those that the record being received will need.
    pub fn reserved_bytes(&self) -> usize {
        let behind = self.bytes.len() - self.start;
        match &self.long {
            Some(long) => long.whole.max(long.bytes.len()) + behind,
            // The length of a record in fragments is not known before the last one.
            None if self.fragments.len().max(behind) > self.limits.other => {
                self.limits.long.max(self.buffered_bytes())
            }
            None => self.buffered_bytes(),
        }
    }

    /// Whether a part of a record has arrived, and not all of it.
    pub fn has_partial(&self) -> bool {
        let is_given = |fragments: &Vec<u8>| self.is_given || fragments.is_empty();
        self.long.is_some() || self.bytes.len() > self.start || !is_given(&self.fragments)
    }

    /// The next record, if all of it has arrived.
    ///
    /// # Errors
    /// The record is too long; the rest of the stream cannot be read.
    pub fn take(&mut self) -> Result<Option<Cow<'_, [u8]>>, RecordTooLong> {
        Ok(self.take_with_copied()?.map(|(record, _)| record))
    }

    /// As [`take`](Self::take), with the number of bytes that were copied to assemble the record.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn take_with_copied(&mut self) -> Result<Option<CountedRecord<'_>>, RecordTooLong> {
        if let Some(mut long) = self.long.take_if(|long| long.bytes.len() >= long.whole) {
            let behind = long.bytes.split_off(long.whole);
            self.push_front(behind);
            return Ok(Some((long.bytes.into(), long.moved)));
        }
        if self.long.is_some() {
            return Ok(None);
        }
        if std::mem::take(&mut self.is_given) {
            self.fragments.clear();
        }
        loop {
            let rest = &self.bytes[self.start..];
            let Some((mark, rest)) = rest.split_first_chunk() else { return Ok(None) };
            let mark = u32::from_be_bytes(*mark);
            let (is_last, bytes) = (mark & LAST != 0, (mark & !LAST) as usize);
            self.check_length(bytes, rest)?;
            if rest.len() < bytes {
                let is_long = is_last && self.fragments.is_empty() && bytes > LONG_BYTES;
                if is_long && rest.len() >= BEGIN_BYTES {
                    let mut long = Vec::with_capacity(bytes);
                    long.extend_from_slice(rest);
                    // It was pushed before, and is copied a second time.
                    self.long = Some(LongRecord { bytes: long, whole: bytes, moved: 2 * rest.len() });
                    self.bytes.clear();
                    self.start = 0;
                }
                return Ok(None);
            }
            let begin = self.start + MARK_BYTES;
            self.start = begin + bytes;
            if is_last && self.fragments.is_empty() {
                return Ok(Some((self.bytes[begin..self.start].into(), bytes)));
            }
            self.fragments.extend_from_slice(&self.bytes[begin..begin + bytes]);
            if is_last {
                let moved = 2 * self.fragments.len();
                if self.fragments.len() > LONG_BYTES {
                    return Ok(Some((std::mem::take(&mut self.fragments).into(), moved)));
                }
                self.is_given = true;
                return Ok(Some(((&self.fragments).into(), moved)));
            }
        }
    }

    /// Checks the length that the record has with the next fragment, of which `received` has arrived.
    fn check_length(&self, fragment_bytes: usize, received: &[u8]) -> Result<(), RecordTooLong> {
        let RecordLimits { long, other, is_long } = self.limits;
        let bytes = self.fragments.len() + fragment_bytes;
        if bytes > long {
            return Err(RecordTooLong { bytes, max: long });
        }
        if bytes <= other {
            return Ok(());
        }
        let come = &received[..received.len().min(fragment_bytes).min(BEGIN_BYTES)];
        let begin: Cow<'_, [u8]> = match self.fragments.len() {
            0 => come.into(),
            BEGIN_BYTES.. => (&self.fragments[..BEGIN_BYTES]).into(),
            _ => [&self.fragments, come].concat().into(),
        };
        if begin.len() < BEGIN_BYTES.min(bytes) || is_long(&begin) {
            return Ok(());
        }
        Err(RecordTooLong { bytes, max: other })
    }

    /// Adds bytes that follow a long record; nothing was pushed since it began.
    fn push_front(&mut self, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.bytes.splice(..self.start, bytes);
            self.start = 0;
        }
    }
}

/// As long as a record with a handle and the attributes of two files, without data.
const USUAL_BYTES: usize = 256;

/// Begins a record of one fragment: its mark, to be filled in by [`end`].
pub fn begin() -> Vec<u8> {
    let mut record = Vec::with_capacity(USUAL_BYTES);
    record.extend([0; MARK_BYTES]);
    record
}

/// Fills in the mark of a record that was begun and that `more` bytes follow.
///
/// # Panics
/// The record has 2 GiB or more.
pub fn end(record: &mut [u8], more: usize) {
    let bytes = record.len() - MARK_BYTES + more;
    let bytes = u32::try_from(bytes).ok().filter(|bytes| bytes & LAST == 0).expect("records are below 2 GiB");
    record[..MARK_BYTES].copy_from_slice(&(bytes | LAST).to_be_bytes());
}
