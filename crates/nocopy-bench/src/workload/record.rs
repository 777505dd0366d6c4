//! Packets into a file: the highest rate without loss, and the cost at a steady pace.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nocopy::integration::xdp::Generator;
use rustix::fs::statfs;

use super::{Workload, capture};
use crate::Failure;
use crate::baseline::recorder::RecorderKind;
use crate::bench::Bench;
use crate::frame::FrameTemplate;
use crate::generator;
use crate::plan::BenchPlan;
use crate::ramp::{self, RateRange, RateStep, Throughput};
use crate::series::{Sample, Series, Trial};
use crate::stage::SitePair;
use nocopy_lab::Lab;
use nocopy_report::capability;
use nocopy_report::figure::Figure;

const NAME: &str = "record";
const FRAME_BYTES: usize = 1400;

/// The pace at which processor time is compared.
const PACE_KPPS: u32 = 300;

/// Rates among which the highest without loss is looked for.
const RATES: RateRange = RateRange { kpps_min: 200.0, kpps_max: 1600.0 };

/// How long packets arrive at each rate, at least, so that buffers do not matter.
const STEP_MIN: Duration = Duration::from_millis(400);

/// The same on a disk, where the page cache is a buffer too: the kernel begins to write it back when it holds
/// some gigabytes (`vm.dirty_background_ratio`, a tenth of the memory).
const STEP_MIN_DISK: Duration = Duration::from_secs(4);

/// The longest time at a rate is that of sending this many bytes.
const STEP_BYTES_MAX: f64 = 4e9;
const CAUSE: &str =
    "the kernel copies each socket buffer into the ring of a packet socket; further copies are the program's";

/// A magic number of statfs(2).
const TMPFS: u64 = 0x0102_1994;

const ROOM_BYTES: u64 = 6 << 30;

/// The name of the place that is not memory, and of the other.
const DISK: &str = "disk";
const TMPFS_NAME: &str = "tmpfs";

pub(crate) const RECORD: Workload = Workload {
    name: NAME,
    about: "Frames made by the kernel, recorded into files",
    methods: &[
        ("tcpdump", "tcpdump -w, with a buffer of 64 MiB"),
        ("dumpcap", "dumpcap -P, with a buffer of 64 MiB"),
        ("record", "nocopy record, with a buffer of 64 MiB"),
    ],
    capabilities: capability::RECORDERS,
    skips: skip_notes,
    ..Workload::measured_by(measure)
};

fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let stage = bench.plan.make_site_pair(Lab::builder().gro_right(capture::WITH_GRO))?;
    bench.run_series(build_series(&stage), 200)
}

#[derive(Debug, Clone)]
struct OutputDirectory {
    name: &'static str,
    directory: PathBuf,
}

/// The first directory on a tmpfs, and the first that is on none, with room enough.
fn output_directories() -> Vec<OutputDirectory> {
    let find = |name, on_tmpfs, directories: [&str; 3]| {
        let is_right = |directory: &&str| {
            statfs(*directory).is_ok_and(|found| {
                let room = found.f_bavail * found.f_bsize.unsigned_abs() >= ROOM_BYTES;
                room && (found.f_type.unsigned_abs() == TMPFS) == on_tmpfs
            })
        };
        let directory = directories.into_iter().find(is_right)?;
        Some(OutputDirectory { name, directory: directory.into() })
    };
    let tmpfs = find(TMPFS_NAME, true, ["/dev/shm", "/tmp", "/run"]);
    let disk = find(DISK, false, ["/var/tmp", "/tmp", "."]);
    tmpfs.into_iter().chain(disk).collect()
}

/// Parts that cannot be measured here, and why.
fn skip_notes(_plan: &BenchPlan) -> Vec<String> {
    let programs =
        [RecorderKind::Tcpdump, RecorderKind::Dumpcap].into_iter().filter(|program| !program.is_installed());
    let programs = programs.map(|program| {
        format!("SKIP: {0}: not installed: 'apt install {0}' or what your system calls it.", program.name())
    });
    let found = output_directories();
    let missing =
        [TMPFS_NAME, DISK].into_iter().filter(move |name| found.iter().all(|output| output.name != *name));
    let missing =
        missing.map(|name| format!("SKIP: record to {name}: no directory on one with 6 GiB free was found."));
    programs.chain(missing).collect()
}

