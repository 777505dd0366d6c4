//! How long reads of a cached file take, one at a time, alone and while another client reads a file that is not in memory.

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

const READ_BYTES: u32 = 64 << 10;

/// Long enough for the hundredth part of the reads to be some.
const WINDOW_MIN: Duration = Duration::from_millis(400);

const ALONE: &str = "alone";
const BESIDE: &str = "beside-a-cold-reader";

pub(super) fn series(place: &Place) -> Vec<Series<'_>> {
    if !files::is_on_disk() {
        return Vec::new(); // a note says so
    }
    let mut trials = Vec::new();
    if nfs_server::is_installed() {
        trials.push(trial(place, Way::Ganesha, false, &[]));
        trials.push(trial(place, Way::Ganesha, true, &["ganesha"]));
    }
    trials.push(trial(place, Way::Nocopy, false, &["ganesha"]));
    trials.push(trial(place, Way::Nocopy, true, &["nocopy"]));
    vec![Series {
        workload: NAME,
        title: format!("{NAME}, cached reads of {} KiB, one at a time", READ_BYTES >> 10),
        sink: None,
        payload_bytes: READ_BYTES as usize,
        link: Some(place.link.clone()),
        figure: Figure::TailLatency,
        trials,
    }]
}

fn trial<'a>(place: &'a Place, way: Way, is_beside: bool, baselines: &'static [&'static str]) -> Trial<'a> {
    let run =
        move |window: Duration| play(place, way, is_beside, window.max(WINDOW_MIN)).map_err(failed(way));
    let variant = if is_beside { BESIDE } else { ALONE };
    Trial { method: way.method(), variant: Some(variant.into()), baselines, run: Box::new(run) }
}

fn play(place: &Place, way: Way, is_beside: bool, window: Duration) -> io::Result<Sample> {
    let server = Server::start(place, way)?;
    let open = |name, file_bytes, bytes| {
        place.stage.receiver.run(|| {
            let (client, file) = open(place, &server, way, name)?;
            io::Result::Ok(Reads::new(client, file, file_bytes, bytes))
        })
    };
    let mut cached = open(CACHED, place.files.cached_bytes(), READ_BYTES)?;
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
    if is_beside {
        let bytes = LONGEST_BYTES;
        let mut reads = open(COLD, place.files.cold_bytes(), bytes)?.scattered();
        let cold = place.files.cold()?;
        let processor = place.stage.receiver.processor(0);
        clients.push(Box::new(move |gauge| {
            cpu::pin(processor)?; // with the other client, not with the server
            let mut is_cold = false;
            while gauge.sending() {
                is_cold |= cold.drop_pages(reads.next(), bytes.into())?;
                reads.ask()?;
                reads.take(true)?;
                gauge.count(bytes.into());
            }
            if is_cold { Ok(()) } else { Err(io::Error::other("the pages of a file cannot be dropped here")) }
        }));
    }
    observe(place, &server, window, clients)?;
    let (times, answered) = found.into_inner().expect("nobody panicked with it");
    let latency = percentiles(&times).map(|latency| Latency { answered, ..latency });
    let evidence = server.stop()?;
    Ok(Sample { traffic: Traffic::default(), latency, evidence, wanted_share: 1.0 })
}
