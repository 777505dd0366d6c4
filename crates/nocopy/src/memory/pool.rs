//! Buffers for sockets: owned memory that is lent to the kernel and returned.
//!
//! A [`Buffer`] is memory of a [`Pool`], memory of the program, or a frame of an area. Sending moves it, so
//! touching it while it is sent does not compile; it returns when the kernel no longer reads it.
#![allow(unsafe_code)]

#[cfg(feature = "bytes")]
mod buf_mut;
mod buffer;
mod cache;
mod memory;
mod owner;
mod shared;
#[cfg(test)]
mod tests;

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use buffer::BufferOrigin;
pub use buffer::{Buffer, BufferMut};
pub(crate) use cache::BufferCache;
use memory::{PoolMemory, ProgramMemory};
pub(crate) use shared::SharedBuffer;

use crate::sys::memory::Mapping;

/// Buffers begin on a page, so that memory which the kernel still reads at a forced close can be given up in
/// whole pages.
const PAGE_BYTES: usize = 4096;

/// Alignment of buffers that share pages.
#[cfg(feature = "message")]
const CACHE_LINE_BYTES: usize = 64;

/// Memory cut into buffers of one size. Clones are the same pool.
///
/// The memory is not mapped in forked children (`MADV_DONTFORK`), where the pool has no buffers: otherwise a
/// fork would move the parent's next write to a new page, and an io_uring instance with the pool registered
/// would send the old page. (The program's own memory may stay mapped in children: the kernel looks it up for
/// each call, it is not written during the call, and a child that writes gets a new page.)
///
/// ```
/// use nocopy::Pool;
/// let pool = Pool::new(2, 1000)?;
/// let (first, second) = (pool.take().ok_or("empty")?, pool.take().ok_or("empty")?);
/// assert_eq!((pool.total(), first.capacity()), (2, 4096)); // rounded up to pages
/// assert!(pool.take().is_none() && second.is_empty());
/// drop(first); // returns
/// assert_eq!(pool.available(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Pool(Arc<SharedPool>);

#[derive(Debug)]
struct SharedPool {
    memory: PoolMemory,
    buffer_bytes: usize,
    /// Whether each buffer consists of whole pages, which can be replaced one by one.
    whole_pages: bool,
    total: u32,
    /// Each stream that sends from it has a clone.
    sharers: Arc<()>,
    /// Locked while pages are replaced.
    registered: Mutex<RegisteredRings>,
    /// The free buffers; last in, first out, so that a taken buffer is in the cache.
    free: Mutex<Vec<u32>>,
}

/// io_uring instances that have the pool registered.
#[derive(Debug, Default)]
pub(super) struct RegisteredRings {
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
    /// If `buffers` or `buffer_bytes` is 0.
    pub fn new(buffers: u32, buffer_bytes: usize) -> io::Result<Self> {
        Self::with_layout(buffers, buffer_bytes, PAGE_BYTES)
    }

    /// A pool of buffers that share pages, for calls after which the kernel no longer reads the memory. (If
    /// given up while the kernel reads it, such a buffer would be lost.) Errors: there is not enough memory.
    /// Panics as [`Pool::new`].
    #[cfg(feature = "message")]
    pub(crate) fn with_shared_pages(buffers: u32, buffer_bytes: usize) -> io::Result<Self> {
        Self::with_layout(buffers, buffer_bytes, CACHE_LINE_BYTES)
    }

    fn with_layout(buffers: u32, buffer_bytes: usize, alignment: usize) -> io::Result<Self> {
        assert!(buffers > 0, "a pool of no buffers");
        assert!(buffer_bytes > 0, "a pool of buffers without bytes");
        let aligned = buffer_bytes.checked_next_multiple_of(alignment);
        let buffer_bytes = aligned.ok_or(io::ErrorKind::OutOfMemory)?;
        let bytes = buffer_bytes.checked_mul(buffers as usize);
        let bytes = bytes.and_then(|bytes| bytes.checked_next_multiple_of(PAGE_BYTES));
        let mapping = Mapping::for_buffers(bytes.ok_or(io::ErrorKind::OutOfMemory)?)?;
        Ok(Self::with_memory(PoolMemory::Pages(mapping), buffers, buffer_bytes, alignment == PAGE_BYTES))
    }

    /// A pool of memory of the program: as many buffers of `buffer_bytes` bytes as it has room for, one
    /// behind the other. The value is dropped with the pool and its last buffer.
    ///
    /// ```
    /// use nocopy::Pool;
    /// let memory = vec![0_u8; 10_000];
    /// let first_byte = memory.as_ptr();
    /// let pool = Pool::of(memory, 4096)?;
    /// let buffer = pool.take().ok_or("empty")?;
    /// assert_eq!((buffer.as_ptr(), pool.total()), (first_byte, 2));
    /// assert!(Pool::of(vec![0_u8; 100], 4096).is_err()); // too short for one
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// In a forked child the pool has no buffers. If the kernel still reads a buffer when its sender is
    /// closed by force, the value is never dropped.
    ///
    /// # Errors
    /// The memory is too short for one buffer.
    ///
    /// # Panics
    /// If `buffer_bytes` is 0.
    pub fn of(memory: impl AsMut<[u8]> + Send + 'static, buffer_bytes: usize) -> io::Result<Self> {
        assert!(buffer_bytes > 0, "a pool of buffers without bytes");
        let memory = PoolMemory::Program(ProgramMemory::new(memory));
        let bytes = memory.bytes();
        match u32::try_from(bytes / buffer_bytes).unwrap_or(u32::MAX) {
            0 => {
                let text = format!(
                    "memory of {bytes} bytes is too short for a buffer of {buffer_bytes}; give more, or ask for shorter buffers"
                );
                Err(io::Error::new(io::ErrorKind::InvalidInput, text))
            }
            buffers => Ok(Self::with_memory(memory, buffers, buffer_bytes, false)),
        }
    }

