use nocopy::Mode;

use crate::guest::unprivileged;
use crate::registry::{Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "a process of another user, without any capability, receives and sends in zero-copy on a port that was granted to \
             it, with every byte in its place; killed, it leaves no program and no pinned page",
    on: &[Topology::Igb, Topology::Virtio],
    kernels: &[Kernel::Newest],
    run: |guest| unprivileged::check_granted_port(guest, Mode::XdpZeroCopy),
};
