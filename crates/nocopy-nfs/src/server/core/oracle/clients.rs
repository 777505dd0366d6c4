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
    self, Attributes, CommitArguments, CommitResult, CreateArguments, CreateMode, CreateResult, Data, Entry,
    FileHandle, LinkArguments, LinkResult, LookupResult, NewAttributes, NfsResult, Procedure, ReadArguments,
    RenameArguments, RenameResult, SetAttributesArguments, Stability, Status, Verifier, WeakCacheConsistency,
    WriteArguments, WriteResult,
};
use crate::wire::record::RecordAssembler;
use crate::wire::rpc::{Call, Credential, Reply};
use crate::wire::xdr::{self, Reader, Xdr};

/// What the disk does during a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskBehavior {
    Works,
    /// It takes no data: `pwrite` fails.
    IsFull,
    /// It loses data: `fsync` fails.
    Loses,
}

impl DiskBehavior {
    /// The system calls that fail then, and how.
    pub const fn failing_system_calls(self) -> &'static [(i64, i32)] {
        match self {
            Self::Works => &[],
            Self::IsFull => &[(SYS_pwrite64, ENOSPC)],
            Self::Loses => &[(SYS_fsync, EIO), (SYS_fdatasync, EIO)],
        }
    }
}

/// Runs a call while the disk does that.
pub type WithDisk<'a> = &'a dyn Fn(DiskBehavior, &mut (dyn FnMut() + Send));

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
enum NameBinding {
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
    disk: DiskBehavior,
    client: usize,
    xid: u32,
    files: Vec<FileModel>,
    names: [NameBinding; NAMES.len()],
    last: [Option<SentCall>; 2],
}

/// Makes the calls that the input describes, on an export that is empty and writable.
///
/// # Panics
/// A reply contradicts those before it.
pub fn run_clients(core: &Core, input: &[u8], with: WithDisk<'_>) {
    let names = [NameBinding::Nothing; NAMES.len()];
    let (files, last) = (Vec::new(), [None, None]);
    let mut clients =
        ClientsModel { core, with, disk: DiskBehavior::Works, client: 0, xid: 0, files, names, last };
    for step in input.as_chunks::<STEP_BYTES>().0 {
        clients.run_step(*step);
    }
}

