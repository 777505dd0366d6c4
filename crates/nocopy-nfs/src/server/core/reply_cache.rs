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

use super::RefusalReply;

/// The most replies kept per client, and the most clients, both by recent use. Of the clients, one of the
/// network with the most is forgotten.
const CALLS_MAX: usize = 256;
const CLIENTS_MAX: usize = 512;

/// The connection that made a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionId {
    pub event_loop: usize,
    /// Newer connections have greater numbers.
    pub number: u64,
}

pub(super) type CallResult = Result<Vec<u8>, RefusalReply>;

#[derive(Debug, Default)]
pub(super) struct ReplyCache(Mutex<VecDeque<ClientEntry>>);

/// Who has made calls at an address: programs without privileges have replies of their own, so that they push
/// out none of the host's mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClientKey {
    pub(super) address: IpAddr,
    pub(super) is_untrusted: bool,
}

impl ClientKey {
    #[cfg(test)]
    pub(super) fn for_trusted_port(address: IpAddr) -> Self {
        Self { address, is_untrusted: false }
    }
}

/// Calls, the latest last.
#[derive(Debug)]
struct ClientEntry {
    key: ClientKey,
    calls: VecDeque<CachedCall>,
}

#[derive(Debug)]
struct CachedCall {
    key: CallKey,
    state: CallState,
}

/// The number of a call, and a hash of its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CallKey(u32, u64);

#[derive(Debug)]
enum CallState {
    /// Being executed; the newest connection that has repeated it.
    Running(Option<ConnectionId>),
    Done(CallResult),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum CacheLookup {
    /// It must be executed, and then be [finished](ReplyCache::finish).
    New(CallKey),
    /// It is being executed. Of the connections that have repeated it, the newest will get the reply; this
    /// one will get none.
    Running(Option<ConnectionId>),
    Done(CallResult),
}

impl ReplyCache {
    pub(super) fn begin_call(
        &self,
        client_key: ClientKey,
        xid: u32,
        asked: impl Hash,
        connection_id: ConnectionId,
    ) -> CacheLookup {
        let mut hasher = DefaultHasher::new();
        asked.hash(&mut hasher);
        let key = CallKey(xid, hasher.finish());
        let mut clients = self.lock();
        let mut client = match clients.iter().position(|client| client.key == client_key) {
            Some(at) => clients.remove(at).expect("it is there"),
            None => ClientEntry { key: client_key, calls: VecDeque::new() },
        };
        let lookup = client.begin_call(key, connection_id);
        if clients.len() >= CLIENTS_MAX {
            evict_client(&mut clients, client_key.address);
        }
        clients.push_back(client);
        lookup
    }

