//! Many clients, and clients that do not read.

use std::collections::HashSet;
use std::io::Write;
use std::net::SocketAddr;

use nocopy_nfs::wire::nfs3::{self, FileHandle, Procedure, ReadArguments, ReadDirPlusArguments};

use crate::client::{Client, call_record, encode_xdr, parse_read_reply};
use crate::scene::{Scene, pattern_bytes};

/// Requests 1 MiB at a time, and reads none of the replies.
fn send_read_calls(client: &mut Client, file: FileHandle, count: u32) {
    let calls: Vec<u8> = (0..count)
        .flat_map(|number| {
            let offset = u64::from(number % 4) << 20;
            let arguments = encode_xdr(&ReadArguments { file, offset, bytes: 1 << 20 });
            call_record(number, nfs3::PROGRAM, Procedure::Read as u32, &arguments)
        })
        .collect();
    client.stream.write_all(&calls).unwrap();
}

/// 400 connections at once are served, and one whose client does not read delays none of the others.
#[test]
fn clients_that_do_not_read_delay_no_others() {
    if !nocopy_lab::descriptors_or_skip() {
        return;
    }
    let scene = Scene::new();
    scene.create_file("file", 4 << 20);
    let content = pattern_bytes(0, 4 << 20);
    let server = scene.serve();
    let mut first = server.connect();
    let file = first.look_up_path("file");
    let mut slow: Vec<Client> = (0..200).map(|_| server.connect()).collect();
    slow.iter_mut().for_each(|client| send_read_calls(client, file, 100));
    let mut quick: Vec<Client> = (0..200).map(|_| server.connect()).collect();
    for (number, client) in quick.iter_mut().enumerate() {
        let offset = (number * 104_729) % (3 << 20);
        let read = client.read(file, offset as u64, 1 << 20).unwrap();
        assert!(!read.bytes.is_empty());
        assert!(read.bytes == content[offset..][..read.bytes.len()], "from {offset} on");
    }
    assert!(first.read_all(file, 1 << 20) == content);
    assert_eq!(server.total_counts().connections, 401);
    // Those that did not read continue where they were.
    for client in slow.iter_mut().take(5) {
        for _ in 0..100 {
            let (number, results) = client.receive_reply();
            let read = parse_read_reply(&results.unwrap()).unwrap();
            let offset = (number as usize % 4) << 20;
            assert!(read.bytes == content[offset..][..read.bytes.len()] && !read.bytes.is_empty());
        }
    }
    drop(slow);
    let accounts = server.stop();
    assert_eq!((accounts.refused(), accounts.evicted(), accounts.malformed()), (0, 0, 0));
}

/// Workers, too, stop for a client that does not read, once some replies wait for it.
#[test]
fn unread_replies_take_bounded_memory() {
    const CALLS: u32 = 128;
    let scene = Scene::new();
    (0..200).for_each(|number| drop(scene.create_file(&format!("{number}{}", "x".repeat(200)), 0)));
    let server = scene.serve();
    let mut quick = server.connect();
    let directory = quick.mount("/").unwrap().handle;
    let bytes_max = 1 << 20;
    let asked = ReadDirPlusArguments {
        directory,
        cookie: 0,
        verifier: [0; 8],
        names_bytes_max: bytes_max,
        bytes_max,
    };
    let procedure = Procedure::ReadDirPlus as u32;
    let calls: Vec<u8> =
        (0..CALLS).flat_map(|xid| call_record(xid, nfs3::PROGRAM, procedure, &encode_xdr(&asked))).collect();
    let mut slow = server.connect();
    slow.stream.write_all(&calls).unwrap();
    // Work is done in order of arrival, a few jobs of each connection at a time.
    let shortest = (0..CALLS).map(|_| quick.call_nfs(Procedure::ReadDirPlus, &asked).len()).min();
    assert!(shortest.is_some_and(|bytes| bytes > 60_000), "{shortest:?}");
    let queued_bytes = server.queued_bytes();
    assert!(queued_bytes <= 1 << 20, "{queued_bytes} bytes are queued");
    let replied: HashSet<u32> = (0..CALLS).map(|_| slow.receive_reply().0).collect();
    assert_eq!(replied.len(), CALLS as usize);
}

/// The events of listeners and of connections are told apart.
#[test]
fn each_of_many_listening_addresses_is_served() {
    let scene = Scene::new();
    let all = (1..=20).map(|last| SocketAddr::from(([127, 0, 0, last], 0)));
    let server = scene.serve_with(|settings| settings.addresses = all.clone().collect());
    for mut address in all.clone() {
        address.set_port(server.address.port());
        call_null(&mut Client::connect(address));
    }
    assert_eq!(server.stop().clients().len(), 1);
}

const CONNECTIONS: usize = 40;

fn call_null(client: &mut Client) {
    client.call(nfs3::PROGRAM, Procedure::Null as u32, &[]);
}

/// However the loops share them, all allowed connections are served; one more ends an idle one.
#[test]
fn connections_are_evicted_only_above_the_limit() {
    if !nocopy_lab::descriptors_or_skip() {
        return;
    }
    let scene = Scene::new();
    let server = scene.serve_with(|settings| settings.connections_max = CONNECTIONS);
    let mut clients: Vec<Client> = (0..CONNECTIONS).map(|_| server.connect()).collect();
    (0..2).for_each(|_| clients.iter_mut().for_each(call_null));
    // A loop without connections accepts one more; then one ends for each.
    clients.extend((0..20).map(|_| server.connect()));
    nocopy_lab::patience::wait_until("all to be accepted", || server.total_counts().connections == 60);
    let accounts = server.stop();
    assert!((16..=20).contains(&accounts.evicted()), "{} evicted", accounts.evicted());
}

/// Whichever loops serve them.
#[test]
fn addresses_with_many_connections_evict_only_their_own() {
    if !nocopy_lab::descriptors_or_skip() {
        return;
    }
    let scene = Scene::new();
    let server = scene.serve_with(|settings| settings.connections_max = CONNECTIONS);
    let mut honest: Vec<Client> =
        (2..6).map(|last| Client::connect_from_loopback(last, server.address)).collect();
    honest.iter_mut().for_each(call_null);
    let greedy: Vec<Client> = (0..300).map(|_| server.connect()).collect();
    nocopy_lab::patience::wait_until("all to be accepted", || server.total_counts().connections == 304);
    honest.iter_mut().for_each(call_null);
    drop(greedy);
    assert!(server.stop().evicted() >= 300 - CONNECTIONS as u64);
}
