//! Calls of several users to a server that acts as each of them, beside the same system calls by processes'
//! own users.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nocopy_nfs::server::core::CallerMapping;
use nocopy_nfs::wire::mount::Text;
use nocopy_nfs::wire::nfs3::{
    self, AccessArguments, AccessResult, Attributes, CreateArguments, CreateMode, Data, Entry, FileHandle,
    LinkArguments, LookupArguments, MakeDirectoryArguments, NewAttributes, NfsResult, Procedure,
    ReadArguments, RenameArguments, SetAttributesArguments, Stability, WriteArguments,
};
use nocopy_nfs::wire::xdr::{Xdr, parse};
use rustix::fs::{Access, AtFlags, CWD, Mode, accessat};
use rustix::io::Errno;
use rustix::process::{Gid, Uid, umask};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::client::Client;
use crate::model::{Random, io_error_status};
use crate::scene::{RunningServer, Scene};

const STEPS: u32 = 1200;
const DIRECTORIES: [&str; 5] = ["open", "group", "inherited", "sticky", "private"];
const NAMES: u64 = 5;

/// User, main group, further groups.
type UserGroups = (u32, u32, &'static [u32]);
const USERS: [UserGroups; 4] =
    [(1001, 1001, &[2000]), (1002, 1002, &[2000, 3000]), (1003, 1003, &[]), (1004, 2000, &[])];

/// A server that believes every port: the clients of most tests have high ones.
fn serve_for_users(scene: &Scene, is_root_trusted: bool) -> RunningServer {
    scene.serve_with(|settings| {
        settings.is_writable = true;
        settings.callers = CallerMapping::Users { is_root_trusted, is_any_port_trusted: true };
    })
}

/// Runs it as another user, with only the rights of that user.
fn run_as_user<T: Send>((user, group, groups): UserGroups, action: impl FnOnce() -> T + Send) -> T {
    let become_user = || {
        let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        set_thread_groups(&groups).unwrap();
        set_thread_res_gid(group, group, group).unwrap();
        set_thread_res_uid(user, user, user).unwrap();
    };
    // The rights of that thread alone, which ends.
    thread::scope(|scope| scope.spawn(|| (become_user(), action()).1).join().unwrap())
}

/// One thing that a user asks for, of files that lie in a directory each.
#[derive(Debug, Clone)]
enum Operation {
    Create(PathBuf, u32),
    MakeDirectory(PathBuf, u32),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf),
    Link(PathBuf, PathBuf),
    Write(PathBuf),
    Read(PathBuf),
    Truncate(PathBuf),
    SetMode(PathBuf, u32),
    SetOwner(PathBuf, Option<u32>, Option<u32>),
}

impl Operation {
    fn random(random: &mut Random) -> Self {
        let mut path = || {
            let directory = DIRECTORIES[random.below(DIRECTORIES.len() as u64) as usize];
            Path::new(directory).join(format!("f{}", random.below(NAMES)))
        };
        let (path, other) = (path(), path());
        let mode = [0o600, 0o640, 0o664, 0o444, 0o111, 0o4775, 0o2755, 0o000][random.below(8) as usize];
        let owner =
            |random: &mut Random| [None, Some(1001), Some(1002), Some(2000)][random.below(4) as usize];
        match random.below(12) {
            0 | 1 => Self::Create(path, mode),
            2 => Self::MakeDirectory(path, mode | 0o700),
            3 => Self::Remove(path),
            4 => Self::Rename(path, other),
            5 => Self::Link(path, other),
            6 | 7 => Self::Write(path),
            8 => Self::Read(path),
            9 => Self::Truncate(path),
            10 => Self::SetMode(path, mode),
            _ => Self::SetOwner(path, owner(random), owner(random)),
        }
    }

