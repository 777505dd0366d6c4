//! A server that sends what no honest one does: nothing is written outside the destination, and everything
//! ends.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use nocopy_lab::ProgramForAnyUser;
use nocopy_nfs::client::{Client, FilePosition, Url};
use nocopy_nfs::wire::mount::{self, MountReply, MountSuccess};
use nocopy_nfs::wire::nfs3::{
    Attributes, CommitResult, CreateResult, Entry, FileHandle, FileSystemInformation, FileType, LookupResult,
    NfsResult, Procedure, ReadArguments, ReadDirPlusArguments, ReadLinkResult, Refusal, RenameResult,
    Stability, Status, Time, WeakCacheConsistency, WriteHead, WriteResult,
};
use nocopy_nfs::wire::rpc::{Call, Reply};
use nocopy_nfs::wire::xdr::{self, Reader, Xdr};
use nocopy_nfs::wire::{nfs3, record};
use rustix::process::{Signal, geteuid};

use crate::nfs_client::NOBODY;
use crate::running::{RunningNocopy, lossy_text, nocopy_command, piped_command, readable_directory};

/// An entry: its name, its handle, and its type. The content of all files is `content`; a read of the handle
/// `broken` fails, and `long` looks long, but a read behind its first bytes has no reply; the reply to one of
/// `cut` never arrives whole. A handle that begins with `linked` is of a file with two names, whose length is
/// that of the handle; `longest` looks as long as possible. A file that is made has always the handle `made`.
type FakeEntries = Vec<(Vec<u8>, Vec<u8>, FileType)>;

/// The most bytes of a write, as the server announces it: memory and time of a client must not depend on it.
const WRITE_MAX: u32 = 1;

/// Lists a directory, from a cookie on, and says whether the listing ends there.
type ListFunction = dyn Fn(&[u8], u64) -> (FakeEntries, bool) + Send + Sync;

/// Is given each name that is made, before the reply.
type ChangeCallback = dyn Fn(&[u8]) + Send + Sync;

struct FakeServer {
    list: Box<ListFunction>,
    made: Box<ChangeCallback>,
}

fn serve_listing(list: impl Fn(&[u8], u64) -> (FakeEntries, bool) + Send + Sync + 'static) -> String {
    start_fake_server(FakeServer { list: Box::new(list), made: Box::new(|_| {}) })
}

/// Lists nothing.
fn serve_empty_listing(made: impl Fn(&[u8]) + Send + Sync + 'static) -> String {
    start_fake_server(FakeServer { list: Box::new(|_, _| (Vec::new(), true)), made: Box::new(made) })
}

fn start_fake_server(server: FakeServer) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = Arc::new(server);
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let server = Arc::clone(&server);
            std::thread::spawn(move || answer_connection(stream, &server));
        }
    });
    format!("nfs://127.0.0.1:{port}/")
}

/// Answers the calls of a connection until it ends.
fn answer_connection(mut stream: TcpStream, server: &FakeServer) {
    let mut mark = [0; 4];
    while stream.read_exact(&mut mark).is_ok() {
        let mut call = vec![0; (u32::from_be_bytes(mark) & !(1 << 31)) as usize];
        stream.read_exact(&mut call).unwrap();
        let call = Call::parse(&call).unwrap();
        if is_read_of(&call, b"long", 1) {
            continue;
        }
        let mut reply = record::begin();
        Reply::Success.encode(call.xid, &mut reply);
        answer_call(&call, server, &mut reply);
        record::end(&mut reply, 0);
        let is_cut = is_read_of(&call, b"cut", 0);
        let sent = if is_cut { &reply[..reply.len() - 4] } else { &reply };
        if stream.write_all(sent).is_err() || is_cut {
            return;
        }
    }
}

fn is_read_of(call: &Call<'_>, file: &[u8], offset_min: u64) -> bool {
    let is_read = call.program == nfs3::PROGRAM && call.procedure == Procedure::Read as u32;
    let is_it = |asked: ReadArguments| asked.file.as_bytes() == file && asked.offset >= offset_min;
    is_read && xdr::parse(call.arguments).is_ok_and(is_it)
}

