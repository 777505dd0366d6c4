//! Replies to calls that must not be executed twice: a client without a reply repeats its call, possibly on
//! another connection (RFC 1813, 4.5).
//!
//! ```text
//!   a new call ─▶ running ─▶ done: the same reply for each repetition
//!                   │
//!                   └─ repeated meanwhile: the newest connection that asked gets the reply, too; none waits in a thread
//! ```

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nocopy_proto::message::network_of;

use super::Refused;

/// The most replies kept per client, and the most clients, both by recent use. Of the clients, one of the
/// network with the most is forgotten.
const CALLS_MAX: usize = 256;
const CLIENTS_MAX: usize = 512;

/// The connection that made a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Asker {
    pub event_loop: usize,
    /// Newer connections have greater numbers.
    pub connection: u64,
}

pub(super) type Made = Result<Vec<u8>, Refused>;

#[derive(Debug, Default)]
pub(super) struct Replies(Mutex<VecDeque<Client>>);

/// Who has made calls at an address: programs without privileges have replies of their own, so that they push
/// out none of the host's mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asking {
    pub(super) address: IpAddr,
    pub(super) is_untrusted: bool,
}

impl Asking {
    #[cfg(test)]
    pub(super) fn trusted(address: IpAddr) -> Self {
        Self { address, is_untrusted: false }
    }
}

/// Calls, the latest last.
#[derive(Debug)]
struct Client {
    who: Asking,
    calls: VecDeque<Call>,
}

#[derive(Debug)]
struct Call {
    key: Key,
    state: State,
}

/// The number of a call, and a hash of its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key(u32, u64);

#[derive(Debug)]
enum State {
    /// Being executed; the newest connection that has repeated it.
    Running(Option<Asker>),
    Done(Made),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Begun {
    /// It must be executed, and then be [finished](Replies::finish).
    New(Key),
    /// It is being executed. Of the askers that have repeated it, the newest will get the reply; this one
    /// will get none.
    Running(Option<Asker>),
    Done(Made),
}

impl Replies {
    pub(super) fn begin(&self, who: Asking, xid: u32, asked: impl Hash, asker: Asker) -> Begun {
        let mut hasher = DefaultHasher::new();
        asked.hash(&mut hasher);
        let key = Key(xid, hasher.finish());
        let mut clients = self.lock();
        let mut client = match clients.iter().position(|client| client.who == who) {
            Some(at) => clients.remove(at).expect("it is there"),
            None => Client { who, calls: VecDeque::new() },
        };
        let begun = client.begin(key, asker);
        if clients.len() >= CLIENTS_MAX {
            forget_one(&mut clients, who.address);
        }
        clients.push_back(client);
        begun
    }

