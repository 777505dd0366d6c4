//! Directories in an order that does not depend on their other entries.
//!
//! The cookie of an entry is a keyed hash of its name, and entries are listed in the order of their cookies. So a cookie means the same
//! place whatever was added or removed, on every file system and for every server with the same key: an entry that exists all the time
//! is listed exactly once. (The kernel's own positions do not have this property on tmpfs and overlayfs.) The probability that two names of a
//! directory with a million entries have the same cookie is 1 in 10 million.

use std::collections::VecDeque;
use std::hash::Hasher;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, RawDir, openat};
use siphasher::sip::SipHasher24;

use super::Found;
use super::file::{OpenFile, status_of};
use super::identity::Identity;
use super::time::is_settled;
use crate::wire::nfs3::{Attributes, Status, Time};

/// The most directories remembered while clients list them, and the most entries of all.
const LISTINGS_MAX: usize = 16;
const ENTRIES_MAX: usize = 1 << 20;

const BUFFER_BYTES: usize = 64 << 10;

/// How long attributes of entries are reused for clients that list the same directory. Clients themselves use them for three seconds
/// and more, and ask again when they open a file.
const RECENT: Duration = Duration::from_secs(1);

/// The most such entries in a directory.
const RECENT_MAX: usize = 1 << 16;

/// The lowest cookie of a name: 0 is the beginning, and two are for `.` and `..`.
const COOKIE_MIN: u64 = 3;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    pub cookie: u64,
    pub file_id: u64,
    pub bytes: Box<[u8]>,
}

#[derive(Debug)]
pub struct Listing {
    names: Vec<Name>,
    recent: Mutex<Recent>,
}

/// Attributes of entries found since a moment, and the number of changes made through this server by then.
#[derive(Debug)]
struct Recent {
    since: Instant,
    changes: u64,
    found: Vec<Option<Found>>,
}

impl Recent {
    fn is_good(&self, changes: u64) -> bool {
        self.changes == changes && self.since.elapsed() < RECENT
    }
}

impl Listing {
    fn new(names: Vec<Name>) -> Self {
        let recent = Recent { since: Instant::now(), changes: 0, found: Vec::new() };
        Self { names, recent: Mutex::new(recent) }
    }

    /// The file of an entry: as found recently, or by `find`. `changes` is read before.
    pub(super) fn found(
        &self,
        entry: &Name,
        changes: u64,
        find: impl FnOnce() -> Option<Found>,
    ) -> Option<Found> {
        if self.names.len() > RECENT_MAX {
            return find();
        }
        let place = self.names.partition_point(|name| name.cookie < entry.cookie);
        {
            let mut recent = self.recent();
            if !recent.is_good(changes) {
                *recent = Recent { since: Instant::now(), changes, found: Vec::new() };
            }
            if let Some(Some(found)) = recent.found.get(place) {
                return Some(*found);
            }
        }
        let found = find();
        let mut recent = self.recent();
        if recent.is_good(changes) {
            recent.found.resize(self.names.len(), None);
            recent.found[place] = found;
        }
        found
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entries after a cookie, whether or not its own entry still exists.
    pub fn after(&self, cookie: u64) -> &[Name] {
        &self.names[self.names.partition_point(|name| name.cookie <= cookie)..]
    }
}

#[derive(Debug)]
pub(super) struct Listings {
    key: [u8; 16],
    /// Most recently used last.
    known: Mutex<VecDeque<Known>>,
}

#[derive(Debug)]
struct Known {
    directory: Identity,
    /// The directory's times before it was listed.
    changed: (Time, Time),
    /// Listed long enough after these times that any later change shows in them.
    is_settled: bool,
    listing: Arc<Listing>,
}

impl Listings {
    pub(super) fn new(key: [u8; 16]) -> Self {
        Self { key, known: Mutex::new(VecDeque::new()) }
    }

    /// The entries of a directory: the present ones, or those listed last if the directory's times did not change. (The times may
    /// be too coarse while it changes, so a listing from the beginning reads the present ones.)
    pub(super) fn get(
        &self,
        directory: &OpenFile,
        parent: Identity,
        is_begin: bool,
    ) -> Result<Arc<Listing>, Status> {
        let about = directory.attributes()?;
        let changed = (about.modified, about.changed);
        let identity = directory.identity();
        if let Some(listing) = self.known(identity, changed, is_begin) {
            return Ok(listing);
        }
        let is_settled = is_settled(about.modified) && is_settled(about.changed);
        let listing = Arc::new(Listing::new(self.read(directory, &about, parent)?));
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
        known.push_back(Known { directory: identity, changed, is_settled, listing: Arc::clone(&listing) });
        Ok(listing)
    }

    fn known(&self, directory: Identity, changed: (Time, Time), is_begin: bool) -> Option<Arc<Listing>> {
        let mut known = self.lock();
        let is_good = |one: &Known| one.changed == changed && (one.is_settled || !is_begin);
        let place = known.iter().position(|one| one.directory == directory && is_good(one))?;
        let one = known.remove(place)?;
        let listing = Arc::clone(&one.listing);
        known.push_back(one);
        Some(listing)
    }

    /// Frees attributes of entries that are too old.
    pub(super) fn tidy(&self) {
        for one in &*self.lock() {
            let mut recent = one.listing.recent();
            if recent.since.elapsed() >= RECENT {
                recent.found = Vec::new();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Known>> {
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

    /// 63 bits, because some clients treat it as a signed number.
    fn cookie(&self, name: &[u8]) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write(b"cookie");
        hasher.write(name);
        (hasher.finish() >> 1).max(COOKIE_MIN)
    }
}

/// The name of the file with an inode number in a directory.
pub(super) fn find(directory: impl AsFd, inode: u64) -> Option<Box<[u8]>> {
    let mut found = None;
    each_entry(directory, |number, bytes| {
        found = (number == inode).then(|| bytes.into());
        found.is_none()
    })
    .ok()?;
    found
}

/// Iterates over inode numbers and names of a directory, without `.` and `..`, as long as `each` returns true.
fn each_entry(directory: impl AsFd, mut each: impl FnMut(u64, &[u8]) -> bool) -> rustix::io::Result<()> {
    // A separate descriptor, because the position in a directory belongs to the descriptor.
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
