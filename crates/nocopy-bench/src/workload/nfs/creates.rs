//! Files of 4 KiB that are made, written and closed, several at a time, as the kernel's client does: a name
//! is looked up, made, and its file written by one stable call.

use std::fs;
use std::io;
use std::time::Duration;

use nocopy_nfs::wire::mount::Text;
use nocopy_nfs::wire::nfs3::{
    self, Attributes, CreateArguments, CreateMode, CreateResult, Entry, FileHandle, LookupResult,
    MakeDirectoryArguments, NewAttributes, NfsResult, Procedure, Refusal, Stability, Status,
    WeakCacheConsistency,
};
use nocopy_nfs::wire::xdr::Reader;
use nocopy_report::figure::Figure;

use super::client::{IN_FLIGHT_MAX, NfsClient, malformed_reply, refused_call};
use super::files::{self, numbered_file_name};
use super::reads::{observe_clients, server_failure};
use super::server::{RunningServer, ServerKind};
use super::writable::WritableDirectory;
use super::writes::decode_write_result;
use super::{NAME, NfsTestbed};
use crate::baseline::nfs_server;
use crate::nfs_content::content_word_at;
use crate::series::{Sample, Series, Trial};
use crate::traffic::ThreadWork;
use crate::window::WindowGauge;

const BYTES: usize = 4 << 10;

/// Files in a directory; then the next directory is used.
const FILES: usize = 10_000;

/// Number of different contents, each shifted by a word.
const CONTENTS: usize = 61;

