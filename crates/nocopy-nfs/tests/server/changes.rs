//! Changes, checked in the directory itself.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

use nocopy_nfs::wire::mount::Text;
use nocopy_nfs::wire::nfs3::{
    self, CommitArguments, CommitResult, CreateArguments, CreateMode, CreateResult, Data, Entry, FileHandle,
    LinkArguments, LinkResult, MakeDirectoryArguments, NewAttributes, NfsResult, Procedure, RenameArguments,
    RenameResult, SetAttributesArguments, SetTime, SizeAndTimes, Stability, Status, SymbolicLinkArguments,
    Time, Verifier, WeakCacheConsistency, WriteArguments, WriteResult,
};
use nocopy_nfs::wire::rpc::Reply;
use nocopy_nfs::wire::xdr::{self, Xdr};

use crate::client::{Client, call_record, encode_xdr};
use crate::scene::{RunningServer, Scene, pattern_bytes};

type ChangeReply<T> = NfsResult<T, WeakCacheConsistency>;

pub(crate) fn serve_writable(scene: &Scene) -> RunningServer {
    scene.serve_with(|settings| settings.is_writable = true)
}

pub(crate) fn directory_entry(directory: FileHandle, name: &str) -> Entry<'_> {
    Entry { directory, name: Text(name.as_bytes()) }
}

/// Makes a call, and returns the result or the status.
fn call_change<'a, T: for<'b> Xdr<'b>>(
    client: &mut Client,
    procedure: Procedure,
    arguments: &impl Xdr<'a>,
) -> Result<T, Status> {
    let reply = client.call_nfs(procedure, arguments);
    xdr::parse::<ChangeReply<T>>(&reply).unwrap().map_err(|refusal| refusal.status)
}

pub(crate) fn create_file(client: &mut Client, at: Entry<'_>, how: CreateMode) -> Result<FileHandle, Status> {
    let made: Result<CreateResult, _> = call_change(client, Procedure::Create, &CreateArguments { at, how });
    made.map(|made| made.file.unwrap())
}

pub(crate) fn make_directory(client: &mut Client, at: Entry<'_>) -> Result<FileHandle, Status> {
    let attributes = NewAttributes { mode: Some(0o750), ..NewAttributes::NONE };
    let made: Result<CreateResult, _> =
        call_change(client, Procedure::MakeDirectory, &MakeDirectoryArguments { at, attributes });
    made.map(|made| made.file.unwrap())
}

pub(crate) fn write_file(
    client: &mut Client,
    file: FileHandle,
    offset: u64,
    data: &[u8],
    stability: Stability,
) -> Result<WriteResult, Status> {
    let count = data.len() as u32;
    call_change(
        client,
        Procedure::Write,
        &WriteArguments { file, offset, count, stability, data: Data(data) },
    )
}

pub(crate) fn remove_entry(client: &mut Client, procedure: Procedure, at: Entry<'_>) -> Result<(), Status> {
    call_change::<WeakCacheConsistency>(client, procedure, &at).map(drop)
}

pub(crate) fn rename_entry(
    client: &mut Client,
    from: Entry<'_>,
    to: Entry<'_>,
) -> Result<RenameResult, Status> {
    let reply = client.call_nfs(Procedure::Rename, &RenameArguments { from, to });
    xdr::parse::<NfsResult<RenameResult, RenameResult>>(&reply).unwrap().map_err(|refusal| refusal.status)
}

pub(crate) fn set_attributes(
    client: &mut Client,
    file: FileHandle,
    new: NewAttributes,
    guard: Option<Time>,
) -> Result<(), Status> {
    call_change::<WeakCacheConsistency>(
        client,
        Procedure::SetAttr,
        &SetAttributesArguments { file, new, guard },
    )
    .map(drop)
}

fn current_size_and_times(client: &mut Client, file: FileHandle) -> SizeAndTimes {
    client.get_attributes(file).unwrap().size_and_times()
}

