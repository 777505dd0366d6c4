//! The half that sends.

mod blocking;
#[cfg(all(test, feature = "tokio"))]
mod tests;

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use blocking::Sender;

use super::drivers::DRAIN_TIMEOUT;
use super::{Mode, PortBuilder, SharedPort, TX_FAULTS, fault_counters, static_counter};
use crate::engine::half::sender_half;
use crate::events::{Causes, Half, ReportedCauses};
use crate::facts::evidence::{Cause, Evidence, Ledger};
use crate::facts::method_explanation::Explanation;
use crate::facts::rejected::{Reason, Rejected};
use crate::memory::area::{Balance, Chain, DepartureTimes, Drafts, Faults, Frame, FramePool};
use crate::ring::{Consumer, Producer};
use crate::stats::Stats;
use crate::sys::timed_epoll::TimedEpoll;
use crate::sys::xsk::{Descriptor, PACKET_CONTINUES, SEND_METADATA_BYTES, TxKick};

/// Ethernet header and one VLAN tag: the bytes of a frame beyond the MTU.
pub(super) const LINK_HEADER_BYTES: u32 = 14 + 4;

/// The pause before the next check for completions, which no event reports.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// What never waits of a [`Sender`]: both it and its asynchronous form deref to this.
#[derive(Debug)]
pub struct NonblockingSender {
    pub(super) tx: Producer<Descriptor>,
    pub(super) completion: Consumer<u64>,
    pub(super) pool: FramePool,
    pub(super) faults: Faults,
    counts: SendCounts,
    reported: ReportedCauses,
    /// `tx.written_total()` when frames were last counted in the pool (recorded), and the frames recorded in
    /// all.
    recorded: Cell<u32>,
    frames: Cell<u64>,
    /// Bytes queued, modulo 2^64. A frame counts as `draft_bytes` when it is recorded, so that drafts need no
    /// separate count; for frames sent by other methods the count is corrected when they are sent.
    bytes: Cell<u64>,
    draft_bytes: u64,
    /// The longest frame that may be sent without further checks: the interface's limit, or 0 if the kernel
    /// needs room in front of each.
    frame_bytes_max: usize,
    /// The longest packet that can be written in place: the same limit, less the headroom.
    packet_bytes_max: usize,
    /// The longest packet that the interface accepts, in any number of frames.
    chain_bytes_max: usize,
    chain_frames_max: usize,
    pub(super) departures: DepartureTimes,
    /// Returned frames of [`send_kept`](Self::send_kept) that were not taken yet.
    pub(super) kept: Vec<Frame>,
    pub(super) returned: Vec<Frame>,
    timed_epoll: TimedEpoll,
    /// The progress at the last call of [`arm`](Self::arm).
    moved_before: u64,
    /// How long dropping waits for the kernel; 0 for a half that never waits.
    pub(crate) drop_timeout: Duration,
    /// Last, so that the rings are unmapped before the socket is closed: a mapping keeps it open.
    inner: Arc<SharedPort>,
}

/// The counters of a sender, except those of frames.
#[derive(Debug, Clone, Copy, Default)]
struct SendCounts {
    /// Frames that are not the first of their packet.
    pieces: u64,
    /// Packets given as slices, which were copied.
    copied_packets: u64,
    copied_bytes: u64,
    dropped: u64,
    flushes: u64,
    /// Frames that the kernel has finished.
    reaped: u64,
}

