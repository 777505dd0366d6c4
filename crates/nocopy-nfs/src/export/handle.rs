//! Handles that only this export can have made.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher24};

use super::identity::FileIdentity;
use crate::wire::nfs3::FileHandle;

const MAC_BYTES: usize = 16;

/// A handle is an identity and a MAC over it and the root's identity: so a handle of another export with the
/// same key is refused, too.
#[derive(Debug)]
pub(super) struct HandleKey {
    /// Initialised with the key and the root's identity.
    hasher: SipHasher24,
    /// The same of directories that were exported before with this key.
    former_hashers: Vec<SipHasher24>,
}

impl HandleKey {
    pub(super) fn new(key: [u8; 16], root: FileIdentity, former: &[FileIdentity]) -> Self {
        let keyed = |root: &FileIdentity| {
            let mut keyed = SipHasher24::new_with_key(&key);
            keyed.write(b"handle");
            keyed.write(&root.to_bytes());
            keyed
        };
        Self { hasher: keyed(&root), former_hashers: former.iter().map(keyed).collect() }
    }

    pub(super) fn make_handle(&self, identity: FileIdentity) -> FileHandle {
        let identity = identity.to_bytes();
        let bytes = [&identity[..], &compute_mac(self.hasher, &identity)].concat();
        FileHandle::new(&bytes).expect("24 and 16 bytes are not more than 64")
    }

    /// The identity in a handle, if this export made it.
    pub(super) fn decode_handle(&self, handle: &FileHandle) -> Option<FileIdentity> {
        decode_with_key(self.hasher, handle)
    }

    /// Whether it was made for another directory, or another file system, that was exported before: so it is
    /// stale, and not forged.
    #[cold]
    pub(super) fn is_from_former_export(&self, handle: &FileHandle) -> bool {
        self.former_hashers.iter().any(|keyed| decode_with_key(*keyed, handle).is_some())
    }
}

fn decode_with_key(keyed: SipHasher24, handle: &FileHandle) -> Option<FileIdentity> {
    let (identity, mac) = handle.as_bytes().split_first_chunk()?;
    let expected = compute_mac(keyed, identity);
    // In constant time, so that a MAC cannot be found byte by byte.
    let differing = mac.iter().zip(expected).fold(0, |all, (one, other)| all | (one ^ other));
    (mac.len() == MAC_BYTES && differing == 0).then(|| FileIdentity::from_bytes(identity))
}

fn compute_mac(keyed: SipHasher24, identity: &[u8]) -> [u8; MAC_BYTES] {
    let mut hasher = keyed;
    hasher.write(identity);
    hasher.finish128().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_of_other_keys_or_roots_are_refused() {
        let identity = |inode| FileIdentity { file_system: 5, inode, generation: -3 };
        let key = HandleKey::new([7; 16], identity(1), &[]);
        let handle = key.make_handle(identity(9));
        assert_eq!(key.decode_handle(&handle), Some(identity(9)));
        let former = [identity(3), identity(1)];
        for (other, is_of_former) in [
            (HandleKey::new([8; 16], identity(2), &former), false),
            (HandleKey::new([7; 16], identity(2), &[identity(3)]), false),
            (HandleKey::new([7; 16], identity(2), &former), true),
        ] {
            assert_eq!(
                (other.decode_handle(&handle), other.is_from_former_export(&handle)),
                (None, is_of_former)
            );
        }
        let bytes = handle.as_bytes();
        for (at, bit) in (0..bytes.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut forged = bytes.to_vec();
            forged[at] ^= 1 << bit;
            assert_eq!(key.decode_handle(&FileHandle::new(&forged).unwrap()), None);
        }
        for bytes in [&bytes[..39], &[bytes, &[0]].concat(), &[]] {
            assert_eq!(key.decode_handle(&FileHandle::new(bytes).unwrap()), None);
        }
    }
}
