//! Attributes that clients set: what is allowed of them, and setting them on a descriptor, never by a name
//! that might be another file's by then.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, chownat, openat,
    utimensat,
};
use rustix::io::Errno;

use super::file::change_status_from_errno;
use super::{Caller, OpenFile, descriptor_path, file};
use crate::wire::nfs3::{FileType, NewAttributes, SetTime, Status};

/// Rejects numbers with a special meaning for the kernel: -1 for nobody, nanoseconds of more than a second
/// for "now" and "omit".
pub(super) fn check_attributes(new: &NewAttributes) -> Result<(), Status> {
    let is_user = |number: Option<u32>| number != Some(u32::MAX);
    let is_time = |set| !matches!(set, SetTime::To(time) if time.nanoseconds >= 1_000_000_000);
    let is_good = is_user(new.user) && is_user(new.group) && is_time(new.accessed) && is_time(new.modified);
    if is_good { Ok(()) } else { Err(Status::Invalid) }
}

/// The permissions that a caller may give. If all calls are made as the user of the server, a file must not
/// run as that user or group, which would have more than the exported directory: set-user-ID and set-group-ID
/// are left out. (For a directory, set-group-ID only chooses the group of new files.) A caller that is a user
/// gives such rights of its own, and the kernel decides.
pub(super) fn granted_permissions(caller: &Caller, file_type: FileType, mode: u32) -> Mode {
    let is_own = matches!(caller, Caller::User(_)) || file_type == FileType::Directory;
    Mode::from_raw_mode(mode & if is_own { 0o7777 } else { 0o1777 })
}

/// Sets the owner of a file, if a new one is given.
pub(super) fn set_owner(file: impl AsFd, new: &NewAttributes) -> rustix::io::Result<()> {
    let (user, group) = (new.user.map(Uid::from_raw), new.group.map(Gid::from_raw));
    if user.is_none() && group.is_none() {
        return Ok(());
    }
    chownat(file, c"", user, group, AtFlags::EMPTY_PATH)
}

fn keeps_times(new: &NewAttributes) -> bool {
    (new.accessed, new.modified) == (SetTime::Keep, SetTime::Keep)
}

/// Sets the times of the file of a descriptor's link below /proc.
pub(super) fn set_times(link: &CStr, new: &NewAttributes) -> Result<(), Status> {
    if keeps_times(new) {
        return Ok(());
    }
    let time = |set| match set {
        SetTime::Keep => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        SetTime::Now => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        SetTime::To(time) => Timespec { tv_sec: time.seconds.into(), tv_nsec: time.nanoseconds.into() },
    };
    let times = Timestamps { last_access: time(new.accessed), last_modification: time(new.modified) };
    utimensat(CWD, link, &times, AtFlags::empty()).map_err(change_status_from_errno)
}

/// Sets owner and times of a new file; its owner only if that is permitted.
pub(super) fn set_owner_and_times(file: BorrowedFd<'_>, new: &NewAttributes) -> Result<(), Status> {
    match set_owner(file, new) {
        Ok(()) | Err(Errno::PERM) if keeps_times(new) => Ok(()),
        Ok(()) | Err(Errno::PERM) => set_times(&descriptor_path(file.as_raw_fd()), new),
        Err(error) => Err(change_status_from_errno(error)),
    }
}

/// As [`set_owner_and_times`], for a directory or link that the caller has just made by this name, as system
/// calls return no descriptor of it. If another user of this host has put another file there, that one is
/// left as it is.
pub(super) fn set_owner_and_times_by_name(
    caller: &Caller,
    directory: &OpenFile,
    name: &CStr,
    file_type: FileType,
    new: &NewAttributes,
) -> Result<(), Status> {
    if new.user.is_none() && new.group.is_none() && keeps_times(new) {
        return Ok(());
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = openat(directory, name, flags, Mode::empty()).map_err(change_status_from_errno)?;
    let stat = file::stat(&made).map_err(change_status_from_errno)?;
    let is_alone = file_type == FileType::Directory || stat.stx_nlink == 1;
    let is_it = file::file_type_from_stat(&stat) == file_type && caller.is_user_id(stat.stx_uid) && is_alone;
    if is_it { set_owner_and_times(made.as_fd(), new) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::{MetadataExt, chown, symlink};
    use std::path::Path;

    use super::super::tests::Scene;
    use super::*;
    use crate::wire::nfs3::Time;

    /// A user of this host, and the one to whom a client wants to give what it makes.
    const OTHER: u32 = 1001;
    const NEW: u32 = 1002;

    /// Proves that only the directory or link that was made gets owner and times, not what was put in its
    /// place.
    #[test]
    fn replaced_new_files_are_left_unchanged() {
        let scene = Scene::new();
        let at = |name: &str| scene.path("exported").join(name);
        fs::create_dir(at("directory")).unwrap();
        fs::create_dir(at("of another")).unwrap();
        symlink("target", at("link")).unwrap();
        symlink("target", at("other name")).unwrap();
        fs::hard_link(at("other name"), at("linked")).unwrap();
        File::create(at("file")).unwrap();
        if chown(at("of another"), Some(OTHER), None).is_err() {
            return nocopy_lab::skip(&nocopy_lab::Missing::Capability("CAP_CHOWN"));
        }
        let export = scene.open_export();
        let root = export.file_by_handle(&export.root_handle()).unwrap();
        let modified = SetTime::To(Time { seconds: 7, nanoseconds: 0 });
        let new = NewAttributes { user: Some(NEW), modified, ..NewAttributes::NONE };
        for (name, file_type, is_it) in [
            (c"directory", FileType::Directory, true),
            (c"link", FileType::SymbolicLink, true),
            (c"of another", FileType::Directory, false),
            (c"linked", FileType::SymbolicLink, false),
            (c"file", FileType::Directory, false),
            (c"link", FileType::Directory, false),
        ] {
            set_owner_and_times_by_name(&Caller::Server, &root, name, file_type, &new).unwrap();
            let stat = fs::symlink_metadata(at("").join(Path::new(name.to_str().unwrap()))).unwrap();
            let is_set = (stat.uid(), stat.mtime()) == (NEW, 7);
            assert_eq!(is_set, is_it || name == c"link", "{name:?}");
        }
    }
}
