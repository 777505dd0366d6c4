//! The data of one receive call.

use crate::facts::evidence::{Cause, Evidence, Ledger};
use crate::memory::pool::Buffer;
use crate::sys::tcp_receive::{MappedBytes, MappedPages, PAGE_BYTES};

/// A piece of the stream, owned: it stays valid after the connection is closed, and may be dropped on any
/// thread. It can be sent ([`Sender::send`](super::Sender::send)).
///
/// Its bytes are in up to two places: first, pages that the kernel mapped ([`mapped`](Self::mapped)), then a
/// buffer that it copied to ([`copied`](Self::copied)). A sender on the same host may still change bytes on
/// mapped pages, see [`MappedBytes`].
///
/// ```
/// # use nocopy::tcp::{Listener, Stream};
/// # let listener = Listener::bind("127.0.0.1:0".parse()?)?;
/// # let mut stream = Stream::connect(listener.local_address()?)?;
/// # let mut peer = listener.accept()?.0;
/// stream.sender().send_copy(b"hello")?;
/// let chunk = peer.receiver().receive()?.expect("bytes");
/// let mut bytes = Vec::new();
/// chunk.for_each_part(|part| bytes.extend_from_slice(part)); // wherever they lie
/// assert_eq!((&bytes[..], chunk.len()), (&b"hello"[..], 5));
/// assert_eq!(chunk.mapped().len() + chunk.copied().len(), chunk.len());
/// let buffer = chunk.take(); // to be kept, changed or sent on
/// assert_eq!(&buffer[..], b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "what was received and dropped is gone"]
pub struct Chunk {
    pages: Option<MappedPages>,
    copied: Option<Buffer>,
    cause: Cause,
}

impl Chunk {
    /// The bytes in a buffer, to be kept or forwarded. Only bytes on mapped pages are copied.
    pub fn take(self) -> Buffer {
        self.into()
    }

    /// Made of mapped pages, which come first, and of bytes copied for this cause; at least one is given, and
    /// neither is empty.
    pub(super) fn new(pages: Option<MappedPages>, copied: Option<Buffer>, cause: Cause) -> Self {
        debug_assert!(pages.is_some() || copied.as_ref().is_some_and(|buffer| !buffer.is_empty()));
        Self { pages, copied, cause }
    }

    /// The bytes on pages that the kernel mapped, which come first.
    pub fn mapped(&self) -> MappedBytes<'_> {
        self.pages.as_ref().map_or(MappedBytes::from(&[][..]), MappedPages::bytes)
    }

    /// The bytes that the kernel copied.
    pub fn copied(&self) -> &[u8] {
        self.copied.as_deref().unwrap_or_default()
    }

    /// Calls `read` with all bytes in order: copied bytes in place, mapped bytes as copies of one page at a
    /// time, which stay in the processor's nearest cache.
    pub fn for_each_part(&self, mut read: impl FnMut(&[u8])) {
        if let Some(pages) = &self.pages {
            let (mapped, mut page) = (pages.bytes(), [0; PAGE_BYTES]);
            for start in (0..mapped.len()).step_by(PAGE_BYTES) {
                let copied_bytes = mapped.slice(start..mapped.len()).copy_to(&mut page);
                read(&page[..copied_bytes]);
            }
        }
        if let Some(buffer) = &self.copied {
            read(buffer);
        }
    }

    /// A copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = self.mapped().to_vec();
        bytes.extend_from_slice(self.copied());
        bytes
    }

    /// The number of bytes; never 0.
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.mapped().len() + self.copied().len()
    }

    pub(super) fn add_to_ledger(&self, tally: &mut Ledger) {
        let (mapped, copied) = (self.mapped().len() as u64, self.copied().len() as u64);
        tally.add(Evidence::ZeroCopy, 1, mapped);
        tally.add(Evidence::Copied(self.cause), 0, copied);
    }

    /// The buffer, if the chunk has one; pages are released.
    pub(super) fn into_copied(self) -> Option<Buffer> {
        self.copied
    }
}

impl From<Chunk> for Buffer {
    /// The bytes as one buffer, to change or to send. If some of them are on [mapped](Chunk::mapped) pages,
    /// which can only be read, all are copied; otherwise none is.
    fn from(chunk: Chunk) -> Self {
        match chunk {
            Chunk { pages: None, copied: Some(buffer), .. } => buffer,
            chunk => chunk.to_vec().into(),
        }
    }
}
