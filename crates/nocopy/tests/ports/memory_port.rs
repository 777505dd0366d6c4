//! Ports in memory mode: all states of a frame, without privileges.

use std::time::{Duration, Instant};

use crate::common::PATIENCE;
use crate::common::waiting::ObservedThread;
use nocopy::Reason;
use nocopy::metadata::Request;
use nocopy::{Cause, Chain, Evidence, Frame, Mode, Port, Sender, Wait};
use nocopy_lab::patience::wait_until;

fn send_packets<P: AsRef<[u8]>>(port: &mut Port, packets: &[P]) {
    for packet in packets {
        let mut frame = port.sender().buffer().expect("a free frame");
        frame.fill(packet.as_ref()).expect("fits");
        port.sender().send(frame).expect("sent");
    }
    port.sender().flush().expect("flushed");
}

fn assert_no_frame_in_use(port: &Port) {
    let balance = port.balance();
    assert!(balance.is_balanced() && balance.in_use == 0, "{balance}");
}

fn take_completed(sender: &mut Sender) -> Vec<Frame> {
    std::iter::from_fn(|| sender.completed()).collect()
}

#[test]
fn packets_arrive_in_order_unchanged() {
    let (mut left, mut right) = Port::memory_pair().unwrap();
    assert_eq!((left.mode(), left.explain().evidence), (Mode::Memory, Evidence::Copied(Cause::MemoryPort)));
    for round in 0..500_u32 {
        let packets: Vec<Vec<u8>> = (0..40)
            .map(|i| vec![(round + i) as u8; 1 + (round as usize * 7 + i as usize * 31) % 1500])
            .collect();
        send_packets(&mut left, &packets);
        let received: Vec<Vec<u8>> =
            right.receiver().receive().unwrap().map(|packet| packet.to_vec()).collect();
        assert_eq!(received, packets);
    }
    assert_no_frame_in_use(&left);
    assert_no_frame_in_use(&right);
    assert_eq!(right.receiver().stats().faults, 0);
}

#[test]
fn echoed_frames_are_changed_in_place_and_return() {
    let (mut left, mut right) = Port::memory_pair().unwrap();
    for _ in 0..300 {
        send_packets(&mut left, &[b"ping"; 30]);
        let (receiver, sender) = right.halves();
        for mut packet in receiver.receive().unwrap() {
            packet.copy_from_slice(b"pong");
            sender.send(packet.take()).unwrap();
        }
        sender.flush().unwrap();
        let back = left.receiver().receive().unwrap();
        assert_eq!(back.map(|packet| assert_eq!(&*packet, b"pong")).count(), 30);
    }
    assert_no_frame_in_use(&left);
    assert_no_frame_in_use(&right);
}

#[test]
fn frames_return_from_other_threads_and_by_recycling() {
    let (mut left, mut right) = Port::memory_pair().unwrap();
    let (away, dropper) = std::sync::mpsc::channel::<Frame>();
    let dropper = std::thread::spawn(move || dropper.into_iter().map(|frame| frame.len()).sum::<usize>());
    for _ in 0..300 {
        send_packets(&mut left, &["one", "two!", "three"]);
        let mut taken: Vec<Frame> = right.receiver().receive().unwrap().map(|packet| packet.take()).collect();
        away.send(taken.pop().unwrap()).unwrap();
        right.receiver().recycle(taken.pop().unwrap());
        drop(taken.pop());
    }
    drop(away);
    assert_eq!(dropper.join().unwrap(), 300 * 5);
    assert_no_frame_in_use(&right);
}

