//! What was given to be sent and is not acknowledged yet, and which of it is lost (docs/protocol.md §5, §7).
//!
//! A packet keeps its sequence number when it is sent again. What tells transmissions apart is their *order*: they are counted, and a
//! packet is lost when one that was sent after it has arrived, and enough others or enough time lie between (RFC 9002 section 6.1; by
//! transmissions and not by sequence, as RFC 8985 section 6.2). So a packet that is lost for the second time is found like any other.

mod units;

use std::collections::VecDeque;
use std::ops::Range;

use super::Time;
use super::receive_window::IDLE_SLOTS;
use super::time::Span;

pub(super) use units::UnitPlace;

/// A packet is lost when one has arrived that was sent so many transmissions later (RFC 9002 section 6.1.1).
const ORDER_THRESHOLD: u64 = 3;

/// Places that a new connection has: the first packets wait for no memory.
const FIRST_SLOTS: usize = 2;

#[derive(Debug)]
pub(super) struct SendWindow<S> {
    slots: VecDeque<Slot<S>>,
    /// The sequence number of the first slot: everything below is acknowledged.
    first: u64,
    /// The first one that was never sent.
    fresh: u64,
    in_flight: usize,
    /// Transmissions up to here; the first is number 1.
    transmissions: u64,
    /// The latest one that is known to have arrived; 0: none.
    arrived: u64,
    /// First transmissions below it are judged: arrived or lost.
    judged: u64,
    /// Later transmissions that are not judged, with their sequence numbers.
    repeated: VecDeque<(u64, u64)>,
    /// To be sent again.
    lost: VecDeque<u64>,
    /// What the last acknowledgement said of packets beyond the first missing one.
    known: Vec<Range<u64>>,
    /// Units that are not acknowledged, in order.
    units: VecDeque<UnitPlace>,
    /// The last ones of them, that were not sent.
    units_queued: usize,
    /// Numbers of units that are not acknowledged.
    unit_numbers: usize,
}

#[derive(Debug)]
struct Slot<S> {
    packet: Option<S>,
    state: State,
    /// Was sent more than once.
    repeated: bool,
    order: u64,
    sent: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Queued,
    InFlight,
    Lost,
    Acknowledged,
    /// A unit, sent or not: it is neither in flight nor lost, since the stream sees to it.
    Unit,
}

/// What an acknowledgement brought.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Acknowledged {
    /// Packets that were not acknowledged before.
    pub(super) packets: usize,
    /// Of those, packets that had been taken for lost, and were not.
    pub(super) late: usize,
    /// The latest transmission of them that is known to have arrived; 0: none.
    arrived: u64,
    /// Numbers of units that were not acknowledged before.
    pub(super) of_units: usize,
}

impl Acknowledged {
    #[inline]
    fn book<S>(&mut self, slot: &Slot<S>, round_trip_min: Span, now: Time) {
        match slot.state {
            State::InFlight => {}
            State::Lost => self.late += 1,
            State::Unit => {
                self.of_units += 1;
                return;
            }
            State::Acknowledged | State::Queued => return,
        }
        self.packets += 1;
        // RFC 8985 section 6.2, step 2: too soon to be the last transmission.
        if !slot.repeated || now.span_since(slot.sent) >= round_trip_min {
            self.arrived = self.arrived.max(slot.order);
        }
    }
}

/// What a look for losses found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Losses {
    pub(super) packets: usize,
    /// The latest transmission among them.
    pub(super) newest: u64,
    /// When to look again, if nothing arrives.
    pub(super) look_again: Option<Time>,
}

impl<S> SendWindow<S> {
    pub(super) fn new(first: u64) -> Self {
        Self {
            slots: VecDeque::with_capacity(FIRST_SLOTS),
            first,
            fresh: first,
            in_flight: 0,
            transmissions: 0,
            arrived: 0,
            judged: first,
            repeated: VecDeque::new(),
            lost: VecDeque::new(),
            known: Vec::new(),
            units: VecDeque::new(),
            units_queued: 0,
            unit_numbers: 0,
        }
    }

    /// Packets that are not acknowledged, sent or not.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The same without units, which are not kept in the memory for packets.
    pub(super) fn packets(&self) -> usize {
        self.slots.len() - self.unit_numbers
    }

    #[inline]
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The sequence number of the first packet that was never sent.
    #[inline]
    pub(super) fn fresh(&self) -> u64 {
        self.fresh
    }

    /// The sequence number of the next packet that is given.
    #[inline]
    pub(super) fn end(&self) -> u64 {
        self.first + self.slots.len() as u64
    }

