//! Placing without sockets: by hand, and compared with an oracle.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use proptest::prelude::*;

use super::super::settings::{Field, Placing};
use super::*;

/// A row, which is the tag of its datagram.
const ROW_BYTES: usize = 4;

/// Header bytes: a heap's number, then an offset.
const HEADER_BYTES: usize = 16;

#[derive(Debug, Clone, Copy)]
struct Shape {
    /// Of the heap's field.
    bytes: usize,
    rows_per_heap: u64,
    rows: usize,
    ring: usize,
}

impl Shape {
    fn placer(&self) -> Placer {
        let (heap, offset) = (Field::big_endian(0, self.bytes), Field::little_endian(8, 8));
        let placing = match self.rows_per_heap {
            1 => Placing::by_number(heap),
            rows_per_heap => Placing::by_heap(heap, offset, rows_per_heap),
        };
        let placing = placing.payload(HEADER_BYTES).shape(self.rows, ROW_BYTES).ring(self.ring);
        Placer::new(placing.check(1500).unwrap()).unwrap()
    }

    fn datagram(&self, heap: u64, row: u64, tag: u32) -> Vec<u8> {
        let mut datagram = [0; HEADER_BYTES + ROW_BYTES];
        datagram[..self.bytes].copy_from_slice(&heap.to_be_bytes()[8 - self.bytes..]);
        datagram[8..16].copy_from_slice(&(row * ROW_BYTES as u64).to_le_bytes());
        datagram[16..].copy_from_slice(&tag.to_le_bytes());
        datagram.into()
    }
}

/// A returned chunk: its first number, and the tags of its rows.
type Returned = (u64, BTreeMap<usize, u32>);

fn check_and_convert(chunk: &PlacedChunk) -> Returned {
    let tags = |row: &[u8]| u32::from_le_bytes(row.try_into().unwrap());
    let rows = chunk.rows().enumerate();
    let rows: BTreeMap<usize, u32> = rows.filter_map(|(at, row)| Some((at, tags(row?)))).collect();
    assert_eq!(rows.len(), chunk.filled());
    for (row, present) in chunk.chunks(ROW_BYTES).zip(chunk.present()) {
        assert!(*present || row == [0; ROW_BYTES], "an absent row shows {row:?}");
    }
    (chunk.first(), rows)
}

/// Places datagrams with these numbers, tagged 1, 2, 3 …, and takes chunks as they come.
fn place_all(placer: &mut Placer, shape: Shape, numbers: impl IntoIterator<Item = u64>) -> Vec<Returned> {
    let mut returned = Vec::new();
    for (number, tag) in numbers.into_iter().zip(1..) {
        placer.place(&shape.datagram(number, 0, tag));
        while let Some(chunk) = placer.next_complete().unwrap() {
            returned.push(check_and_convert(&chunk));
        }
    }
    returned
}

fn finish(placer: &mut Placer) -> Vec<Returned> {
    std::iter::from_fn(|| placer.finish()).map(|chunk| check_and_convert(&chunk)).collect()
}

const TENS: Shape = Shape { bytes: 4, rows_per_heap: 1, rows: 10, ring: 4 };

#[test]
fn reordering_across_a_border_is_no_loss() {
    let mut placer = TENS.placer();
    let numbers = (0..8).chain([10, 11, 8, 9]).chain(12..20);
    let chunks = place_all(&mut placer, TENS, numbers);
    assert_eq!(
        chunks.iter().map(|(first, rows)| (*first, rows.len())).collect::<Vec<_>>(),
        [(0, 10), (10, 10)]
    );
    assert_eq!((chunks[0].1[&8], chunks[1].1[&0]), (11, 9));
    assert_eq!(*placer.counters(), PlacedCounters::default());
    assert!(finish(&mut placer).is_empty());
}

#[test]
fn a_number_ahead_ends_old_chunks_in_order() {
    let mut placer = TENS.placer();
    let chunks = place_all(&mut placer, TENS, [3, 12, 45]);
    let expected = [(0, BTreeMap::from([(3, 1)])), (10, BTreeMap::from([(2, 2)]))];
    assert_eq!(chunks, expected);
    // Rows 20 to 29 are skipped; 30 to 39 are still open.
    let counters = PlacedCounters { missing: 18, skipped: 10, ..PlacedCounters::default() };
    assert_eq!(*placer.counters(), counters);
    assert_eq!(finish(&mut placer), [(40, BTreeMap::from([(5, 3)]))]);
}

