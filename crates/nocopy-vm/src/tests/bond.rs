use std::time::{Duration, Instant};

use nocopy::integration::probe;
use nocopy::port::OpenError;
use nocopy::{Mode, Port};
use nocopy_lab::End;
use serde_json::json;

use crate::guest::patience::ARRIVAL_MAX;
use crate::guest::{Guest, traffic};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "on a bond, where sockets in native mode are taken and receive nothing, a port goes down to generic mode, says why, and \
             carries every packet; one that only sends need not",
    on: &[Topology::Igb],
    kernels: &[Kernel::Newest],
    run,
};

const PACKETS: u32 = 500;

const PAUSE: Duration = Duration::from_millis(50);

fn run(guest: &Guest) -> Result<(), Failure> {
    let (left, right) = (guest.lab().left(), guest.lab().right());
    let bond = left.move_into_bond()?;
    let probed = left.namespace().run(|| probe::interface(bond))?;
    let mut peer = traffic::open_port(right)?;
    let mut port = left.namespace().run(|| Port::open(bond))?;
    let report = port.explain().to_string();
    guest.record_measurement(&json!({ "report": report }));
    assert_eq!(port.mode(), Mode::XdpCopyGeneric, "{report}");
    assert_eq!(probed.first_possible_mode(), Some(port.mode().to_string().as_str()), "{probed:?}");
    assert_eq!(report.matches("open a port on each member of ncb").count(), 2, "{report}");
    traffic::send_and_check_both_ways(guest.lab(), &mut port, &mut peer, [64, 1514], PACKETS)?;
    traffic::assert_all_frames_accounted(&mut port)?;
    traffic::close_and_check_frames(port);
    let native = Port::builder(bond).mode(Mode::XdpCopyNative);
    let refused = left.namespace().run(|| native.open()).expect_err("nothing would arrive");
    assert!(matches!(refused, OpenError::NoMode { .. }), "{refused}");
    let only_sends = Port::builder(bond).frame_count(0, 256).ring_sizes(256, 256);
    let mut port = left.namespace().run(|| only_sends.open())?;
    assert_eq!(port.mode(), Mode::XdpCopyNative, "{}", port.explain());
    // Attaching went to the member, whose link it reset behind the bond's back.
    guest.lab().wait_for_carrier()?;
    wait_until_packets_pass(&mut port, &mut peer, right)?;
    traffic::send_and_check(&mut port, &mut peer, right, 1514, PACKETS)?;
    traffic::assert_all_frames_accounted(&mut port)?;
    traffic::close_and_check_frames(port);
    Ok(())
}

/// Sends until something arrives: a bond looks at its members' links in its own time.
fn wait_until_packets_pass(port: &mut Port, peer: &mut Port, to: &End) -> Result<(), Failure> {
    let started = Instant::now();
    loop {
        let mut frame = port.sender().buffer().expect("a free frame");
        frame.fill(&traffic::stray_packet(to.mac(), 0, 64)).expect("a packet fits a frame");
        port.sender().send(frame)?;
        port.sender().flush()?;
        if peer.receiver().receive_timeout(PAUSE)?.next().is_some() {
            port.sender().drain(ARRIVAL_MAX)?;
            return traffic::discard_in_flight(peer);
        }
        if started.elapsed() > ARRIVAL_MAX {
            return Err(Failure(format!("nothing passes the bond for {} s", ARRIVAL_MAX.as_secs())));
        }
    }
}
