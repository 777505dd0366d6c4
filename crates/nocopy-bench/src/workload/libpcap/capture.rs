//! tcpdump on frames for another host: the highest rate without loss, and the cost at a steady pace.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nocopy::integration::xdp::Generator;

use super::{FRAME_BYTES, NAME, Variant};
use crate::Failure;
use crate::baseline::recorder::{Recorder, RunningRecorder};
use crate::frame::Template;
use crate::generator;
use crate::ramp::{self, Rate, Rates, Throughput};
use crate::series::{Series, Trial};
use crate::stage::Stage;
use crate::workload::has_loaded;
use nocopy_report::figure::Figure;

const SINK: &str = "tcpdump -w /dev/null";

/// The pace at which processor time is compared.
const PACE_KPPS: u32 = 300;

const RATES: Rates = Rates { kpps_min: 300.0, kpps_max: 6000.0 };

/// How long packets arrive at each rate, at least, so that buffers do not matter.
const STEP_MIN: Duration = Duration::from_millis(400);

/// At the pace: the machine's time is reported in steps of 10 ms.
const PACED_MIN: Duration = Duration::from_secs(1);

const COPIED_CAUSE: &str = "the kernel copies each socket buffer into the ring of a packet socket";
const AF_XDP_CAUSE: &str = "AF_XDP in copy mode: the kernel copies each packet into a frame";

pub(crate) fn series<'a>(stage: &'a Stage, library: &'a Path) -> Vec<Series<'a>> {
    if !Recorder::Tcpdump.is_installed() {
        return Vec::new(); // a note says so
    }
    let figures = [Figure::PacketsPerSecond, Figure::ReceiverCpuPerPacket, Figure::MachineCpuPerPacket];
    figures.map(|figure| one_figure(stage, library, figure)).into()
}

fn one_figure<'a>(stage: &'a Stage, library: &'a Path, figure: Figure) -> Series<'a> {
    let case = match figure {
        Figure::PacketsPerSecond => "highest-rate-without-loss".to_owned(),
        Figure::MachineCpuPerPacket => format!("{PACE_KPPS}-kpps, the machine"),
        _ => format!("{PACE_KPPS}-kpps"),
    };
    let trial = |variant: Variant<'a>| {
        let session = Capture { stage, variant, template: Template::to_other_host(stage, FRAME_BYTES) };
        let run = move |window: Duration| {
            let throughput = match figure {
                Figure::PacketsPerSecond => RATES.find_highest(|kpps| session.at(kpps, window.max(STEP_MIN))),
                _ => session.at(PACE_KPPS.into(), window.max(PACED_MIN)),
            };
            Ok(throughput?.sample(if variant.takes { AF_XDP_CAUSE } else { COPIED_CAUSE }))
        };
        Trial {
            method: variant.method,
            variant: Some(case.clone()),
            baselines: variant.baselines(),
            run: Box::new(run),
        }
    };
    Series {
        workload: NAME,
        title: format!("{NAME}, tcpdump, {FRAME_BYTES}-byte frames, {case}"),
        sink: Some(SINK),
        payload_bytes: FRAME_BYTES,
        link: None,
        figure,
        trials: Variant::all(library).map(trial).into(),
    }
}

struct Capture<'a> {
    stage: &'a Stage,
    variant: Variant<'a>,
    template: Template,
}

impl Capture<'_> {
    /// Captures for a while at a rate. The program runs on the receiver's processor.
    fn at(&self, kpps: f64, step: Duration) -> Result<Throughput, Failure> {
        let rate = Rate { kpps, step, frame: self.template.bytes() };
        let generator = generator::open(&self.stage.sender)?;
        let throughput = self.stage.receiver.run_pinned(|| self.capture(&generator, rate));
        let action = "try 'nocopy run --report -- tcpdump' by itself";
        throughput.map_err(Failure::step(self.variant.method, "capture", action))
    }

    fn capture(&self, generator: &Generator, rate: Rate<'_>) -> io::Result<Throughput> {
        let before = passive_sockets()?;
        let running = RunningRecorder::listening(self.tcpdump())?;
        self.check(&running, passive_sockets()? > before)?;
        ramp::measure(self.stage, generator, rate, running)
    }

    /// tcpdump as users run it, except `-Z root`: when it gives up root, it would give `/dev/null` to the
    /// other user.
    fn tcpdump(&self) -> Command {
        let mut command = Command::new(Recorder::Tcpdump.name());
        command.args(["-n", "-i", &self.stage.receiver.interface, "-Z", "root", "-w", "/dev/null"]);
        self.variant.apply(&mut command);
        command
    }

    /// Checks that it has loaded the library under test: the loader only warns, and a capture that cannot
    /// take packets becomes passive.
    fn check(&self, running: &RunningRecorder, by_packet_socket: bool) -> io::Result<()> {
        if let Some(library) = self.variant.library
            && !has_loaded(running.id(), library)?
        {
            return Err(io::Error::other(format!("{} was not loaded", library.display())));
        }
        match (self.variant.takes, by_packet_socket) {
            (true, true) => Err(io::Error::other("it takes nothing: it captures by a packet socket")),
            (false, false) => Err(io::Error::other("it has no packet socket that captures")),
            _ => Ok(()),
        }
    }
}

/// The number of packet sockets in this thread's network namespace that receive every protocol (`ETH_P_ALL`),
/// as every passive capture does.
fn passive_sockets() -> io::Result<usize> {
    let sockets = fs::read_to_string("/proc/thread-self/net/packet")?;
    Ok(sockets.lines().filter(|line| line.split_whitespace().nth(3) == Some("0003")).count())
}
