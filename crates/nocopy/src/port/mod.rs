//! Ports: where frames enter and leave.
//!
//! A port is one queue of one interface ([`Queues`]: several). It consists of two halves that may be on two
//! threads: a [`Receiver`] and a [`Sender`], each with its own pool of frames in the port's area.
//!
//! # When the interface breaks
//!
//! | event | effect on the halves | afterwards |
//! |---|---|---|
//! | the link is lost, or the driver restarts its device (queues changed) | no error: nothing arrives, sent packets are lost or wait | the port continues |
//! | the interface is set down | errors of the kind [`io::ErrorKind::NetworkDown`]; queued packets stay queued | the port continues when it is up |
//! | it is deleted, its driver unloaded | errors of the kind [`io::ErrorKind::NotConnected`], possibly after some of the kind above | close the port; another can be opened when the interface exists again |
//!
//! In every case, all frames stay accounted for ([`Port::balance`]).

mod af_xdp;
mod backend;
mod bound_socket;
pub(crate) mod builder;
pub(crate) mod drivers;
mod error;
mod explain;
pub mod filter;
pub(crate) mod filter_control;
mod forward;
mod grant;
mod granted;
mod host_path;
mod kept;
mod ladder;
mod memory;
pub mod metadata;
mod open;
mod packet_ring;
mod proof;
pub(crate) mod queues;
mod receiver;
mod redirect;
mod requests;
mod send_only;
mod sender;
pub(crate) mod tc;
mod to_host;
mod unattached;
mod user_filter;
pub(crate) mod xdp;

use nocopy_proto::errno::ErrorCause;
use std::borrow::Cow;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use backend::Backend;
pub use builder::{PortBuilder, Purpose};
pub use error::{OpenError, ToHostError};
pub use grant::{Grant, GrantError};
pub(crate) use ladder::LADDER;
pub use queues::{NonblockingQueues, Queues};
pub use receiver::{Batch, NonblockingReceiver, Receiver};
pub use sender::{NonblockingSender, Sender};
pub use to_host::ToHost;
use user_filter::UserFilterCounters;

use crate::counter::Counter;
pub use crate::engine::wait::Wait;
use crate::events::{self, Half, Subject};
use crate::facts::evidence::{Cause, Evidence};
use crate::facts::metadata::OfferedRequests;
use crate::facts::method_explanation::Explanation;
pub use crate::facts::method_explanation::{FilterPlace, Refusal};
pub use crate::facts::mode::Mode;
use crate::memory::area::{Area, Balance, Faults, FramePool, LentFramesOnClose, no_metadata_for_mode};
pub use crate::sys::interface::InterfaceError;
use crate::sys::packet::Fanout;
use crate::sys::packet::PacketAnnouncer;
use crate::sys::poll::Wakeup;
use crate::sys::xsk::{Statistics, TX_BUDGET, TxKick};

/// One queue of one interface, for receiving and sending frames.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut port = nocopy::Port::open("eth0")?;
/// for packet in port.receiver().receive()? {
///     println!("{} bytes", packet.len());
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Port {
    receiver: Receiver,
    sender: Sender,
}

impl Port {
    /// Opens queue 0 of an interface with the defaults of [`Port::builder`]. The port receives every packet
    /// that arrives on the queue; other queues stay with the host.
    ///
    /// # Errors
    /// [`OpenError`] says what prevents it and what to do.
    pub fn open(interface: &str) -> Result<Self, OpenError> {
        Self::builder(interface).open()
    }

    /// Settings for a port to be opened.
    pub fn builder(interface: &str) -> PortBuilder {
        PortBuilder::new(interface)
    }

    /// Two linked ports in this process: each receives what the other sends. Needs no privileges; for tests,
    /// and for learning.
    ///
    /// # Errors
    /// Not enough memory for the areas.
    pub fn memory_pair() -> Result<(Self, Self), OpenError> {
        Self::memory_builder().memory_pair()
    }

    /// Settings for two linked ports in this process: [`PortBuilder::memory_pair`] makes them.
    pub fn memory_builder() -> PortBuilder {
        PortBuilder::new("memory").mode(Mode::Memory)
    }

