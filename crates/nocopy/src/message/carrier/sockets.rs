//! Messages over UDP sockets: no privilege, every byte copied by the calls, as few calls as can be.
//!
//! A question and its answer take two calls at each end, besides looks that find nothing. What the kernel
//! does in them is most of the time, so it matters which calls those are. Medians of a loop by hand that only
//! sends and receives 96 bytes over loopback, both ends spinning, with the socket options that the endpoint
//! sets:
//!
//! | calls | us there and back |
//! |---|---|
//! | `send`, `recv`, connected socket without options | 4.5 |
//! | `send`, `recvmsg`, connected | 5.0 |
//! | `sendto`, `recvfrom` | 5.2 |
//! | `sendto`, `recvmsg` | 5.5 |
//! | `sendto`, `recvmmsg` for up to 16 | 5.9 |
//!
//! A message of 8 KiB in six packets, which the kernel cuts and joins, takes 6.7 there and back by connected
//! sockets, 7.0 if the six lie apart, 8.5 if the sockets are not connected, and 8.2 by TCP. So packets are
//! made one behind the other where that is possible.
//!
//! Receiving takes `recvmsg` where messages come one by one, and `recvmmsg` otherwise; `recvfrom` does not
//! return the marks of routers, to which a sender has to react. Sending to the [only peer](only_peer) takes a
//! second, connected socket. Options cost little: to join datagrams (`UDP_GRO`) nothing that was seen, the
//! traffic class 0.1 us.

mod intake;
mod only_peer;
mod outbox;
mod staging;

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nocopy_proto::message::framing::Placed;
use nocopy_proto::message::wire::Headers;
use nocopy_proto::message::{Path, Time, crc};
use rustix::event::{PollFd, PollFlags};
use smallvec::SmallVec;

use super::{Alone, Carrier, Deliver, Layout, Lone, Packet, Received, Room};
use crate::engine::address;
use crate::engine::wait::{self, Wait, WakeupCoalescer};
use crate::events::Causes;
use crate::facts::evidence::{Cause, Evidence, Ledger};
use crate::facts::method_explanation::Explanation;
use crate::memory::pieces::Buffers;
use crate::memory::pool::{BufferMut, Pool};
use crate::message::cargo::{Cargo, Piece};
use crate::message::counters::CarrierCounters;
use crate::message::memory::Shares;
use crate::message::{HEADER_BYTES, OpenError};
use crate::sys::poll::{Wakeup, poll};
use crate::sys::udp_send::allow_fragments;
use crate::udp::{self, kernel};
pub(in crate::message) use intake::{Intake, PASSING, Parts, Shared};
use only_peer::OnlyPeer;
use outbox::{Outbox, Waiting};
use staging::{PIECES_MAX, Staging};

/// How many run buffers one call may fill.
const RECEIVE_BATCH: usize = 16;
/// Bytes of the buffer for a run.
const RUN_BUFFER_BYTES: usize = 64 << 10;
/// How many messages of joined packets one call hands over.
const FLUSH_MESSAGES: usize = 4;
/// Slots reserved for control datagrams, and how many of these may wait.
const CONTROL_SLOTS: usize = 64;
/// The socket buffer requested for each direction; the kernel may limit it.
const SOCKET_BUFFER_BYTES: usize = 8 << 20;

/// A UDP socket, and the memory for its packets.
#[derive(Debug)]
pub(in crate::message) struct Sockets {
    receiver: kernel::Receiver,
    only_peer: OnlyPeer,
    local: SocketAddr,
    /// It is bound to all addresses of the host, and reports to which of them each datagram went.
    is_wildcard: bool,
    staging: Staging,
    cargo: Cargo,
    outbox: Outbox,
    /// This many packets are handed over at once, however many follow: they are still in the cache, and the
    /// peer can begin.
    flush_from: usize,
    intake: Intake,
    /// For owned messages.
    buffers: Pool,
    gathered_bytes: u64,
    counters: CarrierCounters,
    coalescer: WakeupCoalescer,
}

