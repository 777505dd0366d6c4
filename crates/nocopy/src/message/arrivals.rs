//! Passes received datagrams to the protocol, with their times of arrival.

use std::net::SocketAddr;
use std::time::Instant;

use nocopy_proto::message::{self as protocol, Kind, Local, Peer, Time};

use super::carrier::{self, Alone, AnyCarrier, Carrier, Deliver, Packet, Parts, Received};
use super::streams::Streams;
use crate::sys::clock::boottime_ns;

/// Hands received datagrams to the protocol, with a time that is read once for all of them.
pub(super) struct Arrivals<'p, 'c> {
    protocol: &'p mut protocol::Endpoint<Packet, Received>,
    pub(super) moment: Moment<'c>,
    /// The program waits for a message, and may read it where it lies.
    reads_in_place: bool,
    /// The message that it reads in place.
    pub(super) lone: Option<Lone>,
}

/// A message that is alone in its datagrams or unit, in the memory where those were received.
#[derive(Debug)]
pub(super) struct Lone {
    pub(super) peer: Peer,
    pub(super) kind: Kind,
    pub(super) place: Alone,
    /// It is a unit, which the streams hold.
    pub(super) is_unit: bool,
}

impl Lone {
    /// The message's bytes, where they lie.
    #[inline(always)] // for each message that comes alone
    pub(super) fn bytes<'a>(
        self,
        carrier: &'a mut AnyCarrier,
        streams: &'a mut Option<Box<Streams>>,
    ) -> carrier::Lone<'a> {
        match streams {
            Some(streams) if self.is_unit => streams.lone(self.place),
            _ => carrier.lone(self.place),
        }
    }
}

impl<'p, 'c> Arrivals<'p, 'c> {
    #[inline]
    pub(super) fn new(
        protocol: &'p mut protocol::Endpoint<Packet, Received>,
        clock: &'c Clock,
        reads_in_place: bool,
    ) -> Self {
        Self { protocol, moment: Moment { clock, now: None }, reads_in_place, lone: None }
    }

    #[inline]
    pub(super) fn now(&mut self) -> Time {
        self.moment.now()
    }
}

/// A time of which the clock is asked only if it is needed, and once.
#[derive(Debug)]
pub(super) struct Moment<'a> {
    clock: &'a Clock,
    now: Option<Time>,
}

#[cfg(any(feature = "fuzzing", test))]
impl<'a> Moment<'a> {
    /// A time that is known.
    pub(super) fn at(clock: &'a Clock, now: Time) -> Self {
        Self { clock, now: Some(now) }
    }
}

impl Moment<'_> {
    /// The time when it was first asked for.
    #[inline]
    pub(super) fn now(&mut self) -> Time {
        *self.now.get_or_insert_with(|| self.clock.now())
    }

    /// The same, if it was asked for.
    #[inline]
    pub(super) fn known(&self) -> Option<Time> {
        self.now
    }
}

impl Deliver for Arrivals<'_, '_> {
    #[cfg(feature = "port")]
    #[inline]
    fn begin(&mut self) {
        self.now();
    }

    #[inline]
    fn asked(&mut self, local: Option<Local>) {
        self.protocol.set_asked(local);
    }

    #[inline(always)] // for each message that comes alone
    fn lone(&mut self, from: SocketAddr, congested: bool, datagram: &[u8]) -> bool {
        if !self.reads_in_place {
            return false;
        }
        let now = self.now();
        let read = self.protocol.receive_in_place(now, from, congested, datagram);
        self.lone =
            read.map(|(peer, kind, range)| Lone { peer, kind, place: Alone::at(range), is_unit: false });
        self.lone.is_some()
    }

    #[inline]
    fn lone_run(&mut self, from: SocketAddr, congested: bool, run: &[u8], packet_bytes: usize) -> bool {
        if !self.reads_in_place {
            return false;
        }
        let now = self.now();
        let read = self.protocol.receive_run_in_place(now, from, congested, run, packet_bytes);
        self.lone = read.map(|(peer, kind, spread)| Lone {
            peer,
            kind,
            place: Alone::Across(spread, run.len() as u32),
            is_unit: false,
        });
        self.lone.is_some()
    }

    #[inline]
    fn in_place(
        &mut self,
        from: SocketAddr,
        congested: bool,
        datagram: &[u8],
        keep: impl FnOnce() -> Option<Received>,
    ) -> bool {
        let now = self.now();
        self.protocol.handle_in_place(now, from, congested, datagram, keep)
    }

    #[inline]
    fn one(&mut self, from: SocketAddr, congested: bool, datagram: Received) {
        let now = self.now();
        self.protocol.handle_datagram(now, from, congested, datagram);
    }

    #[inline]
    fn run(&mut self, from: SocketAddr, congested: bool, run: Parts) {
        let now = self.now();
        self.protocol.handle_run(now, from, congested, run);
    }
}

/// The protocol's clock. It goes on while the machine is suspended, as that of the peers does: afterwards a
/// silent peer is asked at once, and packets in flight are sent again.
#[derive(Debug)]
pub(super) struct Clock;

impl Clock {
    #[inline]
    pub(super) fn now(&self) -> Time {
        Time::from_ns(boottime_ns())
    }

    /// When a wait must end that begins now; `None` if the time is too far in the future. Only for this wait:
    /// an `Instant` stands still while the machine is suspended.
    pub(super) fn instant(&self, time: Time) -> Option<Instant> {
        Instant::now().checked_add(time.since(self.now()))
    }
}
