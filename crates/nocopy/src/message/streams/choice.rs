//! Decides which messages go by the stream: first by a rule, then by the faster way, once both were measured.
//!
//! If a sender finds no room, the way of its messages limits it. So the time in which a *stretch* of messages
//! is accepted shows how fast the way is; a [`Policy`] compares such times, for each peer and length.
//! Something else limits a sender that always finds room: its messages go as before.

use std::fmt;
use std::time::{Duration, Instant};

use nocopy_proto::message::Peer;

use super::OpenUnit;
use crate::engine::policy::{Choice, Policy, Work, WorkUnit};
use crate::events::Half;

/// Messages from that length on may go by the stream.
pub(in crate::message) const LONG_BYTES: usize = 8 << 10;
/// After this many full packets between two flushes, the following messages may go by the stream, and so may
/// those of the next batch.
const FULL_PACKETS: u32 = 6;
/// Shorter messages share packets so well that the stream is not faster: of 256 bytes, datagrams move 1.1 to
/// 1.4 times as many a second as the stream, of 1 KiB 0.7 to 0.9 times as many
/// (`nocopy bench message-stream`).
const SHARING_BYTES: usize = 512;
/// A message of so many bytes takes packets that it does not share.
pub(super) const PACKET_BYTES: usize = 1400;
/// After a batch by the stream that was shorter than this, the next one begins with datagrams.
const BATCH_BYTES: usize = 4 << 10;
/// Bytes of a stretch: more than a window, so that what went before is over when measuring begins.
const STRETCH_BYTES: i64 = 6 << 20;
/// Bytes at its end, which are measured.
const MEASURED_BYTES: i64 = 2 << 20;
/// How much longer the whole stretch takes: what a stretch by the slower way costs is paid for.
const STRETCH_PARTS: u32 = (STRETCH_BYTES / MEASURED_BYTES) as u32;
/// If the measured part takes longer, something other than the way limited it.
const MEASURED_MAX: Duration = Duration::from_millis(500);
/// The unit whose costs are compared.
const UNIT_BYTES: i64 = 4096;

pub(super) const RULE: &str = "for messages from 8192 bytes on, and what is behind 6 full packets of messages from 512 bytes on that were \
                               not flushed, unless datagrams are measured to be faster; all others go by datagrams, and so does a \
                               copied message of up to 15 packets while nothing else is on its way";

/// A way to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    Stream,
    /// By the stream, with published data by reference to its pages.
    Reference,
    Datagrams,
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stream => "stream",
            Self::Reference => "stream, by reference",
            Self::Datagrams => "datagrams",
        })
    }
}

/// Compares the ways to all peers.
#[derive(Debug)]
pub(super) struct Ways {
    usual: Policy<By>,
    /// For messages with published data.
    published: Policy<By>,
}

impl Ways {
    pub(super) fn new() -> Self {
        let among = |ways: &[By]| {
            let mut policy = Policy::new(ways).with_work_unit(WorkUnit::Messages);
            policy.report_as(Half::MessageEndpoint);
            policy
        };
        Self {
            usual: among(&[By::Stream, By::Datagrams]),
            published: among(&[By::Stream, By::Reference, By::Datagrams]),
        }
    }

    fn of(&mut self, is_published: bool) -> &mut Policy<By> {
        if is_published { &mut self.published } else { &mut self.usual }
    }

    /// The measured comparisons, as text.
    pub(super) fn explain(&self) -> String {
        let mut text = String::new();
        for (sort, policy) in [("messages", &self.usual), ("messages with published data", &self.published)] {
            let explanation = policy.explain();
            if !explanation.classes.is_empty() {
                text += &format!("\n{sort}: {explanation}");
            }
        }
        text
    }
}

/// Consecutive messages to a peer that all go the same way.
#[derive(Debug)]
struct Stretch {
    choice: Choice<By>,
    work: Work,
    is_published: bool,
    bytes_left: i64,
    /// When the measured part began.
    begun: Option<Instant>,
    /// Whether a message found no room.
    was_full: bool,
}

