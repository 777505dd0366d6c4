//! Several queues of one interface used as one, on veth pairs with as many queues.

use std::os::fd::AsFd;
use std::time::Duration;

use crate::common;
use crate::common::waiting::ObservedThread;
use crate::common::{
    PATIENCE, SECOND, lab, numbered_packet, open_port_with, open_queues, send_numbered_on_queue, send_packets,
};
use nocopy::integration::PortTuning;
use nocopy::port::{OpenError, PortBuilder, Queues};
use nocopy::{Frame, Mode, Port, Wait};
use nocopy_lab::patience::wait_until;
use nocopy_lab::{End, Lab};

#[test]
fn every_wait_serves_the_queues_in_rotation() {
    let coalesced = Wait::Coalesced { packets: 64, delay: Duration::from_millis(2) };
    let adaptive = Wait::Adaptive { spin: Duration::from_micros(100) };
    for wait in [Wait::Interrupt, Wait::Spin, adaptive, coalesced] {
        let lab = lab!(Lab::builder().queues(3));
        let mut queues = open_queues(lab.right(), |builder| builder.wait(wait).batch(8));
        for queue in 0..3 {
            send_numbered_on_queue(lab.left(), queue, lab.right(), queue * 100, 40);
        }
        // The order of turns is visible only if all queues have packets.
        wait_until("packets on every queue", || {
            queues.ports().iter_mut().all(|port| port.receiver().arm().unwrap())
        });
        let (mut numbers, mut order) = (Vec::new(), Vec::new());
        while numbers.len() < 120 {
            let before = numbers.len();
            let batch = queues.receive_timeout(PATIENCE).unwrap();
            let queue = batch.queue();
            for packet in batch {
                let number = u32::from_be_bytes(packet[14..18].try_into().unwrap());
                assert_eq!(number / 100, queue, "{wait:?}: on the queue it was sent to");
                numbers.push(number);
            }
            assert!(numbers.len() > before, "{wait:?}: only {before} of 120 came");
            order.push(queue);
        }
        numbers.sort_unstable();
        let all: Vec<u32> = (0..3).flat_map(|queue| queue * 100..queue * 100 + 40).collect();
        assert_eq!(numbers, all, "{wait:?}");
        assert!(order.windows(2).take(6).all(|pair| pair[0] != pair[1]), "{wait:?}: not in turns: {order:?}");
        assert!(queues.receive_timeout(Duration::from_millis(5)).unwrap().is_empty());
        let balance = common::area_balance(&mut queues);
        assert!(balance.is_balanced() && balance.in_use == 0, "{balance}");
    }
}

#[test]
fn frames_of_one_queue_are_sent_by_another() {
    let lab = lab!(Lab::builder().queues(2));
    let mut queues = open_queues(lab.right(), |builder| builder);
    let mut back = open_queues(lab.left(), |builder| builder);
    send_ten_packets(&mut back, lab.right());
    let frames = take_frames_of_queue(&mut queues, 0, 10);
    let other = &mut queues.ports()[1];
    frames.into_iter().for_each(|frame| other.sender().send(frame).unwrap());
    assert!(other.sender().drain(PATIENCE).unwrap());
    drop(take_frames_of_queue(&mut back, 1, 10));
    let area = queues.ports()[0].area().clone();
    assert!(common::area_balance(&mut queues).is_balanced());
    drop(queues);
    assert_eq!(area.balance().free + u64::from(area.balance().retired), u64::from(area.config().frame_count));
}

#[test]
fn queues_are_explained_one_by_one() {
    let lab = lab!(Lab::builder().queues(2));
    let mut queues = open_queues(lab.right(), |builder| builder);
    let (all, each) =
        (queues.explain(), queues.ports().iter().map(|port| port.explain()).collect::<Vec<_>>());
    assert_eq!(all.to_string(), format!("{}\n{}", each[0], each[1]));
    assert_eq!(all.refusals.len(), each[0].refusals.len() + each[1].refusals.len());
    assert_eq!((all.evidence, all.filter), (each[0].evidence, None));
    let of_receiver = queues.ports()[1].receiver().explain();
    assert_eq!(of_receiver.to_string(), each[1].to_string(), "a half says what its port says");
}

