//! Uploads of several files at a time: each makes some calls one after the other, and while one waits for a reply others continue.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::super::{BUFFERS, Failure};
use super::compare::compare;
use super::{Copying, local, part_of};
use crate::client::{Client, ClientError, Finished, Found, Place, Ticket};
use crate::wire::nfs3::{FileHandle, HowToCreate, NewAttributes, SetTime, Status, Time};

/// The most writes waiting for replies: enough for the network, and below the client's own limit.
const CALLS_MAX: usize = 64;

pub(super) struct Job {
    pub(super) from: PathBuf,
    pub(super) directory: FileHandle,
    pub(super) name: OsString,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Create,
    Buffer,
    /// A commit of what was written so far, because it holds all the buffers.
    CommitPart,
    CommitAll,
    SetAttributes,
    Rename,
}

struct Upload {
    job: Job,
    file: File,
    mode: u32,
    modified: Time,
    size: u64,
    part: OsString,
    step: Step,
    /// Set when the file was created.
    to: Option<FileHandle>,
    /// Offsets of the next byte to be written, and of the first that may not be on the server's disk.
    offset: u64,
    committed: u64,
    /// Reported once no call of the file is in flight.
    failure: Option<Failure>,
}

impl Upload {
    fn open(job: Job) -> Result<Self, Failure> {
        let file = File::open(&job.from).map_err(|error| local(&job.from, error))?;
        let about = file.metadata().map_err(|error| local(&job.from, error))?;
        let modified = Time {
            seconds: about.mtime().clamp(0, u32::MAX.into()) as u32,
            nanoseconds: about.mtime_nsec() as u32,
        };
        Ok(Self {
            part: part_of(&job.name),
            job,
            file,
            mode: about.mode() & 0o777,
            modified,
            size: about.len(),
            step: Step::Create,
            to: None,
            offset: 0,
            committed: 0,
            failure: None,
        })
    }

    fn name(&self) -> String {
        self.job.from.display().to_string()
    }

    fn to(&self) -> FileHandle {
        self.to.expect("it is made first")
    }

