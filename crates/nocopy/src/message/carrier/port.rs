//! Messages over a port, past the host's network stack: packets are written in frames, and stay there until
//! they are acknowledged.
//!
//! After a send, the kernel holds the frame for a moment, and gives it back unchanged. A packet that is due
//! for retransmission meanwhile is not sent again, because its first transmission has not left yet.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nocopy_proto::message::framing::CHUNK_HEADER_BYTES_MAX;
use nocopy_proto::message::{Path, Time, crc, wire};
use smallvec::SmallVec;

use super::{Alone, Carrier, Deliver, Hold, Layout, Lone, Packet, Received, Room, add};
use crate::engine::wait::{self, Wait, WaitSource, WakeupCoalescer};
use crate::facts::evidence::{Evidence, Ledger};
use crate::facts::method_explanation::Explanation;
use crate::facts::rejected::{Reason, Rejected};
use crate::memory::area::{Area, Frame};
use crate::memory::pieces::Buffers;
use crate::memory::pool::{Buffer, BufferMut};
use crate::message::HEADER_BYTES;
use crate::message::counters::CarrierCounters;
use crate::sys::poll::Wakeup;
use crate::udp::over_port::{Batch, Datagram, ReceivedPayload, Receiver, Sender, Socket};

/// Frames for control datagrams of the protocol.
const CONTROL_FRAMES: usize = 64;

/// The bytes of an Ethernet frame beyond the MTU.
const LINK_BYTES: usize = 14 + 4;
const IPV4_BYTES: usize = 20 + 8;
const IPV6_BYTES: usize = 40 + 8;
/// All headers, and the room in front that a port may need for requests to the card.
const PORT_HEADERS_MAX: usize = 14 + IPV6_BYTES + 24;

/// How often to call the kernel again for packets that it had no room for.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// A socket over a port, and the state of each frame that holds a packet.
#[derive(Debug)]
pub(in crate::message) struct OverPort {
    /// One for each queue of the interface.
    receivers: Vec<Receiver>,
    /// One for each queue. All packets are sent by the first; frames are taken from all.
    senders: Vec<Sender>,
    area: Area,
    local: SocketAddr,
    /// The longest datagram that fits a frame, in both directions.
    datagram_bytes_max: usize,
    /// By frame number.
    places: Box<[Place]>,
    /// Packets for which the ring had no room.
    waiting: VecDeque<(u32, SocketAddr)>,
    /// Free frames for control datagrams.
    controls: Vec<Frame>,
    /// Returned frames; empty between two calls.
    back: Vec<Frame>,
    /// The number of frames for packets; below, how many of them hold packets, here or in the kernel.
    frames: usize,
    packets: usize,
    /// Those of them that were acknowledged while the kernel had them, or while they waited for it.
    acknowledged_packets: usize,
    /// Packets became free since [`freed`](Carrier::freed) was last called.
    freed: bool,
    intake: Intake,
    /// The datagram that the last receiving call took alone, unless the program has it.
    lone: Option<Received>,
    gathered_bytes: u64,
    counters: CarrierCounters,
}

/// The state of a frame that holds a packet.
#[derive(Debug, Default)]
struct Place {
    /// `None`: the kernel has it, or it holds no packet.
    here: Option<Frame>,
    /// It ends with a CRC, from an earlier transmission.
    sealed: bool,
    hold: Hold,
    /// The frame is for control datagrams instead.
    is_control: bool,
}

/// Received frames that are held until they are read, and datagrams in memory of their own, each counted as a
/// frame.
#[derive(Debug)]
struct Intake {
    /// The most frames held of each queue: the kernel needs the others to receive into.
    frames_max: u64,
    /// The frames held of each queue, including all that the program has ever taken.
    held: Box<[u64]>,
    home: Arc<Returned>,
    datagrams: u64,
    /// Bytes of the longest datagram of an endpoint over this port.
    longest: usize,
}

/// By queue: the frames that the program had taken and that have returned.
#[derive(Debug)]
pub(in crate::message) struct Returned(Box<[AtomicU64]>);

impl Returned {
    /// Counts one fewer that is held.
    pub(super) fn count(&self, queue: u16) {
        self.0[usize::from(queue)].fetch_add(1, Relaxed);
    }
}