#[test]
fn halves_on_two_threads_work_under_back_pressure() {
    const PACKETS: u64 = 50_000;
    let (left, right) =
        Port::memory_builder().frame_count(256, 64).ring_sizes(256, 64).memory_pair().unwrap();
    let (mut source, area) = (left.split().1, right.area().clone());
    let (mut receiver, mut answerer) = right.split();
    let sending = std::thread::spawn(move || {
        let mut next = 0_u64;
        while next < PACKETS {
            if let Some(mut frame) = source.buffer() {
                frame.fill(&next.to_le_bytes()).unwrap();
                match source.send(frame) {
                    Ok(()) => next += 1,
                    Err(rejected) => assert!(matches!(rejected.reason, nocopy::Reason::Full)),
                }
            }
            if next.is_multiple_of(32) {
                source.flush().unwrap();
            }
        }
        source.flush().unwrap();
        source
    });
    let (mut seen, mut last) = (0_u64, None);
    loop {
        let is_last = sending.is_finished();
        let mut count = 0;
        for packet in receiver.receive_timeout(Duration::from_millis(20)).unwrap() {
            let number = u64::from_le_bytes(packet[..].try_into().unwrap());
            assert!(last.is_none_or(|last| number > last), "{number} after {last:?}");
            last = Some(number);
            count += 1;
            drop(answerer.send(packet.take()));
        }
        answerer.flush().unwrap();
        seen += count;
        if count == 0 && is_last {
            break;
        }
    }
    let source = sending.join().unwrap();
    let lost = receiver.stats().dropped;
    assert_eq!(seen + lost, PACKETS, "every packet arrives or is counted");
    assert!(seen > 0);
    drop(source);
    drop((receiver, answerer));
    let balance = area.balance();
    assert!(balance.is_balanced() && balance.free == u64::from(balance.total), "{balance}");
}

#[test]
fn a_full_receiver_drops_and_counts() {
    let (mut left, mut right) =
        Port::memory_builder().frame_count(16, 64).ring_sizes(16, 64).memory_pair().unwrap();
    send_packets(&mut left, &[b"x"; 40]);
    assert_eq!(right.receiver().receive().unwrap().count(), 16);
    assert_eq!(right.receiver().stats().dropped, 24);
    assert_no_frame_in_use(&right);
}

#[test]
fn refused_sends_return_the_frame_and_the_reason() {
    let (mut left, _right) = Port::memory_builder().frame_count(8, 8).ring_sizes(8, 4).memory_pair().unwrap();
    let (mut other, _) = Port::memory_pair().unwrap();
    let empty = left.sender().buffer().unwrap();
    assert!(matches!(left.sender().send(empty).unwrap_err().reason, Reason::Empty));
    let mut foreign = other.sender().buffer().unwrap();
    foreign.fill(b"foreign").unwrap();
    let rejected = left.sender().send(foreign).unwrap_err();
    assert!(matches!(rejected.reason, Reason::ForeignArea));
    assert_eq!(&*rejected.item, b"foreign");
    let mut frames: Vec<Frame> = (0..8).filter_map(|_| left.sender().buffer()).collect();
    frames.iter_mut().for_each(|frame| frame.fill(b"x").unwrap());
    let mut fifth = frames.split_off(4);
    frames.into_iter().for_each(|frame| left.sender().send(frame).unwrap());
    let rejected = left.sender().send(fifth.pop().unwrap()).unwrap_err();
    assert!(matches!(rejected.reason, Reason::Full));
    fifth.push(rejected.item);
    left.sender().flush().unwrap();
    fifth.into_iter().for_each(|frame| left.sender().send(frame).unwrap());
    left.sender().flush().unwrap();
    assert_no_frame_in_use(&left);
}

#[test]
fn ports_of_one_area_forward_frames_without_a_copy() {
    let area =
        nocopy::Area::new(nocopy::area::AreaConfig { frame_count: 256, ..Default::default() }).unwrap();
    let pair =
        || Port::memory_builder().area(&area).frame_count(32, 32).ring_sizes(32, 32).memory_pair().unwrap();
    let ((mut source, mut middle_in), (mut middle_out, mut sink)) = (pair(), pair());
    for _ in 0..100 {
        send_packets(&mut source, &[b"through"; 10]);
        let mut addresses = Vec::new();
        for packet in middle_in.receiver().receive().unwrap() {
            addresses.push(packet.as_ptr());
            let frame = packet.take();
            assert_eq!(frame.as_ptr(), *addresses.last().unwrap());
            middle_out.sender().send(frame).unwrap();
        }
        middle_out.sender().flush().unwrap();
        assert_eq!(sink.receiver().receive().unwrap().count(), 10);
    }
    for port in [&source, &middle_in, &middle_out, &sink] {
        port.balance();
    }
    assert_no_frame_in_use(&source);
    drop((source, middle_in, middle_out, sink));
    assert_eq!(area.balance().free, 256);
}

