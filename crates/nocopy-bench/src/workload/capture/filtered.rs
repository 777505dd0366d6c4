//! A capture of which one packet in a hundred matches: the cost of the others.

use std::time::Duration;

use super::{NAME, Source, admit, failed};
use crate::Failure;
use crate::frame::Template;
use crate::generator::{self, Load, WANTED_ONE_IN};
use crate::series::{Sample, Series, Trial};
use crate::stage::Stage;
use crate::traffic::{Work, run_trial};
use crate::xdp::{self, PortSpec, WaitMode};
use nocopy_report::figure::Figure;

const SINK: &str = "a program that reads every byte of what it gets; 1 % is what it wants";

pub(super) fn series(stage: &Stage, load: Load, frame_bytes: usize) -> Series<'_> {
    let unwanted = Template::to_other_host(stage, frame_bytes);
    let wanted_one = Template::wanted_by_filter(stage, frame_bytes);
    let trial = |method, baselines, spec: PortSpec| {
        let (unwanted, wanted_one) = (unwanted.clone(), wanted_one.clone());
        let run = move |duration| receive(stage, (&unwanted, &wanted_one), load, method, spec, duration);
        Trial { method, variant: Some(load.name()), baselines, run: Box::new(run) }
    };
    let (port, ring) = (PortSpec::xdp(WaitMode::Coalesced(load)), PortSpec::ring(load));
    Series {
        workload: NAME,
        title: format!("{NAME} with a filter, {frame_bytes}-byte frames, {}", load.name()),
        sink: Some(SINK),
        payload_bytes: frame_bytes,
        link: None,
        figure: Figure::ReceiverCpu,
        trials: vec![
            trial("xdp", &[], port),
            trial("xdp-filter", &["xdp"], port.filtered()),
            trial("ring", &[], ring),
            trial("ring-filter", &["ring"], ring.filtered()),
        ],
    }
}

fn receive(
    stage: &Stage,
    (unwanted, wanted_one): (&Template, &Template),
    load: Load,
    method: &'static str,
    spec: PortSpec,
    duration: Duration,
) -> Result<Sample, Failure> {
    let _admission = match spec.is_ring() {
        true => admit(stage, Source::Generator(load))?,
        false => None,
    };
    let port = spec.open(&stage.receiver)?;
    let evidence = xdp::evidence(&port);
    let generator = generator::open(&stage.sender)?;
    let frames = (unwanted.bytes(), Some(wanted_one.bytes()));
    let send: Work<'_> = Box::new(|gauge| generator::generate(&generator, frames, load, gauge));
    let work: Work<'_> = Box::new(move |gauge| xdp::receive(port, gauge));
    let traffic = run_trial(stage, duration, None, vec![send], vec![work]).map_err(failed(method))?;
    let wanted_share = if spec.is_filtered() { 1.0 / f64::from(WANTED_ONE_IN) } else { 1.0 };
    Ok(Sample { traffic, latency: None, evidence, wanted_share })
}
