use proptest::prelude::*;

use super::*;
use crate::model;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_ring_is_a_bounded_queue(operations in prop::collection::vec(any::<model::Operation>(), 0..200)) {
        model::check_ring(&operations);
    }
}

#[test]
fn indices_wrap_around_two_to_the_thirty_two() {
    let (mut producer, mut consumer) = pair::<u64>(4);
    for index in [&mut producer.head, &mut producer.published, &mut producer.consumed] {
        *index = u32::MAX - 1;
    }
    producer.shared.producer_index().store(u32::MAX - 1, Ordering::Relaxed);
    producer.shared.consumer_index().store(u32::MAX - 1, Ordering::Relaxed);
    (consumer.tail, consumer.produced) = (u32::MAX - 1, u32::MAX - 1);
    for round in 0..8_u64 {
        let mut slots = producer.reserve(3);
        (0..3).for_each(|i| slots.push(round * 3 + i).unwrap());
        drop(slots);
        assert_eq!(consumer.ready_entries(4).collect::<Vec<_>>(), [round * 3, round * 3 + 1, round * 3 + 2]);
    }
    assert_eq!(producer.bad_indices() + consumer.bad_indices(), 0);
}

#[test]
fn an_invalid_producer_index_is_counted_and_ignored() {
    let (producer, mut consumer) = pair::<u64>(4);
    producer.shared.producer_index().store(1000, Ordering::Relaxed);
    assert_eq!((consumer.ready_count(), consumer.available(1)), (0, 0));
    assert_eq!(consumer.bad_indices(), 1);
    producer.shared.producer_index().store(2, Ordering::Relaxed);
    assert_eq!((consumer.ready_count(), consumer.available(4)), (2, 2));
    producer.shared.producer_index().store(1, Ordering::Relaxed); // backwards
    assert_eq!((consumer.ready_count(), consumer.available(4)), (2, 2));
    assert_eq!(consumer.bad_indices(), 2);
}

#[test]
fn an_invalid_consumer_index_frees_no_slot() {
    let (mut producer, consumer) = pair::<u64>(4);
    (0..4).for_each(|i| producer.push(i).unwrap());
    producer.publish();
    for lie in [5, 100, u32::MAX] {
        consumer.shared.consumer_index().store(lie, Ordering::Relaxed);
        assert_eq!(producer.push(9), Err(9));
    }
    assert_eq!(producer.bad_indices(), 3);
    consumer.shared.consumer_index().store(1, Ordering::Relaxed);
    assert_eq!(producer.push(9), Ok(()));
}

#[test]
fn a_reservation_dropped_by_a_panic_publishes_its_entries() {
    let (mut producer, mut consumer) = pair::<u64>(4);
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut slots = producer.reserve(4);
        slots.push(1).unwrap();
        panic!("on purpose");
    }));
    assert!(unwound.is_err());
    assert_eq!(consumer.ready_entries(4).collect::<Vec<_>>(), [1]);
}

#[test]
fn the_wakeup_flag_reaches_the_producer() {
    let (producer, _consumer) = pair::<u64>(4);
    assert!(!producer.needs_wakeup());
    producer.set_needs_wakeup(true);
    assert!(producer.needs_wakeup());
}

#[test]
#[should_panic(expected = "not a power of two")]
fn a_capacity_that_is_no_power_of_two_panics() {
    let _ = pair::<u64>(6);
}

#[test]
fn entries_of_a_forgotten_iterator_are_never_read_twice() {
    let (mut producer, mut consumer) = pair::<u64>(4);
    (0..3).for_each(|i| producer.push(i).unwrap());
    producer.publish();
    let mut peek = consumer.ready_entries(2);
    assert_eq!(peek.next(), Some(0));
    std::mem::forget(peek);
    assert_eq!(consumer.ready_entries(4).collect::<Vec<_>>(), [2]);
    assert_eq!(producer.free_slots(4), 4);
}