impl NonblockingSender {
    pub(super) fn new(
        inner: Arc<SharedPort>,
        tx: Producer<Descriptor>,
        completion: Consumer<u64>,
        pool: FramePool,
        settings: &PortBuilder,
    ) -> Self {
        let recorded = Cell::new(tx.written_total());
        let chain_bytes_max = settings.mtu_bytes.saturating_add(LINK_HEADER_BYTES) as usize;
        let longest_frame = chain_bytes_max.min(pool.frame_bytes() as usize);
        let frame_bytes_max = if inner.sends_with_requests { 0 } else { longest_frame };
        let chain_frames_max = match settings.multi_buffer {
            true => inner.chain_frames_max.min(tx.capacity() as usize),
            false => 1,
        };
        let packet_bytes_max = longest_frame.min(pool.packet_bytes_max() as usize);
        Self {
            inner,
            tx,
            completion,
            pool,
            faults: Faults::default(),
            counts: SendCounts::default(),
            reported: ReportedCauses::default(),
            recorded,
            frames: Cell::new(0),
            bytes: Cell::new(0),
            draft_bytes: 0,
            frame_bytes_max,
            packet_bytes_max,
            chain_bytes_max,
            chain_frames_max,
            departures: DepartureTimes::default(),
            kept: Vec::new(),
            returned: Vec::new(),
            timed_epoll: TimedEpoll::default(),
            moved_before: 0,
            drop_timeout: DRAIN_TIMEOUT,
        }
    }

    pub(super) fn longest_frame(&self) -> usize {
        self.chain_bytes_max.min(self.pool.frame_bytes() as usize)
    }

    /// The longest packet that can be sent from fresh frames, in as many as one packet may have.
    pub(crate) fn packet_bytes_max(&self) -> usize {
        if self.chain_frames_max == 1 {
            return self.packet_bytes_max;
        }
        self.chain_bytes_max.min(self.chain_frames_max * self.pool.packet_bytes_max() as usize)
    }

    /// An empty frame to fill and send, with headroom in front; `None` while all are in use: flush, and ask
    /// again.
    #[inline]
    pub fn buffer(&mut self) -> Option<Frame> {
        match self.pool.take_frame() {
            Some(frame) => Some(frame),
            None => self.frame_after_reap(),
        }
    }

    #[cold]
    fn frame_after_reap(&mut self) -> Option<Frame> {
        self.reap();
        self.pool.take_frame()
    }

