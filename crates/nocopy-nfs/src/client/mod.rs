//! An NFS client for programs that have no mount: the kernel copies file data straight into buffers that the
//! program posted.
//!
//! ```text
//!   post(buffer) ─▶ core: READ call ─────────────▶ socket
//!                                                    │ the first reply header is read alone; its number identifies the call
//!                                                    ▼
//!   receive() ◀─ core: complete reply ◀── one readv per reply: [ data into the posted buffer │ next reply header ]
//! ```
//!
//! [`core`] encodes calls and interprets replies, without sockets. `transport` has the connections: it
//! replaces a lost one, and sends its calls again. [`Client`] is what programs use.
//!
//! File data is copied once, by the kernel, from the socket into the posted buffer. If a reply header is
//! shorter than expected, the data received behind it (at most 84 bytes a reply) is copied once more, and
//! counted.
//!
//! The client does not use [`nocopy::tcp`], whose receiver chooses the memory before the reply has identified
//! its call: data would then have to be copied from there into the posted buffer.
//!
//! Written data is on the server's disk only after [`commit`](Client::commit) has returned without an error.

mod builder;
pub mod core;
mod credential;
mod directory;
mod error;
mod files;
mod half;
mod pending_calls;
mod socket;
mod transfer;
mod transport;
mod url;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

pub use builder::Builder;
pub use core::{CallError, CoreCounts, FilePosition, ReadMetadata, Ticket};
pub use directory::Entry;
pub(crate) use directory::LISTING_BYTES_MAX;
pub use error::ClientError;
pub use files::FileInfo;
use nocopy::Pool;
pub use pending_calls::FinishedCall;
use pending_calls::PendingCalls;
pub use transfer::FilledBuffer;
pub use transport::TransportError;
pub use url::{Url, UrlError, escape_path, is_nfs_url, is_printable, unescape_path};

use self::core::{Completion, Core, ProcedureNumber, TransferLimits};
use half::WaitDescriptor;
use transport::Transport;

use crate::wire::nfs3::{FileHandle, NfsResult, Refusal, Status};
use crate::wire::xdr::{self, Xdr};

/// The pause before a call is sent again to a server that was not ready; it doubles each time.
const NOT_READY_MIN: Duration = Duration::from_millis(100);
const NOT_READY_MAX: Duration = Duration::from_secs(5);

/// The longest results of most calls: a handle, and the attributes of two files before and after.
const SHORT_BYTES_MAX: usize = 4096;

/// An export of a server, mounted.
#[derive(Debug)]
pub struct Client {
    transport: Transport,
    export: String,
    root: FileHandle,
    /// For how long to repeat a call to a server that is not ready; `None`: forever.
    give_up_after: Option<Duration>,
    /// Buffers filled while the client waited for another reply.
    filled: VecDeque<FilledBuffer>,
    wait_descriptor: WaitDescriptor,
    pool: Pool,
    /// Calls whose results are collected by `next_finished`.
    pending_calls: PendingCalls,
}

