//! Round trips of a message of 64 bytes, one at a time.

use std::io;

use super::Workload;
use crate::Failure;
use crate::baseline::{tcp, udp};
use crate::bench::Bench;
use crate::conversation::measure_round_trips;
use crate::message::{self, CarrierKind};
use crate::plan::BenchPlan;
use crate::series::{Series, Trial};
use crate::stage::SitePair;
use crate::xdp;
use nocopy_lab::Lab;
use nocopy_report::figure::Figure;
use nocopy_report::result::Evidence;
use nocopy_transfer::exchange::{Exchange, WaitMode};

const NAME: &str = "latency";
const PAYLOAD_BYTES: usize = 64;

const SOCKET_CAUSE: &str = "socket call: the kernel copies what is sent, and what is received";

pub(crate) const ROUND_TRIP: Workload = Workload {
    name: NAME,
    about: "Round trips of 64 bytes",
    methods: &[
        ("udp-blocking", "send() and recv() of a datagram; waits in the kernel"),
        ("udp-spinning", "the same, and both ends spin"),
        ("tcp-blocking", "one connection with TCP_NODELAY; waits in the kernel"),
        ("tcp-spinning", "the same, and both ends spin"),
        ("xdp-poll", "a frame over two ports of AF_XDP; waits in the kernel"),
        ("xdp-spinning", "the same, and both ends spin"),
    ],
    skips: skip_notes,
    ..Workload::measured_by(measure)
};

fn skip_notes(plan: &BenchPlan) -> Vec<String> {
    let skip = "SKIP: tcp-* and udp-*: between two interfaces of one namespace the kernel delivers by loopback; leave out \
                --interface for them.";
    plan.is_between_interfaces().then(|| skip.to_owned()).into_iter().collect()
}

fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    bench.run_series(build_series(&bench.plan.make_site_pair(Lab::builder())?), 22)
}

fn build_series(stage: &SitePair) -> Vec<Series<'_>> {
    use WaitMode::{Blocking, Spinning};
    let spec = |method, baselines, waiting| RoundTripSpec {
        method,
        variant: None,
        baselines,
        waiting,
        bytes: PAYLOAD_BYTES,
    };
    let mut trials = Vec::new();
    if stage.is_private() {
        trials.extend([
            spec("udp-blocking", &[], Blocking).udp_trial(stage),
            spec("udp-spinning", &[], Spinning).udp_trial(stage),
            spec("tcp-blocking", &["udp-blocking"], Blocking).tcp_trial(stage),
            spec("tcp-spinning", &["udp-spinning"], Spinning).tcp_trial(stage),
        ]);
    }
    trials.push(spec("xdp-poll", &["udp-blocking"], Blocking).xdp_trial(stage));
    trials.push(spec("xdp-spinning", &["udp-spinning", "tcp-spinning"], Spinning).xdp_trial(stage));
    vec![Series {
        workload: NAME,
        title: format!("{NAME}, {PAYLOAD_BYTES}-byte payload, there and back"),
        sink: None,
        payload_bytes: PAYLOAD_BYTES,
        link: None,
        figure: Figure::MedianLatency,
        trials,
    }]
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct RoundTripSpec {
    pub method: &'static str,
    pub variant: Option<&'static str>,
    pub baselines: &'static [&'static str],
    pub waiting: WaitMode,
    pub bytes: usize,
}

impl RoundTripSpec {
    /// Between two ends that are opened for each run.
    pub(crate) fn build_trial<'a, E: Exchange + 'a>(
        self,
        stage: &'a SitePair,
        open: impl Fn(&SitePair, WaitMode) -> Result<((E, E), Evidence), Failure> + 'a,
    ) -> Trial<'a> {
        let Self { method, variant, baselines, waiting, bytes } = self;
        let run = move |duration| {
            let (pair, evidence) = open(stage, waiting)?;
            measure_round_trips(stage, method, pair, bytes, waiting, duration, evidence)
        };
        Trial { method, variant: variant.map(str::to_owned), baselines, run: Box::new(run) }
    }

    fn socket_trial<'a, E: Exchange + 'a>(
        self,
        stage: &'a SitePair,
        open: impl Fn(&SitePair, WaitMode) -> io::Result<(E, E)> + 'a,
        action: &'static str,
    ) -> Trial<'a> {
        self.build_trial(stage, move |stage, waiting| {
            let pair =
                open(stage, waiting).map_err(Failure::step(self.method, "open its sockets", action))?;
            Ok((pair, Evidence::copied(SOCKET_CAUSE)))
        })
    }

    pub(crate) fn udp_trial(self, stage: &SitePair) -> Trial<'_> {
        self.socket_trial(stage, udp::connected_pair, "raise 'ulimit -n', or free memory")
    }

    pub(crate) fn tcp_trial(self, stage: &SitePair) -> Trial<'_> {
        self.socket_trial(stage, tcp::connected_pair, "check that the kernel has that congestion control")
    }

    pub(crate) fn message_trial(self, stage: &SitePair, carrier: CarrierKind) -> Trial<'_> {
        self.build_trial(stage, move |stage, waiting| {
            Ok((
                message::connected_pair(stage, carrier, waiting, self.bytes)?,
                Evidence::unknown("nothing was sent"),
            ))
        })
    }

    pub(crate) fn xdp_trial(self, stage: &SitePair) -> Trial<'_> {
        self.build_trial(stage, move |stage, waiting| xdp::port_pair(stage, waiting, self.bytes))
    }
}
