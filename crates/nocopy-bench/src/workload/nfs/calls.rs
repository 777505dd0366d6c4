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

use super::client::{self, Client, UNDER_WAY, malformed, refused};
use super::files::{MANY, name_of};
use super::reads::{failed, observe, open};
use super::server::{Server, Way};
use super::{NAME, Place};
use crate::baseline::nfs_server;
use crate::series::{Sample, Series, Trial};
use crate::traffic::Work;
use crate::window::Gauge;

/// How many files are asked for, in turn.
const FILES: usize = 1000;

/// The longest reply to a part of a directory, and as much of names.
const PAGE_BYTES: u32 = 64 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Attributes,
    Lookup,
    /// The whole directory, with attributes and handles; counted are files.
    List,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Attributes, Self::Lookup, Self::List];

    fn title(self, place: &Place) -> String {
        match self {
            Self::Attributes => format!("{NAME}, GETATTR of {FILES} files"),
            Self::Lookup => format!("{NAME}, LOOKUP of {FILES} names"),
            Self::List => format!("{NAME}, 'ls -l' of {} files", place.files.contents.many),
        }
    }
}

pub(super) fn series(place: &Place) -> Vec<Series<'_>> {
    Kind::ALL.into_iter().map(|kind| of_kind(place, kind)).collect()
}

fn of_kind(place: &Place, kind: Kind) -> Series<'_> {
    let ganesha = nfs_server::missing().is_none().then(|| trial(place, kind, Way::Ganesha, &[]));
    let nocopy = trial(place, kind, Way::Nocopy, &["ganesha"]);
    Series {
        workload: NAME,
        title: kind.title(place),
        sink: None,
        payload_bytes: 0,
        link: Some(place.link.clone()),
        figure: Figure::MessagesPerSecond,
        trials: ganesha.into_iter().chain([nocopy]).collect(),
    }
}

fn trial<'a>(place: &'a Place, kind: Kind, way: Way, baselines: &'static [&'static str]) -> Trial<'a> {
    let run = move |window| play(place, kind, way, window).map_err(failed(way));
    Trial { method: way.method(), variant: None, baselines, run: Box::new(run) }
}

fn play(place: &Place, kind: Kind, way: Way, window: Duration) -> io::Result<Sample> {
    let server = Server::start(place, way)?;
    let mut calls = place.stage.receiver.run(|| Calls::prepare(place, &server, way, kind))?;
    let call: Work<'_> = Box::new(|gauge| match kind {
        Kind::Attributes | Kind::Lookup => calls.ask_for_files(kind, gauge),
        Kind::List => calls.list(gauge),
    });
    let traffic = observe(place, &server, window, vec![call])?;
    Ok(Sample { traffic, latency: None, evidence: server.stop()?, wanted_share: 1.0 })
}

/// A file, as the directory has it.
#[derive(Debug)]
struct Known {
    name: String,
    file_id: u64,
    handle: FileHandle,
}

#[derive(Debug)]
struct Calls {
    client: Client,
    directory: FileHandle,
    files: Vec<Known>,
    many: usize,
}

impl Calls {
    /// Looks up the requested files, and lists the directory once.
    fn prepare(place: &Place, server: &Server, way: Way, kind: Kind) -> io::Result<Self> {
        let (client, directory) = open(&place.files.exported(), server, way, MANY)?;
        let mut calls = Self { client, directory, files: Vec::new(), many: place.files.contents.many };
        match kind {
            Kind::List => while !calls.list_on(&mut Position::default(), |_| true)? {},
            Kind::Attributes | Kind::Lookup => {
                for number in 0..FILES.min(calls.many) {
                    let name = name_of(number);
                    let file_id = place.files.path(MANY).join(&name).metadata()?.ino();
                    let handle = calls.client.look_up(directory, &name)?.file;
                    calls.files.push(Known { name, file_id, handle });
                }
            }
        }
        Ok(calls)
    }

    fn ask_for_files(&mut self, kind: Kind, gauge: &mut Gauge<'_>) -> io::Result<()> {
        let mut under_way: Vec<(u32, usize)> = Vec::new();
        let mut numbers = (0..self.files.len()).cycle();
        while gauge.sending() {
            while under_way.len() < UNDER_WAY {
                let number = numbers.next().expect("there are files");
                under_way.push((self.ask(kind, number)?, number));
            }
            let (xid, file_id) = self.client.reply(|input| match kind {
                Kind::Attributes => {
                    let found: NfsResult<Attributes, ()> = input.read().map_err(malformed)?;
                    Ok(found.map_err(|refusal| refused("GETATTR", refusal.status))?.file_id)
                }
                _ => {
                    let attributes = client::found(input)?.attributes;
                    attributes.map(|found| found.file_id).ok_or_else(|| refused("LOOKUP", "no attributes"))
                }
            })?;
            let known = under_way.iter().position(|(asked, _)| *asked == xid);
            let number = known.map(|known| under_way.swap_remove(known).1);
            if number.is_none_or(|number| self.files[number].file_id != file_id) {
                return Err(io::Error::other("a reply is about another file"));
            }
            gauge.count(1);
        }
        Ok(())
    }

    fn ask(&mut self, kind: Kind, number: usize) -> io::Result<u32> {
        let Known { name, handle, .. } = &self.files[number];
        match kind {
            Kind::Attributes => self.client.ask(nfs3::PROGRAM, Procedure::GetAttr as u32, handle),
            _ => {
                let asked = LookupArguments { directory: self.directory, name: Text(name.as_bytes()) };
                self.client.ask(nfs3::PROGRAM, Procedure::Lookup as u32, &asked)
            }
        }
    }

    fn list(&mut self, gauge: &mut Gauge<'_>) -> io::Result<()> {
        let mut position = Position::default();
        while gauge.sending() {
            self.list_on(&mut position, |files| {
                gauge.count(files as u64);
                gauge.sending()
            })?;
        }
        Ok(())
    }

    /// Lists on to the end of the directory, or until `go_on`, which gets the number of files, returns false.
    /// Returns whether the end was reached.
    fn list_on(&mut self, position: &mut Position, mut go_on: impl FnMut(usize) -> bool) -> io::Result<bool> {
        loop {
            let asked = ReadDirPlusArguments {
                directory: self.directory,
                cookie: position.cookie,
                verifier: position.verifier,
                names_bytes_max: PAGE_BYTES,
                bytes_max: PAGE_BYTES,
            };
            let xid = self.client.ask(nfs3::PROGRAM, Procedure::ReadDirPlus as u32, &asked)?;
            let (replied, page) = self.client.reply(|input| {
                let page: NfsResult<DirectoryPage<FullDirectoryEntry<'_>>, Option<Attributes>> =
                    input.read().map_err(malformed)?;
                let page = page.map_err(|refusal| refused("READDIRPLUS", refusal.status))?;
                let last = page.entries.last().map_or(position.cookie, |last| last.cookie);
                Ok((files(&page)?, last, page.verifier, page.is_end, page.entries.is_empty()))
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
                true => Position::default(),
                false => Position { cookie, verifier, files: position.files },
            };
            if is_end || !go_on(count) {
                return Ok(is_end);
            }
        }
    }
}

#[derive(Debug, Default)]
struct Position {
    cookie: u64,
    verifier: [u8; 8],
    files: usize,
}

/// The number of files in a part of a directory, after formatting each as `ls -l` does.
fn files(page: &DirectoryPage<FullDirectoryEntry<'_>>) -> io::Result<usize> {
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
