//! Calls as a client writes them, against a directory made for the test.

mod long;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;

use nocopy_lab::refused::{Refused, with_refused_calls};

use super::reply_cache::{CacheLookup, ClientKey};
use super::*;
use crate::wire::mount::{ExportEntry, MountEntry, MountReply, MountSuccess, Text};
use crate::wire::nfs3::{
    AccessArguments, AccessResult, DirectoryEntry, DirectoryPage, Entry, FileHandle, FileSystemInformation,
    FileSystemStatus, FileType, FullDirectoryEntry, LookupArguments, LookupResult, NewAttributes,
    PathConfiguration, Procedure, ReadArguments, ReadDirArguments, ReadDirPlusArguments, ReadLinkResult,
    Refusal, Status, WeakCacheConsistency,
};
use crate::wire::record::RecordAssembler;
use crate::wire::rpc::Credential;
use crate::wire::xdr;

const CLIENT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1023);

struct Scene {
    around: tempfile::TempDir,
    core: Core,
}

fn reply_results(reply: &[u8]) -> Result<Vec<u8>, Reply> {
    let mut records = RecordAssembler::new(1 << 20);
    records.push(reply);
    let record = records.take().unwrap().expect("a whole record").to_vec();
    assert_eq!(records.buffered_bytes(), 0, "one record");
    let mut input = Reader::new(&record);
    match Reply::decode(&mut input).unwrap() {
        (7, Reply::Success) => Ok(input.rest().to_vec()),
        (7, other) => Err(other),
        (xid, _) => panic!("the reply to {xid}"),
    }
}

impl Scene {
    fn new() -> Self {
        let around = tempfile::tempdir().unwrap();
        let exported = around.path().join("exported");
        fs::create_dir_all(exported.join("below")).unwrap();
        fs::write(exported.join("file"), b"content").unwrap();
        fs::set_permissions(exported.join("file"), fs::Permissions::from_mode(0o640)).unwrap();
        symlink("below/absent", exported.join("link")).unwrap();
        let export = Export::open(&exported, Some(&around.path().join("state"))).unwrap();
        let core = Core::new(Arc::new(export), vec!["10.0.0.0/8".into()], 2049);
        Self { around, core }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.around.path().join("exported").join(below)
    }

    fn answer_call(&self, call: &Call<'_>) -> Vec<u8> {
        let mut record = Vec::new();
        call.encode(&mut record);
        match self.core.answer(&record, CLIENT).unwrap() {
            Answer::Reply(reply) | Answer::Written(reply, _) => reply,
            Answer::List(call) => self.core.answer_list(&call),
            other => panic!("no reply at once: {other:?}"),
        }
    }

    fn call_program(&self, program: u32, procedure: u32, arguments: &[u8]) -> Result<Vec<u8>, Reply> {
        let credential = Credential::NONE;
        reply_results(&self.answer_call(&Call {
            xid: 7,
            program,
            version: 3,
            procedure,
            credential,
            arguments,
        }))
    }

    fn call_nfs<'a>(&self, procedure: Procedure, arguments: &impl Xdr<'a>) -> Vec<u8> {
        let mut bytes = Vec::new();
        arguments.encode(&mut bytes);
        self.call_program(nfs3::PROGRAM, procedure as u32, &bytes).unwrap()
    }

    fn mount(&self, path: &str) -> MountReply {
        let mut bytes = Vec::new();
        mount::Path::encode(&Text(path.as_bytes()), &mut bytes);
        xdr::parse(&self.call_program(mount::PROGRAM, 1, &bytes).unwrap()).unwrap()
    }

    fn root_handle(&self) -> FileHandle {
        self.mount("/").unwrap().handle
    }

    fn look_up(&self, directory: FileHandle, name: &str) -> NfsResult<LookupResult, Option<Attributes>> {
        let asked = LookupArguments { directory, name: Text(name.as_bytes()) };
        xdr::parse(&self.call_nfs(Procedure::Lookup, &asked)).unwrap()
    }

    fn file_handle(&self, name: &str) -> FileHandle {
        self.look_up(self.root_handle(), name).unwrap().file
    }

    fn get_attributes(&self, handle: FileHandle) -> NfsResult<Attributes, ()> {
        xdr::parse(&self.call_nfs(Procedure::GetAttr, &handle)).unwrap()
    }
}

