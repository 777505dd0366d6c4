//! Two clients that may send anything, and a disk that fails: what is read is what was written, and what may
//! be lost is said.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileExt;

use nix::libc::{EIO, ENOSPC, SYS_fdatasync, SYS_fsync, SYS_pwrite64};

use crate::export::OpenFile;
use crate::server::core::{Answer, Core, ReadCall};
use crate::wire::mount::Text;
use crate::wire::nfs3::{
    self, Attributes, CommitArguments, CommitResult, CreateArguments, CreateMode, Created, Data, Entry,
    FileHandle, LinkArguments, Linked, LookupResult, NewAttributes, NfsResult, Procedure, ReadArguments,
    RenameArguments, Renamed, SetAttributesArguments, Stability, Status, Verifier, WeakCacheConsistency,
    WriteArguments, WriteResult,
};
use crate::wire::record::Records;
use crate::wire::rpc::{Call, Credential, Reply};
use crate::wire::xdr::{self, Reader, Xdr};

/// What the disk does during a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disk {
    Works,
    /// It takes no data: `pwrite` fails.
    IsFull,
    /// It loses data: `fsync` fails.
    Loses,
}

impl Disk {
    /// The system calls that fail then, and how.
    pub const fn refused(self) -> &'static [(i64, i32)] {
        match self {
            Self::Works => &[],
            Self::IsFull => &[(SYS_pwrite64, ENOSPC)],
            Self::Loses => &[(SYS_fsync, EIO), (SYS_fdatasync, EIO)],
        }
    }
}

/// Runs a call while the disk does that.
pub type WithDisk<'a> = &'a dyn Fn(Disk, &mut (dyn FnMut() + Send));

const NAMES: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];

/// More files are not made.
const FILES_MAX: usize = 12;

/// Bytes of one step: what, by whom, which file or name, where, how long.
const STEP_BYTES: usize = 5;

/// What the clients know of a file.
#[derive(Debug)]
struct FileModel {
    handle: FileHandle,
    /// `None` after a call that failed, and may have changed something.
    content: Option<Vec<u8>>,
    /// The verifier of a write that was not made stable since.
    unstable: Option<Verifier>,
    /// Those of writes that may be lost.
    lost: Vec<Verifier>,
}

/// The file with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NamedFile {
    Unknown,
    Nothing,
    File(usize),
}

/// The last change of a client, which it may repeat.
#[derive(Debug)]
struct SentCall {
    record: Vec<u8>,
    reply: Vec<u8>,
}

struct ClientsModel<'a> {
    core: &'a Core,
    with: WithDisk<'a>,
    disk: Disk,
    client: usize,
    xid: u32,
    files: Vec<FileModel>,
    names: [NamedFile; NAMES.len()],
    last: [Option<SentCall>; 2],
}

/// Makes the calls that the input describes, on an export that is empty and writable.
///
/// # Panics
/// A reply contradicts those before it.
pub fn converse(core: &Core, input: &[u8], with: WithDisk<'_>) {
    let names = [NamedFile::Nothing; NAMES.len()];
    let (files, last) = (Vec::new(), [None, None]);
    let mut clients = ClientsModel { core, with, disk: Disk::Works, client: 0, xid: 0, files, names, last };
    for step in input.as_chunks::<STEP_BYTES>().0 {
        clients.step(*step);
    }
}

