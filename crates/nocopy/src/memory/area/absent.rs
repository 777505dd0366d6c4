//! In place of `area` in a build without the feature `port`: frames that cannot be made.

use std::convert::Infallible;
use std::ops::Deref;
use std::ptr::NonNull;

/// There is none.
#[derive(Debug)]
pub(crate) struct Frame(Infallible);

/// Of no frame.
#[derive(Debug)]
pub(crate) struct FrameRange(Infallible);

impl Frame {
    pub(crate) fn len(&self) -> usize {
        match self.0 {}
    }

    pub(crate) fn into_range(self) -> (NonNull<u8>, FrameRange) {
        match self.0 {}
    }
}

impl FrameRange {
    pub(crate) fn capacity(&self) -> usize {
        match self.0 {}
    }

    pub(crate) fn into_frame(self, _: usize) -> Frame {
        match self.0 {}
    }
}

impl Deref for Frame {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self.0 {}
    }
}
