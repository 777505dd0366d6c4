//! The half that receives.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::wait::Coalescer;
use super::{Inner, PortBuilder, Statistics, ToHost, ToHostError, Wait};
use crate::area::{Balance, Chain, Claims, Faults, Frame, Packet, Pool};
use crate::evidence::Evidence;
use crate::ring::{Consumer, Peek, Producer};
use crate::sys::xsk::{Descriptor, PACKET_CONTINUES, Wakeup};

/// How far ahead of the packet being handed out the next ones are prefetched. Measured on one machine with 64-byte packets
/// at full rate: 3.4 M/s with 4 and 8, 3.7 M/s with 16, no more with 32 (`nocopy bench capture`).
const PREFETCH_AHEAD: u32 = 16;

/// Empty looks between two looks at the clock while spinning; a look at the clock costs as much as some 50 of them.
pub(super) const SPINS_PER_CLOCK: u32 = 64;

/// How often a waiting receiver asks the kernel whether the port still works.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// How often a receiver looks for frames coming home while the kernel has none to receive into.
pub(super) const STARVED_INTERVAL: Duration = Duration::from_millis(1);

/// The receiving half of a port.
#[derive(Debug)]
pub struct Receiver {
    rx: Consumer<Descriptor>,
    fill: Producer<u64>,
    pool: Pool,
    faults: Faults,
    batch: u32,
    multi_buffer: bool,
    wait: Wait,
    coalescer: Coalescer,
    /// `rx.read()` when the coalescer was last asked.
    read_at_sleep: u32,
    /// Last, so that the rings are unmapped before the socket is closed: a mapping keeps it open.
    inner: Arc<Inner>,
}

impl Receiver {
    pub(super) fn new(
        inner: Arc<Inner>,
        rx: Consumer<Descriptor>,
        mut fill: Producer<u64>,
        pool: Pool,
        settings: &PortBuilder,
    ) -> Self {
        pool.refill(&mut fill);
        let read_at_sleep = rx.read();
        let (batch, wait, multi_buffer) = (settings.batch, settings.wait, settings.multi_buffer);
        let (faults, coalescer) = (Faults::default(), Coalescer::default());
        Self { inner, rx, fill, pool, faults, batch, multi_buffer, wait, coalescer, read_at_sleep }
    }

    /// Makes the device take frames to receive into, when it must be asked to: otherwise what arrives between opening and
    /// the first [`Receiver::receive`] finds none.
    pub(super) fn start(&self) -> io::Result<()> {
        if self.fill.needs_wakeup() { self.inner.kick_rx() } else { Ok(()) }
    }