/// What is known of the ways to a peer.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) peer: Option<Peer>,
    /// The stream for sending.
    pub(super) stream: Option<u32>,
    /// The unit that is being filled.
    pub(super) open: Option<OpenUnit>,
    /// The batch to which the following counts belong.
    batch: u32,
    /// Full packets in the batch.
    full_packets: u32,
    /// Bytes put into units in the batch.
    unit_bytes: usize,
    /// The previous batch was long enough for the stream.
    is_long: bool,
    stretch: Stretch,
    /// Whether the last message had published data.
    is_published: bool,
    /// The way of the last stretch that was not measured.
    usual: By,
}

impl Default for Way {
    fn default() -> Self {
        let work = Work { destination: 0, bytes: 0, count: (STRETCH_BYTES / UNIT_BYTES) as u32 };
        let choice = Choice::unmeasured(By::Stream);
        let stretch = Stretch {
            choice,
            work,
            is_published: false,
            bytes_left: STRETCH_BYTES,
            begun: None,
            was_full: false,
        };
        Self {
            peer: None,
            stream: None,
            open: None,
            batch: 0,
            full_packets: 0,
            unit_bytes: 0,
            is_long: false,
            stretch,
            is_published: false,
            usual: By::Stream,
        }
    }
}

impl Way {
    pub(super) fn of(peer: Peer) -> Self {
        Self { peer: Some(peer), ..Self::default() }
    }

    /// Begins a batch, if it is a new one.
    #[inline]
    fn turn_to(&mut self, batch: u32) {
        if self.batch != batch {
            self.is_long = self.unit_bytes >= BATCH_BYTES;
            (self.batch, self.full_packets, self.unit_bytes) = (batch, 0, 0);
        }
    }

    /// Whether a unit is being filled, or this batch or the one before had full packets or units.
    #[inline]
    pub(super) fn is_busy(&self) -> bool {
        self.open.is_some() || self.is_long || self.full_packets > 0 || self.unit_bytes > 0
    }

    /// Whether a message of so many bytes may go by the stream.
    #[inline]
    pub(super) fn may_take_stream(&mut self, bytes: usize, batch: u32) -> bool {
        self.turn_to(batch);
        bytes >= LONG_BYTES || self.is_long || self.full_packets >= FULL_PACKETS
    }

    /// Whether a message of so many bytes surely goes by a datagram, behind a packet that is full if
    /// `has_open`.
    #[inline]
    pub(super) fn passes_by(&mut self, bytes: usize, has_open: bool, batch: u32) -> bool {
        let more = u32::from(has_open && bytes >= SHARING_BYTES);
        let is_one = self.open.is_none()
            && !self.may_take_stream(bytes, batch)
            && self.full_packets + more < FULL_PACKETS;
        self.full_packets += if is_one { more } else { 0 };
        is_one
    }

    /// Notes a packet of `bytes` bytes that became full before the flush; returns whether the following
    /// messages may go by the stream.
    pub(super) fn note_full_packet(&mut self, bytes: usize, batch: u32, ways: &mut Ways) -> bool {
        self.turn_to(batch);
        self.full_packets += 1;
        if self.stream.is_some() && self.full_packets >= FULL_PACKETS {
            let before = if self.full_packets == FULL_PACKETS { FULL_PACKETS as usize } else { 1 };
            self.count(before * bytes, bytes, ways);
        }
        self.full_packets >= FULL_PACKETS
    }

    /// Notes an accepted message of several packets, or of a unit, that is not one of the long ones.
    pub(super) fn note_packets(&mut self, bytes: usize, batch: u32, ways: &mut Ways) {
        if self.may_take_stream(bytes, batch) {
            self.unit_bytes += bytes;
            self.count(bytes, bytes, ways);
        }
        self.full_packets += (bytes / PACKET_BYTES) as u32;
    }

    /// Takes the open unit out.
    pub(super) fn close(&mut self, batch: u32, ways: &mut Ways) -> Option<OpenUnit> {
        let unit = self.open.take()?;
        self.turn_to(batch);
        let length = unit.bytes() / unit.messages().max(1);
        self.unit_bytes += if length >= SHARING_BYTES { unit.bytes() } else { 0 };
        self.count(unit.bytes(), length, ways);
        Some(unit)
    }

