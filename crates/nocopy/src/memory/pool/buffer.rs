//! A buffer: memory of a pool, of the program, or a frame.
#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use super::Pool;
use super::owner::Owner;
use crate::facts::rejected::TooLong;
use crate::memory::area::{Frame, FrameRange};
use crate::sys::udp_receive::RowMemory;

/// Owned bytes that are only read: memory of a pool, of the program, or a frame.
///
/// ```
/// use nocopy::{Buffer, Pool};
/// let mut room = Pool::new(1, 4096)?.take().expect("a fresh pool has buffers");
/// room.fill(b"hello")?;
/// let buffer: Buffer = room.freeze();
/// assert_eq!(&buffer[..], b"hello");
/// let address = buffer.as_ptr();
/// let room = buffer.try_into_mut().expect("memory of a pool has one owner");
/// assert_eq!(room.as_ptr(), address); // not a copy
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a dropped buffer returns to its pool unsent"]
pub struct Buffer {
    pub(super) data: NonNull<u8>,
    pub(super) len: usize,
    pub(super) origin: BufferOrigin,
}

/// Two lie in a queued message, and a longer one would no longer be moved inline.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Buffer>() == 40);

/// Owned bytes that can be written: memory of a pool, a frame, or [memory that is not
/// Rust's](Self::from_raw).
///
/// ```
/// use nocopy::Pool;
/// use std::io::Write;
/// let mut room = Pool::new(1, 4096)?.take().expect("a fresh pool has buffers");
/// room.resize(5); // to be written in place
/// room.copy_from_slice(b"hello");
/// room.write_all(b", world")?; // behind it
/// assert_eq!(&room[..], b"hello, world");
/// let error = room.fill(&[0; 5000]).unwrap_err();
/// assert_eq!((error.bytes, error.capacity), (5000, 4096));
/// assert_eq!(room.len(), 12); // and so nothing changed
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a dropped buffer returns to its pool unsent"]
#[repr(transparent)]
pub struct BufferMut(Buffer);

pub(super) enum BufferOrigin {
    Pool {
        pool: Pool,
        index: u32,
    },
    /// A value of the program, which has the bytes.
    Owner(Owner),
    /// Memory that is not Rust's, of the owner's capacity, which is there as long as the value.
    Raw(Owner),
    /// A value that others read, too.
    #[cfg_attr(not(feature = "bytes"), expect(dead_code, reason = "keeps the bytes"))]
    Shared(Arc<dyn Any + Send + Sync>),
    /// A frame whose packet begins at the buffer's first byte.
    Frame(FrameRange),
    /// Bytes of the program that are there for good.
    Static,
}

