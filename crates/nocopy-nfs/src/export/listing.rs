//! Directories in an order that does not depend on what else is in them.
//!
//! The cookie of an entry is a keyed hash of its name, and entries come in the order of their cookies. So a cookie means the same place
//! whatever was added and removed, on every file system and by every server with the same key: an entry that is there all the time
//! comes exactly once. (The kernel's own positions are no such cookies on tmpfs and overlayfs.) That two names of a directory with a
//! million entries have the same cookie is as likely as 1 in 10 million.

use std::collections::VecDeque;
use std::hash::Hasher;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Mode, OFlags, RawDir, openat};
use siphasher::sip::SipHasher24;

use super::file::{OpenFile, status_of};
use super::identity::Identity;
use crate::wire::nfs3::{Attributes, Status, Time};

/// Directories that are remembered while clients go through them, and entries of all of them.
const LISTINGS_MAX: usize = 16;
const ENTRIES_MAX: usize = 1 << 20;

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
        let mut entries = listing.names.len();
        let mut is_kept = |one: &Known| {
            entries += one.listing.names.len();
            entries <= ENTRIES_MAX
        };
        let kept = known.iter().rev().take(LISTINGS_MAX - 1).take_while(|one| is_kept(one)).count();
        let forgotten = known.len() - kept;
        known.drain(..forgotten);
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
        let own = |cookie, file_id, bytes: &[u8]| Name { cookie, file_id, bytes: bytes.into() };
        let mut names = vec![own(1, about.file_id, b"."), own(2, parent.inode, b"..")];
        let each = |inode, bytes: &[u8]| {
            names.push(own(self.cookie(bytes), inode, bytes));
            true
        };
        each_entry(directory, each).map_err(|error| status_of(error, Status::Stale))?;
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

/// The name in a directory of the file with an inode number.
pub(super) fn find(directory: impl AsFd, inode: u64) -> Option<Box<[u8]>> {
    let mut found = None;
    each_entry(directory, |number, bytes| {
        found = (number == inode).then(|| bytes.into());
        found.is_none()
    })
    .ok()?;
    found
}

/// Goes through the inode numbers and names of a directory, but for `.` and `..`, as long as `each` returns true.
fn each_entry(directory: impl AsFd, mut each: impl FnMut(u64, &[u8]) -> bool) -> rustix::io::Result<()> {
    // A descriptor of its own, as the position in a directory is one of the descriptor.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = openat(directory, c".", flags, Mode::empty())?;
    let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
    let mut entries = RawDir::new(opened, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let bytes = entry.file_name().to_bytes();
        if !matches!(bytes, b"." | b"..") && !each(entry.ino(), bytes) {
            break;
        }
    }
    Ok(())
}
