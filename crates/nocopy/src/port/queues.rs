//! Several queues of one interface over one area.

mod meter;
mod waker;

use std::io;
use std::ops::{Bound, RangeBounds};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

pub use meter::Meter;
use rustix::event::epoll;
pub use waker::Waker;

use super::receiver::{Batch, NonblockingReceiver};
use super::redirect;
use super::sender::NonblockingSender;
use super::{OpenError, Port, PortBuilder, ToHostError, Wait};
#[cfg(feature = "tokio")]
use crate::engine::asynchronous::AsyncReceiver;
use crate::engine::half::{blocking_half, receiver_half};
use crate::engine::wait::{self, WaitSource, WakeupCoalescer};
use crate::facts::evidence::Ledger;
use crate::facts::method_explanation::Explanation;
use crate::port::filter::Program;
use crate::stats::Stats;
use crate::sys::poll::{Wakeup, wait_readable};
use crate::sys::timed_epoll::TimedEpoll;

/// Ports on several queues of one interface, over one area: used as one, or (as `Vec<Port>`) one per thread.
///
/// Frames received on one queue may be sent on any other.
///
/// # The queue of a packet
///
/// The card chooses the queue, and a port does not change that. Usually the card hashes addresses and ports
/// of each packet (receive-side scaling) and looks the queue up in a table, so that a flow stays on one queue
/// and in order. Commands to show and change this:
///
/// | | |
/// |---|---|
/// | `ethtool -l eth0`, `ethtool -L eth0 combined 4` | how many queues there are |
/// | `ethtool -x eth0`, `ethtool -X eth0 equal 2` | the table: here, the first two queues share everything |
/// | `ethtool -n eth0 rx-flow-hash udp4`, `ethtool -N eth0 rx-flow-hash udp4 sdfn` | what is hashed; for UDP often only the addresses |
/// | `ethtool -N eth0 flow-type udp4 dst-port 9000 action 3` | one flow to one queue: the rest stays with the host on the others |
///
/// On most cards, packets that are not IP arrive on queue 0.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut queues = nocopy::Port::builder("eth0").open_queues(..)?;
/// loop {
///     let batch = queues.receive()?;
///     println!("queue {}: {} packets", batch.queue(), batch.count());
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Queues(NonblockingQueues);

blocking_half!(Queues, NonblockingQueues);

impl Queues {
    /// Waits for packets on any queue and returns them as one batch of one queue ([`Batch::queue`]); queues
    /// take turns. A signal may end the wait early, with an empty batch.
    ///
    /// # Errors
    /// The interface is down or was removed.
    pub fn receive(&mut self) -> io::Result<Batch<'_>> {
        self.receive_until(None)
    }

    /// Like [`Queues::receive`], but returns an empty batch if nothing arrives for `timeout`.
    ///
    /// # Errors
    /// The interface is down or was removed.
    pub fn receive_timeout(&mut self, timeout: Duration) -> io::Result<Batch<'_>> {
        self.receive_until(Instant::now().checked_add(timeout))
    }

    fn receive_until(&mut self, deadline: Option<Instant>) -> io::Result<Batch<'_>> {
        let half = &mut self.0;
        if !half.is_ready() {
            wait::wait(half, half.wait, deadline)?;
        }
        half.take_batch_in_turn()
    }

    /// Changes how to wait, from the next wait on.
    pub fn set_wait(&mut self, wait: Wait) {
        self.0.wait = wait;
        self.0.coalescer = WakeupCoalescer::default();
    }

    /// The ports, one for each queue, in the order of the queues.
    ///
    /// ```no_run
    /// let mut queues = nocopy::Port::builder("eth0").open_queues(..2)?;
    /// let frames: Vec<_> = queues.receive()?.map(|packet| packet.take()).collect();
    /// let [first, _] = queues.ports() else { return Ok(()) };
    /// for frame in frames {
    ///     first.sender().send(frame)?; // wherever it came from: the area is one
    /// }
    /// first.sender().flush()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn ports(&mut self) -> &mut [Port] {
        &mut self.0.ports
    }

    /// All queues as one half for a tokio program, whose `receive` is a future. Dropping it does not wait for
    /// frames that are being sent.
    ///
    /// # Errors
    /// No descriptor is left.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[cfg(feature = "tokio")]
    pub fn into_async(mut self) -> io::Result<AsyncReceiver<NonblockingQueues>> {
        self.0.senders().for_each(|sender| sender.drop_timeout = Duration::ZERO);
        AsyncReceiver::new(self.0)
    }

    /// Leaves packets to the host from now on. Those already in the rings can still be received, so that
    /// nothing is lost or uncounted when the ports are closed. In packet ring mode the host has its packets
    /// anyway, and nothing changes.
    ///
    /// Returns whether the kernel certainly takes no more packets. If the ports were granted, or the kernel
    /// refuses bpf(2) (before Linux 5.19, without privileges and with `kernel.unprivileged_bpf_disabled`
    /// set), only closing the ports stops it.
    #[doc(hidden)]
    pub fn stop_taking(&self) -> bool {
        // Arms every port, even after one that fails, so that one wait covers all.
        let refused = self.0.ports.iter().filter(|port| !port.shared_port().leave_packets_to_host()).count();
        redirect::wait_for_running_programs() && refused == 0
    }

    /// Gives the ports up in a forked child, without changing the parent's: those keep their queues, no
    /// program is detached, and the call does not wait. Needs `PortTuning::inherited`; no batch, packet or
    /// frame of these ports may be used afterwards.
    ///
    /// A child that does not call this keeps the parent's program on the interface and its sockets open as
    /// long as it has the descriptors: the kernel removes them when the last process has closed them.
    /// Dropping the ports instead would take the parent's packets away.
    #[doc(hidden)]
    pub fn disown(self) {
        self.0.ports.iter().for_each(|port| port.shared_port().disown());
    }
}