pub(crate) const FRESH: CreateMode =
    CreateMode::Guarded(NewAttributes { mode: Some(0o640), ..NewAttributes::NONE });

#[test]
fn written_data_is_stored_and_read_back() {
    let scene = Scene::new();
    let server = serve_writable(&scene);
    let mut client = Client::connect(server.address);
    let root = client.mount("/").unwrap().handle;
    let file = create_file(&mut client, directory_entry(root, "run"), FRESH).unwrap();
    assert_eq!(fs::metadata(scene.path("run")).unwrap().permissions().mode() & 0o7777, 0o640);
    let bytes = pattern_bytes(0, (2 << 20) + 12_345);
    let mut verifiers = Vec::new();
    for (number, piece) in bytes.chunks(nfs3::WRITE_BYTES_MAX).enumerate() {
        let before = current_size_and_times(&mut client, file);
        let stability = Stability::ALL[number];
        let offset = (number * nfs3::WRITE_BYTES_MAX) as u64;
        let written = write_file(&mut client, file, offset, piece, stability).unwrap();
        assert_eq!((written.count as usize, written.stability), (piece.len(), stability));
        assert_eq!(written.changed.before, Some(before));
        assert_eq!(
            written.changed.after.unwrap().size_and_times(),
            current_size_and_times(&mut client, file)
        );
        verifiers.push(written.verifier);
    }
    let asked = CommitArguments { file, offset: 0, count: 0 };
    let settled: CommitResult = call_change(&mut client, Procedure::Commit, &asked).unwrap();
    assert!(verifiers.iter().all(|verifier| *verifier == settled.verifier), "of one start of the server");
    assert!(fs::read(scene.path("run")).unwrap() == bytes && client.read_all(file, 1 << 20) == bytes);
    // Beyond the end, with a hole before it; past all ends; and more than the call has.
    write_file(&mut client, file, 5 << 20, b"end", Stability::Unstable).unwrap();
    assert_eq!(fs::metadata(scene.path("run")).unwrap().len(), (5 << 20) + 3);
    let refused = write_file(&mut client, file, u64::MAX - 1, b"end", Stability::Unstable);
    assert_eq!(refused.unwrap_err(), Status::FileTooBig);
    assert_eq!(write_file(&mut client, root, 0, b"x", Stability::Unstable).unwrap_err(), Status::IsDirectory);
    drop(client);
    let counts = server.stop_and_count();
    assert_eq!((counts.writes, counts.written), (4, bytes.len() as u64 + 3));
    let server = serve_writable(&scene);
    let mut client = Client::connect(server.address);
    let written = write_file(&mut client, file, 0, b"x", Stability::Unstable).unwrap();
    assert_ne!(written.verifier, settled.verifier, "another start of the server");
}

#[test]
fn create_modes_differ_for_existing_files() {
    let scene = Scene::new();
    scene.create_file("old", 1000);
    fs::create_dir(scene.path("directory")).unwrap();
    let server = serve_writable(&scene);
    let mut client = Client::connect(server.address);
    let root = client.mount("/").unwrap().handle;
    assert_eq!(create_file(&mut client, directory_entry(root, "old"), FRESH), Err(Status::Exists));
    let keep = CreateMode::Unchecked(NewAttributes::NONE);
    let old = create_file(&mut client, directory_entry(root, "old"), keep).unwrap();
    assert_eq!((old, current_size_and_times(&mut client, old).size), (client.look_up_path("old"), 1000));
    let empty = CreateMode::Unchecked(NewAttributes { size: Some(0), ..NewAttributes::NONE });
    assert_eq!(create_file(&mut client, directory_entry(root, "old"), empty), Ok(old));
    assert_eq!(fs::metadata(scene.path("old")).unwrap().len(), 0);
    assert_eq!(create_file(&mut client, directory_entry(root, "directory"), keep), Err(Status::Exists));
    // The whole verifier decides whether it is the same call.
    let exclusive = |verifier: Verifier| CreateMode::Exclusive(verifier);
    let (one, other) = ([0xff, 1, 2, 3, 4, 5, 6, 7], [0xff, 1, 2, 3, 4, 5, 6, 8]);
    let new = create_file(&mut client, directory_entry(root, "new"), exclusive(one)).unwrap();
    assert_eq!(create_file(&mut client, directory_entry(root, "new"), exclusive(one)), Ok(new));
    for differing in 0..8 {
        let mut other = one;
        other[differing] ^= 1;
        assert_eq!(
            create_file(&mut client, directory_entry(root, "new"), exclusive(other)),
            Err(Status::Exists)
        );
    }
    drop(client);
    drop(server.stop());
    let server = serve_writable(&scene);
    let mut client = Client::connect(server.address);
    assert_eq!(
        create_file(&mut client, directory_entry(root, "new"), exclusive(one)),
        Ok(new),
        "another start of the server"
    );
    assert_eq!(create_file(&mut client, directory_entry(root, "new"), exclusive(other)), Err(Status::Exists));
}

