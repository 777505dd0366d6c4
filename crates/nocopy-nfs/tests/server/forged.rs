//! Input that no client should send: it ends at most that connection, and affects no other.

use std::io::Write;
use std::net::Shutdown;

use nocopy_nfs::wire::nfs3::{self, FileHandle, Procedure, Status};
use nocopy_nfs::wire::rpc::Reply;

use crate::client::{call_record, encode_xdr};
use crate::scene::{Scene, pattern_bytes};

#[test]
fn malformed_records_end_only_their_connection() {
    let scene = Scene::new();
    scene.create_file("file", 10_000);
    let server = scene.serve();
    let mut sound = server.connect();
    let file = sound.look_up_path("file");
    let forged: [&[u8]; 5] = [
        &[0xff; 64],                                           // of 2 GiB
        &[0x80, 0, 0xff, 0xff, 1],                             // of 64 KiB, longer than any call
        &[0x80, 0, 0, 4, 1, 2, 3, 4],                          // too short
        &[0x80, 0, 0, 12, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0], // a reply
        &[0x80, 0, 0, 0],                                      // empty
    ];
    for bytes in forged {
        let mut client = server.connect();
        client.stream.write_all(bytes).unwrap();
        assert_eq!(client.receive_record(), None, "{bytes:?}");
    }
    // Half a record, and the end.
    let mut client = server.connect();
    client.stream.write_all(&[0x80, 0, 0, 40, 0, 0]).unwrap();
    client.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.receive_record(), None);
    // Endless fragments without bytes are no record, and use no memory.
    let mut client = server.connect();
    client.stream.write_all(&[0; 4000]).unwrap();
    assert_eq!(sound.read_all(file, 4096), pattern_bytes(0, 10_000));
    let accounts = server.stop();
    assert_eq!((accounts.malformed(), accounts.total().connections), (5, 8));
}

#[test]
fn forged_handles_are_refused() {
    let scene = Scene::new();
    scene.create_file("file", 10_000);
    let server = scene.serve();
    let mut client = server.connect();
    let file = client.look_up_path("file");
    for (at, bit) in (0..file.as_bytes().len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
        let mut bytes = file.as_bytes().to_vec();
        bytes[at] ^= 1 << bit;
        let forged = FileHandle::new(&bytes).unwrap();
        assert_eq!(client.get_attributes(forged), Err(Status::BadHandle));
        assert_eq!(client.read(forged, 0, 100_000), Err(Status::BadHandle));
    }
    // A length that is longer than a handle, or than what was sent.
    for arguments in [&[0, 0, 0, 65][..], &[0, 0, 0, 64, 1, 2, 3], &[0xff; 8], &encode_xdr(&file)[..30]] {
        for procedure in 1..=21 {
            client.stream.write_all(&call_record(5, nfs3::PROGRAM, procedure, arguments)).unwrap();
            assert_eq!(client.receive_reply(), (5, Err(Reply::GarbageArguments)));
        }
    }
    assert_eq!(client.read_all(file, 4096), pattern_bytes(0, 10_000));
}

#[test]
fn extreme_offsets_and_lengths_are_answered() {
    let scene = Scene::new();
    scene.create_file("file", 10_000);
    let server = scene.serve();
    let mut client = server.connect();
    let file = client.look_up_path("file");
    for offset in [u64::MAX, u64::MAX - 4096, i64::MAX as u64, i64::MAX as u64 + 1] {
        for bytes in [1, 8192, 65_536, u32::MAX] {
            match client.read(file, offset, bytes) {
                Ok(read) => assert!(read.is_end && read.bytes.is_empty()),
                Err(status) => assert_eq!(status, Status::Invalid),
            }
        }
    }
    let reply =
        client.call_nfs(Procedure::ReadDirPlus, &(file, (u64::MAX, (u64::MAX, (u32::MAX, u32::MAX)))));
    assert_eq!(reply[..4], (Status::NotDirectory as u32).to_be_bytes());
    assert_eq!(client.read_all(file, u32::MAX), pattern_bytes(0, 10_000));
}

#[test]
fn only_allowed_networks_are_served() {
    let scene = Scene::new();
    let allowed = |network: &str| {
        let server = scene.serve_with(|settings| settings.allow = vec![network.parse().unwrap()]);
        let mut client = server.connect();
        let is_served = {
            let sent = client.stream.write_all(&call_record(1, nfs3::PROGRAM, 0, &[]));
            sent.is_ok() && client.receive_record().is_some()
        };
        let accounts = server.stop();
        (is_served, accounts.refused())
    };
    assert_eq!(allowed("127.0.0.0/8"), (true, 0));
    assert_eq!(allowed("10.0.0.0/8"), (false, 1));
}