pub(super) fn build_series(testbed: &NfsTestbed) -> Vec<Series<'_>> {
    if files::find_memory_directory().is_none() {
        return Vec::new(); // a note says so
    }
    let ganesha =
        nfs_server::missing_requirement().is_none().then(|| build_trial(testbed, ServerKind::Ganesha, &[]));
    let nocopy = build_trial(testbed, ServerKind::Nocopy, &["ganesha"]);
    vec![Series {
        workload: NAME,
        title: format!("{NAME}, files of {} KiB made in memory, {FILES} in a directory", BYTES >> 10),
        sink: None,
        payload_bytes: BYTES,
        link: Some(testbed.link.clone()),
        figure: Figure::MessagesPerSecond,
        trials: ganesha.into_iter().chain([nocopy]).collect(),
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
    let server = RunningServer::start_with_export(testbed, server_kind, &directory.export())?;
    let mut creates = testbed.stage.receiver.run(|| {
        let root = NfsClient::connect(server.mount_address)?.mount(&directory.export().directory)?;
        io::Result::Ok(FileCreator::new(NfsClient::connect(server.address)?, root))
    })?;
    let make: ThreadWork<'_> = Box::new(|gauge| creates.create_until_window_closes(gauge));
    let traffic = observe_clients(testbed, &server, window, vec![make])?;
    creates.check_contents(&directory)?;
    Ok(Sample { traffic, latency: None, evidence: server.stop()?, wanted_share: 1.0 })
}

#[derive(Debug, Clone, Copy)]
enum PendingCall {
    /// LOOKUP: the name must not exist.
    Lookup,
    Create,
    Write,
}

#[derive(Debug)]
struct FileCreator {
    client: NfsClient,
    root: FileHandle,
    /// The directory of the next files.
    directory: FileHandle,
    content: Vec<u8>,
    count: usize,
    /// The number of the call, and of the file.
    in_flight: Vec<(u32, usize, PendingCall)>,
}

impl FileCreator {
    fn new(client: NfsClient, root: FileHandle) -> Self {
        let content = (0..(BYTES / 8 + CONTENTS) as u64).flat_map(content_word_at).collect();
        Self { client, root, directory: root, content, count: 0, in_flight: Vec::new() }
    }

    fn file_content(&self, number: usize) -> &[u8] {
        &self.content[number % CONTENTS * 8..][..BYTES]
    }

    /// Makes files until the window ends, and finishes files that were begun.
    fn create_until_window_closes(&mut self, gauge: &mut WindowGauge<'_>) -> io::Result<()> {
        while gauge.may_send() || !self.in_flight.is_empty() {
            while gauge.may_send() && self.in_flight.len() < IN_FLIGHT_MAX {
                if self.count.is_multiple_of(FILES) {
                    self.finish_pending(gauge)?;
                    self.make_directory()?;
                }
                self.begin_file()?;
            }
            self.handle_next_reply(gauge)?;
        }
        Ok(())
    }

    fn finish_pending(&mut self, gauge: &mut WindowGauge<'_>) -> io::Result<()> {
        while !self.in_flight.is_empty() {
            self.handle_next_reply(gauge)?;
        }
        Ok(())
    }

    fn make_directory(&mut self) -> io::Result<()> {
        let name = directory_name(self.count);
        let attributes = NewAttributes { mode: Some(0o755), ..NewAttributes::NONE };
        let asked = MakeDirectoryArguments { at: directory_entry(self.root, &name), attributes };
        let procedure = Procedure::MakeDirectory as u32;
        self.directory = self
            .client
            .call_and_wait(nfs3::PROGRAM, procedure, &asked, |input| decode_created_handle("MKDIR", input))?;
        Ok(())
    }

    fn begin_file(&mut self) -> io::Result<()> {
        let (number, name) = (self.count, numbered_file_name(self.count));
        self.count += 1;
        let asked = directory_entry(self.directory, &name);
        let xid = self.client.send_call(nfs3::PROGRAM, Procedure::Lookup as u32, &asked)?;
        self.in_flight.push((xid, number, PendingCall::Lookup));
        Ok(())
    }

    fn handle_next_reply(&mut self, gauge: &mut WindowGauge<'_>) -> io::Result<()> {
        let (xid, results) = self.client.receive_results(|input| Ok(input.rest().to_vec()))?;
        let known = self.in_flight.iter().position(|(asked, ..)| *asked == xid);
        let Some(known) = known else {
            return Err(io::Error::other("the server replied to a call that was not made"));
        };
        let (_, number, asked) = self.in_flight.swap_remove(known);
        let mut results = Reader::new(&results);
        let (xid, asked) = match asked {
            PendingCall::Lookup => {
                expect_no_entry(&mut results)?;
                (self.send_create(number)?, PendingCall::Create)
            }
            PendingCall::Create => {
                let file = decode_created_handle("CREATE", &mut results)?;
                let data = &self.content[number % CONTENTS * 8..][..BYTES];
                (self.client.send_write(file, 0, Stability::FileSync, data)?, PendingCall::Write)
            }
            PendingCall::Write => {
                let written = decode_write_result(&mut results)?;
                if (written.count as usize, written.stability) != (BYTES, Stability::FileSync) {
                    return Err(io::Error::other("a file was not written as it was to be"));
                }
                gauge.count_packets(1);
                return Ok(());
            }
        };
        self.in_flight.push((xid, number, asked));
        Ok(())
    }

    fn send_create(&mut self, number: usize) -> io::Result<u32> {
        let name = numbered_file_name(number);
        let new = NewAttributes { mode: Some(0o644), ..NewAttributes::NONE };
        let asked =
            CreateArguments { at: directory_entry(self.directory, &name), how: CreateMode::Unchecked(new) };
        self.client.send_call(nfs3::PROGRAM, Procedure::Create as u32, &asked)
    }

    fn check_contents(&self, directory: &WritableDirectory) -> io::Result<()> {
        for number in 0..self.count {
            let found =
                fs::read(directory.exported_path(&directory_name(number)).join(numbered_file_name(number)))?;
            if found != self.file_content(number) {
                return Err(io::Error::other(format!("what was written to file {number} is not there")));
            }
        }
        Ok(())
    }
}

fn directory_name(number: usize) -> String {
    format!("directory-{}", number / FILES)
}

fn directory_entry(directory: FileHandle, name: &str) -> Entry<'_> {
    Entry { directory, name: Text(name.as_bytes()) }
}

fn expect_no_entry(input: &mut Reader<'_>) -> io::Result<()> {
    let found: NfsResult<LookupResult, Option<Attributes>> = input.read().map_err(malformed_reply)?;
    match found {
        Err(Refusal { status: Status::NoEntry, .. }) => Ok(()),
        Err(refusal) => Err(refused_call("LOOKUP", refusal.status)),
        Ok(_) => Err(io::Error::other("there is a file that was not made yet")),
    }
}

fn decode_created_handle(call: &str, input: &mut Reader<'_>) -> io::Result<FileHandle> {
    let created: NfsResult<CreateResult, WeakCacheConsistency> = input.read().map_err(malformed_reply)?;
    let created = created.map_err(|refusal| refused_call(call, refusal.status))?;
    created.file.ok_or_else(|| refused_call(call, "no handle"))
}
