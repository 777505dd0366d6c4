//! One alarm for each connection, earliest first: a binary heap that knows where each one is.

use super::Time;

#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: Vec<(Time, u32)>,
    /// Where in the heap the alarm of a connection is; [`NOWHERE`] if none is set.
    places: Vec<u32>,
}

const NOWHERE: u32 = u32::MAX;

impl Timers {
    /// The earliest alarm.
    #[inline]
    pub(super) fn next(&self) -> Option<Time> {
        self.heap.first().map(|(time, _)| *time)
    }

    /// The alarm of a connection.
    #[inline]
    pub(super) fn of(&self, index: u32) -> Option<Time> {
        self.place(index).map(|place| self.heap[place].0)
    }

    /// The connection whose alarm is due, which is taken away.
    pub(super) fn pop(&mut self, now: Time) -> Option<u32> {
        let &(time, index) = self.heap.first()?;
        if time > now {
            return None;
        }
        self.clear(index);
        Some(index)
    }

    /// Sets the alarm of a connection, unless an earlier one is set: that one leads to a new look, which costs less than to move
    /// the alarm with each packet.
    #[inline]
    pub(super) fn set(&mut self, index: u32, time: Time) {
        match self.place(index) {
            Some(place) if self.heap[place].0 <= time => {}
            Some(place) => {
                self.heap[place].0 = time;
                self.rise(place);
            }
            None => {
                if self.places.len() <= index as usize {
                    self.places.resize(index as usize + 1, NOWHERE);
                }
                self.heap.push((time, index));
                self.rise(self.heap.len() - 1);
            }
        }
    }

    /// Takes the alarm of a connection away.
    pub(super) fn clear(&mut self, index: u32) {
        let Some(place) = self.place(index) else { return };
        self.places[index as usize] = NOWHERE;
        self.heap.swap_remove(place);
        if place < self.heap.len() {
            self.places[self.heap[place].1 as usize] = place as u32;
            self.rise(place);
            self.sink(place);
        }
    }

    #[inline]
    fn place(&self, index: u32) -> Option<usize> {
        self.places.get(index as usize).filter(|place| **place != NOWHERE).map(|place| *place as usize)
    }

    fn rise(&mut self, mut place: usize) {
        while place > 0 && self.heap[place] < self.heap[(place - 1) / 2] {
            self.swap(place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
        self.places[self.heap[place].1 as usize] = place as u32;
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let children = 2 * place + 1..(2 * place + 3).min(self.heap.len());
            let Some(least) = children.min_by_key(|child| self.heap[*child]) else { return };
            if self.heap[place] <= self.heap[least] {
                return;
            }
            self.swap(place, least);
            place = least;
        }
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.heap.swap(one, other);
        for place in [one, other] {
            self.places[self.heap[place].1 as usize] = place as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Proves that alarms come in order and once, against a sorted map.
        #[test]
        fn alarms_come_in_order(steps in prop::collection::vec((0u32..20, 0u64..100, 0..4), 0..200)) {
            let (mut timers, mut model) = (Timers::default(), BTreeMap::new());
            for (index, ns, what) in steps {
                let time = Time::from_ns(ns);
                match what {
                    0 => {
                        timers.clear(index);
                        model.remove(&index);
                    }
                    1 => {
                        let due = timers.pop(time);
                        let earliest = model.values().min().copied();
                        prop_assert_eq!(due.is_some(), earliest.is_some_and(|earliest| earliest <= time));
                        if let Some(index) = due {
                            prop_assert_eq!(model.remove(&index), earliest);
                        }
                    }
                    _ => {
                        timers.set(index, time);
                        let set = model.entry(index).or_insert(time);
                        *set = time.min(*set);
                    }
                }
                prop_assert_eq!(timers.next(), model.values().min().copied());
            }
        }
    }
}