    /// Waits for packets, in the way set by [`Receiver::set_wait`], and returns them as one batch. A signal may end the
    /// wait early, with an empty batch.
    ///
    /// # Errors
    /// The interface is down or gone.
    pub fn receive(&mut self) -> io::Result<Batch<'_>> {
        if !self.is_ready() {
            self.wait_for_packets(None)?;
        }
        Ok(self.take_batch())
    }

    /// Like [`Receiver::receive`], but returns an empty batch when nothing came for `timeout`.
    ///
    /// # Errors
    /// The interface is down or gone.
    pub fn receive_timeout(&mut self, timeout: Duration) -> io::Result<Batch<'_>> {
        if !self.is_ready() {
            self.wait_for_packets(Instant::now().checked_add(timeout))?;
        }
        Ok(self.take_batch())
    }

    /// Returns what is there, possibly nothing, without waiting.
    ///
    /// # Errors
    /// The interface is down or gone, if the kernel had to be asked for packets.
    #[inline]
    pub fn try_receive(&mut self) -> io::Result<Batch<'_>> {
        if self.rx.available(1) == 0 && self.fill.needs_wakeup() {
            self.inner.kick_rx()?;
        }
        Ok(self.take_batch())
    }

    /// Whether there are packets that a batch can be made of.
    #[inline]
    pub(super) fn is_ready(&mut self) -> bool {
        self.rx.available(1) > 0 && !self.is_starved()
    }

    /// Whether packets must wait in the blocks of a packet ring, because no frame is free to take one into.
    #[inline]
    fn is_starved(&self) -> bool {
        self.pool.has_blocks() && self.pool.free_count() == 0
    }

    /// Whether nothing can come before a frame comes home.
    pub(super) fn has_no_frames(&self) -> bool {
        self.pool.lent_count() == 0 && self.pool.free_count() == 0
    }

    /// Lends the frames that came home, and makes the kernel look at them if it wants to be told: what a wait without the kernel
    /// does now and then.
    pub(super) fn refresh(&mut self) -> io::Result<()> {
        self.pool.refill(&mut self.fill);
        if self.fill.needs_wakeup() { self.inner.kick_rx() } else { Ok(()) }
    }

    /// Packets read since this was last asked, and how many may come before they are dropped.
    pub(super) fn progress(&mut self) -> (u32, u32) {
        let read = self.rx.read();
        let received = read.wrapping_sub(std::mem::replace(&mut self.read_at_sleep, read));
        let lent = u32::try_from(self.pool.lent_count()).unwrap_or(u32::MAX);
        let room = if self.pool.has_blocks() { self.rx.capacity() } else { self.rx.capacity().min(lent) };
        (received, room)
    }

    /// How many words to take so that the batch ends with a packet, and a frame is free for each where packets lie in blocks.
    #[cold]
    fn whole_packets(&mut self) -> u32 {
        let room = if self.pool.has_blocks() { self.pool.free_count() } else { u32::MAX };
        if !self.multi_buffer {
            return self.batch.min(room);
        }
        let words = self.rx.peek(u32::MAX);
        let (mut whole, mut next) = (0, 0);
        while let Some(word) = words.look(next).filter(|_| next < room && whole < self.batch) {
            next += 1;
            if word.options & PACKET_CONTINUES == 0 {
                whole = next;
            }
        }
        whole
    }

    #[inline]
    fn take_batch(&mut self) -> Batch<'_> {
        let batch =
            if self.pool.has_blocks() || self.multi_buffer { self.whole_packets() } else { self.batch };
        Batch {
            packets: self.rx.peek(batch),
            fill: &mut self.fill,
            claims: self.pool.claims(),
            faults: &mut self.faults,
            claimed: 0,
        }
    }

    /// Changes how to wait, from the next [`Receiver::receive`] on.
    pub fn set_wait(&mut self, wait: Wait) {
        self.wait = wait;
        self.coalescer = Coalescer::default();
    }

    /// Prepares the port for a wait by other means than ours (epoll, an async runtime) and says whether packets are
    /// there already; if so, do not wait. Needed before every such wait: unlike `poll(2)`, epoll does not make the
    /// kernel go on with the rings. If all frames may be away, wait with a timeout: one that comes home does not end the
    /// wait, and nothing arrives before it is armed.
    ///
    /// # Errors
    /// The interface is down or gone.
    pub fn arm(&mut self) -> io::Result<bool> {
        self.pool.refill(&mut self.fill);
        if self.is_ready() {
            return Ok(true);
        }
        self.inner.kick_rx()?; // also tells whether the interface is still there
        Ok(self.is_ready())
    }

    fn wait_for_packets(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        drop(self.rx.peek(0)); // gives back the slots of a batch that was forgotten
        match self.wait {
            Wait::Spin => self.spin(deadline).map(drop),
            Wait::Interrupt => self.sleep(deadline),
            Wait::Adaptive { spin } => {
                let limit = Instant::now().checked_add(spin);
                let limit = deadline.map_or(limit, |end| Some(limit.map_or(end, |limit| limit.min(end))));
                if self.spin(limit)? {
                    return Ok(());
                }
                self.sleep(deadline)
            }
            Wait::Coalesced { packets, delay } => self.coalesce(packets, delay, deadline),
        }
    }

    /// Spins until packets are there (true) or the time is up (false).
    fn spin(&mut self, deadline: Option<Instant>) -> io::Result<bool> {
        let mut last_check = Instant::now();
        loop {
            // Frames that came home otherwise than by a batch: without them there may never be another batch.
            self.pool.refill(&mut self.fill);
            for _ in 0..SPINS_PER_CLOCK {
                if self.is_ready() {
                    return Ok(true);
                }
                if self.fill.needs_wakeup() {
                    self.inner.kick_rx()?;
                }
                std::hint::spin_loop();
            }
            let now = Instant::now();
            if deadline.is_some_and(|end| now >= end) {
                return Ok(false);
            }
            if now.duration_since(last_check) >= CHECK_INTERVAL {
                self.inner.check()?;
                last_check = now;
            }
        }
    }

    fn sleep(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        while !self.arm()? {
            let left = deadline.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            // Neither frames that come home nor an interface that goes end the kernel's wait.
            let nap = if self.has_no_frames() { STARVED_INTERVAL } else { CHECK_INTERVAL };
            if self.is_starved() {
                std::thread::sleep(nap.min(left)); // what waits in the blocks would end any other wait at once
                if left <= nap {
                    return Ok(());
                }
                continue;
            }
            let wakeup = self.inner.wait_readable(nap.min(left))?;
            if wakeup == Wakeup::Interrupted || (wakeup == Wakeup::TimedOut && left <= nap) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn coalesce(&mut self, packets: u32, delay: Duration, deadline: Option<Instant>) -> io::Result<()> {
        loop {
            let now = Instant::now();
            let left = deadline.map_or(Duration::MAX, |end| end.saturating_duration_since(now));
            if left.is_zero() {
                return Ok(());
            }
            self.refresh()?;
            let (received, room) = self.progress();
            let sleep = self.coalescer.sleep_for(now, received.into(), room, packets, delay);
            std::thread::sleep(sleep.min(left));
            if self.is_ready() {
                return Ok(());
            }
            self.inner.check()?;
        }
    }

    /// Takes a frame back for receiving into: free of any atomic if it was received here, and the same as dropping it
    /// otherwise.
    #[inline]
    pub fn recycle(&mut self, frame: Frame) {
        self.pool.recycle(frame);
    }

    /// The way back for packets that are the host's business after all: a value of its own, for any thread of the
    /// port's network namespace.
    ///
    /// # Errors
    /// A kernel before 5.18, a missing capability, an interface that is gone; a port in packet ring mode, which leaves the host
    /// its packets anyway, or in memory mode.
    pub fn to_host(&self) -> Result<ToHost, ToHostError> {
        ToHost::of(&self.inner)
    }

    /// What is known of copies between the wire and the area.
    pub fn evidence(&self) -> Evidence {
        self.inner.evidence()
    }

    /// What the kernel counted for this port.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn statistics(&self) -> io::Result<Statistics> {
        self.inner.statistics()
    }

    /// Packets that [`Packet::take`] copied out of the blocks of a packet ring.
    pub fn copied(&self) -> u64 {
        self.pool.copied()
    }

    /// Words from the kernel's rings that this half refused.
    pub fn faults(&self) -> Faults {
        Faults { bad_index: self.rx.bad_indices() + self.fill.bad_indices(), ..self.faults }
    }

    /// Where every frame of the area is; exact if the other half is at rest and has flushed, reaped or been asked for
    /// its balance since its last work.
    pub fn balance(&self) -> Balance {
        self.pool.balance()
    }

    pub(super) fn inner(&self) -> &Inner {
        &self.inner
    }
}

