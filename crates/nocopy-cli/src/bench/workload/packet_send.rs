//! Frames from user space to a sink: an XDP program on the other side that counts and drops them, so that
//! what is measured is sending and not receiving.

use std::time::Duration;

use nocopy::xdp::{Attach, Attachment, Counter, Program};

use super::FRAME_BYTES;
use crate::Failure;
use crate::bench::baseline::packet_socket;
use crate::bench::frame::Template;
use crate::bench::generator::{self, Load};
use crate::bench::result::Evidence;
use crate::bench::series::{Figure, Sample, Series, Trial};
use crate::bench::stage::Stage;
use crate::bench::traffic::{Work, conduct};
use crate::bench::xdp;

pub(crate) const NAME: &str = "packet-send";
const SINK: &str = "XDP_DROP on the peer";
/// What `pcap_inject` does.
const BASELINE: &str = "packet-send";

const SOCKET_CAUSE: &str = "socket call: the kernel copies each frame into a socket buffer";

/// The sink, for as long as the workload runs.
#[derive(Debug)]
pub(crate) struct Sink {
    _attachment: Attachment,
    counter: Counter,
}

impl Sink {
    pub(crate) fn open(stage: &Stage) -> Result<Self, Failure> {
        let interface = &stage.receiver.interface;
        let (program, counter) = Program::counting_drop()?;
        let attachment = stage.receiver.run(|| program.attach(interface, Attach::Native))?;
        Ok(Self { _attachment: attachment, counter })
    }
}

pub(crate) fn series<'a>(stage: &'a Stage, sink: &'a Sink) -> Vec<Series<'a>> {
    FRAME_BYTES.iter().map(|&bytes| one_length(stage, sink, bytes)).collect()
}

fn one_length<'a>(stage: &'a Stage, sink: &'a Sink, frame_bytes: usize) -> Series<'a> {
    let template = Template::to_peer(stage, frame_bytes);
    let trial = |method, baselines, run: fn(&Context<'_>, Duration) -> Result<Sample, Failure>| {
        let context = Context { stage, sink, template: template.clone(), method };
        let run = Box::new(move |duration| run(&context, duration));
        Trial { method, variant: None, baselines, run }
    };
    Series {
        workload: NAME,
        title: format!("{NAME}, {frame_bytes}-byte frames"),
        sink: Some(SINK),
        payload_bytes: frame_bytes,
        figure: Figure::PacketsPerSecond,
        trials: vec![
            trial(BASELINE, &[], send_singly),
            trial("sendmmsg", &[BASELINE], send_batches),
            trial("xdp", &[BASELINE], send_xdp),
            // No ratio: nobody writes these frames.
            trial("kernel-generator", &[], generate),
        ],
    }
}

struct Context<'a> {
    stage: &'a Stage,
    sink: &'a Sink,
    template: Template,
    method: &'static str,
}

impl Context<'_> {
    fn conduct(&self, duration: Duration, send: Work<'_>, evidence: Evidence) -> Result<Sample, Failure> {
        let count = || self.sink.counter.packets();
        let traffic = conduct(self.stage, duration, Some(&count), send, None).map_err(Failure::step(
            self.method,
            "send",
            "check that the interface is still up",
        ))?;
        Ok(Sample { traffic, latency: None, evidence })
    }

    fn socket(&self) -> Result<std::os::fd::OwnedFd, Failure> {
        let sender = &self.stage.sender;
        sender.run(|| packet_socket::sender(sender.index)).map_err(Failure::step(
            self.method,
            "open a packet socket",
            "run it as root or grant CAP_NET_RAW",
        ))
    }
}

fn send_singly(context: &Context<'_>, duration: Duration) -> Result<Sample, Failure> {
    let socket = context.socket()?;
    let work: Work<'_> = Box::new(|gauge| packet_socket::send_singly(&socket, &context.template, gauge));
    context.conduct(duration, work, Evidence::copied(SOCKET_CAUSE))
}

fn send_batches(context: &Context<'_>, duration: Duration) -> Result<Sample, Failure> {
    let socket = context.socket()?;
    let work: Work<'_> = Box::new(|gauge| packet_socket::send_batches(&socket, &context.template, gauge));
    context.conduct(duration, work, Evidence::copied(SOCKET_CAUSE))
}

fn send_xdp(context: &Context<'_>, duration: Duration) -> Result<Sample, Failure> {
    let port = xdp::open(&context.stage.sender, xdp::Waiting::Poll)?;
    let evidence = xdp::evidence(&port);
    let work: Work<'_> = Box::new(move |gauge| xdp::send(port, &context.template, gauge));
    context.conduct(duration, work, evidence)
}

fn generate(context: &Context<'_>, duration: Duration) -> Result<Sample, Failure> {
    let generator = generator::open(&context.stage.sender)?;
    let frame = context.template.bytes();
    let work: Work<'_> = Box::new(|gauge| generator::generate(&generator, frame, Load::Full, gauge));
    context.conduct(duration, work, Evidence::unknown(generator::CAUSE))
}