    /// Notes whether the next message has published data.
    #[inline]
    pub(super) fn note_published(&mut self, is_published: bool) {
        self.is_published = is_published;
    }

    /// The present way of messages that may go by the stream.
    #[inline]
    pub(super) fn by(&self) -> By {
        self.stretch.choice.method
    }

    /// Counts accepted bytes of messages of `length` bytes.
    #[inline]
    pub(super) fn count(&mut self, bytes: usize, length: usize, ways: &mut Ways) {
        let before = self.stretch.bytes_left;
        self.stretch.bytes_left = before - bytes as i64;
        if self.stretch.bytes_left <= MEASURED_BYTES {
            self.go_on(before > MEASURED_BYTES, length, ways);
        }
    }

    /// Notes that a message was refused because there was no room.
    pub(super) fn note_full(&mut self) {
        self.stretch.was_full = true;
    }

    /// The measured part of a stretch begins, or another stretch.
    #[cold]
    fn go_on(&mut self, begins: bool, length: usize, ways: &mut Ways) {
        let Stretch { choice, work, is_published, bytes_left, begun, was_full } = &mut self.stretch;
        if begins {
            *begun = (choice.measured && *was_full).then(Instant::now);
            *was_full = false;
        }
        if *bytes_left > 0 {
            return;
        }
        let is_limited = std::mem::replace(was_full, false);
        if let Some(took) = begun.take().map(|begun| begun.elapsed())
            && is_limited
            && took < MEASURED_MAX
        {
            ways.of(*is_published).record(*choice, *work, took * STRETCH_PARTS);
        }
        work.destination = self.peer.map_or(0, |peer| peer.index() as u32);
        work.bytes = length as u32;
        *is_published = self.is_published;
        *choice = match is_limited {
            true => ways.of(*is_published).choose(*work),
            false => Choice::unmeasured(self.usual),
        };
        if !choice.measured {
            self.usual = choice.method;
        }
        *bytes_left = STRETCH_BYTES;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends 4,000 stretches by the chosen ways; returns how many of the last 2,000 went by the stream.
    fn by_stream(is_full: bool, cost_ns: impl Fn(By) -> f64) -> usize {
        let (mut ways, mut way) = (Ways::new(), Way::default());
        let mut chosen = Vec::new();
        for _ in 0..4000 {
            let by = way.by();
            let Stretch { choice, work, .. } = way.stretch;
            if is_full && choice.measured {
                ways.usual.record(choice, work, Duration::from_nanos(cost_ns(by) as u64));
            }
            chosen.push(by);
            way.stretch.was_full = is_full;
            way.stretch.bytes_left = 0;
            way.go_on(false, 1 << 20, &mut ways);
        }
        chosen[2000..].iter().filter(|by| **by == By::Stream).count()
    }

    #[test]
    fn the_faster_way_is_taken_by_those_who_find_no_room() {
        let costs = |stream, datagrams| move |by| if by == By::Stream { stream } else { datagrams };
        assert!(by_stream(true, costs(1e6, 2e6)) > 1900);
        assert!(by_stream(true, costs(2e6, 1e6)) < 100);
        assert_eq!(
            by_stream(false, costs(2e6, 1e6)),
            2000,
            "nothing is measured of those who always find room"
        );
    }

    #[test]
    fn only_the_end_of_a_stretch_that_finds_no_room_is_measured() {
        let (mut ways, mut way) = (Ways::new(), Way::default());
        let mut measured = 0;
        for step in 0..1000 {
            way.note_full();
            way.count(1 << 20, 1 << 20, &mut ways);
            let is_at_end = way.stretch.bytes_left <= MEASURED_BYTES;
            assert_eq!(way.stretch.begun.is_some(), is_at_end && way.stretch.choice.measured, "{step}");
            measured += u32::from(way.stretch.begun.is_some());
        }
        assert!(measured > 0);
    }
}