fn answer_call(call: &Call<'_>, server: &FakeServer, out: &mut Vec<u8>) {
    let handle = || FileHandle::new(call.arguments.get(4..).map_or(b"", |rest| &rest[..handle_length(call)]));
    match (call.program, Procedure::from_number(call.procedure)) {
        (_, Some(Procedure::Null)) => {}
        (mount::PROGRAM, _) => {
            let mounted = MountSuccess { handle: FileHandle::new(b"top").unwrap(), flavors: vec![1] };
            MountReply::Ok(mounted).encode(out);
        }
        (nfs3::PROGRAM, Some(Procedure::GetAttr)) => {
            NfsResult::<_, ()>::Ok(file_attributes(FileType::Directory)).encode(out);
        }
        (nfs3::PROGRAM, Some(Procedure::FsInfo)) => {
            NfsResult::<_, ()>::Ok(file_system_information()).encode(out)
        }
        (nfs3::PROGRAM, Some(Procedure::ReadDirPlus)) => {
            let arguments: ReadDirPlusArguments = xdr::parse(call.arguments).unwrap();
            let (entries, is_end) = (server.list)(arguments.directory.as_bytes(), arguments.cookie);
            let entry = |(number, (name, handle, file_type)): (usize, &(Vec<u8>, Vec<u8>, FileType))| {
                // As its decoder, but for names that it refuses.
                let mut out = Vec::new();
                (number as u64).encode(&mut out);
                xdr::put_opaque(&mut out, name);
                (arguments.cookie + number as u64 + 1).encode(&mut out);
                let is_linked = handle.starts_with(b"linked");
                let size = match handle.as_slice() {
                    b"long" => 8 << 20,
                    b"longest" => u64::MAX,
                    _ if is_linked => handle.len() as u64,
                    _ => 7,
                };
                let mode = if handle == b"all rights" { 0o6755 } else { 0o755 };
                let links = if is_linked { 2 } else { 1 };
                Some(Attributes { size, mode, links, ..file_attributes(*file_type) }).encode(&mut out);
                FileHandle::new(handle).encode(&mut out);
                out
            };
            0_u32.encode(out);
            (None::<Attributes>, [0_u8; 8]).encode(out);
            for entry in entries.iter().enumerate().map(entry) {
                true.encode(out);
                out.extend(entry);
            }
            (false, is_end).encode(out);
        }
        // A link leads where its handle says.
        (nfs3::PROGRAM, Some(Procedure::ReadLink)) => {
            let target = handle().unwrap();
            let link = ReadLinkResult { attributes: None, path: mount::Text(target.as_bytes()) };
            NfsResult::<_, ()>::Ok(link).encode(out);
        }
        (nfs3::PROGRAM, Some(Procedure::Read)) if handle() == FileHandle::new(b"broken") => {
            let refusal = Refusal { status: Status::Io, rest: None::<Attributes> };
            NfsResult::<(), _>::Err(refusal).encode(out);
        }
        (nfs3::PROGRAM, Some(Procedure::Read)) => {
            (0_u32, None::<Attributes>).encode(out);
            (7_u32, true).encode(out);
            xdr::put_opaque(out, b"content");
        }
        (nfs3::PROGRAM, Some(procedure)) => answer_change(call, procedure, server, out),
        other => panic!("{other:?}"),
    }
}

/// Says that what is asked for was done.
fn answer_change(call: &Call<'_>, procedure: Procedure, server: &FakeServer, out: &mut Vec<u8>) {
    let (file, attributes) = (FileHandle::new(b"made").unwrap(), Some(file_attributes(FileType::Regular)));
    let changed = WeakCacheConsistency::unchanged(None);
    match procedure {
        Procedure::Create | Procedure::MakeDirectory => {
            let at: Entry<'_> = Reader::new(call.arguments).read().unwrap();
            (server.made)(at.name.0);
            NfsResult::<_, ()>::Ok(CreateResult { file: Some(file), attributes, directory: changed })
                .encode(out);
        }
        Procedure::Write => {
            let asked: WriteHead = Reader::new(call.arguments).read().unwrap();
            let (count, stability, verifier) = (asked.count, Stability::Unstable, [7; 8]);
            NfsResult::<_, ()>::Ok(WriteResult { changed, count, stability, verifier }).encode(out);
        }
        Procedure::Commit => {
            NfsResult::<_, ()>::Ok(CommitResult { changed, verifier: [7; 8] }).encode(out);
        }
        Procedure::Lookup => {
            NfsResult::<_, ()>::Ok(LookupResult { file, attributes, directory_attributes: None }).encode(out);
        }
        Procedure::SetAttr | Procedure::Remove => NfsResult::<_, ()>::Ok(changed).encode(out),
        Procedure::Rename => NfsResult::<_, ()>::Ok(RenameResult { from: changed, to: changed }).encode(out),
        other => panic!("{other:?}"),
    }
}

