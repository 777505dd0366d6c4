//! One sender, one receiver.

use std::time::Duration;

use nocopy::integration::xdp::{Attach, Program};
use nocopy::port::Purpose;

use super::{
    ACTION, BASELINE, LONG_FRAME_BYTES, NAME, RING_CAUSE, SINK, TrafficSource, admit_frames, capture_failure,
    judged_metric_for_load,
};
use crate::Failure;
use crate::baseline::packet_ring::PacketRing;
use crate::baseline::packet_socket;
use crate::frame::{FrameTemplate, try_read_every_byte};
use crate::generator::{self, GeneratorLoad};
use crate::series::{BEST_MODE, Sample, Series, Trial};
use crate::stage::{FRAME_BYTES_MAX, SitePair};
use crate::traffic::{SinkCounter, ThreadWork, run_trial};
use crate::xdp::{self, PortSpec, PortWaitMode};
use nocopy_report::result::Evidence;

const SOCKET_CAUSE: &str = "socket call: the kernel copies each socket buffer into the program's memory";
const LIMIT_CAUSE: &str = "dropped by the driver: no program sees these frames";

pub(super) fn build_series(stage: &SitePair, source: TrafficSource, frame_bytes: usize) -> Series<'_> {
    let template = FrameTemplate::to_other_host(stage, frame_bytes);
    let (load, long) = (source.load(), frame_bytes == LONG_FRAME_BYTES);
    let trial = |method, baselines, spec: Option<PortSpec>, run: RunFunction| {
        let spec = spec.map(|spec| spec.with_long_packets(long));
        let context = CaptureContext { stage, source, template: template.clone(), method, spec };
        let waiting = spec.and_then(PortSpec::waiting).map(|waiting| waiting.name().to_owned());
        let variant = Some(waiting.into_iter().chain([source.name()]).collect::<Vec<_>>().join(" "));
        Trial { method, variant, baselines, run: Box::new(move |duration| run(&context, duration)) }
    };
    let port = |method, baselines, spec| trial(method, baselines, Some(spec), receive_by_port);
    let mut trials = vec![
        trial(BASELINE, &[], None, receive_ring as RunFunction),
        port("ring", &[BASELINE], PortSpec::in_ring_mode(load)),
        port("xdp", &[BASELINE], PortSpec::in_xdp_mode(PortWaitMode::Poll)),
        port("xdp", &[BASELINE], PortSpec::in_xdp_mode(PortWaitMode::Spinning)),
        port("xdp", &[BASELINE], PortSpec::in_xdp_mode(PortWaitMode::Coalesced(load))),
    ];
    match source {
        TrafficSource::Generator(load) => {
            trials.push(trial("recvmmsg", &[BASELINE], None, receive_batches));
            if load == GeneratorLoad::Full {
                trials.push(trial("xdp-drop", &[BASELINE], None, drop_by_xdp_program));
            }
        }
        TrafficSource::Sockets => {
            trials.push(port(
                "default",
                &[BASELINE, BEST_MODE],
                PortSpec::with_defaults_for(Purpose::Capture),
            ));
        }
    }
    Series {
        workload: NAME,
        title: format!("{NAME}, {frame_bytes}-byte frames, {}", source.name()),
        sink: Some(SINK),
        payload_bytes: frame_bytes,
        link: None,
        figure: judged_metric_for_load(load),
        trials,
    }
}

type RunFunction = fn(&CaptureContext<'_>, Duration) -> Result<Sample, Failure>;

struct CaptureContext<'a> {
    stage: &'a SitePair,
    source: TrafficSource,
    template: FrameTemplate,
    method: &'static str,
    spec: Option<PortSpec>,
}

impl CaptureContext<'_> {
    fn run_trial(
        &self,
        duration: Duration,
        sink: Option<SinkCounter<'_>>,
        receive: Vec<ThreadWork<'_>>,
        evidence: Evidence,
    ) -> Result<Sample, Failure> {
        let (sender, frame) = (&self.stage.sender, self.template.bytes());
        let run_trial = |send: ThreadWork<'_>| run_trial(self.stage, duration, sink, vec![send], receive);
        let traffic = match self.source {
            TrafficSource::Generator(load) => {
                let generator = generator::open_generator(sender)?;
                run_trial(Box::new(|gauge| {
                    generator::generate_frames(&generator, (frame, None), load, gauge)
                }))
            }
            TrafficSource::Sockets => {
                let socket = sender.run(|| packet_socket::open_sender(sender.index));
                let socket = socket.map_err(Failure::step(self.method, "open a packet socket", ACTION))?;
                run_trial(Box::new(|gauge| packet_socket::send_batches(&socket, &self.template, gauge)))
            }
        };
        Ok(Sample {
            traffic: traffic.map_err(capture_failure(self.method))?,
            latency: None,
            evidence,
            wanted_share: 1.0,
        })
    }
}

fn receive_batches(context: &CaptureContext<'_>, duration: Duration) -> Result<Sample, Failure> {
    let receiver = &context.stage.receiver;
    let _admission = admit_frames(context.stage, context.source)?;
    let socket = receiver.run(|| packet_socket::open_receiver(receiver.index)).map_err(Failure::step(
        context.method,
        "open a packet socket",
        ACTION,
    ))?;
    let work: ThreadWork<'_> = Box::new(|gauge| {
        packet_socket::receive_batches(&socket, FRAME_BYTES_MAX, gauge, try_read_every_byte)
    });
    context.run_trial(duration, None, vec![work], Evidence::copied(SOCKET_CAUSE))
}

fn receive_ring(context: &CaptureContext<'_>, duration: Duration) -> Result<Sample, Failure> {
    let receiver = &context.stage.receiver;
    let _admission = admit_frames(context.stage, context.source)?;
    let mut ring = receiver.run(|| PacketRing::open(receiver.index, None)).map_err(Failure::step(
        context.method,
        "open a packet ring",
        ACTION,
    ))?;
    let work: ThreadWork<'_> = Box::new(move |gauge| ring.receive(gauge));
    context.run_trial(duration, None, vec![work], Evidence::copied(RING_CAUSE))
}

fn receive_by_port(context: &CaptureContext<'_>, duration: Duration) -> Result<Sample, Failure> {
    let spec = context.spec.expect("trials of ports want one");
    let _admission = match spec.is_ring() {
        true => admit_frames(context.stage, context.source)?,
        false => None,
    };
    let port = spec.open(&context.stage.receiver)?;
    let evidence = xdp::port_evidence(&port);
    let long = context.template.bytes().len() == LONG_FRAME_BYTES;
    let receive = if long { xdp::receive_chains } else { xdp::receive_packets };
    let work: ThreadWork<'_> = Box::new(move |gauge| receive(port, gauge));
    context.run_trial(duration, None, vec![work], evidence)
}

/// The limit: the packets that arrive if no program receives them.
fn drop_by_xdp_program(context: &CaptureContext<'_>, duration: Duration) -> Result<Sample, Failure> {
    let receiver = &context.stage.receiver;
    let (program, counter) = Program::counting_drop()?;
    let _attachment = receiver.run(|| program.attach(&receiver.interface, Attach::Native))?;
    let count = || counter.packets();
    context.run_trial(duration, Some(&count), Vec::new(), Evidence::unknown(LIMIT_CAUSE))
}