    /// Whether an earlier copy is complete.
    fn is_there(&self, client: &mut Client) -> Result<bool, ClientError> {
        match client.look_up(self.job.directory, self.job.name.as_bytes()) {
            Ok(found) => {
                let key = |time: Time| (time.seconds, time.nanoseconds);
                let is_newer = key(found.attributes.modified) >= key(self.modified);
                Ok(found.is_regular() && found.attributes.size == self.size && is_newer)
            }
            Err(error) if error.status() == Some(Status::NoEntry) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn how(&self, is_resumed: bool) -> HowToCreate {
        let size = (!is_resumed).then_some(0);
        HowToCreate::Unchecked(NewAttributes { mode: Some(0o600), size, ..NewAttributes::NONE })
    }

    fn attributes(&self) -> NewAttributes {
        NewAttributes { mode: Some(self.mode), modified: SetTime::To(self.modified), ..NewAttributes::NONE }
    }

    /// The names of the incomplete and of the complete file, in the same directory.
    fn names(&self) -> [(FileHandle, &[u8]); 2] {
        let directory = self.job.directory;
        [(directory, self.part.as_bytes()), (directory, self.job.name.as_bytes())]
    }

    /// Continues after the bytes of an earlier copy.
    fn begin_at(&mut self, found: Found, client: &mut Client) -> Result<(), Failure> {
        self.to = Some(found.file);
        self.offset = found.attributes.size;
        if self.offset > self.size {
            client.set_attributes(found.file, NewAttributes { size: Some(0), ..NewAttributes::NONE })?;
            self.offset = 0;
        }
        self.committed = self.offset;
        self.file.seek(SeekFrom::Start(self.offset)).map_err(|error| local(&self.job.from, error))?;
        Ok(())
    }
}

#[derive(Default)]
pub(super) struct Uploads {
    all: HashMap<u64, Upload>,
    tickets: HashMap<Ticket, u64>,
    /// Files that wait for a buffer.
    starved: VecDeque<u64>,
    number: u64,
}

impl Uploads {
    /// Begins a file, once few enough are in progress. Errors: an error that prevents further copying. Errors of single files are noted.
    pub(super) fn begin(
        &mut self,
        copying: &mut Copying<'_>,
        client: &mut Client,
        job: Job,
    ) -> Result<(), Failure> {
        // The comparison at the end needs the buffers.
        let most = if copying.arguments.verify { 1 } else { BUFFERS as usize };
        while self.all.len() >= most {
            self.go_on(copying, client)?;
        }
        let name = job.from.display().to_string();
        let is_resumed = copying.arguments.resume;
        let opened = Upload::open(job).and_then(|upload| {
            let is_there = is_resumed && upload.is_there(client)?;
            Ok((upload, is_there))
        });
        match opened {
            Ok((_, true)) => copying.counts.unchanged += 1,
            Ok((upload, false)) => {
                let how = upload.how(is_resumed);
                let ticket = client.begin_create(upload.job.directory, upload.part.as_bytes(), how);
                self.number += 1;
                self.tickets.insert(ticket, self.number);
                self.all.insert(self.number, upload);
                client.try_flush()?;
            }
            Err(failure) => copying.fail(name, failure)?,
        }
        Ok(())
    }

    pub(super) fn finish(&mut self, copying: &mut Copying<'_>, client: &mut Client) -> Result<(), Failure> {
        while !self.all.is_empty() {
            self.go_on(copying, client)?;
        }
        Ok(())
    }

    /// Handles a reply, and makes the next call for its file.
    fn go_on(&mut self, copying: &mut Copying<'_>, client: &mut Client) -> Result<(), Failure> {
        let Finished { ticket, outcome } = client.next_finished()?.expect("each file waits for a call");
        let number = self.tickets.remove(&ticket).expect("it was begun here");
        let mut upload = self.all.remove(&number).expect("it waits for that call");
        let was_committed = matches!(upload.step, Step::CommitPart | Step::CommitAll);
        match advance(&mut upload, outcome, copying, client) {
            Ok(next) => self.keep(number, upload, next, copying)?,
            Err(failure) => self.fail(number, upload, failure, copying, client)?,
        }
        // Its buffers are free again.
        while was_committed && copying.pool.at_home() > 0 {
            let Some(number) = self.starved.pop_front() else { break };
            let mut upload = self.all.remove(&number).expect("it waits for a buffer");
            match write(&mut upload, copying, client) {
                Ok(next) => self.keep(number, upload, next, copying)?,
                Err(failure) => self.fail(number, upload, failure, copying, client)?,
            }
        }
        Ok(())
    }

    fn keep(
        &mut self,
        number: u64,
        upload: Upload,
        next: Next,
        copying: &mut Copying<'_>,
    ) -> Result<(), Failure> {
        match next {
            Next::Call(ticket) => drop(self.tickets.insert(ticket, number)),
            Next::Buffer => self.starved.push_back(number),
            Next::Over => {
                copying.counts.files += 1;
                return Ok(());
            }
            Next::Failed(failure) => return copying.fail(upload.name(), failure),
        }
        self.all.insert(number, upload);
        Ok(())
    }

    /// Gives up one file. Its written part is committed, because otherwise its buffers would never be returned.
    fn fail(
        &mut self,
        number: u64,
        mut upload: Upload,
        failure: Failure,
        copying: &mut Copying<'_>,
        client: &mut Client,
    ) -> Result<(), Failure> {
        if failure.concerns_all() || upload.offset == upload.committed {
            return copying.fail(upload.name(), failure);
        }
        let next = commit(&mut upload, Step::CommitAll, client);
        upload.failure = Some(failure);
        self.keep(number, upload, next, copying)
    }
}

enum Next {
    Call(Ticket),
    Buffer,
    Over,
    Failed(Failure),
}

fn advance(
    upload: &mut Upload,
    outcome: Result<Option<Found>, ClientError>,
    copying: &mut Copying<'_>,
    client: &mut Client,
) -> Result<Next, Failure> {
    // While the server is not ready, one file at a time is tried again.
    let is_delayed = outcome.as_ref().is_err_and(|error| error.status() == Some(Status::Jukebox));
    match upload.step {
        Step::Create => {
            let (directory, part) = (upload.job.directory, upload.part.as_bytes());
            let found = match outcome {
                Ok(Some(found)) => found,
                // A server need not report it.
                Ok(None) => client.look_up(directory, part)?,
                Err(_) if is_delayed => {
                    client.create(directory, part, upload.how(copying.arguments.resume))?
                }
                Err(error) => return Err(error.into()),
            };
            upload.begin_at(found, client)?;
            copying.counts.resumed_bytes += upload.offset;
            write(upload, copying, client)
        }
        Step::CommitPart => {
            outcome.inspect_err(|_| upload.committed = upload.offset)?;
            upload.committed = upload.offset;
            write(upload, copying, client)
        }
        Step::CommitAll => {
            upload.committed = upload.offset;
            if let Some(failure) = upload.failure.take() {
                return Ok(Next::Failed(failure));
            }
            outcome?;
            verify(upload, copying, client)?;
            upload.step = Step::SetAttributes;
            Ok(Next::Call(client.begin_set_attributes(upload.to(), upload.attributes())))
        }
        Step::SetAttributes => {
            match outcome {
                Err(_) if is_delayed => client.set_attributes(upload.to(), upload.attributes())?,
                done => drop(done?),
            }
            upload.step = Step::Rename;
            let [part, name] = upload.names();
            Ok(Next::Call(client.begin_rename(part, name)))
        }
        Step::Rename => {
            let [part, name] = upload.names();
            match outcome {
                Err(_) if is_delayed => client.rename(part, name)?,
                done => drop(done?),
            }
            Ok(Next::Over)
        }
        Step::Buffer => unreachable!("it waits for no call"),
    }
}

/// Continues writing while there are free buffers. It writes in order, and fills each buffer before the next, so that after a commit the
/// server's disk has a prefix of the file.
fn write(upload: &mut Upload, copying: &mut Copying<'_>, client: &mut Client) -> Result<Next, Failure> {
    loop {
        let Some(mut buffer) = copying.pool.take() else {
            if upload.offset > upload.committed {
                return Ok(commit(upload, Step::CommitPart, client));
            }
            upload.step = Step::Buffer;
            return Ok(Next::Buffer);
        };
        let buffer_bytes = buffer.capacity();
        buffer.resize(buffer_bytes);
        let memory = buffer.as_mut().expect("of a pool");
        let count = fill(&mut upload.file, memory).map_err(|error| local(&upload.job.from, error))?;
        buffer.resize(count);
        if count > 0 {
            let place = Place { file: upload.to(), offset: upload.offset };
            client.wait_for_room(CALLS_MAX)?;
            client.write(buffer, place).expect("room was waited for");
            client.try_flush()?;
            upload.offset += count as u64;
            copying.note(count)?;
        }
        // Only the last buffer is not full.
        if count < buffer_bytes {
            return Ok(commit(upload, Step::CommitAll, client));
        }
    }
}

fn commit(upload: &mut Upload, step: Step, client: &mut Client) -> Next {
    upload.step = step;
    let ticket = client.begin_commit(upload.to()).expect("the commit before has its reply");
    Next::Call(ticket)
}

fn verify(upload: &Upload, copying: &mut Copying<'_>, client: &mut Client) -> Result<(), Failure> {
    if !copying.arguments.verify {
        return Ok(());
    }
    let compared = compare(copying, client, upload.to(), (&upload.file, &upload.job.from));
    if matches!(compared, Err(Failure::Differs { .. })) {
        let _ = client.remove(upload.job.directory, upload.part.as_bytes()); // nothing to go on with
    }
    compared
}

fn fill(file: &mut File, memory: &mut [u8]) -> io::Result<usize> {
    let mut count = 0;
    while count < memory.len() {
        match file.read(&mut memory[count..]) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}