#[test]
fn only_paths_in_the_export_are_mounted() {
    let scene = Scene::new();
    let root = scene.root_handle();
    let (exported, below) = (scene.path(""), scene.path("below"));
    assert_eq!(scene.mount(exported.to_str().unwrap()).unwrap().handle, root);
    let MountSuccess { handle, flavors } = scene.mount(below.to_str().unwrap()).unwrap();
    assert_eq!((handle, flavors), (scene.file_handle("below"), vec![AUTH_SYS, AUTH_NONE]));
    let (file, above) = (scene.path("file"), scene.path("below/.."));
    for (path, status) in [
        ("/etc", mount::Status::NoEntry),
        ("", mount::Status::NoEntry),
        (above.to_str().unwrap(), mount::Status::NoEntry),
        (scene.around.path().to_str().unwrap(), mount::Status::NoEntry),
        (file.to_str().unwrap(), mount::Status::NotDirectory),
    ] {
        assert_eq!(scene.mount(path), Err(status), "{path}");
    }
    let listed = scene.call_program(mount::PROGRAM, 2, &[]).unwrap();
    let listed: Vec<MountEntry<'_>> = xdr::parse(&listed).unwrap();
    assert_eq!(listed.len(), 3);
    assert_eq!(listed[0], MountEntry { client: Text(b"127.0.0.1"), path: Text(b"/") });
    let exports = scene.call_program(mount::PROGRAM, 5, &[]).unwrap();
    let exports: Vec<ExportEntry<'_>> = xdr::parse(&exports).unwrap();
    assert_eq!(exports[0].groups, [Text(&b"10.0.0.0/8"[..])]);
    scene.call_program(mount::PROGRAM, 4, &[]).unwrap();
    assert_eq!(scene.call_program(mount::PROGRAM, 2, &[]).unwrap(), [0; 4]);
}

#[test]
fn attributes_match_the_file() {
    let scene = Scene::new();
    for (name, file_type) in
        [("file", FileType::Regular), ("below", FileType::Directory), ("link", FileType::SymbolicLink)]
    {
        let found = scene.look_up(scene.root_handle(), name).unwrap();
        let attributes = scene.get_attributes(found.file).unwrap();
        assert_eq!(found.attributes, Some(attributes));
        assert_eq!(found.directory_attributes, Some(scene.get_attributes(scene.root_handle()).unwrap()));
        let metadata = fs::symlink_metadata(scene.path(name)).unwrap();
        assert_eq!((attributes.file_type, attributes.mode), (file_type, metadata.mode() & 0o7777));
        assert_eq!((attributes.size, attributes.file_id), (metadata.size(), metadata.ino()));
        assert_eq!(u64::from(attributes.links), metadata.nlink());
        assert_eq!((attributes.user, attributes.group), (metadata.uid(), metadata.gid()));
        let time = attributes.modified;
        assert_eq!(
            (i64::from(time.seconds), i64::from(time.nanoseconds)),
            (metadata.mtime(), metadata.mtime_nsec())
        );
    }
    let absent = scene.look_up(scene.root_handle(), "absent").unwrap_err();
    assert_eq!((absent.status, absent.rest.is_some()), (Status::NoEntry, true));
    let forged = FileHandle::new(&[7; 40]).unwrap();
    assert_eq!(scene.get_attributes(forged), Err(Refusal { status: Status::BadHandle, rest: () }));
}

