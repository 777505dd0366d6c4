//! Writes that the server would lose by a restart: kept until a COMMIT confirms that they are on the disk.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use super::bad_reply::BadReply;
use super::call::{CallError, Ticket, WriteRequest};
use crate::wire::nfs3::{FileHandle, Verifier};

/// The most COMMIT calls for one commit, if the server loses the writes each time.
const ROUNDS_MAX: u32 = 16;

#[derive(Debug)]
pub(super) enum CommitStep {
    Wait,
    Commit,
    Finished(Ticket, Result<(), CallError>),
}

/// Files by their handles.
#[derive(Debug, Default)]
pub(super) struct UncommittedWrites(BTreeMap<Vec<u8>, FileWrites>);

#[derive(Debug, Default)]
struct FileWrites {
    /// Writes without a reply.
    in_flight: usize,
    unstable: Vec<UnstableWrite>,
    /// The first error since the last commit.
    failure: Option<CallError>,
    commit: Option<PendingCommit>,
}

/// A write that has its reply.
#[derive(Debug)]
struct UnstableWrite {
    writing: WriteRequest,
    verifier: Verifier,
    /// Its reply arrived before the COMMIT in flight was sent.
    is_covered: bool,
}

#[derive(Debug)]
struct PendingCommit {
    ticket: Ticket,
    rounds: u32,
    is_in_flight: bool,
}

impl FileWrites {
    /// Pieces of a buffer are kept together: a server may write it a few bytes at a time.
    fn add_unstable(&mut self, writing: WriteRequest, verifier: Verifier) {
        let is_piece = Arc::strong_count(&writing.buffer) > 1;
        let mut alike =
            self.unstable.iter_mut().rev().filter(|kept| !kept.is_covered && kept.verifier == verifier);
        if !(is_piece && alike.any(|kept| kept.writing.append_if_adjacent(&writing))) {
            self.unstable.push(UnstableWrite { writing, verifier, is_covered: false });
        }
    }
}

impl UncommittedWrites {
    fn file_writes(&mut self, file: FileHandle) -> &mut FileWrites {
        self.0.entry(file.as_bytes().to_vec()).or_default()
    }

    pub(super) fn total_bytes(&self) -> usize {
        self.0.values().flat_map(|file| &file.unstable).map(|kept| kept.writing.data().len()).sum()
    }

    pub(super) fn begin_write(&mut self, file: FileHandle) {
        self.file_writes(file).in_flight += 1;
    }

    /// A write has its reply, and is kept unless it is on the disk already.
    pub(super) fn end_write(
        &mut self,
        file: FileHandle,
        outcome: Result<Option<(WriteRequest, Verifier)>, CallError>,
    ) {
        let of = self.file_writes(file);
        of.in_flight -= 1;
        match outcome {
            Ok(Some((writing, verifier))) => of.add_unstable(writing, verifier),
            Ok(None) => {}
            Err(error) => of.failure = of.failure.or(Some(error)),
        }
    }

    pub(super) fn is_committing(&self, file: FileHandle) -> bool {
        self.0.get(file.as_bytes()).is_some_and(|of| of.commit.is_some())
    }

    pub(super) fn begin_commit(&mut self, file: FileHandle, ticket: Ticket) {
        self.file_writes(file).commit = Some(PendingCommit { ticket, rounds: 0, is_in_flight: false });
    }

    /// The next step, after a reply or a new commit.
    pub(super) fn next_step(&mut self, file: FileHandle) -> CommitStep {
        let of = self.file_writes(file);
        let Some(commit) = &mut of.commit else { return CommitStep::Wait };
        if of.in_flight > 0 || commit.is_in_flight {
            return CommitStep::Wait;
        }
        let ticket = commit.ticket;
        let outcome = match of.failure {
            Some(error) => Err(error),
            None if of.unstable.is_empty() => Ok(()),
            None if commit.rounds == ROUNDS_MAX => {
                Err(BadReply::NeverCommitted { rounds: commit.rounds }.into())
            }
            None => {
                commit.rounds += 1;
                commit.is_in_flight = true;
                of.unstable.iter_mut().for_each(|kept| kept.is_covered = true);
                return CommitStep::Commit;
            }
        };
        self.0.remove(file.as_bytes());
        CommitStep::Finished(ticket, outcome)
    }

    /// Handles the reply to a COMMIT. Returns the writes that the server has lost, to be sent again.
    pub(super) fn end_commit(
        &mut self,
        file: FileHandle,
        reply: Result<Verifier, CallError>,
    ) -> Vec<WriteRequest> {
        let of = self.file_writes(file);
        if let Some(commit) = &mut of.commit {
            commit.is_in_flight = false;
        }
        let verifier = match reply {
            Ok(verifier) => verifier,
            Err(error) => {
                of.failure = of.failure.or(Some(error));
                return Vec::new();
            }
        };
        let mut lost = Vec::new();
        for kept in mem::take(&mut of.unstable) {
            match (kept.is_covered, kept.verifier == verifier) {
                (true, true) => {}
                (false, true) => of.unstable.push(kept),
                (_, false) => lost.push(kept.writing),
            }
        }
        lost
    }
}