    /// Executes it below that directory. As in NFS, the owner of a file may always read and write it, and a
    /// user who may execute it may read it.
    fn run_locally(&self, root: &Path, who: UserGroups) -> io::Result<()> {
        let at = |path: &Path| root.join(path);
        let open = |path: &Path, access: Access, options: &mut OpenOptions| {
            let path = at(path);
            let metadata = run_as_user(who, || fs::metadata(&path))?;
            let may = |access| run_as_user(who, || accessat(CWD, &path, access, AtFlags::EACCESS));
            let is_owner = metadata.uid() == who.0 && metadata.is_file();
            let may_execute = access == Access::READ_OK && metadata.is_file() && may(Access::EXEC_OK).is_ok();
            if !is_owner && !may_execute {
                may(access)?;
            }
            options.open(path)
        };
        match self {
            Self::Create(path, mode) => run_as_user(who, || {
                OpenOptions::new().write(true).create_new(true).mode(*mode).open(at(path)).map(drop)
            }),
            Self::MakeDirectory(path, mode) => {
                let mode = Mode::from_raw_mode(*mode);
                run_as_user(who, || Ok(rustix::fs::mkdir(at(path), mode)?))
            }
            Self::Remove(path) => run_as_user(who, || fs::remove_file(at(path))),
            Self::Rename(from, to) => run_as_user(who, || fs::rename(at(from), at(to))),
            // The kernel says that it is not permitted, NFS (RFC 1813, 3.3.15) that it is a directory.
            Self::Link(from, _) if run_as_user(who, || fs::symlink_metadata(at(from)))?.is_dir() => {
                Err(io::Error::from(Errno::ISDIR))
            }
            Self::Link(from, to) => run_as_user(who, || fs::hard_link(at(from), at(to))),
            Self::Write(path) => {
                let file = open(path, Access::WRITE_OK, OpenOptions::new().write(true))?;
                run_as_user(who, || file.write_all_at(&who.0.to_be_bytes(), 0))
            }
            Self::Read(path) => {
                let file = open(path, Access::READ_OK, OpenOptions::new().read(true))?;
                file.read_at(&mut [0; 4], 0).map(drop)
            }
            Self::Truncate(path) => {
                let file = open(path, Access::WRITE_OK, OpenOptions::new().write(true))?;
                run_as_user(who, || file.set_len(2))
            }
            Self::SetMode(path, mode) => {
                run_as_user(who, || fs::set_permissions(at(path), Permissions::from_mode(*mode)))
            }
            Self::SetOwner(path, user, group) => run_as_user(who, || chown(at(path), *user, *group)),
        }
    }

    fn run_by_nfs(&self, caller: &mut NfsCaller) -> Result<(), u32> {
        let set = |caller: &mut NfsCaller, path: &Path, new: NewAttributes| {
            let file = caller.look_up(path)?;
            caller.call_nfs(Procedure::SetAttr, &SetAttributesArguments { file, new, guard: None })
        };
        let with = |mode: u32| NewAttributes { mode: Some(mode), ..NewAttributes::NONE };
        match self {
            Self::Create(path, mode) => {
                let (at, how) = (caller.directory_and_name(path), CreateMode::Guarded(with(*mode)));
                caller.call_nfs(Procedure::Create, &CreateArguments { at, how })
            }
            Self::MakeDirectory(path, mode) => {
                let (at, attributes) = (caller.directory_and_name(path), with(*mode));
                caller.call_nfs(Procedure::MakeDirectory, &MakeDirectoryArguments { at, attributes })
            }
            Self::Remove(path) => {
                let at = caller.directory_and_name(path);
                caller.call_nfs(Procedure::Remove, &at)
            }
            Self::Rename(from, to) => {
                let asked = RenameArguments {
                    from: caller.directory_and_name(from),
                    to: caller.directory_and_name(to),
                };
                caller.call_nfs(Procedure::Rename, &asked)
            }
            Self::Link(from, to) => {
                let (file, at) = (caller.look_up(from)?, caller.directory_and_name(to));
                caller.call_nfs(Procedure::Link, &LinkArguments { file, at })
            }
            Self::Write(path) => {
                let (file, bytes) = (caller.look_up(path)?, caller.who.0.to_be_bytes());
                let (stability, data) = (Stability::Unstable, Data(&bytes));
                caller.call_nfs(
                    Procedure::Write,
                    &WriteArguments { file, offset: 0, count: 4, stability, data },
                )
            }
            Self::Read(path) => {
                let file = caller.look_up(path)?;
                caller.call_nfs(Procedure::Read, &ReadArguments { file, offset: 0, bytes: 4 })
            }
            Self::Truncate(path) => set(caller, path, NewAttributes { size: Some(2), ..NewAttributes::NONE }),
            Self::SetMode(path, mode) => set(caller, path, with(*mode)),
            Self::SetOwner(path, user, group) => {
                set(caller, path, NewAttributes { user: *user, group: *group, ..NewAttributes::NONE })
            }
        }
    }
}

