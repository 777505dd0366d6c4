//! Data that can never change again, and so can be sent by reference to its pages.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::SealFlags;

use crate::sys::sealed::{self, Sealed, UNCHANGEABLE, Unsealed};

/// Bytes that can never change again, not even by this process: they may go to any number of peers by reference to their pages.
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
/// use nocopy::tcp::Published;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let page = Published::written(1 << 20, |bytes| bytes[..5].copy_from_slice(b"hello"))?; // then no copy for any peer
/// assert_eq!((page.len(), &page[..5]), (1 << 20, &b"hello"[..]));
/// # Ok(())
/// # }
/// ```
///
/// Bytes that were published cannot be written:
///
/// ```compile_fail,E0594
/// let mut greeting = nocopy::tcp::Published::written(5, |bytes| bytes.fill(b'h')).unwrap();
/// greeting[0] = b'H';
/// ```
#[derive(Clone)]
pub struct Published(Arc<Sealed>);

impl Published {
    /// Publishes so many bytes, which `write` writes where they are to lie; they are zeros before. Takes 0.1 to some 10 ms, as the kernel
    /// first makes sure that the pages are not in use elsewhere: for what is sent more than once, or is large.
    ///
    /// # Errors
    /// No memory, or the kernel does not seal them.
    pub fn written(bytes: usize, write: impl FnOnce(&mut [u8])) -> Result<Self, PublishError> {
        let mut memory = Unsealed::new(bytes).map_err(|source| PublishError::Memory { bytes, source })?;
        write(&mut memory);
        memory.seal().map(|sealed| Self(Arc::new(sealed))).map_err(PublishError::Seal)
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
    type Error = PublishError;

    /// All the bytes of a sealed file (memfd_create(2)), as another process may have passed it. Without the seals `F_SEAL_WRITE` and
    /// `F_SEAL_SHRINK` it is refused, since it could still be changed then. With holes it is refused, too: it may be of any length, and
    /// reading it would take that much memory from this process.
    fn try_from(descriptor: OwnedFd) -> Result<Self, PublishError> {
        let file = File::from(descriptor);
        let seals = sealed::seals(&file).map_err(PublishError::TakesNoSeals)?;
        let missing = UNCHANGEABLE.difference(seals);
        if !missing.is_empty() {
            let names = [(SealFlags::WRITE, "F_SEAL_WRITE"), (SealFlags::SHRINK, "F_SEAL_SHRINK")];
            let names = names.into_iter().filter(|(seal, _)| missing.contains(*seal));
            return Err(PublishError::Unsealed { missing: names.map(|(_, name)| name).collect() });
        }
        let sealed = Sealed::map(file).map_err(PublishError::Unmapped)?;
        if !sealed.is_whole().map_err(PublishError::Unmapped)? {
            return Err(PublishError::Sparse { bytes: sealed.len() });
        }
        Ok(Self(Arc::new(sealed)))
    }
}

impl fmt::Debug for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Published").field("bytes", &self.len()).finish_non_exhaustive()
    }
}

/// Why bytes could not be published, or those of a descriptor are not published ones.
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
        "the bytes were not sealed ({0}); on EBUSY another process has opened them by /proc and can write to them; keep it from that"
    )]
    Seal(#[source] io::Error),
    /// The descriptor is not of a file that takes seals.
    #[error(
        "the descriptor is not of a file that can be sealed ({0}); make it by memfd_create with MFD_ALLOW_SEALING, or send it as a file"
    )]
    TakesNoSeals(#[source] io::Error),
    /// Seals are missing: the file could still be changed.
    #[error("the file can still be changed: it lacks {}; its maker has to add them by fcntl(F_ADD_SEALS)", missing.join(" and "))]
    Unsealed {
        /// The names of the seals.
        missing: Vec<&'static str>,
    },
    /// Parts of the file have no memory.
    #[error(
        "the sealed file of {bytes} bytes has holes, which reading would fill with memory of this process; its maker has to write all of it before sealing it"
    )]
    Sparse {
        /// How long it is.
        bytes: usize,
    },
    /// The file could not be mapped.
    #[error(
        "the sealed file cannot be mapped ({0}); it has to be open for reading, and to fit into the address space"
    )]
    Unmapped(#[source] io::Error),
}
