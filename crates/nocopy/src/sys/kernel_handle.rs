//! File handles: the kernel's names of files for file servers, independent of their paths.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// `MAX_HANDLE_SZ` of fcntl.h.
const BYTES_MAX: usize = 128;

/// `struct file_handle` of fcntl.h, with room for the longest.
#[repr(C)]
struct RawFileHandle {
    head: libc::file_handle,
    bytes: [u8; BYTES_MAX],
}

/// A handle of name_to_handle_at(2): on most file systems inode number and generation, so a file that reuses
/// the number of a removed one has another handle. Only the same kernel and file system can read it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KernelHandle(Box<[u8]>);

impl KernelHandle {
    /// The handle of a name in a directory, of a symbolic link itself; with an empty name, of the file that
    /// the descriptor refers to.
    ///
    /// # Errors
    /// There is no such file, or its file system has no handles (`EOPNOTSUPP`).
    pub fn of(directory: impl AsFd, name: &CStr) -> io::Result<Self> {
        let head = libc::file_handle { handle_bytes: BYTES_MAX as u32, handle_type: 0, f_handle: [] };
        let mut raw = RawFileHandle { head, bytes: [0; BYTES_MAX] };
        let mut mount = 0;
        // SAFETY: the name ends with a zero; the kernel writes no more bytes than the head says that there
        // are behind it.
        let done = unsafe {
            libc::name_to_handle_at(
                directory.as_fd().as_raw_fd(),
                name.as_ptr(),
                (&raw mut raw).cast(),
                &raw mut mount,
                libc::AT_EMPTY_PATH,
            )
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        // In range: the kernel returns no more than it was told that there is room for.
        let bytes = &raw.bytes[..raw.head.handle_bytes as usize];
        Ok(Self([&raw.head.handle_type.to_ne_bytes(), bytes].concat().into()))
    }

    /// From the bytes of [`as_bytes`](Self::as_bytes); `None` if they are too many.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        (4..=4 + BYTES_MAX).contains(&bytes.len()).then(|| Self(bytes.into()))
    }

    /// Its bytes, valid for this kernel and machine.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Opens the file by open_by_handle_at(2), for its attributes only (`O_PATH`); `mount`: any open file on
    /// its file system.
    ///
    /// # Errors
    /// The file was removed (`ESTALE`), or this process lacks `CAP_DAC_READ_SEARCH` (`EPERM`).
    pub fn open(&self, mount: impl AsFd) -> io::Result<OwnedFd> {
        let (kind, from) = self.0.split_first_chunk().expect("it is never shorter");
        let (handle_bytes, handle_type) = (from.len() as u32, i32::from_ne_bytes(*kind));
        let mut raw = RawFileHandle {
            head: libc::file_handle { handle_bytes, handle_type, f_handle: [] },
            bytes: [0; BYTES_MAX],
        };
        raw.bytes[..from.len()].copy_from_slice(from);
        let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: the head says how many of the bytes behind it are the handle's, which is no more than there
        // are.
        let opened =
            unsafe { libc::open_by_handle_at(mount.as_fd().as_raw_fd(), (&raw mut raw).cast(), flags) };
        if opened < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just opened it for this call alone.
        Ok(unsafe { OwnedFd::from_raw_fd(opened) })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::MetadataExt;

    use nocopy_lab::patience::wait_until;

    use super::*;

    /// The file systems of the tests reuse the number of a removed file, ext4 at once.
    #[test]
    fn a_replaced_file_has_another_handle() {
        let directory = tempfile::tempdir().unwrap();
        let opened = File::open(directory.path()).unwrap();
        let path = directory.path().join("file");
        let mut found = Vec::new();
        for _ in 0..3 {
            fs::write(&path, []).unwrap();
            let by_name = KernelHandle::of(&opened, c"file").unwrap();
            assert_eq!(by_name, KernelHandle::of(File::open(&path).unwrap(), c"").unwrap());
            assert_eq!(KernelHandle::from_bytes(by_name.as_bytes()).as_ref(), Some(&by_name));
            assert!(!found.contains(&by_name));
            found.push(by_name);
            fs::remove_file(&path).unwrap();
        }
        assert!(KernelHandle::of(&opened, c"file").is_err());
        assert!([&[][..], &[0; 3], &[0; 133]].iter().all(|bytes| KernelHandle::from_bytes(bytes).is_none()));
    }

    #[test]
    fn a_renamed_file_is_opened_if_that_is_permitted() {
        let directory = tempfile::tempdir().unwrap();
        let opened = File::open(directory.path()).unwrap();
        let path = directory.path().join("file");
        fs::write(&path, []).unwrap();
        let handle = KernelHandle::of(&opened, c"file").unwrap();
        fs::rename(&path, directory.path().join("renamed")).unwrap();
        match handle.open(&opened) {
            Ok(file) => {
                let about = rustix::fs::fstat(&file).unwrap();
                assert_eq!(about.st_ino, fs::metadata(directory.path().join("renamed")).unwrap().ino());
                fs::remove_file(directory.path().join("renamed")).unwrap();
                drop(file);
                // The kernel may still be removing it.
                wait_until("it is gone", || {
                    handle.open(&opened).is_err_and(|gone| gone.raw_os_error() == Some(libc::ESTALE))
                });
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM)),
        }
    }
}
