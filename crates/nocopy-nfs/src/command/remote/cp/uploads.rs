//! Uploads of several files at a time: each makes some calls one after the other, and while one waits for a
//! reply others continue.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use nocopy::Pool;

use super::super::{BUFFERS, Failure};
use super::CopyContext;
use super::attributes::lost_attributes;
use super::record::BYTES_MAX;
use super::upload_file::{CALLS_MAX, EMPTY, UploadFile, UploadJob, UploadState};
use crate::client::{Client, ClientError, FileInfo, FilePosition, FinishedCall, Ticket};
use crate::wire::nfs3::{FileHandle, Status};

pub(super) struct Uploads {
    files: HashMap<u64, UploadFile>,
    /// Short buffers, for records: one for each file.
    record_pool: Pool,
    tickets: HashMap<Ticket, u64>,
    /// Files that wait for a buffer.
    starved: VecDeque<u64>,
    number: u64,
    /// Where copies of files are that have several names on this host.
    copies: HashMap<FileId, (FileHandle, OsString)>,
}

/// A file of this host: the numbers of its device and its own.
pub(super) type FileId = (u64, u64);

/// The file, if it has several names.
pub(super) fn hard_link_id(metadata: &Metadata) -> Option<FileId> {
    (metadata.nlink() > 1).then_some((metadata.dev(), metadata.ino()))
}

impl Uploads {
    pub(super) fn new() -> Result<Self, Failure> {
        Ok(Self {
            files: HashMap::new(),
            record_pool: Pool::new(BUFFERS, BYTES_MAX).map_err(Failure::Memory)?,
            tickets: HashMap::new(),
            starved: VecDeque::new(),
            number: 0,
            copies: HashMap::new(),
        })
    }

    /// Waits for the copy of a file that has several names; `None` if there is none.
    pub(super) fn wait_for_copy(
        &mut self,
        id: FileId,
        context: &mut CopyContext<'_>,
        client: &mut Client,
    ) -> Result<Option<(FileHandle, OsString)>, Failure> {
        while self.files.values().any(|upload| hard_link_id(upload.metadata()) == Some(id)) {
            self.handle_reply(context, client)?;
        }
        Ok(self.copies.get(&id).cloned())
    }

    /// Notes a copy that has its name.
    pub(super) fn remember_copy(
        &mut self,
        metadata: &Metadata,
        place: impl FnOnce() -> (FileHandle, OsString),
    ) {
        if let Some(id) = hard_link_id(metadata) {
            self.copies.insert(id, place());
        }
    }

    /// Begins a file, once few enough are in progress. Errors: an error that prevents further copying. Errors
    /// of single files are noted.
    pub(super) fn begin_upload(
        &mut self,
        context: &mut CopyContext<'_>,
        client: &mut Client,
        job: UploadJob,
    ) -> Result<(), Failure> {
        // The comparison at the end needs the buffers.
        let most = if context.arguments.verify { 1 } else { BUFFERS as usize };
        while self.files.len() >= most {
            self.handle_reply(context, client)?;
        }
        let name = job.display_name();
        let is_resumed = context.arguments.resume;
        let opened = UploadFile::open(job).and_then(|mut file| {
            if is_resumed && file.is_copied(client)? {
                self.remember_copy(file.metadata(), || file.copy_name());
                return Ok(None);
            }
            let is_continued = is_resumed && file.resume_earlier_copy(client, &self.record_pool)?;
            if !is_continued {
                file.remove_stale_record(client)?;
            }
            Ok(Some((file, is_continued)))
        });
        match opened {
            Ok(None) => context.counts.unchanged += 1,
            Ok(Some((mut file, true))) => {
                self.number += 1;
                context.counts.resumed_bytes += file.offset;
                let next = write_data(&mut file, context, client);
                self.continue_upload(self.number, file, next, context, client)?;
            }
            Ok(Some((file, false))) => {
                let ticket = client.begin_create(file.directory(), file.part_name(), EMPTY);
                self.number += 1;
                self.tickets.insert(ticket, self.number);
                self.files.insert(self.number, file);
                client.try_flush()?;
            }
            Err(failure) => context.record_failure(name, failure)?,
        }
        Ok(())
    }