/// Of the handle that the arguments begin with.
fn handle_length(call: &Call<'_>) -> usize {
    u32::from_be_bytes(*call.arguments.first_chunk().unwrap()) as usize
}

fn file_attributes(file_type: FileType) -> Attributes {
    let time = Time { seconds: 1, nanoseconds: 0 };
    Attributes {
        file_type,
        mode: 0o755,
        links: 1,
        user: 0,
        group: 0,
        size: 7,
        used: 7,
        device_major: 0,
        device_minor: 0,
        file_system: 1,
        file_id: 1,
        accessed: time,
        modified: time,
        changed: time,
    }
}

fn file_system_information() -> FileSystemInformation {
    FileSystemInformation {
        attributes: None,
        read_max: 1 << 20,
        read_preferred: 1 << 20,
        read_multiple: 1,
        write_max: WRITE_MAX,
        write_preferred: 1 << 20,
        write_multiple: 1,
        directory_preferred: 1 << 16,
        file_bytes_max: 1 << 40,
        time_step: Time { seconds: 0, nanoseconds: 1 },
        properties: 0,
    }
}

fn directory_entry(name: &[u8], handle: &[u8], file_type: FileType) -> (Vec<u8>, Vec<u8>, FileType) {
    (name.to_vec(), handle.to_vec(), file_type)
}

/// Copies everything below the server's root into a directory, and returns the exit code and what was said.
fn copy_from_server(url: &str, to: &Path) -> (i32, String) {
    let output = nocopy_command(&["cp", "-r", url, to.to_str().unwrap()]).output().unwrap();
    (output.status.code().unwrap(), lossy_text(&output.stderr))
}

/// Files below a directory.
fn count_files(at: &Path) -> usize {
    let entries = fs::read_dir(at).unwrap().map(|entry| entry.unwrap().path());
    // All of them before those below: a deep tree has more directories than may be open.
    let entries: Vec<_> = entries.collect();
    entries.iter().map(|path| if path.is_dir() { count_files(path) } else { 1 }).sum()
}

#[test]
fn endless_directories_are_refused() {
    // Inside itself; and deeper and deeper.
    let inside_itself = serve_listing(|at, _| match at {
        b"top" => (vec![directory_entry(b"inner", b"inner", FileType::Directory)], true),
        _ => {
            let (file, top) = (directory_entry(b"file", b"file", FileType::Regular), b"top");
            (vec![file, directory_entry(b"loop", top, FileType::Directory)], true)
        }
    });
    let deeper = serve_listing(|at, _| {
        let depth = at.strip_prefix(b"down").map_or(0, |depth| u16::from_be_bytes([depth[0], depth[1]]));
        let next = [&b"down"[..], &(depth + 1).to_be_bytes()].concat();
        (
            vec![
                directory_entry(b"file", b"file", FileType::Regular),
                directory_entry(b"down", &next, FileType::Directory),
            ],
            true,
        )
    });
    for (url, expected) in [(inside_itself, 1), (deeper, 256)] {
        let around = tempfile::tempdir().unwrap();
        let (code, message) = copy_from_server(&url, around.path());
        let count = count_files(around.path());
        // The directories above are held: where few descriptors are allowed, they end it sooner.
        let is_cut = count < expected && message.contains("raise the limit of descriptors");
        let is_whole =
            count == expected && message.contains("not copied; the server's directories have no end");
        assert!(code == 1 && (is_whole || is_cut), "{code} {count} {message}");
        remove_deep_tree(around.path());
    }
}

/// The path of the deepest directory is too long for one call.
fn remove_deep_tree(at: &Path) {
    let removed = std::process::Command::new("rm").arg("-rf").arg(at.join("down")).status();
    assert!(removed.unwrap().success());
}

#[test]
fn endless_listings_are_refused() {
    let url = serve_listing(|_, cookie| {
        let names = (0..100).map(|number| format!("{}", cookie + number).into_bytes());
        (names.map(|name| directory_entry(&name, b"file", FileType::Regular)).collect(), false)
    });
    let (mut client, _) = Client::connect(&url.parse::<Url>().unwrap()).unwrap();
    let root = client.root();
    let error = client.list_within(root, 1 << 20).unwrap_err().to_string();
    assert!(error.contains("the directory listing does not end"), "{error}");
}

