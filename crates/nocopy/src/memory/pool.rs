//! Buffers for sockets: owned memory that is lent to the kernel and returned.
//!
//! A [`Buffer`] is memory of a [`Pool`], memory of the program, or a frame of an area. Sending moves it, so touching it while it is sent
//! does not compile; it returns when the kernel no longer reads it.
#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::memory::area::Frame;
use crate::sys::memory::Mapping;

/// Buffers begin on a page, so that memory which the kernel still reads at a forced close can be given up in whole pages.
const PAGE_BYTES: usize = 4096;

/// Alignment of buffers that share pages.
const CACHE_LINE_BYTES: usize = 64;

/// Memory cut into buffers of one size. Clones are the same pool.
///
/// The memory is not mapped in forked children (`MADV_DONTFORK`), where the pool has no buffers: otherwise a fork would move the parent's
/// next write to a new page, and an io_uring instance with the pool registered would send the old page. (The program's own memory may stay
/// mapped in children: the kernel looks it up for each call, it is not written during the call, and a child that writes gets a new page.)
///
/// ```
/// use nocopy::Pool;
/// let pool = Pool::new(2, 1000)?;
/// let (first, second) = (pool.take().ok_or("empty")?, pool.take().ok_or("empty")?);
/// assert_eq!((pool.total(), first.capacity()), (2, 4096)); // rounded up to pages
/// assert!(pool.take().is_none() && second.is_empty());
/// drop(first); // comes home
/// assert_eq!(pool.at_home(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Pool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    mapping: Mapping,
    buffer_bytes: usize,
    /// Whether each buffer consists of whole pages, which can be replaced one by one.
    whole_pages: bool,
    total: u32,
    /// How many streams send from it.
    sharers: AtomicUsize,
    /// Locked while pages are replaced.
    registered: Mutex<Registered>,
    /// The free buffers; last in, first out, so that a taken buffer is in the cache.
    free: Mutex<Vec<u32>>,
}

/// io_uring instances that have the pool registered.
#[derive(Debug, Default)]
struct Registered {
    /// Instances that have registered the pool, or are about to; they read the pages mapped at registration.
    instances: usize,
    /// Buffers given up while instances exist. Their pages are replaced when the last instance has ended.
    given_up: Vec<u32>,
}

impl Pool {
    /// A pool of `buffers` buffers of `buffer_bytes` bytes, rounded up to pages.
    ///
    /// # Errors
    /// There is not enough memory.
    ///
    /// # Panics
    /// If `buffers` or `buffer_bytes` is 0, or a buffer would have 4 GiB or more.
    pub fn new(buffers: u32, buffer_bytes: usize) -> io::Result<Self> {
        Self::of(buffers, buffer_bytes.next_multiple_of(PAGE_BYTES), true)
    }

    /// A pool of buffers that share pages, for calls after which the kernel no longer reads the memory. (If given up while the kernel reads
    /// it, such a buffer would be lost.) Errors: there is not enough memory.
    /// Panics as [`Pool::new`].
    pub(crate) fn packed(buffers: u32, buffer_bytes: usize) -> io::Result<Self> {
        Self::of(buffers, buffer_bytes.next_multiple_of(CACHE_LINE_BYTES), false)
    }

    fn of(buffers: u32, buffer_bytes: usize, whole_pages: bool) -> io::Result<Self> {
        assert!(buffers > 0, "a pool of no buffers");
        assert!(buffer_bytes > 0 && u32::try_from(buffer_bytes).is_ok(), "buffers of {buffer_bytes} bytes");
        let bytes = buffer_bytes.checked_mul(buffers as usize).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Mapping::buffers(bytes.next_multiple_of(PAGE_BYTES))?;
        let free = Mutex::new((0..buffers).rev().collect());
        Ok(Self(Arc::new(Shared {
            mapping,
            buffer_bytes,
            whole_pages,
            total: buffers,
            sharers: AtomicUsize::new(0),
            registered: Mutex::default(),
            free,
        })))
    }

