//! Handles that only this export can have made.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher24};

use super::identity::Identity;
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
    pub(super) fn new(key: [u8; 16], root: Identity, former: &[Identity]) -> Self {
        let keyed = |root: &Identity| {
            let mut keyed = SipHasher24::new_with_key(&key);
            keyed.write(b"handle");
            keyed.write(&root.to_bytes());
            keyed
        };
        Self { hasher: keyed(&root), former_hashers: former.iter().map(keyed).collect() }
    }

    pub(super) fn handle(&self, identity: Identity) -> FileHandle {
        let identity = identity.to_bytes();
        let bytes = [&identity[..], &mac_of(self.hasher, &identity)].concat();
        FileHandle::new(&bytes).expect("24 and 16 bytes are not more than 64")
    }

    /// The identity in a handle, if this export made it.
    pub(super) fn identity(&self, handle: &FileHandle) -> Option<Identity> {
        identity_in(self.hasher, handle)
    }

    /// Whether it was made for another directory, or another file system, that was exported before: so it is
    /// stale, and not forged.
    #[cold]
    pub(super) fn is_of_former(&self, handle: &FileHandle) -> bool {
        self.former_hashers.iter().any(|keyed| identity_in(*keyed, handle).is_some())
    }
}

fn identity_in(keyed: SipHasher24, handle: &FileHandle) -> Option<Identity> {
    let (identity, mac) = handle.as_bytes().split_first_chunk()?;
    let expected = mac_of(keyed, identity);
    // In constant time, so that a MAC cannot be found byte by byte.
    let differing = mac.iter().zip(expected).fold(0, |all, (one, other)| all | (one ^ other));
    (mac.len() == MAC_BYTES && differing == 0).then(|| Identity::from_bytes(identity))
}

fn mac_of(keyed: SipHasher24, identity: &[u8]) -> [u8; MAC_BYTES] {
    let mut hasher = keyed;
    hasher.write(identity);
    hasher.finish128().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_of_other_keys_or_roots_are_refused() {
        let identity = |inode| Identity { file_system: 5, inode, generation: -3 };
        let key = HandleKey::new([7; 16], identity(1), &[]);
        let handle = key.handle(identity(9));
        assert_eq!(key.identity(&handle), Some(identity(9)));
        let former = [identity(3), identity(1)];
        for (other, is_of_former) in [
            (HandleKey::new([8; 16], identity(2), &former), false),
            (HandleKey::new([7; 16], identity(2), &[identity(3)]), false),
            (HandleKey::new([7; 16], identity(2), &former), true),
        ] {
            assert_eq!((other.identity(&handle), other.is_of_former(&handle)), (None, is_of_former));
        }
        let bytes = handle.as_bytes();
        for (at, bit) in (0..bytes.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut forged = bytes.to_vec();
            forged[at] ^= 1 << bit;
            assert_eq!(key.identity(&FileHandle::new(&forged).unwrap()), None);
        }
        for bytes in [&bytes[..39], &[bytes, &[0]].concat(), &[]] {
            assert_eq!(key.identity(&FileHandle::new(bytes).unwrap()), None);
        }
    }
}