struct NfsCaller<'a> {
    client: &'a mut Client,
    directories: &'a BTreeMap<&'static str, FileHandle>,
    who: UserGroups,
}

impl NfsCaller<'_> {
    fn directory_and_name<'n>(&self, path: &'n Path) -> Entry<'n> {
        let (directory, name) = (path.parent().unwrap(), path.file_name().unwrap());
        let directory = self.directories[directory.to_str().unwrap()];
        Entry { directory, name: Text(name.as_encoded_bytes()) }
    }

    fn look_up(&mut self, path: &Path) -> Result<FileHandle, u32> {
        let Entry { directory, name } = self.directory_and_name(path);
        let reply = self.client.call_nfs(Procedure::Lookup, &LookupArguments { directory, name });
        let found: NfsResult<nfs3::LookupResult, Option<Attributes>> = parse(&reply).unwrap();
        found.map(|found| found.file).map_err(|refusal| refusal.status as u32)
    }

    fn call_nfs<'b>(&mut self, procedure: Procedure, asked: &impl Xdr<'b>) -> Result<(), u32> {
        let reply = self.client.call_nfs(procedure, asked);
        let status = u32::from_be_bytes(reply[..4].try_into().unwrap());
        if status == 0 { Ok(()) } else { Err(status) }
    }

    fn allowed_access(&mut self, file: FileHandle) -> u32 {
        let reply = self.client.call_nfs(Procedure::Access, &AccessArguments { file, access: 0x3f });
        parse::<NfsResult<AccessResult, Option<Attributes>>>(&reply).unwrap().unwrap().access
    }
}

/// Directories with owners and permissions of several kinds.
fn create_directories(root: &Path) {
    fs::set_permissions(root, Permissions::from_mode(0o755)).unwrap();
    let modes =
        [(0o777, 0, 0), (0o770, 1001, 2000), (0o2775, 1002, 2000), (0o1777, 0, 0), (0o700, 1003, 1003)];
    for (name, (mode, user, group)) in DIRECTORIES.iter().zip(modes) {
        fs::create_dir(root.join(name)).unwrap();
        chown(root.join(name), Some(user), Some(group)).unwrap();
        fs::set_permissions(root.join(name), Permissions::from_mode(mode)).unwrap();
    }
}

/// Everything below a directory: owners, permissions and contents.
fn tree_snapshot(root: &Path) -> BTreeMap<PathBuf, (u32, u32, u32, u64, Vec<u8>)> {
    let mut all = BTreeMap::new();
    for directory in DIRECTORIES {
        for entry in fs::read_dir(root.join(directory)).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let content = if metadata.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            let links = if metadata.is_file() { metadata.nlink() } else { 0 };
            let below = path.strip_prefix(root).unwrap().to_owned();
            all.insert(below, (metadata.mode(), metadata.uid(), metadata.gid(), links, content));
        }
    }
    all
}

#[test]
fn rights_of_each_user_match_the_kernel() {
    umask(Mode::empty());
    let (scene, plain) = (Scene::new(), tempfile::tempdir().unwrap());
    create_directories(&scene.path(""));
    create_directories(plain.path());
    let server = serve_for_users(&scene, false);
    let mut client = server.connect();
    let directories: BTreeMap<_, _> =
        DIRECTORIES.iter().map(|name| (*name, client.look_up_path(name))).collect();
    let (mut random, mut refused) = (Random::new(1), 0);
    for step in 0..STEPS {
        let who = USERS[random.below(USERS.len() as u64) as usize];
        let asked = Operation::random(&mut random);
        client.act_as(who.0, who.1, who.2);
        let mut caller = NfsCaller { client: &mut client, directories: &directories, who };
        let by_nfs = asked.run_by_nfs(&mut caller);
        let directly = asked.run_locally(plain.path(), who).map_err(|error| io_error_status(&error) as u32);
        assert_eq!(by_nfs, directly, "step {step}: {asked:?} by {who:?}");
        refused += u32::from(matches!(by_nfs, Err(1 | 13)));
        let places = DIRECTORIES[random.below(5) as usize];
        let may = [(1, Access::READ_OK), (2, Access::EXEC_OK), (28, Access::WRITE_OK | Access::EXEC_OK)];
        let allowed =
            |access| run_as_user(who, || accessat(CWD, plain.path().join(places), access, AtFlags::EACCESS));
        let expected =
            may.iter().filter(|(_, access)| allowed(*access).is_ok()).map(|(bits, _)| bits).sum::<u32>();
        assert_eq!(caller.allowed_access(directories[places]), expected, "step {step}: {places} by {who:?}");
        if step % 50 == 0 {
            assert_eq!(tree_snapshot(&scene.path("")), tree_snapshot(plain.path()), "after step {step}");
        }
    }
    assert_eq!(tree_snapshot(&scene.path("")), tree_snapshot(plain.path()));
    assert!(refused > STEPS / 10, "so few were refused: {refused}");
    drop(server.stop());
}