impl ClientsModel<'_> {
    fn run_step(&mut self, [what, who, which, at, length]: [u8; STEP_BYTES]) {
        self.client = usize::from(who & 1);
        self.disk = [DiskBehavior::Works, DiskBehavior::Works, DiskBehavior::IsFull, DiskBehavior::Loses]
            [usize::from(who >> 1 & 3)];
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
            _ => self.repeat_last_change(),
        }
    }

    /// The handle of a file, or one that no server made.
    fn file_handle(&self, file: usize) -> FileHandle {
        let forged = || {
            let mut bytes = self.core.export().root_handle().as_bytes().to_vec();
            bytes[file] ^= 1;
            FileHandle::new(&bytes).expect("as long as the root's")
        };
        self.files.get(file).map_or_else(forged, |file| file.handle)
    }

    fn root_entry(&self, name: usize) -> Entry<'static> {
        Entry { directory: self.core.export().root_handle(), name: Text(NAMES[name]) }
    }

    fn write(&mut self, file: usize, offset: u64, length: u8, stability: Stability) {
        let (handle, disk) = (self.file_handle(file), self.disk);
        let data = vec![self.xid as u8; length.into()];
        let asked =
            WriteArguments { file: handle, offset, count: length.into(), stability, data: Data(&data) };
        let reply = self.call_core(Procedure::Write, &asked);
        let made: NfsResult<WriteResult, WeakCacheConsistency> = parse_reply(&reply);
        let Some(file) = self.known_file(file, made.as_ref().map_err(|refusal| refusal.status)) else {
            return;
        };
        let Ok(written) = made else {
            file.content = None;
            if disk == DiskBehavior::Loses {
                // With what was written before it.
                file.mark_unstable_lost();
            }
            return;
        };
        assert!(written.count <= length.into(), "more than was sent");
        assert!(written.stability as u32 >= stability as u32, "less stable than asked");
        let data = &data[..written.count as usize];
        assert!(disk != DiskBehavior::IsFull || data.is_empty(), "the disk takes nothing");
        if let Some(content) = file.content.as_mut().filter(|_| !data.is_empty()) {
            let end = offset as usize + data.len();
            content.resize(content.len().max(end), 0);
            content[offset as usize..end].copy_from_slice(data);
        }
        if !data.is_empty() && written.stability == Stability::Unstable {
            file.unstable = Some(written.verifier);
        } else if written.stability != Stability::Unstable {
            assert!(disk != DiskBehavior::Loses || data.is_empty(), "said to be on the disk");
        }
    }

    fn commit(&mut self, file: usize) {
        let (asked, disk) =
            (CommitArguments { file: self.file_handle(file), offset: 0, count: 0 }, self.disk);
        let reply = self.call_core(Procedure::Commit, &asked);
        let made: NfsResult<CommitResult, WeakCacheConsistency> = parse_reply(&reply);
        let Some(file) = self.known_file(file, made.as_ref().map_err(|refusal| refusal.status)) else {
            return;
        };
        if let Ok(CommitResult { verifier, .. }) = made {
            assert!(!file.lost.contains(&verifier), "what was lost is said to be on the disk");
            let is_said = file.unstable == Some(verifier);
            assert!(disk != DiskBehavior::Loses || !is_said, "said to be on the disk, which loses it");
        }
        match disk {
            DiskBehavior::Loses => file.mark_unstable_lost(),
            _ if made.is_ok() => file.unstable = None,
            _ => {}
        }
    }

    fn read(&mut self, file: usize, offset: u64, bytes: u32) {
        let asked = ReadArguments { file: self.file_handle(file), offset, bytes };
        let record = self.encode_call(Procedure::Read, &asked);
        let (core, from) = (self.core, self.client_address());
        let Ok(Answer::Read(call)) = core.answer(&record, from) else { panic!("it is a read") };
        let read = match core.open_for_read(&call) {
            Ok(file) => Ok(read_contents(&file, &call)),
            Err(_) => Err(Status::Stale),
        };
        let Some(file) = self.known_file(file, read.as_ref().map_err(|status| *status)) else { return };
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
        let reply =
            self.call_and_remember(Procedure::Create, &CreateArguments { at: self.root_entry(name), how });
        let made: NfsResult<CreateResult, WeakCacheConsistency> = parse_reply(&reply);
        let Ok(CreateResult { file: Some(handle), .. }) = made else {
            return self.names[name] = NameBinding::Unknown;
        };
        let is_new = self.names[name] == NameBinding::Nothing;
        self.record_file(name, handle, is_new.then(Vec::new));
    }

    fn look_up(&mut self, name: usize) {
        let reply = self.call_core(Procedure::Lookup, &self.root_entry(name));
        let found: NfsResult<LookupResult, Option<Attributes>> = parse_reply(&reply);
        match found {
            Ok(LookupResult { file, .. }) => {
                assert_ne!(self.names[name], NameBinding::Nothing, "a file with no name");
                self.record_file(name, file, None);
            }
            Err(refusal) if refusal.status == Status::NoEntry => {
                assert!(!matches!(self.names[name], NameBinding::File(_)), "it has a name");
                self.names[name] = NameBinding::Nothing;
            }
            Err(_) => {}
        }
    }

    /// Notes the file with a name.
    fn record_file(&mut self, name: usize, handle: FileHandle, content: Option<Vec<u8>>) {
        let found = self.files.iter().position(|file| file.handle == handle);
        let number = found.unwrap_or(self.files.len());
        match self.names[name] {
            NameBinding::File(expected) => assert_eq!(number, expected, "another file"),
            NameBinding::Nothing => assert!(found.is_none(), "a file that has other names"),
            NameBinding::Unknown => {}
        }
        if found.is_none() {
            self.files.push(FileModel { handle, content, unstable: None, lost: Vec::new() });
        }
        self.names[name] = NameBinding::File(number);
    }

    fn remove(&mut self, name: usize) {
        let reply = self.call_and_remember(Procedure::Remove, &self.root_entry(name));
        let made: NfsResult<WeakCacheConsistency, WeakCacheConsistency> = parse_reply(&reply);
        self.names[name] = match made {
            Ok(_) => {
                assert_ne!(self.names[name], NameBinding::Nothing, "there was a name");
                NameBinding::Nothing
            }
            Err(refusal) if refusal.status == Status::NoEntry => {
                assert!(!matches!(self.names[name], NameBinding::File(_)), "it had a name");
                NameBinding::Nothing
            }
            Err(_) => NameBinding::Unknown,
        };
    }

    fn rename(&mut self, from: usize, to: usize) {
        let asked = RenameArguments { from: self.root_entry(from), to: self.root_entry(to) };
        let reply = self.call_and_remember(Procedure::Rename, &asked);
        let made: NfsResult<RenameResult, (WeakCacheConsistency, WeakCacheConsistency)> = parse_reply(&reply);
        match made {
            // Two names of one file stay (rename(2)).
            Ok(_) if self.names[from] == self.names[to] && self.names[from] != NameBinding::Unknown => {}
            Ok(_) => {
                let before = [self.names[from], self.names[to]];
                let is_certain = !before.contains(&NameBinding::Unknown);
                self.names[to] = if is_certain { before[0] } else { NameBinding::Unknown };
                self.names[from] = if is_certain { NameBinding::Nothing } else { NameBinding::Unknown };
            }
            Err(refusal) if refusal.status == Status::NoEntry => {
                assert!(!matches!(self.names[from], NameBinding::File(_)), "it had a name");
            }
            Err(_) => (self.names[from], self.names[to]) = (NameBinding::Unknown, NameBinding::Unknown),
        }
    }

    fn link(&mut self, file: usize, name: usize) {
        let asked = LinkArguments { file: self.file_handle(file), at: self.root_entry(name) };
        let reply = self.call_and_remember(Procedure::Link, &asked);
        let made: NfsResult<LinkResult, (Option<Attributes>, WeakCacheConsistency)> = parse_reply(&reply);
        match made {
            Ok(_) => {
                assert!(!matches!(self.names[name], NameBinding::File(_)), "it had a name");
                assert!(file < self.files.len(), "a forged handle was accepted");
                self.names[name] = NameBinding::File(file);
            }
            Err(refusal) if refusal.status == Status::Exists => {
                assert_ne!(self.names[name], NameBinding::Nothing, "it had no name");
            }
            Err(_) if matches!(self.names[name], NameBinding::File(_)) => {}
            Err(_) => self.names[name] = NameBinding::Unknown,
        }
    }

    fn set_size(&mut self, file: usize, size: u64) {
        let new = NewAttributes { size: Some(size), ..NewAttributes::NONE };
        let asked = SetAttributesArguments { file: self.file_handle(file), new, guard: None };
        let reply = self.call_and_remember(Procedure::SetAttr, &asked);
        let made: NfsResult<WeakCacheConsistency, WeakCacheConsistency> = parse_reply(&reply);
        let Some(file) = self.known_file(file, made.as_ref().map_err(|refusal| refusal.status)) else {
            return;
        };
        match (&made, &mut file.content) {
            (Ok(_), Some(content)) => content.resize(size as usize, 0),
            (Ok(_), None) if size == 0 => file.content = Some(Vec::new()),
            (Ok(_), None) => {}
            (Err(_), content) => *content = None,
        }
    }

    /// A client that repeats its last change gets the same reply, and nothing is done.
    fn repeat_last_change(&mut self) {
        let Some(sent) = &self.last[self.client] else { return };
        let reply = answer_record(self.core, &sent.record, self.client_address());
        assert_eq!(reply, sent.reply, "the reply to a repeated call");
    }

    /// The file, unless nobody made its handle.
    fn known_file<T>(&mut self, file: usize, made: Result<T, Status>) -> Option<&mut FileModel> {
        let file = self.files.get_mut(file);
        assert!(file.is_some() || made.is_err(), "a forged handle was accepted");
        file
    }

    fn client_address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::new(127, 0, 0, 1 + self.client as u8), 1023))
    }

    fn encode_call<'a>(&mut self, procedure: Procedure, asked: &impl Xdr<'a>) -> Vec<u8> {
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
    fn call_core<'a>(&mut self, procedure: Procedure, asked: &impl Xdr<'a>) -> Vec<u8> {
        let record = self.encode_call(procedure, asked);
        self.send_record(&record)
    }

    /// As [`call_core`](Self::call_core); the client may repeat it.
    fn call_and_remember<'a>(&mut self, procedure: Procedure, asked: &impl Xdr<'a>) -> Vec<u8> {
        let record = self.encode_call(procedure, asked);
        let reply = self.send_record(&record);
        self.last[self.client] = Some(SentCall { record, reply: reply.clone() });
        reply
    }

    fn send_record(&self, record: &[u8]) -> Vec<u8> {
        let (core, from, mut reply) = (self.core, self.client_address(), Vec::new());
        (self.with)(self.disk, &mut || reply = answer_record(core, record, from));
        reply
    }
}

