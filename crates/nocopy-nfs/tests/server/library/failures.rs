//! Connections that break, servers that end, and programs that are no NFS servers.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use nocopy::Pool;
use nocopy_nfs::client::{Client, FilePosition};
use nocopy_nfs::wire::nfs3::NewAttributes;

use super::proxy::InterruptingProxy;
use super::{
    FRESH, check_file_content, connect_with_builder, file_handle, nfs_url, serve_writable, take_buffer,
    write_and_commit,
};
use crate::scene::{Scene, pattern_bytes};

#[test]
fn broken_connections_lose_no_calls() {
    const BYTES: usize = 3 << 20;
    let scene = Scene::new();
    scene.create_file("file", BYTES);
    let content = pattern_bytes(0, BYTES);
    let server = serve_writable(&scene);
    // The first carry the mount, which is waited for like anything else.
    let proxy =
        InterruptingProxy::start(server.address, |number| Some(40_000 + (number as i64 * 104_729) % 700_000));
    let builder = Client::builder().connections(2).call_bytes_max(100_000);
    let mut client = connect_with_builder(&builder, proxy.address.port());
    let pool = Pool::new(8, 64 << 10).unwrap();
    let file = file_handle(&mut client, "file");
    check_file_content(&mut client, file, &pool, &content);
    let root = client.root();
    let written = client.create(root, b"written", FRESH).unwrap().file;
    write_and_commit(&mut client, written, &pool, &content);
    for number in 0..300 {
        let name = format!("directory-{number}-{}", "x".repeat(200));
        // A server that remembers its replies makes none of them twice, so none exists already.
        client.make_directory(root, name.as_bytes(), NewAttributes::NONE).unwrap();
    }
    assert!(fs::read(scene.path("written")).unwrap() == content);
    assert_eq!(fs::read_dir(scene.path("")).unwrap().count(), 302);
    let stats = client.stats();
    assert!(
        stats.get("retransmitted_calls").unwrap() > 0 && stats.get("connections_lost").unwrap() > 5,
        "{stats}"
    );
    assert_eq!((stats.faults, pool.available()), (0, pool.total()));
    assert!(proxy.accepted_connections() > 5);
}

/// The server ends between the writes and the commit: what it had and did not commit is sent again, and only
/// then reported as written.
#[test]
fn lost_writes_are_sent_to_a_restarted_server() {
    const BYTES: usize = 2 << 20;
    let scene = Scene::new();
    let server = serve_writable(&scene);
    let address = server.address;
    let mut client = connect_with_builder(&Client::builder(), address.port());
    let root = client.root();
    let file = client.create(root, b"file", FRESH).unwrap().file;
    let pool = Pool::new(8, BYTES / 8).unwrap();
    let content = pattern_bytes(5, BYTES);
    for (number, piece) in content.chunks(BYTES / 8).enumerate() {
        let mut buffer = take_buffer(&pool, 0);
        buffer.fill(piece).unwrap();
        client.write(buffer, FilePosition { file, offset: (number * BYTES / 8) as u64 }).unwrap();
    }
    client.wait_until_fewer_in_flight(1).unwrap();
    assert_eq!((client.uncommitted_bytes(), pool.available()), (BYTES, 0));
    server.stop();
    // As after a crash: the bytes were in memory only.
    fs::write(scene.path("file"), []).unwrap();
    let again = scene.serve_with(|settings| {
        settings.is_writable = true;
        settings.addresses = vec![address];
    });
    client.commit(file).unwrap();
    assert!(fs::read(scene.path("file")).unwrap() == content);
    assert_eq!((client.stats().get("lost_bytes").unwrap(), pool.available()), (BYTES as u64, 8));
    again.stop();
}

/// A server that listens, and answers with what `answer` makes of the number of the connection.
fn serve_fixed_replies(answer: impl Fn(usize) -> Option<Vec<u8>> + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for number in 0.. {
            let Ok((mut stream, _)) = listener.accept() else { return };
            let mut call = [0; 44];
            if stream.read_exact(&mut call).is_ok()
                && let Some(answer) = answer(number)
            {
                let _ = stream.write_all(&answer);
            }
            kept.push(stream);
        }
    });
    address
}

#[test]
fn connecting_fails_with_a_cause_on_malformed_replies() {
    for (nonsense, expected) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "the reply has the number 0x2f312e31, which no call has"),
        (&[0x80, 0, 0, 24], "the reply has the number 0x07070707, which no call has"),
        (&[0; 200], "a fragment of the reply is empty"),
        (&[0xff; 64], "the reply has the number 0xffffffff, which no call has"),
    ] {
        let nonsense = [nonsense, &[7; 100]].concat();
        let address = serve_fixed_replies(move |_| Some(nonsense.clone()));
        let error = Client::connect(&nfs_url(address.port(), "/")).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "{address}: the replies are malformed; {expected}; check that an NFS server listens there"
            )
        );
    }
}

/// Soft: the calls are sent again by other connections, and then fail. (How long that takes is not looked
/// at.)
#[test]
fn connecting_to_a_silent_server_fails_after_retries() {
    let address = serve_fixed_replies(|_| None);
    let builder =
        Client::builder().timeout(Duration::from_millis(50)).give_up_after(Some(Duration::from_millis(400)));
    let error = builder.connect(&nfs_url(address.port(), "/")).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{address}: no reply within 0 s; every call was sent again, without success; check that the server is running"
        )
    );
}

#[test]
fn reserved_ports_are_used_if_requested() {
    let capabilities = rustix::thread::capabilities(None).unwrap();
    if !capabilities.effective.contains(rustix::thread::CapabilitySet::NET_BIND_SERVICE) {
        return nocopy_lab::skip(&nocopy_lab::Missing::Capability("CAP_NET_BIND_SERVICE"));
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let accepting = std::thread::spawn(move || listener.accept().unwrap().1.port());
    let builder = Client::builder().reserved_port(true).give_up_after(Some(Duration::from_millis(200)));
    builder.connect(&nfs_url(port, "/")).unwrap_err();
    let from = accepting.join().unwrap();
    assert!((600..1024).contains(&from), "{from}");
}