#[test]
fn long_listings_can_be_interrupted() {
    const INTERRUPTED: u64 = 500;
    const ALL: u64 = 200_000;
    let (reached, is_reached) = mpsc::channel();
    let (interrupted, is_interrupted) = mpsc::channel();
    let (gate, asked) = (Mutex::new((reached, is_interrupted)), Arc::new(AtomicU64::new(0)));
    let last = Arc::clone(&asked);
    let url = serve_listing(move |_, cookie| {
        last.store(cookie, Ordering::Relaxed);
        if cookie == INTERRUPTED {
            let gate = gate.lock().unwrap();
            gate.0.send(()).unwrap();
            gate.1.recv().unwrap();
        }
        let names = (0..100).map(|number| format!("{}", cookie + number).into_bytes());
        (names.map(|name| directory_entry(&name, b"file", FileType::Regular)).collect(), cookie + 100 >= ALL)
    });
    let around = tempfile::tempdir().unwrap();
    let copying = RunningNocopy::start(&["cp", "-r", &url, around.path().to_str().unwrap()]);
    is_reached.recv().unwrap();
    copying.signal(Signal::INT);
    interrupted.send(()).unwrap();
    let output = copying.wait_for_end();
    let asked = asked.load(Ordering::Relaxed);
    assert!(asked < ALL - 100, "{asked}: {}", lossy_text(&output.stderr));
    assert_eq!((output.status.code(), count_files(around.path())), (Some(1), 0));
}

#[test]
fn names_outside_the_directory_are_refused() {
    let name_max = vec![b'x'; 256];
    for name in [&b"../escaped"[..], b"/tmp/escaped", b"", b"a\0b", &name_max] {
        let (around, name_sent) = (tempfile::tempdir().unwrap(), name.to_vec());
        let url =
            serve_listing(move |_, _| (vec![directory_entry(&name_sent, b"file", FileType::Regular)], true));
        let to = around.path().join("to");
        fs::create_dir(&to).unwrap();
        let (code, message) = copy_from_server(&url, &to);
        assert!(code != 0 && count_files(around.path()) == 0, "{name:?}: {code} {message}");
    }
    // These are skipped.
    let around = tempfile::tempdir().unwrap();
    let url = serve_listing(|_, _| {
        let dots = [&b"."[..], b".."].map(|name| directory_entry(name, b"top", FileType::Directory));
        (dots.to_vec(), true)
    });
    assert_eq!(copy_from_server(&url, around.path()), (0, String::new()));
}

/// A link, and then a file and a directory behind it, all by the same name: in one listing, in a later copy,
/// and from another source.
#[test]
fn links_of_the_server_are_not_followed() {
    let around = tempfile::tempdir().unwrap();
    let [to, outside] = ["to", "outside"].map(|name| around.path().join(name));
    fs::create_dir(&to).unwrap();
    fs::create_dir(&outside).unwrap();
    let link = |name: &[u8]| directory_entry(name, b"../outside", FileType::SymbolicLink);
    let behind = |types: &[FileType]| {
        let all: Vec<_> =
            types.iter().map(|file_type| directory_entry(b"name", b"behind", *file_type)).collect();
        move |at: &[u8], first: &[(Vec<u8>, Vec<u8>, FileType)]| match at {
            b"top" => ([first, &*all].concat(), true),
            _ => (vec![directory_entry(b"file", b"file", FileType::Regular)], true),
        }
    };
    let (all, first) = (behind(&[FileType::Regular, FileType::Directory]), [link(b"name")]);
    let url = serve_listing(move |at, _| all(at, &first));
    let (code, message) = copy_from_server(&url, &to);
    assert_eq!((code, message.matches("the server lists this name twice").count()), (1, 2), "{message}");
    assert_eq!(fs::read_link(to.join("name")).unwrap(), Path::new("../outside"));
    // A directory does not take the place of the link, and a file replaces it.
    let directory = behind(&[FileType::Directory]);
    let url = serve_listing(move |at, _| directory(at, &[]));
    let (code, message) = copy_from_server(&url, &to);
    assert!(code == 1 && message.contains("name: cannot be read or written (ENOTDIR)"), "{message}");
    let file = behind(&[FileType::Regular]);
    let url = serve_listing(move |at, _| file(at, &[]));
    assert_eq!(copy_from_server(&url, &to), (0, String::new()));
    assert_eq!(fs::read(to.join("name")).unwrap(), b"content");
    assert_eq!((count_files(&to), count_files(&outside)), (1, 0));
}

