//! Which user a server that is root believes a call to be from: by its port, and for every procedure, MOUNT
//! too.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use nocopy_nfs::server::core::CallerMapping;
use nocopy_nfs::wire::mount;
use nocopy_nfs::wire::mount::Text;
use nocopy_nfs::wire::nfs3::{
    Attributes, CreateArguments, CreateMode, CreateResult, Data, Entry, FileHandle, LookupArguments,
    LookupResult, NewAttributes, NfsResult, Procedure, Stability, Status, WeakCacheConsistency,
    WriteArguments,
};
use nocopy_nfs::wire::xdr::parse;
use rustix::process::geteuid;

use crate::client::Client;
use crate::scene::{RunningServer, Scene, pattern_bytes};

const OWNER: u32 = 1001;
const NOBODY: u32 = 65_534;
/// The user of calls that any program can make.
const UNTRUSTED: u32 = 65_533;

fn serve_for_users(scene: &Scene, is_any_port_trusted: bool) -> RunningServer {
    scene.serve_with(|settings| {
        settings.is_writable = true;
        settings.callers = CallerMapping::Users { is_root_trusted: true, is_any_port_trusted };
    })
}

/// Whether the test is skipped, because this process cannot act as other users.
fn is_skipped_without_root() -> bool {
    let is_skipped = !geteuid().is_root();
    if is_skipped {
        nocopy_lab::skip(&nocopy_lab::Missing::Capability("CAP_SETUID"));
    }
    is_skipped
}

/// A client with a low port that acts as that user; without it, the test is skipped.
fn connect_from_low_port(server: &RunningServer, user: u32) -> Option<Client> {
    let client = Client::connect_from_low_port(server.address);
    if client.is_none() {
        nocopy_lab::skip(&nocopy_lab::Missing::Capability("CAP_NET_BIND_SERVICE"));
    }
    client.map(|client| acting_as_user(client, user))
}

fn acting_as_user(mut client: Client, user: u32) -> Client {
    client.act_as(user, user, &[]);
    client
}

fn create_private_file(scene: &Scene, name: &str, owner: u32) {
    scene.create_file(name, 100);
    chown(scene.path(name), Some(owner), Some(owner)).unwrap();
    fs::set_permissions(scene.path(name), Permissions::from_mode(0o660)).unwrap();
}

fn write_status(client: &mut Client, file: FileHandle, bytes: &[u8]) -> u32 {
    let (count, stability, data) = (bytes.len() as u32, Stability::FileSync, Data(bytes));
    let reply =
        client.call_nfs(Procedure::Write, &WriteArguments { file, offset: 0, count, stability, data });
    u32::from_be_bytes(reply[..4].try_into().unwrap())
}

fn create_file(client: &mut Client, directory: FileHandle, name: &str) -> Result<(), Status> {
    let at = Entry { directory, name: Text(name.as_bytes()) };
    let how = CreateMode::Guarded(NewAttributes { mode: Some(0o600), ..NewAttributes::NONE });
    let reply = client.call_nfs(Procedure::Create, &CreateArguments { at, how });
    let created: NfsResult<CreateResult, WeakCacheConsistency> = parse(&reply).unwrap();
    created.map(drop).map_err(|refusal| refusal.status)
}

