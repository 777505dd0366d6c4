//! Packets for the next flush: packets of equal length to one peer become one message of the kernel's (GSO),
//! and one call sends many messages.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use nocopy_proto::message::{Local, Path};

use super::staging::Staging;
use crate::message::cargo::Cargo;
use crate::message::counters::CarrierCounters;
use crate::sys::udp_send::{
    AddedControls, Burst, CopiedBurst, MESSAGES_MAX, SEGMENTS_MAX, allow_fragments, send_datagram,
    send_with_controls,
};
use crate::udp::strangers::UnverifiedPeerLimit;

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
    lone: Option<(Waiting, Path)>,
    /// Otherwise all of them.
    waiting: VecDeque<Waiting>,
    /// The destinations: that many packets in a row to one address.
    rows: VecDeque<(Path, usize)>,
    /// How many of them are control datagrams.
    controls: usize,
    burst: Burst,
    /// The number of packets in each message of the burst.
    packets: Vec<usize>,
    /// Equal packets are sent as one message, which the kernel splits (`UDP_SEGMENT`).
    joins: bool,
    /// How many packets at the front are sent one by one, because they were refused joined.
    alone: usize,
    /// The address of the socket.
    local: SocketAddr,
    strangers: UnverifiedPeerLimit,
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
    pub(super) fn new(local: SocketAddr) -> Self {
        Self {
            lone: None,
            waiting: VecDeque::new(),
            rows: VecDeque::new(),
            controls: 0,
            burst: Burst::new(),
            packets: Vec::with_capacity(MESSAGES_MAX),
            joins: true,
            alone: 0,
            local,
            strangers: UnverifiedPeerLimit::default(),
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
    pub(super) fn push(&mut self, waiting: Waiting, to: &Path) {
        self.controls += usize::from(waiting.control);
        if self.is_empty() {
            self.lone = Some((waiting, *to));
            return;
        }
        if let Some((first, to)) = self.lone.take() {
            self.queue(first, &to);
        }
        self.queue(waiting, to);
    }

    fn queue(&mut self, waiting: Waiting, to: &Path) {
        self.waiting.push_back(waiting);
        match self.rows.back_mut() {
            Some((same, count)) if same == to => *count += 1,
            _ => self.rows.push_back((*to, 1)),
        }
    }

    /// Sends packets that lie one after another, each of `segment_bytes` bytes except that the last may be
    /// shorter, to an address or to the one that the socket is connected to. False: they were not sent.
    #[inline]
    pub(super) fn send_joined(
        &mut self,
        bytes: &[u8],
        segment_bytes: usize,
        socket: BorrowedFd<'_>,
        to: Option<&Path>,
    ) -> bool {
        if !self.joins || bytes.len() > MESSAGE_BYTES_MAX {
            return false;
        }
        let mut burst = CopiedBurst::new(&mut self.burst);
        begin(&mut burst, to);
        burst.push_piece(bytes);
        burst.set_segment_bytes(segment_bytes as u16);
        burst.send(socket, 0).is_ok_and(|sent| sent == 1)
    }

    /// Whether the socket has room for a datagram of so many bytes to a host that may not be there;
    /// `is_proven`: to a peer.
    pub(super) fn has_room_for(
        &mut self,
        socket: BorrowedFd<'_>,
        to: &Path,
        bytes: usize,
        is_proven: bool,
    ) -> bool {
        match is_proven {
            true => {
                let (waiting, way) = (self.len(), (source(self.local, to), to.remote));
                self.strangers.may_send_to_silent(socket, bytes, waiting, way)
            }
            false => self.strangers.may_send_to_unverified(socket, bytes, to.remote),
        }
    }

    /// The socket has no room: packets to hosts that do not answer are given up, since others wait behind
    /// them. They count as lost on their way.
    #[cold]
    fn give_up_absent(
        &mut self,
        socket: BorrowedFd<'_>,
        staging: &mut Staging,
        cargo: &mut Cargo,
        counters: &mut CarrierCounters,
    ) {
        if self.rows.len() < 2 {
            return;
        }
        let Self { rows, strangers, local, .. } = self;
        let ways = rows.iter().map(|(to, _)| (source(*local, to), to.remote));
        let absent: Vec<bool> = strangers.next_hops_unresolved(socket, ways).collect();
        if !absent.contains(&true) {
            return;
        }
        self.alone = 0;
        let mut waiting = std::mem::take(&mut self.waiting);
        for ((to, count), is_absent) in std::mem::take(&mut self.rows).into_iter().zip(absent) {
            for waiting in waiting.drain(..count) {
                match is_absent {
                    true => self.let_go(waiting, staging, cargo),
                    false => self.queue(waiting, &to),
                }
            }
            counters.unresolved_dropped += if is_absent { count as u64 } else { 0 };
        }
    }

    /// The addresses for which several packets wait: the first one, and whether there are others.
    #[inline]
    pub(super) fn destinations(&self) -> Option<(Path, bool)> {
        self.rows.front().map(|(to, _)| (*to, self.rows.len() > 1))
    }

    /// As [`flush`](Self::flush), by a socket that is connected to the only destination. False: it has no
    /// room for everything. Errors: it refused something, which another socket is to try.
    pub(super) fn flush_connected(
        &mut self,
        socket: BorrowedFd<'_>,
        staging: &mut Staging,
        cargo: &mut Cargo,
        counters: &mut CarrierCounters,
    ) -> io::Result<bool> {
        while !self.waiting.is_empty() {
            match self.call(socket, true, staging, cargo) {
                Outcome::Full => return Ok(false),
                Outcome::Sent(messages) => self.sent(messages, staging, cargo, counters),
                Outcome::Refused(error) => return Err(error),
            }
        }
        Ok(true)
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
            if staging.in_one_piece(waiting.slot).is_some_and(|bytes| send_lone(&to, socket, bytes)) {
                counters.calls += 1;
                counters.datagrams_sent += 1;
                return self.let_go(waiting, staging, cargo);
            }
            self.queue(waiting, &to);
        }
        while !self.waiting.is_empty() {
            match self.call(socket, false, staging, cargo) {
                Outcome::Full => {
                    counters.kernel_full += 1;
                    return self.give_up_absent(socket, staging, cargo, counters);
                }
                Outcome::Sent(messages) => self.sent(messages, staging, cargo, counters),
                Outcome::Refused(error) => self.refused(&error, socket, staging, cargo, counters),
            }
        }
    }

    fn sent(
        &mut self,
        messages: usize,
        staging: &mut Staging,
        cargo: &mut Cargo,
        counters: &mut CarrierCounters,
    ) {
        let packets = self.packets[..messages].iter().sum();
        counters.calls += 1;
        counters.datagrams_sent += packets as u64;
        self.forget(packets, staging, cargo);
    }

    /// Makes a call with as many messages as it can take.
    fn call(
        &mut self,
        socket: BorrowedFd<'_>,
        is_connected: bool,
        staging: &Staging,
        cargo: &Cargo,
    ) -> Outcome {
        self.packets.clear();
        let mut burst = CopiedBurst::new(&mut self.burst);
        let mut at = 0;
        'full: for (to, count) in &self.rows {
            let (to, end) = ((!is_connected).then_some(to), at + count);
            while at < end {
                let packets_max = if self.joins && at >= self.alone { SEGMENTS_MAX.min(end - at) } else { 1 };
                if !burst.has_room(staging.extent(self.waiting[at].slot).0) {
                    break 'full;
                }
                begin(&mut burst, to);
                let waiting = self.waiting.range(at..at + packets_max);
                let joined = join(waiting.map(|waiting| waiting.slot), staging, cargo, &mut burst);
                self.packets.push(joined);
                at += joined;
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

    /// Handles the refusal of the first message: joined packets are sent one by one, a packet that is too
    /// long may be fragmented, and others count as lost on their way.
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
        begin(&mut burst, Some(&self.rows[0].0));
        staging.each_piece(waiting.slot, cargo, |piece| burst.push_piece(piece));
        let sent = allow_fragments(&socket.as_fd(), self.local.is_ipv6(), true)
            .is_ok_and(|()| burst.send(socket, 0).is_ok_and(|sent| sent == 1));
        // It was possible when the socket was made.
        let _ = allow_fragments(&socket.as_fd(), self.local.is_ipv6(), false);
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

/// The address of this host from which datagrams go there, if it is known.
fn source(local: SocketAddr, to: &Path) -> Option<IpAddr> {
    let own = local.ip();
    to.local.map(|local| local.address).or((!own.to_canonical().is_unspecified()).then_some(own))
}

/// Sends the only waiting packet, which lies in one piece, by a simpler call. False: it was not sent.
#[inline]
pub(super) fn send_lone(to: &Path, socket: BorrowedFd<'_>, bytes: &[u8]) -> bool {
    send_to(to, socket, bytes).is_ok()
}

/// Sends a datagram without waiting, from the right one of the host's addresses.
#[inline]
fn send_to(to: &Path, socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    match to.local {
        None => send_datagram(socket, bytes, Some(&to.remote.into()), libc::MSG_DONTWAIT),
        Some(local) => send_to_from(to.remote, local, socket, bytes),
    }
}

#[inline(never)] // sockets with one address need none of this
fn send_to_from(to: SocketAddr, local: Local, socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    let source = AddedControls::from_source(local.address, local.interface);
    send_with_controls(socket, bytes, None, Some(&to.into()), Some(&source), libc::MSG_DONTWAIT)
}

/// Begins a message to the end of a path, or to the one that the socket is connected to.
#[inline(always)] // for each message of joined packets
fn begin(burst: &mut CopiedBurst<'_>, to: Option<&Path>) {
    burst.begin_message(to.map(|path| path.remote.into()).as_ref());
    if let Some(local) = to.and_then(|path| path.local) {
        burst.add_controls(&AddedControls::from_source(local.address, local.interface));
    }
}

/// Joins as many of the packets to one peer as can be: all of one length, except that the last may be
/// shorter. Adds their bytes to the message that was begun, and returns their number.
#[inline]
fn join<'a>(
    slots: impl Iterator<Item = u32>,
    staging: &'a Staging,
    cargo: &'a Cargo,
    burst: &mut CopiedBurst<'a>,
) -> usize {
    let (mut packets, mut segment_bytes, mut bytes) = (0, 0, 0);
    for slot in slots {
        let whole = staging.in_one_piece(slot);
        let (pieces, length) = whole.map_or_else(|| staging.extent(slot), |bytes| (1, bytes.len()));
        if packets == 0 {
            segment_bytes = length;
        } else if length > segment_bytes
            || bytes + length > MESSAGE_BYTES_MAX
            || !burst.has_room_behind(pieces)
        {
            break;
        }
        match whole {
            Some(bytes) => burst.push_piece(bytes),
            None => staging.each_piece(slot, cargo, |piece| burst.push_piece(piece)),
        }
        (packets, bytes) = (packets + 1, bytes + length);
        if length < segment_bytes {
            break;
        }
    }
    if packets > 1 {
        burst.set_segment_bytes(segment_bytes as u16);
    }
    packets
}
