//! Uploads of several files at a time: each makes some calls one after the other, and while one waits for a
//! reply others continue.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use nocopy::Pool;

use super::super::{BUFFERS, Failure};
use super::Copying;
use super::kinds::missing_there;
use super::outgoing::{CALLS_MAX, EMPTY, Job, Outgoing, Step};
use super::record::BYTES_MAX;
use crate::client::{Client, ClientError, Finished, Found, Place, Ticket};
use crate::wire::nfs3::{FileHandle, Status};

pub(super) struct Uploads {
    all: HashMap<u64, Outgoing>,
    /// Short buffers, for records: one for each file.
    short: Pool,
    tickets: HashMap<Ticket, u64>,
    /// Files that wait for a buffer.
    starved: VecDeque<u64>,
    number: u64,
    /// Where copies of files are that have several names on this host.
    originals: HashMap<Id, (FileHandle, OsString)>,
}

/// A file of this host: the numbers of its device and its own.
pub(super) type Id = (u64, u64);

/// The file, if it has several names.
pub(super) fn id_of(about: &Metadata) -> Option<Id> {
    (about.nlink() > 1).then_some((about.dev(), about.ino()))
}

impl Uploads {
    pub(super) fn new() -> Result<Self, Failure> {
        Ok(Self {
            all: HashMap::new(),
            short: Pool::new(BUFFERS, BYTES_MAX).map_err(Failure::Memory)?,
            tickets: HashMap::new(),
            starved: VecDeque::new(),
            number: 0,
            originals: HashMap::new(),
        })
    }

    /// Waits for the copy of a file that has several names; `None` if there is none.
    pub(super) fn original(
        &mut self,
        id: Id,
        copying: &mut Copying<'_>,
        client: &mut Client,
    ) -> Result<Option<(FileHandle, OsString)>, Failure> {
        while self.all.values().any(|upload| id_of(upload.about()) == Some(id)) {
            self.go_on(copying, client)?;
        }
        Ok(self.originals.get(&id).cloned())
    }

    /// Notes a copy that has its name.
    pub(super) fn note_original(&mut self, about: &Metadata, place: impl FnOnce() -> (FileHandle, OsString)) {
        if let Some(id) = id_of(about) {
            self.originals.insert(id, place());
        }
    }

