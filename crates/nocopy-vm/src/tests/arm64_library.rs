use crate::guest::programs::{self, TestSelection};
use crate::registry::{Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "on arm64 all unit tests of the library pass: rings, areas, pools, and what they do with the kernel",
    on: &[Topology::Veth],
    kernels: &[Kernel::Arm64],
    run: |guest| programs::run_selected_tests(guest, "nocopy", TestSelection::AllBut(&[])),
};