    /// An empty buffer; `None` while all are in use.
    pub fn take(&self) -> Option<Buffer> {
        let index = self.free()?.pop()?;
        Some(Buffer { data: self.first_byte(index), len: 0, home: Home::Pool { pool: self.clone(), index } })
    }

    fn first_byte(&self, index: u32) -> NonNull<u8> {
        assert!(index < self.0.total);
        // SAFETY: buffer `index` lies within the mapping.
        unsafe { self.0.mapping.base().add(index as usize * self.0.buffer_bytes) }
    }

    /// Replaces a buffer's pages by new ones; returns whether that succeeded.
    ///
    /// # Safety
    /// The buffer is neither free nor in use, and no io_uring instance has the pool registered.
    unsafe fn replace(&self, index: u32) -> bool {
        let (first, bytes) = (self.first_byte(index), self.0.buffer_bytes);
        // SAFETY: whole pages of this buffer, which has no owner; they read as zeros from now on.
        self.0.whole_pages && unsafe { self.0.mapping.replace(first, bytes) }.is_ok()
    }

    pub(crate) fn buffer_bytes(&self) -> usize {
        self.0.buffer_bytes
    }

    /// The number of all buffers, free or in use.
    pub fn total(&self) -> usize {
        self.0.total as usize
    }

    /// The number of free buffers.
    pub fn at_home(&self) -> usize {
        self.free().map_or(0, |free| free.len())
    }

    /// Address and length of its memory.
    pub(crate) fn memory(&self) -> (NonNull<u8>, usize) {
        (self.0.mapping.base(), self.0.mapping.bytes())
    }

    /// Streams that send from the pool, and dropped ones whose memory the kernel still reads.
    pub(crate) fn sharers(&self) -> usize {
        self.0.sharers.load(Relaxed)
    }

    /// Announces that an io_uring instance will register the memory: none of it is replaced while the result exists.
    pub(crate) fn register(&self) -> Registration {
        REGISTRATIONS.fetch_add(1, Relaxed);
        if let Some(mut registered) = self.registered() {
            registered.instances += 1;
        }
        Registration(self.clone())
    }

