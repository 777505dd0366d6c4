use crate::guest::programs::{self, TestSelection};
use crate::registry::{Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "on arm64 the tests of UDP and TCP sockets pass",
    on: &[Topology::Veth],
    kernels: &[Kernel::Arm64],
    run: |guest| programs::run_selected_tests(guest, "nocopy::sockets", TestSelection::AllBut(LEFT_OUT)),
};

const LEFT_OUT: &[(&str, &str)] = &[
    (
        "tcp_connections::ten_thousand_streams_share_a_pool_without_starvation",
        "nine minutes where the processor is emulated; other tests share pools among fewer connections",
    ),
    (
        "tcp_faults::mtu_changes_during_a_stream_change_no_byte",
        "nine minutes where the processor is emulated; other tests change the path in mid-stream, too",
    ),
];