#[test]
fn frames_outlive_the_port_and_its_area() {
    let (mut left, mut right) = Port::memory_pair().unwrap();
    send_packets(&mut left, &[b"survivor"]);
    let frame = right.receiver().receive().unwrap().next().unwrap().take();
    drop((left, right));
    let reader = std::thread::spawn(move || assert_eq!(&*frame, b"survivor"));
    reader.join().unwrap();
}

#[test]
fn sending_to_a_closed_peer_loses_no_frame() {
    let (mut left, right) = Port::memory_pair().unwrap();
    drop(right);
    send_packets(&mut left, &[b"nobody"; 5]);
    assert_no_frame_in_use(&left);
    assert_eq!(left.sender().in_flight(), 0);
}

#[test]
fn every_wait_on_a_memory_port_delivers_and_times_out() {
    let (mut left, mut right) = Port::memory_pair().unwrap();
    let ways = [
        Wait::Spin,
        Wait::Interrupt,
        Wait::Adaptive { spin: Duration::from_micros(50) },
        Wait::Coalesced { packets: 64, delay: Duration::from_millis(1) },
    ];
    for wait in ways {
        right.receiver().set_wait(wait);
        let before = Instant::now();
        assert!(right.receiver().receive_timeout(Duration::from_millis(20)).unwrap().is_empty());
        assert!(before.elapsed() >= Duration::from_millis(20), "{wait:?} returned early");
        let waiter = ObservedThread::this_thread();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                waiter.wait_until_asleep_or_spinning();
                send_packets(&mut left, &[b"late"]);
            });
            assert_eq!(right.receiver().receive_timeout(PATIENCE).unwrap().count(), 1, "{wait:?}");
        });
    }
}

#[test]
fn arm_reports_whether_packets_wait() {
    let (mut left, mut right) = Port::memory_pair().unwrap();
    assert!(!right.receiver().arm().unwrap());
    send_packets(&mut left, &[b"x"]);
    assert!(right.receiver().arm().unwrap());
    assert_eq!(right.receiver().try_receive().unwrap().count(), 1);
    assert!(!right.receiver().arm().unwrap());
}

#[test]
fn remaining_packets_are_in_the_next_batch() {
    let (mut left, mut right) = Port::memory_pair().unwrap();
    send_packets(&mut left, &[b"1", b"2", b"3"]);
    assert_eq!(&*right.receiver().receive().unwrap().next().unwrap(), b"1");
    let rest: Vec<Vec<u8>> = right.receiver().receive().unwrap().map(|packet| packet.to_vec()).collect();
    assert_eq!(rest, [b"2", b"3"]);
    assert_no_frame_in_use(&right);
}

#[test]
fn returned_frames_are_lent_again_without_traffic() {
    let (mut left, mut right) =
        Port::memory_builder().frame_count(4, 64).ring_sizes(4, 64).memory_pair().unwrap();
    send_packets(&mut left, &[b"keep"; 4]);
    let kept: Vec<Frame> = right.receiver().receive().unwrap().map(|packet| packet.take()).collect();
    send_packets(&mut left, &[b"lost"]);
    assert!(right.receiver().try_receive().unwrap().is_empty());
    drop(kept); // onto the return list: the next wait must put them back into the fill ring
    assert!(right.receiver().receive_timeout(Duration::from_millis(1)).unwrap().is_empty());
    send_packets(&mut left, &[b"back"]);
    assert_eq!(right.receiver().receive().unwrap().count(), 1);
}

#[test]
fn invalid_port_settings_are_refused() {
    let text = |result: Result<(Port, Port), nocopy::port::OpenError>| result.unwrap_err().to_string();
    let rings = text(Port::memory_builder().ring_sizes(100, 64).memory_pair());
    assert!(rings.contains("try 128"), "{rings}");
    assert!(text(Port::memory_builder().batch(0).memory_pair()).contains("batch of 0"));
    let area = nocopy::Area::new(nocopy::area::AreaConfig { frame_count: 16, ..Default::default() }).unwrap();
    assert!(text(Port::memory_builder().area(&area).memory_pair()).contains("make the area larger"));
    assert_eq!(area.balance().free, 16, "a refused port leaks no frame");
}

