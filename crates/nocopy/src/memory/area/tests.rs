use proptest::prelude::*;

use super::*;
use crate::model;

fn small_area() -> Area {
    Area::new(AreaConfig { frame_count: 8, ..AreaConfig::default() }).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_kernel_address_gives_a_frame_two_owners(
        operations in prop::collection::vec(any::<model::Operation>(), 0..300),
    ) {
        model::check_port_halves(&operations);
    }
}

#[test]
fn invalid_area_settings_are_refused() {
    let with = |frame_count, frame_bytes, headroom_bytes| {
        Area::new(AreaConfig { frame_count, frame_bytes, headroom_bytes, ..AreaConfig::default() })
            .unwrap_err()
    };
    assert!(matches!(with(8, 2000, 0), AreaError::FrameBytes(2000)));
    assert!(matches!(with(8, 1024, 0), AreaError::FrameBytes(1024)));
    assert!(matches!(with(0, 2048, 0), AreaError::FrameCount(0)));
    assert!(matches!(with(8, 2048, 1792), AreaError::Headroom { .. }));
    assert!(matches!(with(8, 2048, u32::MAX), AreaError::Headroom { .. }));
}

#[test]
fn too_little_memory_for_an_area_is_an_error() {
    let huge =
        Area::new(AreaConfig { frame_count: u32::MAX - 4, frame_bytes: 32768, ..AreaConfig::default() });
    let text = huge.unwrap_err().to_string();
    assert!(text.contains("gave no memory"), "{text}");
}

#[test]
fn headers_are_added_and_removed_without_moving_data() {
    let area = small_area();
    let pool = area.pool(PoolDirection::Send, 4).unwrap();
    let mut frame = pool.take_frame().unwrap();
    assert_eq!((frame.headroom_bytes(), frame.len()), (256, 0));
    frame.append(4).unwrap().copy_from_slice(b"data");
    let data = frame.as_ptr();
    frame.prepend(3).unwrap().copy_from_slice(b"hdr");
    assert_eq!(&*frame, b"hdrdata");
    frame.trim_front(3);
    assert_eq!((&*frame, frame.as_ptr()), (&b"data"[..], data));
    assert!(frame.prepend(257).is_none() && frame.append(2048).is_none());
    frame.truncate(2);
    assert_eq!(&*frame, b"da");
    frame.trim_front(100);
    assert!(frame.is_empty());
    assert!(frame.fill(&[7; 1792]).is_ok() && frame.fill(&[7; 1793]).is_err());
    assert_eq!(frame.tailroom_bytes(), 0);
}

