//! The half that receives.

mod blocking;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

pub use blocking::Receiver;

use super::user_filter::{UnmatchedDestination, UserFilter};
use super::{
    Mode, PortBuilder, RX_FAULTS, SharedPort, ToHost, ToHostError, Wait, fault_counters, static_counter,
};
use crate::engine::half::receiver_half;
use crate::engine::wait::{self, WaitSource, WakeupCoalescer};
use crate::events::{self, Half};
use crate::facts::evidence::{Evidence, Ledger};
use crate::facts::method_explanation::Explanation;
use crate::memory::area::{Balance, Chain, Faults, Frame, FramePool, Packet, PacketClaimer};
use crate::port::filter::Program;
use crate::ring::{Consumer, Producer, ReadyEntries};
use crate::stats::Stats;
use crate::sys::packet::PacketAnnouncer;
use crate::sys::poll::Wakeup;
use crate::sys::timed_epoll::TimedEpoll;
use crate::sys::xsk::{Descriptor, PACKET_CONTINUES};

/// How far ahead of the packet being handed out the next ones are prefetched. Measured on one machine with
/// 64-byte packets at full rate: 3.4 M/s with 4 and 8, 3.7 M/s with 16 and 32 (`nocopy bench capture`).
const PREFETCH_AHEAD: u32 = 16;

#[derive(Debug, Clone, Copy, Default)]
struct ReceiveCounts {
    faults: Faults,
    packets: u64,
    bytes: u64,
}

/// What never waits of a [`Receiver`]: both it and its asynchronous form deref to this.
#[derive(Debug)]
pub struct NonblockingReceiver {
    rx: Consumer<Descriptor>,
    fill: Producer<u64>,
    pool: FramePool,
    counts: ReceiveCounts,
    /// Nothing was received yet that the kernel copied, and it will.
    awaits_first_copy: bool,
    queue: u32,
    batch: u32,
    multi_buffer: bool,
    /// In packet ring mode: the kernel's end of the rx ring. Owned by the receiver, so that it runs only when
    /// no packet is borrowed.
    announcer: Option<PacketAnnouncer>,
    /// A filter that the kernel does not run.
    filter: Option<Box<UserFilter>>,
    wait: Wait,
    coalescer: WakeupCoalescer,
    timed_epoll: TimedEpoll,
    /// Last, so that the rings are unmapped before the socket is closed: a mapping keeps it open.
    inner: Arc<SharedPort>,
}

impl NonblockingReceiver {
    pub(super) fn new(
        inner: Arc<SharedPort>,
        rx: Consumer<Descriptor>,
        mut fill: Producer<u64>,
        pool: FramePool,
        announcer: Option<PacketAnnouncer>,
        settings: &PortBuilder,
    ) -> Self {
        pool.refill(&mut fill);
        let awaits_first_copy = matches!(inner.evidence(), Evidence::Copied(_));
        let (batch, wait, multi_buffer) = (settings.batch, settings.wait, settings.multi_buffer);
        Self {
            queue: inner.queue,
            inner,
            rx,
            fill,
            pool,
            counts: ReceiveCounts::default(),
            awaits_first_copy,
            batch,
            multi_buffer,
            announcer,
            filter: None,
            wait,
            coalescer: WakeupCoalescer::default(),
            timed_epoll: TimedEpoll::default(),
        }
    }

    /// Makes the device take frames from the fill ring, if it needs a kick: otherwise packets that arrive
    /// before the first [`Receiver::receive`] find no frame.
    pub(super) fn kick_fill_ring(&mut self) -> io::Result<()> {
        self.wake_kernel()
    }

