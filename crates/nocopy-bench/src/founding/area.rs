//! The communication area of 1997: round trips of 64 bytes, by interrupt and by polling, and messages of 1
//! KiB one way.

use nocopy_lab::Lab;
use nocopy_report::figure::Figure;
use nocopy_transfer::exchange::WaitMode::{self, Blocking, Spinning};

use super::{keep_trials, run_series_as};
use crate::Failure;
use crate::bench::Bench;
use crate::message::CarrierKind;
use crate::series::Series;
use crate::stage::SitePair;
use crate::workload::latency::RoundTripSpec;
use crate::workload::{LOOPBACK, Workload, messages};

const NAME: &str = "communication-area";

/// As in the paper.
const ROUND_TRIP_BYTES: usize = 64;
const MESSAGE_BYTES: usize = 1 << 10;

/// Messages over rings that the program and the kernel share.
pub(crate) const AREA: Workload = Workload {
    name: NAME,
    about: "1997: messages over rings that the program and the kernel share",
    methods: &[
        ("tcp-blocking", "one connection with TCP_NODELAY, a write for each message; waits in the kernel"),
        ("tcp-spinning", "the same, and both ends spin"),
        ("udp-blocking", "send() and recv() of a datagram; waits in the kernel"),
        ("udp-spinning", "the same, and both ends spin"),
        ("xdp-poll", "a frame over two ports of AF_XDP; waits in the kernel"),
        ("xdp-spinning", "the same, and both ends spin"),
        (
            "message-xdp",
            "the library's message protocol over a port of AF_XDP; the variant says how it waits",
        ),
    ],
    lab_only: Some(LOOPBACK),
    ..Workload::measured_by(measure)
};

fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let stage = SitePair::in_private_lab(Lab::builder())?;
    run_series_as(NAME, bench, vec![round_trip_series(&stage), one_way_series(&stage)], 24)
}

fn round_trip_series(stage: &SitePair) -> Series<'_> {
    let spec = |method, variant, baselines, waiting| RoundTripSpec {
        method,
        variant,
        baselines,
        waiting,
        bytes: ROUND_TRIP_BYTES,
    };
    let message = |baselines, waiting: WaitMode| {
        spec(CarrierKind::Port.method_name(), Some(waiting.name()), baselines, waiting)
            .message_trial(stage, CarrierKind::Port)
    };
    Series {
        workload: NAME,
        title: format!("{ROUND_TRIP_BYTES} B there and back"),
        sink: None,
        payload_bytes: ROUND_TRIP_BYTES,
        link: None,
        figure: Figure::MedianLatency,
        trials: vec![
            spec("tcp-blocking", None, &[], Blocking).tcp_trial(stage),
            spec("udp-blocking", None, &["tcp-blocking"], Blocking).udp_trial(stage),
            spec("xdp-poll", None, &["tcp-blocking"], Blocking).xdp_trial(stage),
            message(&["tcp-blocking"], Blocking),
            spec("tcp-spinning", None, &[], Spinning).tcp_trial(stage),
            spec("udp-spinning", None, &["tcp-spinning"], Spinning).udp_trial(stage),
            spec("xdp-spinning", None, &["tcp-spinning"], Spinning).xdp_trial(stage),
            message(&["tcp-spinning"], Spinning),
        ],
    }
}

fn one_way_series(stage: &SitePair) -> Series<'_> {
    let series = messages::stream::series_of_length(stage, MESSAGE_BYTES);
    let named = [("tcp-blocking", None), ("message-xdp", Some("spinning"))];
    keep_trials(series, &named)
}