    /// Reserves up to `count` frames and ring slots, to write packets of up to `bytes` bytes in place: the
    /// fastest way for packets that are made for sending. Returns fewer, possibly none, if the ring is full
    /// or frames are in flight: flush, and ask again.
    ///
    /// # Errors
    /// Packets of that length cannot be sent here.
    ///
    /// ```
    /// # let (mut port, _peer) = nocopy::Port::memory_pair()?;
    /// let mut drafts = port.sender().drafts(64, 5)?;
    /// let count = drafts.remaining(); // 64, or fewer
    /// while let Some(mut draft) = drafts.next_draft() {
    ///     draft.copy_from_slice(b"hello");
    ///     draft.queue();
    /// }
    /// drop(drafts);
    /// port.sender().flush()?;
    /// assert_eq!(port.sender().stats().moved, count as u64);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn drafts(&mut self, count: usize, bytes: usize) -> Result<Drafts<'_>, Reason> {
        if bytes.wrapping_sub(1) >= self.packet_bytes_max {
            return Err(length_refusal(bytes, self.packet_bytes_max));
        }
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.count_free_frames(count);
        self.record_sent(); // those before are of another length
        self.draft_bytes = bytes as u64;
        Ok(self.pool.drafts(self.tx.reserve(count), bytes as u32))
    }

    /// How many frames are free, after reaping if those are fewer than wanted.
    #[inline]
    fn count_free_frames(&mut self, wanted: u32) -> u32 {
        if self.pool.free_count() < wanted {
            self.reap();
            self.pool.fetch_returned();
        }
        self.pool.free_count()
    }

    /// Puts a frame into the ring to be sent with the next [`Sender::flush`]. Frames received by any port of
    /// the same area may be sent unchanged.
    ///
    /// # Errors
    /// Returns the frame: the ring is full ([`Reason::Full`]; flush first), or the frame cannot be sent by
    /// this port.
    #[inline]
    pub fn send(&mut self, frame: Frame) -> Result<(), Rejected<Frame>> {
        if !self.is_sendable_length(&frame) {
            return self.send_reserving_request(frame);
        }
        self.put_into_ring(frame)
    }

    /// Sends a frame that was checked.
    #[inline]
    pub(super) fn put_into_ring(&mut self, frame: Frame) -> Result<(), Rejected<Frame>> {
        // The slot first: a frame that is lent could not be returned to the caller.
        let Some(slot) = self.tx.vacant_slot() else {
            return Err(Rejected { item: frame, reason: Reason::Full });
        };
        match self.pool.lend(frame) {
            Ok(descriptor) => {
                let bytes = u64::from(descriptor.len).wrapping_sub(self.draft_bytes);
                self.bytes.set(self.bytes.get().wrapping_add(bytes));
                slot.write(descriptor);
                Ok(())
            }
            Err(frame) => Err(Rejected { item: frame, reason: Reason::ForeignArea }),
        }
    }

    /// Copies a packet into as many frames as it needs, and queues them to be sent as one packet with the
    /// next [`Sender::flush`]. Only ports opened with [`multi_buffer`](PortBuilder::multi_buffer) can use
    /// more than one frame.
    ///
    /// # Errors
    /// The ring is full or too few frames are free ([`Reason::Full`]; flush first), or the packet is empty or
    /// too long. On an error nothing is queued.
    ///
    /// ```
    /// # let (mut left, mut right) = nocopy::Port::memory_builder().multi_buffer(true).memory_pair()?;
    /// left.sender().send_copy(&[7; 9000])?; // several frames, one packet
    /// left.sender().flush()?;
    /// assert_eq!(right.receiver().receive()?.next_chain().map(|packet| packet.len()), Some(9000));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn send_copy(&mut self, packet: &[u8]) -> Result<(), Reason> {
        let bytes_max = self.packet_bytes_max();
        if packet.len().wrapping_sub(1) >= bytes_max {
            return Err(length_refusal(packet.len(), bytes_max));
        }
        let pieces = packet.chunks(self.pool.packet_bytes_max() as usize);
        let count = pieces.len() as u32; // no more than a ring has entries
        if self.tx.free_slots(count) < count || self.count_free_frames(count) < count {
            return Err(Reason::Full);
        }
        let filled = pieces.map(|piece| {
            let mut frame = self.pool.take_frame().expect("looked at before");
            frame.fill(piece).expect("cut to what fits");
            frame
        });
        let chain: Chain<Frame> = filled.collect();
        self.put_chain_into_ring(chain);
        self.counts.copied_packets += 1;
        self.counts.copied_bytes += packet.len() as u64;
        Ok(())
    }

    /// Like [`send`](Self::send), for a packet in one or several frames: all are sent as one packet, or none.
    /// On ports not opened with [`multi_buffer`](PortBuilder::multi_buffer) a chain of one frame can be sent.
    ///
    /// ```
    /// # let (mut left, mut right) = nocopy::Port::memory_builder().multi_buffer(true).memory_pair()?;
    /// use nocopy::{Chain, Frame};
    /// let (mut header, mut body) = (left.sender().buffer().unwrap(), left.sender().buffer().unwrap());
    /// header.fill(b"header").expect("it fits");
    /// body.fill(b"body").expect("it fits");
    /// left.sender().send_chain(Chain::from_iter([header, body]))?; // one packet
    /// left.sender().flush()?;
    ///
    /// let mut batch = right.receiver().receive()?;
    /// let packet = batch.next_chain().expect("one packet");
    /// assert_eq!(packet.to_vec(), b"headerbody"); // wherever it was cut
    /// assert!(batch.next_chain().is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the chain: the ring is full ([`Reason::Full`]; flush first), or the packet cannot be sent by
    /// this port.
    #[expect(clippy::result_large_err, reason = "gives back what it was given")]
    pub fn send_chain(&mut self, chain: Chain<Frame>) -> Result<(), Rejected<Chain<Frame>>> {
        match self.chain_refusal(&chain) {
            None => {
                self.put_chain_into_ring(chain);
                Ok(())
            }
            Some(reason) => Err(Rejected { item: chain, reason }),
        }
    }

    /// Queues the frames of a packet that was checked.
    fn put_chain_into_ring(&mut self, chain: Chain<Frame>) {
        // No underflow: callers pass at least one frame.
        let last = chain.buffers().len() - 1;
        chain.buffers().iter().for_each(|frame| self.correct_queued_bytes(frame.len()));
        self.counts.pieces += last as u64;
        for (place, frame) in chain.into_iter().enumerate() {
            let (Some(slot), Ok(descriptor)) = (self.tx.vacant_slot(), self.pool.lend(frame)) else {
                unreachable!("room and area were looked at");
            };
            let options = if place < last { PACKET_CONTINUES } else { 0 };
            slot.write(Descriptor { options, ..descriptor });
        }
    }

    fn chain_refusal(&mut self, chain: &Chain<Frame>) -> Option<Reason> {
        let count = chain.buffers().len();
        if chain.buffers().iter().any(|frame| frame.is_empty()) || count == 0 {
            Some(Reason::Empty)
        } else if chain.len() > self.chain_bytes_max {
            Some(length_refusal(chain.len(), self.chain_bytes_max))
        } else if count > self.chain_frames_max {
            Some(Reason::TooManyBuffers { buffers_max: self.chain_frames_max })
        } else if !chain.buffers().iter().all(|frame| self.pool.owns(frame)) {
            Some(Reason::ForeignArea)
        } else if self.inner.sends_with_requests
            && let Some(frame) = chain.buffers().iter().find(|frame| !frame.has_room_for_request())
        {
            Some(request_room_refusal(frame))
        } else {
            let count = count as u32; // no more than a ring has entries
            (self.tx.free_slots(count) < count).then_some(Reason::Full)
        }
    }

    /// Whether a frame has bytes, and few enough to be sent without further checks.
    #[inline]
    fn is_sendable_length(&self, frame: &Frame) -> bool {
        frame.len().wrapping_sub(1) < self.frame_bytes_max
    }

    /// Like [`Sender::flush`], without waiting. Returns `false` if frames are still queued, because the
    /// kernel has no room now.
    ///
    /// # Errors
    /// As [`Sender::flush`].
    pub fn try_flush(&mut self) -> io::Result<bool> {
        self.flush_once(true)
    }

    /// One flush, or its continuation if `counts` is false.
    fn flush_once(&mut self, counts: bool) -> io::Result<bool> {
        self.record_sent();
        let (inner, SendCounts { pieces, copied_packets, .. }) = (&self.inner, self.counts);
        let copied = || {
            Causes::default()
                .with(inner.evidence(), self.frames.get() - pieces - copied_packets)
                .with(Evidence::Copied(Cause::Slice), copied_packets)
        };
        self.reported.update(|| inner.subject(Half::PortSender), copied);
        if self.tx.staged_count() > 0 {
            self.tx.publish();
        }
        // A full completion ring would stop the kernel.
        self.reap();
        let mut queued = self.tx.in_flight();
        self.counts.flushes += u64::from(counts && queued > 0);
        let mut silent_kicks = self.inner.silent_kicks_max(queued);
        // Ends: in each round the kernel takes some of what is queued, or one of a few silent kicks is used
        // up.
        while queued > 0 && (self.tx.needs_wakeup() || !self.inner.has_kernel_rings) {
            let kick = self.inner.kick_tx()?;
            self.counts.dropped += u64::from(kick == TxKick::Busy && self.inner.mode != Mode::XdpZeroCopy);
            self.reap();
            let now = self.tx.in_flight();
            if now == queued {
                if kick == TxKick::Done || silent_kicks == 0 {
                    // No progress: the device is full, or a zero-copy device reads at its own pace.
                    return Ok(self.inner.mode == Mode::XdpZeroCopy && kick == TxKick::Done);
                }
                silent_kicks -= 1;
            }
            queued = now;
        }
        Ok(true)
    }

    /// The number of frames that the kernel has not accepted yet: those sent since the last
    /// [`Sender::flush`], and those it had no room for.
    #[doc(hidden)]
    #[inline]
    pub fn queued(&mut self) -> u32 {
        self.tx.in_flight()
    }

    #[inline]
    pub(crate) fn has_queued(&mut self) -> bool {
        self.tx.in_flight() > 0
    }

    /// Takes back frames that the kernel has finished sending, and returns how many. [`Sender::flush`] also
    /// does this, and so does [`buffer`](Self::buffer) if no frame is free.
    pub fn reap(&mut self) -> usize {
        self.record_sent();
        let count = match self.departures.is_awaiting() {
            true => self.reap_departures(),
            false => self.pool.reap(&mut self.completion, u32::MAX, &mut self.faults, &mut self.kept),
        };
        self.counts.reaped += u64::from(count);
        count as usize
    }

    /// SendCounts all frames written to the ring since the last call, at once.
    #[inline]
    fn record_sent(&self) {
        let written = self.tx.written_total();
        let count = written.wrapping_sub(self.recorded.replace(written));
        self.frames.set(self.frames.get() + u64::from(count));
        self.bytes.set(self.bytes.get().wrapping_add(u64::from(count) * self.draft_bytes));
        self.pool.count_lent(count);
    }

    /// The number of frames queued or held by the kernel. (Completed does not mean arrived: a frame that the
    /// far end drops completes like any other.)
    pub fn in_flight(&self) -> usize {
        self.record_sent();
        // Finished frames that were not reaped yet do not count. No underflow with a kernel that finishes
        // only what it was given.
        self.pool.lent_count().saturating_sub(self.completion.ready_count().into()) as usize
    }

    /// Whether no frame is queued, in flight, or waiting to be taken back.
    pub(crate) fn is_idle(&self) -> bool {
        self.record_sent();
        self.pool.lent_count() == 0
    }

    /// Flushes until nothing is in flight, for at most `timeout`; returns whether nothing is in flight.
    /// Flushes once without a wait if `timeout` is 0.
    pub(crate) fn drain_within(&mut self, timeout: Duration) -> io::Result<bool> {
        let started = Instant::now();
        self.try_flush()?;
        while self.pool.lent_count() > 0 {
            if started.elapsed() >= timeout {
                return Ok(false);
            }
            std::thread::sleep(POLL_INTERVAL);
            self.flush_once(false)?;
        }
        Ok(true)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.chain_bytes_max == 0
    }

    /// Prepares for a wait on the descriptor ([`AsFd`]), and returns whether no wait is needed: frames can be
    /// taken back, or nothing is in flight. Flushes, so that the kernel has work to finish.
    ///
    /// No event reports finished frames, so the descriptor becomes readable 50 µs later, when the caller
    /// should look again.
    ///
    /// # Errors
    /// As [`Sender::flush`].
    pub fn arm(&mut self) -> io::Result<bool> {
        self.flush_once(false)?;
        let queued = self.tx.in_flight();
        // No underflow: `flush_once` has recorded all that is still queued.
        let moved = self.counts.reaped + self.frames.get() - u64::from(queued);
        if std::mem::replace(&mut self.moved_before, moved) != moved {
            return Ok(true);
        }
        if self.pool.lent_count() == 0 {
            self.pool.fetch_returned();
            if self.pool.free_count() > 0 {
                return Ok(true);
            }
        }
        self.timed_epoll.set_timer(Some(POLL_INTERVAL))?;
        Ok(false)
    }

    pub(super) fn correct_queued_bytes(&self, bytes: usize) {
        let more = (bytes as u64).wrapping_sub(self.draft_bytes);
        self.bytes.set(self.bytes.get().wrapping_add(more));
    }

    /// Bytes of all that was queued.
    fn queued_bytes(&self) -> u64 {
        self.record_sent();
        self.bytes.get().wrapping_sub(self.pool.short_bytes())
    }

    #[cfg(feature = "message")]
    pub(crate) fn area(&self) -> &crate::memory::area::Area {
        &self.inner.area
    }

    pub(crate) fn evidence(&self) -> Evidence {
        self.inner.evidence()
    }

    /// The evidence for bytes given to be sent, including those still queued: the port's mode decides whether
    /// they are copied between area and wire; [`send_copy`](Self::send_copy) always copies.
    pub fn ledger(&self) -> Ledger {
        self.record_sent();
        let SendCounts { pieces, copied_packets, copied_bytes, .. } = self.counts;
        let bytes = self.queued_bytes();
        let mut ledger = Ledger::default();
        let packets = self.frames.get() - pieces;
        ledger.add(self.evidence(), packets - copied_packets, bytes - copied_bytes);
        ledger.add(Evidence::Copied(Cause::Slice), copied_packets, copied_bytes);
        ledger
    }

    /// All counters; their names are in the documentation of [`Sender`]. Those that the kernel refuses to
    /// return are absent.
    pub fn stats(&self) -> Stats {
        self.record_sent();
        let kernel = self.inner.statistics().unwrap_or_default();
        let (mut packets, mut bytes) = (self.frames.get() - self.counts.pieces, self.queued_bytes());
        for queued in self.tx.pending_entries() {
            packets -= u64::from(queued.options & PACKET_CONTINUES == 0);
            bytes -= u64::from(queued.len);
        }
        let bad_index = self.tx.bad_indices() + self.completion.bad_indices();
        let mut stats = Stats::with_moved(packets, bytes)
            .with_dropped([static_counter(
                "tx_dropped",
                "Frames the interface took in copy mode and dropped",
                self.counts.dropped,
            )])
            .with_dropped(kernel.counters_named(&["tx_invalid_descs"]))
            .with_faults(fault_counters(TX_FAULTS, self.faults, bad_index))
            .with_counters(kernel.counters_named(&["tx_ring_empty_descs"]));
        stats.flushes = self.counts.flushes;
        stats
    }

    /// Frames that the interface accepted in copy mode and then dropped; read without a system call.
    #[doc(hidden)]
    pub fn dropped(&self) -> u64 {
        self.counts.dropped
    }

    /// The properties of the port; see [`Port::explain`](super::Port::explain).
    pub fn explain(&self) -> Explanation {
        self.inner.explanation()
    }

    /// Where every frame of the area is; exact if the other half is idle and has returned its balance.
    pub(crate) fn balance(&self) -> Balance {
        self.record_sent();
        self.pool.balance()
    }
}