impl FileModel {
    /// What was not stable may be lost, however often it is committed from now on.
    fn mark_unstable_lost(&mut self) {
        self.lost.extend(self.unstable.take());
    }
}

fn answer_record(core: &Core, record: &[u8], from: SocketAddr) -> Vec<u8> {
    match core.answer(record, from).expect("it is a call") {
        Answer::Reply(reply) | Answer::Written(reply, _) => reply,
        other => unreachable!("{other:?}"),
    }
}

/// The results in a reply.
fn parse_reply<T: for<'a> Xdr<'a>>(reply: &[u8]) -> T {
    let mut records = RecordAssembler::new(super::REPLY_BYTES_MAX);
    records.push(reply);
    let record = records.take().expect("not too long").expect("all of it");
    let mut input = Reader::new(&record);
    let (_, reply) = Reply::decode(&mut input).expect("a reply");
    assert_eq!(reply, Reply::Success);
    xdr::parse(input.rest()).expect("the results of the procedure")
}

/// The size of a file, and the bytes that a call reads.
fn read_contents(file: &OpenFile, call: &ReadCall) -> (u64, Vec<u8>) {
    let read = || -> io::Result<_> {
        let file = std::fs::File::from(rustix::io::dup(file)?);
        let mut bytes = vec![0; call.bytes];
        let count = file.read_at(&mut bytes, call.offset)?;
        bytes.truncate(count);
        Ok((file.metadata()?.len(), bytes))
    };
    read().expect("a file that is open is read")
}
