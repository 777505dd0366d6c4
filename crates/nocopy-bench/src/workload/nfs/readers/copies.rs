//! Copies to this host: of many small files, and of a long one.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nocopy_report::figure::Figure;
use nocopy_report::result::Evidence;

use super::process::{CopyMeasurement, run_copy};
use super::{NAME, ReaderFixture, ReaderKind, reader_failure};
use crate::baseline::nfs_client::IN_FLIGHT;
use crate::series::{Sample, Series, Trial};
use crate::traffic::{CounterProbe, StreamFacts, TrafficReadings};
use crate::window::WindowReading;
use crate::workload::nfs::files::{self, LONG, SMALL, SMALL_BYTES, numbered_file_name, small_content};
use crate::workload::nfs::server::{RunningServer, ServerKind};

/// Free disk space needed for a long copy.
pub(super) const ROOM_BYTES: u64 = 6 << 30;

/// A read of the long file.
const PIECE_BYTES: usize = 1 << 20;

const OUR_CAUSE: &str =
    "by the kernel, out of the socket into the posted buffer, and by write() from there into the file";

/// Many small files, into a file system in memory.
pub(super) fn small_files_series<'a>(fixture: &'a ReaderFixture<'a>) -> Vec<Series<'a>> {
    if files::find_memory_directory().is_none() {
        return Vec::new(); // a note says so
    }
    let count = fixture.testbed.files.contents.small;
    vec![Series {
        workload: NAME,
        title: format!("{NAME}, {count} files of {} KiB copied", SMALL_BYTES >> 10),
        sink: None,
        payload_bytes: SMALL_BYTES,
        link: Some(fixture.testbed.link.clone()),
        figure: Figure::MessagesPerSecond,
        trials: build_trials(fixture, copy_small),
    }]
}

pub(super) fn long_file_series<'a>(fixture: &'a ReaderFixture<'a>) -> Vec<Series<'a>> {
    if !files::has_disk_room(ROOM_BYTES) {
        return Vec::new(); // a note says so
    }
    let gib = fixture.testbed.files.contents.long_bytes >> 30;
    vec![Series {
        workload: NAME,
        title: format!("{NAME}, {gib} GiB copied by {} KiB", PIECE_BYTES >> 10),
        sink: None,
        payload_bytes: PIECE_BYTES,
        link: Some(fixture.testbed.link.clone()),
        figure: Figure::BytesPerSecond,
        trials: build_trials(fixture, copy_long),
    }]
}

fn build_trials<'a>(
    fixture: &'a ReaderFixture<'a>,
    copy: fn(&ReaderFixture<'_>, ReaderKind) -> io::Result<Sample>,
) -> Vec<Trial<'a>> {
    let trial = |reader: ReaderKind, baselines: &'static [&'static str]| Trial {
        method: reader.method_name(),
        variant: None,
        baselines,
        run: Box::new(move |_| copy(fixture, reader).map_err(reader_failure(reader))),
    };
    match fixture.libnfs {
        Some(_) => vec![trial(ReaderKind::Libnfs, &[]), trial(ReaderKind::Nocopy, &["libnfs"])],
        None => vec![trial(ReaderKind::Nocopy, &[])], // a note says so
    }
}

fn copy_small(fixture: &ReaderFixture<'_>, reader: ReaderKind) -> io::Result<Sample> {
    let directory = CopyDirectory::make(&files::find_memory_directory().ok_or(io::ErrorKind::StorageFull)?)?;
    let to = directory.0.join("copy");
    let server = RunningServer::start(fixture.testbed, ServerKind::Nocopy)?;
    let url = fixture.nfs_url(&server, SMALL);
    let mut command = match &fixture.libnfs {
        Some(program) if reader == ReaderKind::Libnfs => {
            let mut command = Command::new(program);
            command.arg("directory").arg(url).arg(&to).arg(IN_FLIGHT.to_string());
            command
        }
        _ => cp_command(&["-r", &url], &to),
    };
    let sample =
        measure_run(fixture, &server, reader, &mut command, fixture.testbed.files.contents.small as u64)?;
    for number in 0..fixture.testbed.files.contents.small {
        if fs::read(to.join(numbered_file_name(number)))? != small_content(number) {
            return Err(io::Error::other(format!("the copy of file {number} is not what was served")));
        }
    }
    Ok(sample)
}

