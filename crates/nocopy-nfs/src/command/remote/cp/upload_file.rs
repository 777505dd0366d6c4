//! A file of this host that is written on a server.

use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::rc::Rc;

use nocopy::Pool;
use nocopy_report::input_file::{InputKind, content_ends_at, input_kind_from_metadata};

use super::super::super::local_path;
use super::super::Failure;
use super::attributes::{copied_permissions, nfs_time};
use super::compare::compare;
use super::directory::OpenDirectory;
use super::record::{CopyNames, ExistingFile, INTERVAL_BYTES, SourceVersion};
use super::sparse_source::SparseSource;
use super::{CopyContext, local_failure, replaced_error};
use crate::client::{Client, ClientError, FileInfo, FilePosition, escape_path};
use crate::wire::nfs3::{CreateMode, FileHandle, NewAttributes, SetTime, Status, Time};

/// The most writes waiting for replies: enough for the network, and below the client's own limit.
pub(super) const CALLS_MAX: usize = 64;

pub(super) struct UploadJob {
    /// Where it is on this host, and its name there.
    pub(super) from: Rc<OpenDirectory>,
    pub(super) source: OsString,
    /// Where it will be on the server, and its name there.
    pub(super) directory: FileHandle,
    pub(super) name: OsString,
    /// The directories of the server that were made for those that it is in.
    pub(super) above: Rc<[FileInfo]>,
}

impl UploadJob {
    pub(super) fn source_path(&self) -> PathBuf {
        self.from.entry_path(&self.source)
    }