    pub(super) fn finish_all(
        &mut self,
        context: &mut CopyContext<'_>,
        client: &mut Client,
    ) -> Result<(), Failure> {
        while !self.files.is_empty() {
            self.handle_reply(context, client)?;
        }
        Ok(())
    }

    /// Handles a reply, and makes the next call for its file.
    fn handle_reply(&mut self, context: &mut CopyContext<'_>, client: &mut Client) -> Result<(), Failure> {
        let FinishedCall { ticket, outcome } = client.next_finished()?.expect("each file waits for a call");
        let number = self.tickets.remove(&ticket).expect("it was begun here");
        let mut upload = self.files.remove(&number).expect("it waits for that call");
        let was_committed = matches!(upload.state, UploadState::CommitPart | UploadState::CommitAll);
        let next = advance_upload(&mut upload, outcome, context, client, &self.record_pool);
        self.continue_upload(number, upload, next, context, client)?;
        // Its buffers are free again.
        while was_committed && context.pool.available() > 0 {
            let Some(number) = self.starved.pop_front() else { break };
            let mut upload = self.files.remove(&number).expect("it waits for a buffer");
            let next = write_data(&mut upload, context, client);
            self.continue_upload(number, upload, next, context, client)?;
        }
        Ok(())
    }

    fn continue_upload(
        &mut self,
        number: u64,
        upload: UploadFile,
        next: Result<UploadProgress, Failure>,
        context: &mut CopyContext<'_>,
        client: &mut Client,
    ) -> Result<(), Failure> {
        match next {
            Ok(UploadProgress::Call(ticket)) => drop(self.tickets.insert(ticket, number)),
            Ok(UploadProgress::Buffer) => self.starved.push_back(number),
            Ok(UploadProgress::Finished) => {
                context.counts.files += 1;
                self.remember_copy(upload.metadata(), || upload.copy_name());
                lost_attributes(upload.metadata())
                    .into_iter()
                    .for_each(|what| context.add_failure(upload.display_name(), what));
                return Ok(());
            }
            Ok(UploadProgress::Failed(failure)) => {
                return context.record_failure(upload.display_name(), failure);
            }
            Err(failure) => return self.fail_upload(number, upload, failure, context, client),
        }
        self.files.insert(number, upload);
        Ok(())
    }

    /// Gives up one file. Its written part is committed, because otherwise its buffers would never be
    /// returned.
    fn fail_upload(
        &mut self,
        number: u64,
        mut upload: UploadFile,
        failure: Failure,
        context: &mut CopyContext<'_>,
        client: &mut Client,
    ) -> Result<(), Failure> {
        if failure.affects_all_files() || upload.offset == upload.committed {
            return context.record_failure(upload.display_name(), failure);
        }
        let part = upload.part_handle();
        match begin_commit(&mut upload, part, UploadState::CommitAll, client) {
            Ok(next) => {
                upload.failure = Some(failure);
                self.continue_upload(number, upload, Ok(next), context, client)
            }
            // The commit in progress returns its buffers.
            Err(_) => context.record_failure(upload.display_name(), failure),
        }
    }
}

enum UploadProgress {
    Call(Ticket),
    Buffer,
    Finished,
    Failed(Failure),
}

