//! What is copied besides the bytes of files, and how it is said that something of it is not.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use crate::wire::nfs3::Time;

/// Causes of leaving something out.
pub(super) const UNFINISHED: &str = "its name is that of an unfinished copy; rename it to copy it";
pub(super) const DIRECTORY: &str = "a directory; use -r to copy it with everything in it";
pub(super) const SPECIAL_FILE: &str = "a FIFO, a socket or a device; use -r to make one like it";
pub(super) const DEVICE: &str = "a device; only root makes devices, and not in a user namespace; copy it as root, or make it with mknod(1)";
pub(super) const SERVER_DEVICE: &str = "a device; only root makes devices, and 'nocopy serve nfs' only with --no-root-squash; make it there with mknod(1)";

pub(super) const NO_NODES: &str = "a FIFO or a socket; the server makes none; use another server for it";

/// A time of a file of this host, for a server, and whether it is exactly that: NFS has times from 1970
/// to 2106.
pub(super) fn nfs_time(metadata: &Metadata) -> (Time, bool) {
    let seconds = metadata.mtime().clamp(0, u32::MAX.into());
    let nanoseconds = if seconds == metadata.mtime() { metadata.mtime_nsec() as u32 } else { 0 };
    (Time { seconds: seconds as u32, nanoseconds }, seconds == metadata.mtime())
}

/// What is missing in a copy that was sent to a server.
pub(super) fn lost_attributes(metadata: &Metadata) -> Option<&'static str> {
    let is_directory_or_link = metadata.is_dir() || metadata.is_symlink();
    let permissions = if is_directory_or_link { None } else { missing_permissions(metadata.mode()) };
    permissions.or_else(|| (!nfs_time(metadata).1).then_some(OTHER_TIME))
}

const OTHER_TIME: &str =
    "copied with another time; NFS version 3 has times from 1970 to 2106; set it with touch(1) on the server";

/// Permissions of copies: of files that are run as another user, only that part which lets nobody do that.
const PERMISSIONS: u32 = 0o1777;

/// The permissions of the copy of a file, a FIFO or a socket.
pub(super) fn copied_permissions(of: u32) -> u32 {
    of & PERMISSIONS
}

/// What is missing in the copy of a file with these permissions.
pub(super) fn missing_permissions(of: u32) -> Option<&'static str> {
    (of & 0o6000 != 0).then_some(
        "copied without set-user-ID and set-group-ID; a copy may belong to another user; set them with chmod(1) if that is meant",
    )
}

/// A directory whose file system did not take all permissions.
pub(super) fn changed_permissions_message(wanted: u32, found: u32) -> Option<String> {
    (wanted != found).then(|| {
        format!("copied with the permissions {found:o} instead of {wanted:o}; the system there keeps no others; set them with chmod(1)")
    })
}
