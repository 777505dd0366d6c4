//! `nocopy cp`: files and directories from a server, or to one.
//!
//! A file is copied to NAME.nocopy-part, and renamed when it is complete and on the disk: so a file with the final name is never incomplete.
//! `--resume` continues an interrupted copy from where a [record] proves that it is right.

mod batch;
mod compare;
mod directory;
mod download;
mod outgoing;
mod partial;
mod record;
mod summary;
mod upload;
mod uploads;

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::Instant;

use nocopy::Pool;
use nocopy_report::live::LiveLine;
use nocopy_report::quantity::short;
use nocopy_report::{Ended, Interrupt, Outcome, print};

use super::{BUFFER_BYTES, BUFFERS, CpArguments, Failure, narrow};
use crate::client::{Client, Url, is_url};
use summary::{Counts, Summary};

struct Copying<'a> {
    arguments: &'a CpArguments,
    interrupt: Interrupt,
    pool: Pool,
    line: LiveLine,
    counts: Counts,
    shown_bytes: u64,
    failures: Vec<(String, String)>,
}

impl<'a> Copying<'a> {
    fn new(arguments: &'a CpArguments) -> Result<Self, Failure> {
        Ok(Self {
            arguments,
            interrupt: Interrupt::listen()?,
            pool: Pool::new(BUFFERS, BUFFER_BYTES).map_err(Failure::Memory)?,
            line: LiveLine::default(),
            counts: Counts::default(),
            shown_bytes: 0,
            failures: Vec::new(),
        })
    }

    fn note(&mut self, bytes: usize) -> Result<(), Failure> {
        self.counts.bytes += bytes as u64;
        let Self { line, counts, shown_bytes, .. } = self;
        line.update(Instant::now(), |since| {
            let speed = (counts.bytes - *shown_bytes) as f64 / since.as_secs_f64();
            *shown_bytes = counts.bytes;
            format!(
                "{} of {} files, {}B of {}B, {}B/s",
                counts.files,
                counts.files_all,
                spaced(short(counts.bytes as f64)),
                spaced(short(counts.bytes_all as f64)),
                spaced(short(speed))
            )
        });
        if self.interrupt.came() { Err(Failure::Interrupted) } else { Ok(()) }
    }

    /// Notes that one file could not be copied; an error that affects all files is returned.
    fn fail(&mut self, name: String, failure: Failure) -> Result<(), Failure> {
        if failure.concerns_all() {
            return Err(failure);
        }
        self.failures.push((name, failure.to_string()));
        Ok(())
    }
}

/// A number and a space before its unit; `1.23 M` has one already.
fn spaced(number: String) -> String {
    if number.contains(' ') { number } else { number + " " }
}

/// Copies, and prints a summary.
///
/// # Errors
/// Some files could not be copied; the summary is printed nevertheless.
pub fn run(arguments: &CpArguments) -> Result<Outcome, Failure> {
    narrow()?;
    let (to, from) = arguments.paths.split_last().expect("clap requires two");
    let start = Instant::now();
    let mut copying = Copying::new(arguments)?;
    let remote: Vec<bool> = from.iter().map(|path| is_remote(path)).collect();
    let mut clients = Vec::new();
    let done = match (is_remote(to), remote.as_slice()) {
        (false, all) if all.iter().all(|is_remote| *is_remote) => {
            download::run(&mut copying, from, Path::new(to), &mut clients)
        }
        (true, all) if !all.contains(&true) => upload::run(&mut copying, from, &url(to)?, &mut clients),
        _ => Err(Failure::Sides),
    };
    let is_over = matches!(done, Ok(()) | Err(Failure::Interrupted));
    if !is_over && copying.counts == Counts::default() {
        return done.map(|()| Outcome::Positive); // there is nothing to sum up
    }
    let ended = match &done {
        Ok(()) => Ended::Done,
        Err(Failure::Interrupted) => Ended::Interrupted,
        Err(_) => Ended::Failed,
    };
    let Copying { counts, failures, line, .. } = copying;
    drop(line);
    for (name, said) in &failures {
        print::say(format_args!("nocopy: {}", print::one_line(&format!("{name}: {said}"))));
    }
    let summary = Summary::of(ended, start.elapsed(), counts, failures, &clients);
    let failure = done.err().filter(|failure| !matches!(failure, Failure::Interrupted));
    print::finish(&summary, arguments.json, failure)
}

fn is_remote(path: &OsStr) -> bool {
    path.to_str().is_some_and(is_url)
}

fn url(path: &OsStr) -> Result<Url, Failure> {
    let text = path.to_string_lossy();
    Ok(text.parse::<Url>().map_err(crate::client::ClientError::from)?)
}

fn local(path: &Path, source: io::Error) -> Failure {
    Failure::Local { path: path.to_owned(), source }
}

type Clients = Vec<Client>;
