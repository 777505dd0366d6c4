//! Units among the packets: messages that go by the stream (docs/protocol.md §16). A unit takes the sequence
//! numbers that its messages would take as packets, so that it can still become these packets.

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

    /// Gives slots to all units: a packet follows them, or one of them is to become packets.
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

    /// Whether units were queued and not sent, so that not only packets wait to be sent.
    #[inline]
    pub(in crate::message) fn has_units_queued(&self) -> bool {
        self.units_queued > 0
    }

    /// The next unit to send, if everything before it was sent.
    pub(in crate::message) fn next_unit(&self) -> Option<UnitPlace> {
        let next = self.units.len() - self.units_queued;
        self.units.get(next).filter(|unit| unit.sequence == self.fresh).copied()
    }

    /// Notes that the next unit is sent, and returns it.
    pub(in crate::message) fn send_unit(&mut self) -> &mut S {
        let place = self.next_unit().expect("a unit to send");
        let next = self.units.len() - self.units_queued;
        self.units_queued -= 1;
        self.fresh = place.end();
        self.unit(next).expect("kept until it is acknowledged")
    }

    /// The unit of a place, unless it became packets.
    fn unit(&mut self, place: usize) -> Option<&mut S> {
        match place.checked_sub(self.units.len() - self.tail.len()) {
            Some(of_tail) => self.tail.get_mut(of_tail),
            None => {
                let sequence = self.units[place].sequence;
                self.at(sequence).filter(|slot| slot.state == State::Unit)?.packet.as_mut()
            }
        }
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
        while self.units.front().is_some_and(|unit| unit.sequence < sequence) {
            self.units.pop_front();
        }
        self.units.front().filter(|unit| unit.sequence == sequence).copied()
    }

    /// Forgets places of units that are acknowledged.
    pub(super) fn forget_units(&mut self) {
        while self.units.front().is_some_and(|unit| unit.sequence < self.first) {
            self.units.pop_front();
        }
    }

    /// The first unit that is not acknowledged.
    pub(in crate::message) fn first_unit(&mut self) -> Option<(UnitPlace, &mut S)> {
        let first = (0..self.units.len()).find(|place| self.unit(*place).is_some())?;
        let place = self.units[first];
        Some((place, self.unit(first)?))
    }

    /// Makes [the first unit](Self::first_unit) packets, which take its numbers, and gives it back. If it was
    /// sent they count as lost, otherwise they are sent in their turn. Panics if there is no unit, or if it
    /// has another number of packets than sequence numbers.
    pub(in crate::message) fn replace_unit(&mut self, packets: impl ExactSizeIterator<Item = S>) -> S {
        self.give_slots();
        let (place, _) = self.first_unit().expect("a unit to replace");
        assert_eq!(packets.len(), place.span as usize, "packets for the numbers of a unit");
        self.unit_numbers -= place.span as usize;
        let is_sent = place.sequence < self.fresh;
        let before = self.units.len();
        self.units.retain(|unit| unit.sequence != place.sequence);
        self.units_queued -= if is_sent { 0 } else { before - self.units.len() };
        let mut unit = None;
        for (sequence, packet) in (place.sequence..).zip(packets) {
            let slot = self.at(sequence).expect("it is not acknowledged");
            let state = if is_sent { State::Lost } else { State::Queued };
            let before = std::mem::replace(slot, Slot { state, repeated: is_sent, ..Slot::new(packet) });
            unit = unit.or(before.packet);
            if is_sent {
                self.lost.push_back(sequence);
            }
        }
        unit.expect("it is not acknowledged")
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
        assert_eq!(*window.send_unit(), 1);
        assert_eq!(
            (window.next_fresh(), window.next_unit(), window.has_units_queued()),
            (Some(4), None, true)
        );
        assert_eq!(*window.send_next(now), 4);
        assert_eq!(*window.send_unit(), 5);
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
        assert_eq!((*window.send_unit(), window.first_unit().map(|(place, _)| place.span)), (6, Some(700)));
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
    fn a_unit_becomes_packets_of_its_numbers() {
        let (mut window, now) = (window(), Time::from_ns(1));
        window.send(0, now);
        window.send_unit();
        assert_eq!((window.len(), window.packets()), (6, 2));
        assert_eq!(window.replace_unit([11, 12, 13].into_iter()), 1);
        assert_eq!(window.packets(), 5);
        assert_eq!(window.replace_unit([15].into_iter()), 5);
        assert!(window.first_unit().is_none() && !window.has_units_queued());
        let lost: Vec<_> =
            (1..4).map(|sequence| (window.next_lost(), *window.send(sequence, now).0)).collect();
        assert_eq!(lost, [(Some(1), 11), (Some(2), 12), (Some(3), 13)]);
        assert_eq!(window.next_lost(), None);
        assert_eq!((*window.send_next(now), *window.send_next(now)), (4, 15));
        assert_eq!((acknowledge(&mut window, 6), window.len()), (Some(6), 0));
    }
}
