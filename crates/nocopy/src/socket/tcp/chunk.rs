//! What was received by one call.

use crate::evidence::{Cause, Evidence, Tally};
use crate::pool::Buffer;
use crate::sys::tcp_receive::Pages;

/// A piece of the stream, owned: it stays what it is when the connection is closed, and may be dropped in any thread.
///
/// Its bytes lie in up to two places, the [`pieces`](Self::pieces): pages that the kernel mapped, which are read-only, and a buffer that it
/// copied to.
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

    /// Its bytes where they lie, in the order of the stream.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let pages = self.pages.as_deref().into_iter();
        pages.chain(self.copied.as_deref())
    }

    /// How many bytes it has; never 0.
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.mapped_bytes() + self.copied_bytes()
    }

    /// How many of its bytes the kernel mapped. They come first.
    pub fn mapped_bytes(&self) -> usize {
        self.pages.as_deref().map_or(0, <[u8]>::len)
    }

    /// How many of its bytes the kernel copied.
    pub fn copied_bytes(&self) -> usize {
        self.copied.as_deref().map_or(0, <[u8]>::len)
    }

    /// What is known of its bytes: those mapped were not copied, for the kernel says how many it mapped.
    pub fn ledger(&self) -> Tally {
        let mut tally = Tally::default();
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

    pub(super) fn book(&self, tally: &mut Tally) {
        let (mapped, copied) = (self.mapped_bytes() as u64, self.copied_bytes() as u64);
        tally.add(Evidence::ZeroCopy, 1, mapped);
        tally.add(Evidence::Copied(self.cause), 0, copied);
    }

    /// The buffer, where there is one; pages go home.
    pub(super) fn into_copied(self) -> Option<Buffer> {
        self.copied
    }
}
