//! The endpoint, which drives the protocol and the carrier of its datagrams.
//!
//! Work for which the program waits comes first: a message is returned before the alarms and acknowledgements
//! of its packet are handled, and packets are sent before the bookkeeping for them. The rest is done while
//! the peer works.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nocopy_proto::message::{self as protocol, Event, Fresh, Peer, Settings, Time, Transmit, wire};

use super::arrivals::{Arrivals, Clock, Lone};
use super::carrier::{AnyCarrier, Carrier, Packet, Received};
use super::counters::SentCounters;
use super::descriptor::Descriptor;
use super::open_packet::Peers;
use super::placing::{Posted, Puts};
use super::received::{Lender, Owned};
use super::sent_shares::SentShares;
use super::streams::Streams;
use super::{Message, OpenError};
use crate::engine::half::{receiver_half, sender_half};
use crate::engine::wait::{LOOK_AGAIN, Wait};
use crate::events::{Half, ReportedCauses};
use crate::facts::evidence::{Cause, Evidence};
use crate::memory::pool::BufferMut;

/// The most events kept here; the protocol keeps as many, and then accepts no connections.
pub(super) const EVENTS_MAX: usize = 1 << 16;

/// How often to check for packets that the kernel has finished, or for room in its queue: neither ends a
/// wait.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// What counts as sent for a packet that is sent again; it is more than most have.
const PACKET_BYTES: usize = 1500;

/// The most checks for a message before a wait on the descriptor, while other datagrams keep arriving.
pub(super) const ARM_LOOKS_MAX: u32 = 64;

/// What never waits of an [`Endpoint`](super::Endpoint): both it and its asynchronous form deref to this.
///
/// It works only within calls of its methods; [`arm`](Self::arm) does everything that is due.
#[derive(Debug)]
pub struct NonblockingEndpoint {
    pub(super) protocol: protocol::Endpoint<Packet, Received>,
    pub(super) carrier: AnyCarrier,
    /// What counts memory of messages that the program takes.
    pub(super) lender: Lender,
    pub(super) descriptor: Descriptor,
    pub(super) peers: Peers,
    /// Streams beside the datagrams, if they are used.
    pub(super) streams: Option<Box<Streams>>,
    /// Buffers for long messages, if there ever were some.
    pub(super) posted: Option<Arc<Posted>>,
    pub(super) puts: Box<Puts>,
    /// Packets of a message that is being queued; or of one that waits for the flush, all but its last, which
    /// is an open packet.
    pub(super) made: Vec<Packet>,
    pub(super) wait: Wait,
    pub(super) clock: Clock,
    pub(super) window_packets: usize,
    pub(super) sent_shares: SentShares,
    /// Packets queued since the protocol was asked what to send.
    pub(super) unsent: usize,
    /// A message that arrived alone and is passed to the program in place.
    pub(super) lone: Option<Lone>,
    /// Messages returned since then.
    pub(super) at_hand: u32,
    /// Peers for which there was no memory for packets.
    pub(super) starved: Vec<Peer>,
    /// Packets became free since those were last reported to be writable.
    pub(super) freed: bool,
    /// Events that were taken from the protocol and not returned.
    pub(super) events: VecDeque<Event>,
    /// An event neither ended a wait nor was reported by [`arm`](Self::arm).
    pub(super) unreported: bool,
    /// An event that `arm` reported, which ended no wait yet.
    pub(super) reported_by_arm: bool,
    /// Messages that arrived during a wait for another one.
    pub(super) aside: VecDeque<Owned>,
    pub(super) next_call: u32,
    pub(super) sent: Sent,
    reported: ReportedCauses,
}

/// Bytes of sent messages, by method.
#[derive(Debug, Default)]
pub(super) struct Sent {
    pub(super) messages: u64,
    pub(super) from_slices: u64,
    pub(super) short: u64,
    pub(super) owned: u64,
    pub(super) by_stream: u64,
}

impl Sent {
    pub(super) fn counters(&self) -> SentCounters {
        let Self { messages, from_slices, short, owned, by_stream } = *self;
        SentCounters { messages_sent: messages, message_bytes_sent: from_slices + short + owned + by_stream }
    }
}

