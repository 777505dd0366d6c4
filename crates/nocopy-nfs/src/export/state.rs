//! State that outlives the server, so that its handles stay valid: the key of the MAC, and the index.

use nocopy_proto::errno::ErrorCause;
use std::fs::{DirBuilder, File};
use std::hash::Hasher;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, openat};
use rustix::process::geteuid;
use rustix::rand::{GetRandomFlags, getrandom};
use siphasher::sip::SipHasher24;

use super::exclusive::ExclusiveFiles;
use super::file_system_numbers::FileSystemNumbers;
use super::index::FileIndex;

const KEY_BYTES: usize = 16;

/// The file of the key, which only its owner can read.
const KEY: &str = "key";

/// Permissions of group and others.
const WRITE_OF_OTHERS: u32 = 0o022;
const ALL_OF_OTHERS: u32 = 0o077;

#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("{path}: cannot keep the key and the index of file handles there{cause}; name a directory that this user can write by --state", path = path.display(), cause = ErrorCause(.source))]
    Io { path: PathBuf, source: io::Error },
    #[error("{path}: cannot keep the key of file handles there; it is inside the exported directory, so clients could read it; name a directory elsewhere by --state", path = path.display())]
    Exported { path: PathBuf },
    #[error("{path}: cannot be used; another server is using it; stop that server, or name another directory by --state", path = path.display())]
    InUse { path: PathBuf },
    #[error("{path}: cannot be used for the key of file handles; other users can change or read it (owner {owner}, permissions {permissions:o}), and could make handles of any file; remove it, so that it is made anew, or name another directory by --state", path = path.display())]
    Exposed { path: PathBuf, owner: u32, permissions: u32 },
    #[error(
        "--state: no directory for the key and the index of file handles; HOME is not set; name one by --state"
    )]
    NoHome,
}

#[derive(Debug)]
pub(super) struct ExportState {
    pub(super) key: [u8; KEY_BYTES],
    pub(super) index: FileIndex,
    pub(super) numbers: FileSystemNumbers,
    pub(super) exclusive: ExclusiveFiles,
}

impl ExportState {
    pub(super) fn open(directory: Option<&Path>, exported: &Path) -> Result<Self, StateError> {
        let directory = match directory {
            Some(directory) => directory.to_owned(),
            None => default_directory(exported)?,
        };
        let failed = |source| StateError::Io { path: directory.clone(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(failed)?;
        let directory = directory.canonicalize().map_err(failed)?;
        let failed = |source| StateError::Io { path: directory.clone(), source };
        if directory.starts_with(exported) {
            return Err(StateError::Exported { path: directory });
        }
        let locked = File::open(&directory).map_err(failed)?;
        if rustix::fs::flock(&locked, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(StateError::InUse { path: directory });
        }
        check_not_exposed(&locked, &directory, WRITE_OF_OTHERS)?;
        let path = directory.join(KEY);
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let key =
            openat(&locked, KEY, flags, Mode::RUSR | Mode::WUSR).map_err(|error| failed(error.into()))?;
        let key = File::from(key);
        check_not_exposed(&key, &path, ALL_OF_OTHERS)?;
        let key = read_or_create_key(key).map_err(failed)?;
        let index = locked.try_clone().and_then(FileIndex::read).map_err(failed)?;
        let exclusive = locked.try_clone().and_then(ExclusiveFiles::read).map_err(failed)?;
        let numbers = FileSystemNumbers::read(locked, &index).map_err(failed)?;
        Ok(Self { key, index, numbers, exclusive })
    }
}

/// Checks that a directory or file belongs to this user, and that others do not have these permissions.
fn check_not_exposed(file: &File, path: &Path, of_others: u32) -> Result<(), StateError> {
    let metadata = file.metadata().map_err(|source| StateError::Io { path: path.to_owned(), source })?;
    let (owner, permissions) = (metadata.uid(), metadata.mode() & 0o7777);
    let is_ours = owner == geteuid().as_raw() && permissions & of_others == 0;
    if is_ours { Ok(()) } else { Err(StateError::Exposed { path: path.to_owned(), owner, permissions }) }
}

/// The key; made if the file is new.
fn read_or_create_key(mut file: File) -> io::Result<[u8; KEY_BYTES]> {
    let mut found = Vec::new();
    file.read_to_end(&mut found)?;
    if let Ok(key) = found.try_into() {
        return Ok(key);
    }
    let mut key = [0; KEY_BYTES];
    getrandom(&mut key, GetRandomFlags::empty())?;
    file.set_len(0)?;
    file.write_all(&key)?;
    // Handles are valid while the file exists, also after a power failure.
    file.sync_all()?;
    Ok(key)
}

/// A directory for each export, below `XDG_STATE_HOME`.
fn default_directory(exported: &Path) -> Result<PathBuf, StateError> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = variable("XDG_STATE_HOME").or_else(|| Some(variable("HOME")?.join(".local/state")));
    let mut hasher = SipHasher24::new();
    hasher.write(exported.as_os_str().as_bytes());
    let name = format!("{:016x}", hasher.finish());
    Ok(state.ok_or(StateError::NoHome)?.join("nocopy/nfs").join(name))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    /// Proves that a key is used only if no other user can read it, replace it, or have made it.
    #[test]
    fn keys_accessible_to_other_users_are_refused() {
        let around = tempfile::tempdir().unwrap();
        let (state, key) = (around.path().join("state"), around.path().join("state/key"));
        let open = || ExportState::open(Some(&state), Path::new("/exported")).map(|state| state.key);
        let known = open().unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        for (path, mode, is_refused) in [
            (&state, 0o777, true),
            (&state, 0o775, true),
            (&state, 0o755, false),
            (&key, 0o644, true),
            (&key, 0o620, true),
            (&key, 0o600, false),
        ] {
            set(path, mode);
            match open() {
                Ok(found) => assert!(found == known && !is_refused, "{mode:o}"),
                Err(StateError::Exposed { path: named, permissions, .. }) => {
                    assert_eq!((&named, permissions, is_refused), (path, mode, true));
                }
                Err(other) => panic!("{other}"),
            }
        }
        for path in [&key, &state] {
            if chown(path, Some(1001), None).is_err() {
                return nocopy_lab::skip(&nocopy_lab::Missing::Capability("CAP_CHOWN"));
            }
            assert!(matches!(open(), Err(StateError::Exposed { owner: 1001, .. })), "{path:?}");
            chown(path, Some(geteuid().as_raw()), None).unwrap();
        }
        assert_eq!(open().unwrap(), known);
        // Another file, wherever it is.
        fs::rename(&key, around.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("../elsewhere", &key).unwrap();
        assert!(matches!(open(), Err(StateError::Io { .. })));
    }
}
