//! Directories and files that vanish.

use std::fs;

use nocopy_nfs::wire::mount::Text;
use nocopy_nfs::wire::nfs3::{
    self, Attributes, LookupArguments, LookupResult, NfsResult, Procedure, Stability, Status,
};
use nocopy_nfs::wire::xdr;

use crate::changes::{
    FRESH, create_file, directory_entry, make_directory, remove_entry, rename_entry, serve_writable,
    set_attributes, write_file,
};
use crate::scene::Scene;

/// Also if the exported directory itself was removed.
#[test]
fn removed_directories_are_stale() {
    let scene = Scene::new();
    let server = serve_writable(&scene);
    let mut client = server.connect();
    let root = client.mount("/").unwrap().handle;
    let below = make_directory(&mut client, directory_entry(root, "below")).unwrap();
    let file = create_file(&mut client, directory_entry(below, "file"), FRESH).unwrap();
    write_file(&mut client, file, 0, b"before", Stability::FileSync).unwrap();
    let mut refused = |directory, file| {
        let asked = LookupArguments { directory, name: Text(b"file") };
        let reply = client.call_nfs(Procedure::Lookup, &asked);
        let found: NfsResult<LookupResult, Option<Attributes>> = xdr::parse(&reply).unwrap();
        let statuses = [
            client.get_attributes(directory).map(drop).unwrap_err(),
            found.map(drop).map_err(|refusal| refusal.status).unwrap_err(),
            create_file(&mut client, directory_entry(directory, "new"), FRESH).unwrap_err(),
            make_directory(&mut client, directory_entry(directory, "new")).unwrap_err(),
            remove_entry(&mut client, Procedure::Remove, directory_entry(directory, "file")).unwrap_err(),
            set_attributes(
                &mut client,
                directory,
                nfs3::NewAttributes { mode: Some(0o700), ..nfs3::NewAttributes::NONE },
                None,
            )
            .unwrap_err(),
            write_file(&mut client, file, 0, b"after", Stability::FileSync).map(drop).unwrap_err(),
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
    let server = serve_writable(&scene);
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
        let file = create_file(&mut client, directory_entry(root, name), FRESH).unwrap();
        write_file(&mut client, file, 0, b"bytes", Stability::Unstable).unwrap();
    }
    assert_eq!(open(), before + 3, "files that were written are kept open");
    remove_entry(&mut client, Procedure::Remove, directory_entry(root, "removed")).unwrap();
    rename_entry(&mut client, directory_entry(root, "new"), directory_entry(root, "replaced")).unwrap();
    assert_eq!(open(), before + 1, "the one that is left");
}
