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

use super::client::{Client, IN_FLIGHT_MAX, malformed, refused};
use super::files;
use super::reads::{failed, observe, open};
use super::server::{Server, ServerKind};
use super::writable::{FILE, WritableDirectory};
use super::{NAME, NfsTestbed};
use crate::baseline::nfs_server;
use crate::nfs_content::word_at;
use crate::series::{Sample, Series, Trial};
use crate::traffic::Work;
use crate::window::Gauge;

const BYTES: usize = WRITE_BYTES_MAX;

/// Writes between two commits: the whole file.
const SLOTS: usize = 64;

pub(super) fn series(testbed: &NfsTestbed) -> Vec<Series<'_>> {
    if files::memory().is_none() {
        return Vec::new(); // a note says so
    }
    let mut trials = vec![trial(testbed, ServerKind::RecvPwrite, &[])];
    if nfs_server::missing().is_none() {
        trials.push(trial(testbed, ServerKind::Ganesha, &["recv-pwrite"]));
    }
    trials.push(trial(testbed, ServerKind::Nocopy, &["ganesha", "recv-pwrite"]));
    vec![Series {
        workload: NAME,
        title: format!("{NAME}, writes of {} KiB to memory, MTU {}", BYTES >> 10, testbed.link.mtu_bytes),
        sink: None,
        payload_bytes: BYTES,
        link: Some(testbed.link.clone()),
        figure: Figure::BytesPerSecond,
        trials,
    }]
}

fn trial<'a>(
    testbed: &'a NfsTestbed,
    server_kind: ServerKind,
    baselines: &'static [&'static str],
) -> Trial<'a> {
    let run = move |window| take_sample(testbed, server_kind, window).map_err(failed(server_kind));
    Trial { method: server_kind.method(), variant: None, baselines, run: Box::new(run) }
}

fn take_sample(testbed: &NfsTestbed, server_kind: ServerKind, window: Duration) -> io::Result<Sample> {
    let directory = WritableDirectory::make()?;
    let export = directory.export();
    let server = Server::start_of(testbed, server_kind, &export)?;
    let file = File::open(directory.path(FILE))?;
    let mut writes = testbed.stage.receiver.run(|| {
        let (client, handle) = open(&export, &server, server_kind, FILE)?;
        let mut writes = Writes::new(client, handle);
        writes.write_all(|_| true)?;
        writes.check(&file)?;
        io::Result::Ok(writes)
    })?;
    let write: Work<'_> = Box::new(|gauge| writes.run(gauge));
    let traffic = observe(testbed, &server, window, vec![write])?;
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
    in_flight: Vec<(u32, usize)>,
    /// For each slot of the file, the write that wrote it last.
    latest: Vec<usize>,
    /// The verifier of all writes since the last commit.
    verifier: Option<Verifier>,
}

impl Writes {
    fn new(client: Client, file: FileHandle) -> Self {
        let content = (0..(BYTES / 8 + SLOTS + 1) as u64).flat_map(word_at).collect();
        let latest = vec![0; SLOTS];
        Self { client, file, content, next: 0, in_flight: Vec::new(), latest, verifier: None }
    }

    /// The data of a write; it differs from the previous data at the same offset.
    fn data(&self, number: usize) -> &[u8] {
        &self.content[number % (SLOTS + 1) * 8..][..BYTES]
    }

    fn run(&mut self, gauge: &mut Gauge<'_>) -> io::Result<()> {
        while gauge.sending() {
            self.write_all(|bytes| {
                gauge.count(bytes as u64);
                gauge.sending()
            })?;
        }
        Ok(())
    }

    /// Writes the file once, or until `is_continued` returns false for the number of bytes written, and
    /// commits.
    fn write_all(&mut self, mut is_continued: impl FnMut(usize) -> bool) -> io::Result<()> {
        let (mut asked, mut is_on) = (0, true);
        while is_on && asked < SLOTS || !self.in_flight.is_empty() {
            while is_on && asked < SLOTS && self.in_flight.len() < IN_FLIGHT_MAX {
                self.send_next_write()?;
                asked += 1;
            }
            self.receive_reply()?;
            is_on &= is_continued(BYTES);
        }
        self.commit()
    }

    fn send_next_write(&mut self) -> io::Result<()> {
        let number = self.next;
        let data = &self.content[number % (SLOTS + 1) * 8..][..BYTES];
        let offset = (number % SLOTS * BYTES) as u64;
        let xid = self.client.send_write(self.file, offset, Stability::Unstable, data)?;
        self.in_flight.push((xid, number));
        self.next = number + 1;
        Ok(())
    }

    fn receive_reply(&mut self) -> io::Result<()> {
        let (xid, result) = self.client.reply(write_result)?;
        let known = self.in_flight.iter().position(|(asked, _)| *asked == xid);
        let Some(known) = known else {
            return Err(io::Error::other("the server replied to a call that was not made"));
        };
        let (_, number) = self.in_flight.swap_remove(known);
        if result.count as usize != BYTES {
            return Err(io::Error::other(format!("{} bytes of {BYTES} were written", result.count)));
        }
        self.latest[number % SLOTS] = number;
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
        for (slot, number) in self.latest.iter().enumerate() {
            file.read_exact_at(&mut found, (slot * BYTES) as u64)?;
            if found != self.data(*number) {
                return Err(io::Error::other(format!("what was written at {slot} MiB is not there")));
            }
        }
        Ok(())
    }
}

pub(super) fn write_result(input: &mut Reader<'_>) -> io::Result<WriteResult> {
    let result: NfsResult<WriteResult, WeakCacheConsistency> = input.read().map_err(malformed)?;
    result.map_err(|refusal| refused("WRITE", refusal.status))
}
