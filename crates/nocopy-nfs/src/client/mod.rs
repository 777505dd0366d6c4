//! The client: a server's files for programs that have no mount, read straight into the buffers that they post.
//!
//! ```text
//!   post(buffer) ─▶ core: a call ──────────────▶ socket
//!                                                  │ the first head is read alone; its number names the call
//!                                                  ▼
//!   receive() ◀─ core: a reply is whole ◀── one readv a reply: [ the data, into the posted buffer │ the next head ]
//! ```
//!
//! *Core* knows what the bytes mean, without sockets. *Transport* moves them: any number of connections, of which one that is lost is made
//! anew, and its calls are sent again. *Client* is what programs use.
//!
//! The bytes of a file are copied once, by the kernel, out of the socket's memory and into the buffer that was posted for them. Only what
//! comes along with a head that is shorter than expected is copied once more, at most 84 bytes a reply, and counted.
//!
//! The socket side is not [`nocopy::tcp`]: its receiver gives the stream in chunks of memory that it chose before the replies named their
//! calls, so that the data would have to be copied from there into the posted buffers.
//!
//! Errors say what, why, and what to do ([`ClientError`]). What is written is on the server's disk when [`commit`](Client::commit) has said so,
//! and not before.

mod begun;
mod builder;
pub mod core;
mod credential;
mod directory;
mod error;
mod files;
mod half;
mod moving;
mod socket;
mod transport;
mod url;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use begun::Begun;
pub use begun::Finished;
pub use builder::Builder;
pub use core::{CallError, Counts, Place, ReadEnd, Ticket};
pub use directory::Entry;
pub use error::ClientError;
pub use files::Found;
pub use moving::Filled;
use nocopy::Pool;
pub use transport::TransportError;
pub use url::{Url, UrlError, is_url};

use self::core::{Core, Done, Limits, ProcedureNumber};
use half::Watch;
use transport::Transport;

use crate::wire::nfs3::{FileHandle, NfsResult, Refusal, Status};
use crate::wire::xdr::{self, Xdr};

/// How long to wait before a server is asked again that was not ready; each time twice as long.
const NOT_READY_MIN: Duration = Duration::from_millis(100);
const NOT_READY_MAX: Duration = Duration::from_secs(5);

/// Results of calls that are short: a handle, and attributes of two files before and after.
const SHORT_BYTES_MAX: usize = 4096;

/// An export of a server, mounted.
#[derive(Debug)]
pub struct Client {
    transport: Transport,
    /// What errors call it.
    export: String,
    root: FileHandle,
    /// How long to ask a server that is not ready; `None`: without an end.
    patience: Option<Duration>,
    /// Posted buffers that came back while something else was waited for.
    filled: VecDeque<Filled>,
    /// For waits by loops of others.
    watch: Watch,
    pool: Pool,
    /// Calls whose results are asked for later.
    begun: Begun,
}

impl Client {
    /// Settings, to connect with.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Mounts what is exported at the front of the address's path; returns what of the path lies below.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn connect(url: &Url) -> Result<(Self, std::path::PathBuf), ClientError> {
        Builder::default().connect(url)
    }

    /// The handle of the directory that is mounted.
    pub fn root(&self) -> FileHandle {
        self.root
    }

    /// How long reads and writes of one call may be, as the server says. Longer buffers take several calls, one after the other.
    pub fn limits(&self) -> Limits {
        self.transport.core.limits()
    }

    fn core(&mut self) -> &mut Core {
        &mut self.transport.core
    }

    // ---- calls that are waited for -----------------------------------------------------------------------------

    /// Makes a call, and waits for its results.
    fn ask<'a, T, R>(
        &mut self,
        procedure: impl Into<ProcedureNumber>,
        arguments: &impl Xdr<'a>,
        (subject, what): (&str, &'static str),
    ) -> Result<T, ClientError>
    where
        T: for<'b> Xdr<'b>,
        R: for<'b> Xdr<'b>,
    {
        let asked = Asked { procedure: procedure.into(), bytes_max: SHORT_BYTES_MAX, subject, what };
        self.ask_for::<_, R>(&asked, arguments, |results| xdr::parse::<NfsResult<T, R>>(results))
    }

    /// The same, with results that are taken out of the reply's bytes.
    fn ask_for<'a, T, R>(
        &mut self,
        asked: &Asked<'_>,
        arguments: &impl Xdr<'a>,
        parse: impl Fn(&[u8]) -> Result<NfsResult<T, R>, xdr::XdrError>,
    ) -> Result<T, ClientError> {
        let (begin, mut pause) = (Instant::now(), NOT_READY_MIN);
        loop {
            let (results, is_repeated) = self.results(asked, arguments)?;
            let failed = |error| ClientError::of(asked.name(&self.export), asked.what, error, is_repeated);
            match parse(&results).map_err(|error| failed(core::BadReply::from(error).into()))? {
                Ok(value) => return Ok(value),
                Err(Refusal { status: Status::Jukebox, .. })
                    if self.patience.is_none_or(|patience| begin.elapsed() < patience) =>
                {
                    std::thread::sleep(pause);
                    pause = (2 * pause).min(NOT_READY_MAX);
                }
                Err(Refusal { status, .. }) => return Err(failed(status.into())),
            }
        }
    }

    fn results<'a>(
        &mut self,
        asked: &Asked<'_>,
        arguments: &impl Xdr<'a>,
    ) -> Result<(Vec<u8>, bool), ClientError> {
        let ticket = self.core().call(asked.procedure, arguments, asked.bytes_max);
        let done = self.wait_for(|done| matches!(done, Done::Results { ticket: of, .. } if *of == ticket))?;
        let Done::Results { results, is_repeated, .. } = done else {
            unreachable!("that is what was waited for")
        };
        let results = results
            .map_err(|error| ClientError::of(asked.name(&self.export), asked.what, error, is_repeated))?;
        Ok((results, is_repeated))
    }

    /// Waits for something that was asked for. Buffers that come back meanwhile are kept for [`receive`](Self::receive).
    fn wait_for(&mut self, is_it: impl Fn(&Done) -> bool) -> Result<Done, ClientError> {
        loop {
            let mut found = None;
            while let Some(done) = self.core().next_done() {
                if is_it(&done) {
                    found = Some(done);
                    continue;
                }
                self.keep(done);
            }
            if let Some(done) = found {
                return Ok(done);
            }
            self.transport.turn(None)?;
        }
    }

    fn keep_all(&mut self) {
        while let Some(done) = self.core().next_done() {
            self.keep(done);
        }
    }

    fn keep(&mut self, done: Done) {
        match done {
            Done::Filled { ticket, buffer, place, outcome } => {
                self.filled.push_back(Filled { ticket, buffer, place, outcome });
            }
            // What was not begun is of a call that failed with all others: its error has been returned.
            Done::Results { ticket, results, is_repeated } => {
                self.begun.take_results(ticket, results, is_repeated);
            }
            Done::Committed { ticket, outcome, .. } => {
                self.begun.take_results(ticket, outcome.map(|()| Vec::new()), false);
            }
        }
    }
}

/// A call, in numbers and in words.
struct Asked<'a> {
    procedure: ProcedureNumber,
    /// The longest record of its reply.
    bytes_max: usize,
    subject: &'a str,
    what: &'static str,
}

impl Asked<'_> {
    fn name(&self, export: &str) -> String {
        match self.subject {
            "" => export.to_owned(),
            subject => format!("{export}: {subject}"),
        }
    }
}