    /// Splits the port into halves that can go to different threads.
    pub fn split(self) -> (Receiver, Sender) {
        (self.receiver, self.sender)
    }

    /// The half that receives.
    pub fn receiver(&mut self) -> &mut Receiver {
        &mut self.receiver
    }

    /// The half that sends.
    pub fn sender(&mut self) -> &mut Sender {
        &mut self.sender
    }

    /// Both halves at once, for loops that answer received packets.
    ///
    /// ```
    /// # let (mut left, mut right) = nocopy::Port::memory_pair()?;
    /// # left.sender().send_copy(b"hello")?;
    /// # left.sender().flush()?;
    /// let (receiver, sender) = right.halves();
    /// for packet in receiver.receive()? {
    ///     sender.send(packet.take())?; // an echo: the frame that it came in
    /// }
    /// sender.flush()?;
    /// assert_eq!(left.receiver().receive()?.count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn halves(&mut self) -> (&mut Receiver, &mut Sender) {
        (&mut self.receiver, &mut self.sender)
    }

    /// The port's queue.
    pub fn queue(&self) -> u32 {
        self.shared_port().queue
    }

    pub(crate) fn interface_name(&self) -> &str {
        &self.shared_port().interface
    }

    /// How frames move between the port and the kernel.
    ///
    /// ```
    /// use nocopy::{Mode, Port};
    /// let (port, _peer) = Port::memory_pair()?;
    /// assert_eq!(port.mode(), Mode::Memory); // `explain` says why
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn mode(&self) -> Mode {
        self.shared_port().mode
    }

    /// The port's mode, why other modes were refused, and which requests sent packets may carry. The halves
    /// return the same.
    pub fn explain(&self) -> Explanation {
        self.shared_port().explanation()
    }

    /// The area that contains the port's frames.
    pub fn area(&self) -> &Area {
        &self.shared_port().area
    }

    /// Counts of all frames of the area by state.
    pub fn balance(&self) -> Balance {
        self.receiver.balance();
        self.sender.balance()
    }

    fn shared_port(&self) -> &SharedPort {
        self.receiver.shared_port()
    }
}

/// The text of an error of a half; the kernel's errno is its source.
#[derive(Debug, thiserror::Error)]
#[error("{interface} queue {queue}: the port failed{cause}; {advice}", cause = ErrorCause(.source))]
struct PortError {
    interface: String,
    queue: u32,
    advice: &'static str,
    source: io::Error,
}

struct SharedPort {
    interface: String,
    /// 0 in memory mode.
    interface_index: u32,
    queue: u32,
    mode: Mode,
    /// Why the modes were not tried in the usual order.
    order: Option<&'static str>,
    /// The most frames of one sent packet, if it may have several.
    chain_frames_max: usize,
    refusals: Vec<Refusal>,
    multi_buffer: bool,
    filter: Option<FilterPlace>,
    /// Counts of packets that filters of the receiver rejected.
    filter_counters: UserFilterCounters,
    /// The requests that sent packets may carry.
    offers: OfferedRequests,
    area: Area,
    /// The kernel reads the rings and sets a flag if it needs a kick; other backends process sent packets
    /// only when kicked.
    has_kernel_rings: bool,
    /// The kernel wants room for a request in front of every packet.
    sends_with_requests: bool,
    tx_index_lags: bool,
    /// `None` only while dropping: it must be dropped before the pools.
    backend: Option<Box<dyn Backend>>,
    /// True in a forked child that gave the port up: it changes nothing of its parent's port.
    left: AtomicBool,
    /// Pools of dropped halves: the kernel may use their lent frames as long as the socket exists.
    held_pools: Mutex<Vec<FramePool>>,
}