#[test]
fn files_are_linked_renamed_and_removed_and_handles_stay_valid() {
    let scene = Scene::new();
    let server = serve_writable(&scene);
    let mut client = Client::connect(server.address);
    let root = client.mount("/").unwrap().handle;
    let before = current_size_and_times(&mut client, root);
    let directory = make_directory(&mut client, directory_entry(root, "directory")).unwrap();
    assert_eq!(fs::metadata(scene.path("directory")).unwrap().permissions().mode() & 0o7777, 0o750);
    assert_eq!(make_directory(&mut client, directory_entry(root, "directory")), Err(Status::Exists));
    let file = create_file(&mut client, directory_entry(directory, "file"), FRESH).unwrap();
    write_file(&mut client, file, 0, b"content", Stability::FileSync).unwrap();

    let link = LinkArguments { file, at: directory_entry(root, "second") };
    let reply = client.call_nfs(Procedure::Link, &link);
    let linked = xdr::parse::<NfsResult<LinkResult, LinkResult>>(&reply).unwrap().unwrap();
    assert_eq!(
        (linked.attributes.unwrap().links, fs::metadata(scene.path("second")).unwrap().nlink()),
        (2, 2)
    );

    let attributes = NewAttributes::NONE;
    let path = Text(b"directory/file".as_slice());
    let symbolic = SymbolicLinkArguments { at: directory_entry(root, "symbolic"), attributes, path };
    call_change::<CreateResult>(&mut client, Procedure::SymbolicLink, &symbolic).unwrap();
    assert_eq!(fs::read(scene.path("symbolic")).unwrap(), b"content");

    assert_eq!(
        remove_entry(&mut client, Procedure::RemoveDirectory, directory_entry(root, "directory")),
        Err(Status::NotEmpty)
    );
    assert_eq!(
        remove_entry(&mut client, Procedure::RemoveDirectory, directory_entry(root, "second")),
        Err(Status::NotDirectory)
    );
    assert_eq!(
        remove_entry(&mut client, Procedure::Remove, directory_entry(root, "directory")),
        Err(Status::IsDirectory)
    );
    let renamed =
        rename_entry(&mut client, directory_entry(directory, "file"), directory_entry(root, "moved"))
            .unwrap();
    assert_eq!(renamed.to.after.unwrap().size_and_times(), current_size_and_times(&mut client, root));
    assert_eq!(renamed.from.after.unwrap().size_and_times(), current_size_and_times(&mut client, directory));
    assert_eq!(client.read_all(file, 100), b"content", "by the handle that it had");
    remove_entry(&mut client, Procedure::Remove, directory_entry(root, "second")).unwrap();
    remove_entry(&mut client, Procedure::Remove, directory_entry(root, "symbolic")).unwrap();
    remove_entry(&mut client, Procedure::RemoveDirectory, directory_entry(root, "directory")).unwrap();
    assert_eq!(client.get_attributes(directory), Err(Status::Stale));
    let missing = rename_entry(&mut client, directory_entry(root, "directory"), directory_entry(root, "x"));
    assert_eq!(missing.map(drop), Err(Status::NoEntry));
    assert_ne!(current_size_and_times(&mut client, root), before);
    let names: Vec<_> =
        fs::read_dir(scene.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["moved"]);
}

