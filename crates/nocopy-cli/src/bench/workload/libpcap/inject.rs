//! A program that injects frames as fast as it can, to a sink that drops them.

use std::io;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{FRAME_BYTES, NAME, TAKE, Variant};
use crate::Failure;
use crate::bench::baseline::injector::Injector;
use crate::bench::cpu;
use crate::bench::figure::Figure;
use crate::bench::frame::Template;
use crate::bench::result::Evidence;
use crate::bench::series::{Sample, Series, Trial};
use crate::bench::stage::Stage;
use crate::bench::traffic::Traffic;
use crate::bench::window::Reading;
use crate::bench::workload::packet_send::Sink;

const SINK: &str = "XDP_DROP on the peer";
const CAUSE: &str = "the kernel copies each frame into a socket buffer";

/// Long enough for what begins with the first frames.
const WARM_UP: Duration = Duration::from_millis(100);

pub(crate) fn series<'a>(stage: &'a Stage, sink: &'a Sink, library: &'a Path) -> Vec<Series<'a>> {
    // What is sent does not depend on how it captures.
    let variants = Variant::all(library).into_iter().filter(|variant| variant.method != TAKE);
    let template = Template::to_peer(stage, FRAME_BYTES);
    let trial = |variant: Variant<'a>| {
        let template = template.clone();
        let run = move |duration| {
            inject(stage, sink, &template, variant, duration).map_err(Failure::step(
                variant.method,
                "inject",
                "check that libpcap is installed",
            ))
        };
        let (method, baselines) = (variant.method, variant.baselines());
        Trial { method, variant: Some("pcap_inject".into()), baselines, run: Box::new(run) }
    };
    vec![Series {
        workload: NAME,
        title: format!("{NAME}, pcap_inject, {FRAME_BYTES}-byte frames"),
        sink: Some(SINK),
        payload_bytes: FRAME_BYTES,
        link: None,
        figure: Figure::PacketsPerSecond,
        trials: variants.map(trial).collect(),
    }]
}

fn inject(
    stage: &Stage,
    sink: &Sink,
    template: &Template,
    variant: Variant<'_>,
    duration: Duration,
) -> io::Result<Sample> {
    let sender = &stage.sender;
    let injector = std::thread::scope(|scope| {
        let start = scope.spawn(|| {
            sender.enter(0)?;
            Injector::start(&sender.interface, template.bytes(), |command| variant.apply(command))
        });
        start.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    sleep(WARM_UP);
    let look =
        || io::Result::Ok((sink.packets()?, injector.cpu()?, cpu::machine_idle_time()?, Instant::now()));
    let before = look()?;
    sleep(duration);
    let after = look()?;
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