impl SharedPort {
    /// As if this mode was the only one tried, without a filter; opening changes `order`, `refusals` and
    /// `filter`.
    fn new(
        settings: &PortBuilder,
        interface_index: u32,
        mode: Mode,
        chain_frames_max: usize,
        area: Area,
        backend: impl Backend + 'static,
    ) -> Self {
        let kernel = backend.kernel_ring_features();
        Self {
            interface: settings.interface.clone(),
            interface_index,
            queue: settings.queue,
            mode,
            order: None,
            chain_frames_max,
            refusals: Vec::new(),
            multi_buffer: settings.multi_buffer,
            filter: None,
            filter_counters: UserFilterCounters::default(),
            offers: no_metadata_for_mode(mode).1,
            area,
            has_kernel_rings: kernel.is_some(),
            sends_with_requests: kernel.is_some_and(|kernel| kernel.takes_requests),
            tx_index_lags: kernel.is_some_and(|kernel| kernel.tx_index_lags),
            backend: Some(Box::new(backend)),
            left: AtomicBool::new(false),
            held_pools: Mutex::default(),
        }
    }

    fn backend(&self) -> &dyn Backend {
        self.backend.as_deref().expect("taken only by drop")
    }

    /// Calls the backend, and adds an explanation to its errors.
    fn call_backend<T>(&self, call: impl FnOnce(&dyn Backend) -> io::Result<T>) -> io::Result<T> {
        call(self.backend()).map_err(|error| self.explain_error(error))
    }

    /// The port, or a half of it, for events.
    fn subject(&self, half: Half) -> Subject<'_> {
        Subject { half, interface: Some(&self.interface), queue: Some(self.queue) }
    }

    const fn evidence(&self) -> Evidence {
        match self.mode {
            Mode::XdpZeroCopy => Evidence::ZeroCopy,
            Mode::XdpCopyNative | Mode::XdpCopyGeneric => Evidence::Copied(Cause::XdpCopyMode),
            Mode::PacketRing => Evidence::Copied(Cause::PacketRing),
            Mode::Memory => Evidence::Copied(Cause::MemoryPort),
        }
    }

    fn statistics(&self) -> io::Result<Statistics> {
        self.backend().statistics()
    }

    fn kick_tx(&self) -> io::Result<TxKick> {
        self.call_backend(|backend| backend.kick_tx())
    }

    /// How many kicks in a row may show no progress although the kernel sends: before Linux 6.17, in copy
    /// mode, the kernel moves its index of the tx ring only when it has processed all entries it saw, and
    /// each call processes a limited number.
    fn silent_kicks_max(&self, queued: u32) -> u32 {
        if self.tx_index_lags { queued.div_ceil(TX_BUDGET) + 1 } else { 0 }
    }

    fn kick_rx(&self) -> io::Result<()> {
        self.call_backend(|backend| backend.kick_rx())
    }

    fn wait_readable(&self, timeout: Duration) -> io::Result<Wakeup> {
        self.call_backend(|backend| backend.wait_readable(timeout))
    }

    /// Checks whether the port still works; polling a ring in memory cannot show that.
    #[cold]
    fn check_alive(&self) -> io::Result<()> {
        self.call_backend(|backend| backend.check_alive())
    }

    /// Explains the kernel's errno in words.
    fn explain_error(&self, source: io::Error) -> io::Error {
        let (kind, advice) = match source.raw_os_error() {
            Some(libc::ENETDOWN) => (
                io::ErrorKind::NetworkDown,
                "the interface is down; bring it up, or open the port again if it was deleted",
            ),
            Some(libc::ENXIO | libc::EBADF) => {
                (io::ErrorKind::NotConnected, "the interface was removed; open a port on another one")
            }
            _ => return source,
        };
        let Self { interface, queue, .. } = self;
        io::Error::new(kind, PortError { interface: interface.clone(), queue: *queue, advice, source })
    }

    /// Gives the port up in a forked child: closing it then changes nothing for the parent.
    fn disown(&self) {
        self.left.store(true, Relaxed);
    }

    /// Leaves arriving packets to the host; in modes other than AF_XDP the host has them anyway.
    fn leave_packets_to_host(&self) -> bool {
        self.backend().leave_packets_to_host()
    }

    fn is_disowned(&self) -> bool {
        self.left.load(Relaxed)
    }

    /// Keeps the pool of a half that is being dropped until the whole port is dropped.
    fn hold_pool_until_drop(&self, pool: FramePool) {
        self.held_pools.lock().unwrap_or_else(PoisonError::into_inner).push(pool);
    }
}

