//! Handling complete replies.

use super::call::{Call, ReadRequest, Request, WriteRequest};
use super::reply_parser::check_data_length;
use super::uncommitted::CommitStep;
use super::{BadReply, CallError, Completion, Core, JOINED_BYTES_MAX, ReadMetadata};
use crate::wire::nfs3::{
    Attributes, CommitArguments, CommitResult, FileHandle, NfsResult, Procedure, ReadHead, Refusal,
    Stability, Status, Verifier, WeakCacheConsistency, WriteResult,
};
use crate::wire::rpc::Reply;
use crate::wire::xdr::{self, Reader};

impl Core {
    /// Ends a call whose reply is a whole record.
    pub(super) fn finish_record(&mut self, xid: u32, call: Call, record: &[u8]) -> Result<(), BadReply> {
        let mut input = Reader::new(record);
        let reply = match Reply::decode(&mut input) {
            Ok((_, reply)) => reply,
            Err(error) => {
                self.fail_call(call, BadReply::from(error).into());
                return Err(error.into());
            }
        };
        if reply != Reply::Success {
            self.handle_refusal(call, CallError::Refused(reply));
            return Ok(());
        }
        let is_repeated = call.times_sent > 1;
        match call.request {
            Request::Plain { ticket, .. } => {
                let results = Ok(input.rest().to_vec());
                self.completions.push_back(Completion::Results { ticket, results, is_repeated });
                Ok(())
            }
            Request::Read(_) => self.finish_read_record(xid, call, input.rest()),
            Request::Write(writing) => self.finish_write(writing, input.rest()),
            Request::Commit { file } => self.finish_commit(file, input.rest()),
        }
    }

    /// Ends the last read of a reply, once all data of the reply was received.
    pub(super) fn finish_read(&mut self, mut reading: ReadRequest) -> Result<(), BadReply> {
        let head = reading.head.expect("data have a head before them");
        let (count, asked, is_joined) = (head.count as usize, reading.asked, reading.is_joined());
        reading.filled += reading.received;
        self.counts.read_bytes += reading.received as u64;
        if count == 0 && !head.is_end {
            let error = BadReply::NoProgress { bytes: 0, asked };
            self.fail_read(reading, error.into());
            return Err(error);
        }
        if is_joined && count < asked && !head.is_end {
            self.shorten_joins();
        } else if is_joined {
            self.joined_bytes_max = (2 * self.joined_bytes_max).min(JOINED_BYTES_MAX);
        }
        let end = ReadMetadata { is_end: head.is_end, attributes: head.attributes };
        for reading in reading.into_separate_reads() {
            match head.is_end || reading.filled == reading.buffer.len() {
                true => self.complete_read(reading, Ok(end)),
                false => self.queue_read(reading),
            }
        }
        Ok(())
    }

    /// Ends a read whose reply is a whole record: a refusal, or data to be copied from there.
    fn finish_read_record(&mut self, xid: u32, mut call: Call, results: &[u8]) -> Result<(), BadReply> {
        let Request::Read(reading) = &mut call.request else {
            unreachable!("that is what the record is for")
        };
        let mut input = Reader::new(results);
        let checked = match input.read::<NfsResult<ReadHead, Option<Attributes>>>() {
            Ok(Ok(head)) => check_data_length(&head, input.rest().len(), reading.asked).map(|()| head),
            Ok(Err(Refusal { status, .. })) => {
                self.handle_refusal(call, status.into());
                return input.finish().map_err(BadReply::from);
            }
            Err(error) => Err(error.into()),
        };
        let head = match checked {
            Ok(head) => head,
            Err(error) => {
                self.fail_call(call, error.into());
                return Err(error);
            }
        };
        (reading.head, reading.received) = (Some(head), 0);
        self.calls.insert(xid, Box::new(call));
        let count = head.count as usize;
        self.copy_to_buffers(xid, &input.rest()[..count], 0);
        match self.calls.remove(&xid).map(|call| call.request) {
            Some(Request::Read(reading)) => self.finish_read(reading),
            _ => unreachable!("it was put there"),
        }
    }