#[test]
fn frames_returned_during_a_wait_are_lent_again() {
    let coalesced = Wait::Coalesced { packets: 64, delay: Duration::from_millis(1) };
    for wait in [Wait::Spin, Wait::Interrupt, coalesced] {
        let builder = Port::memory_builder().frame_count(4, 64).ring_sizes(4, 64).wait(wait);
        let (mut left, right) = builder.memory_pair().unwrap();
        let area = right.area().clone();
        let mut receiver = right.split().0;
        send_packets(&mut left, &[b"keep"; 4]);
        let kept: Vec<Frame> = receiver.receive().unwrap().map(|packet| packet.take()).collect();
        assert_eq!((kept.len(), area.balance().lent_rx), (4, 0), "no frame to receive into");
        let waiter = ObservedThread::this_thread();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                waiter.wait_until_asleep_or_spinning();
                drop(kept);
                // Nothing is sent meanwhile: only the wait itself can lend them.
                wait_until("lent again", || area.balance().lent_rx == 4);
                send_packets(&mut left, &[b"late"]);
            });
            let late: Vec<_> = receiver.receive().unwrap().map(|packet| packet.to_vec()).collect();
            assert_eq!(late, [b"late"], "{wait:?}");
        });
    }
}

#[test]
fn a_packet_longer_than_the_peers_frames_is_refused() {
    let (mut left, _right) = Port::memory_pair().unwrap();
    let mut frame = left.sender().buffer().unwrap();
    frame.fill(&[0; 1792]).unwrap();
    frame.prepend(14).unwrap();
    assert!(matches!(left.sender().send(frame).unwrap_err().reason, Reason::TooLong { bytes_max: 1792 }));
}

#[test]
fn a_forgotten_batch_loses_no_frame() {
    let area = nocopy::Area::new(nocopy::area::AreaConfig { frame_count: 64, ..Default::default() }).unwrap();
    let builder = Port::memory_builder().area(&area).frame_count(8, 8).ring_sizes(8, 8);
    let (mut left, mut right) = builder.memory_pair().unwrap();
    send_packets(&mut left, &[b"x"; 5]);
    let mut batch = right.receiver().receive().unwrap();
    while batch.next().is_some() {}
    std::mem::forget(batch);
    drop((left, right));
    assert_eq!((area.balance().free, area.balance().is_balanced()), (64, true), "{}", area.balance());
}

#[test]
fn an_infinite_timeout_never_expires() {
    let (mut left, mut right) = Port::memory_pair().unwrap();
    send_packets(&mut left, &[b"x"]);
    right.receiver().set_wait(Wait::Adaptive { spin: Duration::MAX });
    assert_eq!(right.receiver().receive_timeout(Duration::MAX).unwrap().count(), 1);
    assert!(left.sender().drain(Duration::MAX).unwrap());
}

#[test]
fn queued_drafts_are_sent_and_others_are_free_again() {
    let (mut left, mut right) = Port::memory_pair().unwrap();
    let mut drafts = left.sender().drafts(4, 9).unwrap();
    for number in 0..4_u8 {
        let mut draft = drafts.next_draft().unwrap();
        draft.fill(number);
        draft.truncate(8 + usize::from(number));
        if number != 1 {
            draft.queue();
        }
    }
    assert!(drafts.remaining() == 0 && drafts.next_draft().is_none());
    drop(drafts);
    let mut drafts = left.sender().drafts(1, 5).unwrap();
    let mut empty = drafts.next_draft().unwrap();
    empty.truncate(0);
    empty.queue(); // no packet
    drop(drafts);
    left.sender().flush().unwrap();
    let received: Vec<Vec<u8>> = right.receiver().receive().unwrap().map(|packet| packet.to_vec()).collect();
    assert_eq!(received, [vec![0; 8], vec![2; 9], vec![3; 9]]);
    assert_no_frame_in_use(&left);
}

#[test]
fn a_panic_drops_only_the_draft_being_written() {
    let (mut left, mut right) = Port::memory_pair().unwrap();
    let sender = left.sender();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut drafts = sender.drafts(3, 5).unwrap();
        let mut whole = drafts.next_draft().unwrap();
        whole.copy_from_slice(b"whole");
        whole.queue();
        let mut half = drafts.next_draft().unwrap();
        half.copy_from_slice(b"longer than the draft");
        half.queue();
    }));
    assert!(outcome.is_err());
    left.sender().flush().unwrap();
    let received: Vec<Vec<u8>> = right.receiver().receive().unwrap().map(|packet| packet.to_vec()).collect();
    assert_eq!(received, [b"whole"]);
    assert_no_frame_in_use(&left);
}