#[test]
fn the_last_returned_frame_frees_the_area() {
    let area = small_area();
    let weak = Arc::downgrade(&area.shared);
    let pool = area.pool(PoolDirection::Send, 4).unwrap();
    let frames: Vec<Frame> = (0..4).filter_map(|_| pool.take_frame()).collect();
    drop(pool);
    drop(area);
    assert_eq!(weak.strong_count(), 4);
    let threads: Vec<_> = frames
        .into_iter()
        .map(|mut frame| {
            std::thread::spawn(move || {
                frame.append(8).unwrap().fill(1);
                drop(frame);
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(weak.upgrade().is_none(), "area leaked");
}

#[test]
fn frames_dropped_while_their_pool_closes_are_not_lost() {
    for _ in 0..200 {
        let area = small_area();
        let pool = area.pool(PoolDirection::Receive, 8).unwrap();
        let frames: Vec<Frame> = (0..8).filter_map(|_| pool.take_frame()).collect();
        let dropper = std::thread::spawn(move || drop(frames));
        drop(pool);
        dropper.join().unwrap();
        let balance = area.balance();
        assert_eq!((balance.free, balance.in_use), (8, 0), "{balance}");
        assert_eq!(Arc::strong_count(&area.shared), 1);
    }
}

#[test]
fn a_closed_pools_frames_serve_the_next_pool() {
    let area = small_area();
    for _ in 0..3 * POOL_COUNT_MAX {
        let pool = area.pool(PoolDirection::Receive, 8).unwrap();
        let frames: Vec<Frame> = (0..9).filter_map(|_| pool.take_frame()).collect();
        assert_eq!(frames.len(), 8);
    }
    assert!(matches!(
        area.pool(PoolDirection::Send, 9),
        Err(AreaError::FramesExhausted { wanted: 9, free: 8, total: 8 })
    ));
    let frame = area.pool(PoolDirection::Send, 8).unwrap().take_frame().unwrap();
    assert_eq!(area.balance().in_use, 1);
    drop(frame);
    assert_eq!(area.balance().free, 8);
}

#[test]
fn frames_return_in_chains_and_lent_ones_are_reclaimed() {
    let area = small_area();
    let (receive, send) =
        (area.pool(PoolDirection::Receive, 4).unwrap(), area.pool(PoolDirection::Send, 4).unwrap());
    let (mut kernel_completion, mut completion) = crate::ring::pair::<u64>(8);
    let forward = |count: usize| -> Vec<u64> {
        (0..count)
            .map(|_| {
                let d = send.lend(receive.take_frame().unwrap()).unwrap();
                send.count_lent(1);
                d.address
            })
            .collect()
    };
    for address in forward(3) {
        kernel_completion.push(address).unwrap();
    }
    kernel_completion.publish();
    assert_eq!(send.reap(&mut completion, u32::MAX, &mut Faults::default(), &mut Vec::new()), 3);
    assert_eq!((0..4).filter_map(|_| receive.take_frame()).collect::<Vec<_>>().len(), 4);
    assert!(receive.balance().is_balanced());
    // One own frame and one stray are lent when the sending half closes.
    forward(1);
    send.lend(send.take_frame().unwrap()).unwrap();
    send.count_lent(1);
    send.close(LentFramesOnClose::Reclaim);
    let balance = receive.balance();
    assert_eq!((balance.lent_tx, balance.retired, balance.free), (0, 0, 8), "{balance}");
    let send = area.pool(PoolDirection::Send, 4).unwrap();
    send.lend(receive.take_frame().unwrap()).unwrap();
    send.count_lent(1);
    send.close(LentFramesOnClose::Retire);
    let balance = receive.balance();
    assert_eq!((balance.lent_tx, balance.retired, balance.free), (0, 1, 7), "{balance}");
    assert!(balance.is_balanced());
}

#[test]
fn a_retired_frame_of_a_closed_pool_does_not_keep_the_area() {
    let area = small_area();
    let weak = Arc::downgrade(&area.shared);
    let (receive, send) =
        (area.pool(PoolDirection::Receive, 4).unwrap(), area.pool(PoolDirection::Send, 4).unwrap());
    send.lend(receive.take_frame().unwrap()).unwrap();
    send.count_lent(1);
    drop(receive);
    send.close(LentFramesOnClose::Retire);
    assert!(area.balance().is_balanced(), "{}", area.balance());
    drop(area);
    assert!(weak.upgrade().is_none(), "area leaked");
}

#[test]
fn a_shared_frame_returns_after_its_last_owner() {
    let area = small_area();
    let pool = area.pool(PoolDirection::Send, 4).unwrap();
    let mut frame = pool.take_frame().unwrap();
    frame.fill(b"shared").unwrap();
    let (one, two) = {
        let shared = frame.share();
        (shared.clone(), shared)
    };
    let one = Frame::try_from(one).unwrap_err();
    assert_eq!((&*one, &*two), (&b"shared"[..], &b"shared"[..]));
    drop(one);
    let frame = Frame::try_from(two).unwrap();
    assert_eq!(pool.balance().in_use, 1);
    drop(frame);
    assert_eq!(pool.balance().in_use, 0);
}

#[test]
fn a_frame_value_has_the_size_of_three_words() {
    assert_eq!(size_of::<Frame>(), 24);
    assert_eq!(size_of::<Option<Frame>>(), 24);
}

#[test]
fn a_frame_dropped_after_its_pool_returns_to_the_area() {
    let area = small_area();
    let weak = Arc::downgrade(&area.shared);
    let (a, b) = (area.pool(PoolDirection::Send, 4).unwrap(), area.pool(PoolDirection::Send, 4).unwrap());
    let frame = a.take_frame().unwrap();
    drop(a);
    drop(frame);
    drop(b);
    drop(area.pool(PoolDirection::Send, 4).unwrap()); // takes the number of the first, and other frames
    assert_eq!(area.balance().free, 8);
    drop(area);
    assert!(weak.upgrade().is_none(), "area leaked");
}

#[test]
fn memory_is_on_the_requested_node_or_an_error_names_it() {
    let on = |node| Area::new(AreaConfig { frame_count: 8, numa_node: Some(node), ..AreaConfig::default() });
    let node = small_area().config().numa_node;
    assert_eq!(node.is_some(), std::path::Path::new("/sys/devices/system/node/node0").exists());
    if let Some(node) = node {
        assert_eq!(on(node).unwrap().config().numa_node, Some(node));
    }
    for none in [1000, u32::MAX] {
        let error = on(none).unwrap_err();
        assert!(matches!(error, AreaError::NumaNode { node, .. } if node == none), "{error}");
    }
}

#[test]
fn only_kept_frames_return_with_their_contents() {
    let area = small_area();
    let (receive, mut send) =
        (area.pool(PoolDirection::Receive, 4).unwrap(), area.pool(PoolDirection::Send, 4).unwrap());
    let (mut kernel_completion, mut completion) = crate::ring::pair::<u64>(8);
    let (mut faults, mut back) = (Faults::default(), Vec::new());
    // One of its own and one that another half received, three times each.
    let mut frames = vec![send.take_frame().unwrap(), receive.take_frame().unwrap()];
    for round in 0..3 {
        let mut expected = Vec::new();
        for mut frame in frames.drain(..) {
            frame.fill(&[round; 100]).unwrap();
            frame.trim_front(usize::from(round));
            send.keep(&frame);
            expected.push((frame.index(), frame.as_ptr(), frame.to_vec()));
            frame.prepend(42).unwrap();
            let address = send.lend(frame).unwrap().address;
            send.count_lent(1);
            for _ in 0..2 {
                kernel_completion.push(address).unwrap(); // told twice
            }
        }
        assert_eq!(send.balance().lent_tx, 2);
        kernel_completion.publish();
        assert_eq!(send.reap(&mut completion, u32::MAX, &mut faults, &mut back), 2);
        assert_eq!(faults.not_lent, 2 * (u64::from(round) + 1));
        assert!(back.iter().map(|frame| (frame.index(), frame.as_ptr(), frame.to_vec())).eq(expected));
        receive.balance();
        let balance = send.balance();
        assert!(balance.is_balanced() && balance.in_use == 2 && balance.lent_tx == 0, "{balance}");
        frames.append(&mut back);
    }
    // Sent without being kept, and kept but not sent: free again.
    for mut frame in frames.drain(..) {
        send.keep(&frame);
        send.cancel_keep(&frame);
        frame.fill(b"not kept").unwrap();
        kernel_completion.push(send.lend(frame).unwrap().address).unwrap();
        send.count_lent(1);
    }
    kernel_completion.publish();
    assert_eq!(send.reap(&mut completion, u32::MAX, &mut faults, &mut back), 2);
    assert!(back.is_empty());
    receive.fetch_returned();
    receive.balance();
    let balance = send.balance();
    assert!(balance.is_balanced() && balance.free == 8, "{balance}");
}

#[test]
fn kept_frames_are_reclaimed_or_retired_when_their_pool_closes() {
    for how in [LentFramesOnClose::Reclaim, LentFramesOnClose::Retire] {
        let area = small_area();
        let weak = Arc::downgrade(&area.shared);
        let (receive, mut send) =
            (area.pool(PoolDirection::Receive, 4).unwrap(), area.pool(PoolDirection::Send, 4).unwrap());
        let (mut kernel_completion, mut completion) = crate::ring::pair::<u64>(8);
        let mut lent = Vec::new();
        for frame in [send.take_frame(), send.take_frame(), receive.take_frame()] {
            let mut frame = frame.unwrap();
            frame.fill(b"kept").unwrap();
            send.keep(&frame);
            lent.push(send.lend(frame).unwrap().address);
            send.count_lent(1);
        }
        kernel_completion.push(lent[0]).unwrap();
        kernel_completion.publish();
        let mut back = Vec::new();
        assert_eq!(send.reap(&mut completion, u32::MAX, &mut Faults::default(), &mut back), 1);
        send.close(how);
        let balance = receive.balance();
        assert!(balance.is_balanced() && balance.in_use == 1 && balance.lent_tx == 0, "{balance}");
        assert_eq!(balance.retired, if how == LentFramesOnClose::Retire { 2 } else { 0 }, "{balance}");
        assert_eq!(&*back[0], b"kept");
        drop(receive);
        drop(area);
        assert!(weak.upgrade().is_some(), "the frame's memory is gone");
        drop(back);
        assert!(weak.upgrade().is_none(), "area leaked");
    }
}

#[test]
fn a_frame_of_another_area_cannot_be_kept() {
    let (here, elsewhere) = (small_area(), small_area());
    let mut send = here.pool(PoolDirection::Send, 8).unwrap();
    let foreign = elsewhere.pool(PoolDirection::Send, 1).unwrap().take_frame().unwrap();
    send.keep(&foreign);
    assert!(!is_kept(elsewhere.shared.state(foreign.index())));
    assert!(here.shared.states.iter().all(|word| !is_kept(word.load(Relaxed))));
    assert!(send.lend(foreign).is_err());
}
