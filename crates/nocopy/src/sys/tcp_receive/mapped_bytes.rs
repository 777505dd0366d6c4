//! Bytes on pages that the kernel mapped, which a sender on this host may still change.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};

/// Received bytes on pages that the kernel mapped into this process.
///
/// They may change while they are read, so they are never a `&[u8]`, except by [`as_slice`](Self::as_slice),
/// which is unsafe. A sender on the same host that sends by reference (`splice`, `vmsplice`) sends the pages
/// themselves, not their contents, and can write to them afterwards; whether a sender is on the same host
/// cannot be known for certain. So read them by copies ([`copy_to`](Self::copy_to)), and decide only by
/// copied bytes, because the next copy may differ. [`write_to`](Self::write_to) passes them to a file without
/// a copy in this process.
///
/// ```
/// use nocopy::tcp::MappedBytes;
/// use std::io::Read;
/// let bytes = MappedBytes::from(&b"hello, everybody"[..]); // or `Chunk::mapped`
/// let mut word = [0; 5];
/// assert_eq!(bytes.slice(0..5).copy_to(&mut word), 5);
/// assert_eq!(&word, b"hello"); // a copy, which stays what it is
///
/// let (mut reader, writer) = std::io::pipe()?;
/// assert_eq!(bytes.slice(7..16).write_to(&writer, None)?, 9); // by the kernel, without a copy here
/// drop(writer);
/// let mut rest = String::new();
/// reader.read_to_string(&mut rest)?;
/// assert_eq!(rest, "everybody");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct MappedBytes<'pages> {
    first: NonNull<u8>,
    len: usize,
    /// The pages stay mapped, with all bytes from `first` on.
    pages: PhantomData<&'pages ()>,
}

// SAFETY: the bytes are mapped in all threads, and only read, in ways that tolerate concurrent changes (see
// `copy_changing_bytes`).
unsafe impl Send for MappedBytes<'_> {}
// SAFETY: as above.
unsafe impl Sync for MappedBytes<'_> {}

impl<'pages> MappedBytes<'pages> {
    /// # Safety
    /// The bytes can be read for `'pages`.
    pub(super) const unsafe fn new(first: NonNull<u8>, len: usize) -> Self {
        Self { first, len, pages: PhantomData }
    }

    /// The number of bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes in a range; the first byte is at 0.
    ///
    /// # Panics
    /// If the range is not within them.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let Range { start, end } = range;
        assert!(start <= end && end <= self.len, "bytes {start}..{end} of {}", self.len);
        // SAFETY: within the bytes (just checked), so it can be read for as long.
        unsafe { Self::new(self.first.add(start), end - start) }
    }

    /// Copies the first of them, as many as `room` holds, and returns how many that were.
    pub fn copy_to(&self, room: &mut [u8]) -> usize {
        let bytes = self.len.min(room.len());
        // SAFETY: as many as can be read, and written.
        unsafe { copy_changing_bytes(self.first.as_ptr(), room.as_mut_ptr(), bytes) };
        bytes
    }

    pub(crate) fn to_vec(self) -> Vec<u8> {
        let mut copied = Vec::with_capacity(self.len);
        // SAFETY: the vector has room for them, and then is as long as what was written.
        unsafe {
            copy_changing_bytes(self.first.as_ptr(), copied.as_mut_ptr(), self.len);
            copied.set_len(self.len);
        }
        copied
    }

    /// Writes them to a file, pipe or socket without a copy, and returns how many were written: at `offset`
    /// of the file (pwrite(2)), or with `None` at its own position (write(2)).
    ///
    /// # Errors
    /// The kernel's; `InvalidInput` if the offset is impossible.
    pub fn write_to(&self, file: impl AsFd, offset: impl Into<Option<u64>>) -> io::Result<usize> {
        let (file, first) = (file.as_fd().as_raw_fd(), self.as_ptr().cast());
        let written = match offset.into() {
            // SAFETY: bytes that can be read. It is the kernel that reads them.
            None => unsafe { libc::write(file, first, self.len) },
            Some(offset) => {
                let offset = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
                // SAFETY: as above.
                unsafe { libc::pwrite(file, first, self.len, offset) }
            }
        };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    }

    /// Pointer to the first. Reads should be volatile.
    pub(crate) const fn as_ptr(&self) -> *const u8 {
        self.first.as_ptr()
    }

    /// The bytes as an ordinary slice.
    ///
    /// # Safety
    /// No process writes to them while the slice is in use. That holds if the sender is on another host, or
    /// is known not to write to what it has sent by reference.
    pub const unsafe fn as_slice(&self) -> &'pages [u8] {
        // SAFETY: they can be read for so long, and by contract nobody writes to them.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

