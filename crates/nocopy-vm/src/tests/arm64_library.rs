use crate::guest::programs::{self, Selection};
use crate::registry::{Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "on arm64 all unit tests of the library pass: rings, areas, pools, and what they do with the kernel",
    on: &[Topology::Veth],
    kernel: Kernel::Arm64,
    run: |guest| programs::run(guest, "nocopy", Selection::AllBut(&[])),
};