/// What never waits of [`Queues`]: both they and their asynchronous form deref to this.
#[derive(Debug)]
pub struct NonblockingQueues {
    ports: Vec<Port>,
    /// Readable while packets wait on any queue.
    poll: OwnedFd,
    next: usize,
    wait: Wait,
    coalescer: WakeupCoalescer,
    timed_epoll: TimedEpoll,
    /// Set if another thread may end a wait.
    waker: Option<Waker>,
    /// For meters: packets handed out; and the ring positions at which they were counted.
    received: Arc<AtomicU64>,
    read: Vec<u32>,
}

impl From<Queues> for Vec<Port> {
    /// One port for each queue, to be moved to threads.
    ///
    /// ```no_run
    /// use nocopy::Port;
    /// let queues = Port::builder("eth0").open_queues(..)?;
    /// for mut port in Vec::<Port>::from(queues) {
    ///     std::thread::spawn(move || {
    ///         port.receiver().receive().map(|batch| batch.count())
    ///     });
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn from(queues: Queues) -> Self {
        queues.0.ports
    }
}

/// The epoll value of a wake, instead of a port's.
const WAKE: u64 = u64::MAX;

impl PortBuilder {
    /// Opens a port on each of several queues of the interface, `..` for all, over one area with a pool for
    /// each half of each port. Frame counts and ring sizes are those of each port; [`PortBuilder::queue`] is
    /// ignored. Each AF_XDP socket registers the area: the kernel counts it as locked memory once per queue,
    /// if that is limited (`ulimit -l`).
    ///
    /// # Errors
    /// As [`PortBuilder::open`]; if one port cannot be opened, none stays open.
    pub fn open_queues(self, queues: impl RangeBounds<u32>) -> Result<Queues, OpenError> {
        self.check_settings()?;
        let interface = self.check_interface()?;
        let first = match queues.start_bound() {
            Bound::Included(first) => *first,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match queues.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => interface.rx_queues,
        };
        if first >= end {
            return Err(OpenError::NoQueue { interface: self.interface });
        }
        if end > interface.rx_queues {
            let (queue, queues) = (first.max(interface.rx_queues), interface.rx_queues);
            return Err(OpenError::QueueOutOfRange { interface: self.interface, queue, queues });
        }
        let area = self.area_for_ports(&interface, end - first)?;
        let ports: Vec<Port> = (first..end)
            .map(|queue| self.clone().area(&area).queue(queue).open())
            .collect::<Result<_, _>>()?;
        let refused = |error| self.system_error("make an epoll descriptor", error);
        let poll = epoll_on_ports(&ports).map_err(refused)?;
        let timed_epoll = TimedEpoll::open().map_err(refused)?;
        Ok(Queues(NonblockingQueues {
            read: ports.iter().map(|port| port.receiver.read_descriptors()).collect(),
            ports,
            poll,
            next: 0,
            wait: self.wait,
            coalescer: WakeupCoalescer::default(),
            timed_epoll,
            waker: None,
            received: Arc::default(),
        }))
    }

    /// The number of receive queues of the interface; 1 if its driver does not report it.
    ///
    /// # Errors
    /// There is no such interface.
    #[doc(hidden)]
    pub fn queue_count(&self) -> Result<u32, OpenError> {
        Ok(self.look_up_interface()?.rx_queues)
    }
}