/// A frame that the program has taken; counted when it returns.
#[derive(Debug)]
pub(in crate::message) struct Given {
    frame: Frame,
    queue: u16,
    home: Arc<Returned>,
}

impl Given {
    pub(super) fn received(frame: Frame, queue: u16, home: &Arc<Returned>) -> Received {
        Received::Given(Self { frame, queue, home: Arc::clone(home) })
    }
}

impl AsRef<[u8]> for Given {
    fn as_ref(&self) -> &[u8] {
        &self.frame
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        // Nothing but a number: the frame goes home by itself.
        self.home.count(self.queue);
    }
}

impl OverPort {
    /// `frames_max`: the most received frames of each queue that may be held.
    pub(in crate::message) fn new(sockets: Vec<Socket>, frames_max: u32) -> Self {
        let (local, area) = (sockets[0].local_addr(), sockets[0].area().clone());
        let (receivers, mut senders): (Vec<Receiver>, Vec<Sender>) =
            sockets.into_iter().map(Socket::split).unzip();
        let queues = receivers.len();
        let headers = LINK_BYTES + if local.is_ipv4() { IPV4_BYTES } else { IPV6_BYTES };
        let longest = senders[0].port().packet_bytes_max().min(area.packet_bytes_max() as usize);
        let controls: Vec<Frame> = std::iter::from_fn(|| senders[0].frame()).take(CONTROL_FRAMES).collect();
        let all: Vec<Frame> =
            senders.iter_mut().flat_map(|sender| std::iter::from_fn(|| sender.frame())).collect();
        let frames = all.len();
        let mut places: Box<[Place]> = (0..area.config().frame_count).map(|_| Place::default()).collect();
        controls.iter().for_each(|frame| places[frame.index() as usize].is_control = true);
        all.into_iter().for_each(|frame| senders[0].recycle(frame));
        Self {
            receivers,
            senders,
            local,
            datagram_bytes_max: longest.saturating_sub(headers),
            places,
            area,
            waiting: VecDeque::new(),
            controls,
            back: Vec::new(),
            frames,
            packets: 0,
            acknowledged_packets: 0,
            freed: false,
            intake: Intake {
                longest: longest.saturating_sub(headers),
                frames_max: frames_max.into(),
                held: vec![0; queues].into(),
                home: Arc::new(Returned((0..queues).map(|_| AtomicU64::new(0)).collect())),
                datagrams: 0,
            },
            lone: None,
            gathered_bytes: 0,
            counters: CarrierCounters::default(),
        }
    }

    pub(in crate::message) fn datagram_bytes_max(&self) -> usize {
        self.datagram_bytes_max
    }

    /// An empty frame of any queue.
    #[inline]
    fn free_frame(&mut self) -> Option<Frame> {
        self.senders.iter_mut().find_map(Sender::frame)
    }

    /// Turns a frame into a packet.
    #[inline]
    fn put(&mut self, frame: Frame) -> Packet {
        let number = frame.index();
        self.places[number as usize] = Place { here: Some(frame), ..Place::default() };
        self.packets += 1;
        Packet(number)
    }

    #[inline]
    fn frame(&mut self, packet: &Packet) -> &mut Frame {
        self.places[packet.0 as usize].here.as_mut().expect("written before it is sent")
    }

    /// Whether a frame has room for everything in front of a piece of a message, and after it.
    fn can_be_packet(&self, frame: &Frame) -> bool {
        let in_front = HEADER_BYTES + CHUNK_HEADER_BYTES_MAX + PORT_HEADERS_MAX;
        self.area.owns(frame)
            && frame.headroom_bytes() >= in_front
            && frame.tailroom_bytes() >= crc::CRC_BYTES
    }