// SAFETY: a buffer is the only access to its bytes, apart from what `from_raw` allows; every owner is `Send`,
// and so are pools and frames.
unsafe impl Send for Buffer {}
// SAFETY: `&Buffer` only reads bytes that nothing can write meanwhile: those of an owner stay borrowed from
// it, and those of `from_raw` are not written by its contract.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Memory of the program, of any alignment, without a copy: a `Vec<u8>`, an `Arc<[u8]>`, a mapped file.
    ///
    /// It can be read and sent, but not changed. [`into_owner`](Self::into_owner) returns the value.
    ///
    /// The owner is dropped by the thread that drops the buffer: usually one that sends, or the reaper thread
    /// of all dropped sockets if the socket was dropped first. So its `Drop` should not wait. If it panics,
    /// the panic hook reports it, and the panic is caught, so that it does not disturb other buffers.
    ///
    /// ```
    /// use nocopy::Buffer;
    /// use std::sync::Arc;
    /// let page: Arc<[u8]> = Arc::from(*b"<html>");
    /// let buffer = Buffer::from_owner(Arc::clone(&page));
    /// assert_eq!(buffer.as_ptr(), page.as_ptr()); // not a copy
    /// let buffer = buffer.try_into_mut().unwrap_err(); // others may read it meanwhile
    /// let buffer = buffer.into_owner::<Vec<u8>>().unwrap_err(); // it was made of something else
    /// assert!(Arc::ptr_eq(&buffer.into_owner::<Arc<[u8]>>().unwrap(), &page));
    /// ```
    pub fn from_owner(owner: impl AsRef<[u8]> + Send + 'static) -> Self {
        let (owner, value) = Owner::new(owner);
        // Has the value from here on, in case `as_ref` panics.
        let mut buffer = Self { data: NonNull::dangling(), len: 0, origin: BufferOrigin::Owner(owner) };
        // SAFETY: the value exists as long as the buffer, which gives no other access to it.
        let bytes: &[u8] = unsafe { value.as_ref() }.as_ref();
        buffer.len = bytes.len();
        buffer.data = NonNull::from(bytes).cast();
        buffer
    }

    /// A part of a value that others read, too. Nothing is allocated.
    pub(crate) fn from_shared<T: Send + Sync + 'static>(
        owner: Arc<T>,
        part: impl FnOnce(&T) -> &[u8],
    ) -> Self {
        let bytes = part(&owner);
        Self { data: NonNull::from(bytes).cast(), len: bytes.len(), origin: BufferOrigin::Shared(owner) }
    }

    /// Returns the value that [`from_owner`](Self::from_owner) or [`BufferMut::from_raw`] was given.
    ///
    /// # Errors
    /// Returns the buffer if it was made of a value of another type, or is memory of a pool or a frame.
    pub fn into_owner<T: 'static>(self) -> Result<T, Self> {
        if !self.owner().is_some_and(Owner::is::<T>) {
            return Err(self);
        }
        match self.into_origin() {
            BufferOrigin::Owner(owner) | BufferOrigin::Raw(owner) => Ok(owner.into_value()),
            _ => unreachable!("looked at above"),
        }
    }

    /// The value that it was made [of](Self::from_owner), if it is of that type.
    #[cfg(any(feature = "bytes", feature = "message"))]
    pub(crate) fn owner_as<T: Sync + 'static>(&self) -> Option<&T> {
        // Not that of `from_raw`, whose bytes are not those of the value.
        let BufferOrigin::Owner(owner) = &self.origin else { return None };
        owner.downcast_ref()
    }

    fn owner(&self) -> Option<&Owner> {
        match &self.origin {
            BufferOrigin::Owner(owner) | BufferOrigin::Raw(owner) => Some(owner),
            _ => None,
        }
    }

    /// The value that others read, too, if it is of that type.
    #[cfg(feature = "bytes")]
    pub(crate) fn shared_as<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        let BufferOrigin::Shared(owner) = &self.origin else { return None };
        Arc::clone(owner).downcast().ok()
    }

    /// Whether it is a frame of an area.
    pub(crate) fn is_frame(&self) -> bool {
        matches!(self.origin, BufferOrigin::Frame(_))
    }

    /// The capacity in bytes.
    #[inline]
    pub fn capacity(&self) -> usize {
        match &self.origin {
            BufferOrigin::Pool { pool, .. } => pool.buffer_bytes(),
            BufferOrigin::Raw(owner) => owner.capacity(),
            BufferOrigin::Owner(_) | BufferOrigin::Shared(_) | BufferOrigin::Static => self.len,
            BufferOrigin::Frame(range) => range.capacity(),
        }
    }

    /// Makes it writable, without a copy.
    ///
    /// # Errors
    /// Returns the buffer if others may read it too, or if it was made [of a value](Self::from_owner) of the
    /// program.
    #[inline]
    pub fn try_into_mut(self) -> Result<BufferMut, Self> {
        if self.is_writable() { Ok(BufferMut(self)) } else { Err(self) }
    }

    /// The same buffer, to be written, if it could be made [writable](Self::try_into_mut).
    #[cfg(feature = "message")]
    #[inline]
    pub(crate) fn writable(&mut self) -> Option<&mut BufferMut> {
        // SAFETY: a `BufferMut` is a buffer, in the same layout (`repr(transparent)`), that is known to be
        // writable; it is borrowed for as long as this.
        self.is_writable().then(|| unsafe { &mut *(&raw mut *self).cast::<BufferMut>() })
    }

    /// Whether nothing else reads its bytes.
    #[inline]
    fn is_writable(&self) -> bool {
        matches!(self.origin, BufferOrigin::Pool { .. } | BufferOrigin::Frame(_) | BufferOrigin::Raw(_))
    }

    /// Whether its pages can be replaced, at the latest when `ring` ends (if that has this pool registered).
    #[cfg(feature = "tcp")]
    pub(crate) fn can_replace_pages(&self, ring: Option<&super::Registration>) -> bool {
        let BufferOrigin::Pool { pool, .. } = &self.origin else { return false };
        let of_ring = usize::from(ring.is_some_and(|ring| ring.0.is_same_pool(pool)));
        pool.0.whole_pages
            && pool.lock_registered_rings().is_some_and(|registered| registered.instances == of_ring)
    }

    /// Gives the buffer up while the kernel may still read it, without waiting for completions. Returns the
    /// bytes that are lost for good.
    ///
    /// Pages of a pool are replaced: the kernel keeps the old ones as long as it needs them. If io_uring
    /// instances have the pool registered, the buffer returns when the last of them ends. Any other memory
    /// cannot be replaced, and is leaked.
    pub(crate) fn abandon(self) -> usize {
        let bytes = self.len();
        match self.into_origin() {
            BufferOrigin::Pool { pool, index } => {
                // In a forked child nothing is read.
                let Some(mut registered) = pool.lock_registered_rings() else { return 0 };
                if registered.instances > 0 && pool.0.whole_pages {
                    registered.given_up.push(index);
                    return 0;
                }
                // SAFETY: the buffer has no owner any more; no instance exists, and none is added while this
                // is locked.
                let is_replaced = unsafe { pool.replace_pages(index) };
                drop(registered);
                if !is_replaced {
                    let bytes = pool.buffer_bytes();
                    pool.hold_for_good();
                    return bytes;
                }
                pool.return_to_pool(index);
                0
            }
            BufferOrigin::Static => 0, // it is there for good
            origin => {
                std::mem::forget(origin);
                bytes
            }
        }
    }

    /// What its bytes belong to, without returning them there.
    fn into_origin(self) -> BufferOrigin {
        let buffer = ManuallyDrop::new(self);
        // SAFETY: a valid value, which the buffer, as it is not dropped, gives up.
        unsafe { std::ptr::read(&raw const buffer.origin) }
    }
}