    fn with_memory(memory: PoolMemory, buffers: u32, buffer_bytes: usize, whole_pages: bool) -> Self {
        let free = Mutex::new((0..buffers).rev().collect());
        Self(Arc::new(SharedPool {
            memory,
            buffer_bytes,
            whole_pages,
            total: buffers,
            sharers: Arc::default(),
            registered: Mutex::default(),
            free,
        }))
    }

    /// An empty buffer; `None` while all are in use.
    pub fn take(&self) -> Option<BufferMut> {
        let index = self.lock_free_list()?.pop()?;
        let origin = BufferOrigin::Pool { pool: self.clone(), index };
        Some(BufferMut::empty(self.first_byte(index), origin))
    }

    fn first_byte(&self, index: u32) -> NonNull<u8> {
        assert!(index < self.0.total);
        // SAFETY: buffer `index` lies within the memory.
        unsafe { self.0.memory.first_byte().add(index as usize * self.0.buffer_bytes) }
    }

    /// Replaces a buffer's pages by new ones; returns whether that succeeded.
    ///
    /// # Safety
    /// The buffer is neither free nor in use, and no io_uring instance has the pool registered.
    unsafe fn replace_pages(&self, index: u32) -> bool {
        let (first, bytes) = (self.first_byte(index), self.0.buffer_bytes);
        // SAFETY: whole pages of this buffer, which has no owner; they read as zeros from now on.
        self.0.whole_pages && unsafe { self.0.memory.replace_pages(first, bytes) }.is_ok()
    }

    /// Keeps memory of the program for good, because the kernel may still read some of it. (Pages of its own
    /// the kernel keeps by itself.)
    fn hold_for_good(self) {
        if matches!(self.0.memory, PoolMemory::Program(_)) {
            std::mem::forget(self);
        }
    }

    pub(crate) fn buffer_bytes(&self) -> usize {
        self.0.buffer_bytes
    }

    /// The number of all buffers, free or in use.
    pub fn total(&self) -> usize {
        self.0.total as usize
    }

    /// The number of free buffers.
    pub fn available(&self) -> usize {
        self.lock_free_list().map_or(0, |free| free.len())
    }

    /// Address and length of its memory.
    pub(crate) fn memory_range(&self) -> (NonNull<u8>, usize) {
        (self.0.memory.first_byte(), self.0.memory.bytes())
    }

    /// Streams that send from the pool, and dropped ones whose memory the kernel still reads.
    #[cfg(feature = "tcp")]
    pub(crate) fn sharer_count(&self) -> usize {
        Arc::strong_count(&self.0.sharers) - 1
    }

    /// Announces that an io_uring instance will register the memory: none of it is replaced while the result
    /// exists.
    pub(crate) fn register(&self) -> Registration {
        // Relaxed: a number for reports and limits; the count under the lock keeps pages in place.
        REGISTRATIONS.fetch_add(1, Relaxed);
        if let Some(mut registered) = self.lock_registered_rings() {
            registered.instances += 1;
        }
        Registration(self.clone())
    }

    /// `None` in a forked child, which does not have the memory.
    pub(super) fn lock_registered_rings(&self) -> Option<MutexGuard<'_, RegisteredRings>> {
        self.lock_unless_forked(&self.0.registered)
    }

    /// `None` in a forked child, which does not have the memory.
    fn lock_free_list(&self) -> Option<MutexGuard<'_, Vec<u32>>> {
        self.lock_unless_forked(&self.0.free)
    }

    /// `None` in a forked child, which must not lock: a thread of its parent may have held the lock at the
    /// fork.
    fn lock_unless_forked<'a, T>(&self, mutex: &'a Mutex<T>) -> Option<MutexGuard<'a, T>> {
        // Poisoning does not matter: pushing and popping numbers leaves nothing half done.
        (!self.0.memory.is_absent_in_child()).then(|| mutex.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn return_to_pool(&self, index: u32) {
        if let Some(mut free) = self.lock_free_list() {
            free.push(index);
        }
    }

    fn is_same_pool(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn owns(&self, buffer: &Buffer) -> bool {
        self.index_of(buffer).is_some()
    }

    /// The number of one of its buffers among all.
    pub(crate) fn index_of(&self, buffer: &Buffer) -> Option<usize> {
        match &buffer.origin {
            BufferOrigin::Pool { pool, index } if pool.is_same_pool(self) => Some(*index as usize),
            _ => None,
        }
    }

    /// Calls a function with the number of each free buffer.
    #[cfg(feature = "message")]
    pub(crate) fn for_each_available(&self, of: impl FnMut(usize)) {
        if let Some(free) = self.lock_free_list() {
            free.iter().map(|index| *index as usize).for_each(of);
        }
    }
}

static REGISTRATIONS: AtomicUsize = AtomicUsize::new(0);

/// How many io_uring instances of this process have pools registered.
#[cfg(feature = "tcp")]
pub(crate) fn registration_count() -> usize {
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
        let Some(mut registered) = self.0.lock_registered_rings() else { return };
        // No underflow: `register` added one, and in a child that cannot lock, neither runs.
        registered.instances -= 1;
        if registered.instances > 0 {
            return;
        }
        for index in std::mem::take(&mut registered.given_up) {
            // SAFETY: given up, so without an owner; no instance exists, and none is added while this is
            // locked.
            if unsafe { self.0.replace_pages(index) } {
                self.0.return_to_pool(index);
            } else {
                NOT_REPLACED_BYTES.fetch_add(self.0.buffer_bytes() as u64, Relaxed);
            }
        }
    }
}