/// That many packets, all of one queue.
fn take_frames_of_queue(queues: &mut Queues, from: u32, count: usize) -> Vec<Frame> {
    let mut frames = Vec::new();
    while frames.len() < count {
        let before = frames.len();
        let batch = queues.receive_timeout(PATIENCE).unwrap();
        let queue = batch.queue();
        frames.extend(batch.map(|packet| packet.take()));
        assert!(frames.len() > before, "only {before} of {count} came");
        assert_eq!(queue, from);
    }
    assert_eq!(frames.len(), count);
    frames
}

fn send_ten_packets(queues: &mut Queues, to: &End) {
    let packets: Vec<_> = (0..10).map(|number| numbered_packet(to, number, 64)).collect();
    send_packets(&mut queues.ports()[0], &packets);
}

#[test]
fn each_queue_can_have_a_thread() {
    let lab = lab!(Lab::builder().queues(2));
    let ports = Vec::from(open_queues(lab.right(), |builder| builder));
    let threads: Vec<_> = ports
        .into_iter()
        .map(|mut port| {
            std::thread::spawn(move || {
                let mut count = 0;
                while count < 50 {
                    count += port.receiver().receive_timeout(PATIENCE).unwrap().count();
                }
                (port.queue(), count)
            })
        })
        .collect();
    for queue in 0..2 {
        send_numbered_on_queue(lab.left(), queue, lab.right(), 0, 50);
    }
    let counts: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_eq!(counts, [(0, 50), (1, 50)]);
}

#[test]
fn one_descriptor_reports_all_queues() {
    use rustix::event::{PollFd, PollFlags, Timespec};
    let lab = lab!(Lab::builder().queues(2));
    let mut queues = open_queues(lab.right(), |builder| builder);
    let ready = |queues: &Queues, ms: i64| {
        let timeout = Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
        let waited = PollFd::from_borrowed_fd(queues.as_fd(), PollFlags::IN);
        rustix::event::poll(&mut [waited], Some(&timeout)).unwrap() > 0
    };
    assert!(!queues.arm().unwrap() && !ready(&queues, 1));
    send_numbered_on_queue(lab.left(), 1, lab.right(), 0, 1);
    assert!(ready(&queues, 60_000) && queues.arm().unwrap());
    assert_eq!(queues.receive().unwrap().queue(), 1);
}

#[test]
fn queue_ranges_open_and_invalid_ones_are_refused() {
    let lab = lab!(Lab::builder().queues(3));
    let end = lab.right();
    let open = |range| end.namespace().run(|| Port::builder(end.interface()).open_queues(range));
    let mut some = open(1..3).unwrap();
    assert_eq!(some.ports().iter().map(Port::queue).collect::<Vec<_>>(), [1, 2]);
    assert!(matches!(open(2..2).unwrap_err(), OpenError::NoQueue { .. }));
    assert!(matches!(open(0..3).unwrap_err(), OpenError::QueueTaken { queue: 1, .. }));
    assert!(matches!(open(0..4).unwrap_err(), OpenError::QueueOutOfRange { queue: 3, queues: 3, .. }));
    assert!(matches!(open(3..5).unwrap_err(), OpenError::QueueOutOfRange { queue: 3, queues: 3, .. }));
    let ring = open_queues(end, |builder| builder.mode(Mode::PacketRing));
    assert_eq!(Vec::from(ring).len(), 3);
}

#[test]
fn a_removed_interface_is_an_error_for_all_queues() {
    let coalesced = Wait::Coalesced { packets: 8, delay: Duration::from_millis(1) };
    for mode in [Mode::XdpCopyNative, Mode::PacketRing] {
        for wait in [Wait::Spin, Wait::Interrupt, coalesced] {
            let lab = lab!(Lab::builder().queues(2));
            let mut queues = open_queues(lab.right(), |builder| builder.mode(mode).wait(wait));
            lab.right().set_down().unwrap();
            let error = (0..20).find_map(|_| queues.receive_timeout(SECOND).err()).expect("an error");
            assert!(error.to_string().contains("the interface is down"), "{mode}, {wait:?}: {error}");
            lab.right().bring_interface_up().unwrap();
            lab.wait_for_carrier().unwrap();
            send_numbered_on_queue(lab.left(), 0, lab.right(), 0, 5);
            let mut count = 0;
            while count < 5 {
                let batch =
                    queues.receive_timeout(PATIENCE).expect("it goes on, and tells of nothing that is past");
                let came = batch.count();
                assert!(came > 0, "{mode}, {wait:?}");
                count += came;
            }
            lab.delete_pair().unwrap();
            let error = (0..20).find_map(|_| queues.receive_timeout(SECOND).err()).expect("an error");
            assert!(error.to_string().contains("the interface "), "{mode}, {wait:?}: {error}");
        }
    }
}

