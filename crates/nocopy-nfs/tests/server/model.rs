//! Random changes by two clients, some of them sent twice, over connections that are cut and with restarted
//! servers, compared with the same changes of a plain directory.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use nocopy_nfs::wire::mount::Text;
use nocopy_nfs::wire::nfs3::{
    self, CreateArguments, CreateMode, Data, Entry, FileHandle, LinkArguments, MakeDirectoryArguments,
    NewAttributes, Procedure, RenameArguments, SetAttributesArguments, Stability, Status,
    SymbolicLinkArguments, WriteArguments,
};
use nocopy_nfs::wire::xdr::{Xdr, parse};
use rustix::io::Errno;

use crate::client::{Client, call_record, encode_xdr};
use crate::scene::{RunningServer, Scene, pattern_bytes};

const NAMES: u64 = 6;
const STEPS: u32 = 1500;

pub(crate) fn io_error_status(error: &std::io::Error) -> Status {
    match Errno::from_io_error(error).unwrap() {
        Errno::PERM => Status::NotPermitted,
        Errno::ACCESS => Status::Access,
        Errno::NOENT => Status::NoEntry,
        Errno::EXIST => Status::Exists,
        Errno::NOTDIR => Status::NotDirectory,
        Errno::ISDIR => Status::IsDirectory,
        Errno::INVAL => Status::Invalid,
        Errno::NOTEMPTY => Status::NotEmpty,
        other => panic!("{error} ({other})"),
    }
}

pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }

    /// One of a few names, in the root or in one of two directories.
    fn random_path(&mut self) -> (&'static str, String) {
        (["", "left", "right"][self.below(3) as usize], format!("n{}", self.below(NAMES)))
    }
}

struct DirectoryComparison<'a> {
    scene: &'a Scene,
    server: Option<RunningServer>,
    clients: Vec<Client>,
    xid: u32,
    directories: BTreeMap<&'static str, FileHandle>,
    /// How often a call was sent twice, over a new connection.
    twice: u32,
}

impl<'a> DirectoryComparison<'a> {
    fn start(scene: &'a Scene) -> Self {
        let mut both = Self {
            scene,
            server: None,
            clients: Vec::new(),
            xid: 1 << 20,
            directories: BTreeMap::new(),
            twice: 0,
        };
        both.restart_server();
        let client = &mut both.clients[0];
        let root = client.mount("/").unwrap().handle;
        both.directories =
            [("", root), ("left", client.look_up_path("left")), ("right", client.look_up_path("right"))]
                .into();
        both
    }

    fn restart_server(&mut self) {
        self.clients.clear();
        if let Some(server) = self.server.take() {
            drop(server.stop());
        }
        let server = self.scene.serve_with(|settings| settings.is_writable = true);
        self.clients = (0..2).map(|_| Client::connect(server.address)).collect();
        self.server = Some(server);
    }

    fn directory_and_name<'n>(&self, (directory, name): &'n (&'static str, String)) -> Entry<'n> {
        Entry { directory: self.directories[directory], name: Text(name.as_bytes()) }
    }

    fn look_up(&mut self, client: usize, at: &(&'static str, String)) -> Option<FileHandle> {
        let asked = self.directory_and_name(at);
        let reply = self.clients[client].call_nfs(Procedure::Lookup, &asked);
        type LookupReply = nfs3::NfsResult<nfs3::LookupResult, Option<nfs3::Attributes>>;
        parse::<LookupReply>(&reply).unwrap().ok().map(|found| found.file)
    }

    /// The status of a call. If it is sent twice, the first reply is not read.
    fn call_status<'b>(
        &mut self,
        client: usize,
        procedure: Procedure,
        asked: &impl Xdr<'b>,
        is_twice: bool,
    ) -> u32 {
        self.xid += 1;
        let record = call_record(self.xid, nfs3::PROGRAM, procedure as u32, &encode_xdr(asked));
        if is_twice {
            self.twice += 1;
            self.clients[client].stream.write_all(&record).unwrap();
            self.clients[client] = Client::connect(self.server.as_ref().unwrap().address);
        }
        let client = &mut self.clients[client];
        client.stream.write_all(&record).unwrap();
        let (xid, results) = client.receive_reply();
        assert_eq!(xid, self.xid);
        u32::from_be_bytes(results.unwrap()[..4].try_into().unwrap())
    }
}

/// Everything below a directory, with contents and permissions.
fn directory_snapshot(directory: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for below in ["", "left", "right"] {
        for entry in fs::read_dir(directory.join(below)).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let content = if metadata.is_symlink() {
                format!("-> {}", fs::read_link(&path).unwrap().display())
            } else if metadata.is_dir() {
                format!("directory {:o}", metadata.mode() & 0o7777)
            } else {
                let bytes = fs::read(&path).unwrap();
                let sum =
                    bytes.iter().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
                format!(
                    "{:o} {} links, {} bytes, {sum:x}",
                    metadata.mode() & 0o7777,
                    metadata.nlink(),
                    bytes.len()
                )
            };
            found.insert(path.strip_prefix(directory).unwrap().display().to_string(), content);
        }
    }
    found
}