/// Copies bytes that may change at the same time, at the speed of memcpy(3). Each byte written was there at
/// some moment during the call, and the original is not read after it.
///
/// To the compiler this is a call of an unknown function, because a volatile read gives its address. So
/// Rust's reads do not race with the other writer, as those of `ptr::copy_nonoverlapping` would; and no read
/// of the copy can become another read of the original, as an optimiser may do with a copy it understands.
/// Volatile reads of words took up to three times as long.
///
/// # Safety
/// That many bytes are readable and writable, and do not overlap.
unsafe fn copy_changing_bytes(from: *const u8, to: *mut u8, bytes: usize) {
    type Copy =
        unsafe extern "C" fn(*mut libc::c_void, *const libc::c_void, libc::size_t) -> *mut libc::c_void;
    static COPY: Copy = libc::memcpy;
    // SAFETY: a static of this type.
    let opaque = unsafe { ptr::read_volatile(&raw const COPY) };
    // SAFETY: by contract. memcpy(3) makes no decision by the bytes, so any values will do.
    unsafe { opaque(to.cast(), from.cast(), bytes) };
}

impl<'bytes> From<&'bytes [u8]> for MappedBytes<'bytes> {
    /// Bytes that do not change, for functions that accept both.
    fn from(bytes: &'bytes [u8]) -> Self {
        // SAFETY: they are borrowed for as long.
        unsafe { Self::new(NonNull::from(bytes).cast(), bytes.len()) }
    }
}

impl fmt::Debug for MappedBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedBytes({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Seek;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    fn mapped(bytes: &[u8]) -> MappedBytes<'_> {
        bytes.into()
    }

    #[test]
    fn copies_have_the_requested_bytes() {
        let memory: Vec<u8> = (0..=255).cycle().take(10_000).collect();
        let all = mapped(&memory);
        for range in [0..0, 0..1, 1..10_000, 4095..4097, 9_999..10_000, 10_000..10_000] {
            let (some, expected) = (all.slice(range.clone()), &memory[range]);
            assert_eq!((some.len(), some.is_empty()), (expected.len(), expected.is_empty()));
            assert_eq!(some.to_vec(), expected);
            let mut room = [0; 100];
            let copied = some.copy_to(&mut room);
            assert_eq!(room[..copied], expected[..expected.len().min(100)]);
        }
    }

    #[test]
    fn ranges_beyond_the_bytes_are_refused() {
        for (start, end) in [(0, 5), (5, 5), (3, 2), (0, usize::MAX), (usize::MAX, usize::MAX)] {
            assert!(
                std::panic::catch_unwind(|| mapped(b"four").slice(start..end)).is_err(),
                "{start}..{end}"
            );
        }
    }

    #[test]
    fn mapped_bytes_are_written_to_files_at_offsets() {
        let mut file = File::from(memfd_create("written", MemfdFlags::CLOEXEC).unwrap());
        assert_eq!(mapped(b"written").write_to(&file, None).unwrap(), 7);
        assert_eq!(mapped(b"at").write_to(&file, 3).unwrap(), 2);
        file.rewind().unwrap();
        assert_eq!(io::read_to_string(&file).unwrap(), "wriaten");
        assert_eq!(mapped(b"x").write_to(&file, u64::MAX).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let (reader, writer) = io::pipe().unwrap();
        assert!(mapped(b"x").write_to(&reader, None).is_err() && mapped(b"x").write_to(&writer, 0).is_err());
    }
}
