//! Counts the bytes of a stream while it is moved.

use std::io;

use super::messages::PeerMessage;
use crate::child::print_message;
use crate::window::{WindowGauge, WindowReading};

#[derive(Debug)]
pub(super) struct StreamMeter<'w> {
    gauge: WindowGauge<'w>,
    is_under_way: bool,
    is_measuring: bool,
}

impl<'w> StreamMeter<'w> {
    pub(super) fn new(gauge: WindowGauge<'w>) -> Self {
        Self { gauge, is_under_way: false, is_measuring: false }
    }

    #[inline]
    pub(super) fn count_bytes(&mut self, bytes: usize) -> io::Result<()> {
        self.gauge.count_packets(bytes as u64);
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

    pub(super) fn may_send(&self) -> bool {
        self.gauge.may_send()
    }

    pub(super) fn finish(self) -> WindowReading {
        self.gauge.finish()
    }
}
