//! Times of single reads of a cached file, alone and while another client reads a file that is not in memory.

use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nocopy_report::figure::Figure;

use super::client::Reads;
use super::files::{self, CACHED, COLD};
use super::reads::{LONGEST_BYTES, failed, observe, open};
use super::server::{Server, Way};
use super::{NAME, Place};
use crate::baseline::nfs_server;
use crate::conversation::{empty_histogram, percentiles};
use crate::cpu;
use crate::series::{Latency, Sample, Series, Trial};
use crate::traffic::{Traffic, Work};
use crate::window::Phase;

/// Lengths of reads of the cached file; the cold file is read with the longest.
const READS_BYTES: [u32; 2] = [64 << 10, LONGEST_BYTES];

/// Long enough for the hundredth part of the reads to be some.
const WINDOW_MIN: Duration = Duration::from_millis(400);

/// The concurrent reads of 1 MiB: none, of a cached file, or of an uncached one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nobody,
    Cached,
    Cold,
}

impl Beside {
    fn variant(self) -> &'static str {
        match self {
            Self::Nobody => "alone",
            Self::Cached => "beside-a-cached-reader",
            Self::Cold => "beside-a-cold-reader",
        }
    }
}

pub(super) fn series(place: &Place) -> Vec<Series<'_>> {
    if !files::is_on_disk() {
        return Vec::new(); // a note says so
    }
    READS_BYTES.map(|bytes| of(place, bytes)).into()
}

fn of(place: &Place, bytes: u32) -> Series<'_> {
    let mut trials = Vec::new();
    if nfs_server::missing().is_none() {
        trials.push(trial(place, (Way::Ganesha, bytes), Beside::Nobody, &[]));
        trials.push(trial(place, (Way::Ganesha, bytes), Beside::Cold, &["ganesha"]));
    }
    trials.push(trial(place, (Way::Nocopy, bytes), Beside::Nobody, &["ganesha"]));
    trials.push(trial(place, (Way::Nocopy, bytes), Beside::Cached, &["nocopy"]));
    trials.push(trial(place, (Way::Nocopy, bytes), Beside::Cold, &["nocopy"]));
    Series {
        workload: NAME,
        title: format!("{NAME}, cached reads of {} KiB, one at a time", bytes >> 10),
        sink: None,
        payload_bytes: bytes as usize,
        link: Some(place.link.clone()),
        figure: Figure::TailLatency,
        trials,
    }
}

fn trial<'a>(
    place: &'a Place,
    (way, bytes): (Way, u32),
    beside: Beside,
    baselines: &'static [&'static str],
) -> Trial<'a> {
    let run = move |window: Duration| {
        play(place, (way, bytes), beside, window.max(WINDOW_MIN)).map_err(failed(way))
    };
    Trial { method: way.method(), variant: Some(beside.variant().into()), baselines, run: Box::new(run) }
}

fn play(place: &Place, (way, bytes): (Way, u32), beside: Beside, window: Duration) -> io::Result<Sample> {
    let server = Server::start(place, way)?;
    let open = |name, file_bytes, bytes| {
        place.stage.receiver.run(|| {
            let (client, file) = open(&place.files.exported(), &server, way, name)?;
            io::Result::Ok(Reads::new(client, file, file_bytes, bytes))
        })
    };
    let mut cached = open(CACHED, place.files.contents.cached_bytes, bytes)?;
    cached.check()?;
    let found = Mutex::new((empty_histogram(), 0));
    let mut clients: Vec<Work<'_>> = vec![Box::new(|gauge| {
        let (times, answered) = &mut *found.lock().expect("nobody panicked with it");
        while gauge.sending() {
            let start = Instant::now();
            cached.ask()?;
            cached.take(true)?;
            *answered += 1;
            if gauge.phase() == Phase::Measure {
                times.saturating_record(start.elapsed().as_nanos() as u64);
            }
            gauge.count(cached.bytes() as u64);
        }
        Ok(())
    })];
    if beside != Beside::Nobody {
        let bytes = LONGEST_BYTES;
        let (name, file_bytes) = match beside {
            Beside::Cold => (COLD, place.files.contents.cold_bytes),
            _ => (CACHED, place.files.contents.cached_bytes),
        };
        let mut reads = open(name, file_bytes, bytes)?.scattered();
        let cold = place.files.cold()?;
        let processor = place.stage.receiver.processor(0);
        clients.push(Box::new(move |gauge| {
            cpu::pin(processor)?; // with the other client, not with the server
            let mut is_as_meant = beside == Beside::Cached;
            while gauge.sending() {
                if beside == Beside::Cold {
                    is_as_meant |= cold.drop_pages(reads.next(), bytes.into())?;
                }
                reads.ask()?;
                reads.take(true)?;
                gauge.count(bytes.into());
            }
            if is_as_meant {
                Ok(())
            } else {
                Err(io::Error::other("the pages of a file cannot be dropped here"))
            }
        }));
    }
    observe(place, &server, window, clients)?;
    let (times, answered) = found.into_inner().expect("nobody panicked with it");
    let latency = percentiles(&times).map(|latency| Latency { answered, ..latency });
    let evidence = server.stop()?;
    Ok(Sample { traffic: Traffic::default(), latency, evidence, wanted_share: 1.0 })
}
