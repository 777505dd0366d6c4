//! State that outlives the server, so that its handles stay valid: the key of the MAC, and the index.

use nocopy_proto::errno::Why;
use std::fs::{DirBuilder, File, OpenOptions};
use std::hash::Hasher;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::rand::{GetRandomFlags, getrandom};
use siphasher::sip::SipHasher24;

use super::index::Index;

const KEY_BYTES: usize = 16;

#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("{path}: cannot keep the key and the index of file handles there{cause}; name a directory that this user can write by --state", path = path.display(), cause = Why(.source))]
    Io { path: PathBuf, source: io::Error },
    #[error("{path}: cannot keep the key of file handles there; it is inside the exported directory, so clients could read it; name a directory elsewhere by --state", path = path.display())]
    Exported { path: PathBuf },
    #[error("{path}: cannot be used; another server is using it; stop that server, or name another directory by --state", path = path.display())]
    InUse { path: PathBuf },
    #[error(
        "--state: no directory for the key and the index of file handles; HOME is not set; name one by --state"
    )]
    NoHome,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) key: [u8; KEY_BYTES],
    pub(super) index: Index,
}

impl State {
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
        let key = read_key(&directory.join("key")).map_err(failed)?;
        Ok(Self { key, index: Index::read(locked).map_err(failed)? })
    }
}

/// The key, in a file that only its owner can read; made if it does not exist.
fn read_key(path: &Path) -> io::Result<[u8; KEY_BYTES]> {
    let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
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
