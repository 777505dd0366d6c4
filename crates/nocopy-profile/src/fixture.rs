//! An invented window, for tests.

use std::time::Duration;

use super::measured::{
    CallCounts, CopiedBytes, ProgramOverhead, SampleOwner, SampledStack, SamplingCounts, TaskTimes,
    TcpCounters, WindowMeasurement,
};

pub(crate) fn sampled_stack(owner: SampleOwner, functions: &str, samples: u64) -> SampledStack {
    let functions = functions.split(' ').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    SampledStack { owner, functions, samples }
}

/// One busy thread that reads 1 GiB in calls of 64 KiB within a second, sampled each 0.5 ms: 1,800 samples of
/// its own.
pub(crate) fn bulk_receive_measurement() -> WindowMeasurement {
    let bytes = 1 << 30;
    let receives = CallCounts {
        count: bytes >> 16,
        bytes,
        socket_bytes: bytes,
        inside: Duration::from_millis(850),
        sleeping: Duration::from_millis(50),
        runnable: Duration::from_millis(20),
        depth_sum_bytes: (bytes >> 16) * 40_000,
        depth_max_bytes: 90_000,
        depth_sum_packets: (bytes >> 16) * 5 / 2,
        depth_max_packets: 6,
        depth_count: bytes >> 16,
        queued_bytes: bytes / 2,
        waited_bytes: bytes / 2,
    };
    let softirq = "tcp_v4_rcv ip_rcv net_rx_action handle_softirqs __dev_queue_xmit";
    WindowMeasurement {
        elapsed: Duration::from_secs(1),
        tasks: TaskTimes {
            threads: 1,
            user: Duration::from_millis(100),
            system: Duration::from_millis(800),
            switches: 500,
        },
        sampling: SamplingCounts {
            period: Duration::from_micros(500),
            taken: 2_800,
            ticks: 4_000,
            ticks_due: 4_000,
            without_stack: 0,
        },
        stacks: vec![
            sampled_stack(
                SampleOwner::Receiving,
                "_copy_to_iter skb_copy_datagram_iter tcp_recvmsg_locked",
                1_000,
            ),
            sampled_stack(SampleOwner::Receiving, "tcp_recvmsg_locked tcp_recvmsg", 400),
            sampled_stack(SampleOwner::Receiving, "do_syscall_64", 200),
            sampled_stack(SampleOwner::Elsewhere, "", 200),
            sampled_stack(SampleOwner::OtherTask, softirq, 1_000),
        ],
        copied: CopiedBytes { to_user_bytes: receives.bytes, ..CopiedBytes::default() },
        receives,
        tcp: TcpCounters {
            sockets: 1,
            segments_in: bytes / 1_448,
            packets_in: bytes / 65_160,
            packets_in_backlog: bytes / 651_600,
            segments_out: 8_000,
            window_sum_bytes: 3_000_000 * 16_000,
            window_count: 16_000,
            receive_buffer_bytes: 131_072,
            ..TcpCounters::default()
        },
        delivered_packets: 500,
        machine_packets: 1_000,
        overhead: ProgramOverhead {
            programs: Duration::from_millis(9),
            program_runs: 30_000,
            lost_events: 0,
        },
        ..WindowMeasurement::default()
    }
}
