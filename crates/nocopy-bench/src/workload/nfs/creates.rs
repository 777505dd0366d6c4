//! Files of 4 KiB that are made, written and closed, several at a time, as the kernel's client does: a name
//! is looked up, made, and its file written by one stable call.

use std::fs;
use std::io;
use std::time::Duration;

use nocopy_nfs::wire::mount::Text;
use nocopy_nfs::wire::nfs3::{
    self, Attributes, CreateArguments, CreateMode, Created, Entry, FileHandle, LookupResult,
    MakeDirectoryArguments, NewAttributes, NfsResult, Procedure, Refusal, Stability, Status,
    WeakCacheConsistency,
};
use nocopy_nfs::wire::xdr::Reader;
use nocopy_report::figure::Figure;

use super::client::{Client, IN_FLIGHT_MAX, malformed, refused};
use super::files::{self, name_of};
use super::reads::{failed, observe};
use super::server::{Server, ServerKind};
use super::writable::WritableDirectory;
use super::writes::write_result;
use super::{NAME, NfsTestbed};
use crate::baseline::nfs_server;
use crate::nfs_content::word_at;
use crate::series::{Sample, Series, Trial};
use crate::traffic::Work;
use crate::window::Gauge;

const BYTES: usize = 4 << 10;

/// Files in a directory; then the next directory is used.
const FILES: usize = 10_000;

/// Number of different contents, each shifted by a word.
const CONTENTS: usize = 61;

pub(super) fn series(testbed: &NfsTestbed) -> Vec<Series<'_>> {
    if files::memory().is_none() {
        return Vec::new(); // a note says so
    }
    let ganesha = nfs_server::missing().is_none().then(|| trial(testbed, ServerKind::Ganesha, &[]));
    let nocopy = trial(testbed, ServerKind::Nocopy, &["ganesha"]);
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
    let server = Server::start_of(testbed, server_kind, &directory.export())?;
    let mut creates = testbed.stage.receiver.run(|| {
        let root = Client::connect(server.mount_address)?.mount(&directory.export().directory)?;
        io::Result::Ok(Creates::new(Client::connect(server.address)?, root))
    })?;
    let make: Work<'_> = Box::new(|gauge| creates.run(gauge));
    let traffic = observe(testbed, &server, window, vec![make])?;
    creates.check(&directory)?;
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
struct Creates {
    client: Client,
    root: FileHandle,
    /// The directory of the next files.
    directory: FileHandle,
    content: Vec<u8>,
    count: usize,
    /// The number of the call, and of the file.
    in_flight: Vec<(u32, usize, PendingCall)>,
}

impl Creates {
    fn new(client: Client, root: FileHandle) -> Self {
        let content = (0..(BYTES / 8 + CONTENTS) as u64).flat_map(word_at).collect();
        Self { client, root, directory: root, content, count: 0, in_flight: Vec::new() }
    }

    fn content(&self, number: usize) -> &[u8] {
        &self.content[number % CONTENTS * 8..][..BYTES]
    }

    /// Makes files until the window ends, and finishes files that were begun.
    fn run(&mut self, gauge: &mut Gauge<'_>) -> io::Result<()> {
        while gauge.sending() || !self.in_flight.is_empty() {
            while gauge.sending() && self.in_flight.len() < IN_FLIGHT_MAX {
                if self.count.is_multiple_of(FILES) {
                    self.finish(gauge)?;
                    self.make_directory()?;
                }
                self.begin()?;
            }
            self.advance(gauge)?;
        }
        Ok(())
    }

    fn finish(&mut self, gauge: &mut Gauge<'_>) -> io::Result<()> {
        while !self.in_flight.is_empty() {
            self.advance(gauge)?;
        }
        Ok(())
    }

    fn make_directory(&mut self) -> io::Result<()> {
        let name = directory_of(self.count);
        let attributes = NewAttributes { mode: Some(0o755), ..NewAttributes::NONE };
        let asked = MakeDirectoryArguments { at: entry(self.root, &name), attributes };
        let procedure = Procedure::MakeDirectory as u32;
        self.directory =
            self.client.call(nfs3::PROGRAM, procedure, &asked, |input| created_handle("MKDIR", input))?;
        Ok(())
    }

    fn begin(&mut self) -> io::Result<()> {
        let (number, name) = (self.count, name_of(self.count));
        self.count += 1;
        let asked = entry(self.directory, &name);
        let xid = self.client.send_call(nfs3::PROGRAM, Procedure::Lookup as u32, &asked)?;
        self.in_flight.push((xid, number, PendingCall::Lookup));
        Ok(())
    }

    fn advance(&mut self, gauge: &mut Gauge<'_>) -> io::Result<()> {
        let (xid, results) = self.client.reply(|input| Ok(input.rest().to_vec()))?;
        let known = self.in_flight.iter().position(|(asked, ..)| *asked == xid);
        let Some(known) = known else {
            return Err(io::Error::other("the server replied to a call that was not made"));
        };
        let (_, number, asked) = self.in_flight.swap_remove(known);
        let mut results = Reader::new(&results);
        let (xid, asked) = match asked {
            PendingCall::Lookup => {
                is_missing(&mut results)?;
                (self.send_create(number)?, PendingCall::Create)
            }
            PendingCall::Create => {
                let file = created_handle("CREATE", &mut results)?;
                let data = &self.content[number % CONTENTS * 8..][..BYTES];
                (self.client.send_write(file, 0, Stability::FileSync, data)?, PendingCall::Write)
            }
            PendingCall::Write => {
                let written = write_result(&mut results)?;
                if (written.count as usize, written.stability) != (BYTES, Stability::FileSync) {
                    return Err(io::Error::other("a file was not written as it was to be"));
                }
                gauge.count(1);
                return Ok(());
            }
        };
        self.in_flight.push((xid, number, asked));
        Ok(())
    }

    fn send_create(&mut self, number: usize) -> io::Result<u32> {
        let name = name_of(number);
        let new = NewAttributes { mode: Some(0o644), ..NewAttributes::NONE };
        let asked = CreateArguments { at: entry(self.directory, &name), how: CreateMode::Unchecked(new) };
        self.client.send_call(nfs3::PROGRAM, Procedure::Create as u32, &asked)
    }

    fn check(&self, directory: &WritableDirectory) -> io::Result<()> {
        for number in 0..self.count {
            let found = fs::read(directory.path(&directory_of(number)).join(name_of(number)))?;
            if found != self.content(number) {
                return Err(io::Error::other(format!("what was written to file {number} is not there")));
            }
        }
        Ok(())
    }
}

fn directory_of(number: usize) -> String {
    format!("directory-{}", number / FILES)
}

fn entry(directory: FileHandle, name: &str) -> Entry<'_> {
    Entry { directory, name: Text(name.as_bytes()) }
}

fn is_missing(input: &mut Reader<'_>) -> io::Result<()> {
    let found: NfsResult<LookupResult, Option<Attributes>> = input.read().map_err(malformed)?;
    match found {
        Err(Refusal { status: Status::NoEntry, .. }) => Ok(()),
        Err(refusal) => Err(refused("LOOKUP", refusal.status)),
        Ok(_) => Err(io::Error::other("there is a file that was not made yet")),
    }
}

fn created_handle(call: &str, input: &mut Reader<'_>) -> io::Result<FileHandle> {
    let created: NfsResult<Created, WeakCacheConsistency> = input.read().map_err(malformed)?;
    let created = created.map_err(|refusal| refused(call, refusal.status))?;
    created.file.ok_or_else(|| refused(call, "no handle"))
}
