use nocopy::filter::Program;
use nocopy::port::{FilterPlace, OpenError};
use nocopy::{Mode, Port};
use nocopy_lab::End;
use serde_json::json;

use crate::guest::{Guest, sockets, traffic};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "a filter runs in front of the redirect of a zero-copy port: what matches crosses byte for byte, and the sockets of the \
             hosts at either end talk to each other through the same interfaces meanwhile",
    on: &[Topology::Igb, Topology::Virtio],
    kernels: &[Kernel::Newest],
    run,
};

/// `ether proto 0x88b5`: the packets of [`traffic`].
const FILTER: &str = "4,40 0 0 12,21 0 1 34997,6 0 0 262144,6 0 0 0";
const PACKETS: u32 = 600;

fn run(guest: &Guest) -> Result<(), Failure> {
    let lab = guest.lab();
    let filter = Program::parse(FILTER)?;
    let (mut left, mut right) =
        (open_filtered_port(lab.left(), &filter)?, open_filtered_port(lab.right(), &filter)?);
    for port in [&left, &right] {
        assert_eq!((port.mode(), port.explain().filter), (Mode::XdpZeroCopy, Some(FilterPlace::Xdp)));
    }
    traffic::send_and_check(&mut left, &mut right, lab.right(), 1514, PACKETS)?;
    sockets::check_udp_both_ways(lab)?;
    traffic::send_and_check(&mut right, &mut left, lab.left(), 64, PACKETS)?;
    for mut port in [left, right] {
        let stats = port.receiver().stats();
        assert_eq!((stats.get("filter_to_host").unwrap(), stats.get("filter_lost").unwrap()), (0, 0));
        traffic::assert_all_frames_accounted(&mut port)?;
        traffic::close_and_check_frames(port);
    }
    guest.record_measurement(&json!({ "packets": PACKETS * 2 }));
    Ok(())
}

fn open_filtered_port(end: &End, filter: &Program) -> Result<Port, OpenError> {
    end.namespace()
        .run(|| traffic::small_port_builder(end.interface()).mode(Mode::XdpZeroCopy).filter(filter).open())
}
