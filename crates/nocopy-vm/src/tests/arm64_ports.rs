use crate::guest::programs::{self, TestSelection};
use crate::registry::{Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "on arm64 the tests of ports, captures and filters pass, on memory and over AF_XDP on veth pairs",
    on: &[Topology::Veth],
    kernels: &[Kernel::Arm64],
    run: |guest| programs::run_selected_tests(guest, "nocopy::ports", TestSelection::AllBut(&[])),
};
