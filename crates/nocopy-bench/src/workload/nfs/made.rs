//! Files of 4 KiB that are made, written and closed, several at a time, as the kernel's client does: a name
//! is looked up, made, and its file written by one stable call.

use std::fs;
use std::io;
use std::time::Duration;

use nocopy_nfs::wire::mount::Text;
use nocopy_nfs::wire::nfs3::{
    self, Attributes, CreateArguments, Created, Entry, FileHandle, HowToCreate, LookupResult,
    MakeDirectoryArguments, NewAttributes, NfsResult, Procedure, Refusal, Stability, Status,
    WeakCacheConsistency,
};
use nocopy_nfs::wire::xdr::Reader;
use nocopy_report::figure::Figure;

use super::client::{Client, UNDER_WAY, malformed, refused};
use super::files::{self, name_of};
use super::reads::{failed, observe};
use super::server::{Server, Way};
use super::writes::written;
use super::written::Written;
use super::{NAME, Place};
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

pub(super) fn series(place: &Place) -> Vec<Series<'_>> {
    if files::memory().is_none() {
        return Vec::new(); // a note says so
    }
    let ganesha = nfs_server::missing().is_none().then(|| trial(place, Way::Ganesha, &[]));
    let nocopy = trial(place, Way::Nocopy, &["ganesha"]);
    vec![Series {
        workload: NAME,
        title: format!("{NAME}, files of {} KiB made in memory, {FILES} in a directory", BYTES >> 10),
        sink: None,
        payload_bytes: BYTES,
        link: Some(place.link.clone()),
        figure: Figure::MessagesPerSecond,
        trials: ganesha.into_iter().chain([nocopy]).collect(),
    }]
}

fn trial<'a>(place: &'a Place, way: Way, baselines: &'static [&'static str]) -> Trial<'a> {
    let run = move |window| play(place, way, window).map_err(failed(way));
    Trial { method: way.method(), variant: None, baselines, run: Box::new(run) }
}

fn play(place: &Place, way: Way, window: Duration) -> io::Result<Sample> {
    let written = Written::make()?;
    let server = Server::start_of(place, way, &written.exported())?;
    let mut made = place.stage.receiver.run(|| {
        let root = Client::connect(server.mount_address)?.mount(&written.exported().directory)?;
        io::Result::Ok(Made::new(Client::connect(server.address)?, root))
    })?;
    let make: Work<'_> = Box::new(|gauge| made.go_on(gauge));
    let traffic = observe(place, &server, window, vec![make])?;
    made.check(&written)?;
    Ok(Sample { traffic, latency: None, evidence: server.stop()?, wanted_share: 1.0 })
}

#[derive(Debug, Clone, Copy)]
enum Asked {
    /// LOOKUP: the name must not exist.
    Missing,
    Made,
    Written,
}

#[derive(Debug)]
struct Made {
    client: Client,
    root: FileHandle,
    /// The directory of the next files.
    directory: FileHandle,
    content: Vec<u8>,
    count: usize,
    /// The number of the call, and of the file.
    under_way: Vec<(u32, usize, Asked)>,
}

impl Made {
    fn new(client: Client, root: FileHandle) -> Self {
        let content = (0..(BYTES / 8 + CONTENTS) as u64).flat_map(word_at).collect();
        Self { client, root, directory: root, content, count: 0, under_way: Vec::new() }
    }

    fn content(&self, number: usize) -> &[u8] {
        &self.content[number % CONTENTS * 8..][..BYTES]
    }

    /// Makes files until the window ends, and finishes files that were begun.
    fn go_on(&mut self, gauge: &mut Gauge<'_>) -> io::Result<()> {
        while gauge.sending() || !self.under_way.is_empty() {
            while gauge.sending() && self.under_way.len() < UNDER_WAY {
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
        while !self.under_way.is_empty() {
            self.advance(gauge)?;
        }
        Ok(())
    }

    fn make_directory(&mut self) -> io::Result<()> {
        let name = directory_of(self.count);
        let attributes = NewAttributes { mode: Some(0o755), ..NewAttributes::NONE };
        let asked = MakeDirectoryArguments { at: entry(self.root, &name), attributes };
        let procedure = Procedure::MakeDirectory as u32;
        self.directory = self.client.call(nfs3::PROGRAM, procedure, &asked, |input| made("MKDIR", input))?;
        Ok(())
    }

    fn begin(&mut self) -> io::Result<()> {
        let (number, name) = (self.count, name_of(self.count));
        self.count += 1;
        let asked = entry(self.directory, &name);
        let xid = self.client.ask(nfs3::PROGRAM, Procedure::Lookup as u32, &asked)?;
        self.under_way.push((xid, number, Asked::Missing));
        Ok(())
    }

    fn advance(&mut self, gauge: &mut Gauge<'_>) -> io::Result<()> {
        let (xid, results) = self.client.reply(|input| Ok(input.rest().to_vec()))?;
        let known = self.under_way.iter().position(|(asked, ..)| *asked == xid);
        let Some(known) = known else {
            return Err(io::Error::other("the server replied to a call that was not made"));
        };
        let (_, number, asked) = self.under_way.swap_remove(known);
        let mut results = Reader::new(&results);
        let (xid, asked) = match asked {
            Asked::Missing => {
                is_missing(&mut results)?;
                (self.ask_to_make(number)?, Asked::Made)
            }
            Asked::Made => {
                let file = made("CREATE", &mut results)?;
                let data = &self.content[number % CONTENTS * 8..][..BYTES];
                (self.client.ask_to_write(file, 0, Stability::FileSync, data)?, Asked::Written)
            }
            Asked::Written => {
                let written = written(&mut results)?;
                if (written.count as usize, written.stability) != (BYTES, Stability::FileSync) {
                    return Err(io::Error::other("a file was not written as it was to be"));
                }
                gauge.count(1);
                return Ok(());
            }
        };
        self.under_way.push((xid, number, asked));
        Ok(())
    }

    fn ask_to_make(&mut self, number: usize) -> io::Result<u32> {
        let name = name_of(number);
        let new = NewAttributes { mode: Some(0o644), ..NewAttributes::NONE };
        let asked = CreateArguments { at: entry(self.directory, &name), how: HowToCreate::Unchecked(new) };
        self.client.ask(nfs3::PROGRAM, Procedure::Create as u32, &asked)
    }

    fn check(&self, written: &Written) -> io::Result<()> {
        for number in 0..self.count {
            let found = fs::read(written.path(&directory_of(number)).join(name_of(number)))?;
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

fn made(call: &str, input: &mut Reader<'_>) -> io::Result<FileHandle> {
    let made: NfsResult<Created, WeakCacheConsistency> = input.read().map_err(malformed)?;
    let made = made.map_err(|refusal| refused(call, refusal.status))?;
    made.file.ok_or_else(|| refused(call, "no handle"))
}
