//! `nocopy cp`: files and directories from a server, or to one.
//!
//! A file is copied to NAME.nocopy-part, and renamed when it is complete and on the disk: so a file with the
//! final name is never incomplete. `--resume` continues an interrupted copy from where a [record] proves that
//! it is right.

mod attributes;
mod compare;
mod directory;
mod download;
mod download_batch;
mod download_file;
mod hard_links;
mod record;
mod sparse_source;
mod special_files;
mod summary;
mod upload;
mod upload_file;
mod upload_special;
mod uploads;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use nocopy::Pool;
use nocopy_report::live::LiveLine;
use nocopy_report::quantity::short_number;
use nocopy_report::{CommandEnd, Interrupt, Outcome, print};
use rustix::thread::CapabilitySet;

use super::super::local_path;
use super::{BUFFER_BYTES, BUFFERS, CpArguments, Failure, narrow_capabilities};
use crate::client::{Client, Entry, FileInfo, LISTING_BYTES_MAX, Url, UrlError, escape_path, is_nfs_url};
use crate::wire::nfs3::FileHandle;
use directory::OpenDirectory;
use hard_links::HardLinks;
use summary::{CopyCounts, Summary};

/// With which root makes devices, and gives directories of others their permissions and times.
const ROOT_CAPABILITIES: CapabilitySet =
    CapabilitySet::MKNOD.union(CapabilitySet::FOWNER).union(CapabilitySet::FSETID);

struct CopyContext<'a> {
    arguments: &'a CpArguments,
    interrupt: Interrupt,
    pool: Pool,
    line: LiveLine,
    counts: CopyCounts,
    shown_bytes: u64,
    failures: Vec<(String, String)>,
    hard_links: HardLinks,
    /// The places of copies, if several sources may have the same.
    claimed: Option<HashSet<Vec<u8>>>,
}

impl<'a> CopyContext<'a> {
    fn new(arguments: &'a CpArguments) -> Result<Self, Failure> {
        Ok(Self {
            arguments,
            interrupt: Interrupt::catch()?,
            pool: Pool::new(BUFFERS, BUFFER_BYTES).map_err(Failure::Memory)?,
            line: LiveLine::default(),
            counts: CopyCounts::default(),
            shown_bytes: 0,
            failures: Vec::new(),
            hard_links: HardLinks::default(),
            claimed: None,
        })
    }

    /// The sources, each once. If two have the same name, what was copied from one is not replaced by the
    /// other.
    fn unique_sources(
        &mut self,
        named: &[OsString],
        name: impl Fn(&OsStr) -> Option<OsString>,
    ) -> Vec<OsString> {
        let (mut all, mut words, mut names) = (Vec::new(), HashSet::new(), HashSet::new());
        for source in named {
            if !words.insert(source) {
                print::print_status(format_args!(
                    "nocopy: {}: named twice, copied once",
                    local_path::to_text(Path::new(source))
                ));
                continue;
            }
            if !names.insert(name(source)) {
                self.claimed = Some(HashSet::new());
            }
            all.push(source.clone());
        }
        all
    }

    /// Whether something may be copied to a place; if not, that is noted.
    fn claim_place(&mut self, place: impl FnOnce() -> Vec<u8>, name: impl FnOnce() -> String) -> bool {
        let is_free = self.claimed.as_mut().is_none_or(|taken| taken.insert(place()));
        if !is_free {
            self.add_failure(
                name(),
                "not copied; another source of this command has the same name; copy it to another directory",
            );
        }
        is_free
    }

    /// Skips something because of what it is.
    fn record_skip(&mut self, name: String, cause: &str) {
        self.counts.skipped += 1;
        self.add_failure(name, format!("skipped; {cause}"));
    }

    /// Notes what was not copied, or not with all that it has.
    fn add_failure(&mut self, name: String, what: impl Into<String>) {
        self.failures.push((name, what.into()));
    }

    fn count_progress(&mut self, bytes: usize) -> Result<(), Failure> {
        self.counts.bytes += bytes as u64;
        let Self { line, counts, shown_bytes, .. } = self;
        line.update(Instant::now(), |since| {
            let speed = (counts.bytes - *shown_bytes) as f64 / since.as_secs_f64();
            *shown_bytes = counts.bytes;
            format!(
                "{} of {} files, {}B of {}B, {}B/s",
                counts.files,
                counts.files_all,
                with_unit_space(short_number(counts.bytes as f64)),
                with_unit_space(short_number(counts.bytes_all as f64)),
                with_unit_space(short_number(speed))
            )
        });
        if self.interrupt.was_interrupted() { Err(Failure::Interrupted) } else { Ok(()) }
    }