#[test]
fn random_changes_match_a_plain_directory() {
    let scene = Scene::new();
    let plain = tempfile::tempdir().unwrap();
    for directory in ["left", "right"] {
        fs::create_dir(scene.path(directory)).unwrap();
        fs::create_dir(plain.path().join(directory)).unwrap();
    }
    let mut random = Random(26);
    let mut both = DirectoryComparison::start(&scene);
    let (mut done, mut refused) = (BTreeMap::<u32, u32>::new(), 0);
    for step in 0..STEPS {
        if step % 300 == 299 {
            both.restart_server();
        }
        let client = random.below(2) as usize;
        let is_twice = random.below(8) == 0;
        let (at, to) = (random.random_path(), random.random_path());
        let there = |at: &(&str, String)| plain.path().join(at.0).join(&at.1);
        let mode = [0o600, 0o644, 0o750][random.below(3) as usize];
        let new = NewAttributes { mode: Some(mode), ..NewAttributes::NONE };
        let (procedure, status, expected) = match random.below(9) {
            0 => {
                let how = CreateMode::Guarded(new);
                let status = both.call_status(
                    client,
                    Procedure::Create,
                    &CreateArguments { at: both.directory_and_name(&at), how },
                    is_twice,
                );
                let made = fs::File::options().write(true).create_new(true).open(there(&at));
                let made = made.and_then(|file| file.set_permissions(fs::Permissions::from_mode(mode)));
                (Procedure::Create, status, made)
            }
            1 => {
                let asked = MakeDirectoryArguments { at: both.directory_and_name(&at), attributes: new };
                let status = both.call_status(client, Procedure::MakeDirectory, &asked, is_twice);
                let made = fs::create_dir(there(&at))
                    .and_then(|()| fs::set_permissions(there(&at), fs::Permissions::from_mode(mode)));
                (Procedure::MakeDirectory, status, made)
            }
            2 => {
                let (attributes, path) = (NewAttributes::NONE, Text(b"where/ever".as_slice()));
                let asked = SymbolicLinkArguments { at: both.directory_and_name(&at), attributes, path };
                let status = both.call_status(client, Procedure::SymbolicLink, &asked, is_twice);
                (Procedure::SymbolicLink, status, symlink("where/ever", there(&at)))
            }
            3 => {
                let status =
                    both.call_status(client, Procedure::Remove, &both.directory_and_name(&at), is_twice);
                (Procedure::Remove, status, fs::remove_file(there(&at)))
            }
            4 => {
                let status = both.call_status(
                    client,
                    Procedure::RemoveDirectory,
                    &both.directory_and_name(&at),
                    is_twice,
                );
                (Procedure::RemoveDirectory, status, fs::remove_dir(there(&at)))
            }
            5 => {
                let asked =
                    RenameArguments { from: both.directory_and_name(&at), to: both.directory_and_name(&to) };
                let status = both.call_status(client, Procedure::Rename, &asked, is_twice);
                (Procedure::Rename, status, fs::rename(there(&at), there(&to)))
            }
            6 => {
                let Some(file) = both.look_up(client, &at) else { continue };
                if there(&at).symlink_metadata().unwrap().is_dir() {
                    continue; // the kernel says EPERM, which the wire's EISDIR says better
                }
                let status = both.call_status(
                    client,
                    Procedure::Link,
                    &LinkArguments { file, at: both.directory_and_name(&to) },
                    is_twice,
                );
                (Procedure::Link, status, fs::hard_link(there(&at), there(&to)))
            }
            kind => {
                let Some(file) = both.look_up(client, &at) else { continue };
                if !there(&at).symlink_metadata().unwrap().is_file() {
                    continue;
                }
                let bytes = random.below(100_000);
                let opened = fs::File::options().write(true).open(there(&at)).unwrap();
                if kind == 7 {
                    let asked = SetAttributesArguments {
                        file,
                        new: NewAttributes { size: Some(bytes), mode: Some(mode), ..NewAttributes::NONE },
                        guard: None,
                    };
                    let status = both.call_status(client, Procedure::SetAttr, &asked, is_twice);
                    let set = opened.set_len(bytes);
                    let set = set.and_then(|()| opened.set_permissions(fs::Permissions::from_mode(mode)));
                    (Procedure::SetAttr, status, set)
                } else {
                    let (offset, data) =
                        (random.below(50_000), pattern_bytes(random.below(1000) as usize, bytes as usize));
                    let stability = Stability::ALL[random.below(3) as usize];
                    let count = bytes as u32;
                    let asked = WriteArguments { file, offset, count, stability, data: Data(&data) };
                    // A delayed write is executed late.
                    let status = both.call_status(client, Procedure::Write, &asked, false);
                    (Procedure::Write, status, opened.write_all_at(&data, offset))
                }
            }
        };
        let expected = expected.map_or_else(|error| io_error_status(&error) as u32, |()| 0);
        assert_eq!(status, expected, "step {step}: {procedure:?} of {at:?} to {to:?}");
        match status {
            0 => *done.entry(procedure as u32).or_default() += 1,
            _ => refused += 1,
        }
        if step % 50 == 0 {
            assert_eq!(directory_snapshot(&scene.path("")), directory_snapshot(plain.path()), "step {step}");
        }
    }
    assert_eq!(directory_snapshot(&scene.path("")), directory_snapshot(plain.path()));
    assert!(
        done.len() == 9 && done.values().all(|count| *count > 10) && refused > 100 && both.twice > 100,
        "{done:?}"
    );
}
