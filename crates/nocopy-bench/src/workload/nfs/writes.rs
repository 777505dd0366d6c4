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

use super::client::{IN_FLIGHT_MAX, NfsClient, malformed_reply, refused_call};
use super::files;
use super::reads::{observe_clients, open_client, server_failure};
use super::server::{RunningServer, ServerKind};
use super::writable::{FILE, WritableDirectory};
use super::{NAME, NfsTestbed};
use crate::baseline::nfs_server;
use crate::nfs_content::content_word_at;
use crate::series::{Sample, Series, Trial};
use crate::traffic::ThreadWork;
use crate::window::WindowGauge;

const BYTES: usize = WRITE_BYTES_MAX;

/// Writes between two commits: the whole file.
const SLOTS: usize = 64;

pub(super) fn build_series(testbed: &NfsTestbed) -> Vec<Series<'_>> {
    if files::find_memory_directory().is_none() {
        return Vec::new(); // a note says so
    }
    let mut trials = vec![build_trial(testbed, ServerKind::RecvPwrite, &[])];
    if nfs_server::missing_requirement().is_none() {
        trials.push(build_trial(testbed, ServerKind::Ganesha, &["recv-pwrite"]));
    }
    trials.push(build_trial(testbed, ServerKind::Nocopy, &["ganesha", "recv-pwrite"]));
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

fn build_trial<'a>(
    testbed: &'a NfsTestbed,
    server_kind: ServerKind,
    baselines: &'static [&'static str],
) -> Trial<'a> {
    let run = move |window| take_sample(testbed, server_kind, window).map_err(server_failure(server_kind));
    Trial { method: server_kind.method_name(), variant: None, baselines, run: Box::new(run) }
}

fn take_sample(testbed: &NfsTestbed, server_kind: ServerKind, window: Duration) -> io::Result<Sample> {
    let directory = WritableDirectory::make()?;
    let export = directory.export();
    let server = RunningServer::start_with_export(testbed, server_kind, &export)?;
    let file = File::open(directory.exported_path(FILE))?;
    let mut writes = testbed.stage.receiver.run(|| {
        let (client, handle) = open_client(&export, &server, server_kind, FILE)?;
        let mut writes = FileWriter::new(client, handle);
        writes.write_whole_file(|_| true)?;
        writes.check_written(&file)?;
        io::Result::Ok(writes)
    })?;
    let write: ThreadWork<'_> = Box::new(|gauge| writes.write_until_window_closes(gauge));
    let traffic = observe_clients(testbed, &server, window, vec![write])?;
    writes.check_written(&file)?;
    Ok(Sample { traffic, latency: None, evidence: server.stop()?, wanted_share: 1.0 })
}

#[derive(Debug)]
struct FileWriter {
    client: NfsClient,
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

impl FileWriter {
    fn new(client: NfsClient, file: FileHandle) -> Self {
        let content = (0..(BYTES / 8 + SLOTS + 1) as u64).flat_map(content_word_at).collect();
        let latest = vec![0; SLOTS];
        Self { client, file, content, next: 0, in_flight: Vec::new(), latest, verifier: None }
    }

    /// The data of a write; it differs from the previous data at the same offset.
    fn write_data(&self, number: usize) -> &[u8] {
        &self.content[number % (SLOTS + 1) * 8..][..BYTES]
    }

    fn write_until_window_closes(&mut self, gauge: &mut WindowGauge<'_>) -> io::Result<()> {
        while gauge.may_send() {
            self.write_whole_file(|bytes| {
                gauge.count_packets(bytes as u64);
                gauge.may_send()
            })?;
        }
        Ok(())
    }

    /// Writes the file once, or until `is_continued` returns false for the number of bytes written, and
    /// commits.
    fn write_whole_file(&mut self, mut is_continued: impl FnMut(usize) -> bool) -> io::Result<()> {
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
        let (xid, result) = self.client.receive_results(decode_write_result)?;
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
        let settled =
            self.client.call_and_wait(nfs3::PROGRAM, Procedure::Commit as u32, &asked, |input| {
                let settled: NfsResult<CommitResult, WeakCacheConsistency> =
                    input.read().map_err(malformed_reply)?;
                settled.map_err(|refusal| refused_call("COMMIT", refusal.status))
            })?;
        match self.verifier.take() {
            Some(verifier) if verifier != settled.verifier => {
                Err(io::Error::other("what was written may be lost: the verifier is another one"))
            }
            _ => Ok(()),
        }
    }

    fn check_written(&self, file: &File) -> io::Result<()> {
        let mut found = vec![0; BYTES];
        for (slot, number) in self.latest.iter().enumerate() {
            file.read_exact_at(&mut found, (slot * BYTES) as u64)?;
            if found != self.write_data(*number) {
                return Err(io::Error::other(format!("what was written at {slot} MiB is not there")));
            }
        }
        Ok(())
    }
}

pub(super) fn decode_write_result(input: &mut Reader<'_>) -> io::Result<WriteResult> {
    let result: NfsResult<WriteResult, WeakCacheConsistency> = input.read().map_err(malformed_reply)?;
    result.map_err(|refusal| refused_call("WRITE", refusal.status))
}
