//! Data that can never change again, and so can be sent by reference to its pages.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::SealFlags;

use crate::sys::sealed::{self, Sealed, UNCHANGEABLE, Unsealed};

/// Bytes that nobody can change any more, this process included: they may go to any number of peers by reference to their pages.
///
/// The kernel never says when it has done with pages that were sent by reference (vmsplice(2), sendfile(2)): long after the call, and
/// after the socket was closed, it may send them again. So they must never change, and here they cannot: the bytes lie in a
/// sealed file without a name (`F_SEAL_WRITE`, memfd_create(2)), to which the kernel refuses all writing, for ever. The type has no way
/// to change them either. Clones are the same bytes, and free.
///
/// Dropping the last clone gives the memory back when the kernel has sent its pages, too. A forked child shares the
/// pages and can only read them.
///
/// ```
/// use nocopy::tcp::{Published, Publisher};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let greeting = Published::copy_of(b"hello")?; // one copy, then none for each peer
/// assert_eq!(&greeting[..], b"hello");
///
/// let mut publisher = Publisher::new(1 << 20)?; // or written in place
/// publisher[..5].copy_from_slice(&greeting);
/// let page = publisher.publish()?;
/// assert_eq!(page.len(), 1 << 20);
/// # Ok(())
/// # }
/// ```
///
/// Bytes that were published cannot be written:
///
/// ```compile_fail,E0594
/// let mut greeting = nocopy::tcp::Published::copy_of(b"hello").unwrap();
/// greeting[0] = b'H';
/// ```
#[derive(Clone)]
pub struct Published(Arc<Sealed>);

impl Published {
    /// Publishes a copy of `bytes`.
    ///
    /// # Errors
    /// See [`Publisher::new`] and [`Publisher::publish`].
    pub fn copy_of(bytes: &[u8]) -> Result<Self, PublishError> {
        let mut publisher = Publisher::new(bytes.len())?;
        publisher.copy_from_slice(bytes);
        publisher.publish()
    }

    pub(super) fn region(&self) -> &Sealed {
        &self.0
    }
}

impl Deref for Published {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Published {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsFd for Published {
    /// The sealed file, for another process: it makes the same bytes of it by [`TryFrom<OwnedFd>`](Published#impl-TryFrom<OwnedFd>-for-Published).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file().as_fd()
    }
}

impl TryFrom<OwnedFd> for Published {
    type Error = NotPublished;

    /// All the bytes of a sealed file (memfd_create(2)), as another process may have passed it. Without the seals `F_SEAL_WRITE` and
    /// `F_SEAL_SHRINK` it is refused, since then somebody could still change it. With holes it is refused, too: it may be of any length, and
    /// reading it would take that much memory from this process.
    fn try_from(descriptor: OwnedFd) -> Result<Self, NotPublished> {
        let file = File::from(descriptor);
        let seals = sealed::seals(&file).map_err(NotPublished::TakesNoSeals)?;
        let missing = UNCHANGEABLE.difference(seals);
        if !missing.is_empty() {
            let names = [(SealFlags::WRITE, "F_SEAL_WRITE"), (SealFlags::SHRINK, "F_SEAL_SHRINK")];
            let names = names.into_iter().filter(|(seal, _)| missing.contains(*seal));
            return Err(NotPublished::Unsealed { missing: names.map(|(_, name)| name).collect() });
        }
        let sealed = Sealed::map(file).map_err(NotPublished::Unmapped)?;
        if !sealed.is_whole().map_err(NotPublished::Unmapped)? {
            return Err(NotPublished::Sparse { bytes: sealed.len() });
        }
        Ok(Self(Arc::new(sealed)))
    }
}

impl fmt::Debug for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Published").field("bytes", &self.len()).finish_non_exhaustive()
    }
}

/// Memory to be written in place and then published.
///
/// It is zeroed. A forked child does not have it.
pub struct Publisher(Unsealed);

impl Publisher {
    /// So many bytes.
    ///
    /// # Errors
    /// No memory.
    pub fn new(bytes: usize) -> Result<Self, PublishError> {
        Unsealed::new(bytes).map(Self).map_err(|source| PublishError::Memory { bytes, source })
    }

    /// Makes the bytes unchangeable. Takes 0.1 to some 10 ms, as the kernel first makes sure that nobody has the pages in use: for what is
    /// sent more than once, or is large.
    ///
    /// # Errors
    /// The kernel does not seal them.
    pub fn publish(self) -> Result<Published, PublishError> {
        self.0.seal().map(|sealed| Published(Arc::new(sealed))).map_err(PublishError::Seal)
    }
}

impl Deref for Publisher {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Publisher {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher").field("bytes", &self.len()).finish_non_exhaustive()
    }
}

/// Why bytes could not be published.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// There is no memory.
    #[error(
        "no memory for {bytes} bytes to be published ({source}); publish less, or raise the memory limit of the process or its cgroup"
    )]
    Memory {
        /// So many were asked for.
        bytes: usize,
        /// The kernel's reason.
        source: io::Error,
    },
    /// They were written, but not sealed.
    #[error(
        "the kernel does not seal the bytes ({0}): on EBUSY another process has opened them by /proc and can write to them; keep it from that"
    )]
    Seal(#[source] io::Error),
}

/// Why the bytes of a descriptor are no published data.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotPublished {
    /// It is none of a file that takes seals.
    #[error(
        "the descriptor is of no file that can be sealed ({0}); make it by memfd_create with MFD_ALLOW_SEALING, or send it as a file"
    )]
    TakesNoSeals(#[source] io::Error),
    /// Seals are missing: somebody could still change it.
    #[error("the file can still be changed: it lacks {}; whoever made it has to add them by fcntl(F_ADD_SEALS)", missing.join(" and "))]
    Unsealed {
        /// The names of the seals.
        missing: Vec<&'static str>,
    },
    /// Parts of it have no memory.
    #[error(
        "the sealed file of {bytes} bytes has holes, which reading would fill with memory of this process; whoever made it has to write all of it before sealing it"
    )]
    Sparse {
        /// How long it is.
        bytes: usize,
    },
    /// It could not be mapped.
    #[error(
        "the sealed file cannot be mapped ({0}): it has to be open for reading, and to fit into the address space"
    )]
    Unmapped(#[source] io::Error),
}
