//! A thread that sends signs of life while the program does not call its endpoint (docs/protocol.md §10.1).
//!
//! The endpoint and the thread share a list of connections, which the endpoint changes when a connection
//! begins or ends, and the time of a recent call, which the endpoint notes a few times in each period of the
//! thread. A single message touches nothing shared.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nocopy_proto::message::{self as protocol, SignOfLife, Time};

use super::carrier::{Carrier, Packet, Received, send_to};
use super::{NonblockingEndpoint, OpenError};
use crate::sys::clock::boottime_ns;
use crate::sys::fork::Generation;
use crate::sys::signals;

/// How often the endpoint notes that it is called, in one period of the thread.
const NOTES: u32 = 4;
/// The shortest period: half of the shortest time after which the protocol asks a peer.
const PERIOD_MIN: Duration = Duration::from_millis(5);
/// How many signs are copied from the list at a time, so that the endpoint never waits longer.
const SIGNS_AT_ONCE: usize = 256;

/// The endpoint's handle of the thread; the thread ends with it.
#[derive(Debug)]
pub(super) struct KeepAlive {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// A forked child has no such thread, and does not use the list: its lock may have been held during the
    /// fork.
    generation: Generation,
    /// When to record next that the endpoint is called; `None`: there are no connections.
    next_note: Option<Time>,
    note_interval: Duration,
}

#[derive(Debug)]
struct Shared {
    list: Mutex<List>,
    /// Wakes the thread for its first connection, and to end it.
    changed: Condvar,
    /// Roughly when the endpoint was last called, by [`boottime_ns`].
    called_ns: AtomicU64,
    sent: AtomicU64,
    period_ns: u64,
}

#[derive(Debug, Default)]
struct List {
    /// By connection number.
    signs: Vec<Option<SignOfLife>>,
    connections: usize,
    is_ended: bool,
}

impl NonblockingEndpoint {
    pub(super) fn start_keep_alive(&mut self, silence: Duration) -> Result<(), OpenError> {
        if let Some(socket) = self.carrier.socket() {
            let started = KeepAlive::start(socket, silence);
            self.keep_alive = Some(started.map_err(|source| OpenError::Thread { source })?);
            self.protocol.note_signs_of_life();
        }
        Ok(())
    }
}

impl KeepAlive {
    /// Starts the thread; `silence` is the time after which a silent peer is asked.
    pub(super) fn start(socket: BorrowedFd<'_>, silence: Duration) -> io::Result<Self> {
        let period = (silence / 2).max(PERIOD_MIN);
        let shared = Arc::new(Shared {
            list: Mutex::default(),
            changed: Condvar::new(),
            called_ns: AtomicU64::new(boottime_ns()),
            sent: AtomicU64::new(0),
            period_ns: u64::try_from(period.as_nanos()).unwrap_or(u64::MAX),
        });
        let (socket, of_thread) = (socket.try_clone_to_owned()?, Arc::clone(&shared));
        // The thread inherits that: handlers are the program's, and run in its threads.
        let _blocked = signals::SignalBlockGuard::block_all();
        let thread =
            thread::Builder::new().name("nocopy-alive".into()).spawn(move || of_thread.run(&socket))?;
        let generation = Generation::current();
        Ok(Self { shared, thread: Some(thread), generation, next_note: None, note_interval: period / NOTES })
    }

    /// Updates what the thread reads, whenever the endpoint was called.
    #[inline]
    pub(super) fn note_call(&mut self, now: Time, protocol: &mut protocol::Endpoint<Packet, Received>) {
        if protocol.has_sign_of_life() || self.next_note.is_some_and(|note| note <= now) {
            self.tell_thread(now, protocol);
        }
    }

    #[cold]
    fn tell_thread(&mut self, now: Time, protocol: &mut protocol::Endpoint<Packet, Received>) {
        if self.generation.is_outdated() {
            self.next_note = None;
            while protocol.poll_sign_of_life().is_some() {}
            return;
        }
        self.shared.called_ns.store(now.ns(), Relaxed); // a time alone: it is of no other memory
        let mut list = self.shared.list();
        let had_some = list.connections > 0;
        while let Some((index, sign)) = protocol.poll_sign_of_life() {
            list.put(index, sign);
        }
        let has_some = list.connections > 0;
        drop(list);
        self.next_note = has_some.then(|| now + self.note_interval);
        if has_some && !had_some {
            self.shared.changed.notify_one();
        }
    }

    /// When the endpoint must work for the thread.
    #[inline]
    pub(super) fn due(&self) -> Option<Time> {
        self.next_note
    }

    /// Signs of life that were sent.
    pub(super) fn sent(&self) -> u64 {
        self.shared.sent.load(Relaxed)
    }
}

impl Drop for KeepAlive {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if self.generation.is_outdated() {
            return std::mem::forget(thread); // the parent's
        }
        self.shared.list().is_ended = true;
        self.shared.changed.notify_one();
        if let Some(thread) = thread {
            let _ = thread.join(); // one that panicked has ended, too
        }
    }
}

impl List {
    fn put(&mut self, index: usize, sign: Option<SignOfLife>) {
        if index >= self.signs.len() {
            self.signs.resize(index + 1, None);
        }
        let before = std::mem::replace(&mut self.signs[index], sign);
        self.connections += usize::from(sign.is_some());
        self.connections -= usize::from(before.is_some());
    }
}