    fn copied(&mut self, buffers: Buffers, layout: Layout, made: &mut Vec<Packet>) -> Result<(), Buffers> {
        let mut parts = buffers.iter().map(|buffer| &**buffer);
        let mut part: &[u8] = &[];
        for chunk in layout.chunks() {
            let Some(packet) = self.packet() else { return Err(buffers) };
            let room = self.payload_mut(&packet);
            let header = chunk.header();
            room[..header.len()].copy_from_slice(header);
            let (mut at, end) = (header.len(), header.len() + chunk.range.len());
            while at < end {
                if part.is_empty() {
                    part = parts.next().expect("chunks are as long as the message");
                }
                let (now, later) = part.split_at(part.len().min(end - at));
                room[at..at + now.len()].copy_from_slice(now);
                (at, part) = (at + now.len(), later);
            }
            self.set_payload_bytes(&packet, end);
            made.push(packet);
        }
        self.gathered_bytes += layout.bytes as u64;
        Ok(())
    }

    /// Puts a packet on the ring; false if that is full.
    #[inline]
    fn send(&mut self, number: u32, to: SocketAddr) -> bool {
        let frame = self.places[number as usize].here.take().expect("looked at before");
        match self.senders[0].send_kept(frame, to) {
            Ok(()) => {
                self.counters.datagrams_sent += 1;
                true
            }
            Err(Rejected { item: frame, reason }) => {
                self.places[number as usize].here = Some(frame);
                count_refusal(&mut self.counters, &reason);
                !matches!(reason, Reason::Full)
            }
        }
    }

    #[cold]
    fn wait_for_room(&mut self, number: u32, to: SocketAddr) {
        if self.places[number as usize].hold.begin_to_wait() {
            self.waiting.push_back((number, to));
        }
    }

    #[cold]
    fn send_waiting(&mut self) {
        while let Some((number, to)) = self.waiting.front().copied() {
            let place = &self.places[number as usize];
            if place.here.is_some() && !place.hold.acknowledged && !self.send(number, to) {
                break;
            }
            self.waiting.pop_front();
            let place = &mut self.places[number as usize];
            if place.hold.end_wait()
                && let Some(frame) = place.here.take()
            {
                self.free_acknowledged(frame);
            }
        }
        let _ = self.senders[0].flush(); // as above
        self.take_back();
    }

    /// Frees the frame of a packet.
    #[inline]
    fn free(&mut self, frame: Frame) {
        self.freed = true;
        self.packets -= 1;
        self.senders[0].recycle(frame);
    }

    /// Frees the frame of a packet that was acknowledged earlier.
    fn free_acknowledged(&mut self, frame: Frame) {
        self.acknowledged_packets -= 1;
        self.free(frame);
    }
}

impl Carrier for OverPort {
    fn explain(&self) -> Explanation {
        let (queues, local, evidence) = (self.receivers.len(), self.local, self.evidence());
        let compared = "compared with nothing, since the endpoint was opened over it";
        let ports = self.senders.iter().map(|sender| sender.port().explain());
        let below = Explanation::joined(ports).expect("at least one queue");
        below.prefixed_with(&format_args!("port on {queues} queue(s), {local}: {evidence}; {compared}"))
    }

