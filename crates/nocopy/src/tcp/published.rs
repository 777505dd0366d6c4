//! Data that can never change again, and so can be sent by reference to its pages.

use nocopy_proto::errno::ErrorCause;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::SealFlags;

use crate::facts::io_error::convert_to_io_error;
use crate::sys::sealed::{self, SealedFile, UNCHANGEABLE, UnsealedFile};

/// Bytes that can never change again, not even by this process: they may be sent to any number of peers by
/// reference to their pages.
///
/// The kernel never reports when it no longer reads pages that were sent by reference (vmsplice(2),
/// sendfile(2)): it may send them again long after the call, even after the socket was closed. So they must
/// never change, and here they cannot: the bytes are in a sealed file without a name (`F_SEAL_WRITE`,
/// memfd_create(2)), which the kernel does not let anyone write. This type does not change them either.
/// Clones share the bytes and cost nothing.
///
/// After the last clone was dropped and the kernel has sent its pages, the memory is free. A forked child
/// shares the pages and can only read them.
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
pub struct Published(Arc<SealedFile>);

impl Published {
    /// Publishes `bytes` bytes, which `write` fills in place; they are zeros before. Use it for data that is
    /// large or sent more than once: it takes 0.1 to some 10 ms, because the kernel first checks that the
    /// pages are not in use elsewhere.
    ///
    /// # Errors
    /// Not enough memory, or the kernel refuses to seal the file.
    pub fn written(bytes: usize, write: impl FnOnce(&mut [u8])) -> Result<Self, PublishError> {
        let mut memory = UnsealedFile::new(bytes).map_err(|source| PublishError::Memory { bytes, source })?;
        write(&mut memory);
        memory.seal().map(|sealed| Self(Arc::new(sealed))).map_err(PublishError::Seal)
    }

    pub(super) fn sealed_file(&self) -> &SealedFile {
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
    /// The sealed file, to be passed to another process, which opens the same bytes by
    /// [`TryFrom<OwnedFd>`](Published#impl-TryFrom<OwnedFd>-for-Published).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file().as_fd()
    }
}

impl TryFrom<OwnedFd> for Published {
    type Error = PublishError;

    /// All bytes of a sealed file (memfd_create(2)), which another process may have passed. A file without
    /// the seals `F_SEAL_WRITE` and `F_SEAL_SHRINK` is refused, because it could still change; so is one with
    /// holes, because it may have any length, and reading it would allocate that much memory in this process.
    fn try_from(descriptor: OwnedFd) -> Result<Self, PublishError> {
        let file = File::from(descriptor);
        let seals = sealed::seals(&file).map_err(PublishError::TakesNoSeals)?;
        let missing = UNCHANGEABLE.difference(seals);
        if !missing.is_empty() {
            let names = [(SealFlags::WRITE, "F_SEAL_WRITE"), (SealFlags::SHRINK, "F_SEAL_SHRINK")];
            let names = names.into_iter().filter(|(seal, _)| missing.contains(*seal));
            return Err(PublishError::UnsealedFile { missing: names.map(|(_, name)| name).collect() });
        }
        let sealed = SealedFile::map(file).map_err(PublishError::Unmapped)?;
        if !sealed.is_fully_allocated().map_err(PublishError::Unmapped)? {
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

/// Why bytes could not be published, or a descriptor not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// There is not enough memory.
    #[error(
        "published data: no memory for {bytes} bytes{cause}; publish less, or raise the memory limit of the process or its cgroup", cause = ErrorCause(.source))]
    Memory {
        /// Bytes asked for.
        bytes: usize,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The bytes were written, but not sealed.
    #[error(
        "published data: not sealed{cause}; on EBUSY another process has opened its memory for writing, by /proc; end that process", cause = ErrorCause(.0))]
    Seal(#[source] io::Error),
    /// The descriptor is not a file that can be sealed.
    #[error(
        "published data: the file cannot be sealed{cause}; make it by memfd_create with MFD_ALLOW_SEALING, or send it as a file", cause = ErrorCause(.0))]
    TakesNoSeals(#[source] io::Error),
    /// Seals are missing: the file could still be changed.
    #[error("published data: the file can still be changed; it lacks {}; the program that made it has to add them by fcntl(F_ADD_SEALS)", missing.join(" and "))]
    UnsealedFile {
        /// The names of the seals.
        missing: Vec<&'static str>,
    },
    /// Parts of the file have no memory.
    #[error(
        "published data: the sealed file of {bytes} bytes has holes; reading them would allocate memory charged to this process; the program that made it has to write all of it before sealing it"
    )]
    Sparse {
        /// The length of the file.
        bytes: usize,
    },
    /// The file could not be mapped.
    #[error(
        "published data: the sealed file cannot be mapped{cause}; it has to be open for reading, and to fit into the address space", cause = ErrorCause(.0))]
    Unmapped(#[source] io::Error),
}

convert_to_io_error!(PublishError {
    _ => io::ErrorKind::InvalidInput,
});
