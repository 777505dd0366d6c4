//! Frames from user space to a sink: an XDP program on the other side that counts and drops them, so that
//! what is measured is sending and not receiving.

use std::io;
use std::time::Duration;

use nocopy::integration::xdp::{Attach, Attachment, Counter, Program};
use nocopy::port::Purpose;

use super::{FRAME_BYTES, Workload};
use crate::Failure;
use crate::baseline::packet_socket;
use crate::baseline::packet_tx_ring::PacketTxRing;
use crate::bench::Bench;
use crate::frame::FrameTemplate;
use crate::generator::{self, GeneratorLoad};
use crate::series::{BEST_MODE, Sample, Series, Trial};
use crate::stage::SitePair;
use crate::traffic::{ThreadWork, run_trial};
use crate::xdp::{self, PortSpec, PortWaitMode};
use nocopy_lab::Lab;
use nocopy_report::figure::Figure;
use nocopy_report::result::Evidence;

const NAME: &str = "packet-send";
const SINK: &str = "XDP_DROP on the peer";
/// The baseline: one `send()` per packet, as `pcap_inject` does.
const BASELINE: &str = "packet-send";

const LONG_FRAME_BYTES: usize = 8192;

const TX_RING_CAUSE: &str =
    "packet tx ring: the socket buffer refers to the ring, and a later copy is not reported";
const SOCKET_CAUSE: &str = "socket call: the kernel copies each frame into a socket buffer";

/// Frames sent from user space to a sink that drops them.
pub(crate) const PACKET_SEND: Workload = Workload {
    name: NAME,
    about: "Frames sent from user space to a sink that drops them",
    methods: &[
        ("packet-send", "send() on a packet socket, a call for each frame, as pcap_inject does"),
        ("sendmmsg", "sendmmsg() on a packet socket, 64 frames a call"),
        ("packet-tx-ring", "PACKET_TX_RING of a packet socket"),
        ("ring", "a port in packet ring mode (PACKET_MMAP)"),
        ("xdp", "a port over AF_XDP, in copy mode on veth"),
        ("default", "a port opened with nothing set but its purpose; long frames only"),
        (
            "kernel-generator",
            "a template that the kernel sends again and again; no program writes these frames, so there is no ratio",
        ),
    ],
    ..Workload::measured_by(measure)
};

fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let stage = bench.plan.make_site_pair(Lab::builder())?;
    let sink = CountingDropSink::open(&stage)?;
    bench.run_series(build_series(&stage, &sink), 30)?;
    if let Some(stage) = bench.plan.make_long_frame_site_pair()? {
        let sink = CountingDropSink::open(&stage)?;
        bench.run_series(series_of_long_frames(&stage, &sink), 18)?;
    }
    Ok(())
}

#[derive(Debug)]
pub(crate) struct CountingDropSink {
    _attachment: Attachment,
    counter: Counter,
}

impl CountingDropSink {
    pub(crate) fn packets(&self) -> io::Result<u64> {
        self.counter.packets()
    }

    pub(crate) fn open(stage: &SitePair) -> Result<Self, Failure> {
        let interface = &stage.receiver.interface;
        let (program, counter) = Program::counting_drop()?;
        let attachment = stage.receiver.run(|| program.attach(interface, Attach::Native))?;
        Ok(Self { _attachment: attachment, counter })
    }
}

fn build_series<'a>(stage: &'a SitePair, sink: &'a CountingDropSink) -> Vec<Series<'a>> {
    FRAME_BYTES.iter().map(|&bytes| series_of_length(stage, sink, bytes)).collect()
}

fn series_of_long_frames<'a>(stage: &'a SitePair, sink: &'a CountingDropSink) -> Vec<Series<'a>> {
    vec![series_of_length(stage, sink, LONG_FRAME_BYTES)]
}