#[test]
fn drafts_stop_at_a_full_ring_and_continue_after_flush() {
    let (mut left, mut right) = Port::memory_pair().unwrap();
    let (mut sent, mut received) = (0, 0);
    while sent < 5000 {
        let mut drafts = left.sender().drafts(usize::MAX, 4).unwrap();
        assert!(drafts.remaining() > 0);
        while let Some(mut draft) = drafts.next_draft() {
            draft.copy_from_slice(&u32::to_ne_bytes(sent));
            draft.queue();
            sent += 1;
        }
        drop(drafts);
        assert_eq!(left.sender().drafts(1, 4).unwrap().remaining(), 0);
        left.sender().flush().unwrap();
        for packet in right.receiver().try_receive().unwrap() {
            assert_eq!(*packet, u32::to_ne_bytes(received));
            received += 1;
        }
        while let Some(packet) = right.receiver().try_receive().unwrap().next() {
            assert_eq!(*packet, u32::to_ne_bytes(received));
            received += 1;
        }
    }
    assert_eq!(received, sent);
    assert_no_frame_in_use(&left);
}

#[test]
fn forgotten_drafts_stay_in_the_balance() {
    let area =
        nocopy::Area::new(nocopy::area::AreaConfig { frame_count: 256, ..Default::default() }).unwrap();
    let builder = Port::builder("unused").area(&area).frame_count(32, 32).ring_sizes(32, 32);
    let (mut left, right) = builder.memory_pair().unwrap();
    let mut drafts = left.sender().drafts(8, 4).unwrap();
    drafts.next_draft().unwrap().queue();
    std::mem::forget(drafts);
    left.sender().flush().unwrap();
    let balance = left.balance();
    assert!(balance.is_balanced() && balance.in_use == 8, "{balance}");
    drop((left, right));
    // The queued one returns; the others are lost, as a forgotten frame is.
    assert_eq!((area.balance().in_use, area.balance().is_balanced()), (7, true), "{}", area.balance());
}

#[test]
fn drafts_use_returned_frames() {
    let builder = Port::memory_builder().frame_count(8, 8).ring_sizes(8, 8);
    let (mut left, _right) = builder.memory_pair().unwrap();
    let frames: Vec<Frame> = std::iter::from_fn(|| left.sender().buffer()).collect();
    assert_eq!((frames.len(), left.sender().drafts(8, 4).unwrap().remaining()), (8, 0));
    drop(frames);
    assert_eq!(left.sender().drafts(8, 4).unwrap().remaining(), 8);
    assert_no_frame_in_use(&left);
}

/// As a protocol with retransmissions uses them: the same frames are sent again and again without a copy.
#[test]
fn kept_frames_return_with_contents_and_are_sent_again() {
    let (mut left, mut right) = Port::memory_pair().unwrap();
    let mut window: Vec<Frame> = (0..40_u8)
        .map(|number| {
            let mut frame = left.sender().buffer().expect("a free frame");
            frame.fill(&[number; 200]).expect("fits");
            frame
        })
        .collect();
    let places: Vec<*const u8> = window.iter().map(|frame| frame.as_ptr()).collect();
    for round in 0..200_usize {
        for frame in window.drain(..) {
            left.sender().send_kept(frame).expect("sent");
        }
        // Other frames sent in between return to the pool, also those of drafts, which use up free ones.
        let mut drafts = left.sender().drafts(round % 24, 7).unwrap();
        let drafted = drafts.remaining();
        while let Some(mut draft) = drafts.next_draft() {
            draft.copy_from_slice(b"drafted");
            draft.queue();
        }
        drop(drafts);
        left.sender().flush().unwrap();
        while let Some(frame) = left.sender().buffer() {
            window.push(frame); // looks for completions when it runs out, and must not lose those that are kept
        }
        window.drain(..).for_each(|frame| left.sender().recycle(frame));
        let balance = left.balance();
        assert!(balance.is_balanced() && balance.in_use == 40 && balance.lent_tx == 0, "{balance}");
        let received: Vec<Vec<u8>> =
            right.receiver().receive().unwrap().map(|packet| packet.to_vec()).collect();
        assert_eq!(received.len(), 40 + drafted);
        for (number, packet) in received[..40].iter().enumerate() {
            assert_eq!(*packet, [number as u8; 200]);
        }
        window.extend(take_completed(left.sender()));
        assert_eq!(window.len(), 40);
        assert!(window.iter().map(|frame| frame.as_ptr()).eq(places.iter().copied()));
        assert!(left.sender().completed().is_none());
    }
    drop(window);
    assert_no_frame_in_use(&left);
    assert_eq!(left.sender().stats().faults, 0);
}

