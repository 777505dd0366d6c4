//! Reads of every length and place, while files grow, shrink, change and are removed.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;

use nocopy_nfs::server::CopyCause;
use nocopy_nfs::wire::nfs3::{self, Procedure, ReadArguments, Status};

use crate::client::{call_record, encode_xdr, parse_read_reply};
use crate::scene::{Scene, pattern_bytes};

/// By reference or not, what arrives is what the file has, and the ledger says how it was sent.
#[test]
fn reads_of_every_offset_and_length_match_the_file() {
    let scene = Scene::new();
    let bytes = (3 << 20) + 77;
    scene.create_file("file", bytes);
    for is_stable in [false, true] {
        let server = scene.serve_with(|settings| settings.is_stable = is_stable);
        let mut client = server.connect();
        let file = client.look_up_path("file");
        let (mut copied, mut total, mut reads) = (0, 0, 0);
        for offset in [0, 1, 4095, 4096, 1 << 20, bytes - 70_000, bytes - 1, bytes, bytes + 5] {
            for length in [0, 1, 2, 3, 4, 4096, 8192, 8193, 65_536, 100_001, 1 << 20, 2 << 20] {
                let read = client.read(file, offset as u64, length).unwrap();
                let there = bytes.saturating_sub(offset).min(length as usize).min(1 << 20);
                assert_eq!(read.bytes, pattern_bytes(offset, read.bytes.len()), "{offset} {length}");
                // A read that does not begin at a page boundary may not fit into a pipe by its offset in the
                // page.
                let least =
                    if is_stable || length < 1 << 20 { there } else { there.min((1 << 20) - offset % 4096) };
                assert!(
                    (least..=there).contains(&read.bytes.len()),
                    "{offset} {length}: {}",
                    read.bytes.len()
                );
                assert_eq!(read.is_end, offset + read.bytes.len() >= bytes);
                assert_eq!(read.attributes.size, bytes as u64);
                total += read.bytes.len() as u64;
                copied += if length <= 8192 { read.bytes.len() as u64 } else { 0 };
                reads += u64::from(!read.bytes.is_empty());
            }
        }
        let counts = server.stop_and_count();
        assert_eq!(counts.bytes(), total);
        let by = |cause: CopyCause| counts.copied[cause as usize];
        match is_stable {
            true => assert_eq!((by(CopyCause::Stable), counts.spliced), (total, 0)),
            false => assert_eq!((by(CopyCause::Small), counts.spliced), (copied, total - copied)),
        }
        assert!(counts.reads >= reads && counts.connections == 1);
    }
}

/// Steps from a fixed seed, each compared with the directory: by reference, copied, and with several files.
#[test]
fn reads_match_the_file_after_every_change() {
    const FILES: u64 = 4;
    let scene = Scene::new();
    let server = scene.serve();
    let mut client = server.connect();
    let name = |number: u64| format!("file-{number}");
    (0..FILES).for_each(|number| drop(scene.create_file(&name(number), 0)));
    let mut state = 25_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let (mut ends, mut middles, mut empty) = (0, 0, 0);
    for _ in 0..600 {
        let path = scene.path(&name(random(FILES)));
        let file = fs::File::options().write(true).open(&path).unwrap();
        match random(4) {
            0 => file.set_len(random(300_000)).unwrap(),
            1 => file.set_len(fs::metadata(&path).unwrap().len() / 2).unwrap(),
            2 => file
                .write_all_at(&pattern_bytes(random(1000) as usize, random(90_000) as usize), random(200_000))
                .unwrap(),
            _ => {
                let content = pattern_bytes(random(1000) as usize, random(200_000) as usize);
                fs::write(scene.path("new"), content).unwrap();
                fs::rename(scene.path("new"), &path).unwrap();
            }
        }
        let content = fs::read(&path).unwrap();
        let (offset, length) = (random(250_000) as usize, 1 + random(200_000) as usize);
        let handle = client.look_up_path(path.file_name().unwrap().to_str().unwrap());
        let read = client.read(handle, offset as u64, length as u32).unwrap();
        let there = &content[offset.min(content.len())..];
        assert!(read.bytes == there[..length.min(there.len())], "{length} bytes from {offset} on");
        assert_eq!((read.is_end, read.attributes.size), (length >= there.len(), content.len() as u64));
        match (read.bytes.is_empty(), read.is_end) {
            (true, _) => empty += 1,
            (false, true) => ends += 1,
            (false, false) => middles += 1,
        }
    }
    assert!([ends, middles, empty].iter().all(|count| *count > 50), "{ends} {middles} {empty}");
    let counts = server.stop_and_count();
    assert!(counts.spliced > 0 && counts.copied[CopyCause::Small as usize] > 0, "{counts:?}");
}

