//! The client of the library, against the server of this crate.

mod failures;
mod proxy;
mod waiting;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;

use nocopy::{BufferMut, Cause, Evidence, Pool, Reason};
use nocopy_nfs::client::{Builder, Client, ClientError, FilePosition, Url};
use nocopy_nfs::wire::nfs3::{CreateMode, FileHandle, FileType, NewAttributes, Status};

use crate::scene::{RunningServer, Scene, pattern_bytes};

const FRESH: CreateMode = CreateMode::Guarded(NewAttributes { mode: Some(0o640), ..NewAttributes::NONE });

fn nfs_url(port: u16, path: &str) -> Url {
    format!("nfs://127.0.0.1:{port}{path}").parse().unwrap()
}

fn connect_with_builder(builder: &Builder, port: u16) -> Client {
    let (client, below) = builder.connect(&nfs_url(port, "/")).unwrap();
    assert_eq!(below, Path::new(""));
    client
}

fn connect(server: &RunningServer) -> Client {
    connect_with_builder(&Client::builder(), server.address.port())
}

fn serve_writable(scene: &Scene) -> RunningServer {
    scene.serve_with(|settings| settings.is_writable = true)
}

fn file_handle(client: &mut Client, name: &str) -> FileHandle {
    client.walk(Path::new(name)).unwrap().file
}

fn take_buffer(pool: &Pool, bytes: usize) -> BufferMut {
    let mut buffer = pool.take().expect("a buffer at home");
    buffer.resize(bytes);
    buffer
}

/// Reads a file to its end, with as many buffers posted as the pool has.
fn check_file_content(client: &mut Client, file: FileHandle, pool: &Pool, expected: &[u8]) {
    let step = pool.take().unwrap().capacity();
    let mut offsets = (0..expected.len()).step_by(step);
    let mut left = offsets.len();
    while left > 0 {
        while let Some(buffer) = pool.take() {
            let Some(offset) = offsets.next() else { break };
            client.post(buffer, FilePosition { file, offset: offset as u64 }).unwrap();
        }
        let filled = client.receive().unwrap().expect("buffers are posted");
        let start = filled.place.offset as usize;
        let (buffer, end) = filled.into_result().unwrap();
        assert_eq!(buffer.len(), step.min(expected.len() - start));
        assert!(buffer[..] == expected[start..][..buffer.len()], "from {start} on");
        assert_eq!(end.is_end, start + buffer.len() == expected.len());
        left -= 1;
    }
    assert!(client.receive().unwrap().is_none());
}

/// Writes a file from its start, in pieces of buffers of the pool; a commit gives them back.
fn write_and_commit(client: &mut Client, file: FileHandle, pool: &Pool, content: &[u8]) {
    let step = pool.take().unwrap().capacity();
    for (number, piece) in content.chunks(step).enumerate() {
        let mut buffer = match pool.take() {
            Some(buffer) => buffer,
            None => {
                client.commit(file).unwrap();
                pool.take().expect("committed buffers are home")
            }
        };
        buffer.fill(piece).unwrap();
        client.write(buffer, FilePosition { file, offset: (number * step) as u64 }).unwrap();
        client.try_flush().unwrap();
    }
    client.commit(file).unwrap();
    assert_eq!((client.uncommitted_bytes(), pool.available()), (0, pool.total()));
}

/// Proves that every byte goes from the socket into its posted buffer, by one copy, whatever the number of
/// connections.
#[test]
fn posted_buffers_are_filled_from_the_socket() {
    let scene = Scene::new();
    let bytes = (5 << 20) + 77;
    scene.create_file("file", bytes);
    let content = pattern_bytes(0, bytes);
    let server = scene.serve();
    for connections in [1, 3] {
        let mut client =
            connect_with_builder(&Client::builder().connections(connections), server.address.port());
        let file = file_handle(&mut client, "file");
        check_file_content(&mut client, file, &Pool::new(16, 128 << 10).unwrap(), &content);
        let (ledger, stats) = (client.ledger(), client.stats());
        assert_eq!(ledger.bytes_of(Evidence::Copied(Cause::SocketCall)), bytes as u64, "{ledger}");
        assert!(
            client.explain().to_string().contains("reads of up to 1048576 bytes"),
            "{}",
            client.explain()
        );
        assert_eq!(
            (ledger.bytes(), stats.bytes, stats.get("moved_bytes").unwrap()),
            (bytes as u64, bytes as u64, 0)
        );
        assert_eq!(
            (stats.get("retransmitted_calls").unwrap(), stats.faults, stats.get("connects").unwrap()),
            (0, 0, connections as u64)
        );
    }
    assert_eq!(server.stop_and_count().bytes(), 2 * bytes as u64);
}