impl BufferMut {
    /// An empty buffer of that memory, which has no other owner.
    pub(super) fn empty(data: NonNull<u8>, origin: BufferOrigin) -> Self {
        Self(Buffer { data, len: 0, origin })
    }

    /// A buffer that is known to be memory of a pool.
    #[inline]
    pub(super) fn of_pool(buffer: Buffer) -> Self {
        debug_assert!(matches!(buffer.origin, BufferOrigin::Pool { .. }));
        Self(buffer)
    }

    /// Memory that is not Rust's, without a copy: of a C library, of Python, of a device. It has all `bytes`
    /// bytes, to be sent; [`resize`](Self::resize) changes that. [`Endpoint::post`] and
    /// [`Endpoint::register`] receive into it, and so does a [`Pool::of`] it.
    ///
    /// The owner is what keeps the memory. It is dropped with the buffer, by any thread, and a panic of its
    /// `Drop` is caught, as with [`Buffer::from_owner`]. It is never dropped if the kernel may still read the
    /// memory when its sender is closed by force. [`Buffer::into_owner`] returns it.
    ///
    /// The library has a Rust reference to the memory only during one copy or one system call, within a call
    /// of a method of the buffer or of the half that was given it. In between, it keeps the address alone.
    ///
    /// [`Endpoint::post`]: crate::message::NonblockingEndpoint::post
    /// [`Endpoint::register`]: crate::message::NonblockingEndpoint::register
    ///
    /// ```
    /// use nocopy::BufferMut;
    /// use std::ptr::NonNull;
    ///
    /// /// Memory of a C library, which returns to it.
    /// struct OfC(NonNull<u8>);
    /// // SAFETY: memory may be freed by any thread.
    /// unsafe impl Send for OfC {}
    /// impl Drop for OfC {
    ///     fn drop(&mut self) {
    ///         // SAFETY: from `calloc`, and freed only here.
    ///         unsafe { libc::free(self.0.as_ptr().cast()) }
    ///     }
    /// }
    ///
    /// // SAFETY: any numbers are allowed.
    /// let first = NonNull::new(unsafe { libc::calloc(1, 100) }.cast()).ok_or("no memory")?;
    /// // SAFETY: 100 bytes, all zero, which only the buffer uses until it frees them.
    /// let mut buffer = unsafe { BufferMut::from_raw(first, 100, OfC(first)) };
    /// assert_eq!((buffer.as_ptr(), buffer.len()), (first.as_ptr().cast_const(), 100));
    /// buffer.fill(b"hello")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    /// * Until the owner is dropped, the `bytes` bytes from `first` on can be read and written by any thread,
    ///   and are initialised. They are at most `isize::MAX`.
    /// * Nothing else writes to them while a slice of the buffer, or a batch that was received into it, is
    ///   borrowed, while `Bytes` of it exist, or while a call runs of the half or endpoint that was given it.
    /// * Nothing else reads them while a mutable slice is borrowed, or while a call runs that may receive
    ///   into them: the buffer was posted or registered, is memory of a pool, or is given to the call. Of
    ///   rows ([`RowFiller`](crate::udp::RowFiller)) these are only the bytes of the rows.
    ///
    /// So other code may look at the memory, and change it, between those calls. If the kernel still reads it
    /// meanwhile, the peer gets either the old bytes or the new ones.
    pub unsafe fn from_raw(first: NonNull<u8>, bytes: usize, owner: impl Send + 'static) -> Self {
        let origin = BufferOrigin::Raw(Owner::of_raw(owner, bytes));
        Self(Buffer { data: first, len: bytes, origin })
    }

