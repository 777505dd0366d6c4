//! What a connection must do when nothing arrives: acknowledgements, losses, probes, keep-alives, the end.

use super::Connection;
use crate::message::alarms::{Alarms, NEVER};
use crate::message::time::Span;
use crate::message::{Counters, LostReason, Time};

/// The shortest time before a probe, whatever the delay of acknowledgements.
const PROBE_FIRST: Span = Span::from_millis(1);
/// The longest time between two probes.
const PROBE_TIMEOUT_MAX: Span = Span::from_secs(1);
/// After this many unanswered probes in a row everything in flight counts as lost.
const PROBES_TO_COLLAPSE: u32 = 2;
/// How long a closed connection still answers, at least (docs/protocol.md §11).
///
/// The peer may have no round-trip time yet, and then repeats its end after 200 ms, 600 ms, 1.4 s and 2.4 s.
const LINGER: Span = Span::from_secs(3);

/// The time in which a closed connection still answers.
#[derive(Debug, Clone, Copy)]
pub(in crate::message) struct Linger {
    pub(in crate::message) since: Time,
    until: Time,
}

impl<S, R: AsRef<[u8]>> Connection<S, R> {
    /// Whether an alarm is so early that it need not be moved.
    #[inline]
    pub(in crate::message) fn is_early_enough(&self, alarm: Time) -> bool {
        // As `deadline`, without the probe: its time is later than that of the first check after sending.
        self.linger.is_none()
            && alarm <= self.heard + self.look_delay()
            && self.acks.due.is_none_or(|due| alarm <= due)
            && self.first_look.is_none_or(|look| alarm <= look || self.send.len() == 0)
            && self.losses_look_again.is_none_or(|look| alarm <= look)
            && self.send.has_nothing_to_send()
    }

    /// Sets the alarm in the simple case that a packet has just arrived or was just sent, nothing was in
    /// flight before, and nothing waits to be sent. Returns false if the case is not that simple.
    #[inline(always)] // for each packet
    pub(in crate::message) fn sets_alarm(&self, now: Time, index: u32, alarms: &mut Alarms) -> bool {
        let Some(alarm) = alarms.of(index).filter(|_| self.losses_look_again.is_none()) else { return false };
        let due = self.acks.due.unwrap_or(NEVER);
        let (look, earliest) = match (self.send.len(), self.first_look) {
            (0, _) => (NEVER, due),
            (1, Some(look)) if self.asked == now => (look, due.min(self.before_look(look))),
            _ => return false,
        };
        let is_early_enough = || alarm <= due && alarm <= look && alarm <= self.heard + self.look_delay(); // as above
        if alarm > earliest && !is_early_enough() {
            alarms.set_earlier(now, index, earliest);
        }
        true
    }

    /// How long after sending a packet to check first, at the latest. If its answer has arrived by then, the
    /// alarm that is already set also sends the acknowledgement.
    #[inline]
    pub(super) fn look_delay(&self) -> Span {
        self.ack_delay.min(PROBE_FIRST)
    }

    /// As `deadline`, if both directions are acknowledged completely: then nothing is due for long.
    #[inline(always)] // where peers are many, for each message
    pub(in crate::message) fn deadline_at_rest(&self) -> Option<Time> {
        let is_at_rest = self.send.len() == 0
            && self.acks.due.is_none()
            && !self.acks.now
            && !self.probe_due
            && !self.unheard
            && self.losses_look_again.is_none()
            && self.linger.is_none()
            && self.ended.is_none();
        is_at_rest.then(|| self.quiet_until())
    }

    /// When to set an alarm for the first check: a little earlier, so that the acknowledgement arrives before
    /// the check of the peer, whose alarm is as old as this one if it answered at once.
    #[inline]
    fn before_look(&self, look: Time) -> Time {
        look - self.look_delay().eighth()
    }

    /// When a silent peer must be asked for a sign of life, or counts as lost.
    #[inline]
    fn quiet_until(&self) -> Time {
        let quiet = self.heard + self.keep_alive.times(self.keep_alives + 1);
        quiet.min(self.heard + self.dead_after)
    }

