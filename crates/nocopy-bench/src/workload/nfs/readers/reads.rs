//! Reads of a file that is in memory, again and again.

use std::io;
use std::process::Command;
use std::time::Duration;

use nocopy_report::figure::Figure;
use nocopy_report::result::Evidence;

use super::process::ReaderProcess;
use super::{NAME, ReaderFixture, ReaderKind, reader_failure, recorded};
use crate::baseline::nfs_client::{IN_FLIGHT, NfsReadTask, ReadMethod, ReadResult, WARM_UP};
use crate::child::ChildKind;
use crate::series::{BEST_RECV, Sample, Series, Trial};
use crate::traffic::{CounterProbe, StreamFacts, TrafficReadings};
use crate::window::WindowReading;
use crate::workload::nfs::files::CACHED;
use crate::workload::nfs::server::{RunningServer, ServerKind};

const READS_BYTES: [usize; 2] = [64 << 10, 1 << 20];
const CONNECTIONS: [usize; 2] = [1, 8];

/// Buffer lengths of the recv() loop: the best one is the limit.
const RECV_BYTES: [(usize, &str); 3] = [(64 << 10, "64-KiB"), (256 << 10, "256-KiB"), (1 << 20, "1-MiB")];

const BY_HAND_CAUSE: &str = "by recv() out of the socket into one buffer of 256 KiB, with the heads of the replies, which are not looked at";

#[derive(Debug, Clone, Copy)]
struct ReadCase {
    bytes: usize,
    connections: usize,
}

pub(super) fn build_series<'a>(fixture: &'a ReaderFixture<'a>) -> Vec<Series<'a>> {
    let cases = READS_BYTES
        .into_iter()
        .flat_map(|bytes| CONNECTIONS.into_iter().map(move |connections| ReadCase { bytes, connections }));
    cases.map(|case| series_of_case(fixture, case)).collect()
}

fn series_of_case<'a>(fixture: &'a ReaderFixture<'a>, case: ReadCase) -> Series<'a> {
    let mut trials: Vec<Trial<'_>> =
        RECV_BYTES.into_iter().map(|(bytes, name)| recv_trial(fixture, case, bytes, name)).collect();
    trials.push(build_trial(fixture, case, ReaderKind::ByHand, &[]));
    let mut baselines: &[&str] = &[BEST_RECV, "by-hand"];
    if fixture.libnfs.is_some() {
        trials.push(build_trial(fixture, case, ReaderKind::Libnfs, &["by-hand"])); // otherwise a note says so
        baselines = &["libnfs", BEST_RECV, "by-hand"];
    }
    trials.push(build_trial(fixture, case, ReaderKind::Nocopy, baselines));
    let ReadCase { bytes, connections } = case;
    let ending = if connections == 1 { "" } else { "s" };
    Series {
        workload: NAME,
        title: format!("{NAME}, reads of {} KiB, {connections} connection{ending}", bytes >> 10),
        sink: None,
        payload_bytes: bytes,
        link: Some(fixture.testbed.link.clone()),
        figure: Figure::BytesPerSecond,
        trials,
    }
}

fn recv_trial<'a>(fixture: &'a ReaderFixture<'a>, case: ReadCase, bytes: usize, name: &str) -> Trial<'a> {
    let run = move |window| {
        take_recv_sample(fixture, case, bytes, window).map_err(reader_failure(ReaderKind::Recv))
    };
    Trial {
        method: ReaderKind::Recv.method_name(),
        variant: Some(name.into()),
        baselines: &[],
        run: Box::new(run),
    }
}

fn build_trial<'a>(
    fixture: &'a ReaderFixture<'a>,
    case: ReadCase,
    reader: ReaderKind,
    baselines: &'static [&'static str],
) -> Trial<'a> {
    let run = move |window| take_sample(fixture, case, reader, window).map_err(reader_failure(reader));
    Trial { method: reader.method_name(), variant: None, baselines, run: Box::new(run) }
}