    fn home(&self) -> Option<&Arc<Returned>> {
        Some(&self.intake.home)
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Frames that the program has are not counted: whether one is there shows when it is asked for. Those of
    /// a message that is cut as packets are become packets where they lie, so there is always room for them.
    #[inline]
    fn room(&self) -> Room {
        let packets = self.frames.saturating_sub(self.packets);
        Room { packets, fragments: usize::MAX, buffers: usize::MAX }
    }

    #[inline]
    fn packet(&mut self) -> Option<Packet> {
        let mut frame = match self.free_frame() {
            Some(frame) => frame,
            None => {
                self.take_back();
                self.free_frame()?
            }
        };
        let bytes = frame.tailroom_bytes();
        frame.append(bytes)?;
        Some(self.put(frame))
    }

    #[inline]
    fn payload_mut(&mut self, packet: &Packet) -> &mut [u8] {
        &mut self.frame(packet)[HEADER_BYTES..]
    }

    #[inline]
    fn set_payload_bytes(&mut self, packet: &Packet, bytes: usize) {
        self.frame(packet).truncate(HEADER_BYTES + bytes);
    }

    fn buffer(&mut self) -> Option<BufferMut> {
        self.free_frame().map(BufferMut::from)
    }

    fn put_buffer(&mut self, buffer: Buffer) {
        if let Ok(frame) = Frame::try_from(buffer)
            && self.area.owns(&frame)
        {
            self.senders[0].recycle(frame);
        }
    }

    /// Buffers as long as the pieces of the layout.
    fn buffers_for(&mut self, layout: Layout) -> Option<Buffers> {
        let mut frame_of = |bytes| {
            let mut frame = self.free_frame()?;
            frame.append(bytes)?;
            Some(frame.into())
        };
        layout.chunks().map(|chunk| frame_of(chunk.range.len())).collect()
    }

    /// In place, if the message's frames match the layout. Otherwise by a copy, for which there may be too
    /// few frames.
    fn fragments(&mut self, buffers: Buffers, layout: Layout, made: &mut Vec<Packet>) -> Result<(), Buffers> {
        let mut lengths = layout.chunks().map(|chunk| chunk.range.len());
        let is_cut = buffers.iter().all(|buffer| buffer.is_frame() && lengths.next() == Some(buffer.len()));
        if !is_cut || lengths.next().is_some() {
            drop(lengths);
            return self.copied(buffers, layout, made);
        }
        drop(lengths);
        let mut frames: SmallVec<[Frame; 4]> = SmallVec::new();
        for buffer in buffers {
            frames.push(Frame::try_from(buffer).expect("looked at above"));
        }
        if !frames.iter().all(|frame| self.can_be_packet(frame)) {
            return self.copied(frames.into_iter().map(Buffer::from).collect(), layout, made);
        }
        for (chunk, mut frame) in layout.chunks().zip(frames) {
            let header = chunk.header();
            let front = frame.prepend(HEADER_BYTES + header.len()).expect("looked at above");
            front[HEADER_BYTES..].copy_from_slice(header);
            made.push(self.put(frame));
        }
        Ok(())
    }

    #[inline]
    fn transmit_packet(&mut self, to: &Path, packet: &Packet, header: &[u8; HEADER_BYTES], crc: bool) {
        if self.places[packet.0 as usize].here.is_none() {
            self.take_back();
        }
        let place = &mut self.places[packet.0 as usize];
        let Some(frame) = &mut place.here else {
            self.counters.still_away += 1;
            return;
        };
        frame[..HEADER_BYTES].copy_from_slice(header);
        if crc {
            seal(frame, &mut place.sealed);
        }
        // Behind others that wait, or it would overtake them.
        if !self.waiting.is_empty() || !self.send(packet.0, to.remote) {
            self.wait_for_room(packet.0, to.remote);
        }
    }

    #[inline]
    fn send_packet(&mut self, to: &Path, packet: &Packet, header: &[u8; HEADER_BYTES], now: Time) {
        self.senders[0].begin_batch(now.ns());
        self.transmit_packet(to, packet, header, false);
        self.flush();
    }

    fn transmit_control(&mut self, to: &Path, datagram: &[u8]) {
        if wire::answers_anybody(datagram) {
            match self.senders[0].send_to_unverified(to.remote, datagram) {
                Ok(()) => self.counters.datagrams_sent += 1,
                Err(reason) => count_refusal(&mut self.counters, &reason),
            }
            return;
        }
        if self.controls.is_empty() {
            self.flush();
            // Which passes over frames that have only to come back: from the card, or what went through the
            // kernel.
            self.take_back();
        }
        let Some(mut frame) = self.controls.pop() else {
            self.counters.no_memory_to_send += 1;
            return;
        };
        if frame.fill(datagram).is_err() {
            self.counters.too_long += 1;
            self.controls.push(frame);
            return;
        }
        match self.senders[0].send_kept(frame, to.remote) {
            Ok(()) => self.counters.datagrams_sent += 1,
            Err(Rejected { item: frame, reason }) => {
                count_refusal(&mut self.counters, &reason);
                self.controls.push(frame);
            }
        }
    }

    #[inline]
    fn flush(&mut self) {
        // Frames that have only to come back are not worth a look each time.
        if !self.senders[0].has_queued() && self.waiting.is_empty() {
            return;
        }
        let _ = self.senders[0].flush();
        self.counters.calls += 1;
        self.take_back();
        if !self.waiting.is_empty() {
            self.send_waiting();
        }
    }

    #[inline]
    fn is_stuck(&mut self) -> bool {
        !self.waiting.is_empty()
    }

    /// The ring was handed over, but the kernel does not take all of it at once.
    fn wants_look(&mut self) -> bool {
        self.is_stuck() || self.senders[0].has_queued()
    }

    fn in_use(&self) -> usize {
        self.packets
    }

    fn unacknowledged(&self) -> usize {
        self.packets - self.acknowledged_packets
    }

    #[inline]
    fn release(&mut self, packet: Packet) {
        let place = &mut self.places[packet.0 as usize];
        if place.hold.acknowledge()
            && let Some(frame) = place.here.take()
        {
            self.free(frame);
        } else {
            self.acknowledged_packets += 1;
        }
    }

    #[inline]
    fn take_back(&mut self) {
        if self.senders[0].reap_into(&mut self.back) == 0 {
            return;
        }
        let mut back = std::mem::take(&mut self.back);
        for frame in back.drain(..) {
            let place = &mut self.places[frame.index() as usize];
            if place.is_control {
                self.controls.push(frame);
            } else if place.hold.acknowledged {
                self.free_acknowledged(frame);
            } else {
                place.here = Some(frame);
            }
        }
        self.back = back;
    }

    fn freed(&mut self) -> bool {
        std::mem::take(&mut self.freed)
    }

    #[inline]
    fn receive(&mut self, deliver: &mut impl Deliver) -> io::Result<usize> {
        if let Some(read) = self.lone.take() {
            self.recycle(read);
        }
        let Self { receivers, intake, lone, .. } = self;
        let mut came = 0;
        let last = receivers.len() - 1;
        for (queue, receiver) in receivers.iter_mut().enumerate() {
            let lone = (queue == last).then_some(&mut *lone);
            came += intake.take(receiver.try_receive()?, queue as u16, lone, deliver);
        }
        Ok(came)
    }

    fn wait(&mut self, how: Wait, until: Option<Instant>, deliver: &mut impl Deliver) -> io::Result<usize> {
        // The kernel does not say when it has room for what it did not take: the wait ends in time to try
        // again.
        let retry = self.wants_look().then(|| Instant::now() + RETRY_INTERVAL);
        if !self.is_ready() {
            wait::wait(self, how, [until, retry].into_iter().flatten().min())?;
        }
        self.receive(deliver)
    }

    #[inline]
    fn lone(&mut self, place: Alone) -> Lone<'_> {
        Lone::Held(&mut self.lone, place.only())
    }