impl AsFd for Receiver {
    /// Readable when packets are there; call [`Receiver::arm`] before waiting for it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl AsRawFd for Receiver {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.inner.park(self.pool.take());
    }
}

/// Received packets, borrowed from the receiver: an iterator over [`Packet`]s. When the batch is dropped, the slots it
/// used go back to the kernel with one store, and the frames of packets that were not taken go back to the fill ring
/// with another. Packets not asked for stay in the ring for the next batch.
#[derive(Debug)]
pub struct Batch<'half> {
    packets: Peek<'half, Descriptor>,
    fill: &'half mut Producer<u64>,
    claims: Claims<'half>,
    faults: &'half mut Faults,
    claimed: u64,
}

impl Batch<'_> {
    /// Whether nothing is left in the batch.
    pub fn is_empty(&self) -> bool {
        self.packets.len() == 0
    }
}

impl<'half> Batch<'half> {
    /// The next packet of a port opened with [`multi_buffer`](PortBuilder::multi_buffer), whole: as a chain of the buffers it lies
    /// in, which iterating over the batch would give one by one. On other ports each packet is a chain of one.
    pub fn next_chain(&mut self) -> Option<Chain<Packet<'half>>> {
        loop {
            let (mut chain, mut is_whole) = (Chain::new(), true);
            loop {
                let descriptor = self.packets.next()?; // batches end with a packet
                match self.claims.claim(descriptor, self.faults) {
                    Some(packet) => {
                        self.claimed += 1;
                        chain.push(packet);
                    }
                    None => is_whole = false,
                }
                if descriptor.options & PACKET_CONTINUES == 0 {
                    break;
                }
            }
            if is_whole {
                return Some(chain);
            }
        }
    }
}

impl<'half> Iterator for Batch<'half> {
    type Item = Packet<'half>;

    #[inline]
    fn next(&mut self) -> Option<Packet<'half>> {
        loop {
            let descriptor = self.packets.next()?;
            if let Some(ahead) = self.packets.glance(PREFETCH_AHEAD) {
                self.claims.prefetch(ahead.address);
            }
            if let Some(packet) = self.claims.claim(descriptor, self.faults) {
                self.claimed += 1;
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
        self.claims.pool().claimed(self.claimed);
        self.claims.pool().refill(self.fill);
    }
}
