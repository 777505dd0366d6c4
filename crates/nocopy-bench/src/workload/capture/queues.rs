//! Two queues, each with its own sender and receiver, the two pairs on two processors.

use std::time::Duration;

use super::{
    ACTION, NAME, RING_CAUSE, SINK, TrafficSource, admit_frames, capture_failure, judged_metric_for_load,
};
use crate::Failure;
use crate::baseline::packet_ring::PacketRing;
use crate::frame::FrameTemplate;
use crate::generator::{self, GeneratorLoad};
use crate::series::{Sample, Series, Trial};
use crate::stage::SitePair;
use crate::traffic::{ThreadWork, run_trial};
use crate::xdp::{self, PortSpec, PortWaitMode};
use nocopy_report::result::Evidence;

const QUEUES: usize = 2;
const FRAME_BYTES: usize = 64;
const BASELINE: &str = "packet-ring-fanout";

const FANOUT_GROUP: u16 = 1;

/// Each queue's: 1.5 million a second together.
const PACE: GeneratorLoad = GeneratorLoad::Paced { kpps: 750 };

pub(crate) fn build_series(stage: &SitePair) -> Vec<Series<'_>> {
    [PACE, GeneratorLoad::Full].into_iter().map(|load| series_of_load(stage, load)).collect()
}

fn series_of_load(stage: &SitePair, load: GeneratorLoad) -> Series<'_> {
    let template = FrameTemplate::to_other_host(stage, FRAME_BYTES);
    let name = format!("two-queues {}-each", load.name());
    let trial = |method, baselines, spec: Option<PortSpec>, run: RunFunction| {
        let context = QueuesContext { stage, load, template: template.clone(), method, spec };
        let waiting = spec.and_then(PortSpec::waiting).map(|waiting| waiting.name().to_owned());
        let variant = Some(waiting.into_iter().chain([name.clone()]).collect::<Vec<_>>().join(" "));
        Trial { method, variant, baselines, run: Box::new(move |duration| run(&context, duration)) }
    };
    let port = |method, spec| trial(method, &[BASELINE], Some(spec), receive_by_ports);
    Series {
        workload: NAME,
        title: format!("{NAME}, {FRAME_BYTES}-byte frames, {name}"),
        sink: Some(SINK),
        payload_bytes: FRAME_BYTES,
        link: None,
        figure: judged_metric_for_load(load),
        trials: vec![
            trial(BASELINE, &[], None, receive_rings),
            port("ring-fanout", PortSpec::in_ring_mode(load)),
            port("xdp", PortSpec::in_xdp_mode(PortWaitMode::Coalesced(load))),
        ],
    }
}

type RunFunction = fn(&QueuesContext<'_>, Duration) -> Result<Sample, Failure>;

struct QueuesContext<'a> {
    stage: &'a SitePair,
    load: GeneratorLoad,
    template: FrameTemplate,
    method: &'static str,
    spec: Option<PortSpec>,
}

impl QueuesContext<'_> {
    fn run_trial(
        &self,
        duration: Duration,
        receive: Vec<ThreadWork<'_>>,
        evidence: Evidence,
    ) -> Result<Sample, Failure> {
        let generator = generator::open_generator(&self.stage.sender)?;
        let frame = self.template.bytes();
        let send = || -> ThreadWork<'_> {
            Box::new(|gauge| generator::generate_frames(&generator, (frame, None), self.load, gauge))
        };
        let senders = (0..QUEUES).map(|_| send()).collect();
        let traffic =
            run_trial(self.stage, duration, None, senders, receive).map_err(capture_failure(self.method))?;
        Ok(Sample { traffic, latency: None, evidence, wanted_share: 1.0 })
    }
}

fn receive_rings(context: &QueuesContext<'_>, duration: Duration) -> Result<Sample, Failure> {
    let receiver = &context.stage.receiver;
    let _admission = admit_frames(context.stage, TrafficSource::Generator(context.load))?;
    let open = || PacketRing::open(receiver.index, Some(FANOUT_GROUP));
    let rings = receiver.run(|| (0..QUEUES).map(|_| open()).collect::<Result<Vec<_>, _>>());
    let rings = rings.map_err(Failure::step(context.method, "open packet rings", ACTION))?;
    let work = |mut ring: PacketRing| -> ThreadWork<'_> { Box::new(move |gauge| ring.receive(gauge)) };
    context.run_trial(duration, rings.into_iter().map(work).collect(), Evidence::copied(RING_CAUSE))
}

fn receive_by_ports(context: &QueuesContext<'_>, duration: Duration) -> Result<Sample, Failure> {
    let spec = context.spec.expect("trials of ports want one");
    let _admission = match spec.is_ring() {
        true => admit_frames(context.stage, TrafficSource::Generator(context.load))?,
        false => None,
    };
    let ports = spec.open_queues(&context.stage.receiver)?;
    let evidence = xdp::port_evidence(&ports[0]);
    let work = |port| -> ThreadWork<'_> { Box::new(move |gauge| xdp::receive_packets(port, gauge)) };
    context.run_trial(duration, ports.into_iter().map(work).collect(), evidence)
}
