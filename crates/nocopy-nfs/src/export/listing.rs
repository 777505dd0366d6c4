//! Directories in an order that does not depend on what else is in them.
//!
//! The cookie of an entry is a keyed hash of its name, and entries come in the order of their cookies. So a cookie means the same place
//! whatever was added and removed, on every file system and by every server with the same key: an entry that is there all the time
//! comes exactly once. (The kernel's own positions are no such cookies on tmpfs and overlayfs.) That two names of a directory with a
//! million entries have the same cookie is as likely as 1 in 10 million.

use std::collections::VecDeque;
use std::hash::Hasher;
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Mode, OFlags, RawDir, openat};
use siphasher::sip::SipHasher24;

use super::file::{OpenFile, status_of};
use super::identity::Identity;
use crate::wire::nfs3::{Attributes, Status, Time};

/// Directories that are remembered while clients go through them.
const LISTINGS_MAX: usize = 16;

const BUFFER_BYTES: usize = 64 << 10;

/// The lowest cookie of a name: 0 is the begin, and two are for `.` and `..`.
const COOKIE_MIN: u64 = 3;

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    pub cookie: u64,
    pub file_id: u64,
    pub bytes: Box<[u8]>,
}

#[derive(Debug)]
pub struct Listing {
    names: Vec<Name>,
}

impl Listing {
    /// What follows the entry with this cookie, whether or not that is still there.
    pub fn after(&self, cookie: u64) -> &[Name] {
        &self.names[self.names.partition_point(|name| name.cookie <= cookie)..]
    }
}

#[derive(Debug)]
pub(super) struct Listings {
    key: [u8; 16],
    /// Those that were used last are at the back.
    known: Mutex<VecDeque<Known>>,
}

#[derive(Debug)]
struct Known {
    directory: Identity,
    /// Of the directory, before it was listed.
    changed: (Time, Time),
    listing: Arc<Listing>,
}

impl Listings {
    pub(super) fn new(key: [u8; 16]) -> Self {
        Self { key, known: Mutex::new(VecDeque::new()) }
    }

    /// The entries of a directory: of now, or, in the middle of it, those that were listed last if the directory says that it did not
    /// change. (Its times may be too coarse to tell, so who begins is given what is there now.)
    pub(super) fn get(
        &self,
        directory: &OpenFile,
        parent: Identity,
        is_begin: bool,
    ) -> Result<Arc<Listing>, Status> {
        let about = directory.attributes()?;
        let changed = (about.modified, about.changed);
        let identity = directory.identity();
        if !is_begin && let Some(listing) = self.known(identity, changed) {
            return Ok(listing);
        }
        let listing = Arc::new(Listing { names: self.read(directory, &about, parent)? });
        let mut known = self.lock();
        known.retain(|one| one.directory != identity);
        if known.len() >= LISTINGS_MAX {
            known.pop_front();
        }
        known.push_back(Known { directory: identity, changed, listing: Arc::clone(&listing) });
        Ok(listing)
    }

    fn known(&self, directory: Identity, changed: (Time, Time)) -> Option<Arc<Listing>> {
        let mut known = self.lock();
        let place = known.iter().position(|one| one.directory == directory && one.changed == changed)?;
        let one = known.remove(place)?;
        let listing = Arc::clone(&one.listing);
        known.push_back(one);
        Some(listing)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, directory: &OpenFile, about: &Attributes, parent: Identity) -> Result<Vec<Name>, Status> {
        let failed = |error| status_of(error, Status::Stale);
        // A descriptor of its own, as the position in a directory is one of the descriptor.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(directory, c".", flags, Mode::empty()).map_err(failed)?;
        let own = |cookie, file_id, bytes: &[u8]| Name { cookie, file_id, bytes: bytes.into() };
        let mut names = vec![own(1, about.file_id, b"."), own(2, parent.inode, b"..")];
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
        let mut entries = RawDir::new(opened, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(failed)?;
            let bytes = entry.file_name().to_bytes();
            if !matches!(bytes, b"." | b"..") {
                names.push(own(self.cookie(bytes), entry.ino(), bytes));
            }
        }
        names.sort_unstable_by_key(|name| name.cookie);
        Ok(names)
    }

    /// Of 63 bits, as some clients take it for a signed number.
    fn cookie(&self, name: &[u8]) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write(b"cookie");
        hasher.write(name);
        (hasher.finish() >> 1).max(COOKIE_MIN)
    }
}