    /// Returns waiting packets, possibly none, without waiting.
    ///
    /// # Errors
    /// The interface is down or was removed, if the kernel had to be asked for packets.
    #[inline(always)] // a call would return the batch in memory, and every packet would read it there
    pub fn try_receive(&mut self) -> io::Result<Batch<'_>> {
        if self.rx.available(1) == 0 {
            self.wake_kernel()?;
        }
        Ok(self.take_batch())
    }

    /// Whether the length of a batch must be computed, because it may differ from the number of descriptors.
    #[inline]
    fn counts_descriptors(&self) -> bool {
        self.pool.has_blocks() || self.multi_buffer || self.filter.is_some()
    }

    /// How many descriptors to take so that the batch ends with a whole packet, and each packet in a block
    /// has a free frame.
    #[cold]
    fn complete_packet_descriptors(&mut self) -> u32 {
        // Taken out while it runs, because that needs the rest of `self`; it is put back at the end.
        if let Some(filter) = self.filter.take() {
            return self.matching_descriptors(filter);
        }
        let room = self.descriptor_room();
        if !self.multi_buffer {
            return self.batch.min(room);
        }
        let words = self.rx.ready_entries(u32::MAX);
        let (mut whole, mut next) = (0, 0);
        while let Some(word) = words.entry_at(next).filter(|_| next < room && whole < self.batch) {
            next += 1;
            if word.options & PACKET_CONTINUES == 0 {
                whole = next;
            }
        }
        whole
    }

    /// The number of descriptors that fit, if each needs a free frame.
    fn descriptor_room(&self) -> u32 {
        if self.pool.has_blocks() { self.pool.free_count() } else { u32::MAX }
    }

    /// As [`complete_packet_descriptors`](Self::complete_packet_descriptors), for matching packets up to the
    /// next one that does not match; rejects packets before the first match.
    ///
    /// The kernel continues to fill the ring during this, so the caller checks the clock after each batch of
    /// rejected packets.
    fn matching_descriptors(&mut self, mut filter: Box<UserFilter>) -> u32 {
        // An announcer adds to the ring only when this thread asks it to, so the loop ends by itself.
        let mut patience = if self.announcer.is_some() { u32::MAX } else { self.batch };
        let words = loop {
            let limits = (self.descriptor_room(), self.batch);
            let (claims, words) = (self.pool.claimer(), self.rx.ready_entries(u32::MAX));
            let unmatched = filter.run_length(false, claims, |at| words.entry_at(at), limits);
            if unmatched == 0 {
                break filter.run_length(true, claims, |at| words.entry_at(at), limits);
            }
            if patience == 0 {
                break 0;
            }
            patience = patience.saturating_sub(unmatched);
            // None was taken, so all are still there for the batch.
            drop(words);
            let ReceiveCounts { packets, bytes, .. } = self.counts;
            let (mut to_host, mut lost) = (0, 0);
            let mut batch = self.batch_of_descriptors(unmatched);
            while let Some(packet) = batch.next_chain() {
                *(if filter.pass_to_host(&packet) { &mut to_host } else { &mut lost }) += 1;
            }
            drop(batch);
            self.inner.filter_counters.add_counts(to_host, lost);
            // Counted as rejected, not as received.
            self.counts = ReceiveCounts { packets, bytes, ..self.counts };
        };
        self.filter = Some(filter);
        words
    }

    pub(super) fn set_user_filter(&mut self, filter: UserFilter) {
        self.filter = Some(Box::new(filter));
    }

    /// A filter to be run by this receiver, if `program` is given, for
    /// [`replace_user_filter`](Self::replace_user_filter).
    pub(super) fn make_user_filter(
        &self,
        program: Option<&Program>,
    ) -> Result<Option<UserFilter>, ToHostError> {
        let Some(program) = program else { return Ok(None) };
        let rest = match self.inner.mode {
            Mode::PacketRing => UnmatchedDestination::HostHas,
            Mode::Memory => UnmatchedDestination::Lost,
            _ => UnmatchedDestination::HandOver(Box::new(self.to_host()?)),
        };
        Ok(Some(UserFilter::new(program.clone(), self.inner.interface_index, self.inner.queue, rest)))
    }

    pub(super) fn replace_user_filter(&mut self, filter: Option<UserFilter>) {
        self.filter = filter.map(Box::new);
    }

    /// Entries of the rx ring that are ready to be read.
    pub(super) fn waiting_descriptors(&mut self) -> u32 {
        self.rx.available(u32::MAX)
    }

    /// Entries of the rx ring read since it was made, modulo 2^32.
    pub(super) fn read_descriptors(&self) -> u32 {
        self.rx.read_total()
    }

    pub(super) fn downgrade_port(&self) -> Weak<SharedPort> {
        Arc::downgrade(&self.inner)
    }

    #[inline]
    fn take_batch(&mut self) -> Batch<'_> {
        let words = if self.counts_descriptors() { self.complete_packet_descriptors() } else { self.batch };
        if events::ENABLED && self.awaits_first_copy && words.min(self.rx.available(1)) > 0 {
            self.report_first_copy();
        }
        self.batch_of_descriptors(words)
    }

    #[cold]
    fn report_first_copy(&mut self) {
        self.awaits_first_copy = false;
        if let Evidence::Copied(cause) = self.evidence() {
            events::first_copy(self.inner.subject(Half::PortReceiver), cause);
        }
    }

    #[inline]
    fn batch_of_descriptors(&mut self, words: u32) -> Batch<'_> {
        let packets = self.rx.ready_entries(words);
        Batch {
            first: packets.position(),
            faults_before: self.counts.faults.total,
            packets,
            fill: &mut self.fill,
            claims: self.pool.claimer(),
            counts: &mut self.counts,
            pieces: 0,
            queue: self.queue,
        }
    }

    pub(crate) fn wait_setting(&self) -> Wait {
        self.wait
    }

    pub(crate) fn is_multi_buffer(&self) -> bool {
        self.multi_buffer
    }

    /// How to wait, for [`Receiver::set_wait`] and for what waits with this half as a part of it.
    pub(crate) fn set_wait_setting(&mut self, wait: Wait) {
        self.wait = wait;
        self.coalescer = WakeupCoalescer::default();
    }

    /// Prepares for a wait on the descriptor ([`AsFd`]) by epoll or an async runtime, and returns whether
    /// packets are waiting already; if so, do not wait. Call it before every such wait: unlike `poll(2)`,
    /// epoll does not make the kernel process the rings.
    ///
    /// While the program holds all frames, so that the kernel has none to receive into, the descriptor
    /// becomes readable once a millisecond: no event reports the return of a frame.
    ///
    /// # Errors
    /// The interface is down or was removed.
    pub fn arm(&mut self) -> io::Result<bool> {
        self.pool.refill(&mut self.fill);
        if self.is_ready() {
            return Ok(true);
        }
        self.resume_rings()?;
        // Again: the call may have announced packets (packet ring), or consumed the event of their arrival
        // (memory port).
        if self.is_ready() {
            return Ok(true);
        }
        // Waking an AF_XDP socket has already checked the interface.
        if self.announcer.is_some() {
            self.inner.check_alive()?;
        }
        let set_timer = self.lacks_frames().then_some(wait::STARVED_INTERVAL);
        self.timed_epoll.set_timer(set_timer)?;
        Ok(false)
    }

    /// Makes the kernel's end of the rings continue. All announced packets were read, so none is borrowed
    /// now.
    fn resume_rings(&mut self) -> io::Result<()> {
        match &mut self.announcer {
            Some(announcer) => {
                drop(self.rx.ready_entries(0)); // gives back the words of a batch that was forgotten
                announcer.announce_arrived();
                Ok(())
            }
            None => self.inner.kick_rx(),
        }
    }

    /// Takes a frame back for receiving into: without an atomic operation if it was received here, otherwise
    /// like dropping it.
    ///
    /// ```
    /// # let (mut left, mut right) = nocopy::Port::memory_pair()?;
    /// # left.sender().send_copy(b"hello")?;
    /// # left.sender().flush()?;
    /// let frame = right.receiver().receive()?.next().expect("one packet").take();
    /// assert_eq!(right.balance().in_use, 1);
    /// right.receiver().recycle(frame);
    /// assert_eq!(right.balance().in_use, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn recycle(&mut self, frame: Frame) {
        self.pool.recycle(frame);
    }

    /// Makes a handle that returns packets to the host's network stack. It can be used on any thread in the
    /// port's network namespace.
    ///
    /// [`ToHost`] shows how to use it.
    ///
    /// ```
    /// # let (mut port, _peer) = nocopy::Port::memory_pair()?;
    /// use nocopy::port::ToHostError;
    /// assert!(matches!(port.receiver().to_host(), Err(ToHostError::MemoryPort)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The kernel is older than 5.18, a capability is missing, or the interface was removed; the port is in
    /// packet ring mode, in which the host has all packets anyway, or in memory mode.
    pub fn to_host(&self) -> Result<ToHost, ToHostError> {
        ToHost::of_port(&self.inner)
    }

    pub(crate) fn evidence(&self) -> Evidence {
        self.inner.evidence()
    }

    /// The properties of the port; see [`Port::explain`](super::Port::explain).
    pub fn explain(&self) -> Explanation {
        self.inner.explanation()
    }

    /// The evidence for received bytes: the port's mode decides whether they were copied between wire and
    /// area.
    pub fn ledger(&self) -> Ledger {
        let mut ledger = Ledger::default();
        ledger.add(self.evidence(), self.counts.packets, self.counts.bytes);
        ledger
    }

    /// All counters; their names are in the documentation of [`Receiver`]. Those that the kernel refuses to
    /// return are absent.
    pub fn stats(&self) -> Stats {
        let kernel = self.inner.statistics().unwrap_or_default();
        let bad_index = self.rx.bad_indices() + self.fill.bad_indices();
        let (to_host, lost) =
            (self.inner.filter_counters.to_host_count(), self.inner.filter_counters.lost_count());
        Stats::with_moved(self.counts.packets, self.counts.bytes)
            .with_dropped(kernel.counters_named(&["rx_dropped", "rx_ring_full", "tp_drops"]))
            .with_dropped([static_counter(
                "filter_lost",
                "Packets that no filter matched, and the host could not be given",
                lost,
            )])
            .with_faults(fault_counters(RX_FAULTS, self.counts.faults, bad_index))
            .with_faults(kernel.counters_named(&["rx_invalid_descs"]))
            .with_counters(kernel.counters_named(&["rx_fill_ring_empty_descs", "tp_freeze_q_cnt"]))
            .with_counters([
                static_counter(
                    "filter_to_host",
                    "Packets that a filter in user space left to the host",
                    to_host,
                ),
                static_counter(
                    "rx_copied_out",
                    "Packets that were copied out of a packet ring to be owned",
                    self.pool.copied_count(),
                ),
            ])
    }

    /// Where every frame of the area is; exact if the other half is idle and has flushed, reaped or returned
    /// its balance since its last work.
    pub(crate) fn balance(&self) -> Balance {
        self.pool.balance()
    }

    pub(super) fn shared_port(&self) -> &SharedPort {
        &self.inner
    }

    /// The kernel has no frame, and none can be lent to it.
    pub(crate) fn lacks_frames(&self) -> bool {
        self.pool.lent_count() == 0 && self.pool.free_count() == 0
    }

    /// The descriptor of the port itself, which is readable only when packets are waiting.
    pub(crate) fn port_descriptor(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

receiver_half!(NonblockingReceiver, Batch<'half>);

impl WaitSource for NonblockingReceiver {
    #[inline]
    fn is_ready(&mut self) -> bool {
        self.rx.available(1) > 0 && (!self.counts_descriptors() || self.complete_packet_descriptors() > 0)
    }

    fn arm(&mut self) -> io::Result<bool> {
        Self::arm(self)
    }

    fn refill_and_wake(&mut self) -> io::Result<()> {
        self.pool.refill(&mut self.fill);
        self.wake_kernel()
    }

    #[inline]
    fn wake_kernel(&mut self) -> io::Result<()> {
        if self.fill.needs_wakeup() { self.resume_rings() } else { Ok(()) }
    }

    fn check_usable(&mut self) -> io::Result<()> {
        self.inner.check_alive()
    }

    fn sleep_max(&self) -> Duration {
        // Neither returned frames nor a removed interface end the kernel's wait.
        if self.lacks_frames() { wait::STARVED_INTERVAL } else { wait::CHECK_INTERVAL }
    }

    fn is_starved(&mut self) -> bool {
        self.announcer.is_some() && self.rx.available(1) > 0 && self.complete_packet_descriptors() == 0
    }

    fn wait_readable(&mut self, timeout: Duration) -> io::Result<Wakeup> {
        self.inner.wait_readable(timeout)
    }

    fn read_count_and_room(&self) -> (u32, u32) {
        let lent = u32::try_from(self.pool.lent_count()).unwrap_or(u32::MAX);
        let room = if self.announcer.is_some() { u32::MAX } else { lent };
        (self.rx.read_total(), self.rx.capacity().min(room))
    }

    fn coalescer(&mut self) -> &mut WakeupCoalescer {
        &mut self.coalescer
    }
}

impl AsFd for NonblockingReceiver {
    /// Readable when packets are waiting; call [`arm`](Self::arm) before waiting for it.
    ///
    /// # Panics
    /// At the first call, if no descriptor is left.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timed_epoll.descriptor(Some(self.inner.as_fd()))
    }
}

impl AsRawFd for NonblockingReceiver {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for NonblockingReceiver {
    fn drop(&mut self) {
        self.inner.hold_pool_until_drop(self.pool.take());
    }
}

/// Received packets, borrowed from the receiver: an iterator over [`Packet`]s. When the batch is dropped, its
/// ring slots return to the kernel with one store, and the frames of packets that were not taken return to
/// the fill ring with another. Packets not iterated over stay in the ring for the next batch.
#[derive(Debug)]
pub struct Batch<'half> {
    packets: ReadyEntries<'half, Descriptor>,
    fill: &'half mut Producer<u64>,
    claims: PacketClaimer<'half>,
    counts: &'half mut ReceiveCounts,
    /// The batch's start in the ring: the distance from it counts buffers, without a counter.
    first: u32,
    /// Faults counted before the batch: each later one is a refused descriptor of the batch.
    faults_before: u64,
    /// Buffers that are not the first of their packet.
    pieces: u64,
    queue: u32,
}

impl Batch<'_> {
    /// Whether the batch has no more packets.
    pub fn is_empty(&self) -> bool {
        self.packets.len() == 0
    }

    /// Begins to load the first packet, of whose bytes another processor's cache may have the newest; false
    /// if the batch is empty.
    #[cfg(feature = "message")]
    #[inline]
    pub(crate) fn prefetch_first(&self) -> bool {
        let first = self.packets.entry_hint(0);
        if let Some(Descriptor { address, .. }) = first {
            (0..3).for_each(|line| self.claims.prefetch(address + 64 * line));
        }
        first.is_some()
    }

    /// The queue on which the packets arrived.
    pub fn queue(&self) -> u32 {
        self.queue
    }
}