#[test]
fn packet_ring_queues_without_frames_lose_no_packet() {
    let lab = lab!(Lab::builder().queues(2));
    let small = |builder: PortBuilder| builder.mode(Mode::PacketRing).frame_count(4, 4).ring_sizes(64, 4);
    let mut queues = open_queues(lab.right(), small);
    send_numbered_on_queue(lab.left(), 0, lab.right(), 0, 10);
    let mut taken = Vec::new();
    while taken.len() < 4 {
        taken.extend(queues.receive_timeout(PATIENCE).unwrap().map(|packet| packet.take()));
    }
    assert!(queues.receive_timeout(Duration::from_millis(20)).unwrap().is_empty(), "no frame is free");
    std::mem::forget(queues.receive_timeout(Duration::from_millis(1)).unwrap()); // a batch of none
    let mut numbers: Vec<u32> = Vec::new();
    let number = |packet: &[u8]| u32::from_be_bytes(packet[14..18].try_into().unwrap());
    numbers.extend(taken.drain(..).map(|frame| number(&frame)));
    while numbers.len() < 10 {
        let before = numbers.len();
        numbers.extend(queues.receive_timeout(PATIENCE).unwrap().map(|packet| number(&packet)));
        assert!(numbers.len() > before, "only {before} of 10 came");
    }
    assert_eq!(numbers, (0..10).collect::<Vec<_>>());
}

