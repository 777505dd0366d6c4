use nocopy::integration::probe;
use nocopy::port::PortBuilder;
use nocopy::{Evidence, Mode, Port};
use nocopy_lab::End;
use serde_json::json;

use crate::guest::{Guest, traffic};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "a port is in 'xdp zero-copy' by the kernel's word, and every packet of every size arrives, in order, with \
             its bytes, both ways, across many turns of the rings",
    on: &[Topology::Igb, Topology::Virtio],
    kernels: &[Kernel::Newest],
    run,
};

/// Packets of each size, each way: several times the length of the rings.
const PACKETS: u32 = 2000;
const RING_ENTRIES: u32 = 256;

/// From the shortest to the longest of an MTU of 1500.
const SIZES_BYTES: [usize; 6] = [64, 65, 255, 1000, 1513, 1514];

fn run(guest: &Guest) -> Result<(), Failure> {
    let (left, right) = (guest.lab().left(), guest.lab().right());
    let probed = left.namespace().run(|| probe::interface(left.interface()))?;
    let (mut a, mut b) = (open_port(left)?, open_port(right)?);
    assert_eq!(probed.first_possible_mode(), Some(a.mode().to_string().as_str()), "{probed:?}");
    for port in [&a, &b] {
        assert_eq!(port.mode(), Mode::XdpZeroCopy, "refused: {:?}", port.explain().refusals);
        assert_eq!(port.explain().evidence, Evidence::ZeroCopy);
        assert!(port.explain().refusals.is_empty());
    }
    traffic::send_and_check_both_ways(guest.lab(), &mut a, &mut b, SIZES_BYTES, PACKETS)?;
    traffic::assert_all_frames_accounted(&mut a)?;
    traffic::assert_all_frames_accounted(&mut b)?;
    guest.record_measurement(
        &json!({ "mode": a.mode().to_string(), "packets": PACKETS as usize * SIZES_BYTES.len() * 2 }),
    );
    Ok(())
}

fn open_port(end: &End) -> Result<Port, nocopy::port::OpenError> {
    let small = |builder: PortBuilder| builder.ring_sizes(RING_ENTRIES, RING_ENTRIES).frame_count(512, 256);
    end.namespace().run(|| small(Port::builder(end.interface())).open())
}
