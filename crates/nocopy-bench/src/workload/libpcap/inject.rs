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

use super::{FRAME_BYTES, LibraryVariant, NAME, TAKE};
use crate::Failure;
use crate::baseline::injector::RunningInjector;
use crate::baseline::{LINKED_STATICALLY, LOADS_LIBRARIES};
use crate::cpu;
use crate::frame::FrameTemplate;
use crate::series::{Sample, Series, Trial};
use crate::stage::SitePair;
use crate::traffic::TrafficReadings;
use crate::window::WindowReading;
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
    stage: SitePair,
    sink: InjectSink,
}

#[derive(Debug)]
enum InjectSink {
    Tc(CountingDrop),
    Xdp(packet_send::CountingDropSink),
}

impl InjectSink {
    /// The description of the sink, and the name of its series.
    fn sink_and_series_names(&self) -> [&'static str; 2] {
        match self {
            Self::Tc(_) => ["tc drops on the peer", "pcap_inject"],
            Self::Xdp(_) => ["XDP_DROP on the peer", "pcap_inject to-xdp"],
        }
    }

    fn packets_dropped(&self) -> io::Result<u64> {
        match self {
            Self::Tc(drop) => drop.packets(),
            Self::Xdp(sink) => sink.packets(),
        }
    }
}

pub(crate) fn skip_note() -> Option<String> {
    match LOADS_LIBRARIES {
        false => Some(format!("SKIP: {NAME}, pcap_inject: {LINKED_STATICALLY}")),
        true => (!udp_send::supports_offload_sink()).then(|| SKIP.to_owned()),
    }
}

pub(crate) fn open_testbeds() -> Result<Vec<InjectTestbed>, Failure> {
    let mut testbeds = Vec::new();
    if !LOADS_LIBRARIES {
        return Ok(testbeds); // a note says so
    }
    if udp_send::supports_offload_sink() {
        let stage = SitePair::in_private_lab(Lab::builder())?;
        let sink = stage.receiver.run(|| CountingDrop::attach(&stage.receiver.interface))?;
        testbeds.push(InjectTestbed { sink: InjectSink::Tc(sink), stage });
    }
    let stage = SitePair::in_private_lab(Lab::builder())?;
    testbeds
        .push(InjectTestbed { sink: InjectSink::Xdp(packet_send::CountingDropSink::open(&stage)?), stage });
    Ok(testbeds)
}

pub(crate) fn build_series<'a>(testbeds: &'a [InjectTestbed], library: &'a Path) -> Vec<Series<'a>> {
    testbeds.iter().map(|testbed| series_of_sink(testbed, library)).collect()
}

fn series_of_sink<'a>(testbed: &'a InjectTestbed, library: &'a Path) -> Series<'a> {
    // Injection does not depend on the method of capturing.
    let variants = LibraryVariant::all_variants(library).into_iter().filter(|variant| variant.method != TAKE);
    let template = FrameTemplate::to_peer(&testbed.stage, FRAME_BYTES);
    let [sink, name] = testbed.sink.sink_and_series_names();
    let trial = |variant: LibraryVariant<'a>| {
        let template = template.clone();
        let run = move |duration| {
            measure_injection(testbed, &template, variant, duration).map_err(Failure::step(
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

fn measure_injection(
    testbed: &InjectTestbed,
    template: &FrameTemplate,
    variant: LibraryVariant<'_>,
    duration: Duration,
) -> io::Result<Sample> {
    let InjectTestbed { stage: SitePair { sender, .. }, sink } = testbed;
    let prepare = |command: &mut Command| variant.prepare_command(command);
    let injector =
        sender.run_pinned(|| RunningInjector::start(&sender.interface, template.bytes(), prepare))?;
    sleep(WARM_UP);
    let read_counters = || {
        io::Result::Ok((
            sink.packets_dropped()?,
            injector.cpu_time()?,
            cpu::machine_idle_time()?,
            Instant::now(),
        ))
    };
    let before = read_counters()?;
    sleep(duration);
    let after = read_counters()?;
    injector.stop()?;
    let (packets, elapsed) = (after.0.saturating_sub(before.0), after.3 - before.3);
    let cpu = after.1.saturating_sub(before.1);
    let (idle, processors) = (after.2.0.saturating_sub(before.2.0), after.2.1);
    let traffic = TrafficReadings {
        senders: vec![WindowReading { packets, elapsed, cpu, packets_total: packets }],
        sink: Some((packets, elapsed)),
        machine_busy: (elapsed * processors).saturating_sub(idle),
        ..TrafficReadings::default()
    };
    Ok(Sample { traffic, latency: None, evidence: Evidence::copied(CAUSE), wanted_share: 1.0 })
}