    /// Handles a refusal by the server. If reads shared the call, one of them or the total length may be the
    /// reason: each gets its own call.
    fn handle_refusal(&mut self, call: Call, error: CallError) {
        match call.request {
            Request::Read(reading) if reading.is_joined() => {
                self.shorten_joins();
                for mut reading in reading.into_separate_reads() {
                    reading.is_unshared = true;
                    self.queue_read(reading);
                }
            }
            Request::Read(mut reading)
                if error.status() == Some(Status::Jukebox) && reading.delays < self.delays_max =>
            {
                reading.delays += 1;
                self.delayed.push(Request::Read(reading));
            }
            _ => self.fail_call(call, error),
        }
    }

    /// Makes shared calls shorter, after the server sent less than asked for, or refused.
    fn shorten_joins(&mut self) {
        self.joined_bytes_max /= 2;
    }

    fn finish_write(&mut self, mut writing: WriteRequest, results: &[u8]) -> Result<(), BadReply> {
        let file = writing.place.file;
        let result = match xdr::parse::<NfsResult<WriteResult, WeakCacheConsistency>>(results) {
            Ok(Ok(result)) => result,
            Ok(Err(Refusal { status: Status::Jukebox, .. })) if writing.delays < self.delays_max => {
                writing.delays += 1;
                self.delayed.push(Request::Write(writing));
                return Ok(());
            }
            Ok(Err(refused)) => {
                self.end_write(file, Err(refused.status.into()));
                return Ok(());
            }
            Err(error) => {
                self.end_write(file, Err(BadReply::from(error).into()));
                return Err(error.into());
            }
        };
        let (count, asked) = (result.count as usize, writing.data().len());
        if count == 0 || count > asked {
            let error = BadReply::NoProgress { bytes: count, asked };
            self.end_write(file, Err(error.into()));
            return Err(error);
        }
        self.counts.writes += 1;
        self.counts.written_bytes += u64::from(result.count);
        let (written, rest) = writing.split_at(count);
        if !rest.data().is_empty() {
            self.begin_write(rest);
        }
        let is_kept = result.stability == Stability::Unstable;
        self.end_write(file, Ok(is_kept.then_some((written, result.verifier))));
        Ok(())
    }

    pub(super) fn end_write(
        &mut self,
        file: FileHandle,
        outcome: Result<Option<(WriteRequest, Verifier)>, CallError>,
    ) {
        self.uncommitted.end_write(file, outcome);
        self.advance_commit(file);
    }

    fn finish_commit(&mut self, file: FileHandle, results: &[u8]) -> Result<(), BadReply> {
        let (reply, outcome) = match xdr::parse::<NfsResult<CommitResult, WeakCacheConsistency>>(results) {
            Ok(Ok(result)) => (Ok(result.verifier), Ok(())),
            Ok(Err(refused)) => (Err(refused.status.into()), Ok(())),
            Err(error) => (Err(BadReply::from(error).into()), Err(error.into())),
        };
        self.end_commit(file, reply);
        outcome
    }

    pub(super) fn end_commit(&mut self, file: FileHandle, reply: Result<Verifier, CallError>) {
        for writing in self.uncommitted.end_commit(file, reply) {
            self.counts.lost_bytes += writing.data().len() as u64;
            self.begin_write(writing);
        }
        self.advance_commit(file);
    }

    /// Takes the next step of the commit of a file, if there is one.
    pub(super) fn advance_commit(&mut self, file: FileHandle) {
        match self.uncommitted.next_step(file) {
            CommitStep::Wait => {}
            CommitStep::Commit => {
                let all = CommitArguments { file, offset: 0, count: 0 };
                self.queue_call(Procedure::Commit.into(), &all, Request::Commit { file });
            }
            CommitStep::Finished(ticket, outcome) => {
                self.completions.push_back(Completion::Committed { ticket, file, outcome })
            }
        }
    }
}
