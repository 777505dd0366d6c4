//! An owned frame.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use super::{SharedArea, return_frame_to_pool};
use crate::facts::rejected::TooLong;

/// One frame of an area, owned: a packet with free space before and after it.
///
/// A frame is a move-only value of 24 bytes. Sending it gives it away, so reading, changing or sending it
/// again does not compile:
///
/// ```compile_fail
/// # fn send_twice(sender: &mut nocopy::Sender, frame: nocopy::Frame) {
/// sender.send(frame).unwrap();
/// println!("{}", frame.len()); // borrow of moved value
/// # }
/// ```
///
/// It may outlive its port, wait in a channel, and move to other threads; when it is dropped, it returns to
/// its pool. [`Receiver::recycle`](crate::port::NonblockingReceiver::recycle) on the half that received it
/// returns it most cheaply, without an atomic operation.
///
/// Headers are added and removed in front of a packet without moving it:
///
/// ```
/// # let (mut port, _peer) = nocopy::Port::memory_pair()?;
/// let mut frame = port.sender().buffer().expect("a fresh port has free frames");
/// frame.fill(b"payload").expect("it fits");
/// let free_bytes = frame.headroom_bytes();
/// frame.prepend(2).expect("there is headroom").copy_from_slice(b"h:"); // a header; the payload stays where it is
/// frame.append(2).expect("there is tailroom").copy_from_slice(b":t");
/// assert_eq!(&*frame, b"h:payload:t");
/// frame.trim_front(2);
/// frame.truncate(7);
/// assert_eq!(&*frame, b"payload");
/// assert_eq!(frame.headroom_bytes(), free_bytes); // as before
/// assert!(frame.prepend(free_bytes + 1).is_none()); // refused, and the frame is as it was
/// assert_eq!(&*frame, b"payload");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a dropped frame goes back to its pool unsent"]
pub struct Frame {
    /// Valid while this frame is not free (module documentation of `area`).
    pub(super) shared: NonNull<SharedArea>,
    /// First byte of the packet, `start` bytes into frame `index`: kept so that reading follows no pointers.
    data: NonNull<u8>,
    index: u32,
    start: u16,
    len: u16,
}

// SAFETY: a frame is the only access to its bytes, on any thread; returning it is an atomic operation.
unsafe impl Send for Frame {}
// SAFETY: `&Frame` only reads bytes that nothing can write meanwhile.
unsafe impl Sync for Frame {}

impl Frame {
    /// # Safety
    /// The caller owns frame `index` of `shared` and gives it up; `data` is `start` bytes into it, and
    /// `start + len` lies within a frame.
    #[inline]
    pub(super) unsafe fn new(
        shared: NonNull<SharedArea>,
        data: NonNull<u8>,
        index: u32,
        start: u16,
        len: u16,
    ) -> Self {
        Self { shared, data, index, start, len }
    }

    /// Returns index, first byte and length, without returning the frame to its pool.
    #[inline]
    pub(super) fn into_parts(self) -> (u32, NonNull<u8>, u16) {
        let frame = ManuallyDrop::new(self);
        (frame.index, frame.data, frame.len)
    }

    #[inline]
    pub(super) fn first_byte(&self) -> NonNull<u8> {
        self.data
    }

    /// Returns the packet's first byte, and the frame without the length of its packet.
    #[inline]
    pub(crate) fn into_range(self) -> (NonNull<u8>, FrameRange) {
        let frame = ManuallyDrop::new(self);
        (frame.data, FrameRange { shared: frame.shared, index: frame.index, start: frame.start })
    }

    #[inline]
    fn shared_area(&self) -> &SharedArea {
        // SAFETY: alive as long as the frame is (field documentation).
        unsafe { self.shared.as_ref() }
    }

