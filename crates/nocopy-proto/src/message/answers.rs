//! Answers to addresses that are not peers, or not yet, or no longer, queued until they are sent
//! (docs/protocol.md §13).

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::net::IpAddr;

use super::Path;
use super::shares::{are_within_shares, network_of};

/// The most answers of each sort that wait.
const PLACES: usize = 512;

/// The sorts of answers. Each has its own places, so that answers that are cheap to provoke do not displace
/// others.
#[derive(Debug, Clone, Copy)]
pub(super) enum Answered {
    /// A Connect with a valid cookie, or a peer whose connection ends: the address is proven to receive.
    Proven,
    /// A Hello, from an address that may be forged.
    Hello,
    /// A packet for an id that does not exist.
    Stray,
}

#[derive(Debug, Default)]
pub(super) struct Answers {
    sorts: [Waiting; 3],
    /// Of all sorts: nearly always none, which is looked at with each packet.
    count: usize,
}

#[derive(Debug, Default)]
struct Waiting {
    answers: VecDeque<(Path, Vec<u8>)>,
    /// The number of waiting answers for each address, and for each network.
    of_addresses: Counts,
    of_networks: Counts,
}

#[derive(Debug, Default)]
struct Counts(HashMap<IpAddr, usize>);

impl Counts {
    fn get(&self, ip: IpAddr) -> usize {
        self.0.get(&ip).copied().unwrap_or(0)
    }

    fn add(&mut self, ip: IpAddr) {
        *self.0.entry(ip).or_default() += 1;
    }

    fn remove(&mut self, ip: IpAddr) {
        if let Entry::Occupied(mut count) = self.0.entry(ip) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

impl Answers {
    /// Queues an answer, if that is within the shares of its address and network, as with memory (§8.1);
    /// otherwise returns `false`.
    pub(super) fn push(&mut self, sort: Answered, to: Path, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        let Self { sorts, count } = self;
        let Waiting { answers, of_addresses, of_networks } = &mut sorts[sort as usize];
        let (ip, free) = (to.remote.ip(), PLACES - answers.len());
        if !are_within_shares(of_addresses.get(ip), of_networks.get(network_of(ip)), free) {
            return false;
        }
        of_addresses.add(ip);
        of_networks.add(network_of(ip));
        let mut datagram = Vec::new();
        write(&mut datagram);
        answers.push_back((to, datagram));
        *count += 1;
        true
    }

    pub(super) fn pop(&mut self) -> Option<(Path, Vec<u8>)> {
        let Waiting { answers, of_addresses, of_networks } =
            self.sorts.iter_mut().find(|sort| !sort.answers.is_empty())?;
        let answer = answers.pop_front()?;
        self.count -= 1;
        let ip = answer.0.remote.ip();
        of_addresses.remove(ip);
        of_networks.remove(network_of(ip));
        Some(answer)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The allocated entries of all tables, to check a bound on memory.
    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn capacity(&self) -> usize {
        let counts = |sort: &Waiting| sort.of_addresses.0.capacity() + sort.of_networks.0.capacity();
        self.sorts.iter().map(|sort| sort.answers.capacity() + counts(sort)).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn push_to(answers: &mut Answers, sort: Answered, ip: IpAddr) -> bool {
        answers.push(sort, SocketAddr::from((ip, 9)).into(), |datagram| datagram.push(sort as u8))
    }

    fn push(answers: &mut Answers, sort: Answered, host: u8) -> bool {
        push_to(answers, sort, [10, 0, 0, host].into())
    }

    #[test]
    fn an_address_leaves_places_to_others() {
        let mut answers = Answers::default();
        let mut taken = |host| (0..PLACES).filter(|_| push(&mut answers, Answered::Hello, host)).count();
        assert_eq!([1, 2, 3].map(&mut taken), [256, 128, 64]);
        while answers.pop().is_some() {}
        assert!(answers.sorts.iter().all(|sort| sort.of_addresses.0.is_empty()));
    }

    #[test]
    fn a_network_leaves_places_to_others() {
        let mut answers = Answers::default();
        let host = |network: u16, host: u16| IpAddr::from([0x2001, 0xdb8, 0, network, 0, 0, 0, host]);
        let taken =
            (0..9000).filter(|number| push_to(&mut answers, Answered::Stray, host(1, *number))).count();
        assert_eq!(taken, PLACES * 3 / 4);
        assert!(push_to(&mut answers, Answered::Stray, host(2, 1)));
        while answers.pop().is_some() {}
        assert!(answers.sorts.iter().all(|sort| sort.of_networks.0.is_empty()));
    }

    #[test]
    fn proven_addresses_are_answered_first() {
        let mut answers = Answers::default();
        for sort in [Answered::Stray, Answered::Hello, Answered::Proven] {
            while push(&mut answers, sort, 1) {}
        }
        let mut sent: Vec<u8> =
            std::iter::from_fn(|| answers.pop()).map(|(_, datagram)| datagram[0]).collect();
        assert!(sent.is_sorted() && answers.is_empty());
        sent.dedup();
        assert_eq!(sent, [0, 1, 2]);
    }
}
