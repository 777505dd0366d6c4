//! Packets that were queued and are not acknowledged yet, and which of them are lost (docs/protocol.md §5,
//! §7).
//!
//! A packet keeps its sequence number when it is sent again; *transmissions* have numbers of their own. A
//! packet is lost when one that was transmitted later has arrived, and enough others or enough time lie
//! between (RFC 9002 section 6.1, with transmissions in place of sequence numbers, as in RFC 8985 section
//! 6.2). So the loss of a repeated packet is found like any other.

mod units;

use std::collections::VecDeque;
use std::ops::Range;

use super::Time;
use super::receive_window::IDLE_SLOTS;
use super::time::Span;

pub(super) use units::UnitPlace;

/// A packet is lost when one has arrived that was sent this many transmissions later (RFC 9002 section
/// 6.1.1).
const ORDER_THRESHOLD: u64 = 3;

/// The slots of a new connection: the first packets do not wait for memory.
const FIRST_SLOTS: usize = 2;

#[derive(Debug)]
pub(super) struct SendWindow<S> {
    /// A slot for each sequence number, except those of the units behind the last packet.
    slots: VecDeque<Slot<S>>,
    /// The sequence number of the first slot: everything below is acknowledged.
    first: u64,
    /// The first packet that was never sent.
    fresh: u64,
    in_flight: usize,
    /// The number of transmissions so far; the first is number 1.
    transmissions: u64,
    /// The latest transmission known to have arrived; 0: none.
    arrived: u64,
    /// First transmissions below this number are known to have arrived or be lost.
    judged: u64,
    /// Repeated transmissions whose outcome is not known, with their sequence numbers.
    repeated: VecDeque<(u64, u64)>,
    /// Packets to be sent again.
    lost: VecDeque<u64>,
    /// The ranges of the last acknowledgement after the first missing packet.
    known: Vec<Range<u64>>,
    /// Units that are not acknowledged, in order.
    units: VecDeque<UnitPlace>,
    /// The last of them, behind the last packet, which have no slots: where all goes by the stream, a unit
    /// costs the same however long it is.
    tail: VecDeque<S>,
    /// The sequence number of the next packet that is given.
    end: u64,
    /// How many units at the end are to be sent, for the first time or by another stream than before.
    units_queued: usize,
    /// Sequence numbers of units that are not acknowledged.
    unit_numbers: usize,
    /// What `first` was when memory was last to be freed.
    rested: u64,
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
    /// A unit, sent or not. It counts neither as in flight nor as lost, since the stream delivers it.
    Unit,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Acknowledged {
    /// Packets that were not acknowledged before.
    pub(super) packets: usize,
    /// How many of them had been considered lost by mistake.
    pub(super) late: usize,
    /// The latest of their transmissions known to have arrived; 0: none.
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

/// The result of a search for losses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Losses {
    pub(super) packets: usize,
    /// The latest lost transmission.
    pub(super) newest: u64,
    /// When to search again, if nothing arrives.
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
            tail: VecDeque::new(),
            end: first,
            units_queued: 0,
            unit_numbers: 0,
            rested: first,
        }
    }

    /// Packets that are not acknowledged, sent or not.
    #[inline]
    pub(super) fn len(&self) -> usize {
        (self.end - self.first) as usize
    }

    /// As [`len`](Self::len), without units, which are not kept in the memory for packets.
    pub(super) fn packets(&self) -> usize {
        self.len() - self.unit_numbers
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
        self.end
    }

    /// The first packet that is not acknowledged.
    #[inline]
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Whether the first packet that is not acknowledged in order was acknowledged by a range.
    pub(super) fn has_acknowledged_first(&self) -> bool {
        self.slots.front().is_some_and(|slot| slot.state == State::Acknowledged)
    }

    /// The number of transmissions so far.
    #[inline]
    pub(super) fn transmissions(&self) -> u64 {
        self.transmissions
    }

    /// The latest transmission known to have arrived; 0: none.
    #[inline]
    pub(super) fn arrived(&self) -> u64 {
        self.arrived
    }

    #[inline]
    pub(super) fn push(&mut self, packet: S) -> u64 {
        self.give_slots();
        let sequence = self.end;
        self.end += 1;
        self.slots.push_back(Slot::new(packet));
        sequence
    }

    pub(super) fn extend(&mut self, packets: impl Iterator<Item = S>) {
        self.give_slots();
        self.slots.extend(packets.map(Slot::new));
        self.end = self.first + self.slots.len() as u64;
    }

    /// Frees the memory that a burst took, if nothing waits to be sent or acknowledged, and little was since
    /// the last call.
    pub(super) fn shrink(&mut self) {
        let rested = std::mem::replace(&mut self.rested, self.first);
        if self.len() > 0 || self.first - rested > IDLE_SLOTS as u64 {
            return;
        }
        let Self { slots, repeated, lost, units, tail, .. } = self;
        let most =
            [slots.capacity(), repeated.capacity(), lost.capacity(), units.capacity(), tail.capacity()];
        if most.into_iter().max() > Some(IDLE_SLOTS) {
            slots.shrink_to(IDLE_SLOTS);
            repeated.shrink_to(IDLE_SLOTS);
            lost.shrink_to(IDLE_SLOTS);
            units.shrink_to(IDLE_SLOTS);
            tail.shrink_to(IDLE_SLOTS);
        }
    }

    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn capacity(&self) -> usize {
        let slots = self.slots.capacity() + self.units.capacity() + self.tail.capacity();
        slots + self.repeated.capacity() + self.lost.capacity() + self.known.capacity()
    }

    fn at(&mut self, sequence: u64) -> Option<&mut Slot<S>> {
        self.slots.get_mut(usize::try_from(sequence.checked_sub(self.first)?).ok()?)
    }

    /// Whether everything was sent.
    #[inline]
    pub(super) fn has_nothing_to_send(&self) -> bool {
        self.lost.is_empty() && self.fresh == self.end() && self.units_queued == 0
    }

    /// Whether everything that was sent has arrived, so that nothing can be lost.
    #[inline]
    pub(super) fn has_all_arrived(&self) -> bool {
        self.first == self.fresh && self.repeated.is_empty()
    }

    /// Whether packets are lost and wait to be sent again.
    #[inline]
    pub(super) fn has_losses(&self) -> bool {
        !self.lost.is_empty()
    }

    /// The next lost packet to send again.
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

    /// The next packet to send for the first time.
    #[inline]
    pub(super) fn next_fresh(&self) -> Option<u64> {
        (self.fresh < self.end() && !self.is_unit(self.fresh)).then_some(self.fresh)
    }

    /// The highest packet in flight, which a probe repeats.
    pub(super) fn newest_in_flight(&self) -> Option<u64> {
        let sent = usize::try_from(self.fresh - self.first).unwrap_or(usize::MAX);
        let newest = self.slots.iter().take(sent).rposition(|slot| slot.state == State::InFlight)?;
        Some(self.first + newest as u64)
    }

    /// Records a transmission; returns the packet, and whether it was sent before.
    /// Panics if the sequence number came from none of the three methods above.
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

    /// Records the first transmission of the next packet that was never sent, and returns it.
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

    /// Records a packet that is sent without being queued, and returns it: nothing waits to be sent.
    #[inline]
    pub(super) fn push_sent(&mut self, packet: S, now: Time) -> &mut S {
        self.give_slots();
        self.transmissions += 1;
        self.fresh += 1;
        self.end = self.fresh;
        self.in_flight += 1;
        let (state, order) = (State::InFlight, self.transmissions);
        self.slots.push_back(Slot { packet: Some(packet), state, repeated: false, order, sent: now });
        let slot = self.slots.back_mut().and_then(|slot| slot.packet.as_mut());
        slot.expect("it was put there")
    }

    /// Records the first transmissions of the next packets that were never sent, as long as `each` sends one,
    /// and of `most` at most. Returns their number.
    #[inline]
    pub(super) fn send_fresh(
        &mut self,
        now: Time,
        most: u32,
        mut each: impl FnMut(&mut S, u64) -> bool,
    ) -> u32 {
        if self.fresh == self.end() {
            return 0; // perhaps behind units, which have no slots
        }
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

    /// Records that the peer has everything below `expected`, as [`acknowledge`](Self::acknowledge) does, if
    /// that acknowledges only one packet, which was sent once, and no later packet is acknowledged. `None`,
    /// and no change, otherwise.
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

    /// Books what the peer has: everything below `expected`, and the ranges above. Packets that are free go
    /// to `free`. Of packets sent more than once it is not known which transmission arrived: the last one did
    /// not sooner than after `round_trip_min`.
    ///
    /// Returns `None`, and changes nothing, if the peer claims to have what was never sent, or a part of a
    /// unit.
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
        if ranges.len() > 0 {
            self.give_slots();
        }
        let mut all = Acknowledged::default();
        let count = expected.saturating_sub(self.first) as usize; // below what was sent
        let mut end = self.first;
        self.first += count as u64;
        while end < self.first {
            let Some(slot) = self.slots.pop_front() else {
                end += self.pass_tail_unit(end, &mut all, free);
                continue;
            };
            all.book(&slot, round_trip_min, now);
            if slot.state == State::Unit {
                // All of it, and its further slots are empty.
                let further = self.unit_at(end).map_or(0, |unit| unit.span - 1);
                self.slots.drain(..further as usize);
                all.of_units += further as usize;
                end += u64::from(further);
            }
            if let Some(packet) = slot.packet {
                free.push(packet);
            }
            end += 1;
        }
        self.forget_units_below(self.first);
        if ranges.len() == 0 {
            self.known.clear();
            return Some(self.booked(all));
        }
        let mut known = std::mem::take(&mut self.known);
        let mut place = 0;
        for range in ranges.clone() {
            // What was known before need not be looked at again, or each acknowledgement would cost as much
            // as the window is long.
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
        self.forget_repeats();
        Some(self.booked(all))
    }

    #[inline]
    fn booked(&mut self, all: Acknowledged) -> Acknowledged {
        self.in_flight -= all.packets - all.late;
        self.unit_numbers -= all.of_units;
        self.units_queued = self.units_queued.min(self.units.len());
        self.arrived = self.arrived.max(all.arrived);
        all
    }

    /// Finds packets that are lost, because others have arrived that were sent later.
    #[inline]
    pub(super) fn find_losses(&mut self, now: Time, patience: Span) -> Losses {
        let mut losses = Losses::default();
        self.judged = self.judged.max(self.first);
        while self.judged < self.fresh {
            let (sequence, arrived) = (self.judged, self.arrived);
            let Some(slot) = self.at(sequence) else {
                self.judged = self.fresh; // the others are units
                break;
            };
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

    /// Considers everything in flight lost, because no acknowledgement arrives any more (RFC 8985 section
    /// 6.3).
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

    pub(super) fn clear(&mut self, free: &mut Vec<S>) {
        free.extend(self.slots.drain(..).filter_map(|slot| slot.packet));
        free.extend(self.tail.drain(..));
        (self.first, self.in_flight) = (self.fresh, 0);
        self.judged = self.fresh;
        self.lost.clear();
        self.repeated.clear();
        self.known.clear();
        self.units.clear();
        (self.units_queued, self.unit_numbers, self.end) = (0, 0, self.first);
    }
}

/// What is known about a packet in flight.
enum Verdict {
    Lost,
    /// Nothing sent after it has arrived.
    Unknown,
    /// Lost at this time, unless it is acknowledged before.
    At(Time),
}

impl<S> Slot<S> {
    #[inline]
    fn new(packet: S) -> Self {
        Self { packet: Some(packet), state: State::Queued, repeated: false, order: 0, sent: Time::default() }
    }

    /// A slot for one of the numbers of a unit; the first of them holds the unit.
    fn of_unit(unit: Option<S>) -> Self {
        Self { packet: unit, state: State::Unit, repeated: false, order: 0, sent: Time::default() }
    }

    /// Takes the content, and marks the slot as acknowledged.
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
