//! Copies to this host: of many small files, and of a long one.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nocopy_report::figure::Figure;
use nocopy_report::result::Evidence;

use super::process::{CopyRun, run};
use super::{Fixture, NAME, Reader, failed};
use crate::baseline::nfs_client::IN_FLIGHT;
use crate::series::{Sample, Series, Trial};
use crate::traffic::{Probe, StreamFacts, Traffic};
use crate::window::Reading;
use crate::workload::nfs::files::{self, LONG, SMALL, SMALL_BYTES, name_of, small_content};
use crate::workload::nfs::server::{Server, ServerKind};

/// Free disk space needed for a long copy.
pub(super) const ROOM_BYTES: u64 = 6 << 30;

/// A read of the long file.
const PIECE_BYTES: usize = 1 << 20;

const OUR_CAUSE: &str =
    "by the kernel, out of the socket into the posted buffer, and by write() from there into the file";

/// Many small files, into a file system in memory.
pub(super) fn small<'a>(fixture: &'a Fixture<'a>) -> Vec<Series<'a>> {
    if files::memory().is_none() {
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
        trials: trials(fixture, copy_small),
    }]
}

pub(super) fn long<'a>(fixture: &'a Fixture<'a>) -> Vec<Series<'a>> {
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
        trials: trials(fixture, copy_long),
    }]
}

fn trials<'a>(
    fixture: &'a Fixture<'a>,
    copy: fn(&Fixture<'_>, Reader) -> io::Result<Sample>,
) -> Vec<Trial<'a>> {
    let trial = |reader: Reader, baselines: &'static [&'static str]| Trial {
        method: reader.method(),
        variant: None,
        baselines,
        run: Box::new(move |_| copy(fixture, reader).map_err(failed(reader))),
    };
    match fixture.libnfs {
        Some(_) => vec![trial(Reader::Libnfs, &[]), trial(Reader::Nocopy, &["libnfs"])],
        None => vec![trial(Reader::Nocopy, &[])], // a note says so
    }
}

fn copy_small(fixture: &Fixture<'_>, reader: Reader) -> io::Result<Sample> {
    let directory = CopyDirectory::make(&files::memory().ok_or(io::ErrorKind::StorageFull)?)?;
    let to = directory.0.join("copy");
    let server = Server::start(fixture.testbed, ServerKind::Nocopy)?;
    let url = fixture.url(&server, SMALL);
    let mut command = match &fixture.libnfs {
        Some(program) if reader == Reader::Libnfs => {
            let mut command = Command::new(program);
            command.arg("directory").arg(url).arg(&to).arg(IN_FLIGHT.to_string());
            command
        }
        _ => cp(&["-r", &url], &to),
    };
    let sample =
        measure_run(fixture, &server, reader, &mut command, fixture.testbed.files.contents.small as u64)?;
    for number in 0..fixture.testbed.files.contents.small {
        if fs::read(to.join(name_of(number)))? != small_content(number) {
            return Err(io::Error::other(format!("the copy of file {number} is not what was served")));
        }
    }
    Ok(sample)
}

fn copy_long(fixture: &Fixture<'_>, reader: Reader) -> io::Result<Sample> {
    let directory = CopyDirectory::make(&fixture.testbed.files.scratch())?;
    let to = directory.0.join("copy");
    let server = Server::start(fixture.testbed, ServerKind::Nocopy)?;
    let (url, bytes) = (fixture.url(&server, LONG), fixture.testbed.files.contents.long_bytes);
    let mut command = match &fixture.libnfs {
        Some(program) if reader == Reader::Libnfs => {
            let mut command = Command::new(program);
            command.arg("file").arg(url).arg(&to);
            command.args([PIECE_BYTES, IN_FLIGHT].map(|number| number.to_string()));
            command
        }
        _ => cp(&[&url], &to),
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

fn cp(words: &[&str], to: &Path) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("cp").args(words).arg(to).arg("--json");
    command
}

/// Runs it to its end, and counts the copied files or bytes.
fn measure_run(
    fixture: &Fixture<'_>,
    server: &Server,
    reader: Reader,
    command: &mut Command,
    count: u64,
) -> io::Result<Sample> {
    let time_of_server = || server.cpu_ns();
    let before = Probe::take(Some(&time_of_server))?;
    let done = run(&fixture.testbed.stage.receiver, command)?;
    let after = Probe::take(Some(&time_of_server))?;
    let (elapsed, cpu_ns) = after.counted_since(&before);
    let reading = |elapsed, cpu| Reading { packets: count, elapsed, cpu, packets_total: count };
    let traffic = Traffic {
        senders: vec![reading(elapsed, Duration::from_nanos(cpu_ns))],
        receivers: vec![reading(done.elapsed, done.cpu)],
        machine_busy: after.machine_busy_since(&before),
        stream: StreamFacts { memory_bytes: Some(done.peak_bytes), ..StreamFacts::default() },
        ..Traffic::default()
    };
    Ok(Sample { traffic, latency: None, evidence: evidence(fixture, reader, &done), wanted_share: 1.0 })
}

fn evidence(fixture: &Fixture<'_>, reader: Reader, done: &CopyRun) -> Evidence {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let (peak, early) = (mib(done.peak_bytes), mib(done.early_peak_bytes));
    let how = match reader {
        Reader::Libnfs => {
            fixture.evidence_of_libnfs.cause.clone().unwrap_or_default() + ", and by write() from there"
        }
        _ => OUR_CAUSE.into(),
    };
    Evidence::copied(format!(
        "{how}; it had {early:.1} MiB of memory at most after a quarter of the time, {peak:.1} MiB at its end"
    ))
}
