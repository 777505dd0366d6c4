use nocopy::{Mode, Port};

use crate::guest::{Guest, traffic};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "where a packet of the MTU is more than the card can put into one frame, a port steps down, says why, and carries it",
    on: &[Topology::Igb],
    kernels: &[Kernel::Newest],
    run,
};

/// More than the three whole KiB that an igb uses of a frame of 4096.
const MTU_BYTES: u32 = 3500;
const PACKETS: u32 = 500;

fn run(guest: &Guest) -> Result<(), Failure> {
    let lab = guest.lab();
    for end in guest.ends() {
        end.set_mtu(MTU_BYTES)?;
    }
    lab.wait_for_carrier()?;
    let open = |end: &nocopy_lab::End| end.namespace().run(|| Port::open(end.interface()));
    let (mut left, mut right) = (open(lab.left())?, open(lab.right())?);
    assert_ne!(left.mode(), Mode::XdpZeroCopy);
    let report = left.explain().to_string();
    assert!(report.contains("counts buffers in KiB") && report.contains("mtu 1500"), "{report}");
    guest.record_measurement(
        &serde_json::json!({ "mode": left.mode().to_string(), "refused": left.explain().refusals[0].to_string() }),
    );
    traffic::send_and_check_both_ways(lab, &mut left, &mut right, [64, MTU_BYTES as usize + 14], PACKETS)?;
    traffic::assert_all_frames_accounted(&mut left)?;
    traffic::assert_all_frames_accounted(&mut right)
}
