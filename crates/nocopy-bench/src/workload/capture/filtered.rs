//! A capture of which one packet in a hundred matches: the cost of the others.

use std::time::Duration;

use super::{NAME, TrafficSource, admit_frames, capture_failure};
use crate::Failure;
use crate::frame::FrameTemplate;
use crate::generator::{self, GeneratorLoad, WANTED_ONE_IN};
use crate::series::{Sample, Series, Trial};
use crate::stage::SitePair;
use crate::traffic::{ThreadWork, run_trial};
use crate::xdp::{self, PortSpec, PortWaitMode};
use nocopy_report::figure::Figure;

const SINK: &str = "a program that reads every byte of what it gets; 1 % is what it wants";

pub(super) fn build_series(stage: &SitePair, load: GeneratorLoad, frame_bytes: usize) -> Series<'_> {
    let unwanted = FrameTemplate::to_other_host(stage, frame_bytes);
    let wanted_one = FrameTemplate::wanted_by_filter(stage, frame_bytes);
    let trial = |method, baselines, spec: PortSpec| {
        let (unwanted, wanted_one) = (unwanted.clone(), wanted_one.clone());
        let run =
            move |duration| receive_filtered(stage, (&unwanted, &wanted_one), load, method, spec, duration);
        Trial { method, variant: Some(load.name()), baselines, run: Box::new(run) }
    };
    let (port, ring) = (PortSpec::in_xdp_mode(PortWaitMode::Coalesced(load)), PortSpec::in_ring_mode(load));
    Series {
        workload: NAME,
        title: format!("{NAME} with a filter, {frame_bytes}-byte frames, {}", load.name()),
        sink: Some(SINK),
        payload_bytes: frame_bytes,
        link: None,
        figure: Figure::ReceiverCpu,
        trials: vec![
            trial("xdp", &[], port),
            trial("xdp-filter", &["xdp"], port.with_filter()),
            trial("ring", &[], ring),
            trial("ring-filter", &["ring"], ring.with_filter()),
        ],
    }
}

fn receive_filtered(
    stage: &SitePair,
    (unwanted, wanted_one): (&FrameTemplate, &FrameTemplate),
    load: GeneratorLoad,
    method: &'static str,
    spec: PortSpec,
    duration: Duration,
) -> Result<Sample, Failure> {
    let _admission = match spec.is_ring() {
        true => admit_frames(stage, TrafficSource::Generator(load))?,
        false => None,
    };
    let port = spec.open(&stage.receiver)?;
    let evidence = xdp::port_evidence(&port);
    let generator = generator::open_generator(&stage.sender)?;
    let frames = (unwanted.bytes(), Some(wanted_one.bytes()));
    let send: ThreadWork<'_> = Box::new(|gauge| generator::generate_frames(&generator, frames, load, gauge));
    let work: ThreadWork<'_> = Box::new(move |gauge| xdp::receive_packets(port, gauge));
    let traffic =
        run_trial(stage, duration, None, vec![send], vec![work]).map_err(capture_failure(method))?;
    let wanted_share = if spec.is_filtered() { 1.0 / f64::from(WANTED_ONE_IN) } else { 1.0 };
    Ok(Sample { traffic, latency: None, evidence, wanted_share })
}
