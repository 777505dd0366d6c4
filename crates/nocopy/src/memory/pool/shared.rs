//! A buffer that several datagrams share.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;
#[cfg(feature = "bytes")]
use std::sync::OnceLock;

#[cfg(feature = "bytes")]
use bytes::Bytes;

use super::buffer::BufferMut;

/// A buffer of which others read parts.
#[derive(Debug)]
pub(crate) struct SharedBuffer {
    /// Dropped with this, or with the last of its `Bytes` if there are any.
    buffer: ManuallyDrop<BufferMut>,
    /// All of the buffer, which has it from then on.
    #[cfg(feature = "bytes")]
    bytes: OnceLock<Bytes>,
}

impl SharedBuffer {
    pub(crate) fn new(buffer: BufferMut) -> Self {
        Self {
            buffer: ManuallyDrop::new(buffer),
            #[cfg(feature = "bytes")]
            bytes: OnceLock::new(),
        }
    }

    /// The buffer, if nothing else reads it.
    pub(crate) fn into_inner(shared: Arc<Self>) -> Option<BufferMut> {
        let shared = Arc::into_inner(shared)?;
        if shared.is_given_away() {
            return None;
        }
        let shared = ManuallyDrop::new(shared);
        // SAFETY: this still had the buffer, and is not dropped.
        Some(unsafe { std::ptr::read(&raw const *shared.buffer) })
    }

    /// All bytes; every call returns a clone of the same.
    #[cfg(feature = "bytes")]
    pub(crate) fn bytes(&self) -> Bytes {
        let give_away = || {
            // SAFETY: this has the buffer, and gives it up: what is set here is what `drop` and `into_inner`
            // look at. Nothing panics in between.
            Bytes::from_owner(unsafe { std::ptr::read(&raw const *self.buffer) })
        };
        self.bytes.get_or_init(give_away).clone()
    }

    fn is_given_away(&self) -> bool {
        #[cfg(feature = "bytes")]
        return self.bytes.get().is_some();
        #[cfg(not(feature = "bytes"))]
        false
    }
}

impl Deref for SharedBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // Also where `bytes` has the buffer, which it then keeps as long as this.
        &self.buffer
    }
}

impl Drop for SharedBuffer {
    fn drop(&mut self) {
        if !self.is_given_away() {
            // SAFETY: this has the buffer, and it is not used again.
            unsafe { ManuallyDrop::drop(&mut self.buffer) }
        }
    }
}
