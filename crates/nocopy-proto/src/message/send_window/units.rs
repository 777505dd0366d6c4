//! Units among the packets: messages that go by the stream (docs/protocol.md §16). A unit takes as many
//! sequence numbers as its messages would take as packets. It stays a unit: what a stream has not delivered
//! is sent again by the next one.

use std::ops::Range;

use super::{Acknowledged, SendWindow, Slot, State};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::message) struct UnitPlace {
    /// The first of its sequence numbers.
    pub(in crate::message) sequence: u64,
    /// How many sequence numbers it takes.
    pub(in crate::message) span: u32,
    /// Bytes of its messages.
    pub(in crate::message) bytes: u32,
}

impl UnitPlace {
    pub(super) fn end(&self) -> u64 {
        self.sequence + u64::from(self.span)
    }
}

impl<S> SendWindow<S> {
    /// Queues a unit.
    /// Panics if the unit takes no sequence number.
    pub(in crate::message) fn push_unit(&mut self, unit: S, span: u32, bytes: u32) {
        assert!(span > 0, "a unit without a number");
        self.units.push_back(UnitPlace { sequence: self.end, span, bytes });
        self.units_queued += 1;
        self.unit_numbers += span as usize;
        self.end += u64::from(span);
        self.tail.push_back(unit);
    }

    /// Gives slots to all units: a packet follows them, or one of them may be acknowledged before others.
    #[inline]
    pub(super) fn give_slots(&mut self) {
        if !self.tail.is_empty() {
            self.give_slots_to_tail();
        }
    }

    #[cold]
    fn give_slots_to_tail(&mut self) {
        let Self { units, tail, slots, .. } = self;
        for (place, unit) in units.range(units.len() - tail.len()..).zip(tail.drain(..)) {
            slots.push_back(Slot::of_unit(Some(unit)));
            slots.extend((1..place.span).map(|_| Slot::of_unit(None)));
        }
    }

    /// Books the unit behind all slots, which begins with this number and is acknowledged; returns how many
    /// numbers it has.
    pub(super) fn pass_tail_unit(&mut self, sequence: u64, all: &mut Acknowledged, free: &mut Vec<S>) -> u64 {
        let place = self.unit_at(sequence).expect("a whole unit is acknowledged");
        free.extend(self.tail.pop_front());
        self.units.pop_front();
        all.of_units += place.span as usize;
        place.span.into()
    }

    /// Whether units are to be sent, so that not only packets wait to be sent.
    #[inline]
    pub(in crate::message) fn has_units_queued(&self) -> bool {
        self.units_queued > 0
    }

    /// Whether there are units that are not acknowledged.
    #[inline]
    pub(in crate::message) fn has_units(&self) -> bool {
        self.unit_numbers > 0
    }

    /// Whether there are such units that the present stream was given.
    pub(in crate::message) fn has_units_in_flight(&self) -> bool {
        self.units.len() > self.units_queued
    }

    /// The next unit to send, if everything before it was sent.
    pub(in crate::message) fn next_unit(&self) -> Option<UnitPlace> {
        let next = self.units.len() - self.units_queued;
        self.units.get(next).filter(|unit| unit.sequence <= self.fresh).copied()
    }

    /// Whether a number, which was not sent, is the first one of a unit.
    #[inline]
    pub(super) fn is_unit(&self, sequence: u64) -> bool {
        self.units_queued > 0 && self.units.binary_search_by_key(&sequence, |unit| unit.sequence).is_ok()
    }

    /// Notes that the next unit is sent, and returns it, and whether an earlier stream was given it.
    pub(in crate::message) fn send_unit(&mut self) -> (&mut S, bool) {
        let place = self.next_unit().expect("a unit to send");
        let next = self.units.len() - self.units_queued;
        self.units_queued -= 1;
        let again = place.sequence < self.fresh;
        self.fresh = self.fresh.max(place.end());
        let unit = match next.checked_sub(self.units.len() - self.tail.len()) {
            Some(of_tail) => self.tail.get_mut(of_tail),
            None => self.at(place.sequence).and_then(|slot| slot.packet.as_mut()),
        };
        (unit.expect("kept until it is acknowledged"), again)
    }

