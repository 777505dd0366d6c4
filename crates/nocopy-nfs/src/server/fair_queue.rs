//! A queue in which networks take turns, so that a client with many connections has no advantage.

use std::collections::VecDeque;
use std::net::IpAddr;

#[derive(Debug)]
pub(super) struct FairQueue<T> {
    /// The network whose turn is next is at the front; each has its entries in order of arrival, and at least
    /// one.
    networks: VecDeque<(IpAddr, VecDeque<T>)>,
    /// Empty ones, kept so that adding the first entry of a network allocates nothing.
    spare: Vec<VecDeque<T>>,
}

/// The most spare queues, and entries for which they keep memory.
const SPARE_MAX: usize = 16;
const SPARE_ENTRIES_MAX: usize = 256;

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { networks: VecDeque::new(), spare: Vec::new() }
    }
}

impl<T> FairQueue<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.networks.is_empty()
    }

    pub(super) fn push(&mut self, network: IpAddr, entry: T) {
        match self.networks.iter_mut().find(|(known, _)| *known == network) {
            Some((_, entries)) => entries.push_back(entry),
            None => {
                let mut entries = self.spare.pop().unwrap_or_default();
                entries.push_back(entry);
                self.networks.push_back((network, entries));
            }
        }
    }

    /// The next entry of a network that has its turn and is allowed one.
    pub(super) fn pop(&mut self, is_allowed: impl Fn(IpAddr) -> bool) -> Option<(IpAddr, T)> {
        let index = self.networks.iter().position(|(network, _)| is_allowed(*network))?;
        let (network, mut entries) = self.networks.remove(index)?;
        let entry = entries.pop_front()?;
        if !entries.is_empty() {
            self.networks.push_back((network, entries));
        } else if self.spare.len() < SPARE_MAX && entries.capacity() <= SPARE_ENTRIES_MAX {
            self.spare.push(entries);
        }
        Some((network, entry))
    }

    pub(super) fn retain(&mut self, is_kept: impl Fn(&T) -> bool) {
        self.networks.iter_mut().for_each(|(_, entries)| entries.retain(&is_kept));
        self.networks.retain(|(_, entries)| !entries.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_served_in_turn() {
        let mut queue = FairQueue::default();
        (0..1000).for_each(|entry| queue.push([10, 0, 0, 0].into(), entry));
        (5000..5003).for_each(|entry| queue.push([10, 0, 1, 0].into(), entry));
        let order: Vec<i32> = std::iter::from_fn(|| queue.pop(|_| true)).map(|(_, entry)| entry).collect();
        assert_eq!(order[..7], [0, 5000, 1, 5001, 2, 5002, 3]);
        assert_eq!(order.len(), 1003);
    }
}
