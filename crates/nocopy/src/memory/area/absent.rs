//! In place of `area` in a build without the feature `port`: frames that cannot be made.

use std::convert::Infallible;
use std::ops::Deref;
use std::ptr::NonNull;

/// There is none.
#[derive(Debug)]
pub(crate) enum Frame {}

impl Frame {
    pub(crate) fn len(&self) -> usize {
        match *self {}
    }

    pub(crate) fn tailroom_bytes(&self) -> usize {
        match *self {}
    }

    pub(crate) fn first_byte(&self) -> NonNull<u8> {
        match *self {}
    }

    pub(crate) fn append(&mut self, _: usize) -> Result<(), Infallible> {
        match *self {}
    }

    pub(crate) fn truncate(&mut self, _: usize) {
        match *self {}
    }
}

impl Deref for Frame {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match *self {}
    }
}
