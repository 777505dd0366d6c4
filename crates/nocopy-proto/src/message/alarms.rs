//! Alarms of connections: two queues for the next ones, and a timer wheel for all others.
//!
//! Nearly every packet sets an alarm for its acknowledgement, always after the same short delay, and nearly
//! always the acknowledgement is sent before. Such alarms expire in the order in which they are set, so a
//! queue suffices, at a tenth of the wheel's cost. (That of who speaks first is a little shorter: at an
//! endpoint that often does and often does not, some of them are not behind all others, and go into the
//! wheel.) Later work, mostly probes, is checked after a constant time as well, by another queue; if
//! acknowledgements take longer, one check is too early. The wheel holds the alarms for the peer's silence,
//! and rarely changes.

use std::collections::VecDeque;

use super::Time;
use super::time::Span;
use super::timers::Timers;

/// Alarms later than this after they are set go into the wheel.
const SOON: Span = Span::from_millis(4);
/// Alarms no later than this go into the first queue: 1.5 times the default delay of acknowledgements.
const NEXT: Span = Span::from_nanos(750_000);
/// Later alarms are in the second queue, and go off after this time at the latest.
const LATER: Span = Span::from_millis(1);
/// An alarm of the wheel that is farther away is not moved to a later time, because that costs more than the
/// early check that it causes.
const FAR: Span = Span::from_secs(1);
/// No alarm.
pub(super) const NEVER: Time = Time::from_ns(u64::MAX);

#[derive(Debug, Default)]
pub(super) struct Alarms {
    wheel: Timers,
    /// Alarms ordered by time, with their connections. Cleared alarms are still here, but never at the front.
    queues: [VecDeque<(Time, u32)>; 2],
    /// By the number of the connection: its alarm in one of those, or [`NEVER`].
    soon: Vec<Time>,
}

impl Alarms {
    /// When to check: never later than the earliest alarm.
    #[inline]
    pub(super) fn next(&self) -> Option<Time> {
        let front = |queue: &VecDeque<(Time, u32)>| queue.front().map_or(NEVER, |(time, _)| *time);
        let soon = front(&self.queues[0]).min(front(&self.queues[1]));
        set(soon.min(self.wheel.next().unwrap_or(NEVER)))
    }

    #[inline(always)]
    pub(super) fn of(&self, index: u32) -> Option<Time> {
        set(self.soon_of(index).min(self.wheel.of(index).unwrap_or(NEVER)))
    }

    #[inline]
    fn soon_of(&self, index: u32) -> Time {
        self.soon.get(index as usize).copied().unwrap_or(NEVER)
    }

    /// The connection with the earliest alarm, if that alarm is in a queue.
    #[inline]
    pub(super) fn due_soon(&self, now: Time) -> Option<u32> {
        self.queues[0].front().filter(|(time, _)| *time <= now).map(|(_, index)| *index)
    }

    /// A connection of which an alarm is due; that alarm is taken away.
    #[inline]
    pub(super) fn pop(&mut self, now: Time) -> Option<u32> {
        let due = self.queues.iter().filter_map(|queue| queue.front()).find(|(time, _)| *time <= now);
        match due {
            Some(&(_, index)) => {
                self.take_soon(index);
                Some(index)
            }
            None => self.wheel.pop(now),
        }
    }

    /// Sets an alarm of a connection, unless an earlier one is set.
    #[inline(always)] // for each packet, and it seldom moves
    pub(super) fn set(&mut self, now: Time, index: u32, time: Time) {
        if self.of(index).is_none_or(|alarm| alarm > time) {
            self.set_earlier(now, index, time);
        }
    }

    /// Sets an alarm of a connection that is earlier than its other alarms.
    #[inline(never)]
    pub(super) fn set_earlier(&mut self, now: Time, index: u32, time: Time) {
        let ahead = time.span_since(now);
        let (queue, alarm) = match ahead <= NEXT {
            true => (0, time),
            false => (1, time.min(now + LATER)),
        };
        let is_behind = self.queues[queue].back().is_none_or(|(last, _)| *last <= alarm);
        if !is_behind || ahead > SOON || self.is_full() {
            return self.wheel.set(now, index, time);
        }
        if self.soon_of(index) != NEVER {
            self.take_soon(index); // the earlier one leads to a new look
        }
        if self.soon.len() <= index as usize {
            self.soon.resize(index as usize + 1, NEVER);
        }
        self.soon[index as usize] = alarm;
        self.queues[queue].push_back((alarm, index));
    }

    /// Whether the queues hold far more alarms than there are connections, so that many are cleared ones.
    #[inline]
    fn is_full(&self) -> bool {
        self.queues[0].len() + self.queues[1].len() > 64 + 2 * self.soon.len()
    }

