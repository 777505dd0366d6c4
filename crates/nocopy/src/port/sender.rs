//! The half that sends.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::drivers::DRAIN_TIMEOUT;
use super::{Inner, Mode, PortBuilder, Statistics};
use crate::facts::evidence::Evidence;
use crate::facts::metadata::{PlaceOutside, Unsupported};
use crate::memory::area::{Area, Balance, Chain, Departures, Drafts, Faults, Frame, Pool};
use crate::ring::{Consumer, Producer};
use crate::sys::xsk::{Descriptor, PACKET_CONTINUES, SEND_METADATA_BYTES, TxKick};

/// Ethernet header and one VLAN tag: what a frame may have beyond the MTU.
pub(super) const LINK_HEADER_BYTES: u32 = 14 + 4;

/// The sending half of a port.
///
/// [`send`](Sender::send) only writes the ring; [`flush`](Sender::flush) makes the kernel look, once for a whole batch.
#[derive(Debug)]
pub struct Sender {
    pub(super) tx: Producer<Descriptor>,
    pub(super) completion: Consumer<u64>,
    pub(super) pool: Pool,
    pub(super) faults: Faults,
    dropped: u64,
    /// `tx.written()` as last booked in the pool.
    booked: Cell<u32>,
    /// The longest frame that may be sent without further looks: that the interface takes, or none where the kernel wants room in
    /// front of each.
    frame_bytes_max: usize,
    /// The longest packet to write in place: that, behind the headroom.
    packet_bytes_max: usize,
    /// The longest packet the interface takes, in however many frames.
    chain_bytes_max: usize,
    /// The most frames a packet may lie in.
    chain_frames_max: usize,
    pub(super) departures: Departures,
    /// Frames that came back from [`Sender::send_kept`] and were not asked for yet.
    pub(super) kept: Vec<Frame>,
    /// Last, so that the rings are unmapped before the socket is closed: a mapping keeps it open.
    inner: Arc<Inner>,
}

