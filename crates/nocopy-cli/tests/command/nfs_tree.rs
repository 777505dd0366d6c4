//! A tree with entries of all kinds is copied to a server and back: all three are equal.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use nocopy_lab::ProgramForAnyUser;
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, mknodat, utimensat};
use rustix::process::geteuid;
use serde_json::Value;

use crate::nfs_client::{NOBODY, NfsFixture, pattern_bytes};
use crate::running::{lossy_text, piped_command};

const ENTRIES: usize = 2000;
const SEED: u64 = 0x0ddb_a115;

/// SplitMix64: the same tree from the same seed.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn number_below(&mut self, end: usize) -> usize {
        (self.next_u64() % end as u64) as usize
    }

    fn choose<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.number_below(all.len())]
    }
}

/// A name of any bytes, different for each number.
fn random_name(random: &mut SplitMix64, number: usize) -> OsString {
    let digits = number.to_string();
    let name = match random.number_below(14) {
        0 => format!("two\nlines {digits}\n").into_bytes(),
        1 => [b"caf\xe9", digits.as_bytes()].concat(),
        2 => format!("100%{digits}").into_bytes(),
        3 => format!("%0A{digits}%").into_bytes(),
        4 => format!("what?{digits}").into_bytes(),
        5 => format!("#{digits}#").into_bytes(),
        6 => format!("  spaces {digits} ").into_bytes(),
        7 => format!("-{digits}\t\x1b[1m\x7f").into_bytes(),
        8 => [digits.as_bytes(), &vec![b'x'; 255 - digits.len()]].concat(),
        9 => [digits.as_bytes(), &vec![0xe9; 255 - digits.len()]].concat(),
        10 => format!("\u{e9}\u{4f60}\u{202e}{digits}\\\"'*").into_bytes(),
        11 => format!(".{digits}").into_bytes(),
        _ => format!("file-{digits}").into_bytes(),
    };
    OsString::from_vec(name)
}