#[test]
fn one_stray_datagram_moves_nothing() {
    let mut placer = TENS.placer();
    let chunks = place_all(&mut placer, TENS, (100..105).chain([4_000_000, 2]).chain(105..110));
    assert_eq!((chunks.len(), chunks[0].0, chunks[0].1.len()), (1, 100, 10));
    assert_eq!(*placer.counters(), PlacedCounters { strays: 1, late: 1, ..PlacedCounters::default() });
}

#[test]
fn a_sender_that_starts_again_is_followed_without_loss() {
    let mut placer = TENS.placer();
    let mut chunks = place_all(&mut placer, TENS, (1000..1015).chain(0..20));
    chunks.extend(finish(&mut placer));
    let counts: Vec<_> = chunks.iter().map(|(first, rows)| (*first, rows.len())).collect();
    assert_eq!(counts, [(1000, 10), (1010, 5), (0, 10), (10, 10)]);
    assert_eq!(*placer.counters(), PlacedCounters { restarts: 1, missing: 5, ..PlacedCounters::default() });
}

#[test]
fn a_far_number_is_followed_when_others_agree() {
    let mut placer = TENS.placer();
    let far = 1 << 30;
    let chunks = place_all(&mut placer, TENS, (0..5).chain(far..far + 40));
    let rows: usize = chunks.iter().map(|(_, rows)| rows.len()).sum();
    assert_eq!((rows, chunks[0].0, chunks[1].0), (5 + 36, 0, far - far % 10), "the last four are still open");
    assert_eq!(
        *placer.counters(),
        PlacedCounters { jumps: 1, missing: 5 + far % 10, ..PlacedCounters::default() }
    );
}

#[test]
fn a_double_and_datagrams_of_other_lengths_are_counted() {
    let mut placer = TENS.placer();
    let datagram = TENS.datagram(7, 0, 1);
    placer.place(&datagram);
    placer.place(&TENS.datagram(7, 0, 2));
    placer.place(&datagram[..datagram.len() - 1]);
    placer.place(&[]);
    placer.place(&[&datagram[..], &[0]].concat());
    let counters = PlacedCounters { double: 1, short: 2, long: 1, ..PlacedCounters::default() };
    assert_eq!(*placer.counters(), counters);
    assert_eq!(finish(&mut placer), [(0, BTreeMap::from([(7, 1)]))], "the first one stays");
}

#[test]
fn after_finish_numbers_begin_anew() {
    let mut placer = TENS.placer();
    place_all(&mut placer, TENS, [500, 501]);
    assert_eq!(finish(&mut placer).len(), 1);
    place_all(&mut placer, TENS, [3]);
    assert_eq!(finish(&mut placer), [(0, BTreeMap::from([(3, 1)]))]);
    assert_eq!((placer.counters().late, placer.counters().restarts), (0, 0));
}

#[test]
fn a_full_ring_stops_placing_until_a_chunk_is_dropped() {
    let shape = Shape { ring: 3, ..TENS };
    let mut placer = shape.placer();
    let mut held = Vec::new();
    let mut number = 0;
    let error = loop {
        assert!(number < 100, "the ring never filled");
        let goes_on = placer.place(&shape.datagram(number, 0, number as u32));
        number += 1;
        match placer.next_complete() {
            Ok(Some(chunk)) => held.push(chunk),
            Ok(None) => assert!(goes_on, "nothing stops but a chunk or missing memory"),
            Err(error) => break error,
        }
    };
    assert_eq!((number, held.len(), error.kind()), (31, 3, io::ErrorKind::OutOfMemory));
    assert!(error.to_string().starts_with("receive: no chunk; all 3 of the ring are in use"), "{error}");
    assert!(placer.next_complete().is_err(), "nothing has changed");
    std::thread::scope(|scope| scope.spawn(|| drop(held.remove(1))).join().unwrap());
    assert!(placer.next_complete().unwrap().is_none());
    let last = finish(&mut placer);
    assert_eq!(last, [(30, BTreeMap::from([(0, 30)]))], "the row that waited was not lost");
    assert_eq!(placer.counters().no_chunks, 2);
}

#[test]
fn memory_of_a_ring_never_grows() {
    let shape = Shape { ring: 2, ..TENS };
    let mut placer = shape.placer();
    let first = placer.ring.memory_range();
    for number in [0, 5, 1 << 31, 7, u64::from(u32::MAX), 12, 19].into_iter().cycle().take(1000) {
        placer.place(&shape.datagram(number, 0, 1));
        while placer.next_complete().unwrap().is_some() {}
    }
    assert_eq!((placer.ring.memory_range(), placer.ring.total()), (first, 2));
    while placer.finish().is_some() {}
    assert_eq!(placer.ring.available(), 2);
}

