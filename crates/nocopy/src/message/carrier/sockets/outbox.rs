//! Packets for the next flush: packets of equal length to one peer become one message of the kernel's (GSO), and one call sends many
//! messages.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use super::staging::Staging;
use crate::message::cargo::Cargo;
use crate::message::counters::CarrierCounters;
use crate::sys::udp_send::{
    Burst, CopiedBurst, MESSAGES_MAX, PIECES_MAX, SEGMENTS_MAX, allow_fragments, send,
};

/// The longest message: the payload of an IPv4 packet.
const MESSAGE_BYTES_MAX: usize = 65_507;

/// How many packets of this length go as one message.
pub(super) fn joined_max(packet_bytes: usize) -> usize {
    (MESSAGE_BYTES_MAX / packet_bytes).clamp(1, SEGMENTS_MAX)
}

/// A packet or control datagram that waits to be sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    pub(super) slot: u32,
    /// A control datagram, which is not acknowledged: its slot is free once it is sent.
    pub(super) control: bool,
}

#[derive(Debug)]
pub(super) struct Outbox {
    /// The only waiting packet, with its destination: nearly always it is sent alone, and needs no queue.
    lone: Option<(Waiting, SocketAddr)>,
    /// Otherwise all of them.
    waiting: VecDeque<Waiting>,
    /// The destinations: that many packets in a row to one address.
    rows: VecDeque<(SocketAddr, usize)>,
    /// How many of them are control datagrams.
    controls: usize,
    burst: Burst,
    /// The number of packets in each message of the burst.
    packets: Vec<usize>,
    /// Equal packets are sent as one message, which the kernel splits (`UDP_SEGMENT`).
    joins: bool,
    /// How many packets at the front are sent one by one, because they were refused joined.
    alone: usize,
    is_ipv6: bool,
}

enum Outcome {
    /// This many messages were sent.
    Sent(usize),
    /// The kernel accepts no more now.
    Full,
    /// The first message was refused.
    Refused(io::Error),
}

impl Outbox {
    pub(super) fn new(is_ipv6: bool) -> Self {
        Self {
            lone: None,
            waiting: VecDeque::new(),
            rows: VecDeque::new(),
            controls: 0,
            burst: Burst::new(),
            packets: Vec::with_capacity(MESSAGES_MAX),
            joins: true,
            alone: 0,
            is_ipv6,
        }
    }

