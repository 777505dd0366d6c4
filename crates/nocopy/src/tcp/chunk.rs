//! The data of one receive call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::events::{self, Half};
use crate::facts::evidence::{Cause, Evidence, Ledger};
use crate::memory::pool::Buffer;
use crate::sys::tcp_receive::{MappedBytes, MappedPages, PAGE_BYTES};

/// A piece of the stream, owned: it stays valid after the connection is closed, and may be dropped on any
/// thread. It can be sent ([`Sender::send`](super::NonblockingSender::send)).
///
/// Its bytes are in up to two places: first, pages that the kernel mapped ([`mapped`](Self::mapped)), then a
/// buffer that it copied to ([`copied`](Self::copied)). A sender on the same host may still change bytes on
/// mapped pages, see [`MappedBytes`].
///
/// ```
/// # use nocopy::tcp::{Listener, Stream};
/// # let listener = Listener::bind("127.0.0.1:0")?;
/// # let mut stream = Stream::connect(listener.local_addr()?)?;
/// # let mut peer = listener.accept()?.0;
/// stream.sender().send_copy(b"hello")?;
/// let chunk = peer.receiver().receive()?.expect("bytes");
/// let mut bytes = Vec::new();
/// chunk.for_each_part(|part| bytes.extend_from_slice(part)); // wherever they lie
/// assert_eq!((&bytes[..], chunk.len()), (&b"hello"[..], 5));
/// assert_eq!(chunk.mapped().len() + chunk.copied().len(), chunk.len());
/// let buffer = chunk.take(); // to be kept or sent on
/// assert_eq!(&buffer[..], b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "what was received and dropped is gone"]
pub struct Chunk {
    mapped: Option<Mapped>,
    copied: Option<Buffer>,
    /// Bytes at the front of the buffer that were read by [`std::io::BufRead`]; 0 if there are pages.
    read_bytes: usize,
    cause: Cause,
}

/// Mapped pages, and where their receiver counts bytes that are copied from there into a buffer.
#[derive(Debug)]
pub(super) struct Mapped {
    pub(super) pages: MappedPages,
    pub(super) copied_later: Arc<AtomicU64>,
}

impl Chunk {
    /// The bytes in a buffer, to be kept or forwarded. If some of them are on [mapped](Self::mapped) pages,
    /// all are copied, and the receiver's ledger counts those on pages as [`Cause::Gathered`].
    pub fn take(self) -> Buffer {
        self.into()
    }

    /// Made of mapped pages, which come first, and of bytes copied for this cause; at least one is given, and
    /// neither is empty.
    pub(super) fn new(mapped: Option<Mapped>, copied: Option<Buffer>, cause: Cause) -> Self {
        debug_assert!(mapped.is_some() || copied.as_ref().is_some_and(|buffer| !buffer.is_empty()));
        Self { mapped, copied, read_bytes: 0, cause }
    }

    /// The bytes on pages that the kernel mapped, which come first.
    pub fn mapped(&self) -> MappedBytes<'_> {
        self.mapped.as_ref().map_or(MappedBytes::from(&[][..]), |mapped| mapped.pages.bytes())
    }

    /// The bytes that the kernel copied.
    pub fn copied(&self) -> &[u8] {
        self.copied.as_ref().map_or(&[], |buffer| &buffer[self.read_bytes..])
    }

    /// Calls `read` with all bytes in order: copied bytes in place, mapped bytes as copies of one page at a
    /// time, which stay in the processor's nearest cache.
    pub fn for_each_part(&self, mut read: impl FnMut(&[u8])) {
        if let Some(mapped) = &self.mapped {
            let (mapped, mut page) = (mapped.pages.bytes(), [0; PAGE_BYTES]);
            for start in (0..mapped.len()).step_by(PAGE_BYTES) {
                let copied_bytes = mapped.slice(start..mapped.len()).copy_to(&mut page);
                read(&page[..copied_bytes]);
            }
        }
        if self.copied.is_some() {
            read(self.copied());
        }
    }

    /// A copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = self.mapped().to_vec();
        bytes.extend_from_slice(self.copied());
        bytes
    }

    /// The number of bytes; never 0.
    pub fn len(&self) -> usize {
        self.mapped().len() + self.copied().len()
    }

    /// Whether it has no bytes, which is never so: the end of the stream is not a chunk.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn add_to_ledger(&self, tally: &mut Ledger) {
        let (mapped, copied) = (self.mapped().len() as u64, self.copied().len() as u64);
        tally.add(Evidence::ZeroCopy, 1, mapped);
        events::add_to_ledger(tally, Half::TcpReceiver, Evidence::Copied(self.cause), 0, copied);
    }

    /// Removes bytes, at most all, from the front of a chunk without pages.
    pub(super) fn trim_front(&mut self, bytes: usize) {
        debug_assert!(self.mapped.is_none());
        self.read_bytes += bytes.min(self.copied().len());
    }

    /// The buffer, if the chunk has one; pages are released.
    pub(super) fn into_copied(self) -> Option<Buffer> {
        self.copied
    }
}

/// What is left of a buffer whose first bytes were read.
struct UnreadBytes {
    buffer: Buffer,
    read_bytes: usize,
}

impl AsRef<[u8]> for UnreadBytes {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[self.read_bytes..]
    }
}

impl From<Chunk> for Buffer {
    /// The bytes as one buffer, to keep or to send. If some of them are on [mapped](Chunk::mapped) pages,
    /// which can only be read, all are copied; otherwise none is.
    fn from(chunk: Chunk) -> Self {
        match chunk {
            Chunk { mapped: None, copied: Some(buffer), read_bytes: 0, .. } => buffer,
            Chunk { mapped: None, copied: Some(buffer), read_bytes, .. } => {
                Self::from_owner(UnreadBytes { buffer, read_bytes })
            }
            chunk => {
                if let Some(Mapped { pages, copied_later }) = &chunk.mapped {
                    let before = copied_later.fetch_add(pages.len() as u64, Relaxed); // a number alone
                    if events::ENABLED && before == 0 {
                        events::first_copy(Half::TcpReceiver.into(), Cause::Gathered);
                    }
                }
                chunk.to_vec().into()
            }
        }
    }
}
