//! Clients that stop or vanish within a write.

use std::fs;
use std::io::Write;
use std::net::Shutdown;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use nocopy_lab::patience::wait_until;
use nocopy_nfs::wire::nfs3::{
    CreateMode, FileHandle, NewAttributes, NfsResult, Procedure, SetTime, Stability, Status, Time,
    WeakCacheConsistency, WriteResult,
};
use nocopy_nfs::wire::xdr;

use crate::changes::{
    create_file, directory_entry, remove_entry, serve_writable, set_attributes, write_call_record,
    write_file, written_count,
};
use crate::client::Client;
use crate::scene::{Scene, pattern_bytes};

const BYTES: usize = 1 << 20;

/// Bytes of a write call before its data.
fn write_head_bytes(file: FileHandle) -> usize {
    write_call_record(0, file, 0, 0, &[]).len()
}

/// Checks that a file has the `expected` bytes, except for a prefix of the range, which is `new`; updates
/// `expected`.
fn check_partial_write(path: &std::path::Path, expected: &mut [u8], range: Range<usize>, new: u8) {
    let found = fs::read(path).unwrap();
    let count = found[range.clone()].iter().take_while(|byte| **byte == new).count();
    expected[range.start..][..count].fill(new);
    assert!(found == expected, "{count} bytes of {range:?} were written, and something else");
}

/// Calls that were sent completely are executed, and no byte is written that was not sent.
#[test]
fn disconnected_clients_change_only_what_they_sent() {
    let scene = Scene::new();
    scene.create_file("file", 3 * BYTES);
    let server = serve_writable(&scene);
    let file = server.connect().look_up_path("file");
    let head = write_head_bytes(file);
    let mut expected = pattern_bytes(0, 3 * BYTES);
    for (number, sent) in [3, 5, 60, 200, 8000, 500_000, BYTES, BYTES + head - 1].into_iter().enumerate() {
        let (at, new) = (number * 100, 0xf0 + number as u8);
        let mut client = server.connect();
        client.stream.write_all(&write_call_record(1, file, at as u64, 100, &[0xaa; 100])).unwrap();
        let cut_short = write_call_record(2, file, BYTES as u64, BYTES as u32, &vec![new; BYTES]);
        client.stream.write_all(&cut_short[..sent]).unwrap();
        client.stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(written_count(client.receive_reply()), 100);
        assert_eq!(client.receive_record(), None, "the server ended it without an answer");
        expected[at..at + 100].fill(0xaa);
        check_partial_write(
            &scene.path("file"),
            &mut expected,
            BYTES..BYTES + sent.saturating_sub(head),
            new,
        );
    }
    // A whole fragment of an incomplete call; and one that is not waited for.
    for (first, sent) in [(0x7f, BYTES + head), (0xff, BYTES / 2)] {
        let mut client = server.connect();
        let mut fragment = write_call_record(3, file, 0, BYTES as u32, &vec![0xee; BYTES]);
        fragment[0] &= first;
        client.stream.write_all(&fragment[..sent]).unwrap();
    }
    let counts = server.stop_and_count();
    assert_eq!((counts.writes, counts.written), (8, 800));
    check_partial_write(&scene.path("file"), &mut expected, 0..BYTES / 2 - head, 0xee);
}

/// Many more clients than threads.
#[test]
fn clients_stopping_within_a_write_delay_no_others() {
    if !nocopy_lab::descriptors_or_skip() {
        return;
    }
    const CLIENTS: usize = 40;
    let scene = Scene::new();
    scene.create_file("file", BYTES);
    let server = serve_writable(&scene);
    let mut other = server.connect();
    let file = other.look_up_path("file");
    let record = |number: usize| {
        let offset = ((1 + number) * BYTES) as u64;
        write_call_record(number as u32, file, offset, BYTES as u32, &pattern_bytes(number, BYTES))
    };
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| server.connect()).collect();
    let half = BYTES / 2;
    for (number, client) in clients.iter_mut().enumerate() {
        client.stream.write_all(&record(number)[..half]).unwrap();
    }
    wait_until("the last one's half to be written", || {
        fs::metadata(scene.path("file")).unwrap().len() as usize > CLIENTS * BYTES
    });
    for offset in 0..100 {
        write_file(&mut other, file, offset, b"y", Stability::FileSync).unwrap();
        assert_eq!(other.read(file, offset, 1).unwrap().bytes, b"y");
    }
    for (number, client) in clients.iter_mut().enumerate().rev() {
        client.stream.write_all(&record(number)[half..]).unwrap();
        assert_eq!(written_count(client.receive_reply()) as usize, BYTES);
    }
    let mut expected = pattern_bytes(0, BYTES);
    expected[..100].fill(b'y');
    (0..CLIENTS).for_each(|number| expected.extend(pattern_bytes(number, BYTES)));
    assert!(fs::read(scene.path("file")).unwrap() == expected);
}