    /// The first one that is not acknowledged.
    #[inline]
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Transmissions up to here.
    #[inline]
    pub(super) fn transmissions(&self) -> u64 {
        self.transmissions
    }

    /// The latest one that is known to have arrived; 0: none.
    #[inline]
    pub(super) fn arrived(&self) -> u64 {
        self.arrived
    }

    #[inline]
    pub(super) fn push(&mut self, packet: S) -> u64 {
        let sequence = self.end();
        self.slots.push_back(Slot::new(packet));
        sequence
    }

    pub(super) fn extend(&mut self, packets: impl Iterator<Item = S>) {
        self.slots.extend(packets.map(Slot::new));
    }

    /// Gives the memory back that a burst took, if nothing waits to be sent or acknowledged any more.
    pub(super) fn shrink(&mut self) {
        if self.slots.is_empty()
            && self.slots.capacity().max(self.repeated.capacity()).max(self.lost.capacity()) > IDLE_SLOTS
        {
            self.slots.shrink_to(IDLE_SLOTS);
            self.repeated.shrink_to(IDLE_SLOTS);
            self.lost.shrink_to(IDLE_SLOTS);
            self.units.shrink_to(IDLE_SLOTS);
        }
    }

    /// Places for packets that memory is taken for.
    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn capacity(&self) -> usize {
        let slots = self.slots.capacity() + self.units.capacity();
        slots + self.repeated.capacity() + self.lost.capacity() + self.known.capacity()
    }

    fn at(&mut self, sequence: u64) -> Option<&mut Slot<S>> {
        self.slots.get_mut(usize::try_from(sequence.checked_sub(self.first)?).ok()?)
    }

    /// Everything is on its way.
    #[inline]
    pub(super) fn has_nothing_to_send(&self) -> bool {
        self.lost.is_empty() && self.fresh == self.end()
    }

    /// All that was sent has arrived, so that nothing can be lost.
    #[inline]
    pub(super) fn has_all_arrived(&self) -> bool {
        self.first == self.fresh && self.repeated.is_empty()
    }

    /// Packets may be lost, and wait to be sent again.
    #[inline]
    pub(super) fn has_losses(&self) -> bool {
        !self.lost.is_empty()
    }

    /// The packet to send again next, if any is lost.
    #[inline]
    pub(super) fn next_lost(&mut self) -> Option<u64> {
        while let Some(&sequence) = self.lost.front() {
            if self.at(sequence).is_some_and(|slot| slot.state == State::Lost) {
                return Some(sequence);
            }
            self.lost.pop_front();
        }
        None
    }

    /// The packet to send for the first time next.
    #[inline]
    pub(super) fn next_fresh(&self) -> Option<u64> {
        (self.fresh < self.end() && self.next_unit().is_none()).then_some(self.fresh)
    }

    /// The highest one in flight: what a probe repeats.
    pub(super) fn newest_in_flight(&self) -> Option<u64> {
        let sent = usize::try_from(self.fresh - self.first).unwrap_or(usize::MAX);
        let newest = self.slots.iter().take(sent).rposition(|slot| slot.state == State::InFlight)?;
        Some(self.first + newest as u64)
    }

    /// Books a transmission and gives the packet, with whether it is not the first one of it.
    ///
    /// # Panics
    /// The sequence number came from none of the three above.
    #[inline]
    pub(super) fn send(&mut self, sequence: u64, now: Time) -> (&mut S, bool) {
        self.transmissions += 1;
        let order = self.transmissions;
        let slot = self.at(sequence).expect("a packet of the window");
        let before = slot.state;
        (slot.state, slot.order, slot.sent) = (State::InFlight, order, now);
        slot.repeated |= before != State::Queued;
        match before {
            State::Queued => self.fresh += 1,
            State::InFlight | State::Lost => self.repeated.push_back((order, sequence)),
            State::Acknowledged | State::Unit => unreachable!("neither is sent as a packet"),
        }
        self.in_flight += usize::from(before != State::InFlight);
        let slot = self.at(sequence).expect("it was there");
        let repeated = slot.repeated;
        (slot.packet.as_mut().expect("kept until it is acknowledged"), repeated)
    }

    /// Books the first transmission of the next packet that was never sent, and gives it.
    ///
    /// # Panics
    /// There is none.
    #[inline]
    pub(super) fn send_next(&mut self, now: Time) -> &mut S {
        let place = (self.fresh - self.first) as usize;
        self.transmissions += 1;
        self.fresh += 1;
        self.in_flight += 1;
        let slot = &mut self.slots[place];
        (slot.state, slot.order, slot.sent) = (State::InFlight, self.transmissions, now);
        slot.packet.as_mut().expect("kept until it is acknowledged")
    }