impl ClientsModel<'_> {
    fn step(&mut self, [what, who, which, at, length]: [u8; STEP_BYTES]) {
        self.client = usize::from(who & 1);
        self.disk = [Disk::Works, Disk::Works, Disk::IsFull, Disk::Loses][usize::from(who >> 1 & 3)];
        let (name, other) = (usize::from(which) % NAMES.len(), usize::from(at) % NAMES.len());
        let (file, offset) = (usize::from(which) % (self.files.len() + 1), u64::from(at) * 16);
        match what % 11 {
            0 => self.write(file, offset, length, Stability::Unstable),
            1 => self.write(file, offset, length, Stability::FileSync),
            2 => self.commit(file),
            3 => self.read(file, offset, length.into()),
            4 => self.create(name),
            5 => self.remove(name),
            6 => self.rename(name, other),
            7 => self.set_size(file, offset + u64::from(length)),
            8 => self.link(file, name),
            9 => self.look_up(name),
            _ => self.repeat(),
        }
    }

    /// The handle of a file, or one that no server made.
    fn handle(&self, file: usize) -> FileHandle {
        let forged = || {
            let mut bytes = self.core.export().root().as_bytes().to_vec();
            bytes[file] ^= 1;
            FileHandle::new(&bytes).expect("as long as the root's")
        };
        self.files.get(file).map_or_else(forged, |file| file.handle)
    }

    fn entry(&self, name: usize) -> Entry<'static> {
        Entry { directory: self.core.export().root(), name: Text(NAMES[name]) }
    }

    fn write(&mut self, file: usize, offset: u64, length: u8, stability: Stability) {
        let (handle, disk) = (self.handle(file), self.disk);
        let data = vec![self.xid as u8; length.into()];
        let asked =
            WriteArguments { file: handle, offset, count: length.into(), stability, data: Data(&data) };
        let reply = self.call(Procedure::Write, &asked);
        let made: NfsResult<WriteResult, WeakCacheConsistency> = parse(&reply);
        let Some(file) = self.known(file, made.as_ref().map_err(|refusal| refusal.status)) else { return };
        let Ok(written) = made else {
            file.content = None;
            if disk == Disk::Loses {
                // With what was written before it.
                file.lose();
            }
            return;
        };
        assert!(written.count <= length.into(), "more than was sent");
        assert!(written.stability as u32 >= stability as u32, "less stable than asked");
        let data = &data[..written.count as usize];
        assert!(disk != Disk::IsFull || data.is_empty(), "the disk takes nothing");
        if let Some(content) = file.content.as_mut().filter(|_| !data.is_empty()) {
            let end = offset as usize + data.len();
            content.resize(content.len().max(end), 0);
            content[offset as usize..end].copy_from_slice(data);
        }
        if !data.is_empty() && written.stability == Stability::Unstable {
            file.unstable = Some(written.verifier);
        } else if written.stability != Stability::Unstable {
            assert!(disk != Disk::Loses || data.is_empty(), "said to be on the disk");
        }
    }

    fn commit(&mut self, file: usize) {
        let (asked, disk) = (CommitArguments { file: self.handle(file), offset: 0, count: 0 }, self.disk);
        let reply = self.call(Procedure::Commit, &asked);
        let made: NfsResult<CommitResult, WeakCacheConsistency> = parse(&reply);
        let Some(file) = self.known(file, made.as_ref().map_err(|refusal| refusal.status)) else { return };
        if let Ok(CommitResult { verifier, .. }) = made {
            assert!(!file.lost.contains(&verifier), "what was lost is said to be on the disk");
            let is_said = file.unstable == Some(verifier);
            assert!(disk != Disk::Loses || !is_said, "said to be on the disk, which loses it");
        }
        match disk {
            Disk::Loses => file.lose(),
            _ if made.is_ok() => file.unstable = None,
            _ => {}
        }
    }

    fn read(&mut self, file: usize, offset: u64, bytes: u32) {
        let asked = ReadArguments { file: self.handle(file), offset, bytes };
        let record = self.record(Procedure::Read, &asked);
        let (core, from) = (self.core, self.address());
        let Ok(Answer::Read(call)) = core.answer(&record, from) else { panic!("it is a read") };
        let read = match core.open(&call) {
            Ok(file) => Ok(contents(&file, &call)),
            Err(_) => Err(Status::Stale),
        };
        let Some(file) = self.known(file, read.as_ref().map_err(|status| *status)) else { return };
        let (Ok((size, bytes)), Some(content)) = (read, &file.content) else { return };
        assert_eq!(size, content.len() as u64, "its size");
        let expected = content.get(offset as usize..).unwrap_or_default();
        assert_eq!(bytes, expected[..expected.len().min(call.bytes)], "its bytes");
    }

    fn create(&mut self, name: usize) {
        if self.files.len() == FILES_MAX {
            return;
        }
        let how = CreateMode::Unchecked(NewAttributes { mode: Some(0o600), ..NewAttributes::NONE });
        let reply = self.change(Procedure::Create, &CreateArguments { at: self.entry(name), how });
        let made: NfsResult<Created, WeakCacheConsistency> = parse(&reply);
        let Ok(Created { file: Some(handle), .. }) = made else {
            return self.names[name] = NamedFile::Unknown;
        };
        let is_new = self.names[name] == NamedFile::Nothing;
        self.find(name, handle, is_new.then(Vec::new));
    }

    fn look_up(&mut self, name: usize) {
        let reply = self.call(Procedure::Lookup, &self.entry(name));
        let found: NfsResult<LookupResult, Option<Attributes>> = parse(&reply);
        match found {
            Ok(LookupResult { file, .. }) => {
                assert_ne!(self.names[name], NamedFile::Nothing, "a file with no name");
                self.find(name, file, None);
            }
            Err(refusal) if refusal.status == Status::NoEntry => {
                assert!(!matches!(self.names[name], NamedFile::File(_)), "it has a name");
                self.names[name] = NamedFile::Nothing;
            }
            Err(_) => {}
        }
    }

    /// Notes the file with a name.
    fn find(&mut self, name: usize, handle: FileHandle, content: Option<Vec<u8>>) {
        let found = self.files.iter().position(|file| file.handle == handle);
        let number = found.unwrap_or(self.files.len());
        match self.names[name] {
            NamedFile::File(expected) => assert_eq!(number, expected, "another file"),
            NamedFile::Nothing => assert!(found.is_none(), "a file that has other names"),
            NamedFile::Unknown => {}
        }
        if found.is_none() {
            self.files.push(FileModel { handle, content, unstable: None, lost: Vec::new() });
        }
        self.names[name] = NamedFile::File(number);
    }

    fn remove(&mut self, name: usize) {
        let reply = self.change(Procedure::Remove, &self.entry(name));
        let made: NfsResult<WeakCacheConsistency, WeakCacheConsistency> = parse(&reply);
        self.names[name] = match made {
            Ok(_) => {
                assert_ne!(self.names[name], NamedFile::Nothing, "there was a name");
                NamedFile::Nothing
            }
            Err(refusal) if refusal.status == Status::NoEntry => {
                assert!(!matches!(self.names[name], NamedFile::File(_)), "it had a name");
                NamedFile::Nothing
            }
            Err(_) => NamedFile::Unknown,
        };
    }

    fn rename(&mut self, from: usize, to: usize) {
        let asked = RenameArguments { from: self.entry(from), to: self.entry(to) };
        let reply = self.change(Procedure::Rename, &asked);
        let made: NfsResult<Renamed, (WeakCacheConsistency, WeakCacheConsistency)> = parse(&reply);
        match made {
            // Two names of one file stay (rename(2)).
            Ok(_) if self.names[from] == self.names[to] && self.names[from] != NamedFile::Unknown => {}
            Ok(_) => {
                let before = [self.names[from], self.names[to]];
                let is_certain = !before.contains(&NamedFile::Unknown);
                self.names[to] = if is_certain { before[0] } else { NamedFile::Unknown };
                self.names[from] = if is_certain { NamedFile::Nothing } else { NamedFile::Unknown };
            }
            Err(refusal) if refusal.status == Status::NoEntry => {
                assert!(!matches!(self.names[from], NamedFile::File(_)), "it had a name");
            }
            Err(_) => (self.names[from], self.names[to]) = (NamedFile::Unknown, NamedFile::Unknown),
        }
    }

    fn link(&mut self, file: usize, name: usize) {
        let asked = LinkArguments { file: self.handle(file), at: self.entry(name) };
        let reply = self.change(Procedure::Link, &asked);
        let made: NfsResult<Linked, (Option<Attributes>, WeakCacheConsistency)> = parse(&reply);
        match made {
            Ok(_) => {
                assert!(!matches!(self.names[name], NamedFile::File(_)), "it had a name");
                assert!(file < self.files.len(), "a forged handle was accepted");
                self.names[name] = NamedFile::File(file);
            }
            Err(refusal) if refusal.status == Status::Exists => {
                assert_ne!(self.names[name], NamedFile::Nothing, "it had no name");
            }
            Err(_) if matches!(self.names[name], NamedFile::File(_)) => {}
            Err(_) => self.names[name] = NamedFile::Unknown,
        }
    }

    fn set_size(&mut self, file: usize, size: u64) {
        let new = NewAttributes { size: Some(size), ..NewAttributes::NONE };
        let asked = SetAttributesArguments { file: self.handle(file), new, guard: None };
        let reply = self.change(Procedure::SetAttr, &asked);
        let made: NfsResult<WeakCacheConsistency, WeakCacheConsistency> = parse(&reply);
        let Some(file) = self.known(file, made.as_ref().map_err(|refusal| refusal.status)) else { return };
        match (&made, &mut file.content) {
            (Ok(_), Some(content)) => content.resize(size as usize, 0),
            (Ok(_), None) if size == 0 => file.content = Some(Vec::new()),
            (Ok(_), None) => {}
            (Err(_), content) => *content = None,
        }
    }

    /// A client that repeats its last change gets the same reply, and nothing is done.
    fn repeat(&mut self) {
        let Some(sent) = &self.last[self.client] else { return };
        let reply = answer(self.core, &sent.record, self.address());
        assert_eq!(reply, sent.reply, "the reply to a repeated call");
    }

    /// The file, unless nobody made its handle.
    fn known<T>(&mut self, file: usize, made: Result<T, Status>) -> Option<&mut FileModel> {
        let file = self.files.get_mut(file);
        assert!(file.is_some() || made.is_err(), "a forged handle was accepted");
        file
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::new(127, 0, 0, 1 + self.client as u8), 1023))
    }

    fn record<'a>(&mut self, procedure: Procedure, asked: &impl Xdr<'a>) -> Vec<u8> {
        self.xid += 1;
        let mut arguments = Vec::new();
        asked.encode(&mut arguments);
        let (program, version, procedure) = (nfs3::PROGRAM, nfs3::VERSION, procedure as u32);
        let credential = Credential::NONE;
        let mut record = Vec::new();
        Call { xid: self.xid, program, version, procedure, credential, arguments: &arguments }
            .encode(&mut record);
        record
    }

    /// The results of a call, during which the disk does what it does in this step.
    fn call<'a>(&mut self, procedure: Procedure, asked: &impl Xdr<'a>) -> Vec<u8> {
        let record = self.record(procedure, asked);
        self.send(&record)
    }

    /// As [`call`](Self::call); the client may repeat it.
    fn change<'a>(&mut self, procedure: Procedure, asked: &impl Xdr<'a>) -> Vec<u8> {
        let record = self.record(procedure, asked);
        let reply = self.send(&record);
        self.last[self.client] = Some(SentCall { record, reply: reply.clone() });
        reply
    }

    fn send(&self, record: &[u8]) -> Vec<u8> {
        let (core, from, mut reply) = (self.core, self.address(), Vec::new());
        (self.with)(self.disk, &mut || reply = answer(core, record, from));
        reply
    }
}