impl<'half> Batch<'half> {
    /// The next packet, without prefetching the packets after it: for a loop that claims many packets before
    /// it reads any, because the prefetched lines would evict each other from the nearest cache. See
    /// [`Packet::prefetch_arrival`]. For a packet in several buffers, one buffer, as with iteration.
    #[doc(hidden)]
    #[inline]
    pub fn claim(&mut self) -> Option<Packet<'half>> {
        loop {
            let descriptor = self.packets.next()?;
            if let Some(packet) = self.claims.claim(descriptor, &mut self.counts.faults) {
                self.counts.bytes += packet.len() as u64;
                return Some(packet);
            }
        }
    }

    /// The next packet as a whole, on a port opened with [`multi_buffer`](PortBuilder::multi_buffer): a chain
    /// of its buffers. (Iterating over the batch returns buffers singly; if it stopped inside a packet, this
    /// returns the rest of it.) On other ports each packet is a chain of one.
    pub fn next_chain(&mut self) -> Option<Chain<Packet<'half>>> {
        loop {
            let (mut chain, mut is_whole) = (Chain::new(), true);
            loop {
                let descriptor = self.packets.next()?; // batches end with a packet
                match self.claims.claim(descriptor, &mut self.counts.faults) {
                    Some(packet) => chain.push(packet),
                    None => is_whole = false,
                }
                if descriptor.options & PACKET_CONTINUES == 0 {
                    break;
                }
            }
            let count = chain.buffers().len() as u64;
            if is_whole {
                // No underflow: a packet that is whole has at least one buffer.
                self.pieces += count - 1;
                self.counts.bytes += chain.len() as u64;
                return Some(chain);
            }
            self.pieces += count; // none is received
        }
    }
}

impl<'half> Iterator for Batch<'half> {
    type Item = Packet<'half>;

    #[inline]
    fn next(&mut self) -> Option<Packet<'half>> {
        loop {
            let descriptor = self.packets.next()?;
            if let Some(ahead) = self.packets.entry_hint(PREFETCH_AHEAD) {
                self.claims.prefetch(ahead.address);
            }
            if let Some(packet) = self.claims.claim(descriptor, &mut self.counts.faults) {
                self.counts.bytes += packet.len() as u64;
                return Some(packet);
            }
        }
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.packets.len())) // a word from the kernel may turn out bad
    }
}

impl Drop for Batch<'_> {
    #[inline(always)] // a call would keep the batch in memory, and every packet would write to it
    fn drop(&mut self) {
        let read = self.packets.position().wrapping_sub(self.first);
        // No underflow: each new fault is of a descriptor that this batch read.
        let claimed = u64::from(read) - (self.counts.faults.total - self.faults_before);
        self.claims.pool().count_claimed(claimed);
        // No underflow: each of `pieces` is a claimed buffer.
        self.counts.packets += claimed - self.pieces;
        self.claims.pool().refill(self.fill);
    }
}