    /// Books a packet that is sent as it comes, and gives it: nothing waits to be sent.
    #[inline]
    pub(super) fn push_sent(&mut self, packet: S, now: Time) -> &mut S {
        self.transmissions += 1;
        self.fresh += 1;
        self.in_flight += 1;
        let (state, order) = (State::InFlight, self.transmissions);
        self.slots.push_back(Slot { packet: Some(packet), state, repeated: false, order, sent: now });
        let slot = self.slots.back_mut().and_then(|slot| slot.packet.as_mut());
        slot.expect("it was put there")
    }

    /// Books first transmissions of the next packets that were never sent, for as long as `each` sends one, and of `most` at most.
    /// Returns how many that were.
    #[inline]
    pub(super) fn send_fresh(
        &mut self,
        now: Time,
        most: u32,
        mut each: impl FnMut(&mut S, u64) -> bool,
    ) -> u32 {
        let from = (self.fresh - self.first) as usize;
        let (before, mut order, mut sequence) = (self.fresh, self.transmissions, self.fresh);
        for slot in self.slots.range_mut(from..).take(most as usize) {
            if !each(slot.packet.as_mut().expect("kept until it is acknowledged"), sequence) {
                break;
            }
            (order, sequence) = (order + 1, sequence + 1);
            (slot.state, slot.order, slot.sent) = (State::InFlight, order, now);
        }
        (self.transmissions, self.fresh) = (order, sequence);
        self.in_flight += (sequence - before) as usize;
        (sequence - before) as u32
    }

    /// Books that the peer has everything below `expected`, as [`acknowledge`](Self::acknowledge) does, if that is no more than one packet,
    /// which was sent once, and nothing is known of those behind it. `None`, and no change, otherwise.
    #[inline(always)] // with nearly each acknowledgement
    pub(super) fn acknowledge_one(&mut self, expected: u64, free: &mut Vec<S>) -> Option<Acknowledged> {
        if expected != self.first + 1 || !self.known.is_empty() {
            return None;
        }
        let slot = self.slots.front()?;
        if slot.state != State::InFlight || slot.repeated {
            return None;
        }
        let Slot { packet, order, .. } = self.slots.pop_front()?;
        if let Some(packet) = packet {
            free.push(packet);
        }
        self.first = expected;
        self.in_flight -= 1;
        self.arrived = self.arrived.max(order);
        Some(Acknowledged { packets: 1, late: 0, arrived: order, of_units: 0 })
    }

    /// Books what the peer has: everything below `expected`, and the ranges above. Packets that are free go to `free`. Of packets
    /// sent more than once it is not known which transmission arrived: the last one did not sooner than after `round_trip_min`.
    ///
    /// Returns `None`, and changes nothing, if the peer claims to have what was never sent.
    pub(super) fn acknowledge(
        &mut self,
        expected: u64,
        ranges: impl ExactSizeIterator<Item = Range<u64>> + Clone,
        round_trip_min: Span,
        now: Time,
        free: &mut Vec<S>,
    ) -> Option<Acknowledged> {
        if expected > self.fresh || ranges.clone().any(|range| range.end > self.fresh) {
            return None;
        }
        if !self.units.is_empty() && self.is_of_parts(expected, ranges.clone()) {
            return None;
        }
        let mut all = Acknowledged::default();
        let count = expected.saturating_sub(self.first) as usize; // below what was sent
        for _ in 0..count {
            let Some(slot) = self.slots.pop_front() else { break };
            all.book(&slot, round_trip_min, now);
            if let Some(packet) = slot.packet {
                free.push(packet);
            }
        }
        self.first += count as u64;
        self.forget_units();
        if ranges.len() == 0 {
            self.known.clear();
            return Some(self.booked(all));
        }
        let mut known = std::mem::take(&mut self.known);
        let mut place = 0;
        for range in ranges.clone() {
            // What was known before need not be looked at again, or each acknowledgement would cost as much as the window is long.
            while known.get(place).is_some_and(|known: &Range<u64>| known.end <= range.start) {
                place += 1;
            }
            let mut from = range.start.max(self.first);
            if let Some(known) = known.get(place).filter(|known| known.start <= from) {
                from = from.max(known.end);
            }
            for sequence in from..range.end {
                let index = (sequence - self.first) as usize; // below what was sent
                let Some(slot) = self.slots.get_mut(index).map(Slot::acknowledged) else { continue };
                all.book(&slot, round_trip_min, now);
                free.extend(slot.packet);
            }
        }
        known.clear();
        known.extend(ranges);
        self.known = known;
        Some(self.booked(all))
    }