#[test]
fn reads_of_any_offset_and_length_match_the_file() {
    let scene = Scene::new();
    let bytes = (3 << 20) + 5;
    scene.create_file("file", bytes);
    let server = scene.serve();
    let pool = Pool::new(1, 2 << 20).unwrap();
    for call_bytes_max in [1 << 20, 10_000] {
        let builder = Client::builder().call_bytes_max(call_bytes_max);
        let mut client = connect_with_builder(&builder, server.address.port());
        let file = file_handle(&mut client, "file");
        for offset in [0, 1, 4095, 1 << 20, bytes - 1000, bytes - 1, bytes, bytes + 9] {
            for length in [1, 3, 4096, 100_001, 2 << 20] {
                let place = FilePosition { file, offset: offset as u64 };
                let (read, end) = client.read(take_buffer(&pool, length), place).unwrap();
                let there = bytes.saturating_sub(offset).min(length);
                assert!(read[..] == pattern_bytes(offset, there), "{length} from {offset} on");
                assert_eq!(end.is_end, offset + there >= bytes);
                assert_eq!(end.attributes.unwrap().size, bytes as u64);
            }
        }
    }
}

/// What a read returns is the file as it was at one moment, while a program of the host appends to it.
#[test]
fn growing_files_are_read_consistently() {
    const BYTES: usize = 4 << 20;
    let scene = Scene::new();
    let file = scene.create_file("file", 0);
    let content = pattern_bytes(0, BYTES);
    let server = scene.serve();
    let mut client = connect(&server);
    let handle = file_handle(&mut client, "file");
    let pool = Pool::new(8, 64 << 10).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for start in (0..BYTES).step_by(10_007) {
                file.write_all_at(&content[start..BYTES.min(start + 10_007)], start as u64).unwrap();
            }
        });
        let mut read = 0;
        while read < BYTES {
            while let Some(buffer) = pool.take() {
                let ahead = (pool.total() - pool.available() - 1) * (64 << 10);
                client.post(buffer, FilePosition { file: handle, offset: (read + ahead) as u64 }).unwrap();
            }
            while let Some(filled) = client.receive().unwrap() {
                let start = filled.place.offset as usize;
                let (buffer, _) = filled.into_result().unwrap();
                assert!(buffer[..] == content[start.min(BYTES)..][..buffer.len()], "from {start} on");
                if start == read {
                    read += buffer.len();
                }
            }
        }
    });
}

#[test]
fn files_are_made_written_listed_renamed_and_removed() {
    let scene = Scene::new();
    symlink("below/absent", scene.path("link")).unwrap();
    let server = serve_writable(&scene);
    let mut client = connect(&server);
    let root = client.root();
    let made =
        client.make_directory(root, b"made", NewAttributes { mode: Some(0o750), ..NewAttributes::NONE });
    let directory = made.unwrap();
    assert!(directory.is_directory() && scene.path("made").is_dir());
    let file = client.create(directory.file, b"file", FRESH).unwrap();
    assert!(file.is_regular() && file.attributes.size == 0);
    let content = pattern_bytes(3, 5_000_000);
    write_and_commit(&mut client, file.file, &Pool::new(4, 300_000).unwrap(), &content);
    assert!(fs::read(scene.path("made/file")).unwrap() == content);
    let again = client.create(directory.file, b"file", FRESH).unwrap_err();
    assert_eq!(again.status(), Some(Status::Exists));
    client.rename((directory.file, b"file"), (root, b"renamed")).unwrap();
    let found = client.look_up(root, b"renamed").unwrap();
    assert_eq!((found.file, found.attributes.size), (file.file, 5_000_000));
    client
        .set_attributes(found.file, NewAttributes { size: Some(7), mode: Some(0o600), ..NewAttributes::NONE })
        .unwrap();
    let metadata = fs::metadata(scene.path("renamed")).unwrap();
    assert_eq!((metadata.len(), metadata.mode() & 0o7777), (7, 0o600));
    let link = client.look_up(root, b"link").unwrap();
    assert_eq!(link.attributes.file_type, FileType::SymbolicLink);
    assert_eq!(client.read_link(link.file).unwrap(), b"below/absent");
    let mut names: Vec<_> = client.list(root).unwrap().into_iter().map(|entry| entry.name).collect();
    names.sort_unstable();
    assert_eq!(names, [&b"link"[..], b"made", b"renamed"]);
    client.remove(root, b"renamed").unwrap();
    client.remove_directory(root, b"made").unwrap();
    client.remove(root, b"link").unwrap();
    assert_eq!(fs::read_dir(scene.path("")).unwrap().count(), 0);
    let absent = client.remove(root, b"renamed").unwrap_err();
    assert!(absent.to_string().contains("renamed: cannot be removed (ENOENT); no such file"), "{absent}");
}

