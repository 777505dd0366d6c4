//! Memory that nothing can change any more: sealed files without a name (memfd_create(2), `F_ADD_SEALS`).

use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::MetadataExt;
use std::slice;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, SeekFrom};

use super::memory::{Mapping, PAGE_BYTES};

/// The seals against writing, by any mapping or call, and against truncation, which would remove pages of a
/// mapping (`SIGBUS`).
pub(crate) const UNCHANGEABLE: SealFlags = SealFlags::WRITE.union(SealFlags::SHRINK);

/// A new file and its memory, to be filled and then sealed.
#[derive(Debug)]
pub(crate) struct UnsealedFile {
    file: File,
    mapping: Mapping,
    bytes: usize,
}

impl UnsealedFile {
    /// Zeroed memory of that many bytes. The pages are allocated: writing to them cannot fail later, and
    /// unwritten parts are no holes for receivers of the file.
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        let length = u64::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let file = File::from(create_memfd()?);
        if length > 0 {
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, length)?;
        }
        let mapping = Mapping::of_file(&file, bytes, true)?;
        if length > 0 {
            mapping.populate(PAGE_BYTES)?;
        }
        Ok(Self { file, mapping, bytes })
    }

    /// Gives up the memory that can be written and seals the file.
    ///
    /// The kernel refuses (`EBUSY`) while anything else can write to it: a mapping, or input that a device or
    /// another call still writes.
    pub(crate) fn seal(self) -> io::Result<SealedFile> {
        let Self { file, mapping, .. } = self;
        drop(mapping);
        rustix::fs::fcntl_add_seals(&file, UNCHANGEABLE | SealFlags::GROW | SealFlags::SEAL)?;
        SealedFile::map(file)
    }
}

/// The file can neither be executed nor is inherited by executed programs. Kernels before 6.3 do not know the
/// first flag.
fn create_memfd() -> io::Result<std::os::fd::OwnedFd> {
    const FLAGS: MemfdFlags = MemfdFlags::CLOEXEC.union(MemfdFlags::ALLOW_SEALING);
    match rustix::fs::memfd_create("nocopy-published", FLAGS | MemfdFlags::NOEXEC_SEAL) {
        Err(rustix::io::Errno::INVAL) => Ok(rustix::fs::memfd_create("nocopy-published", FLAGS)?),
        created => Ok(created?),
    }
}

impl Deref for UnsealedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is of so many bytes of a file, readable, and lives as long as the borrow. The
        // file has no name, its descriptor is not given out before it is sealed, and children do not have the
        // mapping.
        unsafe { slice::from_raw_parts(self.mapping.base().as_ptr(), self.bytes) }
    }
}

impl DerefMut for UnsealedFile {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; it can be written as well, and the borrow is the only one.
        unsafe { slice::from_raw_parts_mut(self.mapping.base().as_ptr(), self.bytes) }
    }
}

#[derive(Debug)]
pub(crate) struct SealedFile {
    file: File,
    mapping: Mapping,
    bytes: usize,
}

impl SealedFile {
    /// Maps a file that has the seals.
    /// Panics if the file is not sealed.
    pub(crate) fn map(file: File) -> io::Result<Self> {
        // Protects memory: without the seals the bytes could change, or be unmapped, under a reference to
        // them.
        assert!(seals(&file)?.contains(UNCHANGEABLE), "only sealed files are mapped");
        // Read after the seals, so the length cannot shrink.
        let bytes =
            usize::try_from(file.metadata()?.len()).ok().filter(|&bytes| isize::try_from(bytes).is_ok());
        let bytes = bytes.ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Mapping::of_file(&file, bytes, false)?;
        Ok(Self { file, mapping, bytes })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Whether all of its memory is allocated. Missing pages would be charged to the process that first reads
    /// them; allocated ones stay, because nothing can write to the file or punch holes.
    pub(crate) fn is_fully_allocated(&self) -> io::Result<bool> {
        let bytes = self.bytes as u64;
        // As `du` counts. For files on huge pages this must suffice: the query below finds no holes in them.
        let taken = self.file.metadata()?.blocks().saturating_mul(512);
        if bytes == 0 || taken < bytes {
            return Ok(bytes == 0);
        }
        // Pages beyond the end may be counted, too. The file position is shared with the process that passed
        // the file.
        let position = rustix::fs::tell(&self.file)?;
        let hole = rustix::fs::seek(&self.file, SeekFrom::Hole(0));
        rustix::fs::seek(&self.file, SeekFrom::Start(position))?;
        Ok(hole? >= bytes)
    }
}

/// The seals of a file. `EINVAL`: it is of a kind that takes none.
pub(crate) fn seals(file: &File) -> io::Result<SealFlags> {
    Ok(rustix::fs::fcntl_get_seals(file)?)
}

impl Deref for SealedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is of so many bytes of a file, readable, and lives as long as the borrow. `map`
        // has seen the seals, which are never taken off: nobody can write to the file or cut it off, so the
        // bytes neither change nor go away.
        unsafe { slice::from_raw_parts(self.mapping.base().as_ptr(), self.bytes) }
    }
}
