use nocopy::Mode;

use crate::guest::unprivileged;
use crate::registry::{Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "on a kernel that refuses to map the rings of a bound socket, a process without any capability receives and \
             sends on a port that was granted to it, in native copy mode",
    on: &[Topology::Igb],
    kernels: &[Kernel::Older, Kernel::Stable],
    run: |guest| unprivileged::check_granted_port(guest, Mode::XdpCopyNative),
};