#[test]
fn clients_begin_no_second_commit_of_a_file() {
    let scene = Scene::new();
    let server = serve_writable(&scene);
    scene.create_file("file", 0);
    let (mut client, pool) = (connect(&server), Pool::new(1, 4096).unwrap());
    let file = file_handle(&mut client, "file");
    client.write(take_buffer(&pool, 7), FilePosition { file, offset: 0 }).unwrap();
    let ticket = client.begin_commit(file).unwrap();
    assert_eq!(client.begin_commit(file), None);
    client.commit(file).unwrap();
    assert_eq!(client.uncommitted_bytes(), 0);
    let finished = client.next_finished().unwrap().unwrap();
    assert!(finished.ticket == ticket && finished.outcome.is_ok());
}

#[test]
fn large_directories_are_listed_completely() {
    let scene = Scene::new();
    (0..2500).for_each(|number| drop(scene.create_file(&format!("file-{number}"), number % 7)));
    let server = scene.serve();
    let mut client = connect(&server);
    let root = client.root();
    let entries = client.list(root).unwrap();
    assert_eq!(entries.len(), 2500);
    for entry in entries {
        let name = String::from_utf8(entry.name).unwrap();
        let number: u64 = name.strip_prefix("file-").unwrap().parse().unwrap();
        assert_eq!(entry.info.attributes.size, number % 7);
    }
}

/// A path names a file or a directory in the export; what is mounted lies at its front.
#[test]
fn the_longest_existing_directory_of_a_url_is_mounted() {
    let scene = Scene::new();
    fs::create_dir_all(scene.path("a/b")).unwrap();
    scene.create_file("a/b/file", 10);
    let server = scene.serve();
    let exported = scene.path("").display().to_string();
    for (path, below) in [
        ("a/b/file", "file"),
        ("a/b", ""),
        ("", ""),
        ("a/absent/more", "absent/more"),
        ("/a//b/./file", "file"),
    ] {
        let (_, left) =
            Client::connect(&nfs_url(server.address.port(), &format!("{exported}{path}"))).unwrap();
        assert_eq!(left, Path::new(below), "{path}");
    }
    let (mut client, left) = Client::connect(&nfs_url(server.address.port(), "/a/b/file")).unwrap();
    assert_eq!(left, Path::new("a/b/file"));
    assert_eq!(client.walk(&left).unwrap().attributes.size, 10);
}

#[test]
fn errors_have_subject_cause_and_remedy() {
    let scene = Scene::new();
    fs::create_dir(scene.path("directory")).unwrap();
    scene.create_file("file", 10);
    let server = scene.serve();
    let mut client = connect(&server);
    let root = client.root();
    let absent = client.walk(Path::new("directory/absent")).unwrap_err();
    let said = absent.to_string();
    assert!(["absent", "ENOENT", "'nocopy ls'"].iter().all(|word| said.contains(word)), "{said}");
    let refused = client.create(root, b"new", FRESH).unwrap_err();
    assert!(refused.to_string().contains("--writable"), "{refused}");
    let pool = Pool::new(2, 4096).unwrap();
    let directory = file_handle(&mut client, "directory");
    let read = client.read(pool.take().unwrap(), FilePosition { file: directory, offset: 0 }).unwrap_err();
    assert_eq!(read.status(), Some(Status::IsDirectory));
    assert_eq!(pool.available(), 2);
    // Nothing listens there any more.
    let port = server.address.port();
    server.stop();
    let refused = Client::connect(&nfs_url(port, "/")).unwrap_err();
    assert!(matches!(refused, ClientError::Transport(_)) && refused.to_string().contains("nocopy serve nfs"));
}

#[test]
fn posts_beyond_the_limit_are_rejected() {
    let scene = Scene::new();
    scene.create_file("file", 10);
    let server = scene.serve();
    let mut client = connect(&server);
    let file = file_handle(&mut client, "file");
    let pool = Pool::new(300, 4096).unwrap();
    let mut posted = 0;
    let rejected = loop {
        match client.post(pool.take().unwrap(), FilePosition { file, offset: 0 }) {
            Ok(_) => posted += 1,
            Err(rejected) => break rejected,
        }
    };
    assert!(matches!(rejected.reason, Reason::Full));
    drop(rejected);
    while let Some(filled) = client.receive().unwrap() {
        assert!(filled.into_result().unwrap().0[..] == pattern_bytes(0, 10));
        posted -= 1;
    }
    assert_eq!((posted, pool.available()), (0, 300));
}