sender_half!(NonblockingSender, Frame);

/// Why a packet of that length cannot be sent; a [closed](Sender::close) sender refuses every length.
#[cold]
pub(super) fn length_refusal(bytes: usize, bytes_max: usize) -> Reason {
    match (bytes, bytes_max) {
        (_, 0) => Reason::Finished,
        (0, _) => Reason::Empty,
        _ => Reason::TooLong { bytes_max },
    }
}

/// A port opened with [`send_metadata`](PortBuilder::send_metadata) needs room in front of each packet.
#[cold]
pub(super) fn request_room_refusal(frame: &Frame) -> Reason {
    Reason::NoHeadroom { needed_bytes: SEND_METADATA_BYTES as usize, free_bytes: frame.headroom_bytes() }
}

impl AsFd for NonblockingSender {
    /// Readable when it is time to look again; call [`arm`](Self::arm) before waiting for it.
    ///
    /// # Panics
    /// At the first call, if no descriptor is left.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timed_epoll.descriptor(None)
    }
}

impl AsRawFd for NonblockingSender {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for NonblockingSender {
    fn drop(&mut self) {
        // There is no caller to return an error to; frames that the kernel keeps are accounted for when the
        // port closes.
        if !self.inner.is_disowned() && !self.is_closed() {
            let _ = self.drain_within(self.drop_timeout);
        }
        self.inner.hold_pool_until_drop(self.pool.take());
    }
}
