use crate::guest::Guest;
use crate::guest::programs::{self, Selection};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "on arm64 all unit tests of nocopy-proto pass: wire formats, filters, eBPF, the message protocol",
    on: &[Topology::Veth],
    kernel: Kernel::Arm64,
    run,
};

fn run(guest: &Guest) -> Result<(), Failure> {
    programs::run(guest, "nocopy-proto", Selection::AllBut(&[]))
}
