//! Calls that are begun now and finished later, many at a time: what is done to many small files, each of which takes several calls.

use std::collections::{HashMap, VecDeque};

use super::core::{BadReply, CallError, ProcedureNumber};
use super::{Client, ClientError, Found, SHORT_BYTES_MAX, Ticket};
use crate::wire::mount::Text;
use crate::wire::nfs3::{
    CreateArguments, Created, Entry as At, FileHandle, HowToCreate, NewAttributes, NfsResult, Procedure,
    RenameArguments, Renamed, SetAttributesArguments, WeakCacheConsistency,
};
use crate::wire::xdr::{self, Xdr};

/// A call that was begun and has its reply.
#[derive(Debug)]
pub struct Finished {
    /// What the call returned that began it.
    pub ticket: Ticket,
    /// What was made, if the server tells; nothing of other calls.
    pub outcome: Result<Option<Found>, ClientError>,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Create,
    SetAttributes,
    Rename,
    Commit,
}

#[derive(Debug)]
struct Call {
    kind: Kind,
    /// What errors call it, and what was to be done with it.
    subject: String,
    what: &'static str,
}

/// Those without a reply, and those whose reply was not asked for yet.
#[derive(Debug, Default)]
pub(super) struct Begun {
    calls: HashMap<Ticket, Call>,
    finished: VecDeque<Finished>,
}

impl Begun {
    /// Takes the results of a call, if it was begun here.
    pub(super) fn take_results(
        &mut self,
        ticket: Ticket,
        results: Result<Vec<u8>, CallError>,
        is_repeated: bool,
    ) {
        let Some(Call { kind, subject, what }) = self.calls.remove(&ticket) else { return };
        let found = results.and_then(|results| found_in(kind, &results));
        let outcome = found.map_err(|error| ClientError::of(subject, what, error, is_repeated));
        self.finished.push_back(Finished { ticket, outcome });
    }
}

/// What the results of such a call say.
fn found_in(kind: Kind, results: &[u8]) -> Result<Option<Found>, CallError> {
    fn checked<T: for<'a> Xdr<'a>>(results: &[u8]) -> Result<(), CallError> {
        let parsed: NfsResult<T, T> = xdr::parse(results).map_err(BadReply::from)?;
        parsed.map(drop).map_err(|refusal| refusal.status.into())
    }
    match kind {
        Kind::Create => {
            let made: NfsResult<Created, WeakCacheConsistency> =
                xdr::parse(results).map_err(BadReply::from)?;
            let made = made.map_err(|refusal| refusal.status)?;
            Ok(made.file.zip(made.attributes).map(|(file, attributes)| Found { file, attributes }))
        }
        Kind::SetAttributes => checked::<WeakCacheConsistency>(results).map(|()| None),
        Kind::Rename => checked::<Renamed>(results).map(|()| None),
        Kind::Commit => Ok(None),
    }
}

impl Client {
    /// Begins what [`create`](Self::create) does.
    pub fn begin_create(&mut self, directory: FileHandle, name: &[u8], how: HowToCreate) -> Ticket {
        let at = At { directory, name: Text(name) };
        self.begin(Procedure::Create, &CreateArguments { at, how }, Kind::Create, (name, "made"))
    }

    /// Begins what [`set_attributes`](Self::set_attributes) does.
    pub fn begin_set_attributes(&mut self, file: FileHandle, new: NewAttributes) -> Ticket {
        let asked = SetAttributesArguments { file, new, guard: None };
        self.begin(Procedure::SetAttr, &asked, Kind::SetAttributes, (b"", "changed"))
    }

    /// Begins what [`rename`](Self::rename) does.
    pub fn begin_rename(
        &mut self,
        (from_directory, from): (FileHandle, &[u8]),
        (to_directory, to): (FileHandle, &[u8]),
    ) -> Ticket {
        let asked = RenameArguments {
            from: At { directory: from_directory, name: Text(from) },
            to: At { directory: to_directory, name: Text(to) },
        };
        self.begin(Procedure::Rename, &asked, Kind::Rename, (from, "renamed"))
    }

    /// Begins what [`commit`](Self::commit) does. `None` while another commit of that file is under way.
    pub fn begin_commit(&mut self, file: FileHandle) -> Option<Ticket> {
        let ticket = self.core().commit(file)?;
        let call = Call { kind: Kind::Commit, subject: self.export.clone(), what: "written" };
        self.begun.calls.insert(ticket, call);
        Some(ticket)
    }

    fn begin<'a>(
        &mut self,
        procedure: Procedure,
        arguments: &impl Xdr<'a>,
        kind: Kind,
        (name, what): (&[u8], &'static str),
    ) -> Ticket {
        let ticket = self.core().call(ProcedureNumber::from(procedure), arguments, SHORT_BYTES_MAX);
        let subject = match name {
            [] => self.export.clone(),
            name => format!("{}: {}", self.export, String::from_utf8_lossy(name)),
        };
        self.begun.calls.insert(ticket, Call { kind, subject, what });
        ticket
    }

    /// Waits for the next call that was begun and has its reply, in any order; `None` if there is none.
    ///
    /// # Errors
    /// The server was given up.
    pub fn next_finished(&mut self) -> Result<Option<Finished>, ClientError> {
        loop {
            self.keep_all();
            if let Some(finished) = self.begun.finished.pop_front() {
                return Ok(Some(finished));
            }
            if self.begun.calls.is_empty() {
                return Ok(None);
            }
            self.transport.turn(None)?;
        }
    }
}
