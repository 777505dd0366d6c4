//! The classes of each destination: a bounded table, without hashing.

use super::class::ClassState;
use super::kind::{KINDS, WorkKind};

const DESTINATIONS_MAX: u32 = 256;

/// After this many sends to other destinations, a silent destination loses its place.
const WARMTH: u8 = 16;

#[derive(Debug, Clone)]
struct DestinationSlot {
    owner: Option<u32>,
    warmth: u8,
    classes: [Option<u16>; KINDS],
}

const EMPTY: DestinationSlot = DestinationSlot { owner: None, warmth: 0, classes: [None; KINDS] };

/// The entry shared by all destinations without their own.
const OTHERS: usize = 0;

/// All classes.
///
/// A destination's place is its index modulo [`DESTINATIONS_MAX`]. If two have the same, the first keeps it;
/// the other's sends use the classes of *others*. The first loses the place when it was silent during
/// [`WARMTH`] of them. So thousands of peers cost one look at a place each. Memory grows with use, up to 257
/// places of 32 classes.
#[derive(Debug)]
pub(super) struct ClassTable {
    places: Vec<DestinationSlot>,
    classes: Vec<ClassState>,
    /// The last choice for each kind, for any destination: a new class begins with it.
    hints: [Option<u8>; KINDS],
}

impl ClassTable {
    pub(super) fn new() -> Self {
        Self { places: vec![EMPTY], classes: Vec::new(), hints: [None; KINDS] }
    }

    #[inline]
    pub(super) fn class(&mut self, index: usize) -> Option<&mut ClassState> {
        self.classes.get_mut(index)
    }

    /// Finds the class of a send, or makes one whose first choice is the result of `first`, called with the
    /// last choice for this kind.
    pub(super) fn find_or_add(
        &mut self,
        destination: u32,
        kind: WorkKind,
        first: impl Fn(WorkKind, Option<u8>) -> u8,
    ) -> usize {
        let place = self.claim_slot(destination, &first);
        let class = &mut self.places[place].classes[kind.index()];
        if let Some(index) = *class {
            return usize::from(index);
        }
        let index = self.classes.len();
        *class = Some(u16::try_from(index).expect("257 places of 32 classes are fewer"));
        let hint = self.hints[kind.index()];
        self.classes.push(ClassState::new(kind, first(kind, hint), hint.is_some()));
        index
    }

    /// The place that a destination's sends use.
    fn claim_slot(&mut self, destination: u32, first: &impl Fn(WorkKind, Option<u8>) -> u8) -> usize {
        let index = slot_index(destination);
        if index >= self.places.len() {
            self.places.resize(index + 1, EMPTY);
        }
        let place = &mut self.places[index];
        if place.owner == Some(destination) {
            place.warmth = WARMTH;
            return index;
        }
        place.warmth = place.warmth.saturating_sub(1);
        if place.warmth > 0 {
            return OTHERS;
        }
        (place.owner, place.warmth) = (Some(destination), WARMTH);
        self.reset_slot(index, first);
        index
    }

    fn reset_slot(&mut self, place: usize, first: &impl Fn(WorkKind, Option<u8>) -> u8) {
        for index in self.places[place].classes.iter().flatten() {
            let class = &mut self.classes[usize::from(*index)];
            let hint = self.hints[class.kind.index()];
            class.reset(first(class.kind, hint), hint.is_some());
            class.set_reported(); // of another destination
        }
    }

    /// The entry of a destination, or the shared one.
    fn slot_of(&self, destination: u32) -> usize {
        let index = slot_index(destination);
        let owned = self.places.get(index).is_some_and(|place| place.owner == Some(destination));
        if owned { index } else { OTHERS }
    }

    /// Applies to the classes of a destination for work of a size.
    pub(super) fn for_each_of_size(
        &mut self,
        destination: u32,
        bytes: u32,
        mut apply: impl FnMut(&mut ClassState),
    ) {
        let place = &self.places[self.slot_of(destination)];
        for kind in WorkKind::all_of_size(bytes) {
            if let Some(index) = place.classes[kind.index()] {
                apply(&mut self.classes[usize::from(index)]);
            }
        }
    }

    pub(super) fn set_hint(&mut self, kind: WorkKind, method: u8) {
        self.hints[kind.index()] = Some(method);
    }

    pub(super) fn classes(&mut self) -> impl Iterator<Item = &mut ClassState> {
        self.classes.iter_mut()
    }

    /// All classes with their destination; `None` for the shared entry.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Option<u32>, &ClassState)> {
        self.places.iter().flat_map(move |place| {
            let classes = place.classes.iter().flatten();
            classes.map(move |&index| (place.owner, &self.classes[usize::from(index)]))
        })
    }
}

fn slot_index(destination: u32) -> usize {
    1 + (destination % DESTINATIONS_MAX) as usize
}

#[cfg(test)]
mod tests {
    use super::super::kind::SIZE_EDGES;
    use super::*;

    fn table_with_destinations(destinations: std::ops::Range<u32>) -> ClassTable {
        let mut table = ClassTable::new();
        for destination in destinations {
            table.find_or_add(destination, WorkKind::of_size_and_count(1400, 44), |_, _| 0);
        }
        table
    }

    #[test]
    fn memory_is_bounded_by_slots_and_kinds() {
        let mut table = ClassTable::new();
        for destination in 0..5000 {
            for bytes in SIZE_EDGES {
                for count in [1, 2, 5, 17] {
                    table.find_or_add(destination, WorkKind::of_size_and_count(bytes + 1, count), |_, _| 0);
                    table.find_or_add(destination, WorkKind::of_size_and_count(bytes, count), |_, _| 0);
                }
            }
        }
        assert!(table.places.len() <= 257 && table.classes.len() <= 257 * KINDS, "{}", table.classes.len());
    }

    #[test]
    fn a_silent_destination_loses_its_slot() {
        let mut table = table_with_destinations(0..1);
        let kind = WorkKind::of_size_and_count(1400, 44);
        let first = table.find_or_add(0, kind, |_, _| 0);
        let others = table.find_or_add(256, kind, |_, _| 0);
        assert_ne!(first, others);
        // The first destination keeps its place while it is sent to now and then.
        for _ in 0..100 {
            (0..10).for_each(|_| assert_eq!(table.find_or_add(256, kind, |_, _| 0), others));
            assert_eq!(table.find_or_add(0, kind, |_, _| 0), first);
        }
        let taken = (0..=WARMTH).position(|_| table.find_or_add(256, kind, |_, _| 0) == first);
        assert_eq!(taken, Some(usize::from(WARMTH) - 1));
        assert_eq!(table.find_or_add(0, kind, |_, _| 0), others);
    }

    #[test]
    fn a_new_class_begins_with_the_last_method_of_its_kind() {
        let mut table = table_with_destinations(0..1);
        let kind = WorkKind::of_size_and_count(1400, 44);
        table.set_hint(kind, 3);
        let index = table.find_or_add(1, kind, |_, hint| hint.unwrap_or(0));
        assert_eq!(table.class(index).expect("just made").incumbent, 3);
    }
}