    /// The memory behind its bytes, up to the capacity.
    #[cfg(feature = "bytes")]
    pub(crate) fn spare_mut(&mut self) -> &mut [u8] {
        let (len, capacity) = (self.len(), self.capacity());
        // SAFETY: initialised memory (`resize`) within the capacity, as in `deref_mut`.
        unsafe { std::slice::from_raw_parts_mut(self.0.data.as_ptr().add(len), capacity - len) }
    }

    /// Rows in its bytes to receive into, without a reference to what lies between them. Panics if the range
    /// is not within its bytes.
    pub(crate) fn row_memory(&mut self, range: Range<usize>) -> RowMemory<'_> {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of {} bytes", self.len());
        // SAFETY: within the buffer, which is borrowed exclusively; of memory that is not Rust's its owner
        // has promised that nothing else uses what is received into.
        unsafe { RowMemory::new(self.0.data.add(range.start), range.len()) }
    }

    /// Copies bytes into it, without a reference to any others. Panics if they are not within its bytes.
    pub(crate) fn write_at(&mut self, at: usize, bytes: &[u8]) {
        assert!(at <= self.len() && bytes.len() <= self.len() - at, "{} bytes at {at}", bytes.len());
        // SAFETY: within the buffer, which is borrowed exclusively, and initialised.
        unsafe { self.0.data.add(at).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) }
    }

    /// Copies bytes out of it, without a reference to any others. Panics if they are not within its bytes.
    pub(crate) fn read_at(&self, at: usize, to: &mut [u8]) {
        assert!(at <= self.len() && to.len() <= self.len() - at, "{} bytes at {at}", to.len());
        // SAFETY: within the buffer, which is borrowed, and initialised.
        unsafe { self.0.data.add(at).copy_to_nonoverlapping(NonNull::from(&mut *to).cast(), to.len()) }
    }

    /// Its first byte, without a reference to it.
    pub(super) fn first_byte(&self) -> NonNull<u8> {
        self.0.data
    }

    /// The capacity in bytes.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Makes it shorter or longer. Added bytes have the memory's earlier contents.
    ///
    /// # Panics
    /// If `bytes` exceeds the capacity.
    #[inline]
    pub fn resize(&mut self, bytes: usize) {
        assert!(bytes <= self.capacity(), "{bytes} bytes in a buffer of {}", self.capacity());
        self.0.len = bytes;
    }

    /// Replaces its contents by a copy of `bytes`.
    ///
    /// # Errors
    /// They are longer than its capacity; nothing was changed.
    #[inline]
    pub fn fill(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        let capacity = self.capacity();
        if bytes.len() > capacity {
            return Err(TooLong { bytes: bytes.len(), capacity });
        }
        self.0.len = bytes.len();
        self.copy_from_slice(bytes);
        Ok(())
    }

    /// Ends writing, without a copy; [`Buffer::try_into_mut`] is the way back.
    #[inline]
    pub fn freeze(self) -> Buffer {
        self.0
    }
}