impl Client {
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Mounts the longest exported beginning of the URL's path, and returns the rest of the path.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn connect(url: &Url) -> Result<(Self, std::path::PathBuf), ClientError> {
        Builder::default().connect(url)
    }

    /// The mounted directory.
    pub fn root(&self) -> FileHandle {
        self.root
    }

    /// The most bytes of one READ or WRITE call. Longer buffers take several calls, one after another.
    pub fn limits(&self) -> TransferLimits {
        self.transport.core.limits()
    }

    fn core_mut(&mut self) -> &mut Core {
        &mut self.transport.core
    }

    fn call<'a, T, R>(
        &mut self,
        procedure: impl Into<ProcedureNumber>,
        arguments: &impl Xdr<'a>,
        (subject, what): (&str, &'static str),
    ) -> Result<T, ClientError>
    where
        T: for<'b> Xdr<'b>,
        R: for<'b> Xdr<'b>,
    {
        let asked =
            CallDescription { procedure: procedure.into(), bytes_max: SHORT_BYTES_MAX, subject, what };
        self.call_and_parse::<_, R>(&asked, arguments, |results| xdr::parse::<NfsResult<T, R>>(results))
    }

    /// As `call`, for results that borrow from the reply.
    fn call_and_parse<'a, T, R>(
        &mut self,
        asked: &CallDescription<'_>,
        arguments: &impl Xdr<'a>,
        parse: impl Fn(&[u8]) -> Result<NfsResult<T, R>, xdr::XdrError>,
    ) -> Result<T, ClientError> {
        let (begin, mut pause) = (Instant::now(), NOT_READY_MIN);
        loop {
            let (results, is_repeated) = self.wait_for_results(asked, arguments)?;
            let failed = |error| {
                ClientError::from_call_error(asked.full_subject(&self.export), asked.what, error, is_repeated)
            };
            match parse(&results).map_err(|error| failed(core::BadReply::from(error).into()))? {
                Ok(value) => return Ok(value),
                Err(Refusal { status: Status::Jukebox, .. })
                    if self.give_up_after.is_none_or(|patience| begin.elapsed() < patience) =>
                {
                    std::thread::sleep(pause);
                    pause = (2 * pause).min(NOT_READY_MAX);
                }
                Err(Refusal { status, .. }) => return Err(failed(status.into())),
            }
        }
    }

    fn wait_for_results<'a>(
        &mut self,
        asked: &CallDescription<'_>,
        arguments: &impl Xdr<'a>,
    ) -> Result<(Vec<u8>, bool), ClientError> {
        let ticket = self.core_mut().call(asked.procedure, arguments, asked.bytes_max);
        let done = self.wait_for_completion(
            |done| matches!(done, Completion::Results { ticket: of, .. } if *of == ticket),
        )?;
        let Completion::Results { results, is_repeated, .. } = done else {
            unreachable!("that is what was waited for")
        };
        let results = results.map_err(|error| {
            ClientError::from_call_error(asked.full_subject(&self.export), asked.what, error, is_repeated)
        })?;
        Ok((results, is_repeated))
    }

    /// Waits for one event. Buffers filled meanwhile are kept for [`receive`](Self::receive).
    fn wait_for_completion(
        &mut self,
        is_it: impl Fn(&Completion) -> bool,
    ) -> Result<Completion, ClientError> {
        loop {
            let mut found = None;
            while let Some(done) = self.core_mut().next_completion() {
                if is_it(&done) {
                    found = Some(done);
                    continue;
                }
                self.collect_completion(done);
            }
            if let Some(done) = found {
                return Ok(done);
            }
            self.transport.drive(None)?;
        }
    }

    fn collect_completions(&mut self) {
        while let Some(done) = self.core_mut().next_completion() {
            self.collect_completion(done);
        }
    }

    fn collect_completion(&mut self, done: Completion) {
        match done {
            Completion::Filled { ticket, buffer, place, outcome } => {
                self.filled.push_back(FilledBuffer { ticket, buffer, place, outcome });
            }
            // A call that was not begun by `begin` failed when the server was given up, and its error was
            // returned then.
            Completion::Results { ticket, results, is_repeated } => {
                self.pending_calls.finish_call(ticket, results, is_repeated);
            }
            Completion::Committed { ticket, outcome, .. } => {
                self.pending_calls.finish_call(ticket, outcome.map(|()| Vec::new()), false);
            }
        }
    }
}

struct CallDescription<'a> {
    procedure: ProcedureNumber,
    bytes_max: usize,
    subject: &'a str,
    what: &'static str,
}

impl CallDescription<'_> {
    fn full_subject(&self, export: &str) -> String {
        match self.subject {
            "" => export.to_owned(),
            subject => format!("{export}: {subject}"),
        }
    }
}
