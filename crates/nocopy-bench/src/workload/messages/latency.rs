//! Messages there and back, one at a time; each way of waiting against its like.

use super::{NOTE, fits_a_frame, link_description, make_site_pair};
use crate::Failure;
use crate::baseline::fi_pingpong;
use crate::bench::Bench;
use crate::message::CarrierKind;
use crate::plan::BenchPlan;
use crate::series::{Sample, Series, Trial};
use crate::stage::SitePair;
use crate::traffic::TrafficReadings;
use crate::workload::latency::RoundTripSpec;
use crate::workload::{LOOPBACK, Workload};
use nocopy_lab::Lab;
use nocopy_report::figure::Figure;
use nocopy_report::quantity::length_text;
use nocopy_report::result::Evidence;
use nocopy_transfer::exchange::WaitMode;
use nocopy_transfer::exchange::udp::DATAGRAM_BYTES_MAX;

const NAME: &str = "message-latency";

const PAYLOADS_BYTES: [usize; 4] = [64, 1 << 10, 8 << 10, 64 << 10];

pub(crate) const MESSAGE_LATENCY: Workload = Workload {
    name: NAME,
    about: "Round trips of messages of several lengths",
    methods: &[
        ("tcp-blocking", "one connection with TCP_NODELAY, a write for each message; waits in the kernel"),
        ("tcp-spinning", "the same, and both ends spin"),
        (
            "udp-spinning",
            "a datagram for each message, by send() and recv(); both ends spin; nothing is sent again",
        ),
        (
            "xdp-spinning",
            "a frame for each message, over two ports of AF_XDP; both ends spin; nothing is sent again",
        ),
        (
            "message-xdp",
            "the library's message protocol over a port of AF_XDP; the variant says how it waits",
        ),
        ("message-udp", "the library's message protocol over UDP sockets; the variant says how it waits"),
        (
            "message-auto",
            "the same, with a TCP connection beside the datagrams for messages that the library sends by it",
        ),
        (
            "fi_pingpong",
            "libfabric's program with its tcp provider; it prints a mean only, so there is no ratio",
        ),
    ],
    lab_only: Some(LOOPBACK),
    notes: &[NOTE],
    skips: skip_notes,
    ..Workload::measured_by(measure)
};

fn skip_notes(_plan: &BenchPlan) -> Vec<String> {
    let name = fi_pingpong::NAME;
    let missing = format!(
        "SKIP: {NAME} {name}: not installed: 'apt install libfabric-bin' or what your system calls it."
    );
    (!fi_pingpong::is_installed()).then_some(missing).into_iter().collect()
}

fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    bench.run_series(build_series(&make_site_pair(Lab::builder())?), 64)
}

fn build_series(stage: &SitePair) -> Vec<Series<'_>> {
    PAYLOADS_BYTES.into_iter().map(|bytes| series_of_length(stage, bytes)).collect()
}

pub(crate) fn series_of_length(stage: &SitePair, bytes: usize) -> Series<'_> {
    Series {
        workload: NAME,
        title: format!("{NAME}, {} there and back, MTU {}", length_text(bytes), stage.mtu_bytes()),
        sink: None,
        payload_bytes: bytes,
        link: Some(link_description(stage, None)),
        figure: Figure::MedianLatency,
        trials: build_trials(stage, bytes),
    }
}

fn build_trials(stage: &SitePair, bytes: usize) -> Vec<Trial<'_>> {
    use WaitMode::{Blocking, Spinning};
    let spec =
        |method, baselines, waiting| RoundTripSpec { method, variant: None, baselines, waiting, bytes };
    let mut trials = vec![
        spec("tcp-blocking", &[], Blocking).tcp_trial(stage),
        spec("tcp-spinning", &[], Spinning).tcp_trial(stage),
    ];
    if bytes <= DATAGRAM_BYTES_MAX {
        trials.push(spec("udp-spinning", &["tcp-spinning"], Spinning).udp_trial(stage));
    }
    if fits_a_frame(stage, bytes) {
        trials.push(spec("xdp-spinning", &["tcp-spinning", "udp-spinning"], Spinning).xdp_trial(stage));
    }
    for carrier in CarrierKind::ALL {
        trials.extend(WaitMode::ALL.map(|waiting| {
            let spec = spec(carrier.method_name(), baselines(carrier, waiting), waiting);
            RoundTripSpec { variant: Some(waiting.name()), ..spec }.message_trial(stage, carrier)
        }));
    }
    if fi_pingpong::is_installed() {
        trials.push(fi_pingpong_trial(stage, bytes));
    }
    trials
}

/// Spinning against spinning, blocking against blocking; adaptive against both.
fn baselines(carrier: CarrierKind, waiting: WaitMode) -> &'static [&'static str] {
    match (waiting, carrier) {
        (WaitMode::Spinning, CarrierKind::Port) => &["tcp-spinning", "xdp-spinning", "udp-spinning"],
        (WaitMode::Spinning, CarrierKind::Sockets) => &["tcp-spinning", "udp-spinning"],
        (WaitMode::Spinning, CarrierKind::Auto) => &["tcp-spinning"],
        (WaitMode::Blocking, _) => &["tcp-blocking"],
        (WaitMode::Adaptive, _) => &["tcp-blocking", "tcp-spinning"],
    }
}

/// fi_pingpong prints only a mean, so there is no ratio.
fn fi_pingpong_trial(stage: &SitePair, bytes: usize) -> Trial<'_> {
    let run = move |_| {
        let latency = fi_pingpong::run_pingpong(stage, bytes);
        let latency = latency.map_err(Failure::step(
            fi_pingpong::NAME,
            "exchange messages",
            "see what 'fi_pingpong -p tcp -e msg' says by hand",
        ))?;
        let evidence = Evidence::copied(fi_pingpong::CAUSE);
        Ok(Sample {
            traffic: TrafficReadings::default(),
            latency: Some(latency),
            evidence,
            wanted_share: 1.0,
        })
    };
    Trial { method: fi_pingpong::NAME, variant: None, baselines: &[], run: Box::new(run) }
}