    /// `None` in a forked child, which does not have the memory.
    fn registered(&self) -> Option<MutexGuard<'_, Registered>> {
        self.locked(&self.0.registered)
    }

    /// `None` in a forked child, which does not have the memory.
    fn free(&self) -> Option<MutexGuard<'_, Vec<u32>>> {
        self.locked(&self.0.free)
    }

    /// `None` in a forked child, which must not lock: a thread of its parent may have held the lock at the fork.
    fn locked<'a, T>(&self, mutex: &'a Mutex<T>) -> Option<MutexGuard<'a, T>> {
        // Poisoning does not matter: pushing and popping numbers leaves nothing half done.
        (!self.0.mapping.is_elsewhere()).then(|| mutex.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn bring_home(&self, index: u32) {
        if let Some(mut free) = self.free() {
            free.push(index);
        }
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn owns(&self, buffer: &Buffer) -> bool {
        self.number_of(buffer).is_some()
    }

    /// The number of one of its buffers among all.
    pub(crate) fn number_of(&self, buffer: &Buffer) -> Option<usize> {
        match &buffer.home {
            Home::Pool { pool, index } if pool.is(self) => Some(*index as usize),
            _ => None,
        }
    }

    /// Calls a function with the number of each free buffer.
    pub(crate) fn each_at_home(&self, of: impl FnMut(usize)) {
        if let Some(free) = self.free() {
            free.iter().map(|index| *index as usize).for_each(of);
        }
    }
}

static REGISTRATIONS: AtomicUsize = AtomicUsize::new(0);

/// How many io_uring instances of this process have pools registered.
pub(crate) fn registrations() -> usize {
    REGISTRATIONS.load(Relaxed)
}

/// Bytes of buffers that were given up while registered, and whose pages could not be replaced afterwards.
static NOT_REPLACED_BYTES: AtomicU64 = AtomicU64::new(0);

/// The same bytes, as a number.
pub(crate) fn not_replaced_bytes() -> u64 {
    NOT_REPLACED_BYTES.load(Relaxed)
}

/// Pins a pool's memory for an io_uring instance, so that its pages are not replaced.
#[derive(Debug)]
pub(crate) struct Registration(Pool);

impl Drop for Registration {
    fn drop(&mut self) {
        REGISTRATIONS.fetch_sub(1, Relaxed);
        let Some(mut registered) = self.0.registered() else { return };
        registered.instances -= 1;
        if registered.instances > 0 {
            return;
        }
        for index in std::mem::take(&mut registered.given_up) {
            // SAFETY: given up, so without an owner; no instance exists, and none is added while this is locked.
            if unsafe { self.0.replace(index) } {
                self.0.bring_home(index);
            } else {
                NOT_REPLACED_BYTES.fetch_add(self.0.buffer_bytes() as u64, Relaxed);
            }
        }
    }
}

/// Counts as one of the streams that send from a pool, until it is dropped.
#[derive(Debug)]
pub(crate) struct Sharer(Pool);

impl Sharer {
    fn new(pool: Pool) -> Self {
        pool.0.sharers.fetch_add(1, Relaxed); // a count alone: it is of no other memory
        Self(pool)
    }
}

impl Drop for Sharer {
    fn drop(&mut self) {
        self.0.0.sharers.fetch_sub(1, Relaxed);
    }
}

/// Owned bytes: memory of a pool, of the program, or a frame.
///
/// ```
/// use nocopy::Pool;
/// let mut buffer = Pool::new(1, 4096)?.take().expect("a fresh pool has buffers");
/// buffer.resize(5); // to be written in place
/// buffer.as_mut().expect("memory of a pool can be changed").copy_from_slice(b"hello");
/// buffer.resize(4);
/// assert_eq!(&buffer[..], b"hell");
/// assert!(buffer.fill(&[0; 5000]).is_none()); // longer than its capacity
/// assert_eq!((buffer.len(), buffer.capacity()), (4, 4096)); // and so nothing changed
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a dropped buffer goes home unsent"]
pub struct Buffer {
    data: NonNull<u8>,
    len: u32,
    home: Home,
}

enum Home {
    Pool {
        pool: Pool,
        index: u32,
    },
    /// A value of the program, from `Box::into_raw`, because moving a box would claim exclusive access to its bytes.
    Owner(NonNull<dyn Any + Send>),
    /// A value that others read, too.
    Shared(#[expect(dead_code, reason = "keeps the bytes")] Arc<dyn Any + Send + Sync>),
    Frame(Frame),
}

// SAFETY: a buffer is the only access to its bytes; every owner is `Send`, and so are pools and frames.
unsafe impl Send for Buffer {}
// SAFETY: `&Buffer` only reads bytes that nothing can write meanwhile: those of an owner stay borrowed from it.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Memory of the program, of any alignment, without a copy: a `Vec<u8>`, an `Arc<[u8]>`, a mapped file.
    ///
    /// It can be read and sent, but not changed. [`into_owner`](Self::into_owner) returns the value.
    ///
    /// The owner is dropped by the thread that drops the buffer: usually one that sends, or the reaper thread of all dropped sockets if the
    /// socket was dropped first. So its `Drop` should not wait. If it panics, the panic hook reports it, and the panic is caught, so that
    /// it does not disturb other buffers.
    ///
    /// ```
    /// use nocopy::Buffer;
    /// use std::sync::Arc;
    /// let page: Arc<[u8]> = Arc::from(*b"<html>");
    /// let mut buffer = Buffer::from_owner(Arc::clone(&page));
    /// assert_eq!(buffer.as_ptr(), page.as_ptr()); // not a copy
    /// assert!(buffer.as_mut().is_none()); // others may read it meanwhile
    /// let buffer = buffer.into_owner::<Vec<u8>>().unwrap_err(); // it was made of something else
    /// assert!(Arc::ptr_eq(&buffer.into_owner::<Arc<[u8]>>().unwrap(), &page));
    /// ```
    ///
    /// # Panics
    /// If the value has 4 GiB or more.
    pub fn from_owner(owner: impl AsRef<[u8]> + Send + 'static) -> Self {
        // The pointer is taken out of the box before its bytes are borrowed: moving a box would end that borrow.
        let owner = NonNull::from(Box::leak(Box::new(owner)));
        // Owns the value from here on, in case `as_ref` panics.
        let mut buffer = Self { data: NonNull::dangling(), len: 0, home: Home::Owner(owner) };
        // SAFETY: the value exists as long as the buffer, which gives no other access to it.
        let bytes: &[u8] = unsafe { owner.as_ref() }.as_ref();
        buffer.len = u32::try_from(bytes.len()).expect("fewer than 4 GiB");
        buffer.data = NonNull::from(bytes).cast();
        buffer
    }

    /// A part of a value that others read, too. Nothing is allocated.
    pub(crate) fn of_shared<T: Send + Sync + 'static>(owner: Arc<T>, part: impl FnOnce(&T) -> &[u8]) -> Self {
        let bytes = part(&owner);
        let len = u32::try_from(bytes.len()).expect("fewer than 4 GiB");
        Self { data: NonNull::from(bytes).cast(), len, home: Home::Shared(owner) }
    }

    /// Returns the value that [`from_owner`](Self::from_owner) was given.
    ///
    /// # Errors
    /// Returns the buffer if it was made of a value of another type, or is memory of a pool or a frame.
    pub fn into_owner<T: 'static>(self) -> Result<T, Self> {
        let Home::Owner(owner) = self.home else { return Err(self) };
        // SAFETY: the value exists as long as the buffer.
        if !unsafe { owner.as_ref() }.is::<T>() {
            return Err(self);
        }
        std::mem::forget(self);
        // SAFETY: the pointer came from the box, the value is a `T`, and the buffer that owned it no longer exists.
        Ok(*unsafe { Box::from_raw(owner.as_ptr().cast::<T>()) })
    }

    /// The value that it was made [of](Self::from_owner), if it is of that type.
    pub(crate) fn owner<T: Sync + 'static>(&self) -> Option<&T> {
        let Home::Owner(owner) = &self.home else { return None };
        // SAFETY: the value exists as long as the buffer.
        unsafe { owner.as_ref() }.downcast_ref()
    }

    /// Whether it is a frame of an area.
    pub(crate) fn is_frame(&self) -> bool {
        matches!(self.home, Home::Frame(_))
    }

    /// The capacity in bytes.
    pub fn capacity(&self) -> usize {
        match &self.home {
            Home::Pool { pool, .. } => pool.buffer_bytes(),
            Home::Owner(_) | Home::Shared(_) => self.len as usize,
            Home::Frame(frame) => frame.len() + frame.tailroom_bytes(),
        }
    }

    /// Makes it shorter or longer. Added bytes have the memory's earlier contents.
    ///
    /// # Panics
    /// If `bytes` exceeds the capacity.
    #[inline]
    pub fn resize(&mut self, bytes: usize) {
        assert!(bytes <= self.capacity(), "{bytes} bytes in a buffer of {}", self.capacity());
        self.len = bytes as u32;
    }

    /// Mutable access to its bytes; `None` if they belong to the program.
    #[inline]
    pub fn as_mut(&mut self) -> Option<&mut [u8]> {
        match self.home {
            Home::Owner(_) | Home::Shared(_) => None,
            // SAFETY: initialised memory of this length, ours alone as long as the buffer is borrowed.
            _ => Some(unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len as usize) }),
        }
    }

    /// Replaces its contents by a copy of `bytes`. `None`, and no change, if they are longer than its capacity, or if it was made
    /// [of a value](Self::from_owner) of the program.
    #[inline]
    pub fn fill(&mut self, bytes: &[u8]) -> Option<()> {
        if bytes.len() > self.capacity() || matches!(self.home, Home::Owner(_) | Home::Shared(_)) {
            return None;
        }
        self.len = bytes.len() as u32;
        self.as_mut()?.copy_from_slice(bytes);
        Some(())
    }

    /// Whether its pages can be replaced, at the latest when `ring` ends (if that has this pool registered).
    pub(crate) fn is_replaceable(&self, ring: Option<&Registration>) -> bool {
        let Home::Pool { pool, .. } = &self.home else { return false };
        let of_ring = usize::from(ring.is_some_and(|ring| ring.0.is(pool)));
        pool.0.whole_pages && pool.registered().is_some_and(|registered| registered.instances == of_ring)
    }

    /// Gives the buffer up while the kernel may still read it, without waiting for completions. Returns the bytes that are lost for good.
    ///
    /// Pages of a pool are replaced: the kernel keeps the old ones as long as it needs them. If io_uring instances have the pool
    /// registered, the buffer returns when the last of them ends. Any other memory cannot be replaced, and is leaked.
    pub(crate) fn abandon(mut self) -> usize {
        let bytes = self.len as usize;
        match std::mem::replace(&mut self.home, Home::nothing()) {
            Home::Pool { pool, index } => {
                let Some(mut registered) = pool.registered() else { return 0 }; // nothing of a child's is read
                if registered.instances > 0 && pool.0.whole_pages {
                    registered.given_up.push(index);
                    return 0;
                }
                // SAFETY: the buffer has no owner any more; no instance exists, and none is added while this is locked.
                let is_replaced = unsafe { pool.replace(index) };
                drop(registered);
                if !is_replaced {
                    return pool.buffer_bytes();
                }
                pool.bring_home(index);
                0
            }
            home @ (Home::Owner(_) | Home::Shared(_) | Home::Frame(_)) => {
                std::mem::forget(home);
                bytes
            }
        }
    }
}

