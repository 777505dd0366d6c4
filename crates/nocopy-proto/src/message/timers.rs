//! A hierarchical timer wheel with one alarm for each connection: to set, move or clear an alarm takes the
//! same time however many there are.
//!
//! Time is counted in ticks, and a tick's number is written in digits of six bits. An alarm lies in the level
//! of the highest digit in which its tick differs from the current tick, in the slot of that digit. So all
//! alarms of a lower level expire earlier, and alarms far in the future are looked at again only when the
//! wheel reaches their slot. Each alarm keeps its exact time, and is not rounded to ticks.

use super::Time;

/// Nanoseconds of a tick, as a power of two: 16 us.
const TICK_NS_SHIFT: u32 = 14;
const DIGIT_BITS: u32 = 6;
const DIGITS: usize = 1 << DIGIT_BITS;
/// Enough digits for every time.
const LEVELS: usize = (u64::BITS - TICK_NS_SHIFT).div_ceil(DIGIT_BITS) as usize;

const NOWHERE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Timers {
    /// The first alarm of each list: [`DIGITS`] of each level.
    lists: Box<[u32]>,
    /// For each level, which of its lists hold an alarm.
    filled: [u64; LEVELS],
    /// By connection number.
    alarms: Vec<Alarm>,
    /// The tick up to which the wheel was turned: no list with alarms begins before it, except the current
    /// one.
    turned: u64,
    /// The earliest alarm, or the start of its list.
    next: Option<Time>,
}

#[derive(Debug, Clone, Copy)]
struct Alarm {
    time: Time,
    /// Its list; [`NOWHERE`] if none is set.
    list: u32,
    before: u32,
    behind: u32,
}

const NONE: Alarm = Alarm { time: Time::from_ns(0), list: NOWHERE, before: NOWHERE, behind: NOWHERE };

impl Default for Timers {
    fn default() -> Self {
        Self {
            lists: vec![NOWHERE; LEVELS * DIGITS].into(),
            filled: [0; LEVELS],
            alarms: Vec::new(),
            turned: 0,
            next: None,
        }
    }
}

impl Timers {
    /// When to check: never later than the earliest alarm, and earlier only if that is far away.
    #[inline]
    pub(super) fn next(&self) -> Option<Time> {
        self.next
    }

    #[inline]
    pub(super) fn of(&self, index: u32) -> Option<Time> {
        self.alarms.get(index as usize).filter(|alarm| alarm.list != NOWHERE).map(|alarm| alarm.time)
    }

    /// Removes the earliest alarm that is due; returns its connection.
    pub(super) fn pop(&mut self, now: Time) -> Option<u32> {
        while self.next.is_some_and(|next| next <= now) {
            let (level, list) = self.first_list()?;
            if level > 0 {
                self.turn_to(level, list);
            } else if let Some(index) = self.earliest_of(list).filter(|index| self.time(*index) <= now) {
                self.clear(index);
                return Some(index);
            }
            self.next = self.begin_of_first();
        }
        None
    }

    /// Sets the alarm of a connection, unless an earlier one is set: its early check costs less than moving
    /// the alarm with each packet.
    #[inline]
    pub(super) fn set(&mut self, now: Time, index: u32, time: Time) {
        if self.alarms.len() <= index as usize {
            self.alarms.resize(index as usize + 1, NONE);
        }
        let alarm = self.alarms[index as usize];
        if alarm.list != NOWHERE {
            if alarm.time <= time {
                return;
            }
            self.unlink(index);
        }
        // No alarm lies between, so none changes its list.
        if self.next.is_none_or(|next| next > now) {
            self.turned = self.turned.max(tick(now));
        }
        self.alarms[index as usize].time = time;
        self.link(index);
        let begin = self.begin_of(self.alarms[index as usize].list, time);
        self.next = Some(self.next.map_or(begin, |next| next.min(begin)));
    }

    /// Moves the alarm of a connection, if one is set, to a later time, before which nothing is due.
    pub(super) fn put_off(&mut self, index: u32, time: Time) {
        let Some(before) = self.of(index).filter(|before| *before < time) else { return };
        let begin = self.begin_of(self.alarms[index as usize].list, before);
        self.unlink(index);
        self.alarms[index as usize].time = time;
        self.link(index);
        if self.next == Some(begin) {
            self.next = self.begin_of_first();
        }
    }

    pub(super) fn clear(&mut self, index: u32) {
        if self.of(index).is_some() {
            self.unlink(index);
            self.next = self.begin_of_first();
        }
    }

    #[inline]
    fn time(&self, index: u32) -> Time {
        self.alarms[index as usize].time
    }

    /// Adds an alarm to the list of its time.
    #[inline]
    fn link(&mut self, index: u32) {
        let tick = tick(self.time(index)).max(self.turned);
        let differing = self.turned ^ tick;
        let level = (u64::BITS - (differing | 1).leading_zeros() - 1) / DIGIT_BITS;
        let digit = tick >> (DIGIT_BITS * level) & (DIGITS as u64 - 1);
        let list = level * DIGITS as u32 + digit as u32;
        self.filled[level as usize] |= 1 << digit;
        let behind = std::mem::replace(&mut self.lists[list as usize], index);
        if behind != NOWHERE {
            self.alarms[behind as usize].before = index;
        }
        let alarm = &mut self.alarms[index as usize];
        (alarm.list, alarm.before, alarm.behind) = (list, NOWHERE, behind);
    }

