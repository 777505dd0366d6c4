use crate::guest::programs::{self, TestSelection};
use crate::registry::{Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "on arm64 the command does what it does elsewhere: doctor says what a port would be, bench and send move packets, datagrams and \
             streams, and profile counts their calls and bytes",
    on: &[Topology::Veth],
    kernels: &[Kernel::Arm64],
    run: |guest| programs::run_selected_tests(guest, "nocopy-cli::command", TestSelection::Only(TESTS)),
};

/// Real traffic in short forms, checked by what arrived and what was counted. Of `profile::` all but the one
/// that starts 4,500 programs one after the other, for which an emulated processor needs longer than a test
/// waits.
const TESTS: &[&str] = &[
    "bench::a_short_bench_moves_packets_by_every_method",
    "bench::a_short_bench_sends_datagrams_by_every_method",
    "bench::doctor_lists",
    "profile::a_",
    "profile::bytes_",
    "profile::datagrams_",
    "profile::reads_",
    "profile::sockets_",
    "profile::targets_",
    "profile::unusual_",
    "profile_sweep::",
    "send::in_every_mode_exactly_the_requested_packets_arrive",
    "tcp::all_data_arrives_by_every_method",
    "udp::all_data_arrives_over_a_port",
    "udp::all_data_arrives_by_every_method",
];
