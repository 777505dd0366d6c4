use crate::guest::programs::{self, TestSelection};
use crate::registry::{Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "on arm64 the unit tests of nocopy-proto pass: wire formats, filters, eBPF, the message protocol",
    on: &[Topology::Veth],
    kernels: &[Kernel::Arm64],
    run: |guest| programs::run_selected_tests(guest, "nocopy-proto", TestSelection::AllBut(LEFT_OUT)),
};

const LEFT_OUT: &[(&str, &str)] = &[
    (
        "message::simulation::fairness::a_message_on_a_slow_path_is_not_sent_away",
        "half of the time of all; the other simulations run the same code",
    ),
    (
        "message::simulation::goodput::goodput_is_as_committed",
        "ten minutes where the processor is emulated; the other simulations run the same code",
    ),
    (
        "message::simulation::tests::a_million_messages_arrive",
        "nine minutes where the processor is emulated; the other simulations run the same code",
    ),
];