impl Home {
    fn nothing() -> Self {
        // A value without size: boxing it does not allocate.
        let nothing: Box<dyn Any + Send> = Box::new(());
        Self::Owner(NonNull::new(Box::into_raw(nothing)).expect("a box is somewhere"))
    }
}

impl From<Frame> for Buffer {
    fn from(frame: Frame) -> Self {
        let len = frame.len() as u32;
        Self { data: frame.first_byte(), len, home: Home::Frame(frame) }
    }
}

impl TryFrom<Buffer> for Frame {
    type Error = Buffer;

    /// The frame, if the buffer is one.
    ///
    /// # Errors
    /// Returns the buffer if it has another kind of memory.
    fn try_from(mut buffer: Buffer) -> Result<Self, Buffer> {
        if !buffer.is_frame() {
            return Err(buffer);
        }
        // Replaces the owner: its drop does nothing.
        match std::mem::replace(&mut buffer.home, Home::nothing()) {
            Home::Frame(mut frame) => {
                let bytes = buffer.len as usize;
                frame.append(bytes.saturating_sub(frame.len())).expect("no longer than its capacity");
                frame.truncate(bytes);
                Ok(frame)
            }
            _ => unreachable!("looked at above"),
        }
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self::from_owner(bytes)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: initialised memory of this length, which nothing changes while the buffer is borrowed.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len as usize) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let home = match self.home {
            Home::Pool { index, .. } => format!("buffer {index} of a pool"),
            Home::Owner(_) | Home::Shared(_) => "memory of the program's own".into(),
            Home::Frame(_) => "frame".into(),
        };
        write!(f, "Buffer({} bytes, {home})", self.len)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match &self.home {
            Home::Pool { pool, index } => pool.bring_home(*index),
            Home::Owner(owner) => {
                // SAFETY: from `Box::into_raw`, and there is no other owner.
                drop_owner(unsafe { Box::from_raw(owner.as_ptr()) });
            }
            Home::Shared(_) | Home::Frame(_) => {} // goes home by itself
        }
    }
}