/// All of its files have the same number, and so have those of a server behind another port.
#[test]
fn files_of_different_handles_or_servers_are_not_linked() {
    let linked = |name: &[u8], handle: &[u8]| directory_entry(name, handle, FileType::Regular);
    let all = [linked(b"one", b"linked"), linked(b"same", b"linked"), linked(b"long", b"linked, long")];
    let url = serve_listing(move |_, _| (all.to_vec(), true));
    let other = serve_listing(move |_, _| (vec![linked(b"other", b"linked")], true));
    let around = tempfile::tempdir().unwrap();
    let output =
        nocopy_command(&["cp", "-r", &url, &other, around.path().to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", lossy_text(&output.stderr));
    let links = |name: &str| fs::metadata(around.path().join(name)).unwrap().nlink();
    assert_eq!(["one", "same", "long", "other"].map(links), [2, 2, 1, 1]);
}

/// A server decides what is behind a device, and which program runs as its owner.
#[test]
fn copied_devices_are_private_and_programs_lose_set_user_id() {
    let around = tempfile::tempdir().unwrap();
    let url = serve_listing(|_, _| {
        let device = directory_entry(b"device", b"device", FileType::CharacterDevice);
        (vec![device, directory_entry(b"program", b"all rights", FileType::Regular)], true)
    });
    let (code, message) = copy_from_server(&url, around.path());
    assert_eq!((code, message.lines().count()), (1, 2), "{message}");
    assert!(message.contains("/program: copied without set-user-ID and set-group-ID"), "{message}");
    let mode = |name: &str| {
        fs::symlink_metadata(around.path().join(name)).map(|attributes| attributes.mode() & 0o7777)
    };
    assert_eq!(mode("program").unwrap(), 0o755);
    match mode("device") {
        Ok(mode) => {
            assert!(
                mode == 0o600 && message.contains("/device: copied with the permissions 600"),
                "{message}"
            )
        }
        Err(_) => assert!(message.contains("/device: skipped; a device"), "{message}"),
    }
}

/// The directory is the obstacle, not the device.
#[test]
fn unwritable_directories_are_not_reported_as_skipped_devices() {
    let around = readable_directory();
    let url =
        serve_listing(|_, _| (vec![directory_entry(b"device", b"device", FileType::CharacterDevice)], true));
    let for_all = ProgramForAnyUser::copy(Path::new(env!("CARGO_BIN_EXE_nocopy"))).unwrap();
    let mut command = piped_command(for_all.path(), &["cp", "-r", &url, around.path().to_str().unwrap()]);
    if geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    fs::set_permissions(around.path(), fs::Permissions::from_mode(0o555)).unwrap();
    let output = command.output().unwrap();
    let message = lossy_text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    let expected = "/device: cannot be read or written (EACCES); permission denied; check the path";
    assert!(message.contains(expected), "{message}");
}

/// The end of the first file is known while reads behind it are in flight; these are given up, and return
/// with the reads of the next one.
#[test]
fn abandoned_reads_affect_no_other_file() {
    let url = serve_listing(|at, _| match at {
        b"top" => {
            let below = directory_entry(b"below", b"below", FileType::Directory);
            (vec![directory_entry(b"long", b"long", FileType::Regular), below], true)
        }
        _ => (vec![directory_entry(b"file", b"file", FileType::Regular)], true),
    });
    let around = tempfile::tempdir().unwrap();
    let words = ["cp", "-r", "--timeout", "50ms", &url, around.path().to_str().unwrap()];
    let output = nocopy_command(&words).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", lossy_text(&output.stderr));
    for name in ["long", "below/file"] {
        assert_eq!(fs::read(around.path().join(name)).unwrap(), b"content", "{name}");
    }
}

#[test]
fn impossible_lengths_do_not_affect_the_copy() {
    let url = serve_listing(|_, _| {
        let files = [&b"one"[..], b"other"].map(|name| directory_entry(name, b"longest", FileType::Regular));
        (files.to_vec(), true)
    });
    let around = tempfile::tempdir().unwrap();
    assert_eq!(copy_from_server(&url, around.path()), (0, String::new()));
    for name in ["one", "other"] {
        assert_eq!(fs::read(around.path().join(name)).unwrap(), b"content", "{name}");
    }
}

#[test]
fn bytes_of_truncated_replies_are_not_counted() {
    let url = serve_listing(|_, _| (vec![directory_entry(b"file", b"cut", FileType::Regular)], true));
    let around = tempfile::tempdir().unwrap();
    let words = ["cp", "-r", "--json", "--timeout", "50ms", &url, around.path().to_str().unwrap()];
    let output = nocopy_command(&words).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", lossy_text(&output.stderr));
    let copied: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let evidence = ["copied_once_bytes", "copied_twice_bytes"].map(|name| copied["evidence"][name].as_u64());
    assert_eq!(evidence, [Some(0); 2], "{copied}");
}

#[test]
fn files_with_equal_handles_are_errors() {
    let url = serve_empty_listing(|_| {});
    let around = tempfile::tempdir().unwrap();
    let paths = ["one", "other"].map(|name| around.path().join(name).to_str().unwrap().to_owned());
    paths.iter().for_each(|path| fs::write(path, b"content").unwrap());
    let output = nocopy_command(&["cp", &paths[0], &paths[1], &url]).output().unwrap();
    let message = lossy_text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("other: ") && message.contains(".nocopy-part: not copied"), "{message}");
}

/// The server is in league with a user who replaces a directory by a link while it is copied.
#[test]
fn links_created_during_the_copy_are_not_followed() {
    let around = tempfile::tempdir().unwrap();
    let [source, elsewhere] = ["source", "elsewhere"].map(|name| around.path().join(name));
    fs::create_dir_all(source.join("inner")).unwrap();
    fs::create_dir(&elsewhere).unwrap();
    fs::write(source.join("inner/own"), b"content").unwrap();
    fs::write(elsewhere.join("secret"), b"content").unwrap();
    let (made, all) = (Arc::new(Mutex::new(Vec::new())), source.to_str().unwrap().to_owned());
    let names = Arc::clone(&made);
    let url = serve_empty_listing(move |name| {
        if name == b"inner" {
            fs::rename(source.join("inner"), source.join("moved")).unwrap();
            symlink(&elsewhere, source.join("inner")).unwrap();
        }
        names.lock().unwrap().push(String::from_utf8(name.to_vec()).unwrap());
    });
    let output = nocopy_command(&["cp", "-r", &all, &url]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", lossy_text(&output.stderr));
    assert_eq!(*made.lock().unwrap(), ["source", "inner", "own.nocopy-part"]);
}

/// The number of calls of a write, and so its memory, must not depend on what the server announces.
#[test]
fn tiny_announced_write_limits_are_raised() {
    let url = serve_empty_listing(|_| {});
    let (mut client, _) = Client::connect(&url.parse::<Url>().unwrap()).unwrap();
    assert!(client.limits().write_bytes_max >= 1024, "{:?}", client.limits());
    let mut buffer = client.buffer().unwrap();
    buffer.resize(1 << 20);
    let file = FileHandle::new(b"made").unwrap();
    client.write(buffer, FilePosition { file, offset: 0 }).unwrap();
    assert!(client.in_flight() <= 1024, "{}", client.in_flight());
    client.commit(file).unwrap();
}

#[test]
fn names_do_not_control_the_terminal() {
    let name = "\u{1b}]0;title\u{7}\u{9b}31m\u{7f}\r\nnocopy: all is well\ttoo\u{202e}";
    let sent = name.as_bytes().to_vec();
    let url = serve_listing(move |_, _| (vec![directory_entry(&sent, b"broken", FileType::Regular)], true));
    let around = tempfile::tempdir().unwrap();
    let to = around.path().to_str().unwrap();
    for words in [&["ls", &url][..], &["ls", "-l", &url], &["cp", "-r", &url, to]] {
        let output = nocopy_command(words).output().unwrap();
        let printed = lossy_text(&output.stdout) + &lossy_text(&output.stderr);
        assert!(printed.contains("all is well"), "{words:?}: {printed}");
        let controls = printed.replace('\n', "").chars().any(char::is_control);
        let has_own_line = printed.lines().any(|line| line.starts_with("nocopy: all is well"));
        assert!(!controls && !has_own_line, "{words:?}: {printed:?}");
    }
    for (words, expected) in [
        (&["ls", "--json", &url][..], "\\r\\nnocopy: all is well\\ttoo"),
        (&["ls", "--json", &url], "%0D%0Anocopy: all is well%09too%E2%80%AE"),
        (&["cp", "-r", "--json", &url, to], "%0D%0Anocopy: all is well%09too%E2%80%AE"),
    ] {
        let output = nocopy_command(words).output().unwrap();
        let parsed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(parsed.to_string().contains(expected), "{parsed}");
        assert!(!lossy_text(&output.stdout).chars().any(|c| c.is_control() && c != '\n'));
    }
}
