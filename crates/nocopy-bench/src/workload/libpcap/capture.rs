//! tcpdump on frames for another host: the highest rate without loss, and the cost at a steady pace.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nocopy::integration::xdp::Generator;

use super::{FRAME_BYTES, LibraryVariant, NAME};
use crate::Failure;
use crate::baseline::recorder::{RecorderKind, RunningRecorder};
use crate::frame::FrameTemplate;
use crate::generator;
use crate::ramp::{self, RateRange, RateStep, Throughput};
use crate::series::{Series, Trial};
use crate::stage::SitePair;
use crate::workload::has_loaded_library;
use nocopy_report::figure::Figure;

const SINK: &str = "tcpdump -w /dev/null";

/// The pace at which processor time is compared.
const PACE_KPPS: u32 = 300;

const RATES: RateRange = RateRange { kpps_min: 300.0, kpps_max: 6000.0 };

/// How long packets arrive at each rate, at least, so that buffers do not matter.
const STEP_MIN: Duration = Duration::from_millis(400);

/// At the pace: the machine's time is reported in steps of 10 ms.
const PACED_MIN: Duration = Duration::from_secs(1);

const COPIED_CAUSE: &str = "the kernel copies each socket buffer into the ring of a packet socket";
const AF_XDP_CAUSE: &str = "AF_XDP in copy mode: the kernel copies each packet into a frame";

pub(crate) fn build_series<'a>(stage: &'a SitePair, library: &'a Path) -> Vec<Series<'a>> {
    if !RecorderKind::Tcpdump.is_installed() {
        return Vec::new(); // a note says so
    }
    let figures = [Figure::PacketsPerSecond, Figure::ReceiverCpuPerPacket, Figure::MachineCpuPerPacket];
    figures.map(|figure| series_of_figure(stage, library, figure)).into()
}

fn series_of_figure<'a>(stage: &'a SitePair, library: &'a Path, figure: Figure) -> Series<'a> {
    let case = match figure {
        Figure::PacketsPerSecond => "highest-rate-without-loss".to_owned(),
        Figure::MachineCpuPerPacket => format!("{PACE_KPPS}-kpps, the machine"),
        _ => format!("{PACE_KPPS}-kpps"),
    };
    let trial = |variant: LibraryVariant<'a>| {
        let session =
            TcpdumpCapture { stage, variant, template: FrameTemplate::to_other_host(stage, FRAME_BYTES) };
        let run = move |window: Duration| {
            let throughput = match figure {
                Figure::PacketsPerSecond => {
                    RATES.find_highest_lossless(|kpps| session.capture_at_rate(kpps, window.max(STEP_MIN)))
                }
                _ => session.capture_at_rate(PACE_KPPS.into(), window.max(PACED_MIN)),
            };
            Ok(throughput?.into_sample(if variant.takes { AF_XDP_CAUSE } else { COPIED_CAUSE }))
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
        trials: LibraryVariant::all_variants(library).map(trial).into(),
    }
}

struct TcpdumpCapture<'a> {
    stage: &'a SitePair,
    variant: LibraryVariant<'a>,
    template: FrameTemplate,
}

impl TcpdumpCapture<'_> {
    /// Captures for a while at a rate. The program runs on the receiver's processor.
    fn capture_at_rate(&self, kpps: f64, step: Duration) -> Result<Throughput, Failure> {
        let rate = RateStep { kpps, step, frame: self.template.bytes() };
        let generator = generator::open_generator(&self.stage.sender)?;
        let throughput = self.stage.receiver.run_pinned(|| self.run_tcpdump(&generator, rate));
        let action = "try 'nocopy run --report -- tcpdump' by itself";
        throughput.map_err(Failure::step(self.variant.method, "capture", action))
    }

    fn run_tcpdump(&self, generator: &Generator, rate: RateStep<'_>) -> io::Result<Throughput> {
        let before = count_passive_sockets()?;
        let running = RunningRecorder::start_tcpdump(self.tcpdump_command())?;
        self.check_library_loaded(&running, count_passive_sockets()? > before)?;
        ramp::measure_rate(self.stage, generator, rate, running)
    }

    /// tcpdump as users run it, except `-Z root`: when it gives up root, it would give `/dev/null` to the
    /// other user.
    fn tcpdump_command(&self) -> Command {
        let mut command = Command::new(RecorderKind::Tcpdump.name());
        command.args(["-n", "-i", &self.stage.receiver.interface, "-Z", "root", "-w", "/dev/null"]);
        self.variant.prepare_command(&mut command);
        command
    }

    /// Checks that it has loaded the library under test: the loader only warns, and a capture that cannot
    /// take packets becomes passive.
    fn check_library_loaded(&self, running: &RunningRecorder, by_packet_socket: bool) -> io::Result<()> {
        if let Some(library) = self.variant.library
            && !has_loaded_library(running.process_id(), library)?
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
fn count_passive_sockets() -> io::Result<usize> {
    let sockets = fs::read_to_string("/proc/thread-self/net/packet")?;
    Ok(sockets.lines().filter(|line| line.split_whitespace().nth(3) == Some("0003")).count())
}