/// How long a step of work may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// Returns what is there, without waiting.
    None,
    /// Waits until something arrives, or for this time.
    For(Duration),
    /// Waits until something arrives, or until that moment.
    Until(Option<Instant>),
}

impl Patience {
    /// Converts a duration to a deadline.
    pub(super) fn until(self) -> Self {
        match self {
            Self::For(timeout) => Self::Until(Instant::now().checked_add(timeout)),
            other => other,
        }
    }
}

impl NonblockingEndpoint {
    pub(super) fn new(
        carrier: AnyCarrier,
        settings: Settings,
        datagrams_max: usize,
        wait: Wait,
        descriptor: Descriptor,
        streams: Option<Box<Streams>>,
    ) -> Result<Self, OpenError> {
        let mut seed = [0; 32];
        // 32 bytes come whole or not at all (getrandom(2)).
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| OpenError::Random { source: error.into() })?;
        if let Some(streams) = &streams {
            descriptor.watch(streams.as_fd()).map_err(|source| OpenError::Poll { source })?;
        }
        Ok(Self {
            descriptor,
            window_packets: settings.window_packets,
            sent_shares: SentShares::new(datagrams_max, carrier.room().packets, carrier.room().either()),
            protocol: protocol::Endpoint::new(settings, seed),
            lender: Lender::new(carrier.home()),
            carrier,
            peers: Peers::default(),
            streams,
            posted: None,
            puts: Box::default(),
            made: Vec::new(),
            wait,
            clock: Clock,
            unsent: 0,
            lone: None,
            at_hand: 0,
            starved: Vec::new(),
            freed: false,
            events: VecDeque::new(),
            unreported: false,
            reported_by_arm: false,
            aside: VecDeque::new(),
            next_call: 0,
            sent: Sent::default(),
            reported: ReportedCauses::default(),
        })
    }

    /// The address of the endpoint, with the port number that the kernel chose if it was to.
    pub fn local_addr(&self) -> SocketAddr {
        self.carrier.local_addr()
    }

    /// Whether an event ends this wait. Each event ends one wait only, so it counts as reported from here on.
    pub(super) fn take_news(&mut self) -> bool {
        let has_news = self.has_news();
        (self.unreported, self.reported_by_arm) = (false, false);
        has_news
    }

    /// Whether an event would end a wait.
    pub(super) fn has_news(&mut self) -> bool {
        self.has_unreported() || self.reported_by_arm
    }

    /// Whether an event is unreported, though older events may not have been taken yet.
    fn has_unreported(&mut self) -> bool {
        if !self.unreported
            && self.events.len() < EVENTS_MAX
            && let Some(event) = self.protocol.poll_event()
        {
            self.events.push_back(event);
            self.unreported = true;
        }
        self.unreported
    }

    /// The oldest event that was not returned yet.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front().or_else(|| self.protocol.poll_event());
        // Those behind it may have come together with it.
        (self.unreported, self.reported_by_arm) = (!self.events.is_empty(), false);
        event
    }

    /// Sends what is queued, handles what has arrived, and does what is due.
    pub(super) fn work(&mut self, patience: Patience) -> io::Result<()> {
        self.send_first();
        self.take_due(patience, false)
    }

    /// The first part of the work, before a wait.
    #[inline]
    pub(super) fn send_first(&mut self) {
        self.at_hand = 0;
        self.report_copies();
        self.reclaim();
        self.close_packets();
        if self.streams.as_ref().is_some_and(|streams| streams.has_cut()) {
            self.see_to_cuts();
        }
        if self.protocol.has_transmit() {
            self.transmit(self.now());
        }
    }

    /// Reports causes of copies until now, except by ports and sending streams, which report them themselves.
    #[inline(always)] // before each look
    fn report_copies(&mut self) {
        let Self { sent, carrier, streams, posted, puts, lender, reported, .. } = self;
        let copied = || {
            let [once, twice] = streams.as_ref().map_or([0; 2], |streams| streams.received_bytes());
            let posted = posted.as_ref().map_or(0, |posted| posted.gathered_bytes());
            let gathered = carrier.gathered_bytes() | puts.gathered_bytes | lender.joined_bytes() | posted;
            carrier
                .received_causes()
                .with(Evidence::Copied(Cause::Slice), sent.from_slices)
                .with(Evidence::Copied(Cause::SocketCall), once)
                .with(Evidence::Copied(Cause::BelowThreshold), sent.short | twice)
                .with(Evidence::Copied(Cause::Gathered), gathered)
        };
        reported.update(|| Half::MessageEndpoint.into(), copied);
    }

    /// The wait, and the work after it.
    #[inline]
    pub(super) fn take_due(&mut self, patience: Patience, reads_in_place: bool) -> io::Result<()> {
        let now = self.take_in(patience, reads_in_place)?;
        // A message that was waited for comes first: what is due is done by the next look.
        if self.lone.is_none() || self.protocol.is_urgent() {
            self.see_to_due(now);
        }
        Ok(())
    }

    /// Handles the effects of received datagrams. A message is returned first, unless something else is
    /// urgent; the rest is done by the next call, while the peer has the answer.
    #[inline(always)] // for each message that comes alone
    pub(super) fn see_to_due(&mut self, now: Time) {
        if self.has_news_of_puts() {
            self.see_to_puts();
        }
        // Not before what has come was read: that may be what an alarm is about.
        let is_due = self.protocol.poll_timeout().is_some_and(|due| due <= now) && self.acknowledge_due(now);
        if is_due {
            self.protocol.handle_timeout(now);
        }
        if self.protocol.has_transmit()
            && (is_due || self.protocol.is_urgent() || !self.protocol.has_message())
        {
            self.transmit(now);
        } else {
            self.carrier.flush(); // what the kernel did not take before, if there is any
        }
    }

    /// Receives what has arrived, waiting if `patience` allows it; returns the time.
    fn take_in(&mut self, patience: Patience, reads_in_place: bool) -> io::Result<Time> {
        let due = self.protocol.poll_timeout();
        match patience.until() {
            Patience::None | Patience::For(_) => {
                self.carrier.leave_none_out();
                let (now, lone) = self.look_at_all(reads_in_place)?;
                self.lone = lone;
                Ok(now)
            }
            Patience::Until(deadline) => {
                let Self { protocol, carrier, clock, wait, starved, lone, .. } = self;
                let due = due.and_then(|due| clock.instant(due));
                let look = (!starved.is_empty()).then(|| Instant::now() + LOOK_INTERVAL);
                let until = [due, deadline, look].into_iter().flatten().min();
                if self.streams.is_some() {
                    return self.wait_beside(until, reads_in_place);
                }
                let mut arrivals = Arrivals::new(protocol, clock, reads_in_place);
                carrier.wait(*wait, until, &mut arrivals)?;
                let now = arrivals.now();
                *lone = arrivals.lone;
                Ok(now)
            }
        }
    }

    /// Returns memory that is free again.
    #[inline(always)] // before each look
    pub(super) fn reclaim(&mut self) {
        while let Some(datagram) = self.protocol.released() {
            self.carrier.recycle(datagram);
        }
        while let Some(packet) = self.protocol.acknowledged() {
            self.release(packet);
        }
        if !self.starved.is_empty() {
            self.report_writable();
        }
        self.protocol.set_free(self.carrier.free_to_receive());
    }

    #[cold]
    fn report_writable(&mut self) {
        self.carrier.take_back();
        self.freed |= self.carrier.freed();
        let room = EVENTS_MAX.saturating_sub(self.events.len());
        if !self.freed || room == 0 {
            return;
        }
        self.freed = false;
        let reported = self.starved.len().min(room);
        for peer in self.starved.drain(..reported) {
            self.peers.feed(peer);
            self.events.push_back(Event::Writable(peer));
        }
        self.unreported = true;
    }

    /// Sends what the protocol wants to send.
    #[inline]
    pub(super) fn transmit(&mut self, now: Time) {
        self.transmit_all(now);
        if let Some(streams) = &mut self.streams {
            streams.flush();
        }
    }

    #[inline]
    fn transmit_all(&mut self, now: Time) {
        self.unsent = 0;
        loop {
            if self.transmit_ack(now) {
                match self.protocol.has_transmit() {
                    true => continue,
                    false => break,
                }
            }
            let Self { protocol, carrier, .. } = self;
            let sent = protocol.transmit_fresh(now, u32::MAX, |to, packet, header| {
                carrier.transmit_packet(to, packet, header, false);
            });
            // What follows from having nothing more is seen to when the packets are on their way.
            match sent {
                Fresh::Some => continue,
                Fresh::Last => {
                    carrier.flush();
                    return protocol.rest_after_last(now);
                }
                Fresh::None if !self.transmit_any(now) => break,
                Fresh::None if !self.protocol.has_more() => self.carrier.flush(),
                Fresh::None => {}
            }
        }
        self.carrier.flush();
    }

    /// Sends an acknowledgement, if that is the next thing to send.
    #[inline]
    fn transmit_ack(&mut self, now: Time) -> bool {
        let Self { protocol, carrier, .. } = self;
        protocol.transmit_ack(now, |to, ack, is_last| match is_last {
            true => carrier.send_control(to, ack),
            false => carrier.transmit_control(to, ack),
        })
    }

    /// Sends the first thing due if that is an acknowledgement alone; returns whether more is due.
    #[inline]
    fn acknowledge_due(&mut self, now: Time) -> bool {
        let Self { protocol, carrier, .. } = self;
        protocol.acknowledge_due(now, |to, ack, is_last| match is_last {
            true => carrier.send_control(to, ack),
            false => carrier.transmit_control(to, ack),
        })
    }

    /// Sends the next thing that the protocol has to send, whatever it is, and returns whether there was one.
    fn transmit_any(&mut self, now: Time) -> bool {
        let Self { protocol, carrier, streams, .. } = self;
        match protocol.poll_transmit(now) {
            None => return false,
            Some(Transmit::Packet { peer, to, packet, header, crc, .. }) => {
                // Otherwise they are lost on their way.
                let has_room = carrier.has_room_for(&to, PACKET_BYTES, true);
                if has_room {
                    carrier.transmit_packet(&to, packet, &header, crc);
                }
                protocol.transmit_followers(now, peer, header, |packet, header| {
                    if has_room {
                        carrier.transmit_packet(&to, packet, header, false);
                    }
                });
            }
            Some(Transmit::Unit { peer, unit, header }) => {
                if let Some(streams) = streams {
                    streams.send(peer, unit.number(), &header);
                }
            }
            Some(Transmit::Control { to, datagram }) => {
                let is_proven = !wire::answers_anybody(datagram);
                if carrier.has_room_for(&to, datagram.len(), is_proven) {
                    carrier.transmit_control(&to, datagram);
                }
            }
        }
        true
    }

    #[inline]
    pub(super) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Prepares for a wait on the descriptor ([`AsFd`]) until it is readable, and returns whether there is a
    /// message or an event already: call [`try_receive`](Self::try_receive) and
    /// [`poll_event`](Self::poll_event) then. An event ends the next [`receive`](super::Endpoint::receive),
    /// too, unless it was taken. Call `arm` before each wait on the descriptor: the timers of the protocol
    /// make it readable, too, and `arm` does what is due.
    ///
    /// While a message or an event that it reported waits, the descriptor is readable. So threads that share
    /// an endpoint by a mutex, and wait without it, miss nothing if each calls `arm` before it gives up the
    /// mutex.
    ///
    /// # Errors
    /// As [`try_receive`](Self::try_receive).
    pub fn arm(&mut self) -> io::Result<bool> {
        let found = self.arm_until(Self::look_for_news)?.is_some();
        if found {
            self.arm_descriptor(Some(Duration::ZERO))?; // for other threads
        }
        Ok(found)
    }

    /// Whether there is a message, or an event that is unreported, which then counts as reported by `arm`.
    pub(super) fn look_for_news(&mut self) -> Option<()> {
        if self.has_message() {
            return Some(());
        }
        let has_event = self.has_unreported();
        if has_event {
            (self.unreported, self.reported_by_arm) = (false, true);
        }
        has_event.then_some(())
    }

    /// As [`arm`](Self::arm), for a wait that only ends when `look` finds something: works, and returns what
    /// `look` finds then.
    pub(super) fn arm_until<T>(
        &mut self,
        mut look: impl FnMut(&mut Self) -> Option<T>,
    ) -> io::Result<Option<T>> {
        self.watch_streams();
        for _ in 0..ARM_LOOKS_MAX {
            self.work(Patience::None)?;
            if let Some(found) = look(self) {
                return Ok(Some(found));
            }
            // What `look` queued, and what was to go after messages that were left: the next round sends it.
            if !self.protocol.has_transmit() && !self.carrier.arm()? {
                let due = self.next_timeout();
                self.arm_descriptor(due)?;
                return Ok(None);
            }
        }
        // Datagrams keep arriving: other work of the program comes first, and then the next look.
        self.arm_descriptor(Some(Duration::ZERO))?;
        Ok(None)
    }

    /// Makes the descriptor readable by datagrams, and at the latest after `due`.
    pub(super) fn arm_descriptor(&mut self, due: Option<Duration>) -> io::Result<()> {
        self.descriptor.arm(&mut self.carrier, due)
    }

    /// Before a wait by the descriptor.
    pub(super) fn watch_streams(&mut self) {
        if let Some(streams) = &mut self.streams {
            streams.watch_all();
        }
    }

    /// As `arm_for`, for a program that only sends: returns whether memory was freed, or the kernel has room
    /// again.
    fn arm_to_send(&mut self) -> io::Result<bool> {
        let before = (self.in_use(), self.carrier.is_stuck());
        self.watch_streams();
        self.work(Patience::None)?;
        let left = self.take_back_all();
        if left < before.0 || before.1 && !self.carrier.is_stuck() {
            return Ok(true);
        }
        let due = match self.carrier.arm()? {
            true => Some(Duration::ZERO), // as in `arm_until`
            false => [self.next_timeout(), (left > 0).then_some(LOOK_AGAIN)].into_iter().flatten().min(),
        };
        self.arm_descriptor(due)?;
        Ok(false)
    }

    /// How long the endpoint may rest; `None`: until a datagram arrives.
    pub(super) fn next_timeout(&mut self) -> Option<Duration> {
        let due = self.protocol.poll_timeout().map(|due| due.since(self.now()));
        let looks = !self.starved.is_empty() || self.carrier.wants_look();
        let care =
            self.streams.as_ref().map(|streams| streams.care_within()).filter(|care| *care != Duration::MAX);
        [due, looks.then_some(LOOK_INTERVAL), care].into_iter().flatten().min()
    }
}