impl AsFd for SharedPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.backend().as_fd()
    }
}

impl Drop for SharedPort {
    fn drop(&mut self) {
        // What another process continues with stays connected.
        let stays = self.is_disowned() && self.backend().to_host_context().is_some();
        let disconnected = !stays && self.backend().stop_receiving();
        drop(self.backend.take());
        let pools = std::mem::take(self.held_pools.get_mut().unwrap_or_else(PoisonError::into_inner));
        for pool in pools {
            let lent = if disconnected && self.kernel_is_done_with(&pool) {
                LentFramesOnClose::Reclaim
            } else {
                LentFramesOnClose::Retire
            };
            pool.close(lent);
        }
    }
}

impl SharedPort {
    /// Whether frames still lent to the kernel are free once the socket is closed. Lent to receive: in the
    /// copy modes, because [`wait_for_running_programs`](redirect::wait_for_running_programs) waited for all;
    /// a zero-copy device stops later, by a worker. Lent to send: never, because some drivers use the pages
    /// themselves even in copy mode (`IFF_TX_SKB_NO_LINEAR`) and closing the socket does not wait for them.
    fn kernel_is_done_with(&self, pool: &FramePool) -> bool {
        match self.mode {
            // Nothing is lent to receive, and sent packets were copied.
            Mode::PacketRing | Mode::Memory => true,
            Mode::XdpCopyNative | Mode::XdpCopyGeneric => pool.is_receiving(),
            Mode::XdpZeroCopy => false,
        }
    }
}

impl fmt::Debug for SharedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { interface, queue, mode, .. } = self;
        f.debug_struct("Inner")
            .field("interface", interface)
            .field("queue", queue)
            .field("mode", mode)
            .finish_non_exhaustive()
    }
}

const fn static_counter(name: &'static str, meaning: &'static str, value: u64) -> Counter {
    Counter { name: Cow::Borrowed(name), meaning, value }
}

pub(crate) const RX_FAULTS: [&str; 4] =
    ["rx_fault_out_of_range", "rx_fault_misaligned", "rx_fault_not_lent", "rx_fault_bad_index"];
pub(crate) const TX_FAULTS: [&str; 4] =
    ["tx_fault_out_of_range", "tx_fault_misaligned", "tx_fault_not_lent", "tx_fault_bad_index"];

/// Descriptors and indices of the kernel that a half has refused.
fn fault_counters(names: [&'static str; 4], faults: Faults, bad_index: u64) -> [Counter; 4] {
    let [out_of_range_name, misaligned_name, not_lent_name, bad_index_name] = names;
    let Faults { out_of_range, misaligned, not_lent, .. } = faults;
    [
        static_counter(out_of_range_name, "Addresses outside the area", out_of_range),
        static_counter(misaligned_name, "Frames and packets that do not lie where one can", misaligned),
        static_counter(not_lent_name, "Frames that the kernel did not have: duplicates above all", not_lent),
        static_counter(bad_index_name, "Ring indices that claim the impossible", bad_index),
    ]
}

/// Builds the two halves of a port around their shared state.
fn assemble_port(
    mut inner: SharedPort,
    rings: crate::sys::xsk::PortRings,
    pools: (FramePool, FramePool),
    announcer: Option<PacketAnnouncer>,
    settings: &PortBuilder,
) -> Port {
    let (receive_pool, send_pool) = pools;
    inner.offers = send_pool.offers();
    events::mode_taken(inner.subject(Half::Port), inner.mode, inner.order, &inner.refusals);
    let inner = Arc::new(inner);
    let shared = Arc::clone(&inner);
    let receiver = NonblockingReceiver::new(shared, rings.rx, rings.fill, receive_pool, announcer, settings);
    let sender = NonblockingSender::new(inner, rings.tx, rings.completion, send_pool, settings);
    Port { receiver: Receiver(receiver), sender: Sender(sender) }
}