/// Drops a value of the program, and catches a panic of its `Drop`: buffers are dropped in loops over completions, and an unwound loop
/// would lose other buffers of the same completion, or drop memory that the kernel still reads.
fn drop_owner(owner: Box<dyn Any + Send>) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(owner))) {
        // Dropping the panic's own value may panic, too.
        std::mem::forget(panic);
    }
}

const CACHED_MAX: usize = 16;

/// A half's own free buffers of a pool: taking and returning one needs neither a lock nor an atomic operation.
#[derive(Debug)]
pub(crate) struct Cache {
    pool: Pool,
    free: Vec<Buffer>,
    free_max: usize,
    /// This half's own memory in addition to a shared pool, made when first needed.
    reserve: Option<Pool>,
}

impl Cache {
    pub(crate) fn new(pool: Pool) -> Self {
        let free_max = CACHED_MAX.min(pool.total());
        Self { pool, free: Vec::with_capacity(free_max), free_max, reserve: None }
    }

    /// A cache that keeps no buffers: if several streams share a pool, idle ones must not starve the others.
    pub(crate) fn sharing(pool: Pool) -> Self {
        Self { pool, free: Vec::new(), free_max: 0, reserve: None }
    }

    /// Counts a stream among those that share the pool, if it is shared.
    pub(crate) fn share(&self) -> Option<Sharer> {
        (self.free_max == 0).then(|| Sharer::new(self.pool.clone()))
    }