fn is_readable(queues: &Queues) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec};
    let waited = PollFd::from_borrowed_fd(queues.as_fd(), PollFlags::IN);
    rustix::event::poll(&mut [waited], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

#[test]
fn another_thread_ends_every_kind_of_wait() {
    let coalesced = Wait::Coalesced { packets: 64, delay: Duration::from_millis(50) };
    let adaptive = Wait::Adaptive { spin: Duration::from_micros(100) };
    let lab = lab!(Lab::builder().queues(2));
    let mut queues = open_queues(lab.right(), |builder| builder);
    let waker = queues.waker().unwrap();
    for wait in [Wait::Interrupt, Wait::Spin, adaptive, coalesced] {
        queues.set_wait(wait);
        for during_the_wait in [false, true] {
            let (other, (said, hears)) = (waker.clone(), std::sync::mpsc::channel());
            let waiter = ObservedThread::this_thread();
            let thread = std::thread::spawn(move || {
                if during_the_wait {
                    waiter.wait_until_asleep_or_spinning();
                }
                other.wake();
                said.send(()).unwrap();
            });
            if !during_the_wait {
                hears.recv().unwrap();
                assert!(is_readable(&queues), "{wait:?}");
            }
            assert!(queues.receive().unwrap().is_empty(), "{wait:?}: without a wake it would wait for ever");
            thread.join().unwrap();
            waker.take_pending_wake(); // of a wake between flag and event there may be a rest
            assert!(!is_readable(&queues) && !waker.take_pending_wake(), "{wait:?}: heard");
        }
    }
}

#[test]
fn try_receive_does_not_wait_and_a_meter_counts() {
    let lab = lab!(Lab::builder().queues(2));
    let small =
        |builder: PortBuilder| builder.mode(Mode::XdpCopyNative).frame_count(16, 16).ring_sizes(16, 16);
    let mut queues = open_queues(lab.right(), small);
    let meter = queues.meter();
    assert!(queues.try_receive().unwrap().is_empty());
    send_numbered_on_queue(lab.left(), 0, lab.right(), 0, 40);
    send_numbered_on_queue(lab.left(), 1, lab.right(), 100, 4);
    wait_until("all 44 packets, of which most are dropped", || {
        let counted = meter.read_counts().unwrap().statistics.rx_lost();
        queues.ports().iter_mut().all(|port| port.receiver().arm().unwrap()) && counted == 24
    });
    let mut count = 0;
    let read = std::thread::scope(|scope| {
        // Another thread owns it while this one has a batch.
        let batch = queues.try_receive().unwrap();
        let read = scope.spawn(|| meter.read_counts().unwrap()).join().unwrap();
        count += batch.count();
        read
    });
    assert_eq!((read.received, read.statistics.rx_lost()), (0, 24));
    loop {
        let came = queues.try_receive().unwrap().count();
        count += came;
        if came == 0 && count >= 20 {
            break;
        }
    }
    assert_eq!((count, meter.read_counts().unwrap().received), (20, 20));
    drop(queues);
    assert_eq!(meter.read_counts().unwrap_err().kind(), std::io::ErrorKind::NotConnected);
}

#[test]
fn a_user_space_filter_applies_to_packets_already_in_the_rings() {
    let odd = nocopy::filter::compile("ether proto 0x88b5 and ether[17] & 1 = 1").unwrap();
    for mode in [Mode::XdpCopyNative, Mode::XdpCopyGeneric, Mode::PacketRing] {
        let lab = lab!(Lab::builder().queues(2));
        let mut queues = open_queues(lab.right(), |builder| {
            let builder = builder.mode(mode).ring_sizes(16_384, 256);
            builder.tuning(PortTuning { prepare_host_path: true, ..PortTuning::default() })
        });
        let mut host =
            open_port_with(lab.right(), |builder| builder.mode(Mode::PacketRing).ring_sizes(16_384, 256))
                .unwrap();
        let numbers = |queues: &mut Queues, count: usize| {
            let mut numbers = Vec::new();
            while numbers.len() < count {
                let before = numbers.len();
                let batch = queues.receive_timeout(PATIENCE).unwrap();
                numbers.extend(batch.map(|packet| u32::from_be_bytes(packet[14..18].try_into().unwrap())));
                assert!(numbers.len() > before, "{mode}: only {numbers:?} of {count}");
            }
            numbers.sort_unstable();
            numbers
        };
        // Packets in the rings already are filtered, too.
        send_numbered_on_queue(lab.left(), 0, lab.right(), 0, 10);
        wait_until("packets", || queues.arm().unwrap());
        queues.filter_in_user_space(Some(&odd)).unwrap();
        send_numbered_on_queue(lab.left(), 1, lab.right(), 10, 10);
        let came = lab.right().namespace().run(|| numbers(&mut queues, 10));
        assert_eq!(came, (1..20).step_by(2).collect::<Vec<_>>(), "{mode}");
        queues.filter_in_user_space(None).unwrap();
        send_numbered_on_queue(lab.left(), 0, lab.right(), 20, 4);
        let came = lab.right().namespace().run(|| numbers(&mut queues, 4));
        assert_eq!(came, (20..24).collect::<Vec<_>>(), "{mode}");
        let turned_away: u64 = queues
            .ports()
            .iter_mut()
            .map(|port| port.receiver().stats().get("filter_to_host").unwrap())
            .sum();
        assert_eq!(turned_away, 10, "{mode}: also after it has gone");
        let hosts = common::receive_packets(&mut host, 10);
        assert!(hosts.iter().all(|packet| mode == Mode::PacketRing || packet[17] % 2 == 0), "{mode}");
    }
}

/// After taking stops, earlier packets can still be received, and each packet goes either to a port or to the
/// host. The filter rejects the host's own packets.
#[test]
fn stopped_ports_leave_packets_to_the_host() {
    let of_the_test = nocopy::filter::compile("ether proto 0x88b5").unwrap();
    for mode in [Mode::XdpCopyNative, Mode::XdpCopyGeneric] {
        let lab = lab!(Lab::builder().queues(2));
        let opened = |builder: PortBuilder| builder.filter(&of_the_test);
        let mut queues = open_queues(lab.right(), |builder| opened(builder).mode(mode));
        let mut host = open_port_with(lab.right(), |builder| opened(builder).mode(Mode::PacketRing)).unwrap();
        for queue in 0..2 {
            send_numbered_on_queue(lab.left(), queue, lab.right(), queue * 10, 10);
        }
        wait_until("all packets", || queues.arrival_counts().1 == 20);
        assert!(queues.stop_taking(), "{mode}");
        for queue in 0..2 {
            send_numbered_on_queue(lab.left(), queue, lab.right(), 20 + queue * 10, 10);
        }
        let number = |packet: &[u8]| u32::from_be_bytes(packet[14..18].try_into().unwrap());
        let mut hosts: Vec<_> =
            common::receive_packets(&mut host, 20).iter().map(|packet| number(packet)).collect();
        hosts.sort_unstable();
        assert_eq!(hosts, (20..40).collect::<Vec<_>>(), "{mode}");
        let mut taken = Vec::new();
        while queues.arrival_counts().1 > 0 {
            taken.extend(queues.try_receive().unwrap().map(|packet| number(&packet)));
        }
        taken.sort_unstable();
        assert_eq!(taken, (0..20).collect::<Vec<_>>(), "{mode}");
    }
}