    /// Queues the units that were sent and are not acknowledged once more: there is another stream.
    pub(in crate::message) fn repeat_units(&mut self) {
        self.forget_acknowledged_units();
        self.units_queued = self.units.len();
    }

    /// Takes units out of the queue that were sent by an earlier stream, and that the peer has after all.
    pub(super) fn forget_repeats(&mut self) {
        let Some(next) = self.next_unit().filter(|unit| unit.sequence < self.fresh) else { return };
        self.forget_acknowledged_units();
        let sent = self.units.partition_point(|unit| unit.sequence < next.sequence);
        self.units_queued = self.units.len() - sent;
    }

    /// Forgets the places of units that are acknowledged behind a gap.
    fn forget_acknowledged_units(&mut self) {
        let Self { units, slots, first, .. } = self;
        let slot = |unit: &UnitPlace| slots.get(unit.sequence.saturating_sub(*first) as usize);
        units.retain(|unit| slot(unit).is_none_or(|slot| slot.state == State::Unit));
    }

    /// Whether an acknowledgement covers only a part of a unit, which no receiver reports.
    pub(super) fn is_of_parts(&self, expected: u64, mut ranges: impl Iterator<Item = Range<u64>>) -> bool {
        let cuts = |number: u64| {
            let unit = self.units.get(self.units.partition_point(|unit| unit.end() <= number));
            unit.is_some_and(|unit| unit.sequence < number)
        };
        cuts(expected) || ranges.any(|range| cuts(range.start) || cuts(range.end))
    }

    /// The unit that begins with this number, below which everything is acknowledged.
    pub(super) fn unit_at(&mut self, sequence: u64) -> Option<UnitPlace> {
        self.forget_units_below(sequence);
        self.units.front().filter(|unit| unit.sequence == sequence).copied()
    }