    /// What is in a directory of the server.
    fn list_directory(&self, client: &mut Client, directory: FileHandle) -> Result<Vec<Entry>, Failure> {
        let listed =
            client.list_until_stopped(directory, LISTING_BYTES_MAX, || self.interrupt.was_interrupted())?;
        listed.ok_or(Failure::Interrupted)
    }

    /// Notes that one file could not be copied; an error that affects all files is returned.
    fn record_failure(&mut self, name: String, failure: Failure) -> Result<(), Failure> {
        if failure.affects_all_files() {
            return Err(failure);
        }
        self.failures.push((name, failure.to_string()));
        Ok(())
    }
}

/// A number and a space before its unit; `1.23 M` has one already.
fn with_unit_space(number: String) -> String {
    if number.contains(' ') { number } else { number + " " }
}

/// Copies, and prints a summary.
///
/// # Errors
/// Some files could not be copied; the summary is printed nevertheless.
pub fn run(arguments: &CpArguments) -> Result<Outcome, Failure> {
    narrow_capabilities(ROOT_CAPABILITIES)?;
    let (to, from) = arguments.paths.split_last().expect("clap requires two");
    let start = Instant::now();
    let mut context = CopyContext::new(arguments)?;
    let remote: Vec<bool> = from.iter().map(|path| is_nfs_url(path)).collect();
    let mut clients = Vec::new();
    let done = match (is_nfs_url(to), remote.as_slice()) {
        (false, all) if all.iter().all(|is_remote| *is_remote) => {
            download::run(&mut context, from, &parse_local_path(to)?, &mut clients)
        }
        (true, all) if !all.contains(&true) => upload::run(&mut context, from, &parse_url(to)?, &mut clients),
        _ => Err(Failure::Sides),
    };
    let is_over = matches!(done, Ok(()) | Err(Failure::Interrupted));
    if !is_over && context.counts == CopyCounts::default() && context.failures.is_empty() {
        return done.map(|()| Outcome::Positive); // there is nothing to sum up
    }
    let ended = match &done {
        Ok(()) => CommandEnd::Done,
        Err(Failure::Interrupted) => CommandEnd::Interrupted,
        Err(_) => CommandEnd::Failed,
    };
    let CopyContext { counts, failures, line, .. } = context;
    drop(line);
    for (name, said) in &failures {
        print::print_status(format_args!(
            "nocopy: {}",
            print::replace_all_control_characters(&format!("{name}: {said}"))
        ));
    }
    let summary = Summary::from_counts(ended, start.elapsed(), counts, failures, &clients);
    let failure = done.err().filter(|failure| !matches!(failure, Failure::Interrupted));
    print::print_summary(&summary, arguments.json, failure)
}

fn parse_url(word: &OsStr) -> Result<Url, Failure> {
    Ok(Url::from_os_str(word).map_err(crate::client::ClientError::from)?)
}

fn parse_local_path(word: &OsStr) -> Result<PathBuf, Failure> {
    let url = || escape_path(word.as_bytes());
    local_path::parse(word)
        .ok_or_else(|| crate::client::ClientError::from(UrlError::File { url: url() }).into())
}

/// Whether a directory of this host is one of the server, which may export it: then a copy would be copied
/// into itself.
fn is_same_directory(ours: &OpenDirectory, client: &mut Client, theirs: &FileInfo) -> Result<bool, Failure> {
    let metadata = || ours.metadata().map_err(|error| local_failure(ours.own_path(), error));
    let before = metadata()?;
    if before.ino() != theirs.attributes.file_id {
        return Ok(false);
    }
    // Other file systems have the same numbers, but hardly a directory that was changed in the same
    // nanosecond.
    let changed = client.attributes(theirs.file)?.changed;
    let changed = (i64::from(changed.seconds), i64::from(changed.nanoseconds));
    let [before, after] = [before, metadata()?].map(|metadata| (metadata.ctime(), metadata.ctime_nsec()));
    Ok((before..=after).contains(&changed))
}

fn local_failure(path: &Path, source: io::Error) -> Failure {
    Failure::Local { path: path.to_owned(), source }
}

/// The error of a name that is not, or no more, that of the file that it was.
fn replaced_error() -> io::Error {
    io::Error::other("another program has put something else there meanwhile")
}

type Clients = Vec<Client>;
