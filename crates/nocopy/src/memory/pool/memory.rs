//! The memory of a pool: pages of its own, or a value of the program.
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;

use super::buffer::BufferMut;
use super::owner::Owner;
use crate::sys::fork::Generation;
use crate::sys::memory::Mapping;

#[derive(Debug)]
pub(super) enum PoolMemory {
    /// Anonymous pages, which forked children do not have.
    Pages(Mapping),
    Program(ProgramMemory),
}

/// Bytes that belong to a value of the program.
#[derive(Debug)]
pub(super) struct ProgramMemory {
    first_byte: NonNull<u8>,
    bytes: usize,
    owner: Owner,
    /// The process in which the pool has buffers: a forked child has a copy of them, with which it could send
    /// and receive, but not complete what its parent has begun.
    generation: Generation,
}

// SAFETY: the owner is `Send`, and only dropped; its bytes are reached by the pool's buffers alone, each of
// which has one owner.
unsafe impl Send for ProgramMemory {}
// SAFETY: as above.
unsafe impl Sync for ProgramMemory {}

impl ProgramMemory {
    pub(super) fn new(owner: impl AsMut<[u8]> + Send + 'static) -> Self {
        let (owner, mut value) = Owner::new(owner);
        let (first_byte, bytes) = (NonNull::dangling(), 0);
        // Has the value from here on, in case `as_mut` panics.
        let mut memory = Self { first_byte, bytes, owner, generation: Generation::current() };
        // Others may use the memory of `BufferMut::from_raw`: no reference to it may live as long as a pool.
        if let Some(buffer) = memory.owner.downcast_ref::<BufferMut>() {
            (memory.first_byte, memory.bytes) = (buffer.first_byte(), buffer.len());
            return memory;
        }
        // SAFETY: the value exists as long as this, which gives no other access to it.
        let slice: &mut [u8] = unsafe { value.as_mut() }.as_mut();
        (memory.first_byte, memory.bytes) = (NonNull::from(&mut *slice).cast(), slice.len());
        memory
    }
}

impl PoolMemory {
    pub(super) fn first_byte(&self) -> NonNull<u8> {
        match self {
            Self::Pages(mapping) => mapping.base(),
            Self::Program(memory) => memory.first_byte,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Pages(mapping) => mapping.bytes(),
            Self::Program(memory) => memory.bytes,
        }
    }

    /// Whether this is a forked child, where the pool has no buffers.
    #[inline]
    pub(super) fn is_absent_in_child(&self) -> bool {
        match self {
            Self::Pages(mapping) => mapping.is_absent_in_child(),
            Self::Program(memory) => memory.generation.is_outdated(),
        }
    }

    /// See [`Mapping::replace_pages`]. Errors: also `Unsupported`, for memory of the program.
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn replace_pages(&self, first: NonNull<u8>, bytes: usize) -> io::Result<()> {
        match self {
            // SAFETY: by contract.
            Self::Pages(mapping) => unsafe { mapping.replace_pages(first, bytes) },
            Self::Program(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}
