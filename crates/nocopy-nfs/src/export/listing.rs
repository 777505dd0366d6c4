//! Directories in an order that does not depend on their other entries.
//!
//! The cookie of an entry is a keyed hash of its name, and entries are listed in the order of their cookies.
//! So a cookie means the same place whatever was added or removed, on every file system and for every server
//! with the same key: an entry that exists all the time is listed exactly once. (The kernel's own positions
//! do not have this property on tmpfs and overlayfs.) The probability that two names of a directory with a
//! million entries have the same cookie is 1 in 10 million.
//!
//! A listing has all entries, or of a large directory those of a range of cookies, as many as fit into its
//! memory. While a directory changes, its newest listing serves the clients that have begun before: it has
//! every file that exists during all of their calls.

use std::collections::VecDeque;
use std::hash::Hasher;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, RawDir, openat};
use siphasher::sip::SipHasher24;

use super::FileInfo;
use super::file::{OpenFile, status_from_errno};
use super::identity::FileIdentity;
use super::time::is_past_time_step;
use crate::wire::nfs3::{Attributes, Status, Time};

/// The most directories remembered while clients list them, and the most memory of all their names and
/// attributes.
const LISTINGS_MAX: usize = 16;
const CACHE_BYTES_MAX: usize = 64 << 20;

/// The most memory of names of one listing.
const LISTING_BYTES_MAX: usize = 16 << 20;

const BUFFER_BYTES: usize = 64 << 10;

/// How long attributes of entries are reused for clients that list the same directory. Clients themselves use
/// them for three seconds and more, and ask again when they open a file.
const RECENT: Duration = Duration::from_secs(1);

/// The most such entries in a directory.
const RECENT_MAX: usize = 1 << 16;

/// The lowest cookie of a name: 0 is the beginning, and two are for `.` and `..`.
const COOKIE_MIN: u64 = 3;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListingEntry {
    pub cookie: u64,
    pub file_id: u64,
    pub bytes: Box<[u8]>,
}

impl ListingEntry {
    /// The memory that it takes.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + 16 + self.bytes.len()
    }
}

#[derive(Debug)]
pub struct Listing {
    /// The cookie behind which it begins.
    from: u64,
    /// Whether the directory has further names.
    is_cut: bool,
    names: Vec<ListingEntry>,
    /// Of the names, and of the attributes that may be kept with them.
    bytes: usize,
    recent: Mutex<RecentAttributes>,
}

/// Attributes of entries found since a moment, and the number of changes made through this server by then.
#[derive(Debug)]
struct RecentAttributes {
    since: Instant,
    changes: u64,
    infos: Vec<Option<FileInfo>>,
}

impl RecentAttributes {
    fn is_valid(&self, changes: u64) -> bool {
        self.changes == changes && self.since.elapsed() < RECENT
    }
}

impl Listing {
    fn new(from: u64, names: Vec<ListingEntry>, is_cut: bool) -> Self {
        let recent = RecentAttributes { since: Instant::now(), changes: 0, infos: Vec::new() };
        let kept = if names.len() > RECENT_MAX { 0 } else { names.len() };
        let bytes = names.iter().map(ListingEntry::memory_bytes).sum::<usize>()
            + kept * size_of::<Option<FileInfo>>();
        Self { from, is_cut, names, bytes, recent: Mutex::new(recent) }
    }

    /// Whether it has the names after a cookie, or knows that there are none.
    fn covers_cookie(&self, cookie: u64) -> bool {
        let is_within = |last: &ListingEntry| cookie < last.cookie;
        self.from <= cookie && (!self.is_cut || self.names.last().is_some_and(is_within))
    }

    /// Whether the directory has further names behind the last one of this listing.
    pub fn is_truncated(&self) -> bool {
        self.is_cut
    }