impl FileModel {
    /// What was not stable may be lost, however often it is committed from now on.
    fn lose(&mut self) {
        self.lost.extend(self.unstable.take());
    }
}

fn answer(core: &Core, record: &[u8], from: SocketAddr) -> Vec<u8> {
    match core.answer(record, from).expect("it is a call") {
        Answer::Reply(reply) | Answer::Written(reply, _) => reply,
        other => unreachable!("{other:?}"),
    }
}

/// The results in a reply.
fn parse<T: for<'a> Xdr<'a>>(reply: &[u8]) -> T {
    let mut records = Records::new(super::REPLY_BYTES_MAX);
    records.push(reply);
    let record = records.take().expect("not too long").expect("all of it");
    let mut input = Reader::new(&record);
    let (_, reply) = Reply::decode(&mut input).expect("a reply");
    assert_eq!(reply, Reply::Success);
    xdr::parse(input.rest()).expect("the results of the procedure")
}

/// The size of a file, and the bytes that a call reads.
fn contents(file: &OpenFile, call: &ReadCall) -> (u64, Vec<u8>) {
    let read = || -> io::Result<_> {
        let file = std::fs::File::from(rustix::io::dup(file)?);
        let mut bytes = vec![0; call.bytes];
        let count = file.read_at(&mut bytes, call.offset)?;
        bytes.truncate(count);
        Ok((file.metadata()?.len(), bytes))
    };
    read().expect("a file that is open is read")
}
