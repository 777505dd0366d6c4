//! Directories and files that vanish.

use std::fs;

use nocopy_nfs::wire::mount::Text;
use nocopy_nfs::wire::nfs3::{
    self, Attributes, LookupArguments, LookupResult, NfsResult, Procedure, Stability, Status,
};
use nocopy_nfs::wire::xdr;

use crate::changes::{FRESH, create, entry, make_directory, remove, rename, set, writable, write};
use crate::scene::Scene;

/// Also if the exported directory itself was removed.
#[test]
fn removed_directories_are_stale() {
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

#[test]
fn removed_files_are_closed() {
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