    /// The file of an entry: as found recently, or by `find`. `changes` is read before.
    pub(super) fn entry_info(
        &self,
        entry: &ListingEntry,
        changes: u64,
        find: impl FnOnce() -> Option<FileInfo>,
    ) -> Option<FileInfo> {
        if self.names.len() > RECENT_MAX {
            return find();
        }
        let index = self.names.partition_point(|name| name.cookie < entry.cookie);
        {
            let mut recent = self.lock_recent();
            if !recent.is_valid(changes) {
                *recent = RecentAttributes { since: Instant::now(), changes, infos: Vec::new() };
            }
            if let Some(Some(found)) = recent.infos.get(index) {
                return Some(*found);
            }
        }
        let found = find();
        let mut recent = self.lock_recent();
        if recent.is_valid(changes) {
            recent.infos.resize(self.names.len(), None);
            recent.infos[index] = found;
        }
        found
    }

    fn lock_recent(&self) -> MutexGuard<'_, RecentAttributes> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entries after a cookie, whether or not its own entry still exists.
    pub fn entries_after(&self, cookie: u64) -> &[ListingEntry] {
        &self.names[self.names.partition_point(|name| name.cookie <= cookie)..]
    }
}

#[derive(Debug)]
pub(super) struct ListingCache {
    pub(super) key: [u8; 16],
    listing_bytes_max: usize,
    /// The number of listings begun.
    listings_begun: AtomicU64,
    /// Most recently used last.
    cache: Mutex<VecDeque<CachedListing>>,
}

#[derive(Debug)]
struct CachedListing {
    directory: FileIdentity,
    /// The directory's times before it was listed.
    changed: (Time, Time),
    /// Listed long enough after these times that any later change shows in them.
    is_settled: bool,
    /// Later listings have greater numbers.
    number: u64,
    listing: Arc<Listing>,
}

impl ListingCache {
    pub(super) fn new(key: [u8; 16]) -> Self {
        Self::with_bytes_max(key, LISTING_BYTES_MAX)
    }

    pub(super) fn with_bytes_max(key: [u8; 16], listing_bytes_max: usize) -> Self {
        Self { key, listing_bytes_max, listings_begun: AtomicU64::new(0), cache: Mutex::default() }
    }

    /// The entries of a directory after a cookie: from the beginning, 0, on the present ones, for which the
    /// directory's times must be fine enough to show that it did not change; otherwise those of the newest
    /// listing.
    pub(super) fn get(
        &self,
        directory: &OpenFile,
        parent: FileIdentity,
        cookie: u64,
    ) -> Result<Arc<Listing>, Status> {
        let attributes = directory.attributes()?;
        let changed = (attributes.modified, attributes.changed);
        let identity = directory.identity();
        if let Some(listing) = self.find_cached(identity, changed, cookie) {
            return Ok(listing);
        }
        let number = self.listings_begun.fetch_add(1, Ordering::Relaxed);
        let is_settled = is_past_time_step(attributes.modified) && is_past_time_step(attributes.changed);
        let listing = Arc::new(self.read_listing(directory, &attributes, parent, cookie)?);
        let mut known = self.lock();
        // A listing that was begun later has files that this one has not.
        if known.iter().any(|one| one.directory == identity && one.number > number) {
            return Ok(listing);
        }
        known.retain(|one| one.directory != identity);
        let mut bytes = listing.bytes;
        let mut is_kept = |one: &CachedListing| {
            bytes += one.listing.bytes;
            bytes <= CACHE_BYTES_MAX
        };
        let kept = known.iter().rev().take(LISTINGS_MAX - 1).take_while(|one| is_kept(one)).count();
        let forgotten = known.len() - kept;
        known.drain(..forgotten);
        let new =
            CachedListing { directory: identity, changed, is_settled, number, listing: Arc::clone(&listing) };
        known.push_back(new);
        Ok(listing)
    }

    fn find_cached(
        &self,
        directory: FileIdentity,
        changed: (Time, Time),
        cookie: u64,
    ) -> Option<Arc<Listing>> {
        let mut known = self.lock();
        let is_good = |one: &CachedListing| {
            let is_present = one.changed == changed && one.is_settled;
            one.listing.covers_cookie(cookie) && (is_present || cookie > 0)
        };
        let index = known.iter().position(|one| one.directory == directory && is_good(one))?;
        let one = known.remove(index)?;
        let listing = Arc::clone(&one.listing);
        known.push_back(one);
        Some(listing)
    }

