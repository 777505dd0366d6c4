//! Which user a server that is root believes a call to be from: by its port, and for every procedure, MOUNT
//! too.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use nocopy_nfs::server::core::Callers;
use nocopy_nfs::wire::mount;
use nocopy_nfs::wire::mount::Text;
use nocopy_nfs::wire::nfs3::{
    Attributes, CreateArguments, CreateMode, Created, Data, Entry, FileHandle, LookupArguments, LookupResult,
    NewAttributes, NfsResult, Procedure, Stability, Status, WeakCacheConsistency, WriteArguments,
};
use nocopy_nfs::wire::xdr::parse;
use rustix::process::geteuid;

use crate::client::Client;
use crate::scene::{Running, Scene, pattern};

const OWNER: u32 = 1001;
const NOBODY: u32 = 65_534;
/// The user of calls that any program can make.
const UNTRUSTED: u32 = 65_533;

fn serving(scene: &Scene, is_any_port_trusted: bool) -> Running {
    scene.serve_with(|settings| {
        settings.is_writable = true;
        settings.callers = Callers::Users { is_root_trusted: true, is_any_port_trusted };
    })
}

/// Whether the test is skipped, because this process cannot act as other users.
fn is_skipped() -> bool {
    let is_skipped = !geteuid().is_root();
    if is_skipped {
        nocopy_lab::skip(&nocopy_lab::Missing::Capability("CAP_SETUID"));
    }
    is_skipped
}

/// A client with a low port that acts as that user; without it, the test is skipped.
fn from_low_port(server: &Running, user: u32) -> Option<Client> {
    let client = Client::connect_from_low_port(server.address);
    if client.is_none() {
        nocopy_lab::skip(&nocopy_lab::Missing::Capability("CAP_NET_BIND_SERVICE"));
    }
    client.map(|client| acting(client, user))
}

fn acting(mut client: Client, user: u32) -> Client {
    client.act_as(user, user, &[]);
    client
}

fn private_file(scene: &Scene, name: &str, owner: u32) {
    scene.file(name, 100);
    chown(scene.path(name), Some(owner), Some(owner)).unwrap();
    fs::set_permissions(scene.path(name), Permissions::from_mode(0o660)).unwrap();
}

fn status_of_write(client: &mut Client, file: FileHandle, bytes: &[u8]) -> u32 {
    let (count, stability, data) = (bytes.len() as u32, Stability::FileSync, Data(bytes));
    let reply = client.nfs(Procedure::Write, &WriteArguments { file, offset: 0, count, stability, data });
    u32::from_be_bytes(reply[..4].try_into().unwrap())
}

fn create(client: &mut Client, directory: FileHandle, name: &str) -> Result<(), Status> {
    let at = Entry { directory, name: Text(name.as_bytes()) };
    let how = CreateMode::Guarded(NewAttributes { mode: Some(0o600), ..NewAttributes::NONE });
    let reply = client.nfs(Procedure::Create, &CreateArguments { at, how });
    let created: NfsResult<Created, WeakCacheConsistency> = parse(&reply).unwrap();
    created.map(drop).map_err(|refusal| refusal.status)
}

/// Proves that a program without privileges, whose connections come from ports of 1024 and above, cannot act
/// as the user that it names, nor as root, nor as the nobody to whom files of a client's root belong.
#[test]
fn calls_from_high_ports_act_as_the_untrusted_user() {
    if is_skipped() {
        return;
    }
    let scene = Scene::new();
    fs::set_permissions(scene.path(""), Permissions::from_mode(0o777)).unwrap();
    let owners = [("root's", 0), ("owner's", OWNER), ("nobody's", NOBODY)];
    owners.iter().for_each(|(name, owner)| private_file(&scene, name, *owner));
    let server = serving(&scene, false);
    for (name, owner) in owners {
        let mut high = acting(server.connect(), owner);
        let (root, file) = (high.mount("/").unwrap().handle, high.handle(name));
        assert_eq!(high.read(file, 0, 100), Err(Status::Access), "{name}");
        // Shorter than a write whose data go into the file as they arrive, and as long as one.
        for bytes in [10, 100_000] {
            assert_eq!(status_of_write(&mut high, file, &vec![7; bytes]), Status::Access as u32, "{name}");
        }
        create(&mut high, root, &format!("new {name}")).unwrap();
        let metadata = fs::metadata(scene.path(&format!("new {name}"))).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (UNTRUSTED, UNTRUSTED));
        let Some(mut low) = from_low_port(&server, owner) else { return };
        assert_eq!(low.read(file, 0, 100).unwrap().bytes, pattern(0, 100), "{name}");
        assert_eq!(status_of_write(&mut low, file, &pattern(0, 20_000)), 0, "{name}");
    }
    drop(server.end());
    let server = serving(&scene, true);
    let mut high = acting(server.connect(), OWNER);
    let file = high.handle("owner's");
    assert_eq!(high.read(file, 0, 100).unwrap().bytes, pattern(0, 100));
    drop(server.end());
}

/// Proves that the reply to a refused call from a high port is not the reply to the same bytes from a low
/// one.
#[test]
fn cached_replies_are_used_only_for_their_caller() {
    if is_skipped() {
        return;
    }
    let scene = Scene::new();
    fs::create_dir(scene.path("directory")).unwrap();
    chown(scene.path("directory"), Some(OWNER), Some(OWNER)).unwrap();
    fs::set_permissions(scene.path("directory"), Permissions::from_mode(0o755)).unwrap();
    let server = serving(&scene, false);
    let mut high = acting(server.connect(), OWNER);
    let Some(mut low) = from_low_port(&server, OWNER) else { return };
    let directory = high.handle("directory");
    assert_eq!(low.handle("directory"), directory); // so that both have made as many calls
    assert_eq!(create(&mut high, directory, "file"), Err(Status::Access));
    assert_eq!(create(&mut low, directory, "file"), Ok(()));
    drop(server.end());
}

/// Proves that MOUNT gives no handle of a directory that the caller could not look up.
#[test]
fn paths_are_mounted_with_the_rights_of_the_caller() {
    if is_skipped() {
        return;
    }
    let scene = Scene::new();
    fs::set_permissions(scene.path(""), Permissions::from_mode(0o755)).unwrap();
    fs::create_dir_all(scene.path("private/below")).unwrap();
    chown(scene.path("private"), Some(OWNER), Some(OWNER)).unwrap();
    fs::set_permissions(scene.path("private"), Permissions::from_mode(0o700)).unwrap();
    let server = serving(&scene, false);
    let path = scene.path("private/below").display().to_string();
    let refused = Err(mount::Status::Access);
    assert_eq!(acting(server.connect(), OWNER).mount(&path), refused);
    assert_eq!(server.connect().mount(&path), refused, "without a user");
    // What can be looked up can be mounted.
    let root = server.connect().mount("/").unwrap().handle;
    let mut client = server.connect();
    let asked = LookupArguments { directory: root, name: Text(b"private") };
    let found = client.nfs(Procedure::Lookup, &asked);
    let found: NfsResult<LookupResult, Option<Attributes>> = parse(&found).unwrap();
    let private = scene.path("private").display().to_string();
    assert_eq!(client.mount(&private).unwrap().handle, found.unwrap().file);
    let Some(mut owner) = from_low_port(&server, OWNER) else { return };
    let below = owner.mount(&path).unwrap().handle;
    assert_eq!(below, owner.handle("private/below"));
    let Some(mut other) = from_low_port(&server, OWNER + 1) else { return };
    assert_eq!(other.mount(&path), refused);
    drop(server.end());
}