fn copy_long(fixture: &ReaderFixture<'_>, reader: ReaderKind) -> io::Result<Sample> {
    let directory = CopyDirectory::make(&fixture.testbed.files.scratch_directory())?;
    let to = directory.0.join("copy");
    let server = RunningServer::start(fixture.testbed, ServerKind::Nocopy)?;
    let (url, bytes) = (fixture.nfs_url(&server, LONG), fixture.testbed.files.contents.long_bytes);
    let mut command = match &fixture.libnfs {
        Some(program) if reader == ReaderKind::Libnfs => {
            let mut command = Command::new(program);
            command.arg("file").arg(url).arg(&to);
            command.args([PIECE_BYTES, IN_FLIGHT].map(|number| number.to_string()));
            command
        }
        _ => cp_command(&[&url], &to),
    };
    let sample = measure_run(fixture, &server, reader, &mut command, bytes)?;
    match fs::metadata(&to)?.len() {
        copied if copied == bytes => Ok(sample),
        copied => Err(io::Error::other(format!("{copied} bytes of {bytes} were copied"))),
    }
}

/// A directory for a copy; removed when dropped.
struct CopyDirectory(PathBuf);

impl CopyDirectory {
    fn make(parent: &Path) -> io::Result<Self> {
        let own = parent.join(format!("nocopy-bench-copies-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&own)?;
        Ok(Self(own))
    }
}

impl Drop for CopyDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // what is left over does no harm
    }
}

fn cp_command(words: &[&str], to: &Path) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("cp").args(words).arg(to).arg("--json");
    command
}

/// Runs it to its end, and counts the copied files or bytes.
fn measure_run(
    fixture: &ReaderFixture<'_>,
    server: &RunningServer,
    reader: ReaderKind,
    command: &mut Command,
    count: u64,
) -> io::Result<Sample> {
    let time_of_server = || server.cpu_ns();
    let before = CounterProbe::take(Some(&time_of_server))?;
    let done = run_copy(&fixture.testbed.stage.receiver, command)?;
    let after = CounterProbe::take(Some(&time_of_server))?;
    let (elapsed, cpu_ns) = after.counted_since(&before);
    let reading = |elapsed, cpu| WindowReading { packets: count, elapsed, cpu, packets_total: count };
    let traffic = TrafficReadings {
        senders: vec![reading(elapsed, Duration::from_nanos(cpu_ns))],
        receivers: vec![reading(done.elapsed, done.cpu)],
        machine_busy: after.machine_busy_since(&before),
        stream: StreamFacts { memory_bytes: Some(done.peak_bytes), ..StreamFacts::default() },
        ..TrafficReadings::default()
    };
    Ok(Sample { traffic, latency: None, evidence: copy_evidence(fixture, reader, &done), wanted_share: 1.0 })
}

fn copy_evidence(fixture: &ReaderFixture<'_>, reader: ReaderKind, done: &CopyMeasurement) -> Evidence {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let (peak, early) = (mib(done.peak_bytes), mib(done.early_peak_bytes));
    let how = match reader {
        ReaderKind::Libnfs => {
            fixture.evidence_of_libnfs.cause.clone().unwrap_or_default() + ", and by write() from there"
        }
        _ => OUR_CAUSE.into(),
    };
    Evidence::copied(format!(
        "{how}; it had {early:.1} MiB of memory at most after a quarter of the time, {peak:.1} MiB at its end"
    ))
}