    /// Moves the alarms of a connection, if it has any, to a later time, before which nothing is due. Returns
    /// whether it has one.
    #[inline]
    pub(super) fn put_off(&mut self, now: Time, index: u32, time: Time) -> bool {
        let (soon, far) = (self.soon_of(index), self.wheel.of(index));
        let was_soon = soon < time;
        if was_soon {
            self.take_soon(index);
        }
        if far.is_some_and(|alarm| alarm <= now + FAR) {
            self.wheel.put_off(index, time);
        }
        if was_soon && far.is_none_or(|alarm| alarm > time) {
            self.set(now, index, time);
        }
        soon != NEVER || far.is_some()
    }

    pub(super) fn clear(&mut self, index: u32) {
        self.take_soon(index);
        self.wheel.clear(index);
    }

    /// Clears the alarm of a connection that is in a queue.
    #[inline(always)] // with each alarm
    pub(super) fn take_soon(&mut self, index: u32) {
        let Self { queues, soon, .. } = self;
        if let Some(alarm) = soon.get_mut(index as usize) {
            *alarm = NEVER;
        }
        for queue in queues {
            while let Some((time, index)) = queue.front()
                && soon[*index as usize] != *time
            {
                queue.pop_front();
            }
        }
    }
}

/// `None` if the time stands for no alarm.
#[inline]
fn set(alarm: Time) -> Option<Time> {
    (alarm != NEVER).then_some(alarm)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Set(u32, u64),
        PutOff(u32, u64),
        Clear(u32),
        Pass(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let delay = || prop_oneof![Just(500_000_u64), 0..6_000_000_u64, 0..20_000_000_000_u64];
        let step = prop_oneof![
            6 => (0..8_u32, delay()).prop_map(|(index, ns)| Step::Set(index, ns)),
            2 => (0..8_u32, delay()).prop_map(|(index, ns)| Step::PutOff(index, ns)),
            1 => (0..8_u32).prop_map(Step::Clear),
            3 => (0..1_000_000_u64).prop_map(Step::Pass),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        /// Each alarm goes off when it is due or before, cleared ones never do, and checking at the announced
        /// times misses none.
        #[test]
        fn no_alarm_is_late(steps in steps()) {
            let (mut alarms, mut now) = (Alarms::default(), Time::default());
            let mut wanted: [Option<Time>; 8] = [None; 8];
            for step in steps {
                let after = |ns| now + Span::from_nanos(ns);
                match step {
                    Step::Set(index, ns) => {
                        alarms.set(now, index, after(ns));
                        let alarm = &mut wanted[index as usize];
                        *alarm = Some(alarm.map_or(after(ns), |alarm| alarm.min(after(ns))));
                    }
                    Step::PutOff(index, ns) => {
                        alarms.put_off(now, index, after(ns));
                        let alarm = &mut wanted[index as usize];
                        *alarm = alarm.map(|alarm| alarm.max(after(ns)));
                    }
                    Step::Clear(index) => {
                        alarms.clear(index);
                        wanted[index as usize] = None;
                        prop_assert_eq!(alarms.of(index), None);
                    }
                    Step::Pass(ns) => {
                        now = after(ns);
                        while let Some(index) = alarms.pop(now) {
                            let wanted = &mut wanted[index as usize];
                            prop_assert!(wanted.is_some(), "nothing was set for {}", index);
                            // A connection that is checked too early sets its alarm again.
                            match wanted.take_if(|wanted| *wanted > now) {
                                Some(time) => {
                                    *wanted = Some(time);
                                    alarms.set(now, index, time);
                                }
                                None => *wanted = alarms.of(index),
                            }
                        }
                        let is_late = |wanted: &Option<Time>| wanted.is_some_and(|wanted| wanted <= now);
                        prop_assert!(!wanted.iter().any(is_late));
                    }
                }
                for (index, wanted) in (0..).zip(&wanted) {
                    prop_assert_eq!(alarms.of(index).is_some(), wanted.is_some());
                    prop_assert!(alarms.of(index) <= *wanted);
                }
                let earliest = wanted.iter().flatten().min().copied();
                prop_assert_eq!(alarms.next().is_some(), earliest.is_some());
                prop_assert!(alarms.next() <= earliest);
            }
        }
    }

    #[test]
    fn alarms_taken_away_need_little_memory() {
        let mut alarms = Alarms::default();
        alarms.set(Time::default(), 0, Time::from_ns(100));
        for ns in 0..10_000 {
            alarms.set(Time::default(), 1, Time::from_ns(1000 + ns));
            alarms.put_off(Time::default(), 1, Time::from_ns(20_000_000_000));
            alarms.wheel.clear(1);
        }
        let queued = alarms.queues.iter().map(VecDeque::len).sum::<usize>();
        assert!(queued <= 64 + 2 * 2 + 1, "{queued}");
    }
}
