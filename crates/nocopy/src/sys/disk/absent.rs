//! In place of `write_ring` in a build without the feature `uring`: a ring that cannot be made.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::Sectors;

/// There is none.
#[derive(Debug)]
pub(crate) enum WriteRing {}

impl WriteRing {
    /// Always an error.
    pub(crate) fn new() -> io::Result<Self> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "nocopy was built without its feature 'uring'"))
    }

    pub(crate) fn start_write(
        &mut self,
        _: BorrowedFd<'_>,
        _: Vec<Sectors>,
        _: usize,
        _: u64,
    ) -> Result<(), (Vec<Sectors>, io::Error)> {
        match *self {}
    }

    pub(crate) fn take_finished_write(&mut self) -> Option<(Vec<Sectors>, io::Result<usize>)> {
        match *self {}
    }

    pub(crate) fn wait(&self, _: Duration) -> io::Result<()> {
        match *self {}
    }
}

impl AsFd for WriteRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match *self {}
    }
}