/// What is to happen, in arithmetic without limits: `start` and all positions are numbers of rows, counted
/// from the beginning.
struct Oracle {
    shape: Shape,
    /// Of the first open chunk.
    start: Option<i128>,
    chunks: BTreeMap<i128, BTreeMap<usize, u32>>,
    held: Vec<(u64, u64, u32)>,
    returned: Vec<Returned>,
    counters: PlacedCounters,
}

impl Oracle {
    fn new(shape: Shape) -> Self {
        let (chunks, counters) = (BTreeMap::new(), PlacedCounters::default());
        Self { shape, start: None, chunks, held: Vec::new(), returned: Vec::new(), counters }
    }

    fn rows(&self) -> i128 {
        self.shape.rows as i128
    }

    fn open(&self) -> i128 {
        if self.shape.ring >= 3 { 2 } else { 1 }
    }

    fn distance(&self, from: i128, heap: u64, row: u64) -> i128 {
        let (all, rows_per_heap) = (1_i128 << (8 * self.shape.bytes), i128::from(self.shape.rows_per_heap));
        let ahead = (i128::from(heap) - from.div_euclid(rows_per_heap)).rem_euclid(all);
        let heaps = if ahead >= all / 2 { ahead - all } else { ahead };
        heaps * rows_per_heap + i128::from(row) - from.rem_euclid(rows_per_heap)
    }

    fn is_in_reach(&self, distance: i128) -> bool {
        (0..(self.open() + self.shape.ring as i128) * self.rows()).contains(&distance)
    }

    fn begin(&mut self, position: i128) -> i128 {
        *self.start.insert(position - position % self.rows())
    }

    fn raw(&self, heap: u64, row: u64) -> i128 {
        i128::from(heap) * i128::from(self.shape.rows_per_heap) + i128::from(row)
    }

    fn end_first(&mut self) {
        let start = self.start.unwrap();
        match self.chunks.remove(&start) {
            Some(rows) => {
                self.counters.missing += (self.shape.rows - rows.len()) as u64;
                self.returned.push((start as u64, rows));
            }
            None => self.counters.skipped += self.shape.rows as u64,
        }
        self.start = Some(start + self.rows());
    }

    fn end_all(&mut self) {
        while !self.chunks.is_empty() {
            self.end_first();
        }
    }

    /// Places what is in reach of the window.
    fn place(&mut self, position: i128, tag: u32) {
        while position >= self.start.unwrap() + self.open() * self.rows() {
            self.end_first();
        }
        let row = position.rem_euclid(self.rows());
        let rows = self.chunks.entry(position - row).or_default();
        match rows.entry(row as usize) {
            Entry::Occupied(_) => self.counters.double += 1,
            Entry::Vacant(free) => {
                free.insert(tag);
            }
        }
        while self.chunks.get(&self.start.unwrap()).is_some_and(|rows| rows.len() == self.shape.rows) {
            self.end_first();
        }
    }

    fn lose(&mut self, heap: u64, row: u64) {
        match self.distance(self.start.unwrap(), heap, row) {
            ..0 => self.counters.late += 1,
            _ => self.counters.strays += 1,
        }
    }

    fn lose_held(&mut self) {
        for (heap, row, _) in std::mem::take(&mut self.held) {
            self.lose(heap, row);
        }
    }

    fn receive(&mut self, heap: u64, row: u64, tag: u32) {
        let start = match self.start {
            Some(start) => start,
            None => self.begin(self.raw(heap, row)),
        };
        let distance = self.distance(start, heap, row);
        if self.is_in_reach(distance) {
            self.lose_held();
            return self.place(start + distance, tag);
        }
        if let Some(&(last_heap, last_row, _)) = self.held.last() {
            let apart = self.distance(self.raw(last_heap, last_row), heap, row);
            if apart.abs() > self.open() * self.rows() {
                self.lose_held();
            }
        }
        self.held.push((heap, row, tag));
        if self.held.len() == AGREEING {
            self.follow();
        }
    }

    fn follow(&mut self) {
        let (heap, row, _) = self.held[0];
        let is_behind = self.distance(self.start.unwrap(), heap, row) < 0;
        self.end_all();
        let start = self.start.unwrap();
        let distance = self.distance(start, heap, row);
        if is_behind {
            self.counters.restarts += 1;
            self.begin(self.raw(heap, row));
        } else {
            self.counters.jumps += 1;
            // Heaps are counted modulo 2^64.
            let all = i128::from(self.shape.rows_per_heap) << 64;
            self.begin((start + distance).rem_euclid(all));
        }
        for (heap, row, tag) in std::mem::take(&mut self.held) {
            let start = self.start.unwrap();
            let distance = self.distance(start, heap, row);
            if self.is_in_reach(distance) { self.place(start + distance, tag) } else { self.lose(heap, row) }
        }
    }