    /// Frees attributes of entries that are too old.
    pub(super) fn drop_expired_attributes(&self) {
        for one in &*self.lock() {
            let mut recent = one.listing.lock_recent();
            if recent.since.elapsed() >= RECENT {
                recent.infos = Vec::new();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<CachedListing>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the names after a cookie. Of more than fit into memory, those with the lowest cookies are kept.
    fn read_listing(
        &self,
        directory: &OpenFile,
        attributes: &Attributes,
        parent: FileIdentity,
        from: u64,
    ) -> Result<Listing, Status> {
        let own = |cookie, file_id, bytes: &[u8]| ListingEntry { cookie, file_id, bytes: bytes.into() };
        let mut lowest =
            LowestCookieEntries { bytes_max: self.listing_bytes_max, ..LowestCookieEntries::default() };
        for name in [own(1, attributes.file_id, b"."), own(2, parent.inode, b"..")] {
            lowest.add_after(from, name.cookie, || name);
        }
        let each = |inode, bytes: &[u8]| {
            let cookie = self.name_cookie(bytes);
            lowest.add_after(from, cookie, || own(cookie, inode, bytes));
            true
        };
        for_each_entry(directory, each).map_err(|error| status_from_errno(error, Status::Stale))?;
        lowest.truncate_to_limit();
        Ok(Listing::new(from, lowest.names, lowest.end.is_some()))
    }

    /// 63 bits, because some clients treat it as a signed number.
    fn name_cookie(&self, name: &[u8]) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write(b"cookie");
        hasher.write(name);
        (hasher.finish() >> 1).max(COOKIE_MIN)
    }
}

/// The names with the lowest cookies, as many as fit into memory.
#[derive(Debug, Default)]
struct LowestCookieEntries {
    names: Vec<ListingEntry>,
    bytes: usize,
    bytes_max: usize,
    /// Names with this cookie or a higher one do not fit.
    end: Option<u64>,
}

impl LowestCookieEntries {
    fn add_after(&mut self, from: u64, cookie: u64, name: impl FnOnce() -> ListingEntry) {
        if cookie <= from || self.end.is_some_and(|end| cookie >= end) {
            return;
        }
        let name = name();
        self.bytes += name.memory_bytes();
        self.names.push(name);
        // Not with each name, because it takes time.
        if self.bytes > self.bytes_max + self.bytes_max / 2 {
            self.truncate_to_limit();
        }
    }

    /// Sorts the names, and leaves out those that do not fit; not the first one.
    fn truncate_to_limit(&mut self) {
        self.names.sort_unstable_by_key(|name| name.cookie);
        let mut bytes = 0;
        let fits = |name: &&ListingEntry| {
            bytes += name.memory_bytes();
            bytes <= self.bytes_max
        };
        let count = self.names.iter().take_while(fits).count().max(1);
        if let Some(first) = self.names.get(count) {
            self.end = Some(first.cookie);
            self.names.truncate(count);
        }
        self.bytes = self.names.iter().map(ListingEntry::memory_bytes).sum();
    }
}

/// The name of the file with an inode number in a directory.
pub(super) fn find_name_by_inode(directory: impl AsFd, inode: u64) -> Option<Box<[u8]>> {
    let mut found = None;
    for_each_entry(directory, |number, bytes| {
        found = (number == inode).then(|| bytes.into());
        found.is_none()
    })
    .ok()?;
    found
}

/// Iterates over inode numbers and names of a directory, without `.` and `..`, as long as `each` returns
/// true.
fn for_each_entry(directory: impl AsFd, mut each: impl FnMut(u64, &[u8]) -> bool) -> rustix::io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_attributes_are_counted_as_memory() {
        let bytes = |count: usize| {
            let name = |number| ListingEntry { cookie: number, file_id: number, bytes: b"file"[..].into() };
            let names: Vec<_> = (COOKIE_MIN..).take(count).map(name).collect();
            let own_bytes: usize = names.iter().map(ListingEntry::memory_bytes).sum();
            Listing::new(0, names, false).bytes - own_bytes
        };
        for (count, kept) in [(1000, 1000), (RECENT_MAX, RECENT_MAX), (RECENT_MAX + 1, 0)] {
            assert_eq!(bytes(count), kept * size_of::<Option<FileInfo>>(), "{count}");
        }
    }
}
