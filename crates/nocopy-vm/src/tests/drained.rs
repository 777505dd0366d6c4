use serde_json::json;

use crate::guest::{Guest, traffic};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "frames given to a port that is dropped right after are sent, all of them, before its driver resets anything",
    on: &[Topology::Igb, Topology::Virtio],
    kernels: &[Kernel::Newest],
    run,
};

const FRAMES: u32 = 100;
const ROUNDS: u32 = 3;

fn run(guest: &Guest) -> Result<(), Failure> {
    let right = guest.lab().right();
    let mut receiver = traffic::open_port(right)?;
    for round in 0..ROUNDS {
        let mut port = traffic::open_port(guest.lab().left())?;
        let first = round * FRAMES;
        for number in first..first + FRAMES {
            let mut frame = port.sender().buffer().expect("more frames than are sent");
            frame.fill(&traffic::numbered_packet(right, number, 1000)).expect("a packet fits a frame");
            port.sender().send(frame)?;
        }
        traffic::close_and_check_frames(port); // without a flush
        for number in first..first + FRAMES {
            traffic::expect_packet(&mut receiver, &traffic::numbered_packet(right, number, 1000))?;
        }
    }
    guest.record_measurement(&json!({ "frames": FRAMES * ROUNDS }));
    traffic::assert_all_frames_accounted(&mut receiver)
}
