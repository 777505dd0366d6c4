//! What each network uses of the server: connections, and memory of calls and replies. A network is an IPv4
//! address, or the first 64 bits of IPv6 addresses.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nocopy_proto::message::network_of;

use super::LOOPS_MAX;

/// What each connection may hold of calls without a share of the common memory: any short call, and a buffer
/// of further ones.
const OWN_BYTES: usize = 32 << 10;

/// The most memory of calls of all connections together, besides their own.
const CALLS_BYTES_MAX: usize = 64 << 20;

/// The networks that have connections.
#[derive(Debug, Default)]
pub(super) struct ConnectedNetworks {
    usage: Mutex<HashMap<IpAddr, NetworkUsage>>,
    call_bytes: AtomicUsize,
}

#[derive(Debug, Default)]
struct NetworkUsage {
    /// Connections, by the event loop that serves them.
    connections: [usize; LOOPS_MAX],
    call_bytes: Arc<AtomicUsize>,
    reply_bytes: Arc<AtomicUsize>,
}

/// A connection's part of the uses of its network, until it is dropped.
#[derive(Debug)]
pub(super) struct NetworkShare {
    networks: Arc<ConnectedNetworks>,
    pub(super) network: IpAddr,
    event_loop: usize,
    network_bytes: Arc<AtomicUsize>,
    /// Memory of the replies of the network that were not sent.
    pub(super) reply_bytes: Arc<AtomicUsize>,
    /// Bytes of the common memory that this connection has.
    shared_bytes: usize,
}

impl ConnectedNetworks {
    pub(super) fn join_network(self: &Arc<Self>, address: IpAddr, event_loop: usize) -> NetworkShare {
        let network = network_of(address);
        let mut known = self.lock();
        let uses = known.entry(network).or_default();
        uses.connections[event_loop] += 1;
        let of_network = Arc::clone(&uses.call_bytes);
        let reply_bytes = Arc::clone(&uses.reply_bytes);
        NetworkShare {
            networks: Arc::clone(self),
            network,
            event_loop,
            network_bytes: of_network,
            reply_bytes,
            shared_bytes: 0,
        }
    }

    /// The networks with the most connections, and the event loop that serves most of them.
    pub(super) fn largest_networks(&self) -> (HashSet<IpAddr>, usize) {
        let known = self.lock();
        let total = |uses: &NetworkUsage| uses.connections.iter().sum::<usize>();
        let most = known.values().map(total).max().unwrap_or(0);
        let largest = known.iter().filter(|(_, uses)| total(uses) == most);
        let (mut networks, mut by_loop) = (HashSet::new(), [0; LOOPS_MAX]);
        for (network, uses) in largest {
            networks.insert(*network);
            by_loop.iter_mut().zip(uses.connections).for_each(|(sum, count)| *sum += count);
        }
        let event_loop = (0..LOOPS_MAX).max_by_key(|number| by_loop[*number]).unwrap_or(0);
        (networks, event_loop)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, NetworkUsage>> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NetworkShare {
    /// Reserves memory so that the connection may hold that many bytes of calls, or frees what is more than
    /// that. Refused if the network would have more of the common memory than is left for others.
    pub(super) fn reserve(&mut self, bytes: usize) -> bool {
        let wanted = bytes.saturating_sub(OWN_BYTES);
        let all = &self.networks.call_bytes;
        // Relaxed: these are only counts.
        if wanted <= self.shared_bytes {
            let fewer = self.shared_bytes - wanted;
            if fewer > 0 {
                all.fetch_sub(fewer, Ordering::Relaxed);
                self.network_bytes.fetch_sub(fewer, Ordering::Relaxed);
                self.shared_bytes = wanted;
            }
            return true;
        }
        let more = wanted - self.shared_bytes;
        let of_all = all.fetch_add(more, Ordering::Relaxed) + more;
        let of_network = self.network_bytes.fetch_add(more, Ordering::Relaxed) + more;
        let is_granted = of_network <= CALLS_BYTES_MAX.saturating_sub(of_all);
        self.shared_bytes += more;
        if !is_granted {
            // Frees `more` again, and goes no deeper: `bytes - more` is `OWN_BYTES` and what the connection
            // had.
            self.reserve(bytes - more);
        }
        is_granted
    }
}

impl Drop for NetworkShare {
    fn drop(&mut self) {
        self.reserve(0);
        let mut known = self.networks.lock();
        let Some(uses) = known.get_mut(&self.network) else { return };
        uses.connections[self.event_loop] -= 1;
        if uses.connections == [0; LOOPS_MAX] {
            known.remove(&self.network);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL_BYTES: usize = 1 << 20;

    fn reserve_until_refused(networks: &Arc<ConnectedNetworks>, last: u8) -> Vec<NetworkShare> {
        let mut shares = Vec::new();
        loop {
            let mut share = networks.join_network([10, 0, 0, last].into(), 0);
            let is_granted = share.reserve(CALL_BYTES);
            shares.push(share);
            if !is_granted {
                return shares;
            }
        }
    }

    #[test]
    fn networks_are_compared_over_all_event_loops() {
        let networks = Arc::new(ConnectedNetworks::default());
        let join = |last, event_loop| networks.join_network([10, 0, 0, last].into(), event_loop);
        let mut shares = vec![join(1, 0), join(1, 0), join(2, 1), join(2, 2), join(2, 2), join(3, 0)];
        assert_eq!(networks.largest_networks(), ([[10, 0, 0, 2].into()].into(), 2));
        shares.push(join(1, 0));
        let both = [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()];
        assert_eq!(networks.largest_networks(), (both.into(), 0));
        drop(shares);
        assert_eq!(networks.largest_networks().0, HashSet::new());
    }

    #[test]
    fn call_memory_of_a_network_is_limited() {
        let networks = Arc::new(ConnectedNetworks::default());
        let granted = |last| {
            let shares = reserve_until_refused(&networks, last);
            let bytes = shares.iter().map(|share| share.shared_bytes).sum::<usize>();
            (shares, bytes)
        };
        let (first, bytes) = granted(1);
        assert!((CALLS_BYTES_MAX / 2 - CALL_BYTES..=CALLS_BYTES_MAX / 2).contains(&bytes), "{bytes}");
        let (others, bytes) = granted(2);
        assert!(bytes > CALLS_BYTES_MAX / 5, "{bytes}");
        let mut without_share = networks.join_network([10, 0, 0, 1].into(), 1);
        assert!(without_share.reserve(OWN_BYTES) && !without_share.reserve(CALL_BYTES));
        assert!(without_share.reserve(OWN_BYTES), "what it has already is not refused");
        drop(first);
        assert!(without_share.reserve(CALL_BYTES));
        drop((others, without_share));
        assert_eq!(networks.call_bytes.load(Ordering::Relaxed), 0);
        assert!(networks.lock().is_empty());
    }
}
