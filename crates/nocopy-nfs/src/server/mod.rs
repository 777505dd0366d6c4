//! The server: answers calls, and sends the bytes of files by reference to their pages.
//!
//! ```text
//!   socket ─▶ connection ─▶ core: an answer ──────────────┐
//!                │             └─▶ workers (cold files, directories, changes) ─▶ back to the loop
//!                ▼                                        ▼
//!            replies: an ordered queue of [header │ pages in a pipe │ what fills up] ─▶ socket
//! ```
//!
//! A read is moved by splice(2) from the file into a pipe *first*: so the count and the end of the file in
//! its reply are true, even if the file changes meanwhile. Then the header is sent with `MSG_MORE`, followed
//! by the pages, by splice(2). Only the loop of a connection sends on its socket, and finishes a reply before
//! it begins the next. Cached reads are put into a pipe when it is their turn, so that a client that does not
//! read holds only one pipe.
//!
//! A long write goes the other way: a worker, meanwhile the only reader of the socket, moves its bytes from
//! the socket into a pipe, and from the pipe into the file, as they arrive.
//!
//! The socket is not a [`nocopy::tcp::Stream`]: its queue takes no [`Pages`](nocopy::tcp::Pages), its ledger
//! does not distinguish the replies of several clients, and it takes ownership of sent buffers, while a
//! header here is 132 bytes of a vector.
//!
//! Pages that change after their reply was queued are sent with their new contents, as by the kernel's
//! server. `--stable` copies instead.

mod allow;
mod call_receiver;
mod connection;
pub mod core;
mod event_loop;
mod fair_queue;
mod long_write;
mod networks;
mod portmapper;
mod read_job;
mod reply_queue;
mod service_rotation;
mod statistics;
mod workers;

use nocopy::tcp::PagePool;
use nocopy_proto::errno::ErrorCause;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use nocopy_report::address::{FailedAttempts, is_address_not_local, listen_tcp};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub use allow::AllowRule;
pub use statistics::{ClientCounters, ClientCounts, CopyCause, ServerStatistics};

use self::core::{CallerMapping, Core};
use crate::export::Export;
use crate::wire::portmap;
use event_loop::EventLoop;
use networks::ConnectedNetworks;
use portmapper::Portmapper;
use reply_queue::QueuedMemory;
use service_rotation::AlternationDetector;
use workers::{EventLoopInbox, WorkerPool};

/// With more threads, one disk or one network is not faster.
const LOOPS_MAX: usize = 4;

/// Threads that wait for disks.
const WORKERS: usize = 8;

/// The most connections, unless there are fewer descriptors.
pub const CONNECTIONS_MAX: usize = 2048;

/// Descriptors for open files, listings, and those of every program; three quarters of them if that is less.
/// (Pipes are counted for each connection.)
const OTHER_DESCRIPTORS: usize = 768;

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("{address}: cannot serve there{cause}; {}", listen_advice(source), cause = ErrorCause(.source))]
    Listen { address: SocketAddr, source: io::Error },
    #[error("server: cannot wait for connections{cause}; raise the limit of descriptors ('ulimit -n')", cause = ErrorCause(.0))]
    Setup(#[source] io::Error),
}

fn listen_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another program uses it; name another port by --listen",
        io::ErrorKind::AddrNotAvailable => "this host has no such address; 'ip address' lists them",
        io::ErrorKind::PermissionDenied => "ports below 1024 need CAP_NET_BIND_SERVICE; name another",
        _ => "name another address or port by --listen",
    }
}

#[derive(Debug, Clone)]
pub struct Settings {
    /// Where to listen; of several addresses those that this host has, at one port.
    pub addresses: Vec<SocketAddr>,
    /// What may connect; empty: all that can reach the address.
    pub allow: Vec<AllowRule>,
    /// Copy what is read, so that later changes of the file do not change the reply.
    pub is_stable: bool,
    pub is_writable: bool,
    pub callers: CallerMapping,
    /// Answer port requests at port 111, by TCP and UDP.
    pub is_portmapper: bool,
    /// The most connections; a further one ends another.
    pub connections_max: usize,
}

