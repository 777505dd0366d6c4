use nocopy::port::OpenError;
use nocopy::{Cause, Evidence, Mode, Port};
use serde_json::json;

use super::to_host;
use crate::guest::{Guest, traffic};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "where the driver has no zero-copy yet, a port steps down, says why, still carries every packet, and refuses \
             to open when only zero-copy will do; what it hands to the host arrives there, from native and generic mode",
    on: &[Topology::Igb],
    kernels: &[Kernel::Older, Kernel::Stable],
    run,
};

const PACKETS: u32 = 2000;

fn run(guest: &Guest) -> Result<(), Failure> {
    let (left, right) = (guest.lab().left(), guest.lab().right());
    let strict = left.namespace().run(|| Port::builder(left.interface()).mode(Mode::XdpZeroCopy).open());
    match strict {
        Err(OpenError::NoMode { refusals, .. }) => assert_eq!(refusals[0].mode, Mode::XdpZeroCopy),
        other => panic!("zero-copy where there is none: {other:?}"),
    }
    let mut a = left.namespace().run(|| Port::open(left.interface()))?;
    let mut b = right.namespace().run(|| Port::open(right.interface()))?;
    for port in [&a, &b] {
        assert_eq!(port.mode(), Mode::XdpCopyNative);
        assert_eq!(port.explain().evidence, Evidence::Copied(Cause::XdpCopyMode));
        let refusals = port.explain().refusals;
        let [refusal] = &refusals[..] else { panic!("one refusal expected: {refusals:?}") };
        assert_eq!(refusal.mode, Mode::XdpZeroCopy);
        guest.record_measurement(&json!({ "mode": port.mode().to_string(), "refused": refusal.to_string() }));
    }
    traffic::send_and_check_both_ways(guest.lab(), &mut a, &mut b, [64, 1514], PACKETS)?;
    to_host::hand_over_requests(guest.lab(), &mut a, &mut b)?;
    traffic::assert_all_frames_accounted(&mut a)?;
    traffic::assert_all_frames_accounted(&mut b)?;
    drop(b);
    let generic = || Port::builder(right.interface()).mode(Mode::XdpCopyGeneric).open();
    let mut b = right.namespace().run(generic)?;
    to_host::hand_over_requests(guest.lab(), &mut a, &mut b)?;
    traffic::assert_all_frames_accounted(&mut b)
}
