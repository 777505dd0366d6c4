//! Two queues, each with its own sender and receiver, the two pairs on two processors.

use std::time::Duration;

use super::{ACTION, NAME, RING_CAUSE, SINK, Source, admit, failed, figure};
use crate::Failure;
use crate::baseline::packet_ring::PacketRing;
use crate::frame::Template;
use crate::generator::{self, Load};
use crate::series::{Sample, Series, Trial};
use crate::stage::Stage;
use crate::traffic::{Work, run_trial};
use crate::xdp::{self, PortSpec, WaitMode};
use nocopy_report::result::Evidence;

const QUEUES: usize = 2;
const FRAME_BYTES: usize = 64;
const BASELINE: &str = "packet-ring-fanout";

const FANOUT_GROUP: u16 = 1;

/// Each queue's: 1.5 million a second together.
const PACE: Load = Load::Paced { kpps: 750 };

pub(crate) fn series(stage: &Stage) -> Vec<Series<'_>> {
    [PACE, Load::Full].into_iter().map(|load| one_load(stage, load)).collect()
}

fn one_load(stage: &Stage, load: Load) -> Series<'_> {
    let template = Template::to_other_host(stage, FRAME_BYTES);
    let name = format!("two-queues {}-each", load.name());
    let trial = |method, baselines, spec: Option<PortSpec>, run: Run| {
        let context = Context { stage, load, template: template.clone(), method, spec };
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
        figure: figure(load),
        trials: vec![
            trial(BASELINE, &[], None, receive_rings),
            port("ring-fanout", PortSpec::ring(load)),
            port("xdp", PortSpec::xdp(WaitMode::Coalesced(load))),
        ],
    }
}

type Run = fn(&Context<'_>, Duration) -> Result<Sample, Failure>;

struct Context<'a> {
    stage: &'a Stage,
    load: Load,
    template: Template,
    method: &'static str,
    spec: Option<PortSpec>,
}

impl Context<'_> {
    fn run_trial(
        &self,
        duration: Duration,
        receive: Vec<Work<'_>>,
        evidence: Evidence,
    ) -> Result<Sample, Failure> {
        let generator = generator::open(&self.stage.sender)?;
        let frame = self.template.bytes();
        let send = || -> Work<'_> {
            Box::new(|gauge| generator::generate(&generator, (frame, None), self.load, gauge))
        };
        let senders = (0..QUEUES).map(|_| send()).collect();
        let traffic = run_trial(self.stage, duration, None, senders, receive).map_err(failed(self.method))?;
        Ok(Sample { traffic, latency: None, evidence, wanted_share: 1.0 })
    }
}

fn receive_rings(context: &Context<'_>, duration: Duration) -> Result<Sample, Failure> {
    let receiver = &context.stage.receiver;
    let _admission = admit(context.stage, Source::Generator(context.load))?;
    let open = || PacketRing::open(receiver.index, Some(FANOUT_GROUP));
    let rings = receiver.run(|| (0..QUEUES).map(|_| open()).collect::<Result<Vec<_>, _>>());
    let rings = rings.map_err(Failure::step(context.method, "open packet rings", ACTION))?;
    let work = |mut ring: PacketRing| -> Work<'_> { Box::new(move |gauge| ring.receive(gauge)) };
    context.run_trial(duration, rings.into_iter().map(work).collect(), Evidence::copied(RING_CAUSE))
}

fn receive_by_ports(context: &Context<'_>, duration: Duration) -> Result<Sample, Failure> {
    let spec = context.spec.expect("trials of ports want one");
    let _admission = match spec.is_ring() {
        true => admit(context.stage, Source::Generator(context.load))?,
        false => None,
    };
    let ports = spec.open_queues(&context.stage.receiver)?;
    let evidence = xdp::evidence(&ports[0]);
    let work = |port| -> Work<'_> { Box::new(move |gauge| xdp::receive(port, gauge)) };
    context.run_trial(duration, ports.into_iter().map(work).collect(), evidence)
}