#[derive(Debug)]
struct SharedState {
    core: Core,
    settings: Settings,
    statistics: ServerStatistics,
    pages: PagePool,
    queued_memory: QueuedMemory,
    networks: Arc<ConnectedNetworks>,
    workers: WorkerPool,
    /// Of each event loop.
    inboxes: Vec<Arc<EventLoopInbox>>,
    rotation: AlternationDetector,
    connections: AtomicUsize,
    /// The number of the next connection.
    accepted: AtomicU64,
    connections_max: usize,
    is_over: AtomicBool,
}

impl SharedState {
    /// Does work that is due from time to time, and may wait for disks, until the server ends.
    fn maintain_export(&self) {
        while !self.is_over.load(Ordering::Relaxed) {
            thread::park_timeout(event_loop::TICK);
            self.core.export().run_maintenance();
        }
    }
}

#[derive(Debug)]
pub struct Server {
    /// At least one.
    addresses: Vec<SocketAddr>,
    shared: Arc<SharedState>,
    loops: Vec<EventLoop>,
}

impl Server {
    /// Listens; nothing is answered before [`run`](Self::run).
    ///
    /// # Errors
    /// See [`ServerError`].
    pub fn bind(export: Arc<Export>, settings: Settings) -> Result<Self, ServerError> {
        let connections_max = raise_descriptor_limit().min(settings.connections_max);
        let mut listeners = listen_at_all(&settings.addresses)?;
        let addresses = listeners.iter().map(TcpListener::local_addr).collect::<io::Result<Vec<_>>>();
        let addresses = addresses.map_err(ServerError::Setup)?;
        let port = addresses[0].port();
        if settings.is_portmapper && port != portmap::PORT {
            for mut address in addresses.clone() {
                address.set_port(portmap::PORT);
                listeners.push(listen_at(address)?);
            }
        }
        let portmappers = if settings.is_portmapper { bind_portmappers(&addresses)? } else { Vec::new() };
        let portmappers: Arc<[Portmapper]> = portmappers.into();
        let listeners: Arc<[TcpListener]> = listeners.into();
        let groups = settings.allow.iter().map(ToString::to_string).collect();
        let count = thread::available_parallelism().map_or(1, usize::from).min(LOOPS_MAX);
        let inboxes = (0..count).map(|_| EventLoopInbox::new().map(Arc::new)).collect::<io::Result<_>>();
        let shared = Arc::new(SharedState {
            core: Core::new(export, groups, port)
                .writable(settings.is_writable)
                .caller_mapping(settings.callers),
            settings,
            statistics: ServerStatistics::default(),
            pages: PagePool::new(connections_max),
            queued_memory: QueuedMemory::default(),
            networks: Arc::default(),
            workers: WorkerPool::default(),
            inboxes: inboxes.map_err(ServerError::Setup)?,
            rotation: AlternationDetector::new(),
            connections: AtomicUsize::new(0),
            accepted: AtomicU64::new(event_loop::FIRST),
            connections_max,
            is_over: AtomicBool::new(false),
        });
        let loops = (0..count)
            .map(|number| {
                let listening = (Arc::clone(&listeners), Arc::clone(&portmappers));
                EventLoop::new(listening, Arc::clone(&shared), number)
            })
            .collect::<io::Result<_>>()
            .map_err(ServerError::Setup)?;
        Ok(Self { addresses, shared, loops })
    }

