//! Messages in a stream (RFC 5531, section 11): fragments with their length in front, of which the last of a record is marked.

/// In the word before a fragment: it is the last of its record.
const LAST: u32 = 1 << 31;

/// The length of the word before a fragment.
pub const MARK_BYTES: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message of {bytes} bytes or more, where at most {max} are taken")]
pub struct TooLong {
    pub bytes: usize,
    pub max: usize,
}

/// Puts records together from the bytes of a stream.
///
/// It holds what was [pushed](Self::push) and not yet taken, and of one record at most `max` bytes: a longer one is refused as soon as a
/// fragment announces it.
#[derive(Debug)]
pub struct Records {
    max: usize,
    /// As they came, from `start` on.
    bytes: Vec<u8>,
    start: usize,
    /// Fragments of the record that is not whole yet.
    fragments: Vec<u8>,
    /// The record that was given last lies in `fragments`.
    is_given: bool,
}

impl Records {
    pub fn new(max: usize) -> Self {
        Self { max, bytes: Vec::new(), start: 0, fragments: Vec::new(), is_given: false }
    }

    /// Takes what the stream brought.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.start);
        self.start = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes of memory that are in use.
    pub fn held(&self) -> usize {
        self.bytes.len() - self.start + self.fragments.len()
    }

    /// The next record, if all of it is there.
    ///
    /// # Errors
    /// It is too long; the stream cannot be read on.
    pub fn take(&mut self) -> Result<Option<&[u8]>, TooLong> {
        if std::mem::take(&mut self.is_given) {
            self.fragments.clear();
        }
        loop {
            let rest = &self.bytes[self.start..];
            let Some((mark, rest)) = rest.split_first_chunk() else { return Ok(None) };
            let mark = u32::from_be_bytes(*mark);
            let (is_last, bytes) = (mark & LAST != 0, (mark & !LAST) as usize);
            if self.fragments.len() + bytes > self.max {
                return Err(TooLong { bytes: self.fragments.len() + bytes, max: self.max });
            }
            if rest.len() < bytes {
                return Ok(None);
            }
            let begin = self.start + MARK_BYTES;
            self.start = begin + bytes;
            if is_last && self.fragments.is_empty() {
                return Ok(Some(&self.bytes[begin..self.start]));
            }
            self.fragments.extend_from_slice(&self.bytes[begin..begin + bytes]);
            if is_last {
                self.is_given = true;
                return Ok(Some(&self.fragments));
            }
        }
    }
}

/// Begins a record of one fragment: its mark, to be filled in by [`end`].
pub fn begin() -> Vec<u8> {
    vec![0; MARK_BYTES]
}

/// Fills in the mark of a record that was begun and to which `more` bytes follow.
///
/// # Panics
/// The record has 2 GiB or more.
pub fn end(record: &mut [u8], more: usize) {
    let bytes = record.len() - MARK_BYTES + more;
    let bytes = u32::try_from(bytes).ok().filter(|bytes| bytes & LAST == 0).expect("records are below 2 GiB");
    record[..MARK_BYTES].copy_from_slice(&(bytes | LAST).to_be_bytes());
}