    /// Keeps the reply of a call that was executed. Returns the asker that gets it, too, if the call was
    /// repeated meanwhile.
    pub(super) fn finish(&self, who: Asking, key: Key, made: &Made) -> Option<Asker> {
        let mut clients = self.lock();
        let client = clients.iter_mut().rev().find(|client| client.who == who)?;
        let call = client.calls.iter_mut().rev().find(|call| call.key == key)?;
        match std::mem::replace(&mut call.state, State::Done(made.clone())) {
            State::Running(newest) => newest,
            State::Done(_) => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Client>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes place for a new client: so a network with any number of addresses takes only the places of its own.
fn forget_one(clients: &mut VecDeque<Client>, new: IpAddr) {
    let mut counts = HashMap::from([(network_of(new), 1)]);
    for client in &*clients {
        *counts.entry(network_of(client.who.address)).or_default() += 1;
    }
    let count = |client: &Client| counts[&network_of(client.who.address)];
    let most = clients.iter().map(count).max();
    let oldest = clients.iter().position(|client| Some(count(client)) == most && !client.is_running());
    oldest.and_then(|oldest| clients.remove(oldest));
}

impl Client {
    fn is_running(&self) -> bool {
        self.calls.iter().any(|call| matches!(call.state, State::Running(_)))
    }

    fn begin(&mut self, key: Key, asker: Asker) -> Begun {
        match self.calls.iter_mut().rev().find(|call| call.key == key).map(|call| &mut call.state) {
            Some(State::Done(made)) => return Begun::Done(made.clone()),
            // An older connection may be served later, when its client has left it.
            Some(State::Running(Some(newest))) if newest.connection > asker.connection => {
                return Begun::Running(Some(asker));
            }
            Some(State::Running(newest)) => return Begun::Running(newest.replace(asker)),
            None => {}
        }
        if self.calls.len() >= CALLS_MAX {
            // Those being executed are few, and could otherwise be executed twice.
            let oldest = self.calls.iter().position(|call| matches!(call.state, State::Done(_)));
            oldest.and_then(|oldest| self.calls.remove(oldest));
        }
        self.calls.push_back(Call { key, state: State::Running(None) });
        Begun::New(key)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    fn client(number: u32) -> Asking {
        Asking::trusted(number.to_be_bytes().into())
    }

    fn asker(connection: u64) -> Asker {
        Asker { event_loop: 0, connection }
    }

    /// Begins a call, and finishes it if it is new.
    fn is_new(replies: &Replies, who: Asking, xid: u32, asked: &str) -> bool {
        match replies.begin(who, xid, asked, asker(1)) {
            Begun::New(key) => {
                assert_eq!(replies.finish(who, key, &Ok(asked.into())), None);
                true
            }
            begun => {
                assert_eq!(begun, Begun::Done(Ok(asked.into())));
                false
            }
        }
    }

    #[test]
    fn a_repeated_call_has_its_reply_until_newer_calls_need_the_memory() {
        let replies = Replies::default();
        assert!(is_new(&replies, client(1), 7, "mkdir") && !is_new(&replies, client(1), 7, "mkdir"));
        for (address, xid, asked) in
            [(client(2), 7, "mkdir"), (client(1), 8, "mkdir"), (client(1), 7, "rmdir")]
        {
            assert!(is_new(&replies, address, xid, asked));
        }
        (100..100 + CALLS_MAX as u32).for_each(|xid| assert!(is_new(&replies, client(3), xid, "")));
        assert!(!is_new(&replies, client(1), 7, "mkdir"));
        (100..100 + CALLS_MAX as u32).for_each(|xid| assert!(is_new(&replies, client(1), xid, "")));
        assert!(is_new(&replies, client(1), 7, "mkdir"));
    }

    #[test]
    fn a_call_repeated_while_it_runs_is_answered_to_the_newest_asker() {
        let replies = Replies::default();
        let begin = |connection| replies.begin(client(1), 7, "create", asker(connection));
        let Begun::New(key) = begin(1) else { panic!("it is new") };
        assert_eq!(begin(2), Begun::Running(None));
        assert_eq!(begin(3), Begun::Running(Some(asker(2))));
        // Newer calls do not let it be executed twice.
        (100..100 + 2 * CALLS_MAX as u32).for_each(|xid| assert!(is_new(&replies, client(1), xid, "")));
        assert_eq!(begin(4), Begun::Running(Some(asker(3))));
        assert_eq!(begin(2), Begun::Running(Some(asker(2))), "it is no newer connection");
        assert_eq!(replies.finish(client(1), key, &Ok(vec![5])), Some(asker(4)));
        assert_eq!(begin(5), Begun::Done(Ok(vec![5])));
    }

    #[test]
    fn clients_that_asked_longest_ago_are_forgotten() {
        let replies = Replies::default();
        assert!(is_new(&replies, client(0), 1, ""));
        (1..CLIENTS_MAX as u32).for_each(|number| assert!(is_new(&replies, client(number), 1, "")));
        assert!(!is_new(&replies, client(0), 1, ""));
        (10_000..10_000 + CLIENTS_MAX as u32)
            .for_each(|number| assert!(is_new(&replies, client(number), 1, "")));
        assert!(is_new(&replies, client(0), 1, ""));
        assert_eq!(replies.lock().len(), CLIENTS_MAX);
    }

    #[test]
    fn a_network_with_many_addresses_takes_no_places_of_others() {
        let replies = Replies::default();
        let of_network = |number: u128| Asking::trusted(Ipv6Addr::from_bits(0x2001 << 112 | number).into());
        (0..20).for_each(|number| assert!(is_new(&replies, client(number), 1, "")));
        assert!(is_new(&replies, of_network(1 << 64), 1, ""), "of another network");
        for number in 0..4 * CLIENTS_MAX as u128 {
            assert!(is_new(&replies, of_network(number), 1, ""));
        }
        (0..20).for_each(|number| assert!(!is_new(&replies, client(number), 1, "")));
        assert!(!is_new(&replies, of_network(1 << 64), 1, ""));
        assert_eq!(replies.lock().len(), CLIENTS_MAX);
    }
}
