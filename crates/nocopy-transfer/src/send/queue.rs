//! Decides which packet is sent next, and when, by count, time and length, without a port.

use std::time::Duration;

use nocopy_proto::wire::{ethernet, vlan};

use super::pacer::{CATCH_UP_NS_MAX, Pace, Pacer};
use super::source::{PacketSource, PeekResult};
use crate::Failure;
use crate::arguments::SendArguments;

/// The limits of a run, whichever is reached first; the source may end earlier.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SendLimits {
    pub packets: Option<u64>,
    pub duration: Option<Duration>,
}

impl SendLimits {
    pub(super) fn from_arguments(arguments: &SendArguments) -> Self {
        Self { packets: arguments.count, duration: arguments.duration }
    }
}

/// Counts of packets that were and were not handed over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub packets: u64,
    pub bytes: u64,
    /// Frames of these packets.
    pub frames: u64,
    pub last_bytes: u64,
    /// Packets longer than the port sends.
    pub too_long: u64,
    pub too_short: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendStep {
    /// A packet was sent; the next may be due at once.
    Sent,
    /// The next packet is due at `due_ns`.
    Early {
        due_ns: u64,
    },
    /// The next packets are due soon, and should be sent together.
    Batch,
    Silence,
    NoRoom,
    Done,
}

pub(super) enum NextSendAction {
    Send(usize),
    Skip,
    Stop(SendStep),
}

/// The times of packets, independent of their content.
#[derive(Debug, Clone)]
pub(super) struct Schedule {
    pub pacer: Pacer,
    pub goal: SendLimits,
    pub tally: Tally,
}

impl Schedule {
    pub(super) fn new(pace: Pace, goal: SendLimits) -> Self {
        Self { pacer: Pacer::new(pace), goal, tally: Tally::default() }
    }

    /// Why the next packet, recorded that long after the first, must not be sent now; `None` if it may.
    #[inline]
    pub(super) fn reason_to_stop(&mut self, recorded_ns: u64, now_ns: u64) -> Option<SendStep> {
        if self.has_reached_count() {
            return Some(SendStep::Done);
        }
        let due_ns = self.pacer.due_ns(recorded_ns, now_ns);
        if self.is_past_duration(due_ns) {
            return Some(SendStep::Done);
        }
        (due_ns > now_ns).then(|| match self.pacer.is_bunched(now_ns) {
            true => SendStep::Batch,
            false => SendStep::Early { due_ns },
        })
    }

    /// Whether no more room is needed: the count is reached, or the time is over, even if sending is late.
    pub(super) fn is_over(&self, now_ns: u64) -> bool {
        self.has_reached_count() || self.is_past_duration(now_ns.saturating_sub(CATCH_UP_NS_MAX))
    }

    #[inline]
    fn has_reached_count(&self) -> bool {
        self.goal.packets.is_some_and(|packets| self.tally.packets >= packets)
    }

    #[inline]
    pub(super) fn is_past_duration(&self, time_ns: u64) -> bool {
        self.goal.duration.is_some_and(|duration| u128::from(time_ns) >= duration.as_nanos())
    }

    #[inline]
    pub(super) fn record_sent(&mut self, bytes: usize, frames: usize) {
        self.pacer.record_sent(bytes);
        self.tally.packets += 1;
        self.tally.bytes += bytes as u64;
        self.tally.frames += frames as u64;
        self.tally.last_bytes = bytes as u64;
    }
}

/// Decides which packets are sent, and when.
#[derive(Debug)]
pub(super) struct ScheduledSource<S> {
    pub source: S,
    pub schedule: Schedule,
    pub mtu_bytes: usize,
}

impl<S: PacketSource> ScheduledSource<S> {
    #[inline]
    pub(super) fn next_action(&mut self, now_ns: u64) -> Result<NextSendAction, Failure> {
        let Self { source, schedule, mtu_bytes } = self;
        if schedule.has_reached_count() {
            return Ok(NextSendAction::Stop(SendStep::Done));
        }
        let upcoming = match source.peek()? {
            PeekResult::Packet(upcoming) => upcoming,
            PeekResult::Silence if !schedule.is_past_duration(now_ns) => {
                return Ok(NextSendAction::Stop(SendStep::Silence));
            }
            PeekResult::Silence | PeekResult::End => return Ok(NextSendAction::Stop(SendStep::Done)),
        };
        if let Some(step) = schedule.reason_to_stop(upcoming.recorded_ns, now_ns) {
            return Ok(NextSendAction::Stop(step));
        }
        let bytes_max = longest_frame_bytes(*mtu_bytes, upcoming.tagged);
        if (ethernet::HEADER_BYTES..=bytes_max).contains(&upcoming.bytes) {
            return Ok(NextSendAction::Send(upcoming.bytes));
        }
        match upcoming.bytes < ethernet::HEADER_BYTES {
            true => schedule.tally.too_short += 1,
            false => schedule.tally.too_long += 1,
        }
        source.skip();
        Ok(NextSendAction::Skip)
    }

    /// Counts the packet as handed over, and advances.
    #[inline]
    pub(super) fn record_sent(&mut self, bytes: usize, frames: usize) {
        self.schedule.record_sent(bytes, frames);
        self.source.advance();
    }
}

/// The longest frame, without FCS, that an MTU allows.
pub(super) fn longest_frame_bytes(mtu_bytes: usize, tagged: bool) -> usize {
    let tag_bytes = if tagged { vlan::TAG_BYTES } else { 0 };
    ethernet::HEADER_BYTES + tag_bytes + mtu_bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::send::source::NextPacket;

    /// Some packets of 60 bytes, and then nothing yet.
    struct FakeSource(u64);

    impl PacketSource for FakeSource {
        fn peek(&mut self) -> Result<PeekResult, Failure> {
            let upcoming = NextPacket { bytes: 60, tagged: false, recorded_ns: 0 };
            Ok(if self.0 > 0 { PeekResult::Packet(upcoming) } else { PeekResult::Silence })
        }

        fn write(&mut self, _: &mut [u8]) {}

        fn advance(&mut self) {
            self.0 -= 1;
        }
    }

    fn test_source(packets: u64, goal: SendLimits) -> ScheduledSource<FakeSource> {
        ScheduledSource {
            source: FakeSource(packets),
            schedule: Schedule::new(Pace::FlatOut, goal),
            mtu_bytes: 1500,
        }
    }

    #[test]
    fn a_schedule_is_over_once_its_count_is_reached() {
        let mut queue = test_source(9, SendLimits { packets: Some(2), duration: None });
        for sent in 0..2 {
            assert!(!queue.schedule.is_over(u64::MAX), "{sent} of 2");
            assert!(matches!(queue.next_action(0), Ok(NextSendAction::Send(60))));
            queue.record_sent(60, 1);
        }
        assert!(
            queue.schedule.is_over(0)
                && matches!(queue.next_action(0), Ok(NextSendAction::Stop(SendStep::Done)))
        );
    }

    #[test]
    fn a_silent_source_ends_when_the_duration_is_over() {
        let mut queue =
            test_source(0, SendLimits { packets: None, duration: Some(Duration::from_nanos(10)) });
        assert!(matches!(queue.next_action(9), Ok(NextSendAction::Stop(SendStep::Silence))));
        assert!(matches!(queue.next_action(10), Ok(NextSendAction::Stop(SendStep::Done))));
        assert!(!queue.schedule.is_over(CATCH_UP_NS_MAX + 9) && queue.schedule.is_over(CATCH_UP_NS_MAX + 10));
    }
}