    #[inline]
    fn recycle(&mut self, received: Received) {
        match received {
            Received::Frame(frame, queue) => {
                self.intake.held[usize::from(queue)] -= 1;
                self.receivers[usize::from(queue)].recycle(frame);
            }
            Received::Bytes(_, queue) => self.intake.held[usize::from(queue)] -= 1,
            _ => {} // none of ours
        }
    }

    /// The next datagram may arrive on any queue, so the fullest one decides.
    #[inline]
    fn free_to_receive(&self) -> usize {
        let Intake { held, home, frames_max, .. } = &self.intake;
        let held = held.iter().zip(&home.0).map(|(held, returned)| held - returned.load(Relaxed));
        frames_max.saturating_sub(held.max().unwrap_or(0)) as usize
    }

    fn arm(&mut self) -> io::Result<bool> {
        self.flush();
        let mut ready = false;
        for receiver in &mut self.receivers {
            ready |= receiver.arm()?;
        }
        Ok(ready)
    }

    fn watch(&mut self, poll: BorrowedFd<'_>) -> io::Result<()> {
        self.receivers.iter().try_for_each(|receiver| add(poll, receiver))
    }

    fn counters(&self) -> CarrierCounters {
        CarrierCounters { datagrams_received: self.intake.datagrams, ..self.counters }
    }

    fn received(&self) -> Ledger {
        self.receivers.iter().map(|receiver| receiver.ledger()).sum()
    }

    fn evidence(&self) -> Evidence {
        self.senders[0].port().evidence()
    }

    fn gathered_bytes(&self) -> u64 {
        self.gathered_bytes
    }
}

impl WaitSource for OverPort {
    fn is_ready(&mut self) -> bool {
        self.receivers.iter_mut().any(WaitSource::is_ready)
    }

