//! Writes that the server would lose by a restart: kept until a COMMIT confirms that they are on the disk.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use super::bad_reply::BadReply;
use super::call::{CallError, Ticket, Writing};
use crate::wire::nfs3::{FileHandle, Verifier};

/// The most COMMIT calls for one commit, if the server loses the writes each time.
const ROUNDS_MAX: u32 = 16;

#[derive(Debug)]
pub(super) enum Next {
    Nothing,
    Commit,
    Over(Ticket, Result<(), CallError>),
}

/// Files by their handles.
#[derive(Debug, Default)]
pub(super) struct Uncommitted(BTreeMap<Vec<u8>, OfFile>);

#[derive(Debug, Default)]
struct OfFile {
    /// Writes without a reply.
    in_flight: usize,
    kept: Vec<Kept>,
    /// The first error since the last commit.
    failure: Option<CallError>,
    commit: Option<Commit>,
}

/// A write that has its reply.
#[derive(Debug)]
struct Kept {
    writing: Writing,
    verifier: Verifier,
    /// Its reply arrived before the COMMIT in flight was sent.
    is_covered: bool,
}

#[derive(Debug)]
struct Commit {
    ticket: Ticket,
    rounds: u32,
    is_in_flight: bool,
}

impl OfFile {
    /// Pieces of a buffer are kept together: a server may write it a few bytes at a time.
    fn keep(&mut self, writing: Writing, verifier: Verifier) {
        let is_piece = Arc::strong_count(&writing.buffer) > 1;
        let mut alike =
            self.kept.iter_mut().rev().filter(|kept| !kept.is_covered && kept.verifier == verifier);
        if !(is_piece && alike.any(|kept| kept.writing.extend(&writing))) {
            self.kept.push(Kept { writing, verifier, is_covered: false });
        }
    }
}

impl Uncommitted {
    fn of(&mut self, file: FileHandle) -> &mut OfFile {
        self.0.entry(file.as_bytes().to_vec()).or_default()
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.values().flat_map(|file| &file.kept).map(|kept| kept.writing.data().len()).sum()
    }

    pub(super) fn begin_write(&mut self, file: FileHandle) {
        self.of(file).in_flight += 1;
    }

    /// A write has its reply, and is kept unless it is on the disk already.
    pub(super) fn end_write(
        &mut self,
        file: FileHandle,
        outcome: Result<Option<(Writing, Verifier)>, CallError>,
    ) {
        let of = self.of(file);
        of.in_flight -= 1;
        match outcome {
            Ok(Some((writing, verifier))) => of.keep(writing, verifier),
            Ok(None) => {}
            Err(error) => of.failure = of.failure.or(Some(error)),
        }
    }

    pub(super) fn is_committing(&self, file: FileHandle) -> bool {
        self.0.get(file.as_bytes()).is_some_and(|of| of.commit.is_some())
    }

    pub(super) fn begin_commit(&mut self, file: FileHandle, ticket: Ticket) {
        self.of(file).commit = Some(Commit { ticket, rounds: 0, is_in_flight: false });
    }

    /// The next step, after a reply or a new commit.
    pub(super) fn next(&mut self, file: FileHandle) -> Next {
        let of = self.of(file);
        let Some(commit) = &mut of.commit else { return Next::Nothing };
        if of.in_flight > 0 || commit.is_in_flight {
            return Next::Nothing;
        }
        let ticket = commit.ticket;
        let outcome = match of.failure {
            Some(error) => Err(error),
            None if of.kept.is_empty() => Ok(()),
            None if commit.rounds == ROUNDS_MAX => {
                Err(BadReply::NeverCommitted { rounds: commit.rounds }.into())
            }
            None => {
                commit.rounds += 1;
                commit.is_in_flight = true;
                of.kept.iter_mut().for_each(|kept| kept.is_covered = true);
                return Next::Commit;
            }
        };
        self.0.remove(file.as_bytes());
        Next::Over(ticket, outcome)
    }

    /// Handles the reply to a COMMIT. Returns the writes that the server has lost, to be sent again.
    pub(super) fn end_commit(
        &mut self,
        file: FileHandle,
        reply: Result<Verifier, CallError>,
    ) -> Vec<Writing> {
        let of = self.of(file);
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
        for kept in mem::take(&mut of.kept) {
            match (kept.is_covered, kept.verifier == verifier) {
                (true, true) => {}
                (false, true) => of.kept.push(kept),
                (_, false) => lost.push(kept.writing),
            }
        }
        lost
    }
}
