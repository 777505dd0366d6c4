//! Calls that return before their reply has arrived, so that many are in flight: for many small files, each
//! of which takes several calls.

use std::collections::{HashMap, VecDeque};

use super::core::{BadReply, CallError, ProcedureNumber};
use super::url::escape_path;
use super::{Client, ClientError, FileInfo, SHORT_BYTES_MAX, Ticket};
use crate::wire::mount::Text;
use crate::wire::nfs3::{
    Attributes, CreateArguments, CreateMode, CreateResult, Entry as At, FileHandle, LookupResult,
    NewAttributes, NfsResult, Procedure, RenameArguments, RenameResult, SetAttributesArguments,
    WeakCacheConsistency,
};
use crate::wire::xdr::{self, Xdr};

#[derive(Debug)]
pub struct FinishedCall {
    /// The value that the `begin_` method returned.
    pub ticket: Ticket,
    /// The file of `begin_look_up` or `begin_create`, if the server reported all about it; otherwise `None`.
    pub outcome: Result<Option<FileInfo>, ClientError>,
}

#[derive(Debug, Clone, Copy)]
enum CallKind {
    LookUp,
    Create,
    SetAttributes,
    Rename,
    Commit,
}

#[derive(Debug)]
struct PendingCall {
    kind: CallKind,
    /// What was to be done to which file, for errors.
    subject: String,
    what: &'static str,
}

/// Calls without a reply, and results that were not returned yet.
#[derive(Debug, Default)]
pub(super) struct PendingCalls {
    calls: HashMap<Ticket, PendingCall>,
    finished: VecDeque<FinishedCall>,
}

impl PendingCalls {
    pub(super) fn finish_call(
        &mut self,
        ticket: Ticket,
        results: Result<Vec<u8>, CallError>,
        is_repeated: bool,
    ) {
        let Some(PendingCall { kind, subject, what }) = self.calls.remove(&ticket) else { return };
        let found = results.and_then(|results| decode_results(kind, &results));
        let outcome = found.map_err(|error| ClientError::from_call_error(subject, what, error, is_repeated));
        self.finished.push_back(FinishedCall { ticket, outcome });
    }
}

fn decode_results(kind: CallKind, results: &[u8]) -> Result<Option<FileInfo>, CallError> {
    fn check_status<T: for<'a> Xdr<'a>>(results: &[u8]) -> Result<(), CallError> {
        let parsed: NfsResult<T, T> = xdr::parse(results).map_err(BadReply::from)?;
        parsed.map(drop).map_err(|refusal| refusal.status.into())
    }
    match kind {
        CallKind::LookUp => {
            let found: NfsResult<LookupResult, Option<Attributes>> =
                xdr::parse(results).map_err(BadReply::from)?;
            let found = found.map_err(|refusal| refusal.status)?;
            Ok(found.attributes.map(|attributes| FileInfo { file: found.file, attributes }))
        }
        CallKind::Create => {
            let made: NfsResult<CreateResult, WeakCacheConsistency> =
                xdr::parse(results).map_err(BadReply::from)?;
            let made = made.map_err(|refusal| refusal.status)?;
            Ok(made.file.zip(made.attributes).map(|(file, attributes)| FileInfo { file, attributes }))
        }
        CallKind::SetAttributes => check_status::<WeakCacheConsistency>(results).map(|()| None),
        CallKind::Rename => check_status::<RenameResult>(results).map(|()| None),
        CallKind::Commit => Ok(None),
    }
}

impl Client {
    /// Starts [`create`](Self::create) without waiting; [`next_finished`](Self::next_finished) returns the
    /// result.
    pub fn begin_create(&mut self, directory: FileHandle, name: &[u8], how: CreateMode) -> Ticket {
        let at = At { directory, name: Text(name) };
        self.begin_call(Procedure::Create, &CreateArguments { at, how }, CallKind::Create, (name, "made"))
    }

    /// Starts [`look_up`](Self::look_up) without waiting.
    pub fn begin_look_up(&mut self, directory: FileHandle, name: &[u8]) -> Ticket {
        let at = At { directory, name: Text(name) };
        self.begin_call(Procedure::Lookup, &at, CallKind::LookUp, (name, "found"))
    }

    /// Starts [`set_attributes`](Self::set_attributes) without waiting.
    pub fn begin_set_attributes(&mut self, file: FileHandle, new: NewAttributes) -> Ticket {
        let asked = SetAttributesArguments { file, new, guard: None };
        self.begin_call(Procedure::SetAttr, &asked, CallKind::SetAttributes, (b"", "changed"))
    }

    /// Starts [`rename`](Self::rename) without waiting.
    pub fn begin_rename(
        &mut self,
        (from_directory, from): (FileHandle, &[u8]),
        (to_directory, to): (FileHandle, &[u8]),
    ) -> Ticket {
        let asked = RenameArguments {
            from: At { directory: from_directory, name: Text(from) },
            to: At { directory: to_directory, name: Text(to) },
        };
        self.begin_call(Procedure::Rename, &asked, CallKind::Rename, (from, "renamed"))
    }

    /// Starts [`commit`](Self::commit) without waiting; `None` while another commit of the file is in
    /// progress.
    pub fn begin_commit(&mut self, file: FileHandle) -> Option<Ticket> {
        let ticket = self.core_mut().commit(file)?;
        let call = PendingCall { kind: CallKind::Commit, subject: self.export.clone(), what: "written" };
        self.pending_calls.calls.insert(ticket, call);
        Some(ticket)
    }

    fn begin_call<'a>(
        &mut self,
        procedure: Procedure,
        arguments: &impl Xdr<'a>,
        kind: CallKind,
        (name, what): (&[u8], &'static str),
    ) -> Ticket {
        let ticket = self.core_mut().call(ProcedureNumber::from(procedure), arguments, SHORT_BYTES_MAX);
        let subject = match name {
            [] => self.export.clone(),
            name => format!("{}: {}", self.export, escape_path(name)),
        };
        self.pending_calls.calls.insert(ticket, PendingCall { kind, subject, what });
        ticket
    }

    /// Waits for the next result of a call that was begun, in any order; `None` if no call is left.
    ///
    /// # Errors
    /// The server did not answer in time ([`give_up_after`](super::Builder::give_up_after)).
    pub fn next_finished(&mut self) -> Result<Option<FinishedCall>, ClientError> {
        loop {
            self.collect_completions();
            if let Some(finished) = self.pending_calls.finished.pop_front() {
                return Ok(Some(finished));
            }
            if self.pending_calls.calls.is_empty() {
                return Ok(None);
            }
            self.transport.drive(None)?;
        }
    }
}
