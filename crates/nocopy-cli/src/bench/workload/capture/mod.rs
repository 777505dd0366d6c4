//! Frames from the kernel generator, addressed to another host as on a mirror port, to a program that
//! reads every byte: at full rate, where packets per second count, and at a steady pace, where the
//! receiver's processor time does.

use std::time::Duration;

use nocopy::xdp::{Attach, Attachment, Program};

use super::FRAME_BYTES;
use crate::Failure;
use crate::bench::baseline::packet_ring::PacketRing;
use crate::bench::baseline::packet_socket;
use crate::bench::frame::Template;
use crate::bench::generator::{self, Load};
use crate::bench::result::Evidence;
use crate::bench::series::{Figure, Sample, Series, Trial};
use crate::bench::stage::Stage;
use crate::bench::traffic::{Sink, Work, conduct};
use crate::bench::xdp::{self, Waiting};

pub(crate) const NAME: &str = "capture";
const SINK: &str = "a program that reads every byte";
const BASELINE: &str = "packet-ring";

const SOCKET_CAUSE: &str = "socket call: the kernel copies each socket buffer into the program's memory";
const RING_CAUSE: &str = "packet ring: the kernel copies each socket buffer into the ring";
const LIMIT_CAUSE: &str = "dropped by the driver: no program sees these frames";

/// GRO is one of two things that make veth take redirected frames while no port is on the receiving end. The
/// other, a program that passes everything, is a little slower for the packet ring (1.7 against 1.8 million/s).
pub(crate) const WITH_GRO: bool = true;

const ACTION: &str = "run it as root or grant CAP_NET_RAW and CAP_NET_ADMIN";

pub(crate) fn series(stage: &Stage) -> Vec<Series<'_>> {
    let loads = [Load::Full, Load::Paced];
    let cases = loads.iter().flat_map(|&load| FRAME_BYTES.iter().map(move |&bytes| (load, bytes)));
    cases.map(|(load, bytes)| one_load(stage, load, bytes)).collect()
}

type Run = fn(&Context<'_>, Duration) -> Result<Sample, Failure>;

fn one_load(stage: &Stage, load: Load, frame_bytes: usize) -> Series<'_> {
    let template = Template::to_other_host(stage, frame_bytes);
    let trial = |method, waiting: Option<Waiting>, baselines, run: Run| {
        let context = Context { stage, load, template: template.clone(), method, waiting };
        let words = waiting.iter().map(|waiting| waiting.name()).chain([load.name()]);
        let variant = Some(words.collect::<Vec<_>>().join(" "));
        Trial { method, variant, baselines, run: Box::new(move |duration| run(&context, duration)) }
    };
    let mut trials = vec![
        trial(BASELINE, None, &[], receive_ring as Run),
        trial("recvmmsg", None, &[BASELINE], receive_batches),
        trial("xdp", Some(Waiting::Poll), &[BASELINE], receive_xdp),
        trial("xdp", Some(Waiting::Spinning), &[BASELINE], receive_xdp),
        trial("xdp", Some(Waiting::Coalesced(load)), &[BASELINE], receive_xdp),
    ];
    if load == Load::Full {
        trials.push(trial("xdp-drop", None, &[BASELINE], drop_all));
    }
    let figure = match load {
        Load::Full => Figure::PacketsPerSecond,
        Load::Paced => Figure::ReceiverCpuPerPacket,
    };
    Series {
        workload: NAME,
        title: format!("{NAME}, {frame_bytes}-byte frames, {}", load.name()),
        sink: Some(SINK),
        payload_bytes: frame_bytes,
        figure,
        trials,
    }
}

struct Context<'a> {
    stage: &'a Stage,
    load: Load,
    template: Template,
    method: &'static str,
    waiting: Option<Waiting>,
}

impl Context<'_> {
    fn conduct(
        &self,
        duration: Duration,
        sink: Option<Sink<'_>>,
        receive: Option<Work<'_>>,
        evidence: Evidence,
    ) -> Result<Sample, Failure> {
        let generator = generator::open(&self.stage.sender)?;
        let frame = self.template.bytes();
        let send: Work<'_> = Box::new(|gauge| generator::generate(&generator, frame, self.load, gauge));
        let traffic = conduct(self.stage, duration, sink, send, receive).map_err(Failure::step(
            self.method,
            "capture",
            "check that both interfaces are still up",
        ))?;
        Ok(Sample { traffic, latency: None, evidence })
    }
}

/// Makes the receiving end take frames for sockets: with interfaces that are not ours, by a program that
/// passes everything, because settings of devices are not changed behind their owner's back.
fn admit(context: &Context<'_>) -> Result<Option<Attachment>, Failure> {
    if context.stage.is_private() && WITH_GRO {
        return Ok(None);
    }
    let receiver = &context.stage.receiver;
    let program = Program::pass()?;
    Ok(Some(receiver.run(|| program.attach(&receiver.interface, Attach::Native))?))
}

fn receive_batches(context: &Context<'_>, duration: Duration) -> Result<Sample, Failure> {
    let receiver = &context.stage.receiver;
    let _admission = admit(context)?;
    let socket = receiver.run(|| packet_socket::receiver(receiver.index)).map_err(Failure::step(
        context.method,
        "open a packet socket",
        ACTION,
    ))?;
    let work: Work<'_> = Box::new(|gauge| packet_socket::receive_batches(&socket, gauge));
    context.conduct(duration, None, Some(work), Evidence::copied(SOCKET_CAUSE))
}

fn receive_ring(context: &Context<'_>, duration: Duration) -> Result<Sample, Failure> {
    let receiver = &context.stage.receiver;
    let _admission = admit(context)?;
    let mut ring = receiver.run(|| PacketRing::open(receiver.index)).map_err(Failure::step(
        context.method,
        "open a packet ring",
        ACTION,
    ))?;
    let work: Work<'_> = Box::new(move |gauge| ring.receive(gauge));
    context.conduct(duration, None, Some(work), Evidence::copied(RING_CAUSE))
}

fn receive_xdp(context: &Context<'_>, duration: Duration) -> Result<Sample, Failure> {
    let port = xdp::open(&context.stage.receiver, context.waiting.unwrap_or(Waiting::Poll))?;
    let evidence = xdp::evidence(&port);
    let work: Work<'_> = Box::new(move |gauge| xdp::receive(port, gauge));
    context.conduct(duration, None, Some(work), evidence)
}

/// The limit: what arrives when nobody takes it.
fn drop_all(context: &Context<'_>, duration: Duration) -> Result<Sample, Failure> {
    let receiver = &context.stage.receiver;
    let (program, counter) = Program::counting_drop()?;
    let _attachment = receiver.run(|| program.attach(&receiver.interface, Attach::Native))?;
    let count = || counter.packets();
    context.conduct(duration, Some(&count), None, Evidence::unknown(LIMIT_CAUSE))
}