    /// A buffer in addition to the pool's, which are all in use by other streams and may never return. For a half that has none in flight,
    /// so that waiting would be useless. A half gets as many as its share of the pool.
    #[cold]
    pub(crate) fn take_reserved(&mut self) -> Option<Buffer> {
        if self.reserve.is_none() && self.pool.sharers() > 1 {
            let share = (self.pool.total() / self.pool.sharers()).max(1);
            self.reserve = Pool::new(u32::try_from(share).ok()?, self.pool.buffer_bytes()).ok();
        }
        self.reserve.as_ref()?.take()
    }

    /// An empty buffer; `None` while all are in use, and in a forked child, which does not have their memory.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Buffer> {
        let is_here = !self.pool.0.mapping.is_elsewhere();
        let free = if is_here { self.free.pop() } else { None };
        free.or_else(|| self.pool.take())
    }

    /// Takes a buffer back; a buffer of another pool returns to that.
    #[inline]
    pub(crate) fn put(&mut self, mut buffer: Buffer) {
        // Further buffers return to the pool, for the other streams.
        if self.free.len() < self.free_max && self.owns(&buffer) {
            buffer.len = 0;
            self.free.push(buffer);
        }
    }

    /// Whether it is a buffer of this pool, or of the half's reserve.
    #[inline]
    pub(crate) fn owns(&self, buffer: &Buffer) -> bool {
        let is_own =
            |pool: &Pool| pool.is(&self.pool) || self.reserve.as_ref().is_some_and(|own| pool.is(own));
        matches!(&buffer.home, Home::Pool { pool, .. } if is_own(pool))
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Whether the cache is empty; the pool may have some.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.free.is_empty()
    }

    /// Whether few buffers are left, so that completions should be read.
    #[inline]
    pub(crate) fn is_low(&self) -> bool {
        self.free.is_empty() && (self.free_max > 0 || self.pool.at_home() == 0)
    }

    /// Free buffers in the cache and in the pool.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.pool.at_home()
    }
}

#[cfg(test)]
mod tests {
    use std::mem::ManuallyDrop;

    use super::*;
    use crate::sys::fork::tests::in_forked_child;

    #[test]
    fn every_buffer_comes_home() {
        let pool = Pool::new(2, 5000).unwrap();
        assert_eq!((pool.total(), pool.buffer_bytes()), (2, 8192));
        let (mut one, two) = (pool.take().unwrap(), pool.take().unwrap());
        assert!(pool.take().is_none());
        one.fill(b"bytes").unwrap();
        assert_eq!(&*one, b"bytes");
        std::thread::spawn(move || drop(two)).join().unwrap();
        drop(one);
        assert_eq!(pool.at_home(), 2);
        assert!(pool.take().unwrap().is_empty(), "a buffer comes empty");
    }

