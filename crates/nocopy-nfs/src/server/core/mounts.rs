//! MOUNT: from a path to the first handle.

use std::ffi::OsStr;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Core, RefusalReply, decode_arguments, encode_success};
use crate::export::Caller;
use crate::wire::mount::{self, ExportEntry, MountEntry, MountReply, MountSuccess, Procedure, Status, Text};
use crate::wire::nfs3::{self, FileType};
use crate::wire::rpc::{AUTH_NONE, AUTH_SYS, Call, Reply};

/// The most remembered mounts, and the most bytes of their paths. They only serve to be listed, in one reply.
const MOUNTS_MAX: usize = 1024;
const PATHS_BYTES_MAX: usize = 64 << 10;

/// The longest path that the kernel takes.
const PATH_BYTES_MAX: usize = 4095;

/// Longer paths are decoded, so that they can be refused by their own status.
type LongPath<'a> = Text<'a, { nfs3::ARGUMENT_BYTES_MAX }>;

/// The paths that clients claim to have mounted.
#[derive(Debug, Default)]
pub(super) struct Mounts(Mutex<Vec<(IpAddr, Box<[u8]>)>>);

impl Mounts {
    fn lock(&self) -> MutexGuard<'_, Vec<(IpAddr, Box<[u8]>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_mount(&self, client: IpAddr, path: &[u8]) {
        let mut mounts = self.lock();
        let bytes: usize = mounts.iter().map(|(_, path)| path.len()).sum();
        let is_listed = path.len() <= mount::PATH_BYTES_MAX;
        let has_room = is_listed && mounts.len() < MOUNTS_MAX && bytes + path.len() <= PATHS_BYTES_MAX;
        if has_room && !mounts.iter().any(|one| (one.0, &*one.1) == (client, path)) {
            mounts.push((client, path.into()));
        }
    }
}

impl Core {
    pub(super) fn answer_mount(&self, call: &Call<'_>, client: SocketAddr) -> Result<Vec<u8>, RefusalReply> {
        let procedure = Procedure::from_number(call.procedure).ok_or(Reply::ProcedureUnavailable)?;
        Ok(match procedure {
            Procedure::Null => encode_success(call.xid, &()),
            Procedure::Mount => {
                let Text(path) = decode_arguments::<LongPath<'_>>(call)?;
                let caller = self.callers.map_credential(&call.credential, client).map_err(Reply::Denied)?;
                let reply = self.resolve_mount(&caller, path);
                if reply.is_ok() {
                    self.mounts.add_mount(client.ip(), path);
                }
                encode_success(call.xid, &reply)
            }
            Procedure::Dump => {
                let mounts = self.mounts.lock();
                let clients: Vec<String> = mounts.iter().map(|(client, _)| client.to_string()).collect();
                let entries: Vec<MountEntry<'_>> = clients
                    .iter()
                    .zip(mounts.iter())
                    .map(|(client, (_, path))| MountEntry {
                        client: Text(client.as_bytes()),
                        path: Text(path),
                    })
                    .collect();
                encode_success(call.xid, &entries)
            }
            Procedure::Unmount => {
                let Text(path) = decode_arguments::<LongPath<'_>>(call)?;
                self.mounts.lock().retain(|one| (one.0, &*one.1) != (client.ip(), path));
                encode_success(call.xid, &())
            }
            Procedure::UnmountAll => {
                self.mounts.lock().retain(|(one, _)| *one != client.ip());
                encode_success(call.xid, &())
            }
            Procedure::Export => {
                let path = Text(self.export.path().as_os_str().as_bytes());
                let groups = self.groups.iter().map(|group| Text(group.as_bytes())).collect();
                encode_success(call.xid, &vec![ExportEntry { path, groups }])
            }
        })
    }

    /// The path is looked up as the caller would do it name by name.
    fn resolve_mount(&self, caller: &Caller, path: &[u8]) -> MountReply {
        if path.len() > PATH_BYTES_MAX {
            return Err(Status::NameTooLong);
        }
        let path = Path::new(OsStr::from_bytes(path));
        let below = self.export.path_inside(path).ok_or(Status::NoEntry)?;
        let handle = self.export.walk(caller, below).map_err(mount_status_from_nfs)?;
        let file = self.export.file_by_handle(&handle).map_err(mount_status_from_nfs)?;
        if file.file_type() != FileType::Directory {
            return Err(Status::NotDirectory);
        }
        self.save_index();
        Ok(MountSuccess { handle, flavors: vec![AUTH_SYS, AUTH_NONE] })
    }
}

fn mount_status_from_nfs(of: nfs3::Status) -> Status {
    match of {
        nfs3::Status::NoEntry | nfs3::Status::Stale => Status::NoEntry,
        nfs3::Status::Access | nfs3::Status::NotPermitted => Status::Access,
        nfs3::Status::NotDirectory => Status::NotDirectory,
        nfs3::Status::NameTooLong => Status::NameTooLong,
        nfs3::Status::Invalid => Status::Invalid,
        nfs3::Status::Io => Status::Io,
        _ => Status::ServerFault,
    }
}
