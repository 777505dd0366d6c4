//! Arrival times by the clock of the redirecting kernel, on veth pairs in private namespaces.

use crate::common::{
    PATIENCE, assert_all_frames_returned, lab, numbered_packet, open_port, open_port_with, send_packets,
};
use nocopy::integration::PortTuning;
use nocopy::integration::xdp::Generator;
use nocopy::metadata::{Clock, Timestamp, Unsupported};
use nocopy::port::PortBuilder;
use nocopy::{Mode, Port};
use nocopy_lab::Lab;
use rustix::time::{ClockId, clock_gettime};

const NATIVE_AND_GENERIC: [Mode; 2] = [Mode::XdpCopyNative, Mode::XdpCopyGeneric];

fn monotonic_now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

fn receive_timestamps(port: &mut Port, count: usize) -> Vec<Result<Timestamp, Unsupported>> {
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
fn every_packet_has_its_arrival_time_in_native_and_generic_mode() {
    for mode in NATIVE_AND_GENERIC {
        let lab = lab!();
        let mut left = open_port(lab.left());
        // Few frames, so that each is used again and again, and its note must belong to its present packet.
        let few = |builder: PortBuilder| {
            builder
                .mode(mode)
                .tuning(PortTuning { arrival_times: true, ..PortTuning::default() })
                .frame_count(8, 8)
                .ring_sizes(8, 8)
        };
        let mut right = open_port_with(lab.right(), few).unwrap();
        let mut last = 0;
        for round in 0..20 {
            let sent = monotonic_now_ns();
            send_packets(
                &mut left,
                &(0..4).map(|i| numbered_packet(lab.right(), round * 4 + i, 60)).collect::<Vec<_>>(),
            );
            let times = receive_timestamps(&mut right, 4);
            let received = monotonic_now_ns();
            for time in times {
                let Ok(Timestamp { ns, clock: Clock::Monotonic, .. }) = time else {
                    panic!("{mode}: {time:?}")
                };
                assert!(ns > last, "{mode}: not in order");
                last = ns;
                assert!((sent..=received).contains(&ns), "{mode}: {sent} {ns} {received}");
            }
        }
        assert_all_frames_returned(&mut right);
    }
}

#[test]
fn packets_that_already_have_metadata_get_an_arrival_time() {
    // With GRO veth delivers frames that XDP redirects; the generator's have four bytes of metadata.
    let lab = lab!(Lab::builder().gro_right(true));
    for asks_driver in [false, true] {
        let mut right = open_port_with(lab.right(), |builder| {
            builder
                .mode(Mode::XdpCopyNative)
                .receive_metadata(asks_driver)
                .tuning(PortTuning { arrival_times: true, ..PortTuning::default() })
        })
        .unwrap();
        let frame = numbered_packet(lab.right(), 1, 60);
        lab.left().namespace().run(|| {
            let generator = Generator::new(lab.left().interface()).unwrap();
            generator.send(&frame, 4).unwrap();
        });
        for time in receive_timestamps(&mut right, 4) {
            assert_eq!(time.map(|time| time.clock), Ok(Clock::Monotonic), "driver asked: {asks_driver}");
        }
    }
}

#[test]
fn kernel_times_are_used_without_driver_times() {
    let lab = lab!();
    let mut left = open_port(lab.left());
    let both = |builder: PortBuilder| {
        builder
            .mode(Mode::XdpCopyNative)
            .receive_metadata(true)
            .tuning(PortTuning { arrival_times: true, ..PortTuning::default() })
    };
    let mut right = open_port_with(lab.right(), both).unwrap();
    send_packets(&mut left, &[numbered_packet(lab.right(), 1, 60)]);
    let arrival = right.receiver().receive_timeout(PATIENCE).unwrap().next().expect("a packet").arrival();
    let time = arrival.timestamp.expect("a time");
    assert_eq!(time.clock, Clock::Monotonic, "veth stamps no packet that no card has stamped");
    drop(right);
    let generic = |builder: PortBuilder| builder.mode(Mode::XdpCopyGeneric).receive_metadata(true);
    let mut right = open_port_with(lab.right(), |builder| {
        generic(builder).tuning(PortTuning { arrival_times: true, ..PortTuning::default() })
    })
    .unwrap();
    send_packets(&mut left, &[numbered_packet(lab.right(), 2, 60)]);
    let arrival = right.receiver().receive_timeout(PATIENCE).unwrap().next().expect("a packet").arrival();
    assert_eq!(arrival.timestamp.unwrap().clock, Clock::Monotonic);
    assert_eq!(arrival.hash, Err(Unsupported::Mode(Mode::XdpCopyGeneric)));
}

#[test]
fn ports_sharing_a_program_get_arrival_times_only_on_request() {
    let lab = lab!(Lab::builder().queues(2));
    let mut senders: Vec<_> =
        (0..2).map(|queue| open_port_with(lab.left(), |builder| builder.queue(queue)).unwrap()).collect();
    let mut said = |first: bool, second: bool| {
        let on = |queue, asks| {
            open_port_with(lab.right(), move |builder| {
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
                send_packets(sender, &[numbered_packet(lab.right(), 1, 60)]);
                receive_timestamps(port, 1)[0].map(|time| time.clock)
            })
            .collect::<Vec<_>>()
    };
    let (time, unasked) = (Ok(Clock::Monotonic), Err(Unsupported::NotRequested));
    assert_eq!(said(true, true), [time, time]);
    assert_eq!(said(true, false), [time, unasked]);
    assert_eq!(said(false, true), [unasked, Err(Unsupported::OtherProgram)]);
}
