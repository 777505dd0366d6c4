//! Reads the counters of ports from another thread.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use super::super::{SharedPort, Statistics};

/// Reads the counters of the ports of a [`Queues`](super::Queues) while the ports are used elsewhere: made by
/// [`Queues::meter`](super::NonblockingQueues::meter). Does not keep the ports open.
///
/// In the AF_XDP modes a signal handler may read it, even one that interrupts a wait for packets.
#[derive(Debug, Clone)]
pub struct Meter {
    pub(super) ports: Arc<[Weak<SharedPort>]>,
    pub(super) received: Arc<AtomicU64>,
}

/// The counts of all ports together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MeterCounts {
    /// Packets handed out in finished batches (or their buffers, if packets may have several); updated by
    /// each call that receives.
    pub received: u64,
    /// Packets that a filter in user space rejected, and that could not be returned to the host.
    pub filter_lost: u64,
    /// The kernel's counts.
    pub statistics: Statistics,
}

impl Meter {
    /// The counts until now.
    ///
    /// # Errors
    /// The ports are closed ([`io::ErrorKind::NotConnected`]), or the kernel refused to return its counters.
    pub fn read_counts(&self) -> io::Result<MeterCounts> {
        let mut measured = MeterCounts { received: self.received.load(Relaxed), ..MeterCounts::default() };
        for port in &*self.ports {
            let port = port.upgrade().ok_or(io::ErrorKind::NotConnected)?;
            measured.statistics += port.statistics()?;
            measured.filter_lost += port.filter_counters.lost_count();
        }
        Ok(measured)
    }
}
