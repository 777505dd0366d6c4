//! Calls about files: attributes, names, and the calls of `ls -l` for a long directory.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use nocopy_nfs::wire::mount::Text;
use nocopy_nfs::wire::nfs3::{
    self, Attributes, DirectoryPage, FileHandle, FullDirectoryEntry, LookupArguments, NfsResult, Procedure,
    ReadDirPlusArguments,
};
use nocopy_report::figure::Figure;

use super::client::{self, IN_FLIGHT_MAX, NfsClient, malformed_reply, refused_call};
use super::files::{MANY, numbered_file_name};
use super::reads::{observe_clients, open_client, server_failure};
use super::server::{RunningServer, ServerKind};
use super::{NAME, NfsTestbed};
use crate::baseline::nfs_server;
use crate::series::{Sample, Series, Trial};
use crate::traffic::ThreadWork;
use crate::window::WindowGauge;

/// How many files are asked for, in turn.
const FILES: usize = 1000;

/// The longest reply to a part of a directory, and as much of names.
const PAGE_BYTES: u32 = 64 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestKind {
    Attributes,
    Lookup,
    /// The whole directory, with attributes and handles; counted are files.
    List,
}

impl RequestKind {
    const ALL: [Self; 3] = [Self::Attributes, Self::Lookup, Self::List];

    fn title(self, testbed: &NfsTestbed) -> String {
        match self {
            Self::Attributes => format!("{NAME}, GETATTR of {FILES} files"),
            Self::Lookup => format!("{NAME}, LOOKUP of {FILES} names"),
            Self::List => format!("{NAME}, 'ls -l' of {} files", testbed.files.contents.many),
        }
    }
}

pub(super) fn build_series(testbed: &NfsTestbed) -> Vec<Series<'_>> {
    RequestKind::ALL.into_iter().map(|kind| series_of_kind(testbed, kind)).collect()
}

fn series_of_kind(testbed: &NfsTestbed, kind: RequestKind) -> Series<'_> {
    let ganesha = nfs_server::missing_requirement()
        .is_none()
        .then(|| build_trial(testbed, kind, ServerKind::Ganesha, &[]));
    let nocopy = build_trial(testbed, kind, ServerKind::Nocopy, &["ganesha"]);
    Series {
        workload: NAME,
        title: kind.title(testbed),
        sink: None,
        payload_bytes: 0,
        link: Some(testbed.link.clone()),
        figure: Figure::MessagesPerSecond,
        trials: ganesha.into_iter().chain([nocopy]).collect(),
    }
}

fn build_trial<'a>(
    testbed: &'a NfsTestbed,
    kind: RequestKind,
    server_kind: ServerKind,
    baselines: &'static [&'static str],
) -> Trial<'a> {
    let run =
        move |window| take_sample(testbed, kind, server_kind, window).map_err(server_failure(server_kind));
    Trial { method: server_kind.method_name(), variant: None, baselines, run: Box::new(run) }
}

fn take_sample(
    testbed: &NfsTestbed,
    kind: RequestKind,
    server_kind: ServerKind,
    window: Duration,
) -> io::Result<Sample> {
    let server = RunningServer::start(testbed, server_kind)?;
    let mut calls =
        testbed.stage.receiver.run(|| FileRequests::prepare(testbed, &server, server_kind, kind))?;
    let call: ThreadWork<'_> = Box::new(|gauge| match kind {
        RequestKind::Attributes | RequestKind::Lookup => calls.query_files(kind, gauge),
        RequestKind::List => calls.list_repeatedly(gauge),
    });
    let traffic = observe_clients(testbed, &server, window, vec![call])?;
    Ok(Sample { traffic, latency: None, evidence: server.stop()?, wanted_share: 1.0 })
}

/// A file, as the directory has it.
#[derive(Debug)]
struct KnownFile {
    name: String,
    file_id: u64,
    handle: FileHandle,
}

#[derive(Debug)]
struct FileRequests {
    client: NfsClient,
    directory: FileHandle,
    files: Vec<KnownFile>,
    many: usize,
}

impl FileRequests {
    /// Looks up the requested files, and lists the directory once.
    fn prepare(
        testbed: &NfsTestbed,
        server: &RunningServer,
        server_kind: ServerKind,
        kind: RequestKind,
    ) -> io::Result<Self> {
        let (client, directory) = open_client(&testbed.files.export(), server, server_kind, MANY)?;
        let mut calls = Self { client, directory, files: Vec::new(), many: testbed.files.contents.many };
        match kind {
            RequestKind::List => while !calls.continue_listing(&mut ListingPosition::default(), |_| true)? {},
            RequestKind::Attributes | RequestKind::Lookup => {
                for number in 0..FILES.min(calls.many) {
                    let name = numbered_file_name(number);
                    let file_id = testbed.files.exported_path(MANY).join(&name).metadata()?.ino();
                    let handle = calls.client.look_up(directory, &name)?.file;
                    calls.files.push(KnownFile { name, file_id, handle });
                }
            }
        }
        Ok(calls)
    }

