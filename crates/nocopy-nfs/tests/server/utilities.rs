//! Programs of others: those of libnfs.

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::symlink;
use std::process::{Command, Output};

use crate::scene::{RunningServer, Scene, pattern_bytes};

/// A program of libnfs on a path of the export; `URL` in its arguments is that path, with the port.
fn run_libnfs_program(server: &RunningServer, path: &str, words: &[&str]) -> Output {
    let port = server.address.port();
    run_with_url(&format!("nfs://127.0.0.1{path}?nfsport={port}&mountport={port}&version=3"), words)
}

fn run_with_url(url: &str, words: &[&str]) -> Output {
    let words: Vec<&str> = words.iter().map(|word| if *word == "URL" { url } else { *word }).collect();
    Command::new(words[0]).args(&words[1..]).output().unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

#[test]
fn programs_of_libnfs_list_and_read() {
    let scene = Scene::new();
    fs::create_dir(scene.path("below")).unwrap();
    scene.create_file("below/file", 5_000_003);
    scene.create_file("small", 10);
    symlink("below/file", scene.path("link")).unwrap();
    let server = scene.serve();
    let exported = scene.path("");
    let exported = exported.to_str().unwrap().trim_end_matches('/');
    let listed = run_libnfs_program(&server, exported, &["nfs-ls", "-R", "URL"]);
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.status.success(), "{text}{}", String::from_utf8_lossy(&listed.stderr));
    for name in ["below", "file", "small", "link", "5000003"] {
        assert!(text.contains(name), "{name}: {text}");
    }
    let read = run_libnfs_program(&server, &format!("{exported}/below/file"), &["nfs-cat", "URL"]);
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    assert!(read.stdout == pattern_bytes(0, 5_000_003), "{} bytes", read.stdout.len());
    let copy = tempfile::tempdir().unwrap();
    let copy = copy.path().join("copy");
    let copied = run_libnfs_program(
        &server,
        &format!("{exported}/below/file"),
        &["nfs-cp", "URL", copy.to_str().unwrap()],
    );
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    assert!(fs::read(copy).unwrap() == pattern_bytes(0, 5_000_003));
    let short = run_libnfs_program(&server, "//small", &["nfs-cat", "URL"]);
    assert!(short.stdout == pattern_bytes(0, 10), "{}", String::from_utf8_lossy(&short.stderr));
    let absent = run_libnfs_program(&server, &format!("{exported}/absent"), &["nfs-cat", "URL"]);
    assert!(!absent.status.success());
}

#[test]
fn programs_of_libnfs_write() {
    let scene = Scene::new();
    let outside = tempfile::tempdir().unwrap();
    let file = outside.path().join("file");
    fs::write(&file, pattern_bytes(0, 5_000_003)).unwrap();
    let server = scene.serve_with(|settings| settings.is_writable = true);
    for (name, bytes) in [("long", 5_000_003), ("short", 70_001)] {
        fs::write(&file, pattern_bytes(0, bytes)).unwrap();
        let written =
            run_libnfs_program(&server, &format!("//{name}"), &["nfs-cp", file.to_str().unwrap(), "URL"]);
        assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
        assert!(fs::read(scene.path(name)).unwrap() == pattern_bytes(0, bytes), "{bytes} bytes");
    }
    assert_eq!(server.stop_and_count().written, 5_000_003 + 70_001);
}

/// Without a port, a client asks for it at port 111.
#[test]
fn the_port_is_found_by_the_portmapper() {
    let namespace = match nocopy_lab::Namespace::new_with_loopback() {
        Ok(namespace) => namespace,
        Err(nocopy_lab::Error::Missing(missing)) => return nocopy_lab::skip(&missing),
        Err(error) => panic!("{error}"),
    };
    namespace.run(|| {
        let scene = Scene::new();
        scene.create_file("file", 100_000);
        let server = scene.serve_with(|settings| settings.is_portmapper = true);
        let path = scene.path("file");
        let read = run_with_url(&format!("nfs://127.0.0.1{}?version=3", path.display()), &["nfs-cat", "URL"]);
        assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
        assert!(read.stdout == pattern_bytes(0, 100_000), "{} bytes", read.stdout.len());
        assert_eq!(server.stop_and_count().bytes(), 100_000);
    });
}

/// A server at all addresses answers from the one that was asked.
#[test]
fn the_portmapper_answers_by_udp() {
    let namespace = match nocopy_lab::Namespace::new_with_loopback() {
        Ok(namespace) => namespace,
        Err(nocopy_lab::Error::Missing(missing)) => return nocopy_lab::skip(&missing),
        Err(error) => panic!("{error}"),
    };
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
    let asked = words(&[7, 0, 2, 100_000, 2, 3, 0, 0, 0, 0, 100_003, 3, 6, 0]);
    namespace.run(|| {
        let addresses = if nocopy_lab::has_ipv6() { ["0.0.0.0:0", "[::]:0"] } else { ["0.0.0.0:0"; 2] };
        for address in addresses {
            let scene = Scene::new();
            let server = scene.serve_with(|settings| {
                settings.addresses = vec![address.parse().unwrap()];
                settings.is_portmapper = true;
            });
            let port = server.address.port();
            for from in ["127.0.0.1", "127.0.0.9"] {
                let client = UdpSocket::bind((from, 0)).unwrap();
                client.set_read_timeout(Some(nocopy_lab::patience::PATIENCE)).unwrap();
                // Answers from other addresses are not received.
                client.connect(("127.0.0.9", 111)).unwrap();
                for ignored in [&asked[..20], &words(&[7, 1, 0, 0, 0, 0]), &[1; 1500]] {
                    client.send(ignored).unwrap();
                }
                client.send(&asked).unwrap();
                let mut reply = [0; 64];
                let count = client.recv(&mut reply).unwrap();
                assert_eq!(reply[..count], words(&[7, 1, 0, 0, 0, 0, port.into()]), "{address} {from}");
            }
        }
    });
}