#[test]
fn names_outside_the_directory_are_refused() {
    let scene = Scene::new();
    fs::write(scene.path("../outside"), b"outside").unwrap();
    let server = serve_writable(&scene);
    let mut client = Client::connect(server.address);
    let root = client.mount("/").unwrap().handle;
    let file = create_file(&mut client, directory_entry(root, "file"), FRESH).unwrap();
    let long = "n".repeat(256);
    for (name, status) in [
        ("", Status::Invalid),
        ("../outside", Status::Invalid),
        ("/tmp/outside", Status::Invalid),
        ("a\0b", Status::Invalid),
        (&long, Status::NameTooLong),
    ] {
        assert_eq!(create_file(&mut client, directory_entry(root, name), FRESH), Err(status), "{name:?}");
        assert_eq!(make_directory(&mut client, directory_entry(root, name)), Err(status), "{name:?}");
        assert_eq!(
            remove_entry(&mut client, Procedure::Remove, directory_entry(root, name)),
            Err(status),
            "{name:?}"
        );
        let renamed = rename_entry(&mut client, directory_entry(root, "file"), directory_entry(root, name));
        assert_eq!(renamed.map(drop), Err(status), "{name:?}");
    }
    for name in [".", ".."] {
        assert_eq!(create_file(&mut client, directory_entry(root, name), FRESH), Err(Status::Exists));
        assert_eq!(
            remove_entry(&mut client, Procedure::RemoveDirectory, directory_entry(root, name)),
            Err(Status::Invalid)
        );
        let renamed = rename_entry(&mut client, directory_entry(root, name), directory_entry(root, "x"));
        assert_eq!(renamed.map(drop), Err(Status::Invalid));
    }
    assert_eq!(make_directory(&mut client, directory_entry(file, "below")), Err(Status::NotDirectory));
    // An existing link is not followed.
    std::os::unix::fs::symlink("../outside", scene.path("link")).unwrap();
    let through = CreateMode::Unchecked(NewAttributes { size: Some(0), ..NewAttributes::NONE });
    assert_eq!(create_file(&mut client, directory_entry(root, "link"), through), Err(Status::Exists));
    let link = client.look_up_path("link");
    assert_eq!(write_file(&mut client, link, 0, b"x", Stability::Unstable).unwrap_err(), Status::Invalid);
    let times =
        NewAttributes { modified: SetTime::To(Time { seconds: 5, nanoseconds: 0 }), ..NewAttributes::NONE };
    set_attributes(&mut client, link, times, None).unwrap();
    assert_eq!(fs::symlink_metadata(scene.path("link")).unwrap().mtime(), 5);
    assert_ne!(fs::metadata(scene.path("../outside")).unwrap().mtime(), 5);
    assert_eq!(fs::read(scene.path("../outside")).unwrap(), b"outside");
    assert!(!scene.path("link").metadata().unwrap().file_type().is_fifo());
}