#[test]
fn access_of_a_read_only_export_includes_no_change_rights() {
    let scene = Scene::new();
    let access = |name: &str, access: u32| {
        let asked = AccessArguments { file: scene.file_handle(name), access };
        let reply = scene.call_nfs(Procedure::Access, &asked);
        xdr::parse::<NfsResult<AccessResult, Option<Attributes>>>(&reply).unwrap().unwrap().access
    };
    let all = AccessArguments::READ
        | AccessArguments::LOOKUP
        | AccessArguments::MODIFY
        | AccessArguments::EXTEND
        | AccessArguments::DELETE
        | AccessArguments::EXECUTE;
    assert_eq!(access("file", all), AccessArguments::READ);
    assert_eq!(access("file", AccessArguments::MODIFY), 0);
    assert_eq!(access("below", all), AccessArguments::READ | AccessArguments::LOOKUP);
    fs::set_permissions(scene.path("file"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(access("file", all), AccessArguments::READ | AccessArguments::EXECUTE);
}

#[test]
fn link_targets_and_file_system_limits_are_reported() {
    let scene = Scene::new();
    let reply = scene.call_nfs(Procedure::ReadLink, &scene.file_handle("link"));
    let link = xdr::parse::<NfsResult<ReadLinkResult<'_>, Option<Attributes>>>(&reply).unwrap().unwrap();
    assert_eq!(link.path, Text(&b"below/absent"[..]));
    let reply = scene.call_nfs(Procedure::ReadLink, &scene.file_handle("file"));
    let refused = xdr::parse::<NfsResult<ReadLinkResult<'_>, Option<Attributes>>>(&reply).unwrap();
    assert_eq!(refused.unwrap_err().status, Status::Invalid);
    let reply = scene.call_nfs(Procedure::FsStat, &scene.root_handle());
    let status = xdr::parse::<NfsResult<FileSystemStatus, Option<Attributes>>>(&reply).unwrap().unwrap();
    assert!(status.bytes >= status.bytes_free && status.bytes_free >= status.bytes_available);
    let reply = scene.call_nfs(Procedure::FsInfo, &scene.root_handle());
    let metadata =
        xdr::parse::<NfsResult<FileSystemInformation, Option<Attributes>>>(&reply).unwrap().unwrap();
    assert_eq!(metadata.read_max, READ_BYTES_MAX);
    let reply = scene.call_nfs(Procedure::PathConf, &scene.root_handle());
    let paths = xdr::parse::<NfsResult<PathConfiguration, Option<Attributes>>>(&reply).unwrap().unwrap();
    assert_eq!(paths.name_bytes_max, 255);
}

#[test]
fn read_calls_are_parsed_or_refused_by_file_type() {
    let scene = Scene::new();
    let read = |file, bytes| {
        let mut record = Vec::new();
        let mut arguments = Vec::new();
        ReadArguments { file, offset: 3, bytes }.encode(&mut arguments);
        let call = Call {
            xid: 7,
            program: nfs3::PROGRAM,
            version: 3,
            procedure: Procedure::Read as u32,
            credential: Credential::NONE,
            arguments: &arguments,
        };
        call.encode(&mut record);
        scene.core.answer(&record, CLIENT).unwrap()
    };
    let Answer::Read(call) = read(scene.file_handle("file"), u32::MAX) else { panic!("refused") };
    assert_eq!(
        scene.core.open_for_read(&call).unwrap().attributes().ok(),
        scene.get_attributes(call.file).ok()
    );
    assert_eq!((call.xid, call.offset, call.bytes), (7, 3, READ_BYTES_MAX as usize));
    for (name, status) in [("below", Status::IsDirectory), ("link", Status::Invalid)] {
        let Answer::Read(call) = read(scene.file_handle(name), 1) else { panic!("no read") };
        let reply = scene.core.open_for_read(&call).unwrap_err();
        let refused =
            xdr::parse::<NfsResult<ReadHead, Option<Attributes>>>(&reply_results(&reply).unwrap()).unwrap();
        assert_eq!(refused.unwrap_err().status, status);
    }
    // The announced length includes the following bytes.
    let attributes = scene.get_attributes(scene.file_handle("file")).unwrap();
    let head = encode_read_reply(7, Ok((attributes, 5, true)));
    let reply = [&head[..], b"bytes\0\0\0"].concat();
    let results = reply_results(&reply).unwrap();
    let mut input = Reader::new(&results);
    let read = input.read::<NfsResult<ReadHead, Option<Attributes>>>().unwrap().unwrap();
    assert_eq!((read.count, read.is_end, input.rest()), (5, true, &b"bytes\0\0\0"[..]));
    assert_eq!(head.len(), 132, "what goes before the bytes");
}

/// The thread that executes a call may wait for a disk; the ones that find it repeated do not.
#[test]
fn repeating_a_running_call_blocks_no_thread() {
    let mut scene = Scene::new();
    scene.core.is_writable = true;
    let at = Entry { directory: scene.root_handle(), name: Text(b"made") };
    let mut arguments = Vec::new();
    (at, NewAttributes::NONE).encode(&mut arguments);
    let (program, procedure, credential) = (nfs3::PROGRAM, Procedure::MakeDirectory, Credential::NONE);
    let procedure_number = procedure as u32;
    let call =
        Call { xid: 7, program, version: 3, procedure: procedure_number, credential, arguments: &arguments };
    let mut record = Vec::new();
    call.encode(&mut record);
    let connection_id = |connection| ConnectionId { event_loop: 1, number: connection };
    let repeat =
        |connection| scene.core.answer_on_connection(&record, CLIENT, connection_id(connection)).unwrap();
    // A thread that executes it.
    let asked = (procedure, &Caller::Server, &[][..] as &[u8], &arguments[..]);
    let CacheLookup::New(key) = scene.core.reply_cache.begin_call(
        ClientKey::for_trusted_port(CLIENT.ip()),
        7,
        asked,
        connection_id(1),
    ) else {
        panic!("it is new")
    };
    assert!(matches!(repeat(2), Answer::InProgress { superseded: None }));
    assert!(matches!(repeat(3), Answer::InProgress { superseded: Some(other) } if other == connection_id(2)));
    assert!(!scene.path("made").exists());
    assert_eq!(
        scene.core.reply_cache.finish_call(ClientKey::for_trusted_port(CLIENT.ip()), key, &Ok(vec![1])),
        Some(connection_id(3))
    );
    assert!(matches!(repeat(4), Answer::Reply(reply) if reply == [1]));
}

/// The reply to a call of a client's mount stays, whatever another program of that host does.
#[test]
fn untrusted_calls_evict_no_replies_of_trusted_ones() {
    let mut scene = Scene::new();
    scene.core.is_writable = true;
    scene.core.callers = CallerMapping::Users { is_root_trusted: false, is_any_port_trusted: false };
    let mut arguments = Vec::new();
    // Refused, with attributes.
    (Entry { directory: scene.root_handle(), name: Text(b"made") }, 0_u32).encode(&mut arguments);
    let answer = |xid, client| {
        let (program, procedure) = (nfs3::PROGRAM, Procedure::MakeNode as u32);
        let credential = Credential::NONE;
        let mut record = Vec::new();
        Call { xid, program, version: 3, procedure, credential, arguments: &arguments }.encode(&mut record);
        match scene.core.answer(&record, client).unwrap() {
            Answer::Reply(reply) => reply,
            other => panic!("{other:?}"),
        }
    };
    let first = answer(7, CLIENT);
    (100..1000).for_each(|xid| drop(answer(xid, SocketAddr::new(CLIENT.ip(), 1024))));
    // Executed again, the call would return other attributes.
    fs::set_permissions(scene.path(""), fs::Permissions::from_mode(0o711)).unwrap();
    assert_eq!(answer(7, CLIENT), first);
    assert_ne!(answer(8, CLIENT)[8..], first[8..]);
}

/// Every call that would change something is refused, with attributes from before and after.
#[test]
fn changes_of_read_only_exports_are_refused() {
    let scene = Scene::new();
    let (root, file) = (scene.root_handle(), scene.file_handle("file"));
    let unchanged = |handle| WeakCacheConsistency::unchanged(Some(scene.get_attributes(handle).unwrap()));
    for procedure in [
        Procedure::SetAttr,
        Procedure::Write,
        Procedure::Create,
        Procedure::MakeDirectory,
        Procedure::SymbolicLink,
        Procedure::MakeNode,
        Procedure::Remove,
        Procedure::RemoveDirectory,
        Procedure::Commit,
    ] {
        let reply = scene.call_nfs(procedure, &(file, 0_u64));
        let refused = xdr::parse::<NfsResult<(), WeakCacheConsistency>>(&reply).unwrap();
        let expected = Refusal { status: Status::ReadOnlyFileSystem, rest: unchanged(file) };
        assert_eq!(refused, Err(expected), "{procedure:?}");
    }
    let named = |directory| LookupArguments { directory, name: Text(b"name") };
    let reply = scene.call_nfs(Procedure::Rename, &(named(root), named(file)));
    let refused = xdr::parse::<NfsResult<(), (WeakCacheConsistency, WeakCacheConsistency)>>(&reply).unwrap();
    assert_eq!(refused.unwrap_err().rest, (unchanged(root), unchanged(file)));
    let reply = scene.call_nfs(Procedure::Link, &(file, named(root)));
    let refused = xdr::parse::<NfsResult<(), (Option<Attributes>, WeakCacheConsistency)>>(&reply).unwrap();
    let expected = (unchanged(file).after, unchanged(root));
    assert_eq!(refused, Err(Refusal { status: Status::ReadOnlyFileSystem, rest: expected }));
    let forged = FileHandle::new(&[7; 40]).unwrap();
    let reply = scene.call_nfs(Procedure::Write, &(forged, 0_u64));
    let refused = xdr::parse::<NfsResult<(), WeakCacheConsistency>>(&reply).unwrap().unwrap_err();
    assert_eq!((refused.status, refused.rest), (Status::BadHandle, WeakCacheConsistency::unchanged(None)));
    assert_eq!(fs::read(scene.path("file")).unwrap(), b"content");
}

/// With every requested length, parts are no longer than that, and together are the whole directory.
#[test]
fn directory_pages_form_the_complete_listing() {
    let scene = Scene::new();
    for number in 0..40 {
        fs::write(scene.path(&format!("below/{}", "x".repeat(number + 1))), []).unwrap();
    }
    let directory = scene.file_handle("below");
    for bytes_max in [320_u32, 512, 1000, 65_536, u32::MAX] {
        let (mut cookie, mut names, mut full) = (0, Vec::new(), Vec::new());
        loop {
            let asked = ReadDirArguments { directory, cookie, verifier: [0; 8], bytes_max };
            let reply = scene.call_nfs(Procedure::ReadDir, &asked);
            assert!(reply.len() <= bytes_max as usize + 4, "the status is beside it");
            let page = xdr::parse::<NfsResult<DirectoryPage<DirectoryEntry<'_>>, Option<Attributes>>>(&reply);
            let page = page.unwrap().unwrap();
            names.extend(page.entries.iter().map(|entry| entry.name.0.to_vec()));
            let Some(last) = page.entries.last().filter(|_| !page.is_end) else { break };
            cookie = last.cookie;
        }
        cookie = 0;
        loop {
            let asked = ReadDirPlusArguments {
                directory,
                cookie,
                verifier: [0; 8],
                names_bytes_max: bytes_max / 4,
                bytes_max,
            };
            let reply = scene.call_nfs(Procedure::ReadDirPlus, &asked);
            assert!(reply.len() <= bytes_max as usize + 4);
            let page =
                xdr::parse::<NfsResult<DirectoryPage<FullDirectoryEntry<'_>>, Option<Attributes>>>(&reply);
            let page = page.unwrap().unwrap();
            for entry in &page.entries {
                let file = entry.file.expect("nothing was removed");
                assert_eq!(entry.attributes, scene.get_attributes(file).ok());
                full.push(entry.name.0.to_vec());
            }
            let Some(last) = page.entries.last().filter(|_| !page.is_end) else { break };
            cookie = last.cookie;
        }
        assert_eq!(names, full);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 42);
    }
    let asked = ReadDirArguments { directory, cookie: 0, verifier: [0; 8], bytes_max: 100 };
    let reply = scene.call_nfs(Procedure::ReadDir, &asked);
    let refused = xdr::parse::<NfsResult<(), Option<Attributes>>>(&reply).unwrap().unwrap_err();
    assert_eq!(refused.status, Status::TooSmall);
}

#[test]
fn unsupported_calls_get_the_matching_rpc_error() {
    let scene = Scene::new();
    assert_eq!(scene.call_program(99, 0, &[]), Err(Reply::ProgramUnavailable));
    assert_eq!(scene.call_program(portmap::PROGRAM, 0, &[]), Err(Reply::ProgramMismatch { low: 2, high: 2 }));
    assert_eq!(scene.call_program(nfs3::PROGRAM, 22, &[]), Err(Reply::ProcedureUnavailable));
    assert_eq!(scene.call_program(mount::PROGRAM, 6, &[]), Err(Reply::ProcedureUnavailable));
    for arguments in [&[][..], &[0, 0, 0, 99], &[0, 0, 0, 0, 0]] {
        let refused = scene.call_program(nfs3::PROGRAM, Procedure::GetAttr as u32, arguments);
        assert_eq!(refused, Err(Reply::GarbageArguments));
    }
    let call = Call {
        xid: 7,
        program: nfs3::PROGRAM,
        version: 3,
        procedure: 1,
        credential: Credential { flavor: 6, body: &[] },
        arguments: &[],
    };
    assert_eq!(reply_results(&scene.answer_call(&call)), Err(Reply::Denied(AuthError::TooWeak)));
    let null = Call { procedure: 0, ..call };
    assert_eq!(reply_results(&scene.answer_call(&null)), Ok(Vec::new()));
    assert!(scene.core.answer(&[1; 12], CLIENT).is_err());
    let mapping = |program, version| {
        let mut bytes = Vec::new();
        portmap::Mapping { program, version, protocol: portmap::TCP, port: 0 }.encode(&mut bytes);
        let call = Call {
            xid: 7,
            program: portmap::PROGRAM,
            version: 2,
            procedure: 3,
            credential: Credential::NONE,
            arguments: &bytes,
        };
        xdr::parse::<u32>(&reply_results(&scene.answer_call(&call)).unwrap()).unwrap()
    };
    assert_eq!(
        [mapping(nfs3::PROGRAM, 3), mapping(mount::PROGRAM, 3), mapping(nfs3::PROGRAM, 4)],
        [2049, 2049, 0]
    );
}

proptest::proptest! {
    #[test]
    fn any_call_is_answered_by_one_record(input in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
        thread_local!(static SCENE: Scene = Scene::new());
        SCENE.with(|scene| oracle::check_server_core(&scene.core, &input));
    }

    #[test]
    fn reads_return_written_data_and_lost_writes_change_the_verifier(
        input in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300),
    ) {
        let around = tempfile::tempdir().unwrap();
        let exported = around.path().join("exported");
        fs::create_dir(&exported).unwrap();
        let export = Export::open(&exported, Some(&around.path().join("state"))).unwrap();
        let core = Core::new(Arc::new(export), Vec::new(), 2049).writable(true);
        oracle::clients::run_clients(&core, &input, &|disk, work| {
            let calls = disk.failing_system_calls();
            let refused: Vec<Refused> =
                calls.iter().map(|(call, errno)| Refused::always(*call, *errno)).collect();
            with_refused_calls(&refused, work);
        });
    }
}