fn build_series(stage: &SitePair) -> Vec<Series<'_>> {
    let recorders = [RecorderKind::Tcpdump, RecorderKind::Dumpcap, RecorderKind::Nocopy];
    let recorders: Vec<_> = recorders.into_iter().filter(|recorder| recorder.is_installed()).collect();
    output_directories()
        .into_iter()
        .flat_map(|output| {
            [Figure::PacketsPerSecond, Figure::ReceiverCpuPerPacket].map(|figure| (output.clone(), figure))
        })
        .map(|(output, figure)| series_of_output(stage, &recorders, &output, figure))
        .collect()
}

fn series_of_output<'a>(
    stage: &'a SitePair,
    recorders: &[RecorderKind],
    output: &OutputDirectory,
    figure: Figure,
) -> Series<'a> {
    let case = match figure {
        Figure::PacketsPerSecond => "highest-rate-without-loss".to_owned(),
        _ => format!("{PACE_KPPS}-kpps"),
    };
    let template = FrameTemplate::to_other_host(stage, FRAME_BYTES);
    let variant = format!("{} {case}", output.name);
    let on_disk = output.name == DISK;
    let trial = |&recorder: &RecorderKind| {
        let recording = RecordingTrial {
            stage,
            recorder,
            template: template.clone(),
            directory: process_directory(&output.directory),
        };
        let baselines: &'static [&'static str] =
            if recorder == RecorderKind::Nocopy { &["tcpdump", "dumpcap"] } else { &[] };
        let step_min = if on_disk { STEP_MIN_DISK } else { STEP_MIN };
        let run = move |window: Duration| match figure {
            Figure::PacketsPerSecond => recording.find_highest_rate(window.max(step_min)),
            _ => recording.record_at_pace(window.max(STEP_MIN)),
        };
        Trial { method: recorder.name(), variant: Some(variant.clone()), baselines, run: Box::new(run) }
    };
    Series {
        workload: NAME,
        title: format!("{NAME} to {}, {FRAME_BYTES}-byte frames, {case}", output.name),
        sink: Some(output.name),
        payload_bytes: FRAME_BYTES,
        link: None,
        figure,
        trials: recorders.iter().map(trial).collect(),
    }
}

/// A directory of this process in one where every user may make files and links; other users have no access
/// to it.
fn process_directory(directory: &Path) -> PathBuf {
    directory.join(format!("nocopy-bench-{}", std::process::id()))
}

struct RecordingTrial<'a> {
    stage: &'a SitePair,
    recorder: RecorderKind,
    template: FrameTemplate,
    directory: PathBuf,
}

impl RecordingTrial<'_> {
    fn find_highest_rate(&self, step: Duration) -> Result<Sample, Failure> {
        RATES
            .find_highest_lossless(|kpps| self.record_at_rate(kpps, step))
            .map(|throughput| throughput.into_sample(CAUSE))
    }

    fn record_at_pace(&self, step: Duration) -> Result<Sample, Failure> {
        self.record_at_rate(f64::from(PACE_KPPS), step).map(|throughput| throughput.into_sample(CAUSE))
    }

    /// Records for a while at a rate. The program runs on the receiver's processor.
    fn record_at_rate(&self, kpps: f64, step: Duration) -> Result<Throughput, Failure> {
        let step = step.min(Duration::from_secs_f64(STEP_BYTES_MAX / (kpps * 1e3 * FRAME_BYTES as f64)));
        let failed = |error| Failure::step(self.recorder.name(), "record", "try it by itself")(error);
        let generator = generator::open_generator(&self.stage.sender)?;
        fs::DirBuilder::new().mode(0o700).create(&self.directory).map_err(failed)?;
        let throughput = self.stage.receiver.run_pinned(|| self.run_recorder(&generator, kpps, step));
        let _ = fs::remove_dir_all(&self.directory); // what is left over does no harm
        throughput.map_err(failed)
    }

    fn run_recorder(&self, generator: &Generator, kpps: f64, step: Duration) -> io::Result<Throughput> {
        let rate = RateStep { kpps, step, frame: self.template.bytes() };
        let file = self.directory.join("packets.pcap");
        let running = self.recorder.start(&self.stage.receiver.interface, &file)?;
        let mut throughput = ramp::measure_rate(self.stage, generator, rate, running)?;
        // The word of a packet at a place in the file, if the file is long enough. The packet may be of
        // another program.
        throughput.limit_packets(fs::metadata(&file)?.len() / FRAME_BYTES as u64);
        Ok(throughput)
    }
}
