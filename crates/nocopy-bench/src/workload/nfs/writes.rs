//! Writes of 1 MiB, several at a time, and a COMMIT after each pass over the file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use nocopy_nfs::wire::nfs3::{
    self, CommitArguments, CommitResult, FileHandle, NfsResult, Procedure, Stability, Verifier,
    WRITE_BYTES_MAX, WeakCacheConsistency, WriteResult,
};
use nocopy_nfs::wire::xdr::Reader;
use nocopy_report::figure::Figure;

use super::client::{Client, UNDER_WAY, malformed, refused};
use super::files;
use super::reads::{failed, observe, open};
use super::server::{Server, Way};
use super::written::{FILE, Written};
use super::{NAME, Place};
use crate::baseline::nfs_server;
use crate::nfs_content::word_at;
use crate::series::{Sample, Series, Trial};
use crate::traffic::Work;
use crate::window::Gauge;

const BYTES: usize = WRITE_BYTES_MAX;

/// Writes between two commits: the whole file.
const PLACES: usize = 64;

pub(super) fn series(place: &Place) -> Vec<Series<'_>> {
    if files::memory().is_none() {
        return Vec::new(); // a note says so
    }
    let mut trials = vec![trial(place, Way::RecvPwrite, &[])];
    if nfs_server::missing().is_none() {
        trials.push(trial(place, Way::Ganesha, &["recv-pwrite"]));
    }
    trials.push(trial(place, Way::Nocopy, &["ganesha", "recv-pwrite"]));
    vec![Series {
        workload: NAME,
        title: format!("{NAME}, writes of {} KiB to memory, MTU {}", BYTES >> 10, place.link.mtu_bytes),
        sink: None,
        payload_bytes: BYTES,
        link: Some(place.link.clone()),
        figure: Figure::BytesPerSecond,
        trials,
    }]
}

fn trial<'a>(place: &'a Place, way: Way, baselines: &'static [&'static str]) -> Trial<'a> {
    let run = move |window| play(place, way, window).map_err(failed(way));
    Trial { method: way.method(), variant: None, baselines, run: Box::new(run) }
}

fn play(place: &Place, way: Way, window: Duration) -> io::Result<Sample> {
    let written = Written::make()?;
    let exported = written.exported();
    let server = Server::start_of(place, way, &exported)?;
    let file = File::open(written.path(FILE))?;
    let mut writes = place.stage.receiver.run(|| {
        let (client, handle) = open(&exported, &server, way, FILE)?;
        let mut writes = Writes::new(client, handle);
        writes.write_all(|_| true)?;
        writes.check(&file)?;
        io::Result::Ok(writes)
    })?;
    let write: Work<'_> = Box::new(|gauge| writes.go_on(gauge));
    let traffic = observe(place, &server, window, vec![write])?;
    writes.check(&file)?;
    Ok(Sample { traffic, latency: None, evidence: server.stop()?, wanted_share: 1.0 })
}

#[derive(Debug)]
struct Writes {
    client: Client,
    file: FileHandle,
    /// The source of written data.
    content: Vec<u8>,
    next: usize,
    /// Calls in flight: the number of each call, and of its write.
    under_way: Vec<(u32, usize)>,
    /// For each place of the file, the write that wrote it last.
    latest: Vec<usize>,
    /// The verifier of all writes since the last commit.
    verifier: Option<Verifier>,
}

impl Writes {
    fn new(client: Client, file: FileHandle) -> Self {
        let content = (0..(BYTES / 8 + PLACES + 1) as u64).flat_map(word_at).collect();
        let latest = vec![0; PLACES];
        Self { client, file, content, next: 0, under_way: Vec::new(), latest, verifier: None }
    }

    /// The data of a write; it differs from the previous data at the same offset.
    fn data(&self, number: usize) -> &[u8] {
        &self.content[number % (PLACES + 1) * 8..][..BYTES]
    }

    fn go_on(&mut self, gauge: &mut Gauge<'_>) -> io::Result<()> {
        while gauge.sending() {
            self.write_all(|bytes| {
                gauge.count(bytes as u64);
                gauge.sending()
            })?;
        }
        Ok(())
    }

    /// Writes the file once, or until `go_on` returns false for the number of bytes written, and commits.
    fn write_all(&mut self, mut go_on: impl FnMut(usize) -> bool) -> io::Result<()> {
        let (mut asked, mut is_on) = (0, true);
        while is_on && asked < PLACES || !self.under_way.is_empty() {
            while is_on && asked < PLACES && self.under_way.len() < UNDER_WAY {
                self.ask()?;
                asked += 1;
            }
            self.take()?;
            is_on &= go_on(BYTES);
        }
        self.commit()
    }

    fn ask(&mut self) -> io::Result<()> {
        let number = self.next;
        let data = &self.content[number % (PLACES + 1) * 8..][..BYTES];
        let offset = (number % PLACES * BYTES) as u64;
        let xid = self.client.ask_to_write(self.file, offset, Stability::Unstable, data)?;
        self.under_way.push((xid, number));
        self.next = number + 1;
        Ok(())
    }

    fn take(&mut self) -> io::Result<()> {
        let (xid, result) = self.client.reply(written)?;
        let known = self.under_way.iter().position(|(asked, _)| *asked == xid);
        let Some(known) = known else {
            return Err(io::Error::other("the server replied to a call that was not made"));
        };
        let (_, number) = self.under_way.swap_remove(known);
        if result.count as usize != BYTES {
            return Err(io::Error::other(format!("{} bytes of {BYTES} were written", result.count)));
        }
        self.latest[number % PLACES] = number;
        if self.verifier.replace(result.verifier).is_some_and(|before| before != result.verifier) {
            return Err(io::Error::other("what was written may be lost: the verifier is another one"));
        }
        Ok(())
    }

    fn commit(&mut self) -> io::Result<()> {
        let asked = CommitArguments { file: self.file, offset: 0, count: 0 };
        let settled = self.client.call(nfs3::PROGRAM, Procedure::Commit as u32, &asked, |input| {
            let settled: NfsResult<CommitResult, WeakCacheConsistency> = input.read().map_err(malformed)?;
            settled.map_err(|refusal| refused("COMMIT", refusal.status))
        })?;
        match self.verifier.take() {
            Some(verifier) if verifier != settled.verifier => {
                Err(io::Error::other("what was written may be lost: the verifier is another one"))
            }
            _ => Ok(()),
        }
    }

    fn check(&self, file: &File) -> io::Result<()> {
        let mut found = vec![0; BYTES];
        for (place, number) in self.latest.iter().enumerate() {
            file.read_exact_at(&mut found, (place * BYTES) as u64)?;
            if found != self.data(*number) {
                return Err(io::Error::other(format!("what was written at {place} MiB is not there")));
            }
        }
        Ok(())
    }
}

pub(super) fn written(input: &mut Reader<'_>) -> io::Result<WriteResult> {
    let result: NfsResult<WriteResult, WeakCacheConsistency> = input.read().map_err(malformed)?;
    result.map_err(|refusal| refused("WRITE", refusal.status))
}
