//! A thread with the connections that it serves.

use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use super::SharedState;
use super::connection::{CloseReason, Connection};
use super::core::ConnectionId;
use super::fair_queue::FairQueue;
use super::portmapper::Portmapper;
use super::workers::EventLoopInbox;
use crate::wire::record::RecordAssembler;

/// Most of the connections: one that is ready is seen at once among many others that are, too.
const EVENTS_MAX: usize = 1024;

/// After connections had turns that cost so many bytes moved, further ones may have become ready.
const ROUND_BYTES_MAX: usize = 4 << 20;

/// Room for many short calls, or for the beginning of a long one, whose rest is received elsewhere.
const BUFFER_BYTES: usize = 16 << 10;

/// New connections are accepted in groups of this size, so that existing ones get their turn.
const ACCEPTED_MAX: usize = 64;

/// How often to close unused files, and to check whether connections can be accepted again.
pub(super) const TICK: Duration = Duration::from_secs(1);

/// The source of an event: this loop's inbox, a listener, a portmapper, or a connection (its number, from
/// [`FIRST`] on). There cannot be so many listeners.
const INBOX: u64 = 0;
const LISTENERS: u64 = 1;
const PORTMAPPERS: u64 = 1 << 31;
pub(super) const FIRST: u64 = 1 << 32;

#[derive(Debug)]
pub(super) struct EventLoop {
    epoll: OwnedFd,
    listeners: Arc<[TcpListener]>,
    portmappers: Arc<[Portmapper]>,
    shared: Arc<SharedState>,
    inbox: Arc<EventLoopInbox>,
    connections: HashMap<u64, Connection>,
    /// Connections that wait for their turn.
    ready: FairQueue<u64>,
    number: usize,
    /// The machine lacks memory or descriptors, so no connections are accepted.
    is_paused: bool,
    last_tick: Instant,
    buffer: Vec<u8>,
}