    #[inline]
    fn booked(&mut self, all: Acknowledged) -> Acknowledged {
        self.in_flight -= all.packets - all.late;
        self.unit_numbers -= all.of_units;
        self.arrived = self.arrived.max(all.arrived);
        all
    }

    /// Looks for packets that are lost, since others have arrived that were sent later.
    #[inline]
    pub(super) fn find_losses(&mut self, now: Time, patience: Span) -> Losses {
        let mut losses = Losses::default();
        self.judged = self.judged.max(self.first);
        while self.judged < self.fresh {
            let (sequence, arrived) = (self.judged, self.arrived);
            let slot = self.at(sequence).expect("not below the first");
            if slot.state == State::InFlight && !slot.repeated {
                match slot.verdict(arrived, now, patience) {
                    Verdict::Lost => self.lose(sequence, &mut losses),
                    Verdict::At(time) => losses.look_again_at(time),
                    Verdict::Unknown => {}
                }
                if self.at(sequence).is_some_and(|slot| slot.state == State::InFlight) {
                    break;
                }
            }
            self.judged += 1;
        }
        while let Some(&(order, sequence)) = self.repeated.front() {
            let arrived = self.arrived;
            let slot = self.at(sequence).filter(|slot| slot.state == State::InFlight && slot.order == order);
            if let Some(slot) = slot {
                match slot.verdict(arrived, now, patience) {
                    Verdict::Lost => self.lose(sequence, &mut losses),
                    Verdict::At(time) => {
                        losses.look_again_at(time);
                        break;
                    }
                    Verdict::Unknown => break,
                }
            }
            self.repeated.pop_front();
        }
        losses
    }

    fn lose(&mut self, sequence: u64, losses: &mut Losses) {
        let slot = self.at(sequence).expect("a packet of the window");
        slot.state = State::Lost;
        losses.newest = losses.newest.max(slot.order);
        losses.packets += 1;
        self.in_flight -= 1;
        self.lost.push_back(sequence);
    }

    /// Takes everything in flight for lost: nothing at all is heard any more (RFC 8985 section 6.3).
    pub(super) fn lose_all(&mut self) -> Losses {
        let mut losses = Losses::default();
        for sequence in self.first..self.fresh {
            if self.at(sequence).is_some_and(|slot| slot.state == State::InFlight) {
                self.lose(sequence, &mut losses);
            }
        }
        self.repeated.clear();
        self.judged = self.fresh;
        self.lost.make_contiguous().sort_unstable();
        losses
    }

    /// Gives all packets back, acknowledged or not.
    pub(super) fn clear(&mut self, free: &mut Vec<S>) {
        free.extend(self.slots.drain(..).filter_map(|slot| slot.packet));
        (self.first, self.in_flight) = (self.fresh, 0);
        self.judged = self.fresh;
        self.lost.clear();
        self.repeated.clear();
        self.known.clear();
        (self.units, self.units_queued, self.unit_numbers) = (VecDeque::new(), 0, 0);
    }
}

/// What is known of a packet in flight.
enum Verdict {
    Lost,
    /// Nothing sent after it has arrived.
    Unknown,
    /// Lost then, if nothing is heard of it.
    At(Time),
}

impl<S> Slot<S> {
    #[inline]
    fn new(packet: S) -> Self {
        Self { packet: Some(packet), state: State::Queued, repeated: false, order: 0, sent: Time::default() }
    }

    /// One of the numbers of a unit; the first has the unit.
    fn of_unit(unit: Option<S>) -> Self {
        Self { packet: unit, state: State::Unit, repeated: false, order: 0, sent: Time::default() }
    }

    /// What is there of the slot, which is an acknowledged one from here on.
    #[inline]
    fn acknowledged(&mut self) -> Self {
        let slot = Self { packet: self.packet.take(), ..*self };
        self.state = State::Acknowledged;
        slot
    }

    #[inline]
    fn verdict(&self, arrived: u64, now: Time, patience: Span) -> Verdict {
        if self.order > arrived {
            return Verdict::Unknown;
        }
        let until = self.sent + patience;
        match self.order + ORDER_THRESHOLD <= arrived || now >= until {
            true => Verdict::Lost,
            false => Verdict::At(until),
        }
    }
}

impl Losses {
    fn look_again_at(&mut self, time: Time) {
        self.look_again = Some(self.look_again.map_or(time, |earlier| earlier.min(time)));
    }
}
