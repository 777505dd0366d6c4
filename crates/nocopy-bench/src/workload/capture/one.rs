//! One sender, one receiver.

use std::time::Duration;

use nocopy::integration::xdp::{Attach, Program};
use nocopy::port::Purpose;

use super::{ACTION, BASELINE, LONG_FRAME_BYTES, NAME, RING_CAUSE, SINK, Source, admit, failed, figure};
use crate::Failure;
use crate::baseline::packet_ring::PacketRing;
use crate::baseline::packet_socket;
use crate::frame::{Template, read_any};
use crate::generator::{self, Load};
use crate::series::{BEST_MODE, Sample, Series, Trial};
use crate::stage::{FRAME_BYTES_MAX, Stage};
use crate::traffic::{Sink, Work, run_trial};
use crate::xdp::{self, PortSpec, WaitMode};
use nocopy_report::result::Evidence;

const SOCKET_CAUSE: &str = "socket call: the kernel copies each socket buffer into the program's memory";
const LIMIT_CAUSE: &str = "dropped by the driver: no program sees these frames";

pub(super) fn series(stage: &Stage, source: Source, frame_bytes: usize) -> Series<'_> {
    let template = Template::to_other_host(stage, frame_bytes);
    let (load, long) = (source.load(), frame_bytes == LONG_FRAME_BYTES);
    let trial = |method, baselines, spec: Option<PortSpec>, run: Run| {
        let spec = spec.map(|spec| spec.long(long));
        let context = Context { stage, source, template: template.clone(), method, spec };
        let waiting = spec.and_then(PortSpec::waiting).map(|waiting| waiting.name().to_owned());
        let variant = Some(waiting.into_iter().chain([source.name()]).collect::<Vec<_>>().join(" "));
        Trial { method, variant, baselines, run: Box::new(move |duration| run(&context, duration)) }
    };
    let port = |method, baselines, spec| trial(method, baselines, Some(spec), receive_by_port);
    let mut trials = vec![
        trial(BASELINE, &[], None, receive_ring as Run),
        port("ring", &[BASELINE], PortSpec::ring(load)),
        port("xdp", &[BASELINE], PortSpec::xdp(WaitMode::Poll)),
        port("xdp", &[BASELINE], PortSpec::xdp(WaitMode::Spinning)),
        port("xdp", &[BASELINE], PortSpec::xdp(WaitMode::Coalesced(load))),
    ];
    match source {
        Source::Generator(load) => {
            trials.push(trial("recvmmsg", &[BASELINE], None, receive_batches));
            if load == Load::Full {
                trials.push(trial("xdp-drop", &[BASELINE], None, drop_all));
            }
        }
        Source::Sockets => {
            trials.push(port("default", &[BASELINE, BEST_MODE], PortSpec::default_for(Purpose::Capture)));
        }
    }
    Series {
        workload: NAME,
        title: format!("{NAME}, {frame_bytes}-byte frames, {}", source.name()),
        sink: Some(SINK),
        payload_bytes: frame_bytes,
        link: None,
        figure: figure(load),
        trials,
    }
}

type Run = fn(&Context<'_>, Duration) -> Result<Sample, Failure>;

struct Context<'a> {
    stage: &'a Stage,
    source: Source,
    template: Template,
    method: &'static str,
    spec: Option<PortSpec>,
}

impl Context<'_> {
    fn run_trial(
        &self,
        duration: Duration,
        sink: Option<Sink<'_>>,
        receive: Vec<Work<'_>>,
        evidence: Evidence,
    ) -> Result<Sample, Failure> {
        let (sender, frame) = (&self.stage.sender, self.template.bytes());
        let run_trial = |send: Work<'_>| run_trial(self.stage, duration, sink, vec![send], receive);
        let traffic = match self.source {
            Source::Generator(load) => {
                let generator = generator::open(sender)?;
                run_trial(Box::new(|gauge| generator::generate(&generator, (frame, None), load, gauge)))
            }
            Source::Sockets => {
                let socket = sender.run(|| packet_socket::sender(sender.index));
                let socket = socket.map_err(Failure::step(self.method, "open a packet socket", ACTION))?;
                run_trial(Box::new(|gauge| packet_socket::send_batches(&socket, &self.template, gauge)))
            }
        };
        Ok(Sample {
            traffic: traffic.map_err(failed(self.method))?,
            latency: None,
            evidence,
            wanted_share: 1.0,
        })
    }
}

fn receive_batches(context: &Context<'_>, duration: Duration) -> Result<Sample, Failure> {
    let receiver = &context.stage.receiver;
    let _admission = admit(context.stage, context.source)?;
    let socket = receiver.run(|| packet_socket::receiver(receiver.index)).map_err(Failure::step(
        context.method,
        "open a packet socket",
        ACTION,
    ))?;
    let work: Work<'_> =
        Box::new(|gauge| packet_socket::receive_batches(&socket, FRAME_BYTES_MAX, gauge, read_any));
    context.run_trial(duration, None, vec![work], Evidence::copied(SOCKET_CAUSE))
}

fn receive_ring(context: &Context<'_>, duration: Duration) -> Result<Sample, Failure> {
    let receiver = &context.stage.receiver;
    let _admission = admit(context.stage, context.source)?;
    let mut ring = receiver.run(|| PacketRing::open(receiver.index, None)).map_err(Failure::step(
        context.method,
        "open a packet ring",
        ACTION,
    ))?;
    let work: Work<'_> = Box::new(move |gauge| ring.receive(gauge));
    context.run_trial(duration, None, vec![work], Evidence::copied(RING_CAUSE))
}

fn receive_by_port(context: &Context<'_>, duration: Duration) -> Result<Sample, Failure> {
    let spec = context.spec.expect("trials of ports want one");
    let _admission = match spec.is_ring() {
        true => admit(context.stage, context.source)?,
        false => None,
    };
    let port = spec.open(&context.stage.receiver)?;
    let evidence = xdp::evidence(&port);
    let long = context.template.bytes().len() == LONG_FRAME_BYTES;
    let receive = if long { xdp::receive_chains } else { xdp::receive };
    let work: Work<'_> = Box::new(move |gauge| receive(port, gauge));
    context.run_trial(duration, None, vec![work], evidence)
}

/// The limit: the packets that arrive if no program receives them.
fn drop_all(context: &Context<'_>, duration: Duration) -> Result<Sample, Failure> {
    let receiver = &context.stage.receiver;
    let (program, counter) = Program::counting_drop()?;
    let _attachment = receiver.run(|| program.attach(&receiver.interface, Attach::Native))?;
    let count = || counter.packets();
    context.run_trial(duration, Some(&count), Vec::new(), Evidence::unknown(LIMIT_CAUSE))
}