#[test]
fn a_refused_kept_frame_is_no_longer_kept() {
    let builder = Port::memory_builder().ring_sizes(64, 16).frame_count(64, 64);
    let (mut left, mut right) = builder.memory_pair().unwrap();
    let mut waiting = Vec::new();
    for number in 0..30_u8 {
        let mut frame = left.sender().buffer().unwrap();
        frame.fill(&[number; 64]).unwrap();
        match left.sender().send_kept(frame) {
            Ok(()) => {}
            Err(rejected) => {
                assert!(matches!(rejected.reason, Reason::Full));
                waiting.push(rejected.item);
            }
        }
    }
    assert_eq!(waiting.len(), 14);
    left.sender().flush().unwrap();
    assert_eq!(right.receiver().receive().unwrap().count(), 16);
    for frame in waiting {
        left.sender().send(frame).unwrap();
    }
    let empty = left.sender().buffer().unwrap();
    assert!(matches!(left.sender().send_kept(empty).unwrap_err().reason, Reason::Empty));
    left.sender().flush().unwrap();
    let back = take_completed(left.sender());
    assert_eq!(back.len(), 16, "those sent by send_packets() went home");
    assert!(back.iter().zip(0..).all(|(frame, number)| **frame == [number; 64]));
    drop(back);
    assert_no_frame_in_use(&left);
}

#[test]
fn kept_frames_outlive_the_port_and_unclaimed_ones_return() {
    let (mut left, right) = Port::memory_pair().unwrap();
    let total = left.balance().total;
    for number in 0..10_u8 {
        let mut frame = left.sender().buffer().unwrap();
        frame.fill(&[number; 64]).unwrap();
        left.sender().send_kept(frame).unwrap();
    }
    let area = left.area().clone();
    left.sender().flush().unwrap();
    let mut back = take_completed(left.sender());
    let mut again = back.split_off(5).into_iter();
    left.sender().send_kept(again.next().unwrap()).unwrap(); // queued when the port closes
    left.sender().send_kept(again.next().unwrap()).unwrap();
    drop((left, right));
    let balance = area.balance();
    assert!(balance.is_balanced() && balance.in_use == 8 && balance.lent_tx == 0, "{balance}");
    assert!(back.iter().chain(again.as_slice()).all(|frame| frame.len() == 64));
    drop((back, again));
    let balance = area.balance();
    assert!(balance.is_balanced() && balance.free == u64::from(total), "{balance}");
}

#[test]
fn a_closed_sender_refuses_sends_and_loses_no_frame() {
    let (mut left, mut right) = Port::memory_builder().multi_buffer(true).memory_pair().unwrap();
    let frame = || {
        let mut frame = left.sender().buffer().unwrap();
        frame.fill(&[7; 64]).unwrap();
        frame
    };
    let mut frames = std::iter::repeat_with(frame).take(5).collect::<Vec<_>>().into_iter();
    let mut next = || frames.next().unwrap();
    left.sender().send(next()).unwrap();
    assert!(left.sender().close(PATIENCE).unwrap());
    assert_eq!(right.receiver().receive().unwrap().count(), 1, "what was queued has arrived");

    let sender = left.sender();
    assert!(matches!(sender.send(next()).unwrap_err().reason, Reason::Finished));
    assert!(matches!(sender.send_kept(next()).unwrap_err().reason, Reason::Finished));
    assert!(matches!(sender.send_chain(Chain::from(next())).unwrap_err().reason, Reason::Finished));
    assert!(matches!(sender.send_with(next(), Request::default()).unwrap_err().reason, Reason::Finished));
    assert!(matches!(sender.send_copy(&[7; 64]), Err(Reason::Finished)));
    assert!(matches!(sender.drafts(1, 64), Err(Reason::Finished)));
    assert!(sender.flush_timeout(PATIENCE).unwrap() && sender.in_flight() == 0);
    assert_eq!(sender.stats().moved, 1);
    assert_no_frame_in_use(&left);
    assert!(right.receiver().try_receive().unwrap().is_empty());
}