    fn finish(&mut self) {
        self.lose_held();
        self.end_all();
        self.start = None;
    }
}

/// What a sender does next. Amounts are taken modulo what makes sense.
#[derive(Debug, Clone, Copy)]
enum Op {
    /// So many rows in order.
    Run(u8),
    /// Rows that are lost.
    Skip(u16),
    /// A row again that was sent so many rows before; the sender goes on from where it was.
    Again(u16),
    /// A row that overtakes so many others.
    Early(u8),
    /// The sender goes on elsewhere.
    Move(u64),
    /// One datagram of a sender elsewhere.
    Stray(u64),
    Restart,
    Finish,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        10 => (1_u8..40).prop_map(Op::Run),
        4 => (0_u16..100).prop_map(Op::Skip),
        3 => (0_u16..100).prop_map(Op::Again),
        3 => (0_u8..60).prop_map(Op::Early),
        2 => any::<u64>().prop_map(Op::Move),
        2 => any::<u64>().prop_map(Op::Stray),
        1 => Just(Op::Restart),
        1 => Just(Op::Finish),
    ];
    proptest::collection::vec(op, 1..60)
}

fn shapes() -> impl Strategy<Value = Shape> {
    let rows_per_heap = prop_oneof![Just(1_u64), 2_u64..9, Just(u64::from(u32::MAX))];
    let shape = (1_usize..=8, rows_per_heap, 1_usize..12, 1_usize..6, any::<bool>());
    shape.prop_map(|(bytes, rows_per_heap, rows, ring, is_wide)| {
        let bytes = if is_wide { 8 } else { bytes };
        Shape { bytes, rows_per_heap, rows, ring }
    })
}

/// Runs the same datagrams through the placer and the oracle.
struct Comparison {
    placer: Placer,
    oracle: Oracle,
    returned: Vec<Returned>,
    tag: u32,
}

impl Comparison {
    /// Sends the row at a position, modulo all numbers.
    fn send(&mut self, position: i128) {
        let shape = self.oracle.shape;
        let rows_per_heap = i128::from(shape.rows_per_heap);
        let (heap, row) = (position.div_euclid(rows_per_heap), position.rem_euclid(rows_per_heap));
        let heap = heap.rem_euclid(1 << (8 * shape.bytes)) as u64;
        self.tag += 1;
        self.oracle.receive(heap, row as u64, self.tag);
        self.placer.place(&shape.datagram(heap, row as u64, self.tag));
        while let Some(chunk) = self.placer.next_complete().unwrap() {
            self.returned.push(check_and_convert(&chunk));
        }
    }

    /// What the sender does; returns where it is then.
    fn apply(&mut self, op: Op, at: i128) -> i128 {
        match op {
            Op::Run(count) => {
                (0..i128::from(count)).for_each(|row| self.send(at + row));
                return at + i128::from(count);
            }
            Op::Skip(rows) => return at + i128::from(rows),
            Op::Again(back) => self.send(at - i128::from(back)),
            Op::Early(ahead) => self.send(at + i128::from(ahead)),
            Op::Move(to) => return i128::from(to),
            Op::Stray(number) => self.send(i128::from(number)),
            Op::Restart => return 0,
            Op::Finish => {
                self.oracle.finish();
                self.returned.extend(finish(&mut self.placer));
            }
        }
        at
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn chunks_and_counters_are_those_of_the_oracle(shape in shapes(), start: u64, ops in ops()) {
        // One byte has room for 256 heaps, of which half are ahead.
        prop_assume!(shape.bytes > 1 || shape.rows_per_heap > 1 || shape.rows * (shape.ring + 2) <= 128);
        let (placer, oracle) = (shape.placer(), Oracle::new(shape));
        let mut both = Comparison { placer, oracle, returned: Vec::new(), tag: 0 };
        ops.into_iter().chain([Op::Finish]).fold(i128::from(start), |at, op| both.apply(op, at));
        prop_assert_eq!(&both.returned, &both.oracle.returned);
        prop_assert_eq!(both.placer.counters(), &both.oracle.counters);
        prop_assert_eq!(both.placer.ring.available(), shape.ring);
        let filled: usize = both.returned.iter().map(|(_, rows)| rows.len()).sum();
        prop_assert_eq!(both.placer.filled_rows(), filled as u64);
    }
}
