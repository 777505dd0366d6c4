//! Counts the bytes of a stream while it is moved.

use std::io;

use super::messages::PeerMessage;
use crate::child::print_message;
use crate::window::{Gauge, Reading};

#[derive(Debug)]
pub(super) struct Meter<'w> {
    gauge: Gauge<'w>,
    is_under_way: bool,
    is_measuring: bool,
}

impl<'w> Meter<'w> {
    pub(super) fn new(gauge: Gauge<'w>) -> Self {
        Self { gauge, is_under_way: false, is_measuring: false }
    }

    #[inline]
    pub(super) fn count(&mut self, bytes: usize) -> io::Result<()> {
        self.gauge.count(bytes as u64);
        if !self.is_under_way {
            self.is_under_way = true;
            print_message(&PeerMessage::UnderWay)?;
        }
        if !self.is_measuring && self.gauge.is_measuring() {
            self.is_measuring = true;
            print_message(&PeerMessage::Measuring)?;
        }
        Ok(())
    }

    pub(super) fn sending(&self) -> bool {
        self.gauge.sending()
    }

    pub(super) fn finish(self) -> Reading {
        self.gauge.finish()
    }
}
