//! Replies to calls that must not be executed twice: a client without a reply repeats its call, possibly on another connection (RFC 1813, 4.5).

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::Refused;

/// The most replies kept per client, and the most clients, both by recent use.
const CALLS_MAX: usize = 256;
const CLIENTS_MAX: usize = 128;

/// A reply, once it exists. A repeated call waits while the first is being executed.
pub(super) type Place = Arc<OnceLock<Result<Vec<u8>, Refused>>>;

#[derive(Debug, Default)]
pub(super) struct Replies(Mutex<VecDeque<Client>>);

/// Calls, the latest last.
#[derive(Debug)]
struct Client {
    address: IpAddr,
    calls: VecDeque<(u32, u64, Place)>,
}

impl Replies {
    /// The place of the reply to a call with this number and these arguments.
    pub(super) fn place(&self, address: IpAddr, xid: u32, asked: impl Hash) -> Place {
        let mut hasher = DefaultHasher::new();
        asked.hash(&mut hasher);
        let asked = hasher.finish();
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut client = match clients.iter().position(|client| client.address == address) {
            Some(at) => clients.remove(at).expect("it is there"),
            None => Client { address, calls: VecDeque::new() },
        };
        let known = client.calls.iter().rev().find(|call| (call.0, call.1) == (xid, asked));
        let place = known.map(|call| Arc::clone(&call.2)).unwrap_or_else(|| {
            if client.calls.len() == CALLS_MAX {
                client.calls.pop_front();
            }
            let place = Place::default();
            client.calls.push_back((xid, asked, Arc::clone(&place)));
            place
        });
        if clients.len() == CLIENTS_MAX {
            clients.pop_front();
        }
        clients.push_back(client);
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    #[test]
    fn a_repeated_call_keeps_its_place_until_newer_calls_need_it() {
        let replies = Replies::default();
        let first = replies.place(client(1), 7, "mkdir");
        assert!(Arc::ptr_eq(&first, &replies.place(client(1), 7, "mkdir")));
        for other in [
            replies.place(client(2), 7, "mkdir"),
            replies.place(client(1), 8, "mkdir"),
            replies.place(client(1), 7, "rmdir"),
        ] {
            assert!(!Arc::ptr_eq(&first, &other));
        }
        for xid in 100..100 + CALLS_MAX as u32 {
            replies.place(client(3), xid, "of another client");
        }
        assert!(Arc::ptr_eq(&first, &replies.place(client(1), 7, "mkdir")));
        for xid in 100..100 + CALLS_MAX as u32 {
            replies.place(client(1), xid, "newer");
        }
        assert!(!Arc::ptr_eq(&first, &replies.place(client(1), 7, "mkdir")));
    }

    #[test]
    fn clients_that_asked_longest_ago_are_forgotten() {
        let replies = Replies::default();
        let first = replies.place(client(0), 1, ());
        (1..CLIENTS_MAX as u32).for_each(|number| drop(replies.place(client(number), 1, ())));
        assert!(Arc::ptr_eq(&first, &replies.place(client(0), 1, ())));
        (200..200 + CLIENTS_MAX as u32).for_each(|number| drop(replies.place(client(number), 1, ())));
        assert!(!Arc::ptr_eq(&first, &replies.place(client(0), 1, ())));
        assert_eq!(replies.0.lock().unwrap().len(), CLIENTS_MAX);
    }
}
