//! Clients that vanish, and directories that do.

use std::fs;
use std::io::Write;

use nocopy_nfs::wire::mount::Text;
use nocopy_nfs::wire::nfs3::{
    self, Attributes, Data, LookupArguments, LookupResult, NfsResult, Procedure, Stability, Status,
    WriteArguments,
};
use nocopy_nfs::wire::xdr;

use crate::changing::{FRESH, create, entry, make_directory, remove, rename, set, writable, write};
use crate::client::{call_record, encoded};
use crate::running::{Scene, pattern};

/// Proves that of the calls of a client that vanishes those are made that were sent whole, and no byte of the one that was not.
#[test]
fn a_client_that_vanishes_changes_only_what_it_sent() {
    const BYTES: usize = 100_000;
    let scene = Scene::new();
    scene.file("file", 3 * BYTES);
    let server = writable(&scene);
    let file = server.connect().handle("file");
    let call = |xid, offset: usize, data: &[u8]| {
        let data = WriteArguments {
            file,
            offset: offset as u64,
            count: data.len() as u32,
            stability: Stability::Unstable,
            data: Data(data),
        };
        call_record(xid, nfs3::PROGRAM, Procedure::Write as u32, &encoded(&data))
    };
    let (whole, other) = (vec![0xaa; BYTES], vec![0xbb; BYTES]);
    let mut expected = pattern(0, 3 * BYTES);
    let cut_short = call(2, BYTES, &other);
    for (number, sent) in [3, 5, 60, 200, BYTES / 2, cut_short.len() - 1].into_iter().enumerate() {
        let at = number * 100;
        let mut client = server.connect();
        client.stream.write_all(&call(1, at, &whole[..100])).unwrap();
        client.stream.write_all(&cut_short[..sent]).unwrap();
        // Its reply shows that the first call was made; of the other one all came that ever will.
        client.reply().1.unwrap();
        drop(client);
        expected[at..at + 100].copy_from_slice(&whole[..100]);
        assert!(fs::read(scene.path("file")).unwrap() == expected, "after {sent} bytes of a call");
    }
    // A fragment that is whole, of a call that is not.
    let mut client = server.connect();
    let mut fragment = cut_short.clone();
    fragment[0] &= 0x7f;
    client.stream.write_all(&fragment).unwrap();
    drop(client);
    let mut client = server.connect();
    assert!(client.read_all(file, 1 << 20) == expected, "what the next client reads");
    drop(client);
    let counts = server.end_and_count();
    assert_eq!((counts.writes, counts.written), (6, 600));
    assert!(fs::read(scene.path("file")).unwrap() == expected, "when the server has ended");
}

/// Proves that handles of a directory that was removed are stale, also that of the exported directory itself.
#[test]
fn a_removed_directory_is_stale() {
    let scene = Scene::new();
    let server = writable(&scene);
    let mut client = server.connect();
    let root = client.mount("/").unwrap().handle;
    let below = make_directory(&mut client, entry(root, "below")).unwrap();
    let file = create(&mut client, entry(below, "file"), FRESH).unwrap();
    write(&mut client, file, 0, b"before", Stability::FileSync).unwrap();
    let mut refused = |directory, file| {
        let asked = LookupArguments { directory, name: Text(b"file") };
        let reply = client.nfs(Procedure::Lookup, &asked);
        let found: NfsResult<LookupResult, Option<Attributes>> = xdr::parse(&reply).unwrap();
        let statuses = [
            client.attributes(directory).map(drop).unwrap_err(),
            found.map(drop).map_err(|refusal| refusal.status).unwrap_err(),
            create(&mut client, entry(directory, "new"), FRESH).unwrap_err(),
            make_directory(&mut client, entry(directory, "new")).unwrap_err(),
            remove(&mut client, Procedure::Remove, entry(directory, "file")).unwrap_err(),
            set(
                &mut client,
                directory,
                nfs3::NewAttributes { mode: Some(0o700), ..nfs3::NewAttributes::NONE },
                None,
            )
            .unwrap_err(),
            write(&mut client, file, 0, b"after", Stability::FileSync).map(drop).unwrap_err(),
        ];
        assert_eq!(statuses, [Status::Stale; 7]);
    };
    fs::remove_dir_all(scene.path("below")).unwrap();
    refused(below, file);
    fs::remove_dir(scene.path("")).unwrap();
    refused(root, file);
}

/// Proves that a file whose last name is removed or replaced takes no more room on the disk: the server has it open no longer.
#[test]
fn a_removed_file_is_not_kept_open() {
    let scene = Scene::new();
    let server = writable(&scene);
    let mut client = server.connect();
    let root = client.mount("/").unwrap().handle;
    let open = || {
        let links = fs::read_dir("/proc/self/fd")
            .unwrap()
            .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
        links.filter(|link| link.starts_with(scene.path("").canonicalize().unwrap())).count()
    };
    let before = open();
    for name in ["removed", "replaced", "new"] {
        let file = create(&mut client, entry(root, name), FRESH).unwrap();
        write(&mut client, file, 0, b"bytes", Stability::Unstable).unwrap();
    }
    assert_eq!(open(), before + 3, "files that were written are kept open");
    remove(&mut client, Procedure::Remove, entry(root, "removed")).unwrap();
    rename(&mut client, entry(root, "new"), entry(root, "replaced")).unwrap();
    assert_eq!(open(), before + 1, "the one that is left");
}