    #[test]
    fn a_forked_child_finds_no_buffer_and_waits_for_no_lock() {
        let pool = Pool::new(2, 4096).unwrap();
        let mut cache = Cache::new(pool.clone());
        let (kept, _held) = (cache.take().unwrap(), cache.take().unwrap());
        cache.put(kept);
        let registration = ManuallyDrop::new(pool.register());
        let (free, registered) = (pool.free(), pool.registered());
        let mut parents = ManuallyDrop::new((cache, _held));
        in_forked_child(|| {
            assert!(pool.take().is_none() && parents.0.take().is_none());
            assert_eq!(pool.at_home(), 0);
            // SAFETY: the child ends without using it again.
            unsafe { ManuallyDrop::drop(&mut parents) };
            drop(ManuallyDrop::into_inner(registration));
        });
        drop((free, registered));
    }

    #[test]
    fn locked_pages_are_replaced_as_well() {
        let pool = Pool::new(1, 4096).unwrap();
        let (first, bytes) = pool.memory();
        // SAFETY: memory of the pool, whose contents do not change.
        assert_eq!(unsafe { libc::mlock(first.as_ptr().cast(), bytes) }, 0);
        for is_registered in [false, true] {
            let registration = is_registered.then(|| pool.register());
            let mut buffer = pool.take().expect("at home");
            buffer.fill(&[7; 4096]).unwrap();
            assert_eq!(buffer.abandon(), 0);
            drop(registration);
            let mut buffer = pool.take().expect("at home");
            buffer.resize(4096);
            assert_eq!(*buffer, [0; 4096], "new pages");
        }
    }

    #[test]
    fn buffers_that_share_pages_do_not_share_bytes() {
        let pool = Pool::packed(5, 1500).unwrap();
        assert_eq!((pool.total(), pool.buffer_bytes()), (5, 1536));
        let mut all: Vec<Buffer> = (0..5).map(|_| pool.take().unwrap()).collect();
        for (number, buffer) in all.iter_mut().enumerate() {
            buffer.fill(&[number as u8; 1536]).unwrap();
        }
        assert!(all.iter().enumerate().all(|(number, buffer)| **buffer == [number as u8; 1536]));
        assert_eq!(all.remove(0).abandon(), 1536, "its pages are others', too: it is lost");
        assert!(all.iter().zip(1..).all(|(buffer, number)| **buffer == [number; 1536]));
    }

    #[test]
    fn a_buffer_outlives_its_pool() {
        let mut buffer = Pool::new(1, 4096).unwrap().take().unwrap();
        buffer.fill(&[7; 4096]).unwrap();
        assert_eq!(*buffer, [7; 4096]);
    }

    #[test]
    fn buffers_do_not_overlap() {
        let pool = Pool::new(3, 4096).unwrap();
        let mut all: Vec<Buffer> = std::iter::from_fn(|| pool.take()).collect();
        for (number, buffer) in all.iter_mut().enumerate() {
            buffer.fill(&[number as u8; 4096]).unwrap();
        }
        assert!(all.iter().enumerate().all(|(number, buffer)| **buffer == [number as u8; 4096]));
    }

    #[test]
    fn memory_of_the_programs_own_comes_back() {
        let bytes: Arc<[u8]> = Arc::from(&b"shared"[..]);
        let buffer = Buffer::from_owner(Arc::clone(&bytes));
        assert_eq!(&*buffer, b"shared");
        let buffer = buffer.into_owner::<Vec<u8>>().unwrap_err();
        let back: Arc<[u8]> = buffer.into_owner().unwrap();
        assert!(Arc::ptr_eq(&bytes, &back));
        drop(back);
        drop(Buffer::from_owner(Arc::clone(&bytes)));
        assert_eq!(Arc::strong_count(&bytes), 1, "dropped with its buffer");
    }

