//! What ports counted, for another thread than theirs.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use super::super::{Inner, Statistics};

/// Reads what the ports of a [`Queues`](super::Queues) counted while those are used elsewhere: made by
/// [`Queues::meter`](super::Queues::meter). Does not keep the ports open.
///
/// In the modes of AF_XDP a signal handler may read it, also one that interrupts a wait for packets.
#[derive(Debug, Clone)]
pub struct Meter {
    pub(super) ports: Arc<[Weak<Inner>]>,
    pub(super) received: Arc<AtomicU64>,
}

/// What was counted, of all ports together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Measured {
    /// Packets given out in batches that are over, one for each buffer where packets may have several; added up each time packets are
    /// asked for.
    pub received: u64,
    /// Packets that a filter in user space turned away, and that the host could not be given.
    pub filter_lost: u64,
    /// What the kernel counted.
    pub statistics: Statistics,
}

impl Meter {
    /// What was counted until now.
    ///
    /// # Errors
    /// The ports are closed ([`io::ErrorKind::NotConnected`]); the kernel's refusal.
    pub fn read(&self) -> io::Result<Measured> {
        let mut measured = Measured { received: self.received.load(Relaxed), ..Measured::default() };
        for port in &*self.ports {
            let port = port.upgrade().ok_or(io::ErrorKind::NotConnected)?;
            measured.statistics += port.statistics()?;
            measured.filter_lost += port.turned_away.lost();
        }
        Ok(measured)
    }
}