/// Proves that a program without privileges, whose connections come from ports of 1024 and above, cannot act
/// as the user that it names, nor as root, nor as the nobody to whom files of a client's root belong.
#[test]
fn calls_from_high_ports_act_as_the_untrusted_user() {
    if is_skipped_without_root() {
        return;
    }
    let scene = Scene::new();
    fs::set_permissions(scene.path(""), Permissions::from_mode(0o777)).unwrap();
    let owners = [("root's", 0), ("owner's", OWNER), ("nobody's", NOBODY)];
    owners.iter().for_each(|(name, owner)| create_private_file(&scene, name, *owner));
    let server = serve_for_users(&scene, false);
    for (name, owner) in owners {
        let mut high = acting_as_user(server.connect(), owner);
        let (root, file) = (high.mount("/").unwrap().handle, high.look_up_path(name));
        assert_eq!(high.read(file, 0, 100), Err(Status::Access), "{name}");
        // Shorter than a write whose data go into the file as they arrive, and as long as one.
        for bytes in [10, 100_000] {
            assert_eq!(write_status(&mut high, file, &vec![7; bytes]), Status::Access as u32, "{name}");
        }
        create_file(&mut high, root, &format!("new {name}")).unwrap();
        let metadata = fs::metadata(scene.path(&format!("new {name}"))).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (UNTRUSTED, UNTRUSTED));
        let Some(mut low) = connect_from_low_port(&server, owner) else { return };
        assert_eq!(low.read(file, 0, 100).unwrap().bytes, pattern_bytes(0, 100), "{name}");
        assert_eq!(write_status(&mut low, file, &pattern_bytes(0, 20_000)), 0, "{name}");
    }
    drop(server.stop());
    let server = serve_for_users(&scene, true);
    let mut high = acting_as_user(server.connect(), OWNER);
    let file = high.look_up_path("owner's");
    assert_eq!(high.read(file, 0, 100).unwrap().bytes, pattern_bytes(0, 100));
    drop(server.stop());
}

/// Proves that the reply to a refused call from a high port is not the reply to the same bytes from a low
/// one.
#[test]
fn cached_replies_are_used_only_for_their_caller() {
    if is_skipped_without_root() {
        return;
    }
    let scene = Scene::new();
    fs::create_dir(scene.path("directory")).unwrap();
    chown(scene.path("directory"), Some(OWNER), Some(OWNER)).unwrap();
    fs::set_permissions(scene.path("directory"), Permissions::from_mode(0o755)).unwrap();
    let server = serve_for_users(&scene, false);
    let mut high = acting_as_user(server.connect(), OWNER);
    let Some(mut low) = connect_from_low_port(&server, OWNER) else { return };
    let directory = high.look_up_path("directory");
    assert_eq!(low.look_up_path("directory"), directory); // so that both have made as many calls
    assert_eq!(create_file(&mut high, directory, "file"), Err(Status::Access));
    assert_eq!(create_file(&mut low, directory, "file"), Ok(()));
    drop(server.stop());
}

/// Proves that MOUNT gives no handle of a directory that the caller could not look up.
#[test]
fn paths_are_mounted_with_the_rights_of_the_caller() {
    if is_skipped_without_root() {
        return;
    }
    let scene = Scene::new();
    fs::set_permissions(scene.path(""), Permissions::from_mode(0o755)).unwrap();
    fs::create_dir_all(scene.path("private/below")).unwrap();
    chown(scene.path("private"), Some(OWNER), Some(OWNER)).unwrap();
    fs::set_permissions(scene.path("private"), Permissions::from_mode(0o700)).unwrap();
    let server = serve_for_users(&scene, false);
    let path = scene.path("private/below").display().to_string();
    let refused = Err(mount::Status::Access);
    assert_eq!(acting_as_user(server.connect(), OWNER).mount(&path), refused);
    assert_eq!(server.connect().mount(&path), refused, "without a user");
    // What can be looked up can be mounted.
    let root = server.connect().mount("/").unwrap().handle;
    let mut client = server.connect();
    let asked = LookupArguments { directory: root, name: Text(b"private") };
    let found = client.call_nfs(Procedure::Lookup, &asked);
    let found: NfsResult<LookupResult, Option<Attributes>> = parse(&found).unwrap();
    let private = scene.path("private").display().to_string();
    assert_eq!(client.mount(&private).unwrap().handle, found.unwrap().file);
    let Some(mut owner) = connect_from_low_port(&server, OWNER) else { return };
    let below = owner.mount(&path).unwrap().handle;
    assert_eq!(below, owner.look_up_path("private/below"));
    let Some(mut other) = connect_from_low_port(&server, OWNER + 1) else { return };
    assert_eq!(other.mount(&path), refused);
    drop(server.stop());
}