impl AsFd for NonblockingEndpoint {
    /// Readable when a datagram has arrived or a timer of the protocol is due; call
    /// [`arm`](NonblockingEndpoint::arm) before each wait.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

receiver_half!(NonblockingEndpoint, Option<Message<'half>>);
sender_half!(NonblockingEndpoint, BufferMut, arm_to_send);

pub(super) fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

#[cfg(test)]
mod tests {
    use nocopy_lab::patience::{PATIENCE, wait_until};

    use super::*;
    use crate::message::{Endpoint, tests};

    /// Two endpoints without a timer that expires during a test.
    fn connected() -> (Endpoint, Peer, Endpoint) {
        let silent = Endpoint::builder().keep_alive(10 * PATIENCE).dead_after(20 * PATIENCE);
        tests::connected([silent.clone(), silent])
    }

    /// Datagrams that have arrived are read before they count as missing, however seldom the program calls.
    #[test]
    fn an_acknowledgement_that_waits_to_be_read_is_not_asked_for() {
        // Each on a connection of its own: one that saw its acknowledgements late would ask later.
        for number in 0..5 {
            let (mut left, to_right, mut right) = connected();
            for round in 0..2 {
                left.send_copy_to(&[number; 64], to_right).unwrap();
                assert!(left.try_receive().unwrap().is_none());
                left.flush().unwrap();
                wait_until("the message", || {
                    right.try_receive().unwrap().is_some_and(|message| message.to_vec() == [number; 64])
                });
                wait_until("acknowledged by the right one", || {
                    assert!(right.try_receive().unwrap().is_none());
                    right.next_timeout().is_none_or(|due| due > PATIENCE)
                });
                let unread = left.peer_stats(to_right).unwrap();
                assert!(unread.in_flight > 0, "round {round}: the acknowledgement was read: {unread:?}");
                wait_until("time to ask", || left.next_timeout().is_some_and(|due| due.is_zero()));
            }
            assert!(left.try_receive().unwrap().is_none());
            let stats = left.stats();
            assert_eq!((stats.get("probes").unwrap(), stats.get("lost").unwrap()), (0, 0), "{stats}");
        }
    }
}
