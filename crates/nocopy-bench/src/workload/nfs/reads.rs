//! Reads of a file that is in memory, several at a time.

use std::io;
use std::time::Duration;

use nocopy_nfs::wire::nfs3::FileHandle;
use nocopy_report::figure::Figure;

use super::client::{FileReader, IN_FLIGHT_MAX, NfsClient};
use super::export::Export;
use super::files::CACHED;
use super::server::{RunningServer, ServerKind};
use super::{NAME, NfsTestbed};
use crate::Failure;
use crate::baseline::nfs_server;
use crate::series::{Sample, Series, Trial};
use crate::traffic::{ThreadWork, TrafficReadings, run_trial};
use crate::window::WindowReading;

/// A page, the usual length of clients for small files, and the longest that servers accept.
const READS_BYTES: [u32; 3] = [4 << 10, 64 << 10, LONGEST_BYTES];
pub(crate) const LONGEST_BYTES: u32 = 1 << 20;

pub(super) fn build_series(testbed: &NfsTestbed) -> Vec<Series<'_>> {
    READS_BYTES.into_iter().map(|bytes| series_of_length(testbed, bytes)).collect()
}

pub(crate) fn series_of_length(testbed: &NfsTestbed, bytes: u32) -> Series<'_> {
    let mut trials = vec![
        build_trial(testbed, ServerKind::PreadWritev, bytes, &[]),
        build_trial(testbed, ServerKind::Sendfile, bytes, &["pread-writev"]),
    ];
    if nfs_server::missing_requirement().is_none() {
        // Otherwise a note says so.
        trials.push(build_trial(testbed, ServerKind::Ganesha, bytes, &["pread-writev"]));
    }
    trials.push(build_trial(testbed, ServerKind::Stable, bytes, &["pread-writev"]));
    trials.push(build_trial(
        testbed,
        ServerKind::Nocopy,
        bytes,
        &["ganesha", "pread-writev", "sendfile", "nocopy-stable"],
    ));
    Series {
        workload: NAME,
        title: format!("{NAME}, reads of {} KiB, MTU {}", bytes >> 10, testbed.link.mtu_bytes),
        sink: None,
        payload_bytes: bytes as usize,
        link: Some(testbed.link.clone()),
        figure: Figure::BytesPerSecond,
        trials,
    }
}

fn build_trial<'a>(
    testbed: &'a NfsTestbed,
    server_kind: ServerKind,
    bytes: u32,
    baselines: &'static [&'static str],
) -> Trial<'a> {
    let run =
        move |window| take_sample(testbed, server_kind, bytes, window).map_err(server_failure(server_kind));
    Trial { method: server_kind.method_name(), variant: None, baselines, run: Box::new(run) }
}

pub(super) fn server_failure(server_kind: ServerKind) -> impl FnOnce(io::Error) -> Failure {
    Failure::step(
        server_kind.method_name(),
        "serve files by NFS",
        "start it by itself, and look at what it prints",
    )
}

fn take_sample(
    testbed: &NfsTestbed,
    server_kind: ServerKind,
    bytes: u32,
    window: Duration,
) -> io::Result<Sample> {
    let server = RunningServer::start(testbed, server_kind)?;
    let mut reads = testbed.stage.receiver.run(|| {
        let (client, file) = open_client(&testbed.files.export(), &server, server_kind, CACHED)?;
        let mut reads = FileReader::new(client, file, testbed.files.contents.cached_bytes, bytes);
        reads.check_whole_file()?;
        io::Result::Ok(reads)
    })?;
    let read: ThreadWork<'_> = Box::new(|gauge| {
        while gauge.may_send() {
            while reads.reads_in_flight() < IN_FLIGHT_MAX {
                reads.send_read()?;
            }
            reads.receive_reply(true)?;
            gauge.count_packets(reads.read_bytes() as u64);
        }
        Ok(())
    });
    let traffic = observe_clients(testbed, &server, window, vec![read])?;
    Ok(Sample { traffic, latency: None, evidence: server.stop()?, wanted_share: 1.0 })
}

/// A client, and the file or directory of this name.
pub(super) fn open_client(
    export: &Export,
    server: &RunningServer,
    server_kind: ServerKind,
    name: &str,
) -> io::Result<(NfsClient, FileHandle)> {
    if server_kind.is_by_hand() {
        let known = FileHandle::new(nfs_server::FILE).expect("it is a short one");
        return Ok((NfsClient::connect(server.address)?, known));
    }
    let root = NfsClient::connect(server.mount_address)?.mount(&export.directory)?;
    let mut client = NfsClient::connect(server.address)?;
    let file = client.look_up(root, name)?.file;
    Ok((client, file))
}

/// Runs clients for a while. The server counts as the sender; the first client's received bytes are counted.
pub(super) fn observe_clients(
    testbed: &NfsTestbed,
    server: &RunningServer,
    window: Duration,
    clients: Vec<ThreadWork<'_>>,
) -> io::Result<TrafficReadings> {
    let cpu = || server.cpu_ns();
    let traffic = run_trial(&testbed.stage, window, Some(&cpu), Vec::new(), clients)?;
    let (Some((cpu_ns, elapsed)), Some(client)) = (traffic.sink, traffic.receivers.first().copied()) else {
        return Ok(traffic);
    };
    // The client's window is a reply longer or shorter than that of the server's clock.
    let share = elapsed.as_secs_f64() / client.elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
    let packets = (client.packets as f64 * share) as u64;
    let served = WindowReading {
        packets,
        elapsed,
        cpu: Duration::from_nanos(cpu_ns),
        packets_total: client.packets_total,
    };
    Ok(TrafficReadings { senders: vec![served], receivers: vec![client], sink: None, ..traffic })
}