    /// The next time at which something must be done, if nothing arrives.
    pub(in crate::message) fn deadline(&self, now: Time) -> Option<Time> {
        if self.ended.is_some() {
            return None;
        }
        if let Some(Linger { until, .. }) = self.linger {
            return Some(self.acks.due.map_or(until, |due| due.min(until)));
        }
        let waits = self.send.len() > 0;
        let mut earliest = self.quiet_until();
        let mut look_at = |due: Option<Time>| earliest = due.map_or(earliest, |due| due.min(earliest));
        look_at(self.acks.due);
        look_at(self.waits_for_stream_until());
        look_at(self.losses_look_again);
        if waits {
            look_at(self.first_look.map(|look| self.before_look(look)));
        }
        if (waits || self.unheard) && !self.probe_due {
            look_at(Some(self.asked + self.probe_timeout()));
        }
        if waits && !self.is_limited() && !self.send.has_nothing_to_send() {
            look_at(self.pacer.ready_at(now));
        }
        Some(earliest)
    }

    /// Whether nothing but an acknowledgement is due.
    #[inline(always)] // where peers are many, for each message
    pub(super) fn owes_only_an_ack(&self, now: Time) -> bool {
        let before_long = now + self.look_delay().half();
        self.acks.due.is_some_and(|due| before_long >= due)
            && self.send.len() == 0
            && now < self.heard + self.keep_alive.min(self.dead_after)
            && self.losses_look_again.is_none()
            && self.linger.is_none()
    }

    /// Does what is due. Errors: the connection has ended.
    pub(in crate::message) fn handle_timeout(
        &mut self,
        now: Time,
        counters: &mut Counters,
    ) -> Result<(), Option<LostReason>> {
        self.receive.shrink();
        self.send.shrink();
        if self.linger.is_some_and(|linger| now >= linger.until) {
            return Err(None);
        }
        if self.ended.is_some() {
            return Ok(());
        }
        if self.linger.is_none() {
            self.probe_due |= self.ask_when_due(now);
            if now >= self.heard + self.dead_after {
                return Err(Some(LostReason::Silent));
            }
        }
        if self.waits_for_stream_until().is_some_and(|until| now >= until) {
            return Err(Some(LostReason::Silent));
        }
        // What is due soon is done now: it would need another alarm.
        let before_long = now + self.look_delay().half();
        self.first_look = self.first_look.filter(|look| before_long < *look);
        if self.acks.due.is_some_and(|due| before_long >= due) {
            (self.acks.now, self.acks.due) = (true, None);
        }
        if self.linger.is_some() {
            return Ok(());
        }
        if self.losses_look_again.is_some_and(|time| now >= time) {
            self.check_contradictions().map_err(|violation| Some(LostReason::Violation(violation)))?;
            self.find_losses(now, counters);
        }
        if (self.send.len() > 0 || self.unheard)
            && !self.probe_due
            && now >= self.asked + self.probe_timeout()
        {
            self.probe(now, counters);
        }
        Ok(())
    }

    /// Notes that the peer must be asked whether it is alive, if that is due. If this happens so late that
    /// the next question is due as well, this end did not work in between: its own silence does not count as
    /// the peer's.
    fn ask_when_due(&mut self, now: Time) -> bool {
        let due = self.heard + self.keep_alive.times(self.keep_alives + 1);
        if now < due {
            return false;
        }
        let late = now.span_since(due);
        if late > self.keep_alive {
            self.heard = self.heard + late;
        }
        self.keep_alives += 1;
        self.is_answering = false;
        true
    }

    /// Sends a probe because packets in flight were not acknowledged, or needed credit did not arrive (RFC
    /// 9002 section 6.2, RFC 8985 section 7).
    fn probe(&mut self, now: Time, counters: &mut Counters) {
        counters.probes += 1;
        self.note_acknowledged_first(now);
        self.probes += 1;
        (self.asked, self.is_answering) = (now, false);
        // Also after later probes: then the first packet is sent again, the only one that a peer with little
        // memory accepts (docs/protocol.md §8). A probe with the newest packet alone could fail for ever.
        if self.probes >= PROBES_TO_COLLAPSE && self.send.in_flight() > 0 {
            counters.lost += self.send.lose_all().packets as u64;
            if self.probes == PROBES_TO_COLLAPSE {
                self.congestion.collapse(); // once, as RFC 5681 section 3.1 has it
            }
        } else {
            self.probe_due = true;
        }
    }

    pub(super) fn probe_timeout(&self) -> Span {
        let once = self.round_trip.probe_timeout(self.ack_delay);
        once.times(1 << self.probes.min(10)).min(PROBE_TIMEOUT_MAX.max(once))
    }

    /// Begins the time in which the closed connection still answers, in case its last acknowledgement is
    /// lost.
    pub(in crate::message) fn linger(&mut self, now: Time) {
        // The probe timeout depends on times that the peer reports, so it is limited.
        let span = LINGER.max(self.probe_timeout().times(3).min(self.dead_after));
        self.linger = Some(Linger { since: now, until: now + span });
    }
}