    #[inline]
    fn unlink(&mut self, index: u32) {
        let Alarm { list, before, behind, .. } = self.alarms[index as usize];
        self.alarms[index as usize].list = NOWHERE;
        if behind != NOWHERE {
            self.alarms[behind as usize].before = before;
        }
        if before != NOWHERE {
            self.alarms[before as usize].behind = behind;
            return;
        }
        self.lists[list as usize] = behind;
        if behind == NOWHERE {
            self.filled[list as usize / DIGITS] &= !(1 << (list as usize % DIGITS));
        }
    }

    /// The level and the list that hold the earliest alarm.
    #[inline]
    fn first_list(&self) -> Option<(usize, u32)> {
        let level = self.filled.iter().position(|filled| *filled != 0)?;
        Some((level, (level * DIGITS) as u32 + self.filled[level].trailing_zeros()))
    }

    #[inline]
    fn earliest_of(&self, list: u32) -> Option<u32> {
        let following =
            |index: &u32| Some(self.alarms[*index as usize].behind).filter(|behind| *behind != NOWHERE);
        let first = Some(self.lists[list as usize]).filter(|first| *first != NOWHERE);
        std::iter::successors(first, following).min_by_key(|index| (self.time(*index), *index))
    }

    /// When to look at a list that holds an alarm of that time.
    #[inline]
    fn begin_of(&self, list: u32, time: Time) -> Time {
        let (level, digit) = (list / DIGITS as u32, list % DIGITS as u32);
        if level == 0 {
            return time;
        }
        let shift = DIGIT_BITS * level;
        let above = self.turned >> shift >> DIGIT_BITS << DIGIT_BITS;
        Time::from_ns((above | u64::from(digit)) << shift << TICK_NS_SHIFT)
    }

    /// When to look at the first list that is not empty.
    #[inline]
    fn begin_of_first(&self) -> Option<Time> {
        let (_, list) = self.first_list()?;
        let earliest =
            if (list as usize) < DIGITS { self.time(self.earliest_of(list)?) } else { Time::default() };
        Some(self.begin_of(list, earliest))
    }

    /// Turns the wheel to the start of a list, before which there is no alarm, and moves its alarms to lists
    /// of lower levels.
    fn turn_to(&mut self, level: usize, list: u32) {
        self.turned = tick(self.begin_of(list, Time::default()));
        self.filled[level] &= !(1 << (list as usize % DIGITS));
        let mut next = std::mem::replace(&mut self.lists[list as usize], NOWHERE);
        while next != NOWHERE {
            let index = next;
            next = self.alarms[index as usize].behind;
            self.link(index);
        }
    }
}

#[inline]
fn tick(time: Time) -> u64 {
    time.ns() >> TICK_NS_SHIFT
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Times that lie close together, and far apart.
    fn times() -> impl Strategy<Value = u64> {
        (0u32..64, any::<u64>()).prop_map(|(bits, number)| number >> bits)
    }

    proptest! {
        /// Alarms go off in order and once, compared with a sorted map, and checking at the announced times
        /// misses none.
        #[test]
        fn alarms_come_in_order(steps in prop::collection::vec((0u32..20, times(), 0..5), 0..200)) {
            let (mut timers, mut model) = (Timers::default(), BTreeMap::new());
            let mut now = Time::default();
            for (index, ns, what) in steps {
                let time = Time::from_ns(ns);
                match what {
                    0 => {
                        timers.clear(index);
                        model.remove(&index);
                    }
                    1 => {
                        now = now.max(Time::from_ns(ns >> 20));
                        let due = timers.pop(now);
                        let earliest = model.values().min().copied();
                        prop_assert_eq!(due.is_some(), earliest.is_some_and(|earliest| earliest <= now));
                        if let Some(index) = due {
                            prop_assert_eq!(model.remove(&index), earliest);
                        }
                    }
                    2 => {
                        timers.put_off(index, time);
                        model.entry(index).and_modify(|set| *set = time.max(*set));
                    }
                    _ => {
                        timers.set(now, index, time);
                        let set = model.entry(index).or_insert(time);
                        *set = time.min(*set);
                    }
                }
                prop_assert_eq!(timers.of(index), model.get(&index).copied());
                let earliest = model.values().min().copied();
                prop_assert_eq!(timers.next().is_some(), earliest.is_some());
                prop_assert!(timers.next() <= earliest, "{:?} {:?}", timers.next(), earliest);
            }
            let mut looks = 0;
            while let Some(at) = timers.next() {
                looks += 1;
                match timers.pop(at) {
                    Some(index) => {
                        let earliest = model.values().min().copied();
                        prop_assert!(earliest <= Some(at));
                        prop_assert_eq!(model.remove(&index), earliest);
                    }
                    None => prop_assert!(timers.next() > Some(at), "no look twice at the same time"),
                }
            }
            prop_assert!(model.is_empty());
            prop_assert!(looks <= 20 * (1 + LEVELS), "{looks} looks at 20 alarms");
        }
    }

    /// An alarm of a few milliseconds goes off at the first check, one of seconds after a few.
    #[test]
    fn looks_are_few() {
        for (delay_ns, looks_max) in [(500_000, 1), (5_000_000, 2), (10_000_000_000, 4)] {
            for now in [0, 999_999, 1_000_000_000, 86_400_000_000_000, 86_400_000_500_000] {
                let mut timers = Timers::default();
                timers.set(Time::from_ns(now), 0, Time::from_ns(now + delay_ns));
                let mut looks = 1;
                while timers.pop(timers.next().expect("it was set")).is_none() {
                    looks += 1;
                }
                assert!(looks <= looks_max + 1, "{looks} looks for {delay_ns} ns from {now} on");
            }
        }
    }
}
