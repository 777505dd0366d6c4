//! Zero-copy UDP of 2001: the ways to hand 10,000 datagrams to a card, with the copy left in as a control, to
//! an ordinary receiver.

use std::io;
use std::time::Duration;

use nocopy::udp::Method;
use nocopy_proto::UdpChecksum::{Computed, Offloaded, Omitted};
use nocopy_report::figure::Figure;

use crate::Failure;
use crate::bench::{Bench, RoundLimits};
use crate::datagram::DatagramSpec;
use crate::series::{Sample, Series, Trial};
use crate::stage::{LONG_MTU_BYTES, USUAL_MTU_BYTES};
use crate::workload::udp_send::{self, DatagramSendContext, SendMethod, SinkTestbed};
use crate::workload::{LOOPBACK, Workload};

const NAME: &str = "zerocpy";

/// The paper's lengths, and the MTU of each.
const DATAGRAMS: [(usize, u32); 2] = [(1400, USUAL_MTU_BYTES), (8192, LONG_MTU_BYTES)];

/// The number of runs in the paper, which shows their median.
const RUNS: u32 = 3;

/// The least number of datagrams of a run, as in the paper. The boards of 2001 needed three seconds for them,
/// this machine 20 ms, in which a virtual machine may stand still; so a run lasts at least this time, and
/// longer if fewer have arrived.
const DATAGRAMS_MIN: u64 = 10_000;
const RUN: Duration = Duration::from_millis(400);
const RUN_MAX: Duration = Duration::from_secs(30);

/// Datagrams handed to a card without a copy.
pub(crate) const ZEROCPY: Workload = Workload {
    name: NAME,
    about: "2001: 10,000 datagrams handed to a card without a copy, and with one",
    methods: &[
        ("socket", "send() of a datagram a call; the kernel copies it and leaves the checksum to the device"),
        ("xdp-copy", "UDP over a port of AF_XDP, with payloads copied into its frames: the control"),
        ("xdp-udp", "the same, from frames that the payloads lie in"),
        ("zerocopy", "the library's socket with MSG_ZEROCOPY, from memory of the program's own"),
        ("uring-zerocopy", "the same with io_uring (IORING_OP_SEND_ZC)"),
    ],
    lab_only: Some(LOOPBACK),
    notes: &[
        "zerocpy: the variant is who computes the UDP checksum: the sender (computed), nobody (omitted), the device (offloaded).",
    ],
    ..Workload::measured_by(measure)
};

fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    for (bytes, mtu_bytes) in DATAGRAMS {
        let testbed = udp_send::delivered_testbed(udp_send::private_site_pair(mtu_bytes)?)?;
        let series = build_series(&testbed, bytes);
        let window = bench.plan.window.unwrap_or(bench.plan.halve_if_quick(RUN));
        let time = RUN_MAX * RUNS * series.trials.len() as u32;
        let rounds = RoundLimits { count: bench.plan.rounds.min(RUNS), window, time };
        bench.progress.add_expected_steps(u64::from(rounds.count) * series.trials.len() as u64);
        bench.run_rounds(&[series], rounds, |_| {})?;
    }
    Ok(())
}

fn build_series(testbed: &SinkTestbed, bytes: usize) -> Series<'_> {
    let trial = |send_method, variant, baselines| {
        let context =
            DatagramSendContext::to_own_receiver(testbed, DatagramSpec::in_bursts(bytes), send_method);
        let trial = context.build_trial(variant, baselines);
        let run = move |window| run_until_arrived(DATAGRAMS_MIN, window, &trial.run);
        Trial { run: Box::new(run), method: trial.method, variant: trial.variant, baselines }
    };
    let port = |copied, checksum, variant, baselines| {
        trial(SendMethod::Port { copied, checksum }, Some(variant), baselines)
    };
    let mut trials = vec![
        trial(SendMethod::Singly, None, &[]),
        // A baseline is the first trial with its name: for the copy the one without checksum, for the
        // checksum the one with it.
        port(true, Omitted, "omitted", &["socket"]),
        port(true, Computed, "computed", &["socket"]),
        port(false, Computed, "computed", &["socket"]),
        port(false, Omitted, "omitted", &["socket", "xdp-copy", "xdp-udp"]),
    ];
    // Ports complete no checksum of a packet in several frames, which a datagram of 8 KiB is.
    if testbed.stage.mtu_bytes() == USUAL_MTU_BYTES {
        trials.push(port(false, Offloaded, "offloaded", &["socket"]));
    }
    let foreign = [Method::ZeroCopy, Method::UringZeroCopy];
    trials.extend(foreign.map(|method| trial(SendMethod::Foreign(method), None, &["socket"])));
    Series {
        workload: NAME,
        title: format!("{bytes}-byte datagrams"),
        sink: Some(testbed.sink.name()),
        payload_bytes: bytes,
        link: None,
        figure: Figure::PacketsPerSecond,
        trials,
    }
}

/// Runs it for longer and longer, until enough have arrived.
fn run_until_arrived(
    datagrams: u64,
    window: Duration,
    run: &dyn Fn(Duration) -> Result<Sample, Failure>,
) -> Result<Sample, Failure> {
    let mut window = window;
    loop {
        let sample = run(window)?;
        if sample.total_arrived() >= datagrams {
            return Ok(sample);
        }
        if window >= RUN_MAX {
            let few = io::Error::other(format!("only {} arrived in {RUN_MAX:?}", sample.total_arrived()));
            return Err(Failure::step(
                NAME,
                "receive 10,000 datagrams",
                "look at what else runs on this machine",
            )(few));
        }
        window = (window * 2).min(RUN_MAX);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use nocopy_report::result::Evidence;

    use super::*;
    use crate::traffic::TrafficReadings;
    use crate::window::WindowReading;

    #[test]
    fn a_run_continues_until_the_minimum_has_arrived() {
        let runs = Cell::new(0);
        let run = |window: Duration| {
            runs.set(runs.get() + 1);
            let arrived = WindowReading {
                packets: window.as_millis() as u64,
                elapsed: window,
                ..WindowReading::default()
            };
            let traffic = TrafficReadings { receivers: vec![arrived], ..TrafficReadings::default() };
            Ok(Sample { traffic, latency: None, evidence: Evidence::unknown("made up"), wanted_share: 1.0 })
        };
        let sample = run_until_arrived(350, Duration::from_millis(100), &run).unwrap();
        assert_eq!((sample.total_arrived(), runs.get()), (400, 3));
        let few = run_until_arrived(u64::MAX, RUN_MAX, &run).unwrap_err().to_string();
        assert!(few.contains("30000 arrived in 30s"), "{few}");
    }
}