    /// The number of waiting packets.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + usize::from(self.lone.is_some())
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.lone.is_none() && self.waiting.is_empty()
    }

    /// Control datagrams that wait.
    #[inline]
    pub(super) fn controls(&self) -> usize {
        self.controls
    }

    #[inline]
    pub(super) fn push(&mut self, waiting: Waiting, to: SocketAddr) {
        self.controls += usize::from(waiting.control);
        if self.is_empty() {
            self.lone = Some((waiting, to));
            return;
        }
        if let Some((first, to)) = self.lone.take() {
            self.queue(first, to);
        }
        self.queue(waiting, to);
    }

    fn queue(&mut self, waiting: Waiting, to: SocketAddr) {
        self.waiting.push_back(waiting);
        match self.rows.back_mut() {
            Some((same, count)) if *same == to => *count += 1,
            _ => self.rows.push_back((to, 1)),
        }
    }

    /// Hands over as much as the kernel accepts; the rest waits for the next flush.
    pub(super) fn flush(
        &mut self,
        socket: BorrowedFd<'_>,
        staging: &mut Staging,
        cargo: &mut Cargo,
        counters: &mut CarrierCounters,
    ) {
        if let Some((waiting, to)) = self.lone.take() {
            if staging.in_one_piece(waiting.slot).is_some_and(|bytes| send_lone(to, socket, bytes)) {
                counters.calls += 1;
                counters.datagrams_sent += 1;
                return self.let_go(waiting, staging, cargo);
            }
            self.queue(waiting, to);
        }
        while !self.waiting.is_empty() {
            match self.call(socket, staging, cargo) {
                Outcome::Full => {
                    counters.kernel_full += 1;
                    return;
                }
                Outcome::Sent(messages) => {
                    let packets = self.packets[..messages].iter().sum();
                    counters.calls += 1;
                    counters.datagrams_sent += packets as u64;
                    self.forget(packets, staging, cargo);
                }
                Outcome::Refused(error) => self.refused(&error, socket, staging, cargo, counters),
            }
        }
    }

    /// Makes a call with as many messages as it can take.
    fn call(&mut self, socket: BorrowedFd<'_>, staging: &Staging, cargo: &Cargo) -> Outcome {
        self.packets.clear();
        let mut burst = CopiedBurst::new(&mut self.burst);
        let mut at = 0;
        'full: for (to, count) in &self.rows {
            let (to, end) = ((*to).into(), at + count);
            while at < end {
                let packets_max = if self.joins && at >= self.alone { SEGMENTS_MAX.min(end - at) } else { 1 };
                let group = Group::of(self.waiting.range(at..at + packets_max), staging);
                if !burst.has_room(group.pieces) {
                    break 'full;
                }
                let segment_bytes = if group.packets > 1 { group.segment_bytes as u16 } else { 0 };
                burst.begin(&to, segment_bytes);
                for waiting in self.waiting.range(at..at + group.packets) {
                    staging.each_piece(waiting.slot, cargo, |piece| burst.piece(piece));
                }
                self.packets.push(group.packets);
                at += group.packets;
            }
        }
        loop {
            return match burst.send(socket, 0) {
                Ok(sent) => Outcome::Sent(sent),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Outcome::Full,
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Outcome::Full,
                Err(error) => Outcome::Refused(error),
            };
        }
    }

    /// Handles the refusal of the first message: joined packets are sent one by one, a packet that is too long may be fragmented, and
    /// others count as lost on their way.
    fn refused(
        &mut self,
        error: &io::Error,
        socket: BorrowedFd<'_>,
        staging: &mut Staging,
        cargo: &mut Cargo,
        counters: &mut CarrierCounters,
    ) {
        let packets = self.packets[0];
        if packets > 1 {
            // No checksum by the device below (`EIO`): none of this socket's will be joined.
            self.joins &= error.raw_os_error() != Some(libc::EIO);
            self.alone = packets;
            counters.joined_refused += 1;
            return;
        }
        let first = self.waiting[0];
        // One of the set-up is as long as it is to find out whether the way takes that.
        let is_too_long = error.raw_os_error() == Some(libc::EMSGSIZE);
        if is_too_long && !first.control && self.in_fragments(first, socket, staging, cargo) {
            counters.datagrams_sent += 1;
            counters.fragmented += 1;
        } else if is_too_long {
            counters.too_long += 1;
        } else {
            counters.datagrams_refused += 1;
        }
        self.forget(1, staging, cargo);
    }

    /// Sends one packet in fragments, because the path's MTU became smaller than it.
    fn in_fragments(
        &mut self,
        waiting: Waiting,
        socket: BorrowedFd<'_>,
        staging: &Staging,
        cargo: &Cargo,
    ) -> bool {
        let mut burst = CopiedBurst::new(&mut self.burst);
        burst.begin(&self.rows[0].0.into(), 0);
        staging.each_piece(waiting.slot, cargo, |piece| burst.piece(piece));
        let sent = allow_fragments(&socket.as_fd(), self.is_ipv6, true)
            .is_ok_and(|()| burst.send(socket, 0).is_ok_and(|sent| sent == 1));
        // It was possible when the socket was made.
        let _ = allow_fragments(&socket.as_fd(), self.is_ipv6, false);
        sent
    }

    /// One waits no more.
    #[inline]
    fn let_go(&mut self, waiting: Waiting, staging: &mut Staging, cargo: &mut Cargo) {
        let Waiting { slot, control } = waiting;
        self.controls -= usize::from(control);
        if staging.hold_mut(slot).end_wait() || control {
            staging.free_slot(slot, cargo);
        }
    }

    /// Removes the first packets from the queue.
    fn forget(&mut self, packets: usize, staging: &mut Staging, cargo: &mut Cargo) {
        for _ in 0..packets {
            let Some(waiting) = self.waiting.pop_front() else { break };
            self.let_go(waiting, staging, cargo);
        }
        let mut gone = packets;
        while let Some((_, count)) = self.rows.front_mut().filter(|_| gone > 0) {
            let now = gone.min(*count);
            (gone, *count) = (gone - now, *count - now);
            if *count == 0 {
                self.rows.pop_front();
            }
        }
        self.alone = self.alone.saturating_sub(packets);
    }
}

/// Sends the only waiting packet, which lies in one piece, by a simpler call. False: it was not sent.
#[inline]
pub(super) fn send_lone(to: SocketAddr, socket: BorrowedFd<'_>, bytes: &[u8]) -> bool {
    send(socket, bytes, Some(&to.into()), libc::MSG_DONTWAIT).is_ok()
}

/// Packets to one peer, all of one length except the last, which may be shorter.
struct Group {
    packets: usize,
    pieces: usize,
    segment_bytes: usize,
}

impl Group {
    /// The longest group at the front of the packets to one peer.
    #[inline]
    fn of<'w>(waiting: impl Iterator<Item = &'w Waiting>, staging: &Staging) -> Self {
        let mut group = Self { packets: 0, pieces: 0, segment_bytes: 0 };
        let mut bytes = 0;
        for next in waiting {
            let (pieces, length) = staging.extent(next.slot);
            if group.packets == 0 {
                group.segment_bytes = length;
            } else if length > group.segment_bytes
                || bytes + length > MESSAGE_BYTES_MAX
                || group.pieces + pieces > PIECES_MAX
            {
                break;
            }
            (group.packets, group.pieces, bytes) = (group.packets + 1, group.pieces + pieces, bytes + length);
            if length < group.segment_bytes {
                break;
            }
        }
        group
    }
}
