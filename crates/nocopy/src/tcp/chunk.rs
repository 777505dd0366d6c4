//! What was received by one call.

use crate::facts::evidence::{Cause, Evidence, Ledger};
use crate::memory::pool::Buffer;
use crate::sys::tcp_receive::{MappedBytes, PAGE_BYTES, Pages};

/// A piece of the stream, owned: it stays what it is when the connection is closed, and may be dropped in any thread.
///
/// Its bytes lie in up to two places: on pages that the kernel mapped ([`mapped`](Self::mapped)), which come first, and in a buffer that it
/// copied to ([`copied`](Self::copied)). A sender on the same host may still change the former, see [`MappedBytes`].
#[derive(Debug)]
#[must_use = "what was received and dropped is gone"]
pub struct Chunk {
    pages: Option<Pages>,
    copied: Option<Buffer>,
    /// Of the bytes that were copied.
    cause: Cause,
}

impl Chunk {
    /// Of pages that come first, and of bytes that were copied for this reason; none of them empty, and at least one there.
    pub(super) fn new(pages: Option<Pages>, copied: Option<Buffer>, cause: Cause) -> Self {
        debug_assert!(pages.is_some() || copied.as_ref().is_some_and(|buffer| !buffer.is_empty()));
        Self { pages, copied, cause }
    }

    /// Its bytes that the kernel mapped. They come first.
    pub fn mapped(&self) -> MappedBytes<'_> {
        self.pages.as_ref().map_or(MappedBytes::from(&[][..]), Pages::bytes)
    }

    /// Its bytes that the kernel copied.
    pub fn copied(&self) -> &[u8] {
        self.copied.as_deref().unwrap_or_default()
    }

    /// Gives all of its bytes to `read`, in their order: those that the kernel copied where they lie, and those that it mapped as copies of a page
    /// at a time, which stay in the processor's nearest cache.
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

    /// Copies its first bytes, as many as there is room for, and returns how many that were.
    pub fn copy_to(&self, room: &mut [u8]) -> usize {
        let mapped_bytes = self.mapped().copy_to(room);
        let room = &mut room[mapped_bytes..];
        let copied_bytes = room.len().min(self.copied_bytes());
        room[..copied_bytes].copy_from_slice(&self.copied()[..copied_bytes]);
        mapped_bytes + copied_bytes
    }

    /// A copy.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = self.mapped().to_vec();
        bytes.extend_from_slice(self.copied());
        bytes
    }

    /// How many bytes it has; never 0.
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.mapped_bytes() + self.copied_bytes()
    }

    /// How many of its bytes the kernel mapped.
    pub fn mapped_bytes(&self) -> usize {
        self.mapped().len()
    }

    /// How many of its bytes the kernel copied.
    pub fn copied_bytes(&self) -> usize {
        self.copied().len()
    }

    /// What is known of its bytes: those mapped were not copied, for the kernel says how many it mapped.
    pub fn ledger(&self) -> Ledger {
        let mut tally = Ledger::default();
        self.book(&mut tally);
        tally
    }

    /// Its bytes as one buffer, to be changed or sent.
    ///
    /// # Errors
    /// Some of them are on pages, which cannot be moved: the chunk.
    pub fn into_buffer(self) -> Result<Buffer, Self> {
        match self {
            Self { pages: None, copied: Some(buffer), .. } => Ok(buffer),
            chunk => Err(chunk),
        }
    }

    pub(super) fn book(&self, tally: &mut Ledger) {
        let (mapped, copied) = (self.mapped_bytes() as u64, self.copied_bytes() as u64);
        tally.add(Evidence::ZeroCopy, 1, mapped);
        tally.add(Evidence::Copied(self.cause), 0, copied);
    }

    /// The buffer, where there is one; pages go home.
    pub(super) fn into_copied(self) -> Option<Buffer> {
        self.copied
    }
}
