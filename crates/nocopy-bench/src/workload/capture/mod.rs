//! Packets addressed to another host, as on a mirror port, to a program that reads every byte.
//!
//! From the kernel generator, which makes them look like those of a card with XDP: at full rate, where
//! packets per second count, and at a steady pace, where the receiver's processor time does ([`one`]), also
//! for a few of many packets ([`filtered`]); on two queues for two threads ([`queues`]). From a packet socket
//! of the other end, as veth sees packets of programs: short ones, and at an MTU of 9000 long ones.

mod filtered;
mod one;
mod queues;

use nocopy::integration::probe;
use nocopy::integration::xdp::{Attach, Attachment, Program};

use super::{FRAME_BYTES, Workload};
use crate::Failure;
use crate::bench::Bench;
use crate::generator::GeneratorLoad;
use crate::plan::BenchPlan;
use crate::series::Series;
use crate::stage::{NetworkSite, SitePair};
use nocopy_lab::Lab;
use nocopy_report::figure::Figure;
pub(crate) use queues::build_series as on_two_queues;

const NAME: &str = "capture";
const SINK: &str = "a program that reads every byte";
const BASELINE: &str = "packet-ring";

const RING_CAUSE: &str = "packet ring: the kernel copies each socket buffer into the ring";

const ACTION: &str = "run it as root or grant CAP_NET_RAW and CAP_NET_ADMIN";

/// GRO is one of two things that make veth take redirected frames while no port is on the receiving end. The
/// other, a program that passes everything, is a little slower for the packet ring (1.7 against 1.8
/// million/s). Packets from sockets arrive without GRO: there it is off, as on a new veth.
pub(crate) const WITH_GRO: bool = true;

pub(crate) const PACE: GeneratorLoad = GeneratorLoad::Paced { kpps: 300 };

const LONG_FRAME_BYTES: usize = 9000;

/// Packets for another host, to a program that reads every byte.
pub(crate) const CAPTURE: Workload = Workload {
    name: NAME,
    about: "Frames made by the kernel, received in user space",
    methods: &[
        ("packet-ring", "TPACKET_V3 of a packet socket, by hand"),
        ("ring", "a port in packet ring mode (PACKET_MMAP)"),
        (
            "xdp",
            "a port over AF_XDP, in copy mode on veth; 'poll', 'spinning' or 'coalesced' says how it waits",
        ),
        ("recvmmsg", "recvmmsg() on a packet socket"),
        ("xdp-drop", "an XDP program that drops everything: what arrives when nothing takes it"),
        ("default", "a port opened with nothing set but its purpose; packets from sockets"),
        ("xdp-filter", "the same port as 'xdp', with a filter that 1 % of the packets pass"),
        ("ring-filter", "the same port as 'ring', with that filter"),
        ("packet-ring-fanout", "two TPACKET_V3 sockets, each with the packets of one processor; two queues"),
        ("ring-fanout", "two ports in packet ring mode; two queues"),
    ],
    skips: skip_notes,
    ..Workload::measured_by(measure)
};

fn skip_notes(plan: &BenchPlan) -> Vec<String> {
    let skip = "SKIP: two queues: which queue a packet comes to is the card's decision; leave out --interface for them.";
    plan.is_between_interfaces().then(|| skip.to_owned()).into_iter().collect()
}

fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let stage = bench.plan.make_site_pair(Lab::builder().gro_right(WITH_GRO))?;
    bench.run_series(build_series(&stage), 64)?;
    let stage = bench.plan.make_site_pair(Lab::builder())?;
    bench.run_series(series_from_sockets(&stage), 38)?;
    if let Some(stage) = bench.plan.make_long_frame_site_pair()? {
        bench.run_series(series_of_long_frames(&stage), 16)?;
    }
    if !bench.plan.is_between_interfaces() {
        let stage = SitePair::with_two_queues(Lab::builder().gro_right(WITH_GRO))?;
        bench.run_series(on_two_queues(&stage), 16)?;
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TrafficSource {
    Generator(GeneratorLoad),
    Sockets,
}

impl TrafficSource {
    fn name(self) -> String {
        match self {
            TrafficSource::Generator(load) => load.name(),
            TrafficSource::Sockets => "from-sockets".into(),
        }
    }

    fn load(self) -> GeneratorLoad {
        match self {
            TrafficSource::Generator(load) => load,
            TrafficSource::Sockets => GeneratorLoad::Full,
        }
    }
}

/// Series with frames that look as if an XDP card had received them.
fn build_series(stage: &SitePair) -> Vec<Series<'_>> {
    let loads = [GeneratorLoad::Full, PACE];
    let cases = loads.iter().flat_map(|&load| FRAME_BYTES.iter().map(move |&bytes| (load, bytes)));
    let all = cases.map(|(load, bytes)| one::build_series(stage, TrafficSource::Generator(load), bytes));
    let [short, _] = FRAME_BYTES;
    all.chain(loads.map(|load| filtered::build_series(stage, load, short))).collect()
}

pub(crate) fn generated_series(stage: &SitePair, frame_bytes: usize, load: GeneratorLoad) -> Series<'_> {
    one::build_series(stage, TrafficSource::Generator(load), frame_bytes)
}

/// Packets that a program on the other end sends.
fn series_from_sockets(stage: &SitePair) -> Vec<Series<'_>> {
    FRAME_BYTES.iter().map(|&bytes| one::build_series(stage, TrafficSource::Sockets, bytes)).collect()
}

/// Long frames, which the generator cannot make: its frames have at most a page.
fn series_of_long_frames(stage: &SitePair) -> Vec<Series<'_>> {
    vec![one::build_series(stage, TrafficSource::Sockets, LONG_FRAME_BYTES)]
}

/// Makes the receiving end accept frames for sockets. On given veth interfaces by an XDP program that passes
/// everything, because settings of such devices are not changed; cards accept them anyway.
fn admit_frames(stage: &SitePair, source: TrafficSource) -> Result<Option<Attachment>, Failure> {
    let is_admitted = source == TrafficSource::Sockets || (stage.is_private() && WITH_GRO);
    if is_admitted || !is_veth(&stage.receiver)? {
        return Ok(None);
    }
    attach_pass(&stage.receiver).map(Some)
}

/// Makes the sending end take frames of the generator: cards do so only while they have an XDP program.
pub(crate) fn prepare_sender(stage: &SitePair) -> Result<Option<Attachment>, Failure> {
    let is_ready = stage.is_private() || is_veth(&stage.sender)?;
    (!is_ready).then(|| attach_pass(&stage.sender)).transpose()
}

fn is_veth(site: &NetworkSite) -> Result<bool, Failure> {
    Ok(site.run(|| probe::interface(&site.interface))?.driver.as_deref() == Some("veth"))
}

fn attach_pass(site: &NetworkSite) -> Result<Attachment, Failure> {
    let program = Program::pass()?;
    Ok(site.run(|| program.attach(&site.interface, Attach::Native))?)
}

/// At full rate packets per second count, at a steady pace the receiver's processor time does.
fn judged_metric_for_load(load: GeneratorLoad) -> Figure {
    match load {
        GeneratorLoad::Full => Figure::PacketsPerSecond,
        GeneratorLoad::Paced { .. } => Figure::ReceiverCpuPerPacket,
    }
}

fn capture_failure(method: &'static str) -> impl FnOnce(std::io::Error) -> Failure {
    Failure::step(method, "capture", "check that both interfaces are still up")
}