impl Sender {
    pub(super) fn new(
        inner: Arc<Inner>,
        tx: Producer<Descriptor>,
        completion: Consumer<u64>,
        pool: Pool,
        settings: &PortBuilder,
    ) -> Self {
        let booked = Cell::new(tx.written());
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
            dropped: 0,
            booked,
            frame_bytes_max,
            packet_bytes_max,
            chain_bytes_max,
            chain_frames_max,
            departures: Departures::default(),
            kept: Vec::new(),
        }
    }

    /// The longest frame the interface takes.
    pub(super) fn longest_frame(&self) -> usize {
        self.chain_bytes_max.min(self.pool.frame_bytes() as usize)
    }

    /// The longest packet that can be sent from fresh frames, in as many as it may lie in.
    pub(crate) fn packet_bytes_max(&self) -> usize {
        if self.chain_frames_max == 1 {
            return self.packet_bytes_max;
        }
        self.chain_bytes_max.min(self.chain_frames_max * self.pool.packet_bytes_max() as usize)
    }

    /// An empty frame to fill and send, with headroom in front; `None` when all are on their way (flush, and try again).
    #[inline]
    pub fn frame(&mut self) -> Option<Frame> {
        match self.pool.frame() {
            Some(frame) => Some(frame),
            None => self.reap_one(),
        }
    }

    #[cold]
    fn reap_one(&mut self) -> Option<Frame> {
        self.reap();
        self.pool.frame()
    }

    /// Sets up to `count` frames and ring slots aside, to write packets of up to `bytes` bytes in place: the fast way for
    /// packets made on the spot. Fewer, possibly none, when the ring is full or frames are on their way: flush, and ask
    /// again.
    ///
    /// # Errors
    /// Packets of that length cannot be sent here.
    ///
    /// ```
    /// # let (mut port, _peer) = nocopy::Port::memory_pair()?;
    /// let mut drafts = port.sender().drafts(64, 5)?;
    /// while let Some(mut draft) = drafts.next_draft() {
    ///     draft.copy_from_slice(b"hello");
    ///     draft.queue();
    /// }
    /// drop(drafts);
    /// port.sender().flush()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn drafts(&mut self, count: usize, bytes: usize) -> Result<Drafts<'_>, RejectedReason> {
        if bytes.wrapping_sub(1) >= self.packet_bytes_max {
            return Err(if bytes == 0 {
                RejectedReason::Empty
            } else {
                RejectedReason::TooLong { bytes_max: self.packet_bytes_max }
            });
        }
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        if self.pool.free_count() < count {
            self.reap();
            self.pool.fetch();
        }
        Ok(self.pool.drafts(self.tx.reserve(count), bytes as u32))
    }

    /// Puts a frame into the ring to be sent with the next [`Sender::flush`]. Frames received by any port of the same
    /// area may be sent as they are.
    ///
    /// # Errors
    /// Gives the frame back: the ring is full (flush first), or the frame cannot be sent here at all.
    #[inline]
    pub fn send(&mut self, frame: Frame) -> Result<(), Rejected> {
        if !self.fits(&frame) {
            return self.send_on_sight(frame);
        }
        self.put(frame)
    }

    /// Sends a frame that was looked at.
    #[inline]
    pub(super) fn put(&mut self, frame: Frame) -> Result<(), Rejected> {
        let Some(slot) = self.tx.vacant() else {
            return Err(Rejected { frame, reason: RejectedReason::RingFull });
        };
        match self.pool.lend(frame) {
            Ok(descriptor) => slot.write(descriptor),
            Err(frame) => return Err(Rejected { frame, reason: RejectedReason::ForeignArea }),
        }
        Ok(())
    }

    /// A packet copied into as many frames as it needs, to be sent by [`Sender::send_chain`]; `None` when too few are free.
    pub fn chain(&mut self, packet: &[u8]) -> Option<Chain<Frame>> {
        let mut chain = Chain::new();
        for piece in packet.chunks(self.pool.packet_bytes_max() as usize) {
            let mut frame = self.frame()?;
            frame.fill(piece)?;
            chain.push(frame);
        }
        Some(chain)
    }

    /// Like [`Sender::send`], for a packet in one or several frames: all go out as one packet, or none does. On ports not
    /// opened with [`multi_buffer`](PortBuilder::multi_buffer) a chain of one frame can be sent.
    ///
    /// # Errors
    /// Gives the chain back: the ring is full (flush first), or the packet cannot be sent here at all.
    #[expect(clippy::result_large_err, reason = "gives back what it was given")]
    pub fn send_chain(&mut self, chain: Chain<Frame>) -> Result<(), RejectedChain> {
        if let Some(reason) = self.refusal_of(&chain) {
            return Err(RejectedChain { chain, reason });
        }
        let last = chain.buffers().len() - 1;
        for (place, frame) in chain.into_iter().enumerate() {
            let (Some(slot), Ok(descriptor)) = (self.tx.vacant(), self.pool.lend(frame)) else {
                unreachable!("room and area were looked at");
            };
            let options = if place < last { PACKET_CONTINUES } else { 0 };
            slot.write(Descriptor { options, ..descriptor });
        }
        Ok(())
    }

    /// Why a chain cannot be sent.
    fn refusal_of(&mut self, chain: &Chain<Frame>) -> Option<RejectedReason> {
        let count = chain.buffers().len();
        if chain.buffers().iter().any(|frame| frame.is_empty()) || count == 0 {
            Some(RejectedReason::Empty)
        } else if chain.len() > self.chain_bytes_max {
            Some(RejectedReason::TooLong { bytes_max: self.chain_bytes_max })
        } else if count > self.chain_frames_max {
            Some(RejectedReason::TooManyFrames { frames_max: self.chain_frames_max })
        } else if !chain.buffers().iter().all(|frame| self.pool.owns(frame)) {
            Some(RejectedReason::ForeignArea)
        } else if self.inner.sends_with_requests && !chain.buffers().iter().all(Frame::has_room_for_request) {
            Some(RejectedReason::NoRoomForRequest)
        } else {
            let count = count as u32; // no more than a ring has entries
            (self.tx.free(count) < count).then_some(RejectedReason::RingFull)
        }
    }

    /// Sends as many frames from the front of `frames` as fit, flushes, and returns how many; the rest stay.
    ///
    /// # Errors
    /// As [`Sender::flush`]. A frame that can never be sent here stays at the front and ends the batch; [`Sender::send`]
    /// tells why.
    pub fn send_all(&mut self, frames: &mut Vec<Frame>) -> io::Result<usize> {
        let room = self.tx.free(u32::try_from(frames.len()).unwrap_or(u32::MAX)) as usize;
        let fits = |frame: &Frame| self.fits(frame) || self.refusal_on_sight(frame).is_none();
        let sendable = |frame: &&Frame| fits(frame) && self.pool.owns(frame);
        let count = frames.iter().take(room).take_while(sendable).count();
        for frame in frames.drain(..count) {
            let sent = self.send(frame);
            debug_assert!(sent.is_ok(), "there was room");
        }
        self.flush()?;
        Ok(count)
    }

    /// Whether a frame has bytes, and no more than can be sent without further looks.
    #[inline]
    fn fits(&self, frame: &Frame) -> bool {
        frame.len().wrapping_sub(1) < self.frame_bytes_max
    }

    /// Shows the queued frames to the kernel and makes it send them, then takes back what it has finished. One system
    /// call for the whole batch where the kernel allows; frames it could not take now (in copy mode the socket's send
    /// buffer limits how much is on its way) stay queued until the next flush.
    ///
    /// # Errors
    /// The interface is down or gone; the frames stay queued.
    pub fn flush(&mut self) -> io::Result<()> {
        self.book();
        if self.tx.staged() > 0 {
            self.tx.publish();
        }
        // A full completion ring would stop the kernel.
        self.reap();
        let mut queued = self.tx.in_flight();
        let mut silent_kicks = self.inner.silent_kicks(queued);
        while queued > 0 && (self.tx.needs_wakeup() || !self.inner.has_kernel_rings) {
            let kick = self.inner.kick_tx()?;
            self.dropped += u64::from(kick == TxKick::Busy && self.inner.mode != Mode::XdpZeroCopy);
            self.reap();
            let now = self.tx.in_flight();
            if now == queued {
                if kick == TxKick::Done || silent_kicks == 0 {
                    break; // no progress: the device is full, or works at its own pace
                }
                silent_kicks -= 1;
            }
            queued = now;
        }
        Ok(())
    }

    /// Frames that the kernel has not taken yet: those sent since the last [`Sender::flush`], and those it could not take then.
    #[inline]
    pub fn queued(&mut self) -> u32 {
        self.tx.in_flight()
    }

    /// Whether the kernel has not taken everything yet.
    #[inline]
    pub(crate) fn has_queued(&mut self) -> bool {
        self.tx.in_flight() > 0
    }

    /// Takes back the frames the kernel has finished sending, and returns how many. Done by [`Sender::flush`] and, when
    /// it runs out, by [`Sender::frame`].
    pub fn reap(&mut self) -> usize {
        self.book();
        if self.departures.is_awaiting() {
            return self.reap_departures() as usize;
        }
        self.pool.reap(&mut self.completion, &mut self.faults, &mut self.kept) as usize
    }

    /// Books frames written to the ring since last time, all at once.
    #[inline]
    fn book(&self) {
        let written = self.tx.written();
        self.pool.sent(written.wrapping_sub(self.booked.replace(written)));
    }

    /// Frames on their way: queued, or with the kernel. (Arrival is another matter: a frame the far end drops
    /// completes like any other.)
    pub fn in_flight(&mut self) -> u64 {
        self.reap();
        self.pool.lent_count()
    }

    /// Whether nothing is on its way that was not taken back.
    pub(crate) fn is_idle(&self) -> bool {
        self.book();
        self.pool.lent_count() == 0
    }

    /// Flushes until nothing is on its way any more, for at most `timeout`; returns whether it got there.
    ///
    /// # Errors
    /// The interface is down or gone.
    pub fn drain(&mut self, timeout: Duration) -> io::Result<bool> {
        let started = Instant::now();
        loop {
            self.flush()?;
            if self.pool.lent_count() == 0 {
                return Ok(true);
            }
            if started.elapsed() >= timeout {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Prepares for a wait on [`AsFd`] by other means than ours: flushes, so that the kernel has work to finish.
    ///
    /// # Errors
    /// As [`Sender::flush`].
    pub fn arm(&mut self) -> io::Result<()> {
        self.flush()
    }

    /// The area that frames to be sent here lie in.
    pub fn area(&self) -> &Area {
        &self.inner.area
    }

    /// What is known of copies between the area and the wire.
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

    /// Frames that the interface took in copy mode and dropped, by the kernel's answer to the system call.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Words from the kernel's rings that this half refused.
    pub fn faults(&self) -> Faults {
        Faults { bad_index: self.tx.bad_indices() + self.completion.bad_indices(), ..self.faults }
    }

    /// Where every frame of the area is; exact if the other half is at rest and has been asked for its balance.
    pub fn balance(&self) -> Balance {
        self.book();
        self.pool.balance()
    }

    /// Gives the sender up in the child of a fork, without a change to what the parent has: the child's descriptor and rings are closed,
    /// so that the queue is free when the parent closes its own, and nothing is sent or waited for. Needs
    /// [`PortBuilder::inherited`](super::PortBuilder::inherited); of a port, see [`Queues::leave`](super::Queues::leave).
    pub fn leave(self) {
        self.inner.leave();
    }
}

impl AsFd for Sender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl AsRawFd for Sender {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // Nobody is left to tell of an error; what the kernel keeps is accounted for when the port closes.
        if !self.inner.is_left() {
            let _ = self.drain(DRAIN_TIMEOUT);
        }
        self.inner.park(self.pool.take());
    }
}

/// A frame that was not sent, and why.
#[derive(Debug, thiserror::Error)]
#[error("frame of {} bytes not sent: {reason}", frame.len())]
pub struct Rejected {
    /// The frame, still yours.
    pub frame: Frame,
    /// What stood in the way.
    pub reason: RejectedReason,
}

/// A packet in several frames that was not sent, and why.
#[derive(Debug, thiserror::Error)]
#[error("packet of {} bytes in {} frames not sent: {reason}", chain.len(), chain.buffers().len())]
pub struct RejectedChain {
    /// The packet, still yours.
    pub chain: Chain<Frame>,
    /// What stood in the way.
    pub reason: RejectedReason,
}

/// Why a frame was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RejectedReason {
    /// The tx ring is full: flush, and try again.
    #[error("the tx ring is full; flush and try again")]
    RingFull,
    /// The frame belongs to another area than the port: copy it into a frame of this one.
    #[error("it lies in another area than the port's; copy it into a frame of this port")]
    ForeignArea,
    /// The frame holds no bytes.
    #[error("it holds no bytes; fill it first")]
    Empty,
    /// What was asked for the packet cannot be done here.
    #[error("what was asked for it cannot be done: {0}")]
    Unsupported(Unsupported),
    /// The checksum that was to be completed lies outside the packet.
    #[error(transparent)]
    ChecksumOutside(PlaceOutside),
    /// A port opened with [`send_metadata`](PortBuilder::send_metadata) needs room in front of each packet.
    #[error(
        "this port needs {SEND_METADATA_BYTES} free bytes in front of the packet; leave them, or copy it with Frame::fill"
    )]
    NoRoomForRequest,
    /// The packet lies in more frames than this mode takes.
    #[error(
        "a packet may lie in {frames_max} frame(s) here; use fewer, larger ones, or open the port with multi_buffer"
    )]
    TooManyFrames {
        /// The most frames for one packet.
        frames_max: usize,
    },
    /// The frame is longer than the interface's MTU allows; the kernel would drop it without a word.
    #[error("the interface's MTU or the frame allows {bytes_max} bytes; raise the MTU or send less")]
    TooLong {
        /// The longest frame that can be sent.
        bytes_max: usize,
    },
}