    /// Its path, for messages.
    pub(super) fn display_name(&self) -> String {
        local_path::to_text(&self.source_path())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UploadState {
    Create,
    Buffer,
    /// A commit of what was written so far, because it holds all the buffers.
    CommitPart,
    /// A commit of the record of what is committed.
    CommitRecord,
    CommitAll,
    SetAttributes,
    /// A look at the part before it gets its name.
    LookUp,
    Rename,
}

pub(super) struct UploadFile {
    from: PathBuf,
    directory: FileHandle,
    names: CopyNames,
    source: SparseSource,
    metadata: Metadata,
    pub(super) state: UploadState,
    /// Set when the file was made.
    part: Option<FileInfo>,
    record: Option<FileHandle>,
    /// Offsets of the next byte to be written, and of the first that may not be on the server's disk.
    pub(super) offset: u64,
    pub(super) committed: u64,
    recorded: u64,
    /// Reported once no call of the file is in flight.
    pub(super) failure: Option<Failure>,
}

impl UploadFile {
    pub(super) fn open(job: UploadJob) -> Result<Self, Failure> {
        let from = job.source_path();
        let UploadJob { directory, name, .. } = job;
        // It may have been replaced since it was looked at.
        let file = job.from.open_to_read(&job.source).map_err(|error| local_failure(&from, error))?;
        let metadata = file.metadata().map_err(|error| local_failure(&from, error))?;
        if !metadata.is_file() {
            return Err(local_failure(&from, replaced_error()));
        }
        Ok(Self {
            names: CopyNames::new(name),
            from,
            directory,
            source: SparseSource::new(file, &metadata),
            metadata,
            state: UploadState::Create,
            part: None,
            record: None,
            offset: 0,
            committed: 0,
            recorded: 0,
            failure: None,
        })
    }

    pub(super) fn display_name(&self) -> String {
        local_path::to_text(&self.from)
    }

    pub(super) fn source_failure(&self, error: io::Error) -> Failure {
        local_failure(&self.from, error)
    }

    pub(super) fn part_handle(&self) -> FileHandle {
        self.part.expect("it is made first").file
    }

    fn shrunk_failure(&self) -> Failure {
        Failure::Shrunk { path: self.from.clone() }
    }

    fn source_version(&self) -> SourceVersion {
        SourceVersion::from(&self.metadata)
    }

    fn modification_time(&self) -> Time {
        nfs_time(&self.metadata).0
    }

    pub(super) fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Where the copy is.
    pub(super) fn copy_name(&self) -> (FileHandle, OsString) {
        (self.directory, self.names.complete.clone())
    }

    /// Makes a copy as long as its original, if that ends in a hole.
    pub(super) fn set_length(&self, client: &mut Client) -> Result<(), ClientError> {
        if let Some(bytes) = self.source.length_if_hole_follows(self.offset) {
            client.set_attributes(
                self.part_handle(),
                NewAttributes { size: Some(bytes), ..NewAttributes::NONE },
            )?;
        }
        Ok(())
    }

    pub(super) fn copy_attributes(&self) -> NewAttributes {
        let mode = Some(copied_permissions(self.metadata.mode()));
        NewAttributes { mode, modified: SetTime::To(self.modification_time()), ..NewAttributes::NONE }
    }

    pub(super) fn directory(&self) -> FileHandle {
        self.directory
    }

    pub(super) fn part_name(&self) -> &[u8] {
        self.names.part.as_bytes()
    }

    /// The names of the unfinished and of the complete file, in the same directory.
    pub(super) fn rename_arguments(&self) -> [(FileHandle, &[u8]); 2] {
        [(self.directory, self.part_name()), (self.directory, self.names.complete.as_bytes())]
    }

    /// Whether an earlier copy is complete.
    pub(super) fn is_copied(&self, client: &mut Client) -> Result<bool, ClientError> {
        let key = |time: Time| (time.seconds, time.nanoseconds);
        Ok(self.look_up_name(&self.names.complete, client)?.is_some_and(|found| {
            let is_newer = key(found.attributes.modified) >= key(self.modification_time());
            let size = found.attributes.size;
            found.is_regular()
                && size == self.metadata.len()
                && is_newer
                && content_ends_at(&self.source.file, size)
        }))
    }

    fn look_up_name(&self, name: &OsStr, client: &mut Client) -> Result<Option<FileInfo>, ClientError> {
        absent_as_none(client.look_up(self.directory, name.as_bytes()))
    }

    /// Prepares for a new part: no record of an earlier one may be there.
    pub(super) fn remove_stale_record(&self, client: &mut Client) -> Result<(), ClientError> {
        match self.source_version().may_have_record() {
            true => self.remove_name(&self.names.record, client),
            false => Ok(()),
        }
    }

    /// Makes the part, although something has its name.
    pub(super) fn make_part(&self, client: &mut Client) -> Result<FileInfo, ClientError> {
        self.remove_name(&self.names.record, client)?;
        self.create_or_replace_file(&self.names.part, client)
    }

    fn create_or_replace_file(&self, name: &OsStr, client: &mut Client) -> Result<FileInfo, ClientError> {
        match client.create(self.directory, name.as_bytes(), EMPTY) {
            Err(error) if error.status() == Some(Status::Exists) => {
                self.remove_name(name, client)?;
                client.create(self.directory, name.as_bytes(), EMPTY)
            }
            made => made,
        }
    }

    /// Removes what has the names of the part and the record, first the record.
    fn remove_part_and_record(&self, client: &mut Client) -> Result<(), ClientError> {
        self.remove_name(&self.names.record, client)?;
        self.remove_name(&self.names.part, client)
    }

    fn remove_name(&self, name: &OsStr, client: &mut Client) -> Result<(), ClientError> {
        absent_as_none(client.remove(self.directory, name.as_bytes())).map(drop)
    }

    /// Begins with an empty part.
    pub(super) fn set_part(&mut self, made: FileInfo) {
        self.part = Some(made);
    }

    /// Continues the part of an earlier copy after the bytes that its record proves, if there are any.
    pub(super) fn resume_earlier_copy(&mut self, client: &mut Client, short: &Pool) -> Result<bool, Failure> {
        if !self.source_version().may_have_record() {
            return Ok(false);
        }
        let (record, part) =
            (self.look_up_name(&self.names.record, client)?, self.look_up_name(&self.names.part, client)?);
        let Some((record, part)) = record.zip(part) else { return Ok(false) };
        let buffer = short.take().expect("one for each file");
        let text = match client.read(buffer, FilePosition { file: record.file, offset: 0 }) {
            Err(error) if error.status().is_some() => return Ok(false), // such as a file of another user
            read => read?.0,
        };
        let Some(done) = self.source_version().proven_bytes(&text, part.attributes.file_id) else {
            return Ok(false);
        };
        drop(text);
        // For whom the server takes this client shows in a file that it makes.
        let own = self.create_or_replace_file(&self.names.record, client)?;
        let is_own = |found: FileInfo| {
            ExistingFile::from(&found.attributes).is_exclusively_owned_by(own.attributes.user)
        };
        if !(is_own(record) && is_own(part) && done <= part.attributes.size) {
            return Ok(false);
        }
        client.set_attributes(part.file, NewAttributes { size: Some(done), ..NewAttributes::NONE })?;
        self.source.file.seek(SeekFrom::Start(done)).map_err(|error| self.source_failure(error))?;
        (self.part, self.record) = (Some(part), Some(own.file));
        (self.offset, self.committed) = (done, done);
        let record = self.write_record(client, short)?;
        client.commit(record)?;
        Ok(true)
    }

    pub(super) fn needs_record(&self) -> bool {
        self.source_version().may_have_record() && self.committed - self.recorded >= INTERVAL_BYTES
    }

    /// Writes a record of what is committed; returns the file of the record, which is to be committed.
    pub(super) fn write_record(&mut self, client: &mut Client, short: &Pool) -> Result<FileHandle, Failure> {
        let record = match self.record {
            Some(record) => record,
            None => self.create_or_replace_file(&self.names.record, client)?.file,
        };
        self.record = Some(record);
        let part = self.part.expect("it is made first").attributes.file_id;
        let text = self.source_version().format_record(part, self.committed);
        let mut buffer = short.take().expect("one for each file");
        buffer.fill(text.as_bytes()).expect("it is longer than records");
        client.wait_until_fewer_in_flight(CALLS_MAX)?;
        client.write(buffer, FilePosition { file: record, offset: 0 }).expect("room was waited for");
        self.recorded = self.committed;
        Ok(record)
    }

    /// Whether what was found under the name of the part is that.
    pub(super) fn is_part(&self, found: Option<FileInfo>) -> bool {
        let id = |found: FileInfo| (found.attributes.file_system, found.attributes.file_id);
        found.map(id) == self.part.map(id)
    }

    pub(super) fn replaced_failure(&self) -> Failure {
        Failure::Replaced { path: escape_path(self.names.part.as_bytes()) }
    }

    /// Removes the record of a complete file, which means nothing any more.
    pub(super) fn remove_record(&self, client: &mut Client) -> Result<(), ClientError> {
        self.record.map_or(Ok(()), |_| self.remove_name(&self.names.record, client))
    }

    pub(super) fn verify_copy(
        &self,
        context: &mut CopyContext<'_>,
        client: &mut Client,
    ) -> Result<(), Failure> {
        if !context.arguments.verify {
            return Ok(());
        }
        let compared = compare(context, client, self.part_handle(), (&self.source.file, &self.from));
        if matches!(compared, Err(Failure::Differs { .. })) {
            let _ = self.remove_part_and_record(client); // nothing to go on with
        }
        compared
    }

    /// Reads until the memory is full, or there is a hole, and from behind one. Returns the number of bytes,
    /// and whether no more follow.
    pub(super) fn read_source(&mut self, memory: &mut [u8]) -> Result<(usize, bool), Failure> {
        let room = self.source.skip_hole(&mut self.offset).map_err(|error| self.source_failure(error))?;
        let Some(room) = room else {
            return if self.source.length_if_hole_follows(0) < Some(self.metadata.len()) {
                Err(self.shrunk_failure())
            } else {
                Ok((0, true))
            };
        };
        let most = usize::try_from(room).unwrap_or(usize::MAX).min(memory.len());
        let mut count = 0;
        while count < most {
            match self.source.file.read(&mut memory[count..most]) {
                Ok(0) => {
                    let is_short = self.offset + (count as u64) < self.metadata.len();
                    if is_short
                        && input_kind_from_metadata(&self.source.file, &self.metadata) != InputKind::Stream
                    {
                        return Err(self.shrunk_failure());
                    }
                    return Ok((count, true));
                }
                Ok(more) => count += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.source_failure(error)),
            }
        }
        Ok((count, false))
    }
}

/// A new file, private until it is complete. If the name exists, whatever it is, the call fails.
pub(super) const EMPTY: CreateMode =
    CreateMode::Guarded(NewAttributes { mode: Some(0o600), size: Some(0), ..NewAttributes::NONE });

pub(super) fn absent_as_none<T>(outcome: Result<T, ClientError>) -> Result<Option<T>, ClientError> {
    match outcome {
        Err(error) if error.status() == Some(Status::NoEntry) => Ok(None),
        outcome => outcome.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;
    use crate::export::Export;
    use crate::server::core::CallerMapping;
    use crate::server::{Server, Settings};

    fn upload_job(around: &std::path::Path, directory: FileHandle) -> UploadJob {
        let from = Rc::new(OpenDirectory::open(around).unwrap());
        UploadJob { from, source: "source".into(), directory, name: "file".into(), above: Rc::new([]) }
    }

    #[test]
    fn growing_sources_are_read_and_shrinking_ones_refused() {
        let around = tempfile::tempdir().unwrap();
        let source = around.path().join("source");
        let fill_after = |bytes: u64, hole_bytes: u64| {
            std::fs::write(&source, [7; 1000]).unwrap();
            let file = std::fs::File::options().write(true).open(&source).unwrap();
            file.set_len(1000 + hole_bytes).unwrap();
            let mut upload =
                UploadFile::open(upload_job(around.path(), FileHandle::new(&[]).unwrap())).unwrap();
            assert_eq!(upload.read_source(&mut [0; 500]).unwrap(), (500, false));
            upload.offset = 500;
            file.set_len(bytes).unwrap();
            loop {
                match upload.read_source(&mut [0; 4096]) {
                    Ok((count, false)) => upload.offset += count as u64,
                    end => {
                        let offset = upload.offset;
                        break end.map(|(count, _)| {
                            upload.source.length_if_hole_follows(0).unwrap_or(offset + count as u64)
                        });
                    }
                }
            }
        };
        assert_eq!(fill_after(1100, 0).unwrap(), 1100);
        assert_eq!(fill_after(6 << 20, 4 << 20).unwrap(), 6 << 20);
        for (shorter, hole_bytes) in
            [0, 4 << 20].into_iter().flat_map(|hole| [0, 300, 700, 999 + hole].map(|to| (to, hole)))
        {
            let filled = fill_after(shorter, hole_bytes);
            assert!(matches!(filled, Err(Failure::Shrunk { .. })), "{shorter} {hole_bytes}: {filled:?}");
        }
    }

    #[test]
    fn replaced_sources_are_reported_with_cause_and_remedy() {
        let around = tempfile::tempdir().unwrap();
        std::fs::create_dir(around.path().join("source")).unwrap();
        let Err(failure) = UploadFile::open(upload_job(around.path(), FileHandle::new(&[]).unwrap())) else {
            panic!("opened")
        };
        assert_eq!(
            failure.to_string(),
            format!(
                "{}/source: cannot be read or written; another program has put something else there meanwhile; copy it again",
                around.path().display()
            )
        );
        let path = PathBuf::from(OsStr::from_bytes(b"/caf\xe9"));
        assert!(
            Failure::Special { path: path.clone() }.to_string().starts_with("file:///caf%E9: not copied")
        );
        assert!(Failure::Shrunk { path }.to_string().starts_with("file:///caf%E9: became shorter"));
    }

    #[test]
    fn records_wait_for_room_among_other_writes() {
        let around = tempfile::tempdir().unwrap();
        let [exported, state] = ["exported", "state"].map(|name| around.path().join(name));
        std::fs::create_dir(&exported).unwrap();
        std::fs::write(around.path().join("source"), b"content").unwrap();
        let settings = Settings {
            addresses: vec![(Ipv4Addr::LOCALHOST, 0).into()],
            allow: Vec::new(),
            is_stable: false,
            is_writable: true,
            callers: CallerMapping::Server,
            is_portmapper: false,
            connections_max: 16,
        };
        let server =
            Server::bind(Arc::new(Export::open(&exported, Some(&state)).unwrap()), settings).unwrap();
        let url = format!("nfs://{}{}", server.address(), exported.display()).parse().unwrap();
        let pool = Pool::new(1, 1 << 20).unwrap();
        let (end, is_over) = channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || server.run(|_| _ = is_over.recv()));
            let (mut client, _) = Client::builder().call_bytes_max(1024).pool(pool).connect(&url).unwrap();
            let root = client.root();
            let names = [&b"file"[..], b"record", b"other"];
            let [file, record, other] = names.map(|name| client.create(root, name, EMPTY).unwrap());
            let mut upload = UploadFile::open(upload_job(around.path(), root)).unwrap();
            upload.set_part(file);
            upload.record = Some(record.file);
            let mut buffer = client.buffer().unwrap();
            buffer.resize(1 << 20);
            client.write(buffer, FilePosition { file: other.file, offset: 0 }).unwrap();
            assert!(client.in_flight() >= 1024 / 2);
            let record = upload.write_record(&mut client, &Pool::new(1, 512).unwrap()).unwrap();
            client.commit(record).unwrap();
            client.commit(other.file).unwrap();
            drop(end);
        });
    }
}
