use crate::guest::Guest;
use crate::guest::programs::{self, Selection};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "on arm64 the tests of UDP and TCP sockets pass",
    on: &[Topology::Veth],
    kernel: Kernel::Arm64,
    run,
};

fn run(guest: &Guest) -> Result<(), Failure> {
    programs::run(guest, "nocopy::sockets", Selection::AllBut(&[]))
}
