//! Making files, directories, symbolic links, FIFOs, sockets and devices.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{FileType as Kind, OFlags, ftruncate, makedev, mkdirat, mknodat, openat, symlinkat};
use rustix::io::fcntl_dupfd_cloexec;

use super::attributes::{
    check_attributes, granted_permissions, set_owner_and_times, set_owner_and_times_by_name,
};
use super::changes::{CLOSING_MAX, ChangeResult, change_with_attributes, check_new_name};
use super::exclusive::{store_verifier_in_times, times_have_verifier};
use super::file::{self, change_status_from_errno};
use super::{Caller, Export, FileInfo, OpenFile};
use crate::wire::nfs3::{CreateMode, FileType, NewAttributes, NewNode, Status};

/// Default permissions of new files.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

impl Export {
    /// Makes a file, or opens an existing one if the call allows it.
    pub fn create(
        &self,
        caller: &Caller,
        directory: &OpenFile,
        name: &[u8],
        how: &CreateMode,
    ) -> ChangeResult<FileInfo> {
        self.create_entry(directory, name, |name| {
            let attributes = match how {
                CreateMode::Unchecked(new) | CreateMode::Guarded(new) => *new,
                CreateMode::Exclusive(_) => NewAttributes::NONE,
            };
            check_attributes(&attributes)?;
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mode = granted_permissions(caller, FileType::Regular, attributes.mode.unwrap_or(FILE_MODE));
            let made = caller.act_as(|| {
                let file = openat(directory, name, flags, mode).map_err(change_status_from_errno)?;
                if let Some(bytes) = attributes.size.filter(|&bytes| bytes > 0) {
                    ftruncate(&file, bytes).map_err(change_status_from_errno)?;
                }
                if let CreateMode::Exclusive(verifier) = how {
                    // Where that fails, it is kept below.
                    let _ = store_verifier_in_times(&file, *verifier);
                }
                set_owner_and_times(file.as_fd(), &attributes).map(|()| Some(file))
            });
            match made {
                Ok(Some(file)) => self.record_exclusive_verifier(&file, how).map(|()| Some(file)),
                Err(Status::Exists) => {
                    self.open_existing_for_create(caller, directory, name, how).map(|()| None)
                }
                made => made,
            }
        })
    }

    /// Keeps the verifier of a new file, if its times have not.
    fn record_exclusive_verifier(&self, file: &OwnedFd, how: &CreateMode) -> Result<(), Status> {
        let CreateMode::Exclusive(verifier) = how else { return Ok(()) };
        let stat = file::stat(file).map_err(change_status_from_errno)?;
        if times_have_verifier(&stat, *verifier) {
            return Ok(());
        }
        let identity = self.identify(&stat, file, c"")?;
        // Without it, only a repeated call is refused that the next server gets.
        let _ = self.exclusive.record_verifier(identity, &stat, *verifier);
        Ok(())
    }

    /// A file that exists already.
    fn open_existing_for_create(
        &self,
        caller: &Caller,
        directory: &OpenFile,
        name: &CStr,
        how: &CreateMode,
    ) -> Result<(), Status> {
        let stat = caller.act_as(|| file::stat_at(directory, name).map_err(change_status_from_errno))?;
        if file::file_type_from_stat(&stat) != FileType::Regular {
            return Err(Status::Exists);
        }
        match how {
            CreateMode::Guarded(_) => Err(Status::Exists),
            CreateMode::Exclusive(verifier) => {
                let identity = self.identify(&stat, directory, name)?;
                let is_made = self.exclusive.was_created_with(identity, &stat, *verifier);
                if is_made { Ok(()) } else { Err(Status::Exists) }
            }
            CreateMode::Unchecked(NewAttributes { size: None, .. }) => Ok(()),
            CreateMode::Unchecked(NewAttributes { size: Some(bytes), .. }) => {
                let file = self.file_by_handle(&self.lookup(caller, directory, name.to_bytes())?.handle)?;
                // The directory's lock is held, so the file's lock must not be waited for.
                self.locks.change_counter(&file).fetch_add(1, Ordering::AcqRel);
                self.truncate(caller, &file, *bytes)
            }
        }
    }