    fn query_files(&mut self, kind: RequestKind, gauge: &mut WindowGauge<'_>) -> io::Result<()> {
        let mut in_flight: Vec<(u32, usize)> = Vec::new();
        let mut numbers = (0..self.files.len()).cycle();
        while gauge.may_send() {
            while in_flight.len() < IN_FLIGHT_MAX {
                let number = numbers.next().expect("there are files");
                in_flight.push((self.send_request(kind, number)?, number));
            }
            let (xid, file_id) = self.client.receive_results(|input| match kind {
                RequestKind::Attributes => {
                    let found: NfsResult<Attributes, ()> = input.read().map_err(malformed_reply)?;
                    Ok(found.map_err(|refusal| refused_call("GETATTR", refusal.status))?.file_id)
                }
                _ => {
                    let attributes = client::decode_lookup_result(input)?.attributes;
                    attributes
                        .map(|found| found.file_id)
                        .ok_or_else(|| refused_call("LOOKUP", "no attributes"))
                }
            })?;
            let known = in_flight.iter().position(|(asked, _)| *asked == xid);
            let number = known.map(|known| in_flight.swap_remove(known).1);
            if number.is_none_or(|number| self.files[number].file_id != file_id) {
                return Err(io::Error::other("a reply is about another file"));
            }
            gauge.count_packets(1);
        }
        Ok(())
    }

    fn send_request(&mut self, kind: RequestKind, number: usize) -> io::Result<u32> {
        let KnownFile { name, handle, .. } = &self.files[number];
        match kind {
            RequestKind::Attributes => {
                self.client.send_call(nfs3::PROGRAM, Procedure::GetAttr as u32, handle)
            }
            _ => {
                let asked = LookupArguments { directory: self.directory, name: Text(name.as_bytes()) };
                self.client.send_call(nfs3::PROGRAM, Procedure::Lookup as u32, &asked)
            }
        }
    }

    fn list_repeatedly(&mut self, gauge: &mut WindowGauge<'_>) -> io::Result<()> {
        let mut position = ListingPosition::default();
        while gauge.may_send() {
            self.continue_listing(&mut position, |files| {
                gauge.count_packets(files as u64);
                gauge.may_send()
            })?;
        }
        Ok(())
    }

    /// Lists on to the end of the directory, or until `is_continued`, which gets the number of files, returns
    /// false. Returns whether the end was reached.
    fn continue_listing(
        &mut self,
        position: &mut ListingPosition,
        mut is_continued: impl FnMut(usize) -> bool,
    ) -> io::Result<bool> {
        loop {
            let asked = ReadDirPlusArguments {
                directory: self.directory,
                cookie: position.cookie,
                verifier: position.verifier,
                names_bytes_max: PAGE_BYTES,
                bytes_max: PAGE_BYTES,
            };
            let xid = self.client.send_call(nfs3::PROGRAM, Procedure::ReadDirPlus as u32, &asked)?;
            let (replied, page) = self.client.receive_results(|input| {
                let page: NfsResult<DirectoryPage<FullDirectoryEntry<'_>>, Option<Attributes>> =
                    input.read().map_err(malformed_reply)?;
                let page = page.map_err(|refusal| refused_call("READDIRPLUS", refusal.status))?;
                let last = page.entries.last().map_or(position.cookie, |last| last.cookie);
                Ok((count_files(&page)?, last, page.verifier, page.is_end, page.entries.is_empty()))
            })?;
            let (count, cookie, verifier, is_end, is_empty) = page;
            if replied != xid || is_empty && !is_end {
                return Err(io::Error::other("a part of a directory leads nowhere"));
            }
            position.files += count;
            if is_end && position.files != self.many {
                return Err(io::Error::other(format!("{} files of {}", position.files, self.many)));
            }
            *position = match is_end {
                true => ListingPosition::default(),
                false => ListingPosition { cookie, verifier, files: position.files },
            };
            if is_end || !is_continued(count) {
                return Ok(is_end);
            }
        }
    }
}

#[derive(Debug, Default)]
struct ListingPosition {
    cookie: u64,
    verifier: [u8; 8],
    files: usize,
}

/// The number of files in a part of a directory, after formatting each as `ls -l` does.
fn count_files(page: &DirectoryPage<FullDirectoryEntry<'_>>) -> io::Result<usize> {
    let files = page.entries.iter().filter(|entry| !matches!(entry.name.0, b"." | b".."));
    let mut count = 0;
    for file in files {
        let is_whole =
            file.attributes.is_some_and(|found| found.file_id == file.file_id) && file.file.is_some();
        if !is_whole {
            return Err(io::Error::other("an entry of a directory without attributes or handle"));
        }
        count += 1;
    }
    Ok(count)
}
