//! Packets into a file: how many a second without losing one, and what they cost at a steady pace.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nocopy::xdp::Generator;
use rustix::fs::statfs;

use crate::Failure;
use crate::bench::baseline::recorder::Recorder;
use crate::bench::cpu;
use crate::bench::figure::Figure;
use crate::bench::frame::Template;
use crate::bench::generator;
use crate::bench::result::Evidence;
use crate::bench::series::{Sample, Series, Trial};
use crate::bench::stage::Stage;
use crate::bench::traffic::Traffic;
use crate::bench::window::Reading;

const NAME: &str = "record";
const FRAME_BYTES: usize = 1400;

/// The pace at which processor time is compared.
const PACE_KPPS: u32 = 300;

/// Rates among which the highest without loss is looked for, and how closely.
const KPPS_MIN: f64 = 200.0;
const KPPS_MAX: f64 = 1600.0;
const STEP_RATIO: f64 = 1.08;

/// How long packets come at each rate, at least: buffers must not matter.
const STEP_MIN: Duration = Duration::from_millis(400);

/// The same on a disk, where the page cache is a buffer too: the kernel begins to write it back when it holds some gigabytes
/// (`vm.dirty_background_ratio`, a tenth of the memory).
const STEP_MIN_DISK: Duration = Duration::from_secs(4);

/// No rate is held for longer than it takes to send so much.
const STEP_BYTES_MAX: f64 = 4e9;
/// What a program may have to do after opening its socket.
const SETTLE: Duration = Duration::from_millis(100);

/// From one burst to the next.
const INTERVAL: Duration = Duration::from_millis(1);

const CAUSE: &str =
    "the kernel copies each socket buffer into the ring of a packet socket; further copies are the program's";

/// A magic number of statfs(2).
const TMPFS: u64 = 0x0102_1994;

/// What must be free there.
const ROOM_BYTES: u64 = 6 << 30;

/// The name of the place that is not memory, and of the other.
const DISK: &str = "disk";
const TMPFS_NAME: &str = "tmpfs";

/// Where files go.
#[derive(Debug, Clone)]
struct Place {
    name: &'static str,
    directory: PathBuf,
}

/// The first directory on a tmpfs, and the first that is on none, with room enough.
fn places() -> Vec<Place> {
    let find = |name, on_tmpfs, directories: [&str; 3]| {
        let is_right = |directory: &&str| {
            statfs(*directory).is_ok_and(|found| {
                let room = found.f_bavail * found.f_bsize.unsigned_abs() >= ROOM_BYTES;
                room && (found.f_type.unsigned_abs() == TMPFS) == on_tmpfs
            })
        };
        let directory = directories.into_iter().find(is_right)?;
        Some(Place { name, directory: directory.into() })
    };
    let tmpfs = find(TMPFS_NAME, true, ["/dev/shm", "/tmp", "/run"]);
    let disk = find(DISK, false, ["/var/tmp", "/tmp", "."]);
    tmpfs.into_iter().chain(disk).collect()
}

/// What cannot be measured here, and why.
pub(crate) fn skips() -> Vec<String> {
    let programs =
        [Recorder::Tcpdump, Recorder::Dumpcap].into_iter().filter(|program| !program.is_installed());
    let programs = programs.map(|program| {
        format!("SKIP: {0}: not installed: 'apt install {0}' or what your system calls it.", program.name())
    });
    let found = places();
    let missing =
        [TMPFS_NAME, DISK].into_iter().filter(move |name| found.iter().all(|place| place.name != *name));
    let missing =
        missing.map(|name| format!("SKIP: record to {name}: no directory on one with 6 GiB free was found."));
    programs.chain(missing).collect()
}

pub(crate) fn series(stage: &Stage) -> Vec<Series<'_>> {
    let recorders = [Recorder::Tcpdump, Recorder::Dumpcap, Recorder::Nocopy];
    let recorders: Vec<_> = recorders.into_iter().filter(|recorder| recorder.is_installed()).collect();
    places()
        .into_iter()
        .flat_map(|place| {
            [Figure::PacketsPerSecond, Figure::ReceiverCpuPerPacket].map(|figure| (place.clone(), figure))
        })
        .map(|(place, figure)| one_place(stage, &recorders, &place, figure))
        .collect()
}

fn one_place<'a>(stage: &'a Stage, recorders: &[Recorder], place: &Place, figure: Figure) -> Series<'a> {
    let case = match figure {
        Figure::PacketsPerSecond => "highest-rate-without-loss".to_owned(),
        _ => format!("{PACE_KPPS}-kpps"),
    };
    let template = Template::to_other_host(stage, FRAME_BYTES);
    let variant = format!("{} {case}", place.name);
    let on_disk = place.name == DISK;
    let trial = |&recorder: &Recorder| {
        let take = Take { stage, recorder, template: template.clone(), file: file_in(&place.directory) };
        let baselines: &'static [&'static str] =
            if recorder == Recorder::Nocopy { &["tcpdump", "dumpcap"] } else { &[] };
        let step_min = if on_disk { STEP_MIN_DISK } else { STEP_MIN };
        let run = move |window: Duration| match figure {
            Figure::PacketsPerSecond => take.highest_rate(window.max(step_min)),
            _ => take.at_pace(window.max(STEP_MIN)),
        };
        Trial { method: recorder.name(), variant: Some(variant.clone()), baselines, run: Box::new(run) }
    };
    Series {
        workload: NAME,
        title: format!("{NAME} to {}, {FRAME_BYTES}-byte frames, {case}", place.name),
        sink: Some(place.name),
        payload_bytes: FRAME_BYTES,
        link: None,
        figure,
        trials: recorders.iter().map(trial).collect(),
    }
}