    /// Keeps the reply of a call that was executed. Returns the connection that gets it, too, if the call was
    /// repeated meanwhile.
    pub(super) fn finish_call(
        &self,
        client_key: ClientKey,
        key: CallKey,
        made: &CallResult,
    ) -> Option<ConnectionId> {
        let mut clients = self.lock();
        let client = clients.iter_mut().rev().find(|client| client.key == client_key)?;
        let call = client.calls.iter_mut().rev().find(|call| call.key == key)?;
        match std::mem::replace(&mut call.state, CallState::Done(made.clone())) {
            CallState::Running(newest) => newest,
            CallState::Done(_) => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<ClientEntry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes room for a new client: so a network with any number of addresses evicts only clients of its own.
fn evict_client(clients: &mut VecDeque<ClientEntry>, new: IpAddr) {
    let mut counts = HashMap::from([(network_of(new), 1)]);
    for client in &*clients {
        *counts.entry(network_of(client.key.address)).or_default() += 1;
    }
    let count = |client: &ClientEntry| counts[&network_of(client.key.address)];
    let most = clients.iter().map(count).max();
    let oldest = clients.iter().position(|client| Some(count(client)) == most && !client.is_running());
    oldest.and_then(|oldest| clients.remove(oldest));
}

impl ClientEntry {
    fn is_running(&self) -> bool {
        self.calls.iter().any(|call| matches!(call.state, CallState::Running(_)))
    }

    fn begin_call(&mut self, key: CallKey, connection_id: ConnectionId) -> CacheLookup {
        match self.calls.iter_mut().rev().find(|call| call.key == key).map(|call| &mut call.state) {
            Some(CallState::Done(made)) => return CacheLookup::Done(made.clone()),
            // An older connection may be served later, when its client has left it.
            Some(CallState::Running(Some(newest))) if newest.number > connection_id.number => {
                return CacheLookup::Running(Some(connection_id));
            }
            Some(CallState::Running(newest)) => return CacheLookup::Running(newest.replace(connection_id)),
            None => {}
        }
        if self.calls.len() >= CALLS_MAX {
            // Those being executed are few, and could otherwise be executed twice.
            let oldest = self.calls.iter().position(|call| matches!(call.state, CallState::Done(_)));
            oldest.and_then(|oldest| self.calls.remove(oldest));
        }
        self.calls.push_back(CachedCall { key, state: CallState::Running(None) });
        CacheLookup::New(key)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    fn client_key(number: u32) -> ClientKey {
        ClientKey::for_trusted_port(number.to_be_bytes().into())
    }

    fn connection_id(connection: u64) -> ConnectionId {
        ConnectionId { event_loop: 0, number: connection }
    }

    /// Begins a call, and finishes it if it is new.
    fn execute_if_new(replies: &ReplyCache, client_key: ClientKey, xid: u32, asked: &str) -> bool {
        match replies.begin_call(client_key, xid, asked, connection_id(1)) {
            CacheLookup::New(key) => {
                assert_eq!(replies.finish_call(client_key, key, &Ok(asked.into())), None);
                true
            }
            lookup => {
                assert_eq!(lookup, CacheLookup::Done(Ok(asked.into())));
                false
            }
        }
    }

    #[test]
    fn replies_are_cached_until_newer_calls_evict_them() {
        let replies = ReplyCache::default();
        assert!(
            execute_if_new(&replies, client_key(1), 7, "mkdir")
                && !execute_if_new(&replies, client_key(1), 7, "mkdir")
        );
        for (address, xid, asked) in
            [(client_key(2), 7, "mkdir"), (client_key(1), 8, "mkdir"), (client_key(1), 7, "rmdir")]
        {
            assert!(execute_if_new(&replies, address, xid, asked));
        }
        (100..100 + CALLS_MAX as u32)
            .for_each(|xid| assert!(execute_if_new(&replies, client_key(3), xid, "")));
        assert!(!execute_if_new(&replies, client_key(1), 7, "mkdir"));
        (100..100 + CALLS_MAX as u32)
            .for_each(|xid| assert!(execute_if_new(&replies, client_key(1), xid, "")));
        assert!(execute_if_new(&replies, client_key(1), 7, "mkdir"));
    }

    #[test]
    fn running_calls_reply_to_the_newest_connection() {
        let replies = ReplyCache::default();
        let begin = |connection| replies.begin_call(client_key(1), 7, "create", connection_id(connection));
        let CacheLookup::New(key) = begin(1) else { panic!("it is new") };
        assert_eq!(begin(2), CacheLookup::Running(None));
        assert_eq!(begin(3), CacheLookup::Running(Some(connection_id(2))));
        // Newer calls do not let it be executed twice.
        (100..100 + 2 * CALLS_MAX as u32)
            .for_each(|xid| assert!(execute_if_new(&replies, client_key(1), xid, "")));
        assert_eq!(begin(4), CacheLookup::Running(Some(connection_id(3))));
        assert_eq!(begin(2), CacheLookup::Running(Some(connection_id(2))), "it is no newer connection");
        assert_eq!(replies.finish_call(client_key(1), key, &Ok(vec![5])), Some(connection_id(4)));
        assert_eq!(begin(5), CacheLookup::Done(Ok(vec![5])));
    }

    #[test]
    fn least_recently_used_clients_are_evicted() {
        let replies = ReplyCache::default();
        assert!(execute_if_new(&replies, client_key(0), 1, ""));
        (1..CLIENTS_MAX as u32)
            .for_each(|number| assert!(execute_if_new(&replies, client_key(number), 1, "")));
        assert!(!execute_if_new(&replies, client_key(0), 1, ""));
        (10_000..10_000 + CLIENTS_MAX as u32)
            .for_each(|number| assert!(execute_if_new(&replies, client_key(number), 1, "")));
        assert!(execute_if_new(&replies, client_key(0), 1, ""));
        assert_eq!(replies.lock().len(), CLIENTS_MAX);
    }

    #[test]
    fn networks_with_many_addresses_evict_only_their_own() {
        let replies = ReplyCache::default();
        let of_network =
            |number: u128| ClientKey::for_trusted_port(Ipv6Addr::from_bits(0x2001 << 112 | number).into());
        (0..20).for_each(|number| assert!(execute_if_new(&replies, client_key(number), 1, "")));
        assert!(execute_if_new(&replies, of_network(1 << 64), 1, ""), "of another network");
        for number in 0..4 * CLIENTS_MAX as u128 {
            assert!(execute_if_new(&replies, of_network(number), 1, ""));
        }
        (0..20).for_each(|number| assert!(!execute_if_new(&replies, client_key(number), 1, "")));
        assert!(!execute_if_new(&replies, of_network(1 << 64), 1, ""));
        assert_eq!(replies.lock().len(), CLIENTS_MAX);
    }
}