    pub fn make_directory(
        &self,
        caller: &Caller,
        directory: &OpenFile,
        name: &[u8],
        new: &NewAttributes,
    ) -> ChangeResult<FileInfo> {
        let mode = granted_permissions(caller, FileType::Directory, new.mode.unwrap_or(DIRECTORY_MODE));
        self.create_entry(directory, name, |name| {
            check_attributes(new)?;
            caller.act_as(|| {
                mkdirat(directory, name, mode).map_err(change_status_from_errno)?;
                set_owner_and_times_by_name(caller, directory, name, FileType::Directory, new).map(|()| None)
            })
        })
    }

    pub fn make_link(
        &self,
        caller: &Caller,
        directory: &OpenFile,
        name: &[u8],
        path: &[u8],
        new: &NewAttributes,
    ) -> ChangeResult<FileInfo> {
        self.create_entry(directory, name, |name| {
            check_attributes(new)?;
            let path = CString::new(path).ok().filter(|path| !path.is_empty()).ok_or(Status::Invalid)?;
            caller.act_as(|| {
                symlinkat(&*path, directory, name).map_err(change_status_from_errno)?;
                set_owner_and_times_by_name(caller, directory, name, FileType::SymbolicLink, new)
                    .map(|()| None)
            })
        })
    }

    /// Makes a FIFO, a socket, or, if the kernel lets the caller, a device.
    pub fn make_node(
        &self,
        caller: &Caller,
        directory: &OpenFile,
        name: &[u8],
        node: &NewNode,
    ) -> ChangeResult<FileInfo> {
        self.create_entry(directory, name, |name| {
            let NewNode { file_type, attributes, major, minor } = node;
            let kind = match file_type {
                FileType::Fifo => Kind::Fifo,
                FileType::Socket => Kind::Socket,
                FileType::CharacterDevice => Kind::CharacterDevice,
                FileType::BlockDevice => Kind::BlockDevice,
                _ => return Err(Status::BadType),
            };
            check_attributes(attributes)?;
            let is_device = matches!(kind, Kind::CharacterDevice | Kind::BlockDevice);
            // All clients would have what the server's user has.
            if is_device && *caller == Caller::Server {
                return Err(Status::NotPermitted);
            }
            let device = makedev(*major, *minor);
            // The kernel has 12 and 20 bits for them.
            if (major >> 12, minor >> 20) != (0, 0) {
                return Err(Status::Invalid);
            }
            let mode = granted_permissions(caller, *file_type, attributes.mode.unwrap_or(FILE_MODE));
            caller.act_as(|| {
                mknodat(directory, name, kind, mode, device).map_err(change_status_from_errno)?;
                set_owner_and_times_by_name(caller, directory, name, *file_type, attributes).map(|()| None)
            })
        })
    }

    /// Makes a file or directory by `make`, and returns its handle. `make` returns the open file (for reading
    /// and writing) if it made one.
    fn create_entry(
        &self,
        directory: &OpenFile,
        name: &[u8],
        make: impl FnOnce(&CStr) -> Result<Option<OwnedFd>, Status>,
    ) -> ChangeResult<FileInfo> {
        let (done, changed) = {
            let _lock = self.locks.lock_file(directory);
            change_with_attributes(directory, || {
                let entry = check_new_name(directory, name)?;
                // For the lookup: if no descriptor is left, nothing has been made when the client is asked to
                // repeat the call.
                let spare = fcntl_dupfd_cloexec(directory, 0).map_err(change_status_from_errno)?;
                match make(&entry)? {
                    Some(file) => self.keep_new_file_open(directory, &entry, file),
                    None => {
                        drop(spare);
                        self.lookup(&Caller::Server, directory, name)
                    }
                }
            })
        };
        self.sync_closed_files(CLOSING_MAX);
        let settle = |found: FileInfo| {
            // Others have nothing besides what is in the directory's part of the journal.
            if matches!(found.attributes.file_type, FileType::Regular | FileType::Directory) {
                self.sync_change(&*self.file_by_handle(&found.handle)?)?;
            }
            self.sync_change(directory).map(|()| found)
        };
        (done.and_then(settle), changed)
    }

    /// Keeps a new file open: the client that made it usually writes to it next.
    fn keep_new_file_open(
        &self,
        directory: &OpenFile,
        name: &CStr,
        file: OwnedFd,
    ) -> Result<FileInfo, Status> {
        let stat = file::stat(&file).map_err(change_status_from_errno)?;
        let identity = self.identify(&stat, &file, c"")?;
        self.record_location(identity, directory.identity(), directory, name);
        self.open_files.insert(Arc::new(OpenFile::new_created(file, identity, directory)));
        self.file_info_from_stat(identity, &stat)
    }
}