/// An epoll descriptor on all ports.
fn epoll_on_ports(ports: &[Port]) -> io::Result<OwnedFd> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (place, port) in (0..).zip(ports) {
        epoll::add(
            &poll,
            port.receiver.port_descriptor(),
            epoll::EventData::new_u64(place),
            epoll::EventFlags::IN,
        )?;
    }
    Ok(poll)
}

impl NonblockingQueues {
    /// The sending halves, one for each queue, in the order of the queues.
    ///
    /// ```no_run
    /// let mut queues = nocopy::Port::builder("eth0").open_queues(..)?;
    /// let frames: Vec<_> = queues.receive()?.map(|packet| packet.take()).collect();
    /// let Some(first) = queues.senders().next() else { return Ok(()) };
    /// for frame in frames {
    ///     first.send(frame)?; // wherever it came from: the area is one
    /// }
    /// first.try_flush()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn senders(&mut self) -> impl Iterator<Item = &mut NonblockingSender> {
        self.ports.iter_mut().map(|port| &mut port.sender.0)
    }

    pub(super) fn first_port(&self) -> &Port {
        &self.ports[0] // there is at least one
    }

    /// A batch of the next queue in turn that has packets, possibly empty.
    fn take_batch_in_turn(&mut self) -> io::Result<Batch<'_>> {
        self.add_received_counts();
        let turn = self.next_ready_queue().unwrap_or(self.next);
        self.next = (turn + 1) % self.ports.len();
        self.ports[turn].receiver.try_receive()
    }

    /// Adds what was read since the last call to the meters' count.
    fn add_received_counts(&mut self) {
        let mut received = self.received.load(Relaxed);
        for (port, before) in self.ports.iter().zip(&mut self.read) {
            let read = port.receiver.read_descriptors();
            received += u64::from(read.wrapping_sub(std::mem::replace(before, read)));
        }
        self.received.store(received, Relaxed); // nobody else stores
    }

    /// Returns waiting packets of one queue, possibly none, without waiting; queues take turns.
    ///
    /// # Errors
    /// The interface is down or was removed, if the kernel had to be asked for packets.
    pub fn try_receive(&mut self) -> io::Result<Batch<'_>> {
        if self.next_ready_queue().is_none() {
            self.receivers().try_for_each(WaitSource::wake_kernel)?;
        }
        self.take_batch_in_turn()
    }

    /// The number of packets that arrived since the ports were opened (of buffers, if packets may have
    /// several), and how many of them are still in the rings; before any filter in user space. Reads memory
    /// only.
    #[doc(hidden)]
    pub fn arrival_counts(&mut self) -> (u64, u32) {
        self.add_received_counts();
        let waiting =
            self.receivers().map(|receiver| receiver.waiting_descriptors()).fold(0, u32::saturating_add);
        (self.received.load(Relaxed) + u64::from(waiting), waiting)
    }

    /// A handle that ends a wait from another thread, or from a signal handler. From now on a wake also makes
    /// the descriptor ([`AsFd`]) readable, until the wake has ended a wait or [`Waker::take_pending_wake`]
    /// was called.
    ///
    /// # Errors
    /// No descriptor is left.
    #[doc(hidden)]
    pub fn waker(&mut self) -> io::Result<Waker> {
        if let Some(waker) = &self.waker {
            return Ok(waker.clone());
        }
        let waker = Waker::new()?;
        epoll::add(&self.poll, &waker, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        self.waker = Some(waker.clone());
        Ok(waker)
    }

    /// A handle that reads the counts of all ports, also from other threads.
    #[doc(hidden)]
    pub fn meter(&self) -> Meter {
        let ports = self.ports.iter().map(|port| port.receiver.downgrade_port()).collect();
        Meter { ports, received: Arc::clone(&self.received) }
    }

    /// Runs a second filter in the receivers, in addition to the kernel's; it also applies to packets that
    /// are already in the rings. Packets that do not match are returned to the host
    /// ([`ToHost`](super::ToHost)); in packet ring mode the host has them anyway. `None` removes the filter.
    /// Rejected packets are counted in `filter_to_host` and `filter_lost` of [`stats`](Self::stats).
    ///
    /// # Errors
    /// Packets cannot be returned to the host. Programs that drop their privileges must set
    /// `PortTuning::prepare_host_path` first. On an error the old filter stays.
    #[doc(hidden)]
    pub fn filter_in_user_space(&mut self, filter: Option<&Program>) -> Result<(), ToHostError> {
        let filters = self.ports.iter().map(|port| port.receiver.make_user_filter(filter));
        let filters: Vec<_> = filters.collect::<Result<_, _>>()?;
        for (port, filter) in self.ports.iter_mut().zip(filters) {
            port.receiver.replace_user_filter(filter);
        }
        Ok(())
    }

    /// The bytes that were received on all queues; see [`NonblockingReceiver::ledger`].
    pub fn ledger(&self) -> Ledger {
        self.ports.iter().map(|port| port.receiver.ledger()).sum()
    }

    /// All counters, summed over all queues; see [`NonblockingReceiver::stats`].
    pub fn stats(&self) -> Stats {
        self.ports.iter().map(|port| port.receiver.stats()).sum()
    }

    /// The explanation of each port, queue by queue. The fields have the refusals of all ports, and otherwise
    /// the first port's values; `evidence` is unknown if the ports differ.
    ///
    /// ```no_run
    /// let queues = nocopy::Port::builder("eth0").open_queues(..)?;
    /// println!("{}", queues.explain()); // why each queue has the mode that it has
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn explain(&self) -> Explanation {
        Explanation::joined(self.ports.iter().map(Port::explain)).expect("at least one queue")
    }

    /// The next queue in turn that has packets.
    fn next_ready_queue(&mut self) -> Option<usize> {
        let count = self.ports.len();
        (self.next..self.next + count)
            .map(|turn| turn % count)
            .find(|turn| self.ports[*turn].receiver.is_ready())
    }

    /// Prepares all ports for a wait on the descriptor ([`AsFd`]), as [`NonblockingReceiver::arm`] does for
    /// one, and returns whether packets are waiting already.
    ///
    /// # Errors
    /// The interface is down or was removed.
    pub fn arm(&mut self) -> io::Result<bool> {
        let mut ready = false;
        for port in &mut self.ports {
            ready |= port.receiver.arm()?;
        }
        let lacks_frames = self.ports.iter().any(|port| port.receiver.lacks_frames());
        self.timed_epoll.set_timer((!ready && lacks_frames).then_some(wait::STARVED_INTERVAL))?;
        Ok(ready)
    }

    fn receivers(&mut self) -> impl Iterator<Item = &mut NonblockingReceiver> {
        self.ports.iter_mut().map(|port| &mut port.receiver.0)
    }
}

