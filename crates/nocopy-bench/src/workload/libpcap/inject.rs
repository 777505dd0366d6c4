//! A program that injects frames at full rate, to sinks that drop them. On veth the sender's processor does
//! the sink's work too: one sink is an unchanged peer, which drops frames not addressed to it; the other has
//! an XDP program, for which the kernel copies each frame once more.

use std::io;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nocopy::integration::tc::CountingDrop;
use nocopy_lab::Lab;

use super::{FRAME_BYTES, NAME, TAKE, Variant};
use crate::Failure;
use crate::baseline::injector::Injector;
use crate::cpu;
use crate::frame::Template;
use crate::series::{Sample, Series, Trial};
use crate::stage::Stage;
use crate::traffic::Traffic;
use crate::window::Reading;
use crate::workload::{packet_send, udp_send};
use nocopy_report::figure::Figure;
use nocopy_report::result::Evidence;

const SKIP: &str =
    "SKIP: libpcap, pcap_inject into tc: it needs Linux 6.6, whose tc programs go with their process.";
const CAUSE: &str = "the kernel copies each frame into a socket buffer";

/// Long enough for all activity that begins with the first frames.
const WARM_UP: Duration = Duration::from_millis(100);

/// A sink with its own pair of interfaces: programs attached to one would affect the other.
#[derive(Debug)]
pub(crate) struct InjectTestbed {
    stage: Stage,
    sink: Sink,
}

#[derive(Debug)]
enum Sink {
    Tc(CountingDrop),
    Xdp(packet_send::Sink),
}

impl Sink {
    /// The description of the sink, and the name of its series.
    fn names(&self) -> [&'static str; 2] {
        match self {
            Self::Tc(_) => ["tc drops on the peer", "pcap_inject"],
            Self::Xdp(_) => ["XDP_DROP on the peer", "pcap_inject to-xdp"],
        }
    }

    fn packets(&self) -> io::Result<u64> {
        match self {
            Self::Tc(drop) => drop.packets(),
            Self::Xdp(sink) => sink.packets(),
        }
    }
}

pub(crate) fn skip() -> Option<String> {
    (!udp_send::has_offload()).then(|| SKIP.to_owned())
}

pub(crate) fn testbeds() -> Result<Vec<InjectTestbed>, Failure> {
    let mut testbeds = Vec::new();
    if udp_send::has_offload() {
        let stage = Stage::private(Lab::builder())?;
        let sink = stage.receiver.run(|| CountingDrop::attach(&stage.receiver.interface))?;
        testbeds.push(InjectTestbed { sink: Sink::Tc(sink), stage });
    }
    let stage = Stage::private(Lab::builder())?;
    testbeds.push(InjectTestbed { sink: Sink::Xdp(packet_send::Sink::open(&stage)?), stage });
    Ok(testbeds)
}

pub(crate) fn series<'a>(testbeds: &'a [InjectTestbed], library: &'a Path) -> Vec<Series<'a>> {
    testbeds.iter().map(|testbed| one_sink(testbed, library)).collect()
}

fn one_sink<'a>(testbed: &'a InjectTestbed, library: &'a Path) -> Series<'a> {
    // Injection does not depend on the method of capturing.
    let variants = Variant::all(library).into_iter().filter(|variant| variant.method != TAKE);
    let template = Template::to_peer(&testbed.stage, FRAME_BYTES);
    let [sink, name] = testbed.sink.names();
    let trial = |variant: Variant<'a>| {
        let template = template.clone();
        let run = move |duration| {
            inject(testbed, &template, variant, duration).map_err(Failure::step(
                variant.method,
                "inject",
                "check that libpcap is installed",
            ))
        };
        let (method, baselines) = (variant.method, variant.baselines());
        Trial { method, variant: Some(name.into()), baselines, run: Box::new(run) }
    };
    Series {
        workload: NAME,
        title: format!("{NAME}, {name}, {FRAME_BYTES}-byte frames"),
        sink: Some(sink),
        payload_bytes: FRAME_BYTES,
        link: None,
        figure: Figure::PacketsPerSecond,
        trials: variants.map(trial).collect(),
    }
}

fn inject(
    testbed: &InjectTestbed,
    template: &Template,
    variant: Variant<'_>,
    duration: Duration,
) -> io::Result<Sample> {
    let InjectTestbed { stage: Stage { sender, .. }, sink } = testbed;
    let prepare = |command: &mut Command| variant.apply(command);
    let injector = sender.run_pinned(|| Injector::start(&sender.interface, template.bytes(), prepare))?;
    sleep(WARM_UP);
    let read_counters =
        || io::Result::Ok((sink.packets()?, injector.cpu()?, cpu::machine_idle_time()?, Instant::now()));
    let before = read_counters()?;
    sleep(duration);
    let after = read_counters()?;
    injector.stop()?;
    let (packets, elapsed) = (after.0.saturating_sub(before.0), after.3 - before.3);
    let cpu = after.1.saturating_sub(before.1);
    let (idle, processors) = (after.2.0.saturating_sub(before.2.0), after.2.1);
    let traffic = Traffic {
        senders: vec![Reading { packets, elapsed, cpu, packets_total: packets }],
        sink: Some((packets, elapsed)),
        machine_busy: (elapsed * processors).saturating_sub(idle),
        ..Traffic::default()
    };
    Ok(Sample { traffic, latency: None, evidence: Evidence::copied(CAUSE), wanted_share: 1.0 })
}