/// A reply is true for one moment: the bytes of the file, and whether they are the last.
#[test]
fn growing_and_shrinking_files_are_read_consistently() {
    let scene = Scene::new();
    let file = scene.create_file("file", 0);
    let server = scene.serve();
    let mut client = server.connect();
    let handle = client.look_up_path("file");
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| {
            for round in 0..400_usize {
                let bytes = (round * 37_813) % 300_000;
                file.set_len(bytes as u64 / 2).unwrap();
                file.write_all_at(&pattern_bytes(bytes / 2, bytes - bytes / 2), bytes as u64 / 2).unwrap();
            }
        });
        let mut reads = 0;
        while !changing.is_finished() || reads < 50 {
            let offset = (reads * 7919) % 200_000;
            let read = client.read(handle, offset as u64, 1 << 17).unwrap();
            // Where it shrank and grew again, zeros may have been in between; nothing else.
            let expected = pattern_bytes(offset, read.bytes.len());
            let is_true = |(byte, expected): (&u8, &u8)| byte == expected || *byte == 0;
            assert!(read.bytes.iter().zip(&expected).all(is_true));
            assert!(read.is_end || !read.bytes.is_empty());
            reads += 1;
        }
        changing.join().unwrap();
    });
    // Nothing changes any more: reads return the file.
    assert_eq!(client.read_all(handle, 1 << 20), fs::read(scene.path("file")).unwrap());
    fs::write(scene.path("file"), b"short").unwrap();
    let read = client.read(handle, 0, 1 << 20).unwrap();
    assert_eq!((&read.bytes[..], read.is_end, read.attributes.size), (&b"short"[..], true, 5));
    fs::remove_file(scene.path("file")).unwrap();
    drop(file);
    assert_eq!(client.read(handle, 0, 1 << 20), Err(Status::Stale));
    server.stop_and_count();
}

/// Replies may arrive in another order than their calls, each as a whole.
#[test]
fn pipelined_reads_are_all_answered() {
    let scene = Scene::new();
    let bytes = 8 << 20;
    scene.create_file("file", bytes);
    let content = pattern_bytes(0, bytes);
    let server = scene.serve();
    let mut client = server.connect();
    let file = client.look_up_path("file");
    let mut asked = HashMap::new();
    let mut calls = Vec::new();
    for xid in 1000..1500_u32 {
        let (offset, length) = ((xid as usize * 104_729) % bytes, 1 + (xid * 7919) % 70_000);
        let arguments = encode_xdr(&ReadArguments { file, offset: offset as u64, bytes: length });
        asked.insert(xid, (offset, length as usize));
        calls.extend(call_record(xid, nfs3::PROGRAM, Procedure::Read as u32, &arguments));
    }
    let mut stream = client.stream.try_clone().unwrap();
    let writer = std::thread::spawn(move || stream.write_all(&calls).unwrap());
    while !asked.is_empty() {
        let (xid, results) = client.receive_reply();
        let (offset, length) = asked.remove(&xid).expect("it was asked for once");
        let read = parse_read_reply(&results.unwrap()).unwrap();
        assert_eq!(read.bytes.len(), length.min(bytes - offset));
        assert!(read.bytes == content[offset..][..read.bytes.len()], "from {offset} on");
    }
    writer.join().unwrap();
    let counts = server.stop_and_count();
    assert_eq!(counts.reads, 500);
}