/// What ended a wait.
#[derive(Debug, Clone, Copy)]
pub(in crate::message) struct Polled {
    pub(in crate::message) wakeup: Wakeup,
    /// One of the sockets is ready.
    pub(in crate::message) sockets: bool,
    /// The first of the other descriptors is ready.
    pub(in crate::message) first_other: bool,
}

/// The settings of the sockets.
fn settings() -> udp::Builder {
    let builder = udp::Socket::builder().congestion_marks(true);
    builder.receive_buffer(SOCKET_BUFFER_BYTES).send_buffer(SOCKET_BUFFER_BYTES)
}

impl Sockets {
    #[cfg(test)]
    pub(in crate::message) fn socket(&self) -> BorrowedFd<'_> {
        self.receiver.socket()
    }

    pub(in crate::message) fn bind(address: SocketAddr, shares: &Shares) -> Result<Self, OpenError> {
        let memory = |error| OpenError::Memory { source: error };
        let (small, large) =
            intake::pools(shares.receive_packets, shares.packet_bytes, shares.receive_runs, RUN_BUFFER_BYTES)
                .map_err(memory)?;
        let is_wildcard = address.ip().to_canonical().is_unspecified();
        let settings = settings().local_addresses(is_wildcard).receive_pool(&large);
        let receiver = settings.bind_receiver(address, RECEIVE_BATCH)?;
        let local =
            address::local_addr(&receiver.socket()).map_err(|source| OpenError::Address { source })?;
        // Datagrams are as long as the way was proved to take.
        allow_fragments(&receiver.socket(), local.is_ipv6(), false)
            .map_err(|source| OpenError::Fragments { source })?;
        Ok(Self {
            receiver,
            only_peer: OnlyPeer::new(),
            local,
            is_wildcard,
            staging: Staging::new(shares.packet_bytes, shares.send_packets, shares.send_fragments),
            cargo: Cargo::default(),
            outbox: Outbox::new(local),
            flush_from: FLUSH_MESSAGES * outbox::joined_max(shares.packet_bytes),
            intake: Intake::new(small, RECEIVE_BATCH),
            buffers: Pool::new(shares.buffers, RUN_BUFFER_BYTES).map_err(memory)?,
            gathered_bytes: 0,
            counters: CarrierCounters::default(),
            coalescer: WakeupCoalescer::default(),
        })
    }

    #[inline]
    pub(in crate::message) fn packets_a_call(&self) -> usize {
        self.flush_from / FLUSH_MESSAGES
    }

    /// Waits until a socket is readable, or takes packets again if `to_send`.
    fn poll(&self, timeout: Duration, to_send: bool) -> io::Result<Wakeup> {
        let asked = if to_send { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        Ok(self.poll_beside([None, None], timeout, asked)?.wakeup)
    }

    /// Waits until a socket or another descriptor is readable.
    pub(in crate::message) fn wait_beside(
        &self,
        others: [Option<BorrowedFd<'_>>; 2],
        timeout: Duration,
    ) -> io::Result<Polled> {
        self.poll_beside(others, timeout, PollFlags::IN)
    }

    fn poll_beside(
        &self,
        others: [Option<BorrowedFd<'_>>; 2],
        timeout: Duration,
        asked: PollFlags,
    ) -> io::Result<Polled> {
        let mut waited: SmallVec<[_; 4]> = SmallVec::new();
        waited.push(PollFd::from_borrowed_fd(self.receiver.socket(), asked));
        let also = [self.receiver.connected_socket()].into_iter().chain(others).flatten();
        waited.extend(also.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let wakeup = poll(&mut waited, Some(timeout))?;
        let own = 1 + usize::from(self.receiver.connected_socket().is_some());
        let is_ready = |fd: &PollFd<'_>| wakeup == Wakeup::Ready && !fd.revents().is_empty();
        Ok(Polled {
            wakeup,
            sockets: waited[..own].iter().any(is_ready),
            first_other: waited.get(own).is_some_and(is_ready),
        })
    }

    #[inline(never)] // mostly there is nothing to do
    fn flush_all(&mut self) {
        let Self { outbox, only_peer, receiver, staging, cargo, counters, .. } = self;
        let connected = match outbox.destinations() {
            Some((to, false)) => only_peer.socket_to(receiver, &to),
            Some((_, true)) => {
                only_peer.note_several();
                None
            }
            None => None,
        };
        if let Some(connected) = connected {
            match outbox.flush_connected(connected, staging, cargo, counters) {
                Ok(true) => return,
                Ok(false) => {}              // a wait is for room in the first socket
                Err(_) => only_peer.leave(), // the first socket says why, if it is not for the connected one alone
            }
        }
        outbox.flush(receiver.socket(), staging, cargo, counters);
    }

    #[inline]
    fn fragment(&mut self, chunk: &Placed, reader: &mut Reader<'_>) -> u32 {
        match reader.piece(chunk.range.len()) {
            Some(piece) => self.fragment_of(chunk, &[piece]),
            None => self.fragment_of_several(chunk, reader),
        }
    }

    #[inline]
    fn fragment_of(&mut self, chunk: &Placed, pieces: &[Piece]) -> u32 {
        let (prefix, prefix_bytes) = chunk.padded_header();
        let slot = self.staging.take_prefix(HEADER_BYTES + prefix_bytes, pieces);
        let slot = slot.expect("there is room for fragments");
        self.staging.slot_mut(slot)[HEADER_BYTES..][..prefix.len()].copy_from_slice(prefix);
        pieces.iter().for_each(|piece| self.cargo.refer(piece.buffer));
        slot
    }

    fn fragment_of_several(&mut self, chunk: &Placed, reader: &mut Reader<'_>) -> u32 {
        let (prefix, bytes) = (chunk.header(), chunk.range.len());
        let pieces: SmallVec<[Piece; PIECES_MAX]> = reader.pieces(bytes, &self.cargo);
        if pieces.len() <= PIECES_MAX {
            return self.fragment_of(chunk, &pieces);
        }
        let head_bytes = HEADER_BYTES + prefix.len();
        self.gathered_bytes += bytes as u64;
        let slot = self.staging.take(head_bytes + bytes).expect("there is room for packets");
        let room = &mut self.staging.slot_mut(slot)[HEADER_BYTES..];
        room[..prefix.len()].copy_from_slice(prefix);
        let mut at = prefix.len();
        for piece in pieces {
            let bytes = self.cargo.bytes(piece);
            room[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        }
        slot
    }
}

impl Carrier for Sockets {
    fn explain(&self) -> Explanation {
        let compared = "compared with nothing, since the endpoint was opened without a port";
        let second = self.only_peer.peer().map(|peer| format!(", and one connected to {peer}"));
        let second = second.unwrap_or_default();
        Explanation::from_choice(
            &format_args!("UDP socket {}{second}: {compared}", self.local),
            self.evidence(),
        )
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    #[inline]
    fn room(&self) -> Room {
        let (slots, prefixes) = self.staging.free();
        let packets = slots.saturating_sub(CONTROL_SLOTS);
        Room { packets, fragments: prefixes.min(packets), buffers: self.cargo.room() }
    }

    #[inline(always)] // for each packet
    fn packet(&mut self) -> Option<Packet> {
        let slot =
            (self.staging.free().0 > CONTROL_SLOTS).then(|| self.staging.take(HEADER_BYTES)).flatten()?;
        Some(Packet(slot))
    }

    #[inline(always)] // for each message
    fn payload_mut(&mut self, packet: &Packet) -> &mut [u8] {
        &mut self.staging.slot_mut(packet.0)[HEADER_BYTES..]
    }

    #[inline]
    fn set_payload_bytes(&mut self, packet: &Packet, bytes: usize) {
        self.staging.set_head_bytes(packet.0, HEADER_BYTES + bytes);
    }

    fn buffer(&mut self) -> Option<BufferMut> {
        self.buffers.take()
    }

    /// Buffers for a message; all but the last are full.
    fn buffers_for(&mut self, layout: Layout) -> Option<Buffers> {
        let mut left = layout.bytes;
        let next_buffer = || {
            let mut buffer = self.buffers.take()?;
            buffer.resize(left.min(buffer.capacity()));
            left -= buffer.len();
            Some(buffer.freeze())
        };
        let count = layout.bytes.div_ceil(self.buffers.buffer_bytes());
        std::iter::repeat_with(next_buffer).take(count).collect()
    }

    fn fragments(&mut self, buffers: Buffers, layout: Layout, made: &mut Vec<Packet>) -> Result<(), Buffers> {
        let numbers: SmallVec<[u32; 4]> = buffers.into_iter().map(|buffer| self.cargo.put(buffer)).collect();
        let mut reader = Reader { numbers: &numbers, next: 0, at: 0, left: self.cargo.len(numbers[0]) };
        for chunk in layout.chunks() {
            made.push(Packet(self.fragment(&chunk, &mut reader)));
        }
        numbers.iter().for_each(|number| self.cargo.release(*number));
        Ok(())
    }

    #[inline]
    fn transmit_packet(&mut self, to: &Path, packet: &Packet, header: &[u8; HEADER_BYTES], crc: bool) {
        if !self.staging.hold_mut(packet.0).begin_to_wait() {
            self.counters.still_away += 1;
            return;
        }
        let sum = |pieces: &[&[u8]]| crc::of_pieces(pieces.iter().copied()).to_be_bytes();
        self.staging.seal(packet.0, header, crc.then_some(sum), &self.cargo);
        self.outbox.push(Waiting { slot: packet.0, control: false }, to);
        if self.outbox.len() == self.flush_from {
            self.flush();
        }
    }

    #[inline(always)] // for each packet
    fn send_packet(&mut self, to: &Path, packet: &Packet, header: &[u8; HEADER_BYTES], _: Time) {
        if self.outbox.is_empty()
            && let Some(bytes) = self.staging.sealed_in_one_piece(packet.0, header)
            && self.only_peer.send(&mut self.receiver, to, bytes)
        {
            self.counters.calls += 1;
            self.counters.datagrams_sent += 1;
            return;
        }
        self.transmit_packet(to, packet, header, false);
        self.flush();
    }

    fn send_run(&mut self, to: &Path, packets: &[Packet], headers: Headers) {
        let slots = packets.iter().map(|packet| packet.0);
        if self.outbox.is_empty()
            && let Some((bytes, segment_bytes)) = self.staging.seal_run(slots.zip(headers))
        {
            let connected = self.only_peer.socket_to(&mut self.receiver, to);
            let (socket, name) = match connected {
                Some(connected) => (connected, None),
                None => (self.receiver.socket(), Some(to)),
            };
            if self.outbox.send_joined(bytes, segment_bytes, socket, name) {
                self.counters.calls += 1;
                self.counters.datagrams_sent += packets.len() as u64;
                return;
            }
        }
        // The general way says why.
        for (packet, header) in packets.iter().zip(headers) {
            self.transmit_packet(to, packet, &header, false);
        }
        self.flush();
    }

    fn transmit_control(&mut self, to: &Path, datagram: &[u8]) {
        if self.outbox.controls() == CONTROL_SLOTS {
            self.flush();
        }
        let room = self.outbox.controls() < CONTROL_SLOTS;
        let Some(slot) = room.then(|| self.staging.take(datagram.len())).flatten() else {
            self.counters.no_memory_to_send += 1;
            return;
        };
        let Some(bytes) = self.staging.slot_mut(slot).get_mut(..datagram.len()) else {
            // Longer than any datagram of this endpoint.
            self.counters.too_long += 1;
            self.staging.free_slot(slot, &mut self.cargo);
            return;
        };
        bytes.copy_from_slice(datagram);
        self.staging.hold_mut(slot).begin_to_wait();
        self.outbox.push(Waiting { slot, control: true }, to);
    }

    fn has_room_for(&mut self, to: &Path, bytes: usize, is_proven: bool) -> bool {
        let has_room = self.outbox.has_room_for(self.receiver.socket(), to, bytes, is_proven);
        self.counters.unresolved_dropped += u64::from(!has_room);
        has_room
    }

    #[inline]
    fn send_control(&mut self, to: &Path, datagram: &[u8]) {
        if self.outbox.is_empty() && outbox::send_lone(to, self.receiver.socket(), datagram) {
            self.counters.calls += 1;
            self.counters.datagrams_sent += 1;
            return;
        }
        self.transmit_control(to, datagram);
        self.flush();
    }

    #[inline]
    fn flush(&mut self) {
        if !self.outbox.is_empty() {
            self.flush_all();
        }
    }

    #[inline]
    fn is_stuck(&mut self) -> bool {
        !self.outbox.is_empty()
    }

    fn in_use(&self) -> usize {
        self.staging.in_use() - self.outbox.controls()
    }

    #[inline]
    fn release(&mut self, packet: Packet) {
        if self.staging.hold_mut(packet.0).acknowledge() {
            self.staging.free_slot(packet.0, &mut self.cargo);
        }
    }

    fn freed(&mut self) -> bool {
        std::mem::take(&mut self.staging.freed)
    }

    #[inline]
    fn receive(&mut self, deliver: &mut impl Deliver) -> io::Result<usize> {
        let Self { receiver, only_peer, is_wildcard, intake, counters, .. } = self;
        let mut look = only_peer.look();
        loop {
            if *is_wildcard && look.connected {
                deliver.asked(only_peer.local());
            }
            let came = receiver.receive_in_place(look.connected, |came| match came {
                kernel::ArrivedInPlace::Last(from, congested, bytes) => {
                    intake.last(from, congested, bytes, deliver)
                }
                kernel::ArrivedInPlace::Lone(from, congested, bytes) => {
                    intake.copy(from, congested, bytes, deliver)
                }
                kernel::ArrivedInPlace::Run(mut run) => intake.take(&mut run, deliver),
            });
            return match came {
                Ok(datagrams @ 1..) => {
                    only_peer.note_some(look.connected);
                    counters.datagrams_received += datagrams as u64;
                    Ok(datagrams)
                }
                // All run buffers are held: those that come meanwhile wait in the kernel.
                Err(error) if error.kind() == io::ErrorKind::OutOfMemory => Ok(0),
                Err(error) => Err(error),
                // Only then at another one: what came may lie in a buffer that is overwritten.
                Ok(0) => match only_peer.after_nothing(receiver, look) {
                    Some(other) => {
                        look = other;
                        continue;
                    }
                    None => Ok(0),
                },
            };
        }
    }

    #[inline]
    fn leave_none_out(&mut self) -> bool {
        self.only_peer.wake()
    }

    fn wait(&mut self, how: Wait, until: Option<Instant>, deliver: &mut impl Deliver) -> io::Result<usize> {
        let mut looks = Looks { sockets: self, deliver, last: None };
        wait::wait(&mut looks, how, until)?;
        // The wait may have ended before the first look: the time was up already, or a signal came.
        looks.last.unwrap_or_else(|| looks.sockets.receive(looks.deliver))
    }

    #[inline(always)] // as above
    fn lone(&mut self, place: Alone) -> Lone<'_> {
        match place {
            Alone::In(_) => Lone::Shown(self.receiver.last_in_place(place.only()), &mut self.intake),
            Alone::Across(spread, run_bytes) => {
                let run = self.receiver.last_in_place(0..run_bytes as usize);
                Lone::Spread(run, spread, &mut self.intake)
            }
        }
    }

    #[inline]
    fn recycle(&mut self, received: Received) {
        match received {
            Received::Buffer(buffer) => self.intake.put_buffer(buffer),
            Received::Shared(part) => self.intake.put_shared(part),
            _ => {} // none of ours
        }
    }

    #[inline]
    fn free_to_receive(&self) -> usize {
        self.intake.free()
    }

    /// A socket becomes readable by itself when something arrives; refused packets are tried again whenever
    /// the endpoint works.
    fn arm(&mut self) -> io::Result<bool> {
        self.flush();
        self.leave_none_out();
        Ok(self.poll(Duration::ZERO, false)? == Wakeup::Ready)
    }

    fn watch(&mut self, poll: BorrowedFd<'_>) -> io::Result<()> {
        self.only_peer.watch(&self.receiver, poll)
    }

    fn counters(&self) -> CarrierCounters {
        CarrierCounters { no_memory_to_receive: self.intake.no_memory, ..self.counters }
    }

    /// The evidence for received bytes: each copied by the call, and some once more.
    fn received(&self) -> Ledger {
        let all = self.receiver.ledger();
        let (datagrams, bytes) = self.intake.copied;
        let mut ledger = Ledger::default();
        ledger.add(Evidence::Copied(Cause::BelowThreshold), datagrams, bytes);
        let socket = Evidence::Copied(Cause::SocketCall);
        ledger.add(socket, all.datagrams() - datagrams, all.bytes().saturating_sub(bytes));
        ledger
    }

    #[inline]
    fn received_causes(&self) -> Causes {
        let socket = Evidence::Copied(Cause::SocketCall);
        Causes::default()
            .with(socket, self.receiver.ledger().bytes_of(socket))
            .with(Evidence::Copied(Cause::BelowThreshold), self.intake.copied.1)
    }

    fn evidence(&self) -> Evidence {
        Evidence::Copied(Cause::SocketCall)
    }

    fn gathered_bytes(&self) -> u64 {
        self.gathered_bytes
    }
}

/// Waits for datagrams. Only a receiving call shows whether any arrived, and delivers them at once.
struct Looks<'a, D> {
    sockets: &'a mut Sockets,
    deliver: &'a mut D,
    /// The number of datagrams of the last call.
    last: Option<io::Result<usize>>,
}

impl<D: Deliver> wait::WaitSource for Looks<'_, D> {
    /// Compared with a system call, reading the clock costs nothing.
    fn polls_per_clock_read(&self) -> u32 {
        4
    }

    /// Whether a datagram arrived, or the socket failed.
    fn is_ready(&mut self) -> bool {
        let came = self.sockets.receive(self.deliver);
        let is_over = !matches!(came, Ok(0));
        self.last = Some(came);
        is_over
    }

    /// poll(2) also reports what arrived before.
    fn arm(&mut self) -> io::Result<bool> {
        self.sockets.leave_none_out();
        Ok(false)
    }

    fn refill_and_wake(&mut self) -> io::Result<()> {
        self.sockets.flush();
        Ok(())
    }

    fn wait_readable(&mut self, timeout: Duration) -> io::Result<Wakeup> {
        let wakeup = self.sockets.poll(timeout, !self.sockets.outbox.is_empty())?;
        self.sockets.flush();
        Ok(wakeup)
    }

    fn sleep(&mut self, duration: Duration) -> io::Result<bool> {
        self.sockets.leave_none_out();
        std::thread::sleep(duration);
        Ok(false)
    }

    fn read_count_and_room(&self) -> (u32, u32) {
        (self.sockets.counters.datagrams_received as u32, u32::MAX)
    }

    fn coalescer(&mut self) -> &mut WakeupCoalescer {
        &mut self.sockets.coalescer
    }
}

/// Reads several buffers in sequence.
struct Reader<'a> {
    numbers: &'a [u32],
    next: usize,
    at: usize,
    /// Bytes of the current buffer from the position on.
    left: usize,
}

impl Reader<'_> {
    /// The next `bytes` bytes, if they lie in one piece and more bytes follow in it.
    #[inline]
    fn piece(&mut self, bytes: usize) -> Option<Piece> {
        if bytes == 0 || bytes >= self.left {
            return None;
        }
        let piece = Piece { buffer: self.numbers[self.next], at: self.at as u32, bytes: bytes as u32 };
        (self.at, self.left) = (self.at + bytes, self.left - bytes);
        Some(piece)
    }

    /// The pieces in which the next `bytes` bytes lie.
    fn pieces(&mut self, mut bytes: usize, cargo: &Cargo) -> SmallVec<[Piece; PIECES_MAX]> {
        let mut pieces = SmallVec::new();
        while bytes > 0 {
            let buffer = self.numbers[self.next];
            let now = bytes.min(self.left);
            if now > 0 {
                pieces.push(Piece { buffer, at: self.at as u32, bytes: now as u32 });
            }
            (self.at, self.left, bytes) = (self.at + now, self.left - now, bytes - now);
            if self.left == 0 {
                (self.next, self.at) = (self.next + 1, 0);
                self.left = self.numbers.get(self.next).map_or(0, |next| cargo.len(*next));
            }
        }
        pieces
    }
}
