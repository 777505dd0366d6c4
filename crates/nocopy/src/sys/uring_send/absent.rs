//! In place of `uring_send` in a build without the feature `uring`: a ring that cannot be made.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;

use crate::sys::udp_send::KernelDestination;

#[derive(Debug, thiserror::Error)]
#[error("io_uring: not in this program; nocopy was built without its feature 'uring'; turn that on")]
pub(crate) struct UringError;

impl UringError {
    pub(crate) fn why(&self) -> &'static str {
        "nocopy was built without its feature 'uring'"
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RingFull;

/// There is none.
#[derive(Debug)]
pub(crate) enum UringSender {}

impl UringSender {
    /// Always an error.
    ///
    /// # Safety
    /// None is needed.
    pub(crate) unsafe fn new(
        _: BorrowedFd<'_>,
        _: Option<(NonNull<u8>, usize)>,
        _: u32,
    ) -> Result<Self, UringError> {
        Err(UringError)
    }

    /// # Safety
    /// None is needed.
    pub(crate) unsafe fn queue_send<'p>(
        &mut self,
        _: u64,
        _: impl IntoIterator<Item = &'p [u8]>,
        _: KernelDestination<'_>,
        _: Option<u16>,
    ) -> Result<(), RingFull> {
        match *self {}
    }

    pub(crate) fn submit(&mut self) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn cancel_waiting_sends(&mut self) {
        match *self {}
    }

    pub(crate) fn reap(&mut self, _: impl FnMut(u64, io::Result<usize>, bool)) -> usize {
        match *self {}
    }

    pub(crate) fn has_waiting_sends(&self) -> bool {
        match *self {}
    }

    pub(crate) fn faults(&self) -> u64 {
        match *self {}
    }
}

#[cfg(feature = "tcp")]
impl UringSender {
    /// # Safety
    /// None is needed.
    pub(crate) unsafe fn send_at_once<'p>(
        &mut self,
        _: u64,
        _: impl IntoIterator<Item = &'p [u8]>,
    ) -> io::Result<usize> {
        match *self {}
    }

    pub(crate) fn is_broken(&self) -> bool {
        match *self {}
    }

    pub(crate) fn is_full(&self) -> bool {
        match *self {}
    }
}

impl AsFd for UringSender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match *self {}
    }
}
