//! Arrival times by the clock of the redirecting kernel, on veth pairs in private namespaces.

use crate::common::{PATIENCE, assert_settled, lab, open, open_with, packet, send};
use nocopy::integration::PortTuning;
use nocopy::integration::xdp::Generator;
use nocopy::metadata::{Clock, Timestamp, Unsupported};
use nocopy::port::PortBuilder;
use nocopy::{Mode, Port};
use nocopy_lab::Lab;
use rustix::time::{ClockId, clock_gettime};

const NATIVE_AND_GENERIC: [Mode; 2] = [Mode::XdpCopyNative, Mode::XdpCopyGeneric];

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

fn arrivals(port: &mut Port, count: usize) -> Vec<Result<Timestamp, Unsupported>> {
    let mut said = Vec::new();
    while said.len() < count {
        let before = said.len();
        let batch = port.receiver().receive_timeout(PATIENCE).unwrap();
        said.extend(batch.map(|packet| {
            packet.prefetch_arrival();
            packet.arrival().timestamp
        }));
        assert!(said.len() > before, "only {before} of {count} came");
    }
    said
}

#[test]
fn every_packet_has_its_arrival_time_in_both_programs() {
    for mode in NATIVE_AND_GENERIC {
        let lab = lab!();
        let mut left = open(lab.left());
        // Few frames, so that each is used again and again, and its note must belong to its present packet.
        let few = |builder: PortBuilder| {
            builder
                .mode(mode)
                .tuning(PortTuning { arrival_times: true, ..PortTuning::default() })
                .frame_count(8, 8)
                .ring_sizes(8, 8)
        };
        let mut right = open_with(lab.right(), few).unwrap();
        let mut last = 0;
        for round in 0..20 {
            let sent = now_ns();
            send(&mut left, &(0..4).map(|i| packet(lab.right(), round * 4 + i, 60)).collect::<Vec<_>>());
            let times = arrivals(&mut right, 4);
            let received = now_ns();
            for time in times {
                let Ok(Timestamp { ns, clock: Clock::Monotonic, .. }) = time else {
                    panic!("{mode}: {time:?}")
                };
                assert!(ns > last, "{mode}: not in order");
                last = ns;
                assert!((sent..=received).contains(&ns), "{mode}: {sent} {ns} {received}");
            }
        }
        assert_settled(&mut right);
    }
}

#[test]
fn earlier_metadata_does_not_prevent_the_time() {
    // With GRO veth delivers frames that XDP redirects; the generator's have four bytes of metadata.
    let lab = lab!(Lab::builder().gro_right(true));
    for asks_driver in [false, true] {
        let mut right = open_with(lab.right(), |builder| {
            builder
                .mode(Mode::XdpCopyNative)
                .receive_metadata(asks_driver)
                .tuning(PortTuning { arrival_times: true, ..PortTuning::default() })
        })
        .unwrap();
        let frame = packet(lab.right(), 1, 60);
        lab.left().namespace().run(|| {
            let generator = Generator::new(lab.left().interface()).unwrap();
            generator.send(&frame, 4).unwrap();
        });
        for time in arrivals(&mut right, 4) {
            assert_eq!(time.map(|time| time.clock), Ok(Clock::Monotonic), "driver asked: {asks_driver}");
        }
    }
}

#[test]
fn without_driver_times_the_kernels_are_used() {
    let lab = lab!();
    let mut left = open(lab.left());
    let both = |builder: PortBuilder| {
        builder
            .mode(Mode::XdpCopyNative)
            .receive_metadata(true)
            .tuning(PortTuning { arrival_times: true, ..PortTuning::default() })
    };
    let mut right = open_with(lab.right(), both).unwrap();
    send(&mut left, &[packet(lab.right(), 1, 60)]);
    let arrival = right.receiver().receive_timeout(PATIENCE).unwrap().next().expect("a packet").arrival();
    let time = arrival.timestamp.expect("a time");
    assert_eq!(time.clock, Clock::Monotonic, "veth stamps no packet that no card has stamped");
    drop(right);
    let generic = |builder: PortBuilder| builder.mode(Mode::XdpCopyGeneric).receive_metadata(true);
    let mut right = open_with(lab.right(), |builder| {
        generic(builder).tuning(PortTuning { arrival_times: true, ..PortTuning::default() })
    })
    .unwrap();
    send(&mut left, &[packet(lab.right(), 2, 60)]);
    let arrival = right.receiver().receive_timeout(PATIENCE).unwrap().next().expect("a packet").arrival();
    assert_eq!(arrival.timestamp.unwrap().clock, Clock::Monotonic);
    assert_eq!(arrival.hash, Err(Unsupported::Mode(Mode::XdpCopyGeneric)));
}

#[test]
fn ports_sharing_a_program_get_notes_only_on_request() {
    let lab = lab!(Lab::builder().queues(2));
    let mut senders: Vec<_> =
        (0..2).map(|queue| open_with(lab.left(), |builder| builder.queue(queue)).unwrap()).collect();
    let mut said = |first: bool, second: bool| {
        let on = |queue, asks| {
            open_with(lab.right(), move |builder| {
                builder
                    .mode(Mode::XdpCopyNative)
                    .queue(queue)
                    .tuning(PortTuning { arrival_times: asks, ..PortTuning::default() })
            })
            .unwrap()
        };
        let mut ports = [on(0, first), on(1, second)];
        senders
            .iter_mut()
            .zip(&mut ports)
            .map(|(sender, port)| {
                send(sender, &[packet(lab.right(), 1, 60)]);
                arrivals(port, 1)[0].map(|time| time.clock)
            })
            .collect::<Vec<_>>()
    };
    let (time, unasked) = (Ok(Clock::Monotonic), Err(Unsupported::NotRequested));
    assert_eq!(said(true, true), [time, time]);
    assert_eq!(said(true, false), [time, unasked]);
    assert_eq!(said(false, true), [unasked, Err(Unsupported::OtherProgram)]);
}