/// Checked because old attributes in a reply would mean to a client that only its own write has changed the
/// file.
#[test]
fn interleaved_writes_omit_the_attributes_before_the_write() {
    let scene = Scene::new();
    scene.create_file("file", 100);
    let server = serve_writable(&scene);
    let [mut client, mut other] = [(); 2].map(|()| server.connect());
    let file = client.look_up_path("file");
    for is_disturbed in [false, true] {
        let before = client.get_attributes(file).unwrap().size_and_times();
        let record = write_call_record(1, file, before.size, BYTES as u32, &vec![7; BYTES]);
        client.stream.write_all(&record[..BYTES / 2]).unwrap();
        wait_until("a piece to be written", || fs::metadata(scene.path("file")).unwrap().len() > before.size);
        if is_disturbed {
            write_file(&mut other, file, 0, b"x", Stability::Unstable).unwrap();
        }
        client.stream.write_all(&record[BYTES / 2..]).unwrap();
        let reply =
            xdr::parse::<NfsResult<WriteResult, WeakCacheConsistency>>(&client.receive_reply().1.unwrap());
        let changed = reply.unwrap().unwrap().changed;
        assert_eq!(changed.before, Some(before).filter(|_| !is_disturbed));
        assert_eq!(changed.after.unwrap(), client.get_attributes(file).unwrap());
    }
}

/// The data of a refused write are read anyway, because calls follow them.
#[test]
fn data_of_refused_writes_is_skipped() {
    let scene = Scene::new();
    scene.create_file("file", 100);
    scene.create_file("gone", 100);
    let server = serve_writable(&scene);
    let mut client = server.connect();
    let root = client.mount("/").unwrap().handle;
    let [file, gone] = ["file", "gone"].map(|name| client.look_up_path(name));
    remove_entry(&mut server.connect(), Procedure::Remove, directory_entry(root, "gone")).unwrap();
    let data = pattern_bytes(5, BYTES - 3);
    let count = data.len() as u32;
    let calls =
        [(gone, 0, Status::Stale), (root, 0, Status::IsDirectory), (file, u64::MAX - 5, Status::FileTooBig)];
    for (number, (file, offset, status)) in calls.into_iter().enumerate() {
        client.stream.write_all(&write_call_record(number as u32, file, offset, count, &data)).unwrap();
        let (xid, results) = client.receive_reply();
        let refused = xdr::parse::<NfsResult<WriteResult, WeakCacheConsistency>>(&results.unwrap()).unwrap();
        assert_eq!((xid as usize, refused.unwrap_err().status), (number, status));
    }
    client.stream.write_all(&write_call_record(9, file, 0, count, &data)).unwrap();
    assert_eq!(written_count(client.receive_reply()), count);
    assert!(fs::read(scene.path("file")).unwrap() == data);
}

/// An urgent byte, at which splice(2) stops for ever, is left out as TCP does it; what follows arrives.
#[test]
fn urgent_tcp_bytes_do_not_stop_a_write() {
    let scene = Scene::new();
    scene.create_file("file", 100);
    let server = serve_writable(&scene);
    let mut client = server.connect();
    let file = client.look_up_path("file");
    let record = write_call_record(1, file, 0, BYTES as u32, &pattern_bytes(3, BYTES));
    client.stream.write_all(&record[..BYTES / 2]).unwrap();
    rustix::net::send(&client.stream, b"!", rustix::net::SendFlags::OOB).unwrap();
    client.stream.write_all(&record[BYTES / 2..]).unwrap();
    assert_eq!(written_count(client.receive_reply()) as usize, BYTES);
    assert!(fs::read(scene.path("file")).unwrap() == pattern_bytes(3, BYTES));
}

/// Numbers with a special meaning for the kernel: user -1 is nobody, and some nanoseconds mean "now" or "do
/// not change".
#[test]
fn invalid_attributes_are_refused_before_any_change() {
    let scene = Scene::new();
    scene.create_file("file", 100);
    let server = serve_writable(&scene);
    let mut client = server.connect();
    let root = client.mount("/").unwrap().handle;
    let file = client.look_up_path("file");
    let time = |nanoseconds| SetTime::To(Time { seconds: 1, nanoseconds });
    for new in [
        NewAttributes { user: Some(u32::MAX), ..NewAttributes::NONE },
        NewAttributes { group: Some(u32::MAX), ..NewAttributes::NONE },
        NewAttributes { accessed: time(0x3fff_ffff), ..NewAttributes::NONE },
        NewAttributes { modified: time(1_000_000_000), ..NewAttributes::NONE },
    ] {
        let before = client.get_attributes(file).unwrap();
        assert_eq!(set_attributes(&mut client, file, new, None), Err(Status::Invalid));
        assert_eq!(client.get_attributes(file).unwrap(), before);
        let made = create_file(&mut client, directory_entry(root, "new"), CreateMode::Guarded(new));
        assert_eq!((made, scene.path("new").exists()), (Err(Status::Invalid), false));
    }
}

#[test]
fn a_panic_of_the_wait_callback_ends_the_server_and_propagates() {
    let scene = Scene::new();
    let server = scene.bind_server(|_| {});
    let ended = catch_unwind(AssertUnwindSafe(|| server.run(|_| panic!("by the test"))));
    assert_eq!(ended.unwrap_err().downcast_ref::<&str>(), Some(&"by the test"));
}