    /// Forgets the places of units that are acknowledged.
    pub(super) fn forget_units_below(&mut self, sequence: u64) {
        while self.units.front().is_some_and(|unit| unit.sequence < sequence) {
            self.units.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Time;
    use crate::message::time::Span;

    fn acknowledge(window: &mut SendWindow<u32>, expected: u64) -> Option<usize> {
        let (span, now, mut free) = (Span::from_millis(1), Time::from_ns(5), Vec::new());
        window.acknowledge(expected, std::iter::empty::<Range<u64>>(), span, now, &mut free)?;
        Some(free.len())
    }

    /// A packet, a unit of three numbers, a packet, a unit of one.
    fn window() -> SendWindow<u32> {
        let mut window = SendWindow::new(0);
        window.push(0);
        window.push_unit(1, 3, 4000);
        window.push(4);
        window.push_unit(5, 1, 10);
        window
    }

    #[test]
    fn packets_and_units_are_sent_in_the_order_of_their_numbers() {
        let (mut window, now) = (window(), Time::from_ns(1));
        assert_eq!((window.next_fresh(), window.next_unit()), (Some(0), None));
        window.send(0, now);
        assert_eq!((window.next_fresh(), window.next_unit().map(|unit| unit.span)), (None, Some(3)));
        assert_eq!(window.send_unit(), (&mut 1, false));
        assert_eq!(
            (window.next_fresh(), window.next_unit(), window.has_units_queued()),
            (Some(4), None, true)
        );
        assert_eq!(*window.send_next(now), 4);
        assert_eq!(window.send_unit(), (&mut 5, false));
        assert!(window.has_nothing_to_send() && !window.has_units_queued());
        assert_eq!(window.in_flight(), 2, "units are not counted among the packets");
    }

    #[test]
    fn units_behind_the_last_packet_have_no_slots() {
        let (mut window, now) = (window(), Time::from_ns(1));
        window.send(0, now);
        window.send_unit();
        window.send(4, now);
        window.send_unit();
        window.push_unit(6, 700, 1_000_000);
        assert_eq!((window.slots.len(), window.len(), window.packets(), window.end()), (5, 706, 2, 706));
        assert_eq!((acknowledge(&mut window, 6), window.slots.len(), window.len()), (Some(4), 0, 700));
        assert_eq!(
            (window.next_unit().map(|unit| unit.span), window.send_unit()),
            (Some(700), (&mut 6, false))
        );
        assert!(window.has_nothing_to_send());
        assert_eq!((window.push(706), window.slots.len()), (706, 701));
        assert_eq!((acknowledge(&mut window, 706), window.slots.len()), (Some(1), 1));
        assert!(window.units.is_empty() && window.packets() == 1);
    }

    /// What was lost is sent again while only units, which have no slots, were sent behind it.
    #[test]
    fn nothing_follows_a_packet_that_is_repeated_in_front_of_units() {
        let (mut window, now) = (SendWindow::new(0), Time::from_ns(1));
        window.push_sent(0, now);
        window.push_unit(1, 3, 4000);
        window.send_unit();
        assert_eq!((window.lose_all().packets, window.next_lost()), (1, Some(0)));
        window.send(0, now);
        assert_eq!(window.send_fresh(now, 10, |_, _| true), 0);
    }

    #[test]
    fn a_part_of_a_unit_cannot_be_acknowledged() {
        let (mut window, now) = (window(), Time::from_ns(1));
        window.send(0, now);
        window.send_unit();
        assert_eq!((acknowledge(&mut window, 2), acknowledge(&mut window, 3)), (None, None));
        assert_eq!((acknowledge(&mut window, 1), acknowledge(&mut window, 4)), (Some(1), Some(1)));
        assert_eq!((window.first(), window.len(), window.packets()), (4, 2, 1));
    }

    #[test]
    fn units_are_sent_again_by_another_stream_unless_they_are_acknowledged() {
        let (mut window, now) = (window(), Time::from_ns(1));
        window.push_unit(6, 2, 2000);
        window.send(0, now);
        window.send_unit();
        window.send(4, now);
        window.send_unit();
        window.repeat_units();
        assert!(!window.has_nothing_to_send() && window.next_fresh().is_none());
        // The peer has one of them after all, behind a gap.
        let (span, mut free) = (Span::from_millis(1), Vec::new());
        window.acknowledge(1, std::iter::once(5..6), span, now, &mut free).unwrap();
        assert_eq!(free, [0, 5]);
        assert_eq!(window.send_unit(), (&mut 1, true));
        assert_eq!(window.send_unit(), (&mut 6, false), "it had waited");
        assert!(window.next_unit().is_none() && window.has_units());
        // What was sent again is acknowledged in order.
        window.repeat_units();
        assert_eq!(acknowledge(&mut window, 6), Some(2));
        assert_eq!((*window.send_unit().0, acknowledge(&mut window, 8)), (6, Some(1)));
        assert!(window.has_nothing_to_send() && !window.has_units() && window.units.is_empty());
    }

    #[test]
    fn packets_are_sent_while_units_wait_for_another_stream() {
        let (mut window, now) = (SendWindow::new(0), Time::from_ns(1));
        window.push_unit(0, 2, 2000);
        window.send_unit();
        window.push(2);
        window.repeat_units();
        assert_eq!((window.next_fresh(), window.next_unit().map(|unit| unit.sequence)), (Some(2), Some(0)));
        window.send(2, now);
        assert!(!window.has_nothing_to_send() && window.has_units_queued());
        assert_eq!((acknowledge(&mut window, 3), window.has_units_queued()), (Some(2), false));
    }
}
