//! Counts of work, by client.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

/// The most clients counted separately; further ones are counted together, because IPv6 addresses are
/// unlimited.
const CLIENTS_MAX: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CopyCause {
    /// Short reads cost less by copying.
    #[serde(rename = "small-reads")]
    Small,
    Stable,
    /// No pipe is free.
    NoPipe,
    /// The file system has no splice(2).
    NoSplice,
}

impl CopyCause {
    pub const ALL: [Self; 4] = [Self::Small, Self::Stable, Self::NoPipe, Self::NoSplice];

    pub fn text(self) -> &'static str {
        match self {
            Self::Small => "small reads",
            Self::Stable => "requested",
            Self::NoPipe => "all pipes in use",
            Self::NoSplice => "no splice from this file system",
        }
    }
}

/// Counts of one client, updated by several threads.
#[derive(Debug, Default)]
pub struct ClientCounters {
    connections: AtomicU64,
    calls: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    written: AtomicU64,
    written_by_reference: AtomicU64,
    moved: AtomicU64,
    spliced: AtomicU64,
    copied: [AtomicU64; CopyCause::ALL.len()],
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientCounts {
    pub connections: u64,
    pub calls: u64,
    /// Calls that were answered by bytes of a file.
    pub reads: u64,
    /// Calls that wrote bytes into a file, and these bytes. They are copied into the page cache, and before
    /// that out of the socket, unless they were moved from the socket by reference.
    pub writes: u64,
    pub written: u64,
    pub written_by_reference: u64,
    /// Bytes copied from one buffer of the server to another for these calls, including headers.
    pub moved: u64,
    /// Bytes sent by reference to their pages: not copied by the server; whether layers below copied them is
    /// unknown.
    pub spliced: u64,
    /// By cause, in the order of [`CopyCause::ALL`].
    pub copied: [u64; CopyCause::ALL.len()],
}

impl ClientCounts {
    pub fn bytes(&self) -> u64 {
        self.spliced + self.copied.iter().sum::<u64>()
    }

    pub(crate) fn since(&self, before: &Self) -> Self {
        // No underflow: counts only grow.
        self.combine_counts(before, |now, before| now - before)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        *self = self.combine_counts(other, |mine, theirs| mine + theirs);
    }

    fn combine_counts(&self, other: &Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            connections: of(self.connections, other.connections),
            calls: of(self.calls, other.calls),
            reads: of(self.reads, other.reads),
            writes: of(self.writes, other.writes),
            written: of(self.written, other.written),
            written_by_reference: of(self.written_by_reference, other.written_by_reference),
            moved: of(self.moved, other.moved),
            spliced: of(self.spliced, other.spliced),
            copied: std::array::from_fn(|cause| of(self.copied[cause], other.copied[cause])),
        }
    }
}

impl ClientCounters {
    pub(super) fn count_call(&self) {
        add_relaxed(&self.calls, 1);
    }

    pub(super) fn count_read(&self) {
        add_relaxed(&self.reads, 1);
    }

    /// Notes a call that wrote that many bytes; how many were copied before, and how many were moved by
    /// reference.
    pub(super) fn count_write(&self, bytes: usize, moved: usize, by_reference: usize) {
        add_relaxed(&self.writes, u64::from(bytes > 0));
        add_relaxed(&self.written, bytes as u64);
        add_relaxed(&self.written_by_reference, by_reference as u64);
        add_relaxed(&self.moved, moved as u64);
    }

    pub(super) fn count_spliced(&self, bytes: u64) {
        add_relaxed(&self.spliced, bytes);
    }

    pub(super) fn count_copied(&self, cause: CopyCause, bytes: u64) {
        add_relaxed(&self.copied[cause as usize], bytes);
    }

    pub fn snapshot(&self) -> ClientCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ClientCounts {
            connections: of(&self.connections),
            calls: of(&self.calls),
            reads: of(&self.reads),
            writes: of(&self.writes),
            written: of(&self.written),
            written_by_reference: of(&self.written_by_reference),
            moved: of(&self.moved),
            spliced: of(&self.spliced),
            copied: std::array::from_fn(|cause| of(&self.copied[cause])),
        }
    }
}

#[derive(Debug, Default)]
pub struct ServerStatistics {
    clients: Mutex<BTreeMap<IpAddr, Arc<ClientCounters>>>,
    /// The sum of all clients for which `clients` had no room.
    others: Arc<ClientCounters>,
    refused: AtomicU64,
    evicted: AtomicU64,
    malformed: AtomicU64,
    timed_out: AtomicU64,
    index_write_errors: AtomicU64,
}

impl ServerStatistics {
    pub(super) fn count_connection(&self, address: IpAddr) -> Arc<ClientCounters> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = clients.len() >= CLIENTS_MAX && !clients.contains_key(&address);
        let counts = if is_full { &self.others } else { clients.entry(address).or_default() };
        add_relaxed(&counts.connections, 1);
        Arc::clone(counts)
    }

    pub(super) fn count_refused(&self) {
        add_relaxed(&self.refused, 1);
    }

    pub(super) fn count_evicted(&self) {
        add_relaxed(&self.evicted, 1);
    }

    pub(super) fn count_malformed(&self) {
        add_relaxed(&self.malformed, 1);
    }

    pub(super) fn count_timed_out(&self) {
        add_relaxed(&self.timed_out, 1);
    }

    pub(super) fn count_index_write_errors(&self, count: u64) {
        add_relaxed(&self.index_write_errors, count);
    }

    /// Each client; `None` is the sum of clients that are not counted separately.
    pub fn clients(&self) -> Vec<(Option<IpAddr>, ClientCounts)> {
        let clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let known = clients.iter().map(|(address, counts)| (Some(*address), counts.snapshot()));
        let others =
            Some((None, self.others.snapshot())).filter(|(_, counts)| *counts != ClientCounts::default());
        known.chain(others).collect()
    }

    pub fn total(&self) -> ClientCounts {
        let mut total = ClientCounts::default();
        self.clients().iter().for_each(|(_, counts)| total.add(counts));
        total
    }

    /// Connections of networks that are not allowed.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Connections ended to make room for others.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Connections ended because of a message that is not a call.
    pub fn malformed(&self) -> u64 {
        self.malformed.load(Ordering::Relaxed)
    }

    /// Connections ended because the rest of a call did not arrive in time.
    pub fn timed_out(&self) -> u64 {
        self.timed_out.load(Ordering::Relaxed)
    }

    /// How often the index of handles could not be written.
    pub fn index_write_errors(&self) -> u64 {
        self.index_write_errors.load(Ordering::Relaxed)
    }
}

/// Relaxed: no other memory depends on a count.
fn add_relaxed(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    #[test]
    fn statistics_of_many_clients_take_bounded_memory() {
        let statistics = ServerStatistics::default();
        for number in 0..CLIENTS_MAX as u128 + 100 {
            let client = statistics.count_connection(Ipv6Addr::from_bits(number).into());
            client.count_call();
            client.count_copied(CopyCause::Small, 2);
            client.count_spliced(3);
        }
        let clients = statistics.clients();
        assert_eq!(clients.len(), CLIENTS_MAX + 1);
        assert_eq!(clients.last().map(|(address, counts)| (*address, counts.calls)), Some((None, 100)));
        let total = statistics.total();
        assert_eq!((total.calls, total.bytes()), (CLIENTS_MAX as u64 + 100, 5 * (CLIENTS_MAX as u64 + 100)));
    }
}