    /// The first of its addresses.
    pub fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Answers calls until `wait` returns; `wait` receives the progress.
    ///
    /// # Errors
    /// The kernel refuses to wait for connections.
    pub fn run(self, wait: impl FnOnce(&ServerStatus<'_>)) -> (ServerStatistics, io::Result<()>) {
        let Self { shared, loops, .. } = self;
        let wakers: Vec<_> = loops.iter().map(EventLoop::inbox_handle).collect();
        let done = thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(|| shared.workers.run_jobs(&shared));
            }
            let keeper = scope.spawn(|| shared.maintain_export());
            let threads: Vec<_> = loops.into_iter().map(|one| scope.spawn(|| one.run())).collect();
            let is_failed = || threads.iter().any(|thread| thread.is_finished());
            // A panic ends all threads, too, and goes on then: the scope waits for them.
            let waited = catch_unwind(AssertUnwindSafe(|| {
                wait(&ServerStatus { shared: &shared, is_failed: &is_failed })
            }));
            // Relaxed: a loop that does not see it when it wakes up sees it after its next tick.
            shared.is_over.store(true, Ordering::Relaxed);
            wakers.iter().for_each(|waker| waker.wake());
            let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            shared.workers.shut_down();
            keeper.thread().unpark();
            waited.unwrap_or_else(|panic| resume_unwind(panic));
            let ended = ended.into_iter().map(|end| end.unwrap_or_else(|panic| resume_unwind(panic)));
            ended.collect::<Vec<_>>().into_iter().collect()
        });
        drop(wakers);
        let shared = Arc::into_inner(shared).expect("all threads have ended");
        shared.statistics.count_index_write_errors(shared.core.index_write_errors());
        (shared.statistics, done)
    }
}

#[allow(missing_debug_implementations)]
pub struct ServerStatus<'a> {
    shared: &'a SharedState,
    is_failed: &'a dyn Fn() -> bool,
}

impl ServerStatus<'_> {
    pub fn statistics(&self) -> &ServerStatistics {
        &self.shared.statistics
    }

    /// Memory of replies that clients have not read.
    pub fn queued_bytes(&self) -> usize {
        self.shared.queued_memory.bytes()
    }

    /// Whether a thread of the server has ended by itself, which is an error.
    pub fn is_failed(&self) -> bool {
        (self.is_failed)()
    }
}

/// At the addresses that this host has; a free port is chosen once for all.
fn listen_at_all(addresses: &[SocketAddr]) -> Result<Vec<TcpListener>, ServerError> {
    let (mut listeners, mut failed) = (Vec::new(), FailedAttempts::default());
    let mut port = None;
    for mut address in addresses.iter().copied() {
        address.set_port(port.unwrap_or(address.port()));
        match listen_at(address) {
            Ok(listener) => {
                port = Some(listener.local_addr().map_err(ServerError::Setup)?.port());
                listeners.push(listener);
            }
            Err(ServerError::Listen { source, .. }) if is_address_not_local(&source) => {
                failed.record(address, source)
            }
            Err(error) => return Err(error),
        }
    }
    match (listeners.is_empty(), addresses.first()) {
        (true, Some(address)) => Err(ServerError::Listen { address: *address, source: failed.into_error() }),
        _ => Ok(listeners),
    }
}

fn bind_portmappers(addresses: &[SocketAddr]) -> Result<Vec<Portmapper>, ServerError> {
    let bind = |address: &SocketAddr| {
        let mut address = *address;
        address.set_port(portmap::PORT);
        Portmapper::bind(address).map_err(|source| ServerError::Listen { address, source })
    };
    addresses.iter().map(bind).collect()
}

fn listen_at(address: SocketAddr) -> Result<TcpListener, ServerError> {
    let listen = || {
        let listener = listen_tcp(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    listen().map_err(|source| ServerError::Listen { address, source })
}

/// Raises the limit of descriptors as far as possible without privileges; returns how many connections it
/// allows, with as many pipes.
fn raise_descriptor_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let most = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |most| most as usize);
    let others = OTHER_DESCRIPTORS.min(most / 4 * 3);
    // No underflow: `others` is at most three quarters of `most`.
    ((most - others) / 3).clamp(LOOPS_MAX, CONNECTIONS_MAX)
}