/// More calls than are accepted at once, whose replies fill a turn: no event of the socket reports that there
/// are more.
#[test]
fn calls_arriving_together_are_all_answered() {
    const BYTES: u32 = 8100;
    let scene = Scene::new();
    scene.create_file("file", BYTES as usize);
    let server = scene.serve();
    let mut client = server.connect();
    let file = client.look_up_path("file");
    let arguments = encode_xdr(&ReadArguments { file, offset: 0, bytes: BYTES });
    let call = |xid| call_record(xid, nfs3::PROGRAM, Procedure::Read as u32, &arguments);
    let calls: Vec<u8> = (0..300).flat_map(call).collect();
    client.stream.write_all(&calls).unwrap();
    for _ in 0..300 {
        let (_, results) = client.receive_reply();
        assert_eq!(parse_read_reply(&results.unwrap()).unwrap().bytes, pattern_bytes(0, BYTES as usize));
    }
}

/// Workers read pages that are not in memory; only the waiting thread changes.
#[test]
fn holes_and_uncached_pages_are_read_correctly() {
    let scene = Scene::new();
    let file = scene.create_file("file", 100_000);
    file.set_len(4 << 20).unwrap();
    file.write_all_at(&pattern_bytes(3 << 20, 1 << 20), 3 << 20).unwrap();
    file.sync_all().unwrap();
    let advice = rustix::fs::Advice::DontNeed;
    rustix::fs::fadvise(&file, 0, None, advice).unwrap();
    let server = scene.serve();
    let mut client = server.connect();
    let handle = client.look_up_path("file");
    let expected = fs::read(scene.path("file")).unwrap();
    rustix::fs::fadvise(&file, 0, None, advice).unwrap();
    assert_eq!(client.read_all(handle, 300_000), expected);
}

#[test]
fn handles_survive_a_server_restart() {
    let scene = Scene::new();
    fs::create_dir(scene.path("directory")).unwrap();
    scene.create_file("directory/file", 300_000);
    let server = scene.serve();
    let mut client = server.connect();
    let (directory, file) = (client.look_up_path("directory"), client.look_up_path("directory/file"));
    let first = client.read(file, 0, 100_000).unwrap().bytes;
    let before = client.list_directory(directory, 8192);
    // In the middle of a read: the reply is not waited for.
    let arguments = encode_xdr(&ReadArguments { file, offset: 0, bytes: 1 << 20 });
    client.stream.write_all(&call_record(9, nfs3::PROGRAM, Procedure::Read as u32, &arguments)).unwrap();
    server.stop();
    let server = scene.serve();
    let mut client = server.connect();
    let rest = client.read(file, 100_000, 1 << 20).unwrap();
    assert_eq!([first, rest.bytes].concat(), pattern_bytes(0, 300_000));
    assert_eq!(client.list_directory(directory, 8192), before);
    assert_eq!(client.get_attributes(file).unwrap().size, 300_000);
}

#[test]
fn large_directories_are_listed_without_duplicates() {
    let scene = Scene::new();
    fs::create_dir(scene.path("many")).unwrap();
    let mut expected: Vec<String> = (0..3000).map(|number| format!("file-{number}")).collect();
    expected.iter().for_each(|name| fs::write(scene.path("many").join(name), name).unwrap());
    let server = scene.serve();
    let mut client = server.connect();
    let directory = client.look_up_path("many");
    let listed = client.list_directory(directory, 4096);
    let some = listed.iter().filter(|(name, _)| name.starts_with("file-")).step_by(100);
    for (name, handle) in some.collect::<Vec<_>>() {
        assert_eq!(client.read_all(handle.unwrap(), 100), name.as_bytes());
    }
    let mut names: Vec<String> = listed.into_iter().map(|(name, _)| name).collect();
    names.sort_unstable();
    expected.extend([".".to_owned(), "..".to_owned()]);
    expected.sort_unstable();
    assert_eq!(names, expected);
}