impl Shared {
    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends signs of life to all peers, once per period, while the endpoint is not called.
    fn run(&self, socket: &OwnedFd) {
        let mut sent_ns = 0;
        let mut list = self.list();
        while !list.is_ended {
            if list.connections == 0 {
                list = self.changed.wait(list).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let now_ns = boottime_ns();
            let rest = self.rest(now_ns, sent_ns);
            if !rest.is_zero() {
                let waited = self.changed.wait_timeout(list, rest);
                list = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            drop(list);
            sent_ns = now_ns;
            self.send_all(socket);
            list = self.list();
        }
    }

    /// How long to wait before the next signs of life, after the last ones.
    fn rest(&self, now_ns: u64, sent_ns: u64) -> Duration {
        let due_ns = self.called_ns.load(Relaxed).max(sent_ns).saturating_add(self.period_ns);
        Duration::from_nanos(due_ns.saturating_sub(now_ns))
    }

    fn send_all(&self, socket: &OwnedFd) {
        let mut datagram = Vec::new();
        let mut from = 0;
        while let Some(signs) = self.signs(from) {
            from += SIGNS_AT_ONCE;
            for (path, alive) in signs.into_iter().flatten() {
                alive.emit(&mut datagram);
                // What the kernel does not take is as good as lost, and the next one follows.
                let sent = send_to(&path, socket.as_fd(), &datagram);
                self.sent.fetch_add(u64::from(sent.is_ok()), Relaxed); // a count alone
            }
        }
    }

    /// A part of the list; `None` after its end.
    fn signs(&self, from: usize) -> Option<Vec<Option<SignOfLife>>> {
        let list = self.list();
        let all = list.signs.get(from..).filter(|rest| !rest.is_empty() && !list.is_ended)?;
        Some(all[..all.len().min(SIGNS_AT_ONCE)].to_vec())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::{SocketAddr, UdpSocket};

    use nocopy_proto::message::Settings;

    use super::*;
    use crate::sys::fork::tests::in_forked_child;

    const MINUTE: Duration = Duration::from_secs(60);

    fn started() -> KeepAlive {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        KeepAlive::start(socket.as_fd(), MINUTE).unwrap()
    }

    /// The signals that each thread of this name has blocked.
    fn blocked() -> Vec<u64> {
        let threads = fs::read_dir("/proc/self/task").unwrap();
        let statuses =
            threads.filter_map(|thread| fs::read_to_string(thread.unwrap().path().join("status")).ok());
        let ours = statuses.filter(|status| status.starts_with("Name:\tnocopy-alive\n"));
        let blocked = ours.map(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
            u64::from_str_radix(line, 16).unwrap()
        });
        blocked.collect()
    }

    #[test]
    fn the_thread_takes_no_signals_and_ends_with_the_endpoint() {
        assert!(blocked().is_empty());
        let keep_alive = started();
        let ours = 1 << (libc::SIGTERM - 1) | 1 << (libc::SIGINT - 1) | 1 << (libc::SIGUSR1 - 1);
        nocopy_lab::patience::wait_until("its name", || blocked().len() == 1);
        assert_eq!(blocked()[0] & ours, ours);
        drop(keep_alive);
        assert!(blocked().is_empty());
    }

    /// A child waits neither for a thread that it does not have, nor for a lock that is never released.
    #[test]
    fn a_forked_child_leaves_thread_and_list_to_its_parent() {
        let mut keep_alive = Some(started());
        let shared = Arc::clone(&keep_alive.as_ref().unwrap().shared);
        let held = shared.list();
        in_forked_child(|| {
            let mut protocol = protocol::Endpoint::new(Settings::default(), [0; 32]);
            let mut inherited = keep_alive.take().unwrap();
            inherited.next_note = Some(Time::from_ns(0));
            inherited.note_call(Time::from_ns(1), &mut protocol);
        });
        drop(held);
    }

    #[test]
    fn while_the_program_calls_there_is_nothing_to_send() {
        let keep_alive = started();
        let (second, rest) = (1_000_000_000, |now, sent| keep_alive.shared.rest(now, sent).as_secs());
        keep_alive.shared.called_ns.store(100 * second, Relaxed);
        assert_eq!(rest(100 * second, 0), 30);
        assert_eq!(rest(129 * second, 0), 1);
        assert_eq!(rest(131 * second, 0), 0);
        assert_eq!(rest(131 * second, 131 * second), 30, "sent just now");
        keep_alive.shared.called_ns.store(125 * second, Relaxed);
        assert_eq!(rest(129 * second, 0), 26);
    }

    #[test]
    fn the_list_has_the_last_sign_of_each_connection() {
        let mut list = List::default();
        let sign = |to| (SocketAddr::from(([127, 0, 0, 1], 1)).into(), protocol::wire::Alive { to });
        for (index, put) in [(2, Some(sign(7))), (0, None), (2, Some(sign(8))), (1, Some(sign(9))), (2, None)]
        {
            list.put(index, put);
        }
        assert_eq!((list.signs, list.connections), (vec![None, Some(sign(9)), None], 1));
    }
}
