//! In place of `over_port` in a build without the feature `port`: sockets that cannot be made.

use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::engine::wait::Wait;
use crate::facts::evidence::{Evidence, Ledger};
use crate::facts::metadata::Timestamp;
use crate::facts::method_explanation::Explanation;
use crate::memory::area::Frame;
use crate::memory::pool::Buffer;
use crate::port::PortBuilder;
use crate::stats::Stats;
use crate::udp::metadata::Metadata;
use crate::udp::open_error::OpenError;
use crate::udp::run::DatagramInfo;
use crate::udp::settings::SocketSettings;

/// There is none: the socket, its halves, and what they receive.
#[derive(Debug)]
pub(crate) enum Absent {}

pub(crate) type Socket = Absent;
pub(crate) type Sender = Absent;
pub(crate) type Receiver = Absent;
pub(crate) type Batch<'half> = Absent;
pub(crate) type Datagram<'half> = Absent;

/// The socket.
impl Absent {
    pub(super) fn open(port: PortBuilder, _: SocketAddr, _: &SocketSettings) -> Result<Self, OpenError> {
        match port {}
    }

    pub(super) fn open_queues(
        port: PortBuilder,
        _: SocketAddr,
        _: &SocketSettings,
    ) -> Result<Vec<Self>, OpenError> {
        match port {}
    }
}

/// Either half.
impl Absent {
    pub(crate) fn recycle(&mut self, _: Frame) {
        match *self {}
    }

    pub(crate) fn arm(&mut self) -> io::Result<bool> {
        match *self {}
    }

    pub(crate) fn ledger(&self) -> Ledger {
        match *self {}
    }

    pub(crate) fn stats(&self) -> Stats {
        match *self {}
    }

    pub(crate) fn explain(&self) -> Explanation {
        match *self {}
    }
}

impl AsFd for Absent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match *self {}
    }
}

/// The half that sends.
impl Absent {
    pub(crate) fn port(&self) -> &Self {
        match *self {}
    }

    pub(crate) fn frame(&mut self) -> Option<Frame> {
        match *self {}
    }

    pub(crate) fn has_queued(&mut self) -> bool {
        match *self {}
    }

    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        match *self {}
    }

    pub(crate) fn reap(&mut self) -> usize {
        match *self {}
    }

    pub(crate) fn in_flight(&self) -> usize {
        match *self {}
    }

    pub(crate) fn is_idle(&self) -> bool {
        match *self {}
    }

    #[cfg(feature = "tokio")]
    pub(super) fn drop_without_waiting(&mut self) {
        match *self {}
    }

    pub(super) fn counts_elsewhere(&self) -> bool {
        match *self {}
    }

    pub(super) fn report(&mut self, _: Evidence, _: u64) {
        match *self {}
    }

    pub(super) fn with_sent_counters(&self, _: Stats) -> Stats {
        match *self {}
    }
}

/// The half that receives.
impl Absent {
    pub(super) fn receive_within(&mut self, _: Option<Duration>) -> io::Result<Batch<'_>> {
        match *self {}
    }

    pub(super) fn try_receive(&mut self) -> io::Result<Batch<'_>> {
        match *self {}
    }

    pub(super) fn set_wait(&mut self, _: Wait) {
        match *self {}
    }

    pub(super) fn set_peer(&mut self, _: SocketAddr) {
        match *self {}
    }
}

/// A batch.
impl Iterator for Absent {
    type Item = Self;

    fn next(&mut self) -> Option<Self> {
        match *self {}
    }
}

/// A datagram.
impl Absent {
    pub(super) fn source(&self) -> SocketAddr {
        match *self {}
    }

    pub(super) fn info(&self) -> DatagramInfo {
        match *self {}
    }

    pub(super) fn metadata(&self) -> Metadata {
        match *self {}
    }

    pub(super) fn time(&self) -> Option<Timestamp> {
        match *self {}
    }

    pub(super) fn take(self) -> Buffer {
        match self {}
    }
}

impl Deref for Absent {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match *self {}
    }
}