fn advance_upload(
    file: &mut UploadFile,
    outcome: Result<Option<FileInfo>, ClientError>,
    context: &mut CopyContext<'_>,
    client: &mut Client,
    short: &Pool,
) -> Result<UploadProgress, Failure> {
    // While the server is not ready, one file at a time is tried again.
    let is_delayed = outcome.as_ref().is_err_and(|error| error.status() == Some(Status::Jukebox));
    match file.state {
        UploadState::Create => {
            let made = match outcome {
                Ok(Some(found)) => found,
                // A server need not report it.
                Ok(None) => client.look_up(file.directory(), file.part_name())?,
                Err(error) if is_delayed || error.status() == Some(Status::Exists) => {
                    file.make_part(client)?
                }
                Err(error) => return Err(error.into()),
            };
            file.set_part(made);
            write_data(file, context, client)
        }
        UploadState::CommitPart => {
            let done = outcome.map(drop);
            file.committed = file.offset;
            done?;
            if file.needs_record() {
                let record = file.write_record(client, short)?;
                return begin_commit(file, record, UploadState::CommitRecord, client);
            }
            write_data(file, context, client)
        }
        UploadState::CommitRecord => {
            outcome?;
            write_data(file, context, client)
        }
        UploadState::CommitAll => {
            file.committed = file.offset;
            if let Some(failure) = file.failure.take() {
                return Ok(UploadProgress::Failed(failure));
            }
            outcome?;
            file.set_length(client)?;
            file.verify_copy(context, client)?;
            file.state = UploadState::SetAttributes;
            Ok(UploadProgress::Call(client.begin_set_attributes(file.part_handle(), file.copy_attributes())))
        }
        UploadState::SetAttributes => {
            match outcome {
                Err(_) if is_delayed => {
                    client.set_attributes(file.part_handle(), file.copy_attributes())?;
                }
                done => drop(done?),
            }
            file.state = UploadState::LookUp;
            Ok(UploadProgress::Call(client.begin_look_up(file.directory(), file.part_name())))
        }
        UploadState::LookUp => {
            let found = match outcome {
                Ok(None) => Some(client.look_up(file.directory(), file.part_name())?),
                Err(_) if is_delayed => Some(client.look_up(file.directory(), file.part_name())?),
                Err(error) if error.status() == Some(Status::NoEntry) => None,
                found => found?,
            };
            if !file.is_part(found) {
                return Err(file.replaced_failure());
            }
            file.state = UploadState::Rename;
            let [part, name] = file.rename_arguments();
            Ok(UploadProgress::Call(client.begin_rename(part, name)))
        }
        UploadState::Rename => {
            let [part, name] = file.rename_arguments();
            match outcome {
                Err(_) if is_delayed => client.rename(part, name)?,
                done => drop(done?),
            }
            file.remove_record(client)?;
            Ok(UploadProgress::Finished)
        }
        UploadState::Buffer => unreachable!("it waits for no call"),
    }
}

/// Continues writing while there are free buffers.
fn write_data(
    file: &mut UploadFile,
    context: &mut CopyContext<'_>,
    client: &mut Client,
) -> Result<UploadProgress, Failure> {
    loop {
        let Some(mut buffer) = context.pool.take() else {
            if file.offset > file.committed {
                let part = file.part_handle();
                return begin_commit(file, part, UploadState::CommitPart, client);
            }
            file.state = UploadState::Buffer;
            return Ok(UploadProgress::Buffer);
        };
        let buffer_bytes = buffer.capacity();
        buffer.resize(buffer_bytes);
        let (count, is_end) = file.read_source(&mut buffer)?;
        buffer.resize(count);
        if count > 0 {
            let place = FilePosition { file: file.part_handle(), offset: file.offset };
            client.wait_until_fewer_in_flight(CALLS_MAX)?;
            client.write(buffer, place).expect("room was waited for");
            client.try_flush()?;
            file.offset += count as u64;
            context.count_progress(count)?;
        }
        if is_end {
            let part = file.part_handle();
            return begin_commit(file, part, UploadState::CommitAll, client);
        }
    }
}

/// Begins a commit. Errors: the server has given another file of this copy the same handle, and that is being
/// committed.
fn begin_commit(
    file: &mut UploadFile,
    what: FileHandle,
    step: UploadState,
    client: &mut Client,
) -> Result<UploadProgress, Failure> {
    file.state = step;
    client.begin_commit(what).map(UploadProgress::Call).ok_or_else(|| file.replaced_failure())
}