#[test]
fn attributes_are_set_unless_the_guard_differs() {
    let scene = Scene::new();
    scene.create_file("file", 1000);
    let server = serve_writable(&scene);
    let mut client = Client::connect(server.address);
    let file = client.look_up_path("file");
    let at = Time { seconds: 1_000_000_000, nanoseconds: 123_456_789 };
    let new = NewAttributes {
        mode: Some(0o1604),
        size: Some(10),
        modified: SetTime::To(at),
        accessed: SetTime::Now,
        ..NewAttributes::NONE
    };
    let known = current_size_and_times(&mut client, file).changed;
    set_attributes(&mut client, file, new, Some(known)).unwrap();
    let attributes = client.get_attributes(file).unwrap();
    assert_eq!((attributes.mode, attributes.size, attributes.modified), (0o1604, 10, at));
    assert!(attributes.accessed.seconds > at.seconds);
    let longer = NewAttributes { size: Some(20), ..NewAttributes::NONE };
    assert_eq!(set_attributes(&mut client, file, longer, Some(known)), Err(Status::NotSynchronized));
    assert_eq!(current_size_and_times(&mut client, file).size, 10);
    set_attributes(&mut client, file, longer, None).unwrap();
    assert_eq!(fs::metadata(scene.path("file")).unwrap().len(), 20);
}

/// Also by another connection; the reply is the same.
#[test]
fn repeated_calls_are_executed_once() {
    let scene = Scene::new();
    let server = serve_writable(&scene);
    let mut client = Client::connect(server.address);
    let root = client.mount("/").unwrap().handle;
    create_file(&mut client, directory_entry(root, "file"), FRESH).unwrap();
    let attributes = NewAttributes::NONE;
    let calls = [
        (
            Procedure::MakeDirectory,
            encode_xdr(&MakeDirectoryArguments { at: directory_entry(root, "made"), attributes }),
        ),
        (
            Procedure::Rename,
            encode_xdr(&RenameArguments {
                from: directory_entry(root, "made"),
                to: directory_entry(root, "renamed"),
            }),
        ),
        (Procedure::RemoveDirectory, encode_xdr(&directory_entry(root, "renamed"))),
        (Procedure::Remove, encode_xdr(&directory_entry(root, "file"))),
    ];
    for (number, (procedure, arguments)) in calls.into_iter().enumerate() {
        let record = call_record(900 + number as u32, nfs3::PROGRAM, procedure as u32, &arguments);
        let replies = [(); 3].map(|()| {
            let mut client = Client::connect(server.address);
            client.stream.write_all(&record).unwrap();
            client.receive_reply().1.unwrap()
        });
        assert_eq!(replies[0][..4], [0; 4], "{procedure:?}");
        assert!(replies[1] == replies[0] && replies[2] == replies[0], "{procedure:?}");
    }
    assert_eq!(fs::read_dir(scene.path("")).unwrap().count(), 0);
}

pub(crate) fn write_call_record(xid: u32, file: FileHandle, offset: u64, count: u32, data: &[u8]) -> Vec<u8> {
    let stability = Stability::Unstable;
    let arguments = encode_xdr(&WriteArguments { file, offset, count, stability, data: Data(data) });
    call_record(xid, nfs3::PROGRAM, Procedure::Write as u32, &arguments)
}

pub(crate) fn written_count(reply: (u32, Result<Vec<u8>, Reply>)) -> u32 {
    xdr::parse::<ChangeReply<WriteResult>>(&reply.1.unwrap()).unwrap().unwrap().count
}