/// Makes a tree of so many entries, with times and permissions.
fn make_tree(top: &Path, seed: u64) {
    let mut random = SplitMix64(seed);
    fs::create_dir(top).unwrap();
    let (mut directories, mut files, mut all) = (vec![top.to_owned()], Vec::new(), Vec::new());
    for number in 0..ENTRIES {
        let above = directories[random.number_below(directories.len())].clone();
        let path = above.join(random_name(&mut random, number));
        // Paths that one call takes.
        let is_deep = path.as_os_str().len() > 2500;
        match random.number_below(100) {
            0..10 if !is_deep => {
                fs::create_dir(&path).unwrap();
                directories.push(path.clone());
            }
            10..20 if !files.is_empty() => {
                let first: &PathBuf = &files[random.number_below(files.len())];
                fs::hard_link(first, &path).unwrap();
                continue; // it has the permissions and the time of the first
            }
            20..35 => make_random_link(&mut random, &path, number),
            35..39 => mknodat(CWD, &path, FileType::Fifo, Mode::RUSR, 0).unwrap(),
            39..42 => mknodat(CWD, &path, FileType::Socket, Mode::RUSR, 0).unwrap(),
            42..45 => {
                let (file, length) = (File::create(&path).unwrap(), 1 + random.next_u64() % (300 << 10));
                file.set_len(length).unwrap();
                file.write_all_at(b"data", random.next_u64() % length).unwrap();
                files.push(path.clone());
            }
            kind => {
                let bytes = match kind {
                    45..60 => 0,
                    60..63 => random.number_below(200_000),
                    _ => random.number_below(3000),
                };
                fs::write(&path, pattern_bytes(bytes)).unwrap();
                files.push(path.clone());
            }
        }
        all.push(path);
    }
    // From the last to the first, as what is in a directory changes its time.
    for path in all.iter().rev() {
        let metadata = fs::symlink_metadata(path).unwrap();
        let modes: &[u32] = match metadata.is_dir() {
            true => &[0o755, 0o755, 0o700, 0o555, 0o500, 0o711, 0o770, 0o1777, 0o2750],
            false => &[0o644, 0o600, 0o755, 0o444, 0o400, 0o640, 0o666, 0o1644, 0o777],
        };
        if !metadata.is_symlink() {
            fs::set_permissions(path, fs::Permissions::from_mode(random.choose(modes))).unwrap();
        }
        let (seconds, nanoseconds) = (random.next_u64() % (1 << 32), random.next_u64() % 1_000_000_000);
        let modified = Timespec { tv_sec: seconds as i64, tv_nsec: nanoseconds as _ };
        let times = Timestamps { last_access: modified, last_modification: modified };
        utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

fn make_random_link(random: &mut SplitMix64, path: &Path, number: usize) {
    let own = path.file_name().unwrap();
    match random.number_below(6) {
        0 => symlink("absent", path).unwrap(),
        1 => symlink(own, path).unwrap(), // to itself
        2 => symlink("..", path).unwrap(),
        3 => symlink("/etc/passwd", path).unwrap(),
        4 => symlink(OsStr::from_bytes(b"../caf\xe9\nno such"), path).unwrap(),
        _ => symlink(format!("file-{}", number / 2), path).unwrap(),
    }
}

/// What a copy keeps of an entry.
#[derive(Debug, PartialEq, Eq)]
struct EntryState {
    kind: &'static str,
    mode: u32,
    modified: (i64, i64),
    content: Vec<u8>,
}

impl EntryState {
    fn read_from(path: &Path, metadata: &Metadata) -> Self {
        let file_type = metadata.file_type();
        let (kind, content) = if metadata.is_dir() {
            ("directory", Vec::new())
        } else if metadata.is_symlink() {
            ("link", fs::read_link(path).unwrap().into_os_string().into_vec())
        } else if file_type.is_fifo() {
            ("FIFO", Vec::new())
        } else if file_type.is_socket() {
            ("socket", Vec::new())
        } else {
            ("file", fs::read(path).unwrap())
        };
        Self { kind, mode: metadata.mode(), modified: (metadata.mtime(), metadata.mtime_nsec()), content }
    }
}

/// The entries of a tree by their paths in it, and the sets of paths that are one file.
type TreeState = (BTreeMap<PathBuf, EntryState>, BTreeSet<Vec<PathBuf>>);

fn read_tree(top: &Path) -> TreeState {
    let (mut entries, mut names) = (BTreeMap::new(), BTreeMap::<u64, Vec<PathBuf>>::new());
    let mut left = vec![top.to_owned()];
    while let Some(path) = left.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        let below = path.strip_prefix(top).unwrap().to_owned();
        if metadata.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if metadata.nlink() > 1 {
            names.entry(metadata.ino()).or_default().push(below.clone());
        }
        entries.insert(below, EntryState::read_from(&path, &metadata));
    }
    let sorted = |mut paths: Vec<PathBuf>| {
        paths.sort();
        paths
    };
    (entries, names.into_values().map(sorted).collect())
}

fn assert_equal_trees(one: &TreeState, other: &TreeState) {
    for (path, kept) in &one.0 {
        assert_eq!(Some(kept), other.0.get(path), "{path:?}");
    }
    assert_eq!(one.0.len(), other.0.len());
    assert!(one.1 == other.1, "other hard links");
}

/// Runs a copy as a user, and returns its summary.
fn copy_as_user(program: &ProgramForAnyUser, user: Option<u32>, words: &[&OsStr]) -> Value {
    let mut command = piped_command(program.path(), &["cp", "-r", "--json"]);
    command.args(words);
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    let output = command.output().unwrap();
    let copied: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", lossy_text(&output.stderr)));
    assert_eq!((output.status.code(), &copied["failed"]), (Some(0), &Value::Array(Vec::new())), "{copied}");
    copied
}

/// So that the directory can be removed.
fn make_accessible(top: &Path) {
    let mut left = vec![top.to_owned()];
    while let Some(path) = left.pop() {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        let below = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
        left.extend(below.filter(|path| fs::symlink_metadata(path).unwrap().is_dir()));
    }
}

fn assert_round_trip_keeps_tree(user: Option<u32>, options: &[&str]) {
    let scene = NfsFixture::in_memory();
    let (source, back) = (scene.path("tree"), scene.path("back"));
    make_tree(&source, SEED);
    fs::create_dir(&back).unwrap();
    let original = read_tree(&source);
    if let Some(user) = user {
        scene.chown_to_other_user();
        original.0.keys().for_each(|path| lchown(source.join(path), Some(user), Some(user)).unwrap());
        lchown(&back, Some(user), Some(user)).unwrap();
    }
    let original = read_tree(&source); // a new owner ends set-group-ID, where it is one
    assert_eq!(original.0.len(), ENTRIES + 1);
    let program = ProgramForAnyUser::copy(Path::new(env!("CARGO_BIN_EXE_nocopy"))).unwrap();
    let server = scene.start_server(0, options);
    let (there, url) = (scene.path("exported/below/tree"), server.url("/below"));
    let kinds = |kind: &str| original.0.values().filter(|kept| kept.kind == kind).count();
    let (names, files): (usize, usize) =
        (original.1.iter().map(|names| names.len() - 1).sum(), kinds("file"));
    let copied = copy_as_user(&program, user, &[source.as_os_str(), OsStr::new(&url)]);
    assert_equal_trees(&original, &read_tree(&there));
    let expected =
        [files - names, kinds("directory"), kinds("link") + names, kinds("FIFO") + kinds("socket")];
    let counted = ["files", "directories", "links_made", "special_files"]
        .map(|name| copied[name].as_u64().unwrap() as usize);
    assert_eq!(counted, expected, "{copied}");
    let from = OsString::from(server.url("/below/tree"));
    let copied = copy_as_user(&program, user, &[&from, back.as_os_str()]);
    assert_equal_trees(&original, &read_tree(&back.join("tree")));
    let counted = ["files", "directories", "links_made", "special_files"]
        .map(|name| copied[name].as_u64().unwrap() as usize);
    assert_eq!(counted, expected, "{copied}");
    // A copy over the first finds everything, also below directories that their owner may not write.
    let resumed = OsStr::new("--resume");
    let copied = copy_as_user(&program, user, &[resumed, source.as_os_str(), OsStr::new(&url)]);
    assert_eq!(
        (&copied["files"], &copied["links_made"], &copied["special_files"]),
        (&0.into(), &0.into(), &0.into()),
        "{copied}"
    );
    let copied = copy_as_user(&program, user, &[resumed, &from, back.as_os_str()]);
    assert_eq!(
        (&copied["files"], &copied["links_made"], &copied["special_files"]),
        (&0.into(), &0.into(), &0.into()),
        "{copied}"
    );
    assert_equal_trees(&original, &read_tree(&there));
    assert_equal_trees(&original, &read_tree(&back.join("tree")));
    [source, there, back].iter().for_each(|path| make_accessible(path));
}

/// As the user of this process, and of the server.
#[test]
fn trees_survive_a_round_trip() {
    let options: &[&str] =
        if geteuid().is_root() { &["--writable", "--no-root-squash"] } else { &["--writable"] };
    assert_round_trip_keeps_tree(None, options);
}

#[test]
fn trees_survive_a_round_trip_as_another_user() {
    if !geteuid().is_root() {
        return nocopy_lab::skip(&nocopy_lab::Missing::Capability("CAP_SETUID"));
    }
    assert_round_trip_keeps_tree(Some(NOBODY), &["--writable"]);
}