/// Proves that a client's root is mapped to nobody by default, and calls without a user always are.
#[test]
fn root_is_squashed_unless_trusted() {
    let scene = Scene::new();
    fs::set_permissions(scene.path(""), Permissions::from_mode(0o777)).unwrap();
    scene.create_file("secret", 10).set_permissions(Permissions::from_mode(0o600)).unwrap();
    for is_root_trusted in [false, true] {
        let server = serve_for_users(&scene, is_root_trusted);
        let mut client = server.connect();
        let root = client.mount("/").unwrap().handle;
        let mut owners = Vec::new();
        for name in ["as root", "without a name"] {
            if name == "as root" {
                client.act_as(0, 0, &[0]);
            } else {
                client = server.connect();
            }
            let name = format!("{name}, {is_root_trusted}");
            let at = Entry { directory: root, name: Text(name.as_bytes()) };
            let how = CreateMode::Guarded(NewAttributes { mode: Some(0o600), ..NewAttributes::NONE });
            client.call_nfs(Procedure::Create, &CreateArguments { at, how });
            let metadata = fs::metadata(scene.path(&name)).unwrap();
            let secret = client.look_up_path("secret");
            owners.push((metadata.uid(), metadata.gid(), client.read(secret, 0, 10).is_ok()));
        }
        let root = if is_root_trusted { (0, 0, true) } else { (65_534, 65_534, false) };
        assert_eq!(owners, [root, (65_534, 65_534, false)]);
        drop(server.stop());
    }
}

/// Proves that a file that was opened for one user is not used for another without the rights, and that the
/// server's threads keep no user.
#[test]
fn files_opened_for_one_user_are_closed_to_others() {
    let scene = Scene::new();
    let file: File = scene.create_file("private", 100);
    fs::set_permissions(scene.path(""), Permissions::from_mode(0o755)).unwrap();
    chown(scene.path("private"), Some(1001), Some(1001)).unwrap();
    file.set_permissions(Permissions::from_mode(0o600)).unwrap();
    // Until then the server asks the kernel each time, as the file's times may not show one more change.
    thread::sleep(Duration::from_millis(2100));
    let server = serve_for_users(&scene, false);
    let mut client = server.connect();
    let private = client.look_up_path("private");
    for (user, may) in [(1001, true), (1002, false), (1001, true), (1003, false)] {
        client.act_as(user, user, &[]);
        assert_eq!(client.read(private, 0, 100).is_ok(), may, "{user} reads");
        let (bytes, stability) = ([7; 8], Stability::FileSync);
        let asked = WriteArguments { file: private, offset: 0, count: 8, stability, data: Data(&bytes) };
        let reply = client.call_nfs(Procedure::Write, &asked);
        assert_eq!(reply[..4] == [0; 4], may, "{user} writes");
        // Nor by permissions that are taken away again.
        let mode = if may { 0o666 } else { 0o600 };
        file.set_permissions(Permissions::from_mode(mode)).unwrap();
        client.act_as(1009, 1009, &[]);
        assert_eq!(client.read(private, 0, 100).is_ok(), may, "1009 reads with {mode:o}");
        file.set_permissions(Permissions::from_mode(0o600)).unwrap();
        assert!(client.read(private, 0, 100).is_err());
    }
    drop(server.stop());
}