    /// The `len` bytes that begin `offset` bytes into the packet.
    ///
    /// # Safety
    /// They lie within the frame.
    #[inline]
    unsafe fn bytes_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        // SAFETY: within the frame by contract, and the frame is ours alone.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(offset).as_ptr(), len) }
    }

    /// Its number in the area, which never changes: for tables of frames in use.
    #[inline]
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Free bytes in front of the packet.
    #[inline]
    pub fn headroom_bytes(&self) -> usize {
        usize::from(self.start)
    }

    /// Free bytes after the packet.
    #[inline]
    pub(crate) fn tailroom_bytes(&self) -> usize {
        // No underflow: through every edit the packet lies within its frame.
        self.shared_area().frame_bytes as usize - usize::from(self.start) - usize::from(self.len)
    }

    /// Adds `bytes` bytes in front of the packet, for a header, and returns them with undefined
    /// contents. `None`, and no change, if there is less headroom.
    #[inline]
    pub fn prepend(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let count = u16::try_from(bytes).ok()?;
        self.start = self.start.checked_sub(count)?;
        // No overflow: start and length together are at most a frame, 32768 bytes.
        self.len += count;
        // SAFETY: `start` was at least `bytes`, so both lie within the frame.
        unsafe {
            self.data = self.data.sub(bytes);
            Some(self.bytes_mut(0, bytes))
        }
    }

    /// Adds `bytes` bytes after the packet and returns them with undefined contents. `None`, and no change,
    /// if there is less tailroom.
    #[inline]
    pub fn append(&mut self, bytes: usize) -> Option<&mut [u8]> {
        if bytes > self.tailroom_bytes() {
            return None;
        }
        let old_len = usize::from(self.len);
        // Fits: the tailroom is at most a frame, 32768 bytes.
        let count = bytes as u16;
        self.len += count;
        // SAFETY: there was that much tailroom.
        Some(unsafe { self.bytes_mut(old_len, bytes) })
    }

    /// Removes `bytes` bytes from the front without moving data, or everything if there are fewer.
    #[inline]
    pub fn trim_front(&mut self, bytes: usize) {
        let bytes = u16::try_from(bytes).unwrap_or(u16::MAX).min(self.len);
        self.start += bytes;
        self.len -= bytes;
        // SAFETY: `bytes` is no more than the packet had.
        self.data = unsafe { self.data.add(usize::from(bytes)) };
    }

    /// Cuts the packet to `bytes` bytes; does nothing if it is shorter.
    #[inline]
    pub fn truncate(&mut self, bytes: usize) {
        self.len = self.len.min(u16::try_from(bytes).unwrap_or(u16::MAX));
    }

    /// Replaces the contents by a copy of `packet`, at the default offset of packets.
    ///
    /// # Errors
    /// It is longer than a packet of this area; nothing was changed.
    #[inline]
    pub fn fill(&mut self, packet: &[u8]) -> Result<(), TooLong> {
        let area = self.shared_area();
        let (offset, capacity) = (area.data_offset, area.packet_bytes_max() as usize);
        if packet.len() > capacity {
            return Err(TooLong { bytes: packet.len(), capacity });
        }
        self.data = area.frame_pointer(self.index, offset);
        self.start = offset;
        // Fits: a frame has at most 32768 bytes.
        self.len = packet.len() as u16;
        self.copy_from_slice(packet);
        Ok(())
    }

    /// Makes the frame read-only and reference-counted; it returns to its pool when the last owner drops it.
    ///
    /// ```
    /// # let (mut port, _peer) = nocopy::Port::memory_pair()?;
    /// use nocopy::Frame;
    /// let mut frame = port.sender().buffer().expect("a fresh port has free frames");
    /// frame.fill(b"hello").expect("it fits");
    /// let first = frame.share();
    /// let second = first.clone(); // another owner of the same bytes
    /// assert_eq!(first.as_ptr(), second.as_ptr());
    /// let first = Frame::try_from(first).unwrap_err(); // not while there are two
    /// drop(first);
    /// assert_eq!(&*Frame::try_from(second).expect("one owner is left"), b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn share(self) -> SharedFrame {
        SharedFrame(Arc::new(self))
    }
}

impl Deref for Frame {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `start + len` stays within the frame through every edit, and the frame is ours alone.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), usize::from(self.len)) }
    }
}

impl DerefMut for Frame {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = usize::from(self.len);
        // SAFETY: as in `deref`.
        unsafe { self.bytes_mut(0, len) }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        // SAFETY: the frame is ours and given up here; `shared` is alive (field documentation).
        unsafe { return_frame_to_pool(self.shared, self.index) }
    }
}

/// The bytes of an owned frame from its packet's first one on: for a buffer, which has pointer and length
/// itself.
pub(crate) struct FrameRange {
    /// As a frame's.
    shared: NonNull<SharedArea>,
    index: u32,
    start: u16,
}

impl FrameRange {
    fn shared_area(&self) -> &SharedArea {
        // SAFETY: alive as long as the frame is (field documentation).
        unsafe { self.shared.as_ref() }
    }

    /// The bytes to the end of the frame.
    pub(crate) fn capacity(&self) -> usize {
        // No underflow: the packet lay within its frame.
        self.shared_area().frame_bytes as usize - usize::from(self.start)
    }

    /// The frame, with a packet of `len` bytes. Panics if they exceed the capacity.
    pub(crate) fn into_frame(self, len: usize) -> Frame {
        assert!(len <= self.capacity(), "no longer than its capacity");
        let range = ManuallyDrop::new(self);
        let (index, start) = (range.index, range.start);
        let data = range.shared_area().frame_pointer(index, start);
        // Fits: a frame has at most 32768 bytes.
        Frame { shared: range.shared, data, index, start, len: len as u16 }
    }
}

impl Drop for FrameRange {
    fn drop(&mut self) {
        // SAFETY: as of a frame.
        unsafe { return_frame_to_pool(self.shared, self.index) }
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame")
            .field("index", &self.index)
            .field("start", &self.start)
            .field("len", &self.len)
            .finish()
    }
}

/// A read-only, reference-counted frame; see [`Frame::share`].
#[derive(Debug, Clone)]
pub struct SharedFrame(Arc<Frame>);

impl TryFrom<SharedFrame> for Frame {
    type Error = SharedFrame;

    /// The frame itself, if this is its last owner.
    ///
    /// # Errors
    /// Returns the shared frame if there are other owners.
    fn try_from(shared: SharedFrame) -> Result<Self, SharedFrame> {
        Arc::try_unwrap(shared.0).map_err(SharedFrame)
    }
}

impl Deref for SharedFrame {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