impl EventLoop {
    pub(super) fn new(
        (listeners, portmappers): (Arc<[TcpListener]>, Arc<[Portmapper]>),
        shared: Arc<SharedState>,
        number: usize,
    ) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let inbox = Arc::clone(&shared.inboxes[number]);
        epoll::add(&epoll, inbox.event_descriptor(), EventData::new_u64(INBOX), EventFlags::IN)?;
        for (portmapper, data) in portmappers.iter().zip(PORTMAPPERS..) {
            let data = EventData::new_u64(data);
            epoll::add(&epoll, &portmapper.socket, data, EventFlags::IN | EventFlags::EXCLUSIVE)?;
        }
        let one = Self {
            epoll,
            listeners,
            portmappers,
            shared,
            inbox,
            connections: HashMap::new(),
            ready: FairQueue::default(),
            number,
            is_paused: true,
            last_tick: Instant::now(),
            buffer: vec![0; BUFFER_BYTES],
        };
        Ok(one)
    }

    pub(super) fn inbox_handle(&self) -> Arc<EventLoopInbox> {
        Arc::clone(&self.inbox)
    }

    pub(super) fn run(mut self) -> io::Result<()> {
        self.start_listening()?;
        let mut events = Vec::with_capacity(EVENTS_MAX);
        while !self.shared.is_over.load(Ordering::Relaxed) {
            events.clear();
            let timeout = if self.ready.is_empty() { TICK } else { Duration::ZERO };
            let timeout = Timespec::try_from(timeout).expect("a second is a time");
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let now = Instant::now();
            for event in &events {
                let (data, flags) = (event.data.u64(), event.flags);
                match data {
                    INBOX => self.take_results(),
                    // Reset, because no reply would arrive.
                    id if id >= FIRST && flags.intersects(EventFlags::HUP | EventFlags::ERR) => {
                        self.remove_connection(id);
                    }
                    id if id >= FIRST && events.len() == 1 && self.ready.is_empty() => {
                        self.run_turn(id, flags.contains(EventFlags::IN), now);
                    }
                    id if id >= FIRST => self.mark_ready(id, flags.contains(EventFlags::IN)),
                    number if number >= PORTMAPPERS => {
                        self.portmappers[(number - PORTMAPPERS) as usize].answer_calls(&self.shared);
                    }
                    listener => self.accept_connections((listener - LISTENERS) as usize, now)?,
                }
            }
            self.serve_ready(now);
            self.run_periodic_work(now)?;
        }
        Ok(())
    }

    fn mark_ready(&mut self, id: u64, is_readable: bool) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.ready.is_readable |= is_readable;
        if !std::mem::replace(&mut connection.ready.is_queued, true) {
            self.ready.push(connection.network(), id);
        }
    }

    /// Gives connections their turns, those of each network in turn.
    fn serve_ready(&mut self, now: Instant) {
        let mut cost = 0;
        while cost < ROUND_BYTES_MAX
            && let Some((_, id)) = self.ready.pop(|_| true)
        {
            cost += self.run_turn(id, false, now);
        }
    }

    fn start_listening(&mut self) -> io::Result<()> {
        for (number, listener) in self.listeners.iter().enumerate() {
            let data = EventData::new_u64(LISTENERS + number as u64);
            epoll::add(&self.epoll, listener, data, EventFlags::IN | EventFlags::EXCLUSIVE)?;
        }
        self.is_paused = false;
        Ok(())
    }

    fn accept_connections(&mut self, listener: usize, now: Instant) -> io::Result<()> {
        for _ in 0..ACCEPTED_MAX {
            match self.listeners[listener].accept() {
                Ok((socket, from)) => self.add_connection(socket, from, now),
                Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
                    Some(Errno::AGAIN) => break,
                    Some(Errno::INTR | Errno::CONNABORTED) => {}
                    // Another loop does not end one at once.
                    Some(Errno::MFILE) if self.evict_connection() => {}
                    // The connection stays in the queue, and would be reported again at once.
                    _ => return self.pause_accepting(),
                },
            }
        }
        Ok(())
    }

    fn pause_accepting(&mut self) -> io::Result<()> {
        if !self.is_paused {
            self.is_paused = true;
            for listener in self.listeners.iter() {
                epoll::delete(&self.epoll, listener)?;
            }
        }
        Ok(())
    }

    fn add_connection(&mut self, socket: TcpStream, from: SocketAddr, now: Instant) {
        let address = SocketAddr::new(from.ip().to_canonical(), from.port());
        let allow = &self.shared.settings.allow;
        if !allow.is_empty() && !allow.iter().any(|allow| allow.allows(from)) {
            return self.shared.statistics.count_refused();
        }
        // The loops share the limit. A loop without connections may have one more, as there are few loops.
        if self.shared.connections.load(Ordering::Relaxed) >= self.shared.connections_max {
            self.evict_connection();
        }
        let id = self.shared.accepted.fetch_add(1, Ordering::Relaxed);
        let client = self.shared.statistics.count_connection(address.ip());
        let data = EventData::new_u64(id);
        let records = RecordAssembler::with_limits(self.shared.core.call_limits());
        let share = self.shared.networks.join_network(address.ip(), self.number);
        let queued_memory = Arc::new(self.shared.queued_memory.for_network(&share.reply_bytes));
        let connection = Connection::new(
            self.connection_id(id),
            socket,
            address,
            client,
            (records, share),
            queued_memory,
            now,
        );
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

    /// Ends a connection: of the network with the most connections, the one that was idle for longest; if
    /// other loops have all of them, one of these does so. Returns whether it has ended.
    fn evict_connection(&mut self) -> bool {
        let (networks, event_loop) = self.shared.networks.largest_networks();
        let largest = self.connections.iter().filter(|(_, one)| networks.contains(&one.network()));
        let idle = largest.min_by_key(|(_, one)| one.last_transfer).map(|(id, _)| *id);
        match idle {
            Some(id) => {
                self.remove_connection(id);
                self.shared.statistics.count_evicted();
            }
            None => self.shared.inboxes[event_loop].request_eviction(),
        }
        idle.is_some()
    }

    fn connection_id(&self, connection: u64) -> ConnectionId {
        ConnectionId { event_loop: self.number, number: connection }
    }

    fn take_results(&mut self) {
        for (id, step) in self.inbox.take_results() {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.apply_job_result(step);
                self.mark_ready(id, false);
            }
        }
        for _ in 0..self.inbox.take_evictions() {
            self.evict_connection();
        }
    }

    /// Returns what the turn cost.
    fn run_turn(&mut self, id: u64, is_readable: bool, now: Instant) -> usize {
        let Some(connection) = self.connections.get_mut(&id) else { return 0 };
        self.shared.rotation.record_turn(&*connection.socket, now);
        // Not `||`: this also clears `is_queued`, because the connection is off the queue now.
        if is_readable | std::mem::take(&mut connection.ready).is_readable {
            connection.resume_write(now);
        }
        let turned = connection.run_turn(&self.shared, &mut self.buffer, now);
        let cost = *turned.as_ref().unwrap_or(&0);
        let is_cut = connection.has_more_work();
        let wanted = connection.wanted_events();
        let is_open = match turned {
            Ok(_) if wanted == connection.interest => true,
            Ok(_) => {
                connection.interest = wanted;
                let data = EventData::new_u64(id);
                epoll::modify(&self.epoll, &*connection.socket, data, wanted).is_ok()
            }
            Err(CloseReason::Malformed) => {
                self.shared.statistics.count_malformed();
                false
            }
            Err(CloseReason::Closed) => false,
        };
        if !is_open {
            self.remove_connection(id);
        } else if is_cut {
            self.mark_ready(id, false);
        }
        cost
    }

    fn remove_connection(&mut self, id: u64) {
        // Its number may still be in `ready` or in events of this round. It finds nothing: numbers are not
        // used again.
        let Some(connection) = self.connections.remove(&id) else { return };
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        // A worker may still read from it. It is closed or broken already, or soon will be.
        let _ = epoll::delete(&self.epoll, &*connection.socket);
        let _ = connection.socket.shutdown(Shutdown::Both);
        if connection.has_jobs() {
            self.shared.workers.cancel_jobs(self.connection_id(id));
        }
    }

    fn run_periodic_work(&mut self, now: Instant) -> io::Result<()> {
        if now.duration_since(self.last_tick) < TICK {
            return Ok(());
        }
        self.last_tick = now;
        let overdue = self.connections.iter().filter(|(_, one)| one.is_overdue(now));
        for id in overdue.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.remove_connection(id);
            self.shared.statistics.count_timed_out();
        }
        let starved = self.connections.iter().filter(|(_, one)| one.is_starved());
        starved.map(|(id, _)| *id).collect::<Vec<_>>().into_iter().for_each(|id| self.mark_ready(id, false));
        if self.is_paused { self.start_listening() } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::Ipv4Addr;

    use nocopy_lab::patience::wait_until;

    use super::super::core::CallerMapping;
    use super::super::{Server, Settings};
    use super::*;
    use crate::export::Export;

    #[test]
    fn connections_with_overdue_calls_are_closed_and_counted() {
        let around = tempfile::tempdir().unwrap();
        let [exported, state] = ["exported", "state"].map(|name| around.path().join(name));
        std::fs::create_dir(&exported).unwrap();
        let settings = Settings {
            addresses: vec![(Ipv4Addr::LOCALHOST, 0).into()],
            allow: Vec::new(),
            is_stable: false,
            is_writable: false,
            callers: CallerMapping::Server,
            is_portmapper: false,
            connections_max: 16,
        };
        let server =
            Server::bind(Arc::new(Export::open(&exported, Some(&state)).unwrap()), settings).unwrap();
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(&[0x80, 0, 0, 100, 1, 2, 3]).unwrap();
        let Server { shared, mut loops, .. } = server;
        let mut one = loops.swap_remove(0);
        one.start_listening().unwrap();
        let (now, late) = (Instant::now(), Instant::now() + Duration::from_secs(120));
        wait_until("half a call to arrive", || {
            one.accept_connections(0, now).unwrap();
            one.run_turn(FIRST, true, now);
            one.connections.values().any(|connection| connection.is_overdue(late))
        });
        one.run_periodic_work(late).unwrap();
        assert_eq!((one.connections.len(), shared.statistics.timed_out()), (0, 1));
    }
}
