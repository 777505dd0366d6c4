use std::time::Duration;

use nocopy::integration::PortTuning;
use nocopy::port::OpenError;
use nocopy::{Mode, Port};
use serde_json::json;

use crate::guest::patience::ARRIVAL_MAX;
use crate::guest::{Guest, traffic};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "a zero-copy port that must first send a frame as proof is in zero-copy where the card sends it, and steps down with \
             that reason where it is not sent in time; either carries every packet",
    on: &[Topology::Igb, Topology::Virtio],
    kernels: &[Kernel::Newest],
    run,
};

const PACKETS: u32 = 500;

fn run(guest: &Guest) -> Result<(), Failure> {
    let (left, right) = (guest.lab().left(), guest.lab().right());
    let open = |timeout| {
        let builder = Port::builder(left.interface())
            .tuning(PortTuning { probe_frame: Some(timeout), ..PortTuning::default() });
        left.namespace().run(|| builder.open())
    };
    // Cards receive frames that are addressed to them; the probe frame is not.
    let listener = traffic::small_port_builder(right.interface()).promiscuous(true);
    let mut peer = right.namespace().run(|| listener.open())?;
    let mut port = open(ARRIVAL_MAX)?;
    assert_eq!(port.mode(), Mode::XdpZeroCopy, "{}", port.explain());
    // The probe frame: 60 bytes from the card to itself.
    let mut proof = [0; 60];
    proof[..6].copy_from_slice(&left.mac());
    proof[6..12].copy_from_slice(&left.mac());
    proof[12..14].copy_from_slice(&[0x88, 0xb5]);
    traffic::expect_packet(&mut peer, &proof)?;
    check_traffic_both_ways(guest, &mut port, &mut peer)?;
    traffic::close_and_check_frames(port);
    // No card is so fast.
    let mut port = open(Duration::ZERO)?;
    assert_ne!(port.mode(), Mode::XdpZeroCopy);
    let report = port.explain().to_string();
    assert!(report.contains("a frame sent as proof was not reported as sent in time"), "{report}");
    guest.record_measurement(&json!({ "refused": port.explain().refusals[0].to_string() }));
    while let Some(packet) = peer.receiver().receive_timeout(Duration::from_secs(1))?.next() {
        assert_eq!(*packet, proof);
    }
    check_traffic_both_ways(guest, &mut port, &mut peer)?;
    traffic::close_and_check_frames(port);
    let strict = Port::builder(left.interface())
        .mode(Mode::XdpZeroCopy)
        .tuning(PortTuning { probe_frame: Some(Duration::ZERO), ..PortTuning::default() });
    let refused = left.namespace().run(|| strict.open()).expect_err("zero-copy or nothing");
    assert!(matches!(refused, OpenError::NoMode { .. }), "{refused}");
    traffic::close_and_check_frames(peer);
    Ok(())
}

fn check_traffic_both_ways(guest: &Guest, port: &mut Port, peer: &mut Port) -> Result<(), Failure> {
    traffic::send_and_check_both_ways(guest.lab(), port, peer, [64, 1514], PACKETS)?;
    traffic::assert_all_frames_accounted(port)
}
