//! Reads of a file that is in memory, several at a time.

use std::io;
use std::time::Duration;

use nocopy_nfs::wire::nfs3::FileHandle;
use nocopy_report::figure::Figure;

use super::client::{Client, Reads, UNDER_WAY};
use super::exported::Exported;
use super::files::CACHED;
use super::server::{Server, Way};
use super::{NAME, Place};
use crate::Failure;
use crate::baseline::nfs_server;
use crate::series::{Sample, Series, Trial};
use crate::traffic::{Traffic, Work, conduct};
use crate::window::Reading;

/// A page, the usual length of clients for small files, and the longest that servers accept.
const READS_BYTES: [u32; 3] = [4 << 10, 64 << 10, LONGEST_BYTES];
pub(crate) const LONGEST_BYTES: u32 = 1 << 20;

pub(super) fn series(place: &Place) -> Vec<Series<'_>> {
    READS_BYTES.into_iter().map(|bytes| of_length(place, bytes)).collect()
}

pub(crate) fn of_length(place: &Place, bytes: u32) -> Series<'_> {
    let mut trials = vec![
        trial(place, Way::PreadWritev, bytes, &[]),
        trial(place, Way::Sendfile, bytes, &["pread-writev"]),
    ];
    if nfs_server::missing().is_none() {
        trials.push(trial(place, Way::Ganesha, bytes, &["pread-writev"])); // otherwise a note says so
    }
    trials.push(trial(place, Way::Stable, bytes, &["pread-writev"]));
    trials.push(trial(place, Way::Nocopy, bytes, &["ganesha", "pread-writev", "sendfile", "nocopy-stable"]));
    Series {
        workload: NAME,
        title: format!("{NAME}, reads of {} KiB, MTU {}", bytes >> 10, place.link.mtu_bytes),
        sink: None,
        payload_bytes: bytes as usize,
        link: Some(place.link.clone()),
        figure: Figure::BytesPerSecond,
        trials,
    }
}

fn trial<'a>(place: &'a Place, way: Way, bytes: u32, baselines: &'static [&'static str]) -> Trial<'a> {
    let run = move |window| play(place, way, bytes, window).map_err(failed(way));
    Trial { method: way.method(), variant: None, baselines, run: Box::new(run) }
}

pub(super) fn failed(way: Way) -> impl FnOnce(io::Error) -> Failure {
    Failure::step(way.method(), "serve files by NFS", "start it by itself, and look at what it prints")
}

fn play(place: &Place, way: Way, bytes: u32, window: Duration) -> io::Result<Sample> {
    let server = Server::start(place, way)?;
    let mut reads = place.stage.receiver.run(|| {
        let (client, file) = open(&place.files.exported(), &server, way, CACHED)?;
        let mut reads = Reads::new(client, file, place.files.contents.cached_bytes, bytes);
        reads.check()?;
        io::Result::Ok(reads)
    })?;
    let read: Work<'_> = Box::new(|gauge| {
        while gauge.sending() {
            while reads.under_way() < UNDER_WAY {
                reads.ask()?;
            }
            reads.take(true)?;
            gauge.count(reads.bytes() as u64);
        }
        Ok(())
    });
    let traffic = observe(place, &server, window, vec![read])?;
    Ok(Sample { traffic, latency: None, evidence: server.stop()?, wanted_share: 1.0 })
}

/// A client, and the file or directory of this name.
pub(super) fn open(
    exported: &Exported,
    server: &Server,
    way: Way,
    name: &str,
) -> io::Result<(Client, FileHandle)> {
    if way.is_by_hand() {
        let known = FileHandle::new(nfs_server::FILE).expect("it is a short one");
        return Ok((Client::connect(server.address)?, known));
    }
    let root = Client::connect(server.mount_address)?.mount(&exported.directory)?;
    let mut client = Client::connect(server.address)?;
    let file = client.look_up(root, name)?.file;
    Ok((client, file))
}

/// Runs clients for a while. The server counts as the sender; the first client's received bytes are counted.
pub(super) fn observe(
    place: &Place,
    server: &Server,
    window: Duration,
    clients: Vec<Work<'_>>,
) -> io::Result<Traffic> {
    let cpu = || server.cpu_ns();
    let traffic = conduct(&place.stage, window, Some(&cpu), Vec::new(), clients)?;
    let (Some((cpu_ns, elapsed)), Some(client)) = (traffic.sink, traffic.receivers.first().copied()) else {
        return Ok(traffic);
    };
    // The client's window is a reply longer or shorter than that of the server's clock.
    let share = elapsed.as_secs_f64() / client.elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
    let packets = (client.packets as f64 * share) as u64;
    let served =
        Reading { packets, elapsed, cpu: Duration::from_nanos(cpu_ns), packets_total: client.packets_total };
    Ok(Traffic { senders: vec![served], receivers: vec![client], sink: None, ..traffic })
}
