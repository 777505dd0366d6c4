//! Times of single reads of a cached file, alone and while another client reads a file that is not in memory.

use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nocopy_report::figure::Figure;

use super::client::FileReader;
use super::files::{self, CACHED, COLD};
use super::reads::{LONGEST_BYTES, observe_clients, open_client, server_failure};
use super::server::{RunningServer, ServerKind};
use super::{NAME, NfsTestbed};
use crate::baseline::nfs_server;
use crate::conversation::{empty_histogram, latency_percentiles};
use crate::cpu;
use crate::series::{Latency, Sample, Series, Trial};
use crate::traffic::{ThreadWork, TrafficReadings};
use crate::window::TrialPhase;

/// Lengths of reads of the cached file; the cold file is read with the longest.
const READS_BYTES: [u32; 2] = [64 << 10, LONGEST_BYTES];

/// Long enough for the hundredth part of the reads to be some.
const WINDOW_MIN: Duration = Duration::from_millis(400);

/// The concurrent reads of 1 MiB: none, of a cached file, or of an uncached one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConcurrentLoad {
    None,
    Cached,
    Cold,
}

impl ConcurrentLoad {
    fn variant_name(self) -> &'static str {
        match self {
            Self::None => "alone",
            Self::Cached => "beside-a-cached-reader",
            Self::Cold => "beside-a-cold-reader",
        }
    }
}

pub(super) fn build_series(testbed: &NfsTestbed) -> Vec<Series<'_>> {
    if !files::has_disk_directory() {
        return Vec::new(); // a note says so
    }
    READS_BYTES.map(|bytes| series_of_read_length(testbed, bytes)).into()
}

fn series_of_read_length(testbed: &NfsTestbed, bytes: u32) -> Series<'_> {
    let mut trials = Vec::new();
    if nfs_server::missing_requirement().is_none() {
        trials.push(build_trial(testbed, (ServerKind::Ganesha, bytes), ConcurrentLoad::None, &[]));
        trials.push(build_trial(testbed, (ServerKind::Ganesha, bytes), ConcurrentLoad::Cold, &["ganesha"]));
    }
    trials.push(build_trial(testbed, (ServerKind::Nocopy, bytes), ConcurrentLoad::None, &["ganesha"]));
    trials.push(build_trial(testbed, (ServerKind::Nocopy, bytes), ConcurrentLoad::Cached, &["nocopy"]));
    trials.push(build_trial(testbed, (ServerKind::Nocopy, bytes), ConcurrentLoad::Cold, &["nocopy"]));
    Series {
        workload: NAME,
        title: format!("{NAME}, cached reads of {} KiB, one at a time", bytes >> 10),
        sink: None,
        payload_bytes: bytes as usize,
        link: Some(testbed.link.clone()),
        figure: Figure::TailLatency,
        trials,
    }
}

fn build_trial<'a>(
    testbed: &'a NfsTestbed,
    (server_kind, bytes): (ServerKind, u32),
    load: ConcurrentLoad,
    baselines: &'static [&'static str],
) -> Trial<'a> {
    let run = move |window: Duration| {
        take_sample(testbed, (server_kind, bytes), load, window.max(WINDOW_MIN))
            .map_err(server_failure(server_kind))
    };
    Trial {
        method: server_kind.method_name(),
        variant: Some(load.variant_name().into()),
        baselines,
        run: Box::new(run),
    }
}

fn take_sample(
    testbed: &NfsTestbed,
    (server_kind, bytes): (ServerKind, u32),
    load: ConcurrentLoad,
    window: Duration,
) -> io::Result<Sample> {
    let server = RunningServer::start(testbed, server_kind)?;
    let open = |name, file_bytes, bytes| {
        testbed.stage.receiver.run(|| {
            let (client, file) = open_client(&testbed.files.export(), &server, server_kind, name)?;
            io::Result::Ok(FileReader::new(client, file, file_bytes, bytes))
        })
    };
    let mut cached = open(CACHED, testbed.files.contents.cached_bytes, bytes)?;
    cached.check_whole_file()?;
    let latencies = Mutex::new((empty_histogram(), 0));
    let mut clients: Vec<ThreadWork<'_>> = vec![Box::new(|gauge| {
        let (times, answered) = &mut *latencies.lock().expect("nobody panicked with it");
        while gauge.may_send() {
            let start = Instant::now();
            cached.send_read()?;
            cached.receive_reply(true)?;
            *answered += 1;
            if gauge.phase() == TrialPhase::Measure {
                times.saturating_record(start.elapsed().as_nanos() as u64);
            }
            gauge.count_packets(cached.read_bytes() as u64);
        }
        Ok(())
    })];
    if load != ConcurrentLoad::None {
        let bytes = LONGEST_BYTES;
        let (name, file_bytes) = match load {
            ConcurrentLoad::Cold => (COLD, testbed.files.contents.cold_bytes),
            _ => (CACHED, testbed.files.contents.cached_bytes),
        };
        let mut reads = open(name, file_bytes, bytes)?.with_gaps();
        let cold = testbed.files.open_cold_file()?;
        let processor = testbed.stage.receiver.processor_of_thread(0);
        clients.push(Box::new(move |gauge| {
            cpu::pin_thread(processor)?; // with the other client, not with the server
            let mut is_as_meant = load == ConcurrentLoad::Cached;
            while gauge.may_send() {
                if load == ConcurrentLoad::Cold {
                    is_as_meant |= cold.drop_pages(reads.next_offset(), bytes.into())?;
                }
                reads.send_read()?;
                reads.receive_reply(true)?;
                gauge.count_packets(bytes.into());
            }
            if is_as_meant {
                Ok(())
            } else {
                Err(io::Error::other("the pages of a file cannot be dropped here"))
            }
        }));
    }
    observe_clients(testbed, &server, window, clients)?;
    let (times, answered) = latencies.into_inner().expect("nobody panicked with it");
    let latency = latency_percentiles(&times).map(|latency| Latency { answered, ..latency });
    let evidence = server.stop()?;
    Ok(Sample { traffic: TrafficReadings::default(), latency, evidence, wanted_share: 1.0 })
}
