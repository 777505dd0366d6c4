//! A thread with the connections that it serves.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use super::Shared;
use super::connection::{Connection, End};
use super::core::Asker;
use super::workers::Inbox;
use crate::wire::record::Records;

const EVENTS_MAX: usize = 64;

/// Room for many short calls, or for the beginning of a long one, whose rest is received elsewhere.
const BUFFER_BYTES: usize = 16 << 10;

/// New connections are accepted in groups of this size, so that existing ones get their turn.
const ACCEPTED_MAX: usize = 64;

/// How often to close unused files, and to check whether connections can be accepted again.
pub(super) const TICK: Duration = Duration::from_secs(1);

/// The source of an event: this loop's inbox, a listener, or a connection (its number, from [`FIRST`] on).
const INBOX: u64 = 0;
const LISTENERS: u64 = 1;
pub(super) const FIRST: u64 = 16;

#[derive(Debug)]
pub(super) struct EventLoop {
    epoll: OwnedFd,
    listeners: Arc<[TcpListener]>,
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    connections: HashMap<u64, Connection>,
    number: usize,
    /// The machine lacks memory or descriptors, so no connections are accepted.
    is_paused: bool,
    ticked: Instant,
    buffer: Vec<u8>,
}

impl EventLoop {
    pub(super) fn new(listeners: Arc<[TcpListener]>, shared: Arc<Shared>, number: usize) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let inbox = Arc::clone(&shared.inboxes[number]);
        epoll::add(&epoll, inbox.event(), EventData::new_u64(INBOX), EventFlags::IN)?;
        let one = Self {
            epoll,
            listeners,
            shared,
            inbox,
            connections: HashMap::new(),
            number,
            is_paused: true,
            ticked: Instant::now(),
            buffer: vec![0; BUFFER_BYTES],
        };
        Ok(one)
    }

    pub(super) fn waker(&self) -> Arc<Inbox> {
        Arc::clone(&self.inbox)
    }

    pub(super) fn run(mut self) -> io::Result<()> {
        self.listen()?;
        let mut events = Vec::with_capacity(EVENTS_MAX);
        while !self.shared.is_over.load(Ordering::Relaxed) {
            events.clear();
            let timeout = Timespec::try_from(TICK).expect("a second is a time");
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let now = Instant::now();
            for event in &events {
                let (data, flags) = (event.data.u64(), event.flags);
                match data {
                    INBOX => self.take_done(now),
                    // Reset, because no reply would arrive.
                    id if id >= FIRST && flags.intersects(EventFlags::HUP | EventFlags::ERR) => {
                        self.remove(id);
                    }
                    id if id >= FIRST => self.turn(id, flags.contains(EventFlags::IN), now),
                    listener => self.accept((listener - LISTENERS) as usize, now)?,
                }
            }
            self.tick(now)?;
        }
        Ok(())
    }

    fn listen(&mut self) -> io::Result<()> {
        for (number, listener) in self.listeners.iter().enumerate() {
            let data = EventData::new_u64(LISTENERS + number as u64);
            epoll::add(&self.epoll, listener, data, EventFlags::IN | EventFlags::EXCLUSIVE)?;
        }
        self.is_paused = false;
        Ok(())
    }

    fn accept(&mut self, listener: usize, now: Instant) -> io::Result<()> {
        for _ in 0..ACCEPTED_MAX {
            match self.listeners[listener].accept() {
                Ok((socket, from)) => self.add(socket, from, now),
                Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
                    Some(Errno::AGAIN) => break,
                    Some(Errno::INTR | Errno::CONNABORTED) => {}
                    Some(Errno::MFILE) if !self.connections.is_empty() => self.make_place(),
                    // The connection stays in the queue, and would be reported again at once.
                    _ => return self.pause(),
                },
            }
        }
        Ok(())
    }

    fn pause(&mut self) -> io::Result<()> {
        if !self.is_paused {
            self.is_paused = true;
            for listener in self.listeners.iter() {
                epoll::delete(&self.epoll, listener)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, socket: TcpStream, from: SocketAddr, now: Instant) {
        let address = SocketAddr::new(from.ip().to_canonical(), from.port());
        let allow = &self.shared.settings.allow;
        if !allow.is_empty() && !allow.iter().any(|network| network.contains(&address.ip())) {
            return self.shared.accounts.note_refused();
        }
        // The loops share the limit. A loop without connections may have one more, as there are few loops.
        if self.shared.connections.load(Ordering::Relaxed) >= self.shared.connections_max {
            self.make_place();
        }
        let id = self.shared.accepted.fetch_add(1, Ordering::Relaxed);
        let client = self.shared.accounts.connected(address.ip());
        let data = EventData::new_u64(id);
        let queued = Arc::clone(&self.shared.queued);
        let records = Records::limited(self.shared.core.call_limits());
        let member = self.shared.networks.join(address.ip(), self.number);
        let connection =
            Connection::new(self.asker(id), socket, address, client, (records, member), queued, now);
        let connection = connection.and_then(|connection| {
            epoll::add(&self.epoll, &*connection.socket, data, connection.interest)?;
            Ok(connection)
        });
        // An error of one connection must not end the service of others.
        if let Ok(connection) = connection {
            self.connections.insert(id, connection);
            self.shared.connections.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Ends a connection: of the network with the most connections, the one that was idle for longest.
    fn make_place(&mut self) {
        let mut shares = HashMap::<IpAddr, usize>::new();
        for connection in self.connections.values() {
            *shares.entry(connection.network()).or_default() += 1;
        }
        let still = |connection: &Connection| std::cmp::Reverse(connection.moved);
        let first = self
            .connections
            .iter()
            .max_by_key(|(_, one)| (shares[&one.network()], still(one)))
            .map(|(id, _)| *id);
        if let Some(id) = first {
            self.remove(id);
            self.shared.accounts.note_ended();
        }
    }

    fn asker(&self, connection: u64) -> Asker {
        Asker { event_loop: self.number, connection }
    }

    fn take_done(&mut self, now: Instant) {
        let mut served = Vec::new();
        for (id, step) in self.inbox.take() {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.done(step);
                served.push(id);
            }
        }
        served.dedup();
        served.into_iter().for_each(|id| self.turn(id, false, now));
    }

    fn turn(&mut self, id: u64, is_readable: bool, now: Instant) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        self.shared.turns.note(&*connection.socket, now);
        if is_readable {
            connection.go_on_writing(now);
        }
        let turned = connection.turn(&self.shared, &mut self.buffer, now);
        let wanted = connection.wanted(&self.shared);
        let is_good = match turned {
            Ok(()) if wanted == connection.interest => true,
            Ok(()) => {
                connection.interest = wanted;
                let data = EventData::new_u64(id);
                epoll::modify(&self.epoll, &*connection.socket, data, wanted).is_ok()
            }
            Err(End::Malformed) => {
                self.shared.accounts.note_malformed();
                false
            }
            Err(End::Closed) => false,
        };
        if !is_good {
            self.remove(id);
        }
    }

    fn remove(&mut self, id: u64) {
        let Some(connection) = self.connections.remove(&id) else { return };
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        // A worker may still read from it. It is closed or broken already, or soon will be.
        let _ = epoll::delete(&self.epoll, &*connection.socket);
        let _ = connection.socket.shutdown(Shutdown::Both);
        if connection.is_worked_for() {
            self.shared.workers.forget(self.asker(id));
        }
    }

    fn tick(&mut self, now: Instant) -> io::Result<()> {
        if now.duration_since(self.ticked) < TICK {
            return Ok(());
        }
        self.ticked = now;
        let overdue = self.connections.iter().filter(|(_, one)| one.is_overdue(now));
        overdue.map(|(id, _)| *id).collect::<Vec<_>>().into_iter().for_each(|id| self.remove(id));
        let starved = self.connections.iter().filter(|(_, one)| one.is_starved());
        starved.map(|(id, _)| *id).collect::<Vec<_>>().into_iter().for_each(|id| self.turn(id, false, now));
        if self.is_paused { self.listen() } else { Ok(()) }
    }
}
