//! The free buffers of one half.

use std::sync::Arc;

use super::Pool;
use super::buffer::{Buffer, BufferMut, BufferOrigin};

const CACHED_MAX: usize = 16;

/// A half's own free buffers of a pool: taking and returning one needs neither a lock nor an atomic
/// operation.
#[derive(Debug)]
pub(crate) struct BufferCache {
    pool: Pool,
    free: Vec<BufferMut>,
    free_max: usize,
    /// This half's own memory in addition to a shared pool, made when first needed.
    reserve: Option<Pool>,
}

impl BufferCache {
    pub(crate) fn new(pool: Pool) -> Self {
        let free_max = CACHED_MAX.min(pool.total());
        Self { pool, free: Vec::with_capacity(free_max), free_max, reserve: None }
    }

    /// A cache that keeps no buffers: if several streams share a pool, idle ones must not starve the others.
    pub(crate) fn without_buffers(pool: Pool) -> Self {
        Self { pool, free: Vec::new(), free_max: 0, reserve: None }
    }

    /// Counts a stream among those that share the pool, if it is shared, until the result is dropped.
    pub(crate) fn count_sharer(&self) -> Option<Arc<()>> {
        // 0 only if the pool is shared: a pool has at least one buffer, and `new` keeps one.
        (self.free_max == 0).then(|| Arc::clone(&self.pool.0.sharers))
    }

    /// An empty buffer; `None` while all are in use, and in a forked child, which does not have their memory.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<BufferMut> {
        if !self.pool.0.memory.is_absent_in_child()
            && let Some(buffer) = self.free.pop()
        {
            return Some(buffer);
        }
        self.pool.take()
    }

    /// Takes a buffer back; a buffer of another pool returns to that.
    #[inline(always)]
    pub(crate) fn put(&mut self, mut buffer: Buffer) {
        // Further buffers return to the pool, for the other streams.
        if self.free.len() < self.free_max && self.owns(&buffer) {
            buffer.len = 0;
            self.free.push(BufferMut::of_pool(buffer));
        }
    }

    /// Whether it is a buffer of this pool, or of the half's reserve.
    #[inline]
    pub(crate) fn owns(&self, buffer: &Buffer) -> bool {
        let is_own = |pool: &Pool| {
            pool.is_same_pool(&self.pool) || self.reserve.as_ref().is_some_and(|own| pool.is_same_pool(own))
        };
        matches!(&buffer.origin, BufferOrigin::Pool { pool, .. } if is_own(pool))
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Whether the cache is empty; the pool may have some.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.free.is_empty()
    }
}

/// For streams, several of which may share a pool.
#[cfg(feature = "tcp")]
impl BufferCache {
    /// A buffer in addition to the pool's, which are all in use by other streams and may never return. For a
    /// half that has none in flight, so that waiting would be useless. A half gets as many as its share of
    /// the pool.
    #[cold]
    pub(crate) fn take_reserved(&mut self) -> Option<BufferMut> {
        if self.reserve.is_none() && self.pool.sharer_count() > 1 {
            let share = (self.pool.total() / self.pool.sharer_count()).max(1);
            self.reserve = Pool::new(u32::try_from(share).ok()?, self.pool.buffer_bytes()).ok();
        }
        self.reserve.as_ref()?.take()
    }

    /// Whether few buffers are left, so that completions should be read.
    #[inline]
    pub(crate) fn is_low(&self) -> bool {
        self.free.is_empty() && (self.free_max > 0 || self.pool.available() == 0)
    }

    /// Free buffers in the cache and in the pool.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.pool.available()
    }
}