    fn arm(&mut self) -> io::Result<bool> {
        Carrier::arm(self)
    }

    fn refill_and_wake(&mut self) -> io::Result<()> {
        self.receivers.iter_mut().try_for_each(WaitSource::refill_and_wake)
    }

    fn wake_kernel(&mut self) -> io::Result<()> {
        self.receivers.iter_mut().try_for_each(WaitSource::wake_kernel)
    }

    fn check_usable(&mut self) -> io::Result<()> {
        self.receivers.iter_mut().try_for_each(WaitSource::check_usable)
    }

    fn sleep_max(&self) -> Duration {
        self.receivers.iter().map(WaitSource::sleep_max).min().expect("at least one queue")
    }

    fn is_starved(&mut self) -> bool {
        self.receivers.iter_mut().any(WaitSource::is_starved)
    }

    fn wait_readable(&mut self, timeout: Duration) -> io::Result<Wakeup> {
        let (first, others) = self.receivers.split_first_mut().expect("at least one queue");
        first.wait_readable_beside(others, timeout)
    }

    fn read_count_and_room(&self) -> (u32, u32) {
        self.receivers
            .iter()
            .map(WaitSource::read_count_and_room)
            .fold((0, u32::MAX), wait::combine_counts_and_rooms)
    }

    fn coalescer(&mut self) -> &mut WakeupCoalescer {
        self.receivers[0].coalescer()
    }
}

impl Intake {
    /// Delivers what arrived on a queue. The last datagram may be read from `lone`, if given.
    #[inline]
    fn take(
        &mut self,
        mut batch: Batch<'_>,
        queue: u16,
        lone: Option<&mut Option<Received>>,
        deliver: &mut impl Deliver,
    ) -> usize {
        if batch.prefetch() {
            deliver.begin();
        }
        let longest = self.longest;
        let mut count = 0;
        let mut next = batch.next().map(|datagram| received(datagram, queue, longest));
        let mut lone = lone;
        while let Some((from, congested, datagram)) = next {
            count += 1;
            next = batch.next().map(|datagram| received(datagram, queue, longest));
            match lone.take_if(|_| next.is_none()) {
                Some(place) if deliver.lone(from, congested, datagram.as_ref()) => *place = Some(datagram),
                _ => deliver.one(from, congested, datagram),
            }
        }
        self.held[usize::from(queue)] += count;
        self.datagrams += count;
        count as usize
    }
}

/// Converts a datagram to the form in which it is kept, with its sender and congestion mark. One that is
/// longer than any frame holds came in fragments, and would take more memory than it is counted for: nothing
/// of it is kept, and it is counted as malformed.
#[inline]
fn received(datagram: Datagram<'_>, queue: u16, longest: usize) -> (SocketAddr, bool, Received) {
    let (from, congested) = (datagram.source(), datagram.is_congested());
    let kept = match datagram.take() {
        ReceivedPayload::Frame(frame) => Received::Frame(frame, queue),
        ReceivedPayload::Bytes(bytes) if bytes.len() > longest => Received::Bytes(Box::default(), queue),
        ReceivedPayload::Bytes(bytes) => Received::Bytes(bytes, queue),
    };
    (from, congested, kept)
}

fn count_refusal(counters: &mut CarrierCounters, reason: &Reason) {
    let is_too_long = match reason {
        Reason::Full => {
            counters.kernel_full += 1;
            return;
        }
        Reason::System(error) => error.raw_os_error() == Some(libc::EMSGSIZE),
        Reason::TooLong { .. } => true,
        _ => false,
    };
    *if is_too_long { &mut counters.too_long } else { &mut counters.datagrams_refused } += 1;
}

/// Writes the CRC after a packet, or over the CRC of the last transmission.
fn seal(frame: &mut Frame, sealed: &mut bool) {
    if !std::mem::replace(sealed, true) {
        frame.append(crc::CRC_BYTES).expect("the payload leaves room for it");
    }
    let end = frame.len() - crc::CRC_BYTES;
    let (covered, crc) = frame.split_at_mut(end);
    crc.copy_from_slice(&crc::of_pieces([&*covered]).to_be_bytes());
}

#[cfg(test)]
mod tests;
