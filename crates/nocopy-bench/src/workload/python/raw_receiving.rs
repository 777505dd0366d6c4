//! Packets that scapy receives one by one, by its own socket and by the one that this library puts in its
//! place.

use std::time::Duration;

use nocopy_report::figure::Figure;
use nocopy_report::result::Evidence;
use serde::Serialize;

use super::NAME;
use super::interpreter::Interpreter;
use super::program::{Program, ReportCell, RunningProgram};
use crate::Failure;
use crate::frame::FrameTemplate;
use crate::generator::{self, GeneratorLoad};
use crate::series::{Sample, Series, Trial};
use crate::stage::SitePair;
use crate::traffic::{ThreadWork, run_trial};
use crate::window::TrialPhase;

/// What the programs need.
pub(super) const PACKAGES: [&str; 2] = ["nocopy.scapy", "scapy"];

const FRAME_BYTES: usize = 64;
const BUFFER_BYTES: usize = 4 << 20;

const BASELINE: &str = "recv_raw";
const OURS: &str = "recv_raw-nocopy";
const TEXT: &str = include_str!("programs/scapy_recv_raw.py");

const CAUSE: &str = "packet socket: the kernel copies each packet into its ring or into the program's memory";

/// The argument of the program.
#[derive(Debug, Serialize)]
struct RawTask<'a> {
    interface: &'a str,
    buffer: usize,
    by_nocopy: bool,
}

pub(super) fn build_series<'a>(stage: &'a SitePair, interpreter: &'a Interpreter) -> Series<'a> {
    let trial = |method, baselines| {
        let program = Program { method, text: TEXT };
        let run = Box::new(move |duration| run_program(stage, interpreter, program, duration));
        Trial { method, variant: None, baselines, run }
    };
    Series {
        workload: NAME,
        title: format!("{NAME}, {FRAME_BYTES}-byte frames by recv_raw of scapy"),
        sink: Some("a program that counts"),
        payload_bytes: FRAME_BYTES,
        link: None,
        figure: Figure::PacketsPerSecond,
        trials: vec![trial(BASELINE, &[]), trial(OURS, &[BASELINE])],
    }
}

fn run_program(
    stage: &SitePair,
    interpreter: &Interpreter,
    program: Program,
    duration: Duration,
) -> Result<Sample, Failure> {
    let by_nocopy = program.method == OURS;
    let task = RawTask { interface: &stage.receiver.interface, buffer: BUFFER_BYTES, by_nocopy };
    let failed =
        || Failure::step(program.method, "run the program", "run it as root, and with --python PATH");
    let start = || RunningProgram::start(interpreter, program, &task);
    let running = stage.receiver.run_pinned(start).map_err(failed())?;
    let generator = generator::open_generator(&stage.sender)?;
    let frame = FrameTemplate::to_other_host(stage, FRAME_BYTES);
    let report = ReportCell::default();
    let receive = running.into_work(&report, TrialPhase::Stop);
    let send: ThreadWork<'_> = Box::new(|gauge| {
        generator::generate_frames(&generator, (frame.bytes(), None), GeneratorLoad::Full, gauge)
    });
    let mut traffic = run_trial(stage, duration, None, vec![send], vec![receive]).map_err(failed())?;
    traffic.receivers[0].cpu = report.into_report().cpu;
    Ok(Sample { traffic, latency: None, evidence: Evidence::copied(CAUSE), wanted_share: 1.0 })
}