fn take_recv_sample(
    fixture: &ReaderFixture<'_>,
    case: ReadCase,
    bytes: usize,
    window: Duration,
) -> io::Result<Sample> {
    let replies = recorded::record_replies(fixture, case.bytes)?;
    let server = RunningServer::start_with_export(fixture.testbed, ServerKind::Recorded, &replies)?;
    let method = ReadMethod::Recv { from: server.address, bytes };
    let evidence =
        Evidence::copied("by recv() out of the socket into one buffer, with the heads of the replies");
    measure_window(fixture, &server, &mut reader_command(method, case, window)?, |_| evidence)
}

fn take_sample(
    fixture: &ReaderFixture<'_>,
    case: ReadCase,
    reader: ReaderKind,
    window: Duration,
) -> io::Result<Sample> {
    let server = RunningServer::start(fixture.testbed, ServerKind::Nocopy)?;
    let url = fixture.nfs_url(&server, CACHED);
    let file_bytes = fixture.testbed.files.contents.cached_bytes;
    let ReadCase { bytes, connections } = case;
    match &fixture.libnfs {
        Some(program) if reader == ReaderKind::Libnfs => {
            let numbers = [
                bytes as u64,
                IN_FLIGHT as u64,
                connections as u64,
                file_bytes,
                millis(WARM_UP),
                millis(window),
            ];
            let mut command = Command::new(program);
            command.arg("reads").arg(url).args(numbers.map(|number| number.to_string()));
            measure_window(fixture, &server, &mut command, |_| fixture.evidence_of_libnfs.clone())
        }
        _ if reader == ReaderKind::ByHand => {
            let method = ReadMethod::PreparedCalls { url, from: server.address, bytes, file_bytes };
            let evidence = Evidence::copied(BY_HAND_CAUSE);
            measure_window(fixture, &server, &mut reader_command(method, case, window)?, |_| evidence)
        }
        _ => {
            let method = ReadMethod::Post { url, bytes, file_bytes };
            measure_window(fixture, &server, &mut reader_command(method, case, window)?, evidence_of_ours)
        }
    }
}

fn millis(duration: Duration) -> u64 {
    duration.as_millis() as u64
}

fn reader_command(method: ReadMethod, case: ReadCase, window: Duration) -> io::Result<Command> {
    ChildKind::ReadNfs.command(&NfsReadTask { method, connections: case.connections, window })
}

fn evidence_of_ours(done: &ReadResult) -> Evidence {
    let twice = if done.moved_bytes > 0 { "; a few bytes that came along with a head once more" } else { "" };
    Evidence::copied(format!("by the kernel, out of the socket into the posted buffer{twice}"))
}

fn measure_window(
    fixture: &ReaderFixture<'_>,
    server: &RunningServer,
    command: &mut Command,
    evidence: impl FnOnce(&ReadResult) -> Evidence,
) -> io::Result<Sample> {
    let time_of_server = || server.cpu_ns();
    let mut process = ReaderProcess::start(&fixture.testbed.stage.receiver, command)?;
    process.wait_until_measuring()?;
    let before = CounterProbe::take(Some(&time_of_server))?;
    let done = process.wait_for_result()?;
    let after = CounterProbe::take(Some(&time_of_server))?;
    let elapsed = Duration::from_nanos(done.elapsed_ns);
    let read = WindowReading {
        packets: done.bytes,
        elapsed,
        cpu: Duration::from_nanos(done.cpu_ns),
        packets_total: done.bytes,
    };
    // The clock of the server's time runs a little longer.
    let (whole, cpu_ns) = after.counted_since(&before);
    let share = whole.as_secs_f64() / elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
    let served = WindowReading {
        packets: (done.bytes as f64 * share) as u64,
        elapsed: whole,
        cpu: Duration::from_nanos(cpu_ns),
        packets_total: done.bytes,
    };
    let traffic = TrafficReadings {
        senders: vec![served],
        receivers: vec![read],
        machine_busy: after.machine_busy_since(&before),
        stream: StreamFacts { memory_bytes: Some(done.peak_kib << 10), ..StreamFacts::default() },
        ..TrafficReadings::default()
    };
    Ok(Sample { traffic, latency: None, evidence: evidence(&done), wanted_share: 1.0 })
}