    #[test]
    fn what_lies_in_the_owner_itself_does_not_move() {
        let buffer = Buffer::from_owner([1_u8, 2, 3]);
        let moved = Box::new(buffer);
        assert_eq!(**moved, [1, 2, 3]);
        assert_eq!(moved.into_owner::<[u8; 3]>().unwrap(), [1, 2, 3]);
    }

    #[test]
    fn foreign_memory_is_not_changed() {
        let mut buffer = Buffer::from(vec![1, 2, 3]);
        assert!(buffer.as_mut().is_none() && buffer.fill(&[9]).is_none());
        assert_eq!(*buffer, [1, 2, 3]);
    }

    #[test]
    fn abandoned_buffers_of_a_pool_are_new_pages() {
        let pool = Pool::new(1, 4096).unwrap();
        let mut buffer = pool.take().unwrap();
        buffer.fill(&[7; 4096]).unwrap();
        assert_eq!(buffer.abandon(), 0);
        let mut again = pool.take().unwrap();
        again.resize(4096);
        assert_eq!(*again, [0; 4096]);
        assert_eq!(Buffer::from(vec![0; 100]).abandon(), 100);
    }

    #[test]
    fn abandoned_registered_buffers_return_with_the_last_ring() {
        let pool = Pool::new(2, 4096).unwrap();
        let registrations = [pool.register(), pool.register()];
        for _ in 0..2 {
            let mut buffer = pool.take().unwrap();
            buffer.fill(&[7; 4096]).unwrap();
            assert_eq!(buffer.abandon(), 0);
        }
        for registration in registrations {
            assert!(pool.take().is_none(), "no page is replaced while a ring may read it");
            drop(registration);
        }
        assert_eq!(pool.at_home(), 2);
        for mut buffer in [pool.take().unwrap(), pool.take().unwrap()] {
            buffer.resize(4096);
            assert_eq!(*buffer, [0; 4096], "new pages");
        }
    }

    #[test]
    fn an_owner_that_panics_is_dropped() {
        struct Panics(#[expect(dead_code, reason = "counts")] Arc<()>);
        impl AsRef<[u8]> for Panics {
            fn as_ref(&self) -> &[u8] {
                panic!("on purpose")
            }
        }
        let alive = Arc::new(());
        let owner = Panics(Arc::clone(&alive));
        assert!(
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| Buffer::from_owner(owner))).is_err()
        );
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    /// Counts its drops, and panics at each, with a value that also panics when dropped.
    struct PanicsWhenDropped(Arc<AtomicUsize>);

    impl AsRef<[u8]> for PanicsWhenDropped {
        fn as_ref(&self) -> &[u8] {
            b"bytes"
        }
    }

    impl Drop for PanicsWhenDropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Relaxed);
            std::panic::panic_any(Self(Arc::clone(&self.0)));
        }
    }

    #[test]
    fn a_panic_of_an_owners_drop_ends_with_its_buffer() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let buffer = || Buffer::from_owner(PanicsWhenDropped(Arc::clone(&dropped)));
        drop(vec![buffer(), buffer(), buffer()]);
        assert_eq!(dropped.load(Relaxed), 3);
        // Also while the thread already unwinds, where a second panic would end the process.
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _held = buffer();
            panic!("on purpose");
        }));
        assert!(unwound.is_err());
        assert_eq!(dropped.load(Relaxed), 4);
    }

    #[test]
    fn a_cache_takes_back_only_its_own() {
        let (pool, other) = (Pool::new(1, 4096).unwrap(), Pool::new(1, 4096).unwrap());
        let mut cache = Cache::new(pool.clone());
        let mine = cache.take().unwrap();
        cache.put(other.take().unwrap());
        assert_eq!((other.at_home(), cache.available()), (1, 0));
        cache.put(mine);
        assert_eq!((pool.at_home(), cache.available()), (0, 1));
        drop(cache);
        assert_eq!(pool.at_home(), 1);
    }
}