pub(crate) fn series_of_length<'a>(
    stage: &'a SitePair,
    sink: &'a CountingDropSink,
    frame_bytes: usize,
) -> Series<'a> {
    let template = FrameTemplate::to_peer(stage, frame_bytes);
    let long = frame_bytes == LONG_FRAME_BYTES;
    let trial = |method, baselines, spec: Option<PortSpec>, run: RunFunction| {
        let spec = spec.map(|spec| spec.with_long_packets(long));
        let context = PacketSendContext { stage, sink, template: template.clone(), method, spec };
        let run = Box::new(move |duration| run(&context, duration));
        Trial { method, variant: None, baselines, run }
    };
    let port = |method, baselines, spec| trial(method, baselines, Some(spec), send_by_port);
    let mut trials = vec![
        trial(BASELINE, &[], None, send_singly as RunFunction),
        trial("sendmmsg", &[BASELINE], None, send_batches),
        trial("packet-tx-ring", &[BASELINE], None, send_tx_ring),
        port("ring", &[BASELINE], PortSpec::in_ring_mode(GeneratorLoad::Full)),
        port("xdp", &[BASELINE], PortSpec::in_xdp_mode(PortWaitMode::Poll)),
    ];
    if long {
        trials.push(port("default", &[BASELINE, BEST_MODE], PortSpec::with_defaults_for(Purpose::Send)));
    } else {
        // No ratio: no program writes these frames, of which a page is the longest.
        trials.push(trial("kernel-generator", &[], None, send_by_generator));
    }
    Series {
        workload: NAME,
        title: format!("{NAME}, {frame_bytes}-byte frames"),
        sink: Some(SINK),
        payload_bytes: frame_bytes,
        link: None,
        figure: Figure::PacketsPerSecond,
        trials,
    }
}

type RunFunction = fn(&PacketSendContext<'_>, Duration) -> Result<Sample, Failure>;

struct PacketSendContext<'a> {
    stage: &'a SitePair,
    sink: &'a CountingDropSink,
    template: FrameTemplate,
    method: &'static str,
    spec: Option<PortSpec>,
}

impl PacketSendContext<'_> {
    fn run_trial(
        &self,
        duration: Duration,
        send: ThreadWork<'_>,
        evidence: Evidence,
    ) -> Result<Sample, Failure> {
        let count = || self.sink.packets();
        let traffic = run_trial(self.stage, duration, Some(&count), vec![send], Vec::new())
            .map_err(Failure::step(self.method, "send", "check that the interface is still up"))?;
        Ok(Sample { traffic, latency: None, evidence, wanted_share: 1.0 })
    }

    fn open_socket(&self) -> Result<std::os::fd::OwnedFd, Failure> {
        let sender = &self.stage.sender;
        sender.run(|| packet_socket::open_sender(sender.index)).map_err(Failure::step(
            self.method,
            "open a packet socket",
            "run it as root or grant CAP_NET_RAW",
        ))
    }
}

fn send_singly(context: &PacketSendContext<'_>, duration: Duration) -> Result<Sample, Failure> {
    let socket = context.open_socket()?;
    let work: ThreadWork<'_> =
        Box::new(|gauge| packet_socket::send_singly(&socket, &context.template, gauge));
    context.run_trial(duration, work, Evidence::copied(SOCKET_CAUSE))
}

fn send_batches(context: &PacketSendContext<'_>, duration: Duration) -> Result<Sample, Failure> {
    let socket = context.open_socket()?;
    let work: ThreadWork<'_> =
        Box::new(|gauge| packet_socket::send_batches(&socket, &context.template, gauge));
    context.run_trial(duration, work, Evidence::copied(SOCKET_CAUSE))
}

fn send_tx_ring(context: &PacketSendContext<'_>, duration: Duration) -> Result<Sample, Failure> {
    let (sender, bytes) = (&context.stage.sender, context.template.bytes().len());
    let mut ring = sender.run(|| PacketTxRing::open(sender.index, bytes)).map_err(Failure::step(
        context.method,
        "open a packet ring to send",
        "run it as root or grant CAP_NET_RAW",
    ))?;
    let work: ThreadWork<'_> = Box::new(move |gauge| ring.send(&context.template, gauge));
    context.run_trial(duration, work, Evidence::unknown(TX_RING_CAUSE))
}

fn send_by_port(context: &PacketSendContext<'_>, duration: Duration) -> Result<Sample, Failure> {
    let spec = context.spec.expect("trials of ports want one");
    let port = spec.open(&context.stage.sender)?;
    let evidence = xdp::port_evidence(&port);
    let work: ThreadWork<'_> = Box::new(move |gauge| xdp::send_packets(port, &context.template, gauge));
    context.run_trial(duration, work, evidence)
}

fn send_by_generator(context: &PacketSendContext<'_>, duration: Duration) -> Result<Sample, Failure> {
    let generator = generator::open_generator(&context.stage.sender)?;
    let frame = context.template.bytes();
    let work: ThreadWork<'_> =
        Box::new(|gauge| generator::generate_frames(&generator, (frame, None), GeneratorLoad::Full, gauge));
    context.run_trial(duration, work, Evidence::unknown(generator::CAUSE))
}