fn file_in(directory: &Path) -> PathBuf {
    directory.join(format!("nocopy-bench-{}.pcap", std::process::id()))
}

/// Packets that came to an interface of this thread's network namespace so far, whoever took them: what the source lost on the
/// way there is nobody's loss.
fn arrived(interface: &str) -> io::Result<u64> {
    let counts = fs::read_to_string("/proc/thread-self/net/dev")?;
    let of_interface =
        counts.lines().find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'));
    let packets = of_interface.and_then(|counts| counts.split_whitespace().nth(1)?.parse().ok());
    packets.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// One program with its file.
struct Take<'a> {
    stage: &'a Stage,
    recorder: Recorder,
    template: Template,
    file: PathBuf,
}

/// What came of one rate.
#[derive(Debug, Clone, Copy)]
struct Taken {
    /// Packets that came to the interface.
    offered: u64,
    reading: Reading,
    machine_busy: Duration,
}

impl Taken {
    fn is_lossless(&self) -> bool {
        self.reading.packets >= self.offered
    }
}

impl Take<'_> {
    /// Halves the range of rates, by ratio, until it is narrow.
    ///
    /// Where even the lowest is too much, what was lost of that shows.
    fn highest_rate(&self, step: Duration) -> Result<Sample, Failure> {
        let (mut low, mut high, mut best) = (KPPS_MIN, KPPS_MAX, None);
        while high / low > STEP_RATIO {
            let kpps = (low * high).sqrt();
            let taken = self.at(kpps, step)?;
            let achieved = taken.reading.packets as f64 / taken.reading.elapsed.as_secs_f64() / 1e3;
            if !taken.is_lossless() {
                high = kpps;
            } else {
                (low, best) = (kpps, Some(taken));
                // The source makes no more than this.
                if achieved < kpps / STEP_RATIO {
                    break;
                }
            }
        }
        Ok(sample(best.map_or_else(|| self.at(KPPS_MIN, step), Ok)?))
    }

    fn at_pace(&self, step: Duration) -> Result<Sample, Failure> {
        self.at(f64::from(PACE_KPPS), step).map(sample)
    }

    /// Records for a while what comes at a rate. The program runs on the receiver's processor.
    fn at(&self, kpps: f64, step: Duration) -> Result<Taken, Failure> {
        let step = step.min(Duration::from_secs_f64(STEP_BYTES_MAX / (kpps * 1e3 * FRAME_BYTES as f64)));
        let failed = |error| Failure::step(self.recorder.name(), "record", "try it by itself")(error);
        let generator = generator::open(&self.stage.sender)?;
        let taken = std::thread::scope(|scope| scope.spawn(|| self.take(&generator, kpps, step)).join());
        let taken = taken.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let _ = fs::remove_file(&self.file); // it may not have come to that
        taken.map_err(failed)
    }

    fn take(&self, generator: &Generator, kpps: f64, step: Duration) -> io::Result<Taken> {
        self.stage.receiver.enter(0)?;
        let interface = &self.stage.receiver.interface;
        let running = self.recorder.start(interface, &self.file)?;
        sleep(SETTLE);
        let (cpu, idle, before) = (running.cpu()?, cpu::machine_idle_time()?.0, arrived(interface)?);
        let sent = std::thread::scope(|scope| scope.spawn(|| self.send(generator, kpps, step)).join());
        let elapsed = sent.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        sleep(self.recorder.delay());
        let offered = arrived(interface)? - before;
        let (cpu, (idle_then, processors)) = (running.cpu()?.saturating_sub(cpu), cpu::machine_idle_time()?);
        let recorded = running.stop()?;
        let bytes = fs::metadata(&self.file)?.len();
        // Its own word, as far as the file is long enough for it. A packet of somebody else's may be among them.
        let packets = (recorded.packets).min(bytes / FRAME_BYTES as u64);
        let machine_busy =
            ((elapsed + self.recorder.delay()) * processors).saturating_sub(idle_then.saturating_sub(idle));
        let reading = Reading { packets, elapsed, cpu, packets_total: packets };
        Ok(Taken { offered, reading, machine_busy })
    }

    /// Sends for a while, evenly, from the sender's processor.
    fn send(&self, generator: &Generator, kpps: f64, step: Duration) -> io::Result<Duration> {
        self.stage.sender.enter(0)?;
        let (start, mut sent) = (Instant::now(), 0_u64);
        loop {
            let elapsed = start.elapsed();
            if elapsed >= step {
                return Ok(elapsed);
            }
            let due = (elapsed.as_secs_f64() * kpps * 1e3) as u64;
            let burst = u32::try_from(due - sent.min(due)).unwrap_or(u32::MAX).min(4 * kpps as u32);
            if burst > 0 {
                generator.send(self.template.bytes(), burst)?;
                sent += u64::from(burst);
            }
            sleep(INTERVAL.saturating_sub(start.elapsed().saturating_sub(elapsed)));
        }
    }
}

fn sample(Taken { offered, reading, machine_busy }: Taken) -> Sample {
    let sender = Reading { packets_total: offered, ..Reading::default() };
    let traffic =
        Traffic { senders: vec![sender], receivers: vec![reading], machine_busy, ..Traffic::default() };
    Sample { traffic, latency: None, evidence: Evidence::copied(CAUSE), wanted_share: 1.0 }
}