impl WaitSource for NonblockingQueues {
    fn is_ready(&mut self) -> bool {
        self.next_ready_queue().is_some()
    }

    fn arm(&mut self) -> io::Result<bool> {
        Self::arm(self)
    }

    fn refill_and_wake(&mut self) -> io::Result<()> {
        self.receivers().try_for_each(WaitSource::refill_and_wake)
    }

    fn wake_kernel(&mut self) -> io::Result<()> {
        self.receivers().try_for_each(WaitSource::wake_kernel)
    }

    fn check_usable(&mut self) -> io::Result<()> {
        self.receivers().try_for_each(WaitSource::check_usable)
    }

    fn sleep_max(&self) -> Duration {
        self.ports.iter().map(|port| port.receiver.sleep_max()).min().expect("at least one queue")
    }

    fn is_starved(&mut self) -> bool {
        self.receivers().any(WaitSource::is_starved)
    }

    fn wait_readable(&mut self, timeout: Duration) -> io::Result<Wakeup> {
        let wakeup = wait_readable(self.poll.as_fd(), timeout)?;
        // The wake is consumed here, or it would end the next wait, too.
        Ok(if wakeup == Wakeup::Ready && self.waker.as_ref().is_some_and(Waker::take_pending_wake) {
            Wakeup::Interrupted
        } else {
            wakeup
        })
    }

    fn is_woken(&mut self) -> bool {
        self.waker.as_ref().is_some_and(|waker| waker.has_pending_wake() && waker.take_pending_wake())
    }

    fn sleep(&mut self, duration: Duration) -> io::Result<bool> {
        let Some(waker) = &self.waker else {
            std::thread::sleep(duration);
            return Ok(false);
        };
        match wait_readable(waker.as_fd(), duration)? {
            Wakeup::TimedOut => Ok(false),
            Wakeup::Interrupted => Ok(true),
            Wakeup::Ready => Ok(waker.take_pending_wake()),
        }
    }

    fn read_count_and_room(&self) -> (u32, u32) {
        self.ports
            .iter()
            .map(|port| port.receiver.read_count_and_room())
            .fold((0, u32::MAX), wait::combine_counts_and_rooms)
    }

    fn coalescer(&mut self) -> &mut WakeupCoalescer {
        &mut self.coalescer
    }
}

impl AsFd for NonblockingQueues {
    /// Readable when packets are waiting on any queue; call [`arm`](Self::arm) before waiting for it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timed_epoll.descriptor(Some(self.poll.as_fd()))
    }
}

receiver_half!(NonblockingQueues, Batch<'half>);