    /// Begins a file, once few enough are in progress. Errors: an error that prevents further copying. Errors
    /// of single files are noted.
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
        let name = job.name();
        let is_resumed = copying.arguments.resume;
        let opened = Outgoing::open(job).and_then(|mut file| {
            if is_resumed && file.is_there(client)? {
                self.note_original(file.about(), || file.place());
                return Ok(None);
            }
            let is_continued = is_resumed && file.resume(client, &self.short)?;
            if !is_continued {
                file.prepare(client)?;
            }
            Ok(Some((file, is_continued)))
        });
        match opened {
            Ok(None) => copying.counts.unchanged += 1,
            Ok(Some((mut file, true))) => {
                self.number += 1;
                copying.counts.resumed_bytes += file.offset;
                let next = write(&mut file, copying, client);
                self.keep(self.number, file, next, copying, client)?;
            }
            Ok(Some((file, false))) => {
                let ticket = client.begin_create(file.directory(), file.part(), EMPTY);
                self.number += 1;
                self.tickets.insert(ticket, self.number);
                self.all.insert(self.number, file);
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
        let next = advance(&mut upload, outcome, copying, client, &self.short);
        self.keep(number, upload, next, copying, client)?;
        // Its buffers are free again.
        while was_committed && copying.pool.at_home() > 0 {
            let Some(number) = self.starved.pop_front() else { break };
            let mut upload = self.all.remove(&number).expect("it waits for a buffer");
            let next = write(&mut upload, copying, client);
            self.keep(number, upload, next, copying, client)?;
        }
        Ok(())
    }

    fn keep(
        &mut self,
        number: u64,
        upload: Outgoing,
        next: Result<Next, Failure>,
        copying: &mut Copying<'_>,
        client: &mut Client,
    ) -> Result<(), Failure> {
        match next {
            Ok(Next::Call(ticket)) => drop(self.tickets.insert(ticket, number)),
            Ok(Next::Buffer) => self.starved.push_back(number),
            Ok(Next::Over) => {
                copying.counts.files += 1;
                self.note_original(upload.about(), || upload.place());
                missing_there(upload.about()).into_iter().for_each(|what| copying.note(upload.name(), what));
                return Ok(());
            }
            Ok(Next::Failed(failure)) => return copying.fail(upload.name(), failure),
            Err(failure) => return self.fail(number, upload, failure, copying, client),
        }
        self.all.insert(number, upload);
        Ok(())
    }

    /// Gives up one file. Its written part is committed, because otherwise its buffers would never be
    /// returned.
    fn fail(
        &mut self,
        number: u64,
        mut upload: Outgoing,
        failure: Failure,
        copying: &mut Copying<'_>,
        client: &mut Client,
    ) -> Result<(), Failure> {
        if failure.concerns_all() || upload.offset == upload.committed {
            return copying.fail(upload.name(), failure);
        }
        let part = upload.to();
        match commit(&mut upload, part, Step::CommitAll, client) {
            Ok(next) => {
                upload.failure = Some(failure);
                self.keep(number, upload, Ok(next), copying, client)
            }
            // The commit in progress returns its buffers.
            Err(_) => copying.fail(upload.name(), failure),
        }
    }
}

enum Next {
    Call(Ticket),
    Buffer,
    Over,
    Failed(Failure),
}

fn advance(
    file: &mut Outgoing,
    outcome: Result<Option<Found>, ClientError>,
    copying: &mut Copying<'_>,
    client: &mut Client,
    short: &Pool,
) -> Result<Next, Failure> {
    // While the server is not ready, one file at a time is tried again.
    let is_delayed = outcome.as_ref().is_err_and(|error| error.status() == Some(Status::Jukebox));
    match file.step {
        Step::Create => {
            let made = match outcome {
                Ok(Some(found)) => found,
                // A server need not report it.
                Ok(None) => client.look_up(file.directory(), file.part())?,
                Err(error) if is_delayed || error.status() == Some(Status::Exists) => {
                    file.make_part(client)?
                }
                Err(error) => return Err(error.into()),
            };
            file.begin(made);
            write(file, copying, client)
        }
        Step::CommitPart => {
            let done = outcome.map(drop);
            file.committed = file.offset;
            done?;
            if file.wants_record() {
                let record = file.note_done(client, short)?;
                return commit(file, record, Step::CommitRecord, client);
            }
            write(file, copying, client)
        }
        Step::CommitRecord => {
            outcome?;
            write(file, copying, client)
        }
        Step::CommitAll => {
            file.committed = file.offset;
            if let Some(failure) = file.failure.take() {
                return Ok(Next::Failed(failure));
            }
            outcome?;
            file.set_length(client)?;
            file.verify(copying, client)?;
            file.step = Step::SetAttributes;
            Ok(Next::Call(client.begin_set_attributes(file.to(), file.attributes())))
        }
        Step::SetAttributes => {
            match outcome {
                Err(_) if is_delayed => drop(client.set_attributes(file.to(), file.attributes())?),
                done => drop(done?),
            }
            file.step = Step::LookUp;
            Ok(Next::Call(client.begin_look_up(file.directory(), file.part())))
        }
        Step::LookUp => {
            let found = match outcome {
                Ok(None) => Some(client.look_up(file.directory(), file.part())?),
                Err(_) if is_delayed => Some(client.look_up(file.directory(), file.part())?),
                Err(error) if error.status() == Some(Status::NoEntry) => None,
                found => found?,
            };
            if !file.is_part(found) {
                return Err(file.replaced());
            }
            file.step = Step::Rename;
            let [part, name] = file.renaming();
            Ok(Next::Call(client.begin_rename(part, name)))
        }
        Step::Rename => {
            let [part, name] = file.renaming();
            match outcome {
                Err(_) if is_delayed => client.rename(part, name)?,
                done => drop(done?),
            }
            file.end(client)?;
            Ok(Next::Over)
        }
        Step::Buffer => unreachable!("it waits for no call"),
    }
}

/// Continues writing while there are free buffers.
fn write(file: &mut Outgoing, copying: &mut Copying<'_>, client: &mut Client) -> Result<Next, Failure> {
    loop {
        let Some(mut buffer) = copying.pool.take() else {
            if file.offset > file.committed {
                let part = file.to();
                return commit(file, part, Step::CommitPart, client);
            }
            file.step = Step::Buffer;
            return Ok(Next::Buffer);
        };
        let buffer_bytes = buffer.capacity();
        buffer.resize(buffer_bytes);
        let (count, is_end) = file.fill(buffer.as_mut().expect("of a pool"))?;
        buffer.resize(count);
        if count > 0 {
            let place = Place { file: file.to(), offset: file.offset };
            client.wait_for_room(CALLS_MAX)?;
            client.write(buffer, place).expect("room was waited for");
            client.try_flush()?;
            file.offset += count as u64;
            copying.count(count)?;
        }
        if is_end {
            let part = file.to();
            return commit(file, part, Step::CommitAll, client);
        }
    }
}

/// Begins a commit. Errors: the server has given another file of this copy the same handle, and that is being
/// committed.
fn commit(file: &mut Outgoing, what: FileHandle, step: Step, client: &mut Client) -> Result<Next, Failure> {
    file.step = step;
    client.begin_commit(what).map(Next::Call).ok_or_else(|| file.replaced())
}
