//! Answers to addresses that are not peers, or not yet, or no longer, queued until they are sent (docs/protocol.md §13).

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use super::Path;

/// The most answers of each sort that wait.
const PLACES: usize = 512;

/// The sorts of answers. Each has its own places, so that answers that are cheap to provoke do not displace others.
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
    /// The number of waiting answers for each address.
    by_ip: HashMap<IpAddr, usize>,
}

impl Answers {
    /// Queues an answer. As with memory (§8.1), an address gets a place while it has fewer than are free; otherwise returns `false`.
    pub(super) fn push(&mut self, sort: Answered, to: Path, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        let Self { sorts, count } = self;
        let Waiting { answers, by_ip } = &mut sorts[sort as usize];
        let free = PLACES - answers.len();
        let has = by_ip.get(&to.remote.ip()).copied().unwrap_or(0);
        if has >= free {
            return false;
        }
        by_ip.insert(to.remote.ip(), has + 1);
        let mut datagram = Vec::new();
        write(&mut datagram);
        answers.push_back((to, datagram));
        *count += 1;
        true
    }

    pub(super) fn pop(&mut self) -> Option<(Path, Vec<u8>)> {
        let Waiting { answers, by_ip } = self.sorts.iter_mut().find(|sort| !sort.answers.is_empty())?;
        let answer = answers.pop_front()?;
        self.count -= 1;
        if let Some(has) = by_ip.get_mut(&answer.0.remote.ip()) {
            *has -= 1;
            if *has == 0 {
                by_ip.remove(&answer.0.remote.ip());
            }
        }
        Some(answer)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The allocated entries of all tables, to check a bound on memory.
    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn capacity(&self) -> usize {
        self.sorts.iter().map(|sort| sort.answers.capacity() + sort.by_ip.capacity()).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn push(answers: &mut Answers, sort: Answered, host: u8) -> bool {
        answers
            .push(sort, SocketAddr::from(([10, 0, 0, host], 9)).into(), |datagram| datagram.push(sort as u8))
    }

    #[test]
    fn an_address_leaves_places_to_others() {
        let mut answers = Answers::default();
        let mut taken = |host| (0..PLACES).filter(|_| push(&mut answers, Answered::Hello, host)).count();
        assert_eq!([1, 2, 3].map(&mut taken), [256, 128, 64]);
        while answers.pop().is_some() {}
        assert!(answers.sorts.iter().all(|sort| sort.by_ip.is_empty()));
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