#[test]
fn writes_are_complete_whatever_pieces_they_arrive_in() {
    let scene = Scene::new();
    let server = serve_writable(&scene);
    let mut client = Client::connect(server.address);
    let root = client.mount("/").unwrap().handle;
    let file = create_file(&mut client, directory_entry(root, "file"), FRESH).unwrap();
    let mut expected = Vec::new();
    // Shorter and longer than the limit for memory of their own; byte by byte, in pieces, and all at once.
    let lengths = [1, 4096, 20_000, 40_001, 300_000, 1 << 20];
    for (number, (length, piece_bytes)) in lengths
        .into_iter()
        .flat_map(|length| [1, 1000, 70_000, 2 << 20].map(|piece| (length, piece)))
        .enumerate()
    {
        if length / piece_bytes > 50_000 {
            continue;
        }
        let (offset, data) = (expected.len(), pattern_bytes(number * 1000, length));
        let record = write_call_record(number as u32, file, offset as u64, length as u32, &data);
        for piece in record.chunks(piece_bytes) {
            client.stream.write_all(piece).unwrap();
        }
        assert_eq!(written_count(client.receive_reply()) as usize, length, "in pieces of {piece_bytes}");
        expected.extend_from_slice(&data);
    }
    // Many together, short and long in turn, with replies in any order.
    let length = |number: u32| if number.is_multiple_of(2) { 5000 } else { 100_000 };
    let mut all = Vec::new();
    for number in 0..40_u32 {
        let data = pattern_bytes(number as usize, length(number));
        all.extend(write_call_record(number, file, expected.len() as u64, data.len() as u32, &data));
        expected.extend_from_slice(&data);
    }
    client.stream.write_all(&all).unwrap();
    let mut answered: Vec<u32> = (0..40)
        .map(|_| {
            let reply = client.receive_reply();
            let number = reply.0;
            assert_eq!(written_count(reply) as usize, length(number));
            number
        })
        .collect();
    answered.sort_unstable();
    assert!(answered.into_iter().eq(0..40));
    assert!(fs::read(scene.path("file")).unwrap() == expected);
    drop(client);
    let counts = server.stop_and_count();
    assert_eq!(counts.written, expected.len() as u64);
    assert!(counts.moved > 0 && counts.moved < counts.written, "{counts:?}");
    assert!(counts.written_by_reference > 0 && counts.written_by_reference < counts.written, "{counts:?}");
}

#[test]
fn a_write_stores_no_more_bytes_than_its_count() {
    let scene = Scene::new();
    scene.create_file("file", 1 << 20);
    let server = serve_writable(&scene);
    let mut client = Client::connect(server.address);
    let file = client.look_up_path("file");
    let mut expected = pattern_bytes(0, 1 << 20);
    // Fewer bytes than the call has, and more.
    for (number, count) in [(1, 30_000), (2, 1), (3, 0)] {
        let data = pattern_bytes(77, 50_000);
        client.stream.write_all(&write_call_record(number, file, 10_000, count, &data)).unwrap();
        assert_eq!(written_count(client.receive_reply()), count);
        expected[10_000..10_000 + count as usize].copy_from_slice(&data[..count as usize]);
    }
    client.stream.write_all(&write_call_record(4, file, 0, 50_001, &pattern_bytes(78, 50_000))).unwrap();
    assert_eq!(client.receive_reply(), (4, Err(Reply::GarbageArguments)));
    assert!(fs::read(scene.path("file")).unwrap() == expected);
    assert!(client.read_all(file, 1 << 20) == expected);
}

/// The server has a new file open; it must not be used once the file was moved or replaced.
#[test]
fn writes_to_new_files_moved_out_or_replaced_are_stale() {
    let scene = Scene::new();
    let server = serve_writable(&scene);
    let mut client = Client::connect(server.address);
    let root = client.mount("/").unwrap().handle;
    let [gone, moved, renamed] = ["gone", "moved", "renamed"]
        .map(|name| create_file(&mut client, directory_entry(root, name), FRESH).unwrap());
    fs::remove_file(scene.path("gone")).unwrap();
    fs::write(scene.path("gone"), b"another").unwrap();
    fs::rename(scene.path("moved"), scene.path("../outside")).unwrap();
    fs::rename(scene.path("renamed"), scene.path("new")).unwrap();
    for file in [gone, moved] {
        assert_eq!(write_file(&mut client, file, 0, b"x", Stability::Unstable).unwrap_err(), Status::Stale);
    }
    write_file(&mut client, renamed, 0, b"content", Stability::Unstable).unwrap();
    assert_eq!(fs::read(scene.path("new")).unwrap(), b"content");
    assert_eq!(client.read_all(renamed, 100), b"content");
    assert_eq!(fs::read(scene.path("gone")).unwrap(), b"another");
    assert_eq!(fs::read(scene.path("../outside")).unwrap(), b"");
}