impl Deref for BufferMut {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for BufferMut {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: initialised memory of this length, which has no other owner and no other reader (`empty`,
        // `from_raw`, `From<Frame>`, `is_writable`), and is borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.0.data.as_ptr(), self.0.len) }
    }
}

impl AsRef<[u8]> for BufferMut {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for BufferMut {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

/// Writes behind its bytes, as far as there is room.
impl io::Write for BufferMut {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let start = self.len();
        // No underflow: the length never exceeds the capacity.
        let count = bytes.len().min(self.capacity() - start);
        self.resize(start + count);
        self[start..].copy_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for BufferMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BufferMut").field(&self.0).finish()
    }
}

impl From<BufferMut> for Buffer {
    #[inline]
    fn from(buffer: BufferMut) -> Self {
        buffer.freeze()
    }
}

impl From<Frame> for BufferMut {
    fn from(frame: Frame) -> Self {
        Self(frame.into())
    }
}

impl From<Frame> for Buffer {
    fn from(frame: Frame) -> Self {
        let len = frame.len();
        let (data, range) = frame.into_range();
        Self { data, len, origin: BufferOrigin::Frame(range) }
    }
}

impl TryFrom<Buffer> for Frame {
    type Error = Buffer;

    /// The frame, if the buffer is one.
    ///
    /// # Errors
    /// Returns the buffer if it has another kind of memory.
    fn try_from(buffer: Buffer) -> Result<Self, Buffer> {
        if !buffer.is_frame() {
            return Err(buffer);
        }
        let bytes = buffer.len();
        let BufferOrigin::Frame(range) = buffer.into_origin() else { unreachable!("looked at above") };
        Ok(range.into_frame(bytes))
    }
}

impl From<&'static [u8]> for Buffer {
    fn from(bytes: &'static [u8]) -> Self {
        Self { data: NonNull::from(bytes).cast(), len: bytes.len(), origin: BufferOrigin::Static }
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
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = match self.origin {
            BufferOrigin::Pool { index, .. } => format!("buffer {index} of a pool"),
            BufferOrigin::Frame(_) => "frame".into(),
            _ => "memory of the program's own".into(),
        };
        write!(f, "Buffer({} bytes, {origin})", self.len)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Every other origin returns by itself.
        if let BufferOrigin::Pool { pool, index } = &self.origin {
            pool.return_to_pool(*index);
        }
    }
}
