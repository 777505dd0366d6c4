//! What `nocopy cp` does with links, holes, names and everything that is not a file with bytes: it is copied,
//! or it is named, and the exit code is 1.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use nocopy_lab::ProgramForAnyUser;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::process::geteuid;
use serde_json::Value;

use crate::nfs_client::{NOBODY, NfsFixture, RunningNfsServer, pattern_bytes, run_for_json};
use crate::running::{lossy_text, nocopy_command};

/// A server whose files belong to the user who copies, so that each may do what the other may.
fn start_server_for_own_files(scene: &NfsFixture) -> RunningNfsServer {
    let of_root: &[&str] = if geteuid().is_root() { &["--no-root-squash"] } else { &[] };
    scene.start_server(0, &[&["--writable"], of_root].concat())
}

/// A directory to which both directions copy the same source.
struct UploadAndDownload {
    scene: NfsFixture,
    server: RunningNfsServer,
}

impl UploadAndDownload {
    /// `make` makes the source, a directory.
    fn new(make: impl FnOnce(&Path)) -> Self {
        let scene = NfsFixture::new();
        let source = scene.path("exported/source");
        fs::create_dir(&source).unwrap();
        make(&source);
        fs::create_dir(scene.path("to")).unwrap();
        fs::create_dir(scene.path("exported/to")).unwrap();
        let server = start_server_for_own_files(&scene);
        Self { scene, server }
    }

    /// Copies paths below the source with these options, to the server and from it. Returns for each
    /// direction where the copies are, what was reported, and the exit code.
    fn copy_both_ways(&self, options: &[&str], paths: &[&str]) -> [(PathBuf, Value, i32); 2] {
        let run = |from: Vec<String>, to: String| {
            let words: Vec<&str> = ["cp", "--json"].iter().chain(options).copied().collect();
            run_for_json(
                &words.into_iter().chain(from.iter().map(String::as_str)).chain([&*to]).collect::<Vec<_>>(),
            )
        };
        let below = |path: &&str| format!("source{}{path}", if path.is_empty() { "" } else { "/" });
        let ours =
            paths.iter().map(|path| self.scene.path("exported").join(below(path)).display().to_string());
        let theirs = paths.iter().map(|path| self.server.url(&format!("/{}", below(path))));
        let (to_server, code) = run(ours.collect(), self.server.url("/to"));
        let there = (self.scene.path("exported/to"), to_server, code);
        let (from_server, code) = run(theirs.collect(), self.scene.path("to").display().to_string());
        [there, (self.scene.path("to"), from_server, code)]
    }
}

/// The reports of files that were not copied, or not with all they have.
fn failure_texts(copied: &Value) -> Vec<String> {
    let all = copied["failed"].as_array().unwrap().iter();
    all.map(|one| format!("{}: {}", one["path"].as_str().unwrap(), one["error"].as_str().unwrap())).collect()
}

fn create_fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
}

#[test]
fn links_named_as_source_are_followed() {
    let both = UploadAndDownload::new(|source| {
        fs::write(source.join("run-7"), b"content").unwrap();
        fs::create_dir(source.join("directory")).unwrap();
        fs::write(source.join("directory/inner"), b"inner").unwrap();
        symlink("run-7", source.join("latest")).unwrap();
        symlink("latest", source.join("newest")).unwrap();
        symlink(source.join("run-7"), source.join("absolute")).unwrap();
        symlink("directory", source.join("to directory")).unwrap();
        symlink("absent", source.join("dangling")).unwrap();
        symlink("loop", source.join("loop")).unwrap();
    });
    let paths = ["dangling", "latest", "newest", "absolute", "loop", "to directory/inner", "to directory"];
    for (to, copied, code) in both.copy_both_ways(&[], &paths) {
        assert_eq!(
            (code, copied["files"].as_u64(), copied["skipped"].as_u64()),
            (1, Some(4), Some(1)),
            "{copied}"
        );
        for name in ["latest", "newest", "absolute"] {
            assert!(fs::symlink_metadata(to.join(name)).unwrap().is_file(), "{name}");
            assert_eq!(fs::read(to.join(name)).unwrap(), b"content", "{name}");
        }
        assert_eq!(fs::read(to.join("inner")).unwrap(), b"inner");
        let failed = failure_texts(&copied);
        for (word, cause) in [("dangling", "ENOENT"), ("loop", ""), ("directory", "use -r")] {
            assert!(
                failed.iter().any(|line| line.contains(word) && line.contains(cause)),
                "{word}: {failed:?}"
            );
        }
        assert_eq!(failed.len(), 3, "{failed:?}");
    }
    for (to, copied, code) in both.copy_both_ways(&["-r"], &["to directory"]) {
        assert_eq!(code, 0, "{copied}");
        assert!(fs::symlink_metadata(to.join("to directory")).unwrap().is_dir());
        assert_eq!(fs::read(to.join("to directory/inner")).unwrap(), b"inner");
    }
}

#[test]
fn links_in_a_tree_are_copied_and_not_followed() {
    let both = UploadAndDownload::new(|source| {
        for (target, name) in [("absent", "dangling"), ("loop", "loop"), ("..", "up"), ("/etc", "absolute")] {
            symlink(target, source.join(name)).unwrap();
        }
        fs::write(source.join("file"), b"content").unwrap();
        symlink("file", source.join("was a file")).unwrap();
        symlink("file", source.join("was a directory")).unwrap();
    });
    let victim = both.scene.path("victim");
    fs::write(&victim, b"of another").unwrap();
    for to in ["to", "exported/to"].map(|to| both.scene.path(to).join("source")) {
        fs::create_dir_all(to.join("was a directory")).unwrap();
        symlink(&victim, to.join("file")).unwrap();
        symlink(&victim, to.join("dangling")).unwrap();
        fs::write(to.join("was a file"), b"old").unwrap();
    }
    for (to, copied, code) in both.copy_both_ways(&["-r"], &[""]) {
        let failed = failure_texts(&copied);
        assert_eq!((code, failed.len(), copied["links_made"].as_u64()), (1, 1, Some(5)), "{copied}");
        assert!(failed[0].contains("was a directory"), "{failed:?}");
        let to = to.join("source");
        for (target, name) in
            [("absent", "dangling"), ("..", "up"), ("/etc", "absolute"), ("file", "was a file")]
        {
            assert_eq!(fs::read_link(to.join(name)).unwrap(), Path::new(target), "{name}");
        }
        assert!(fs::symlink_metadata(to.join("file")).unwrap().is_file());
        assert_eq!(fs::read_dir(&to).unwrap().count(), 7, "nothing is left beside them");
    }
    assert_eq!(fs::read(&victim).unwrap(), b"of another");
    // The named target may be a link to a directory; another link is replaced.
    for (link, to) in [
        ("exported/to/link", both.server.url("/to/link")),
        ("link", both.scene.path("link").display().to_string()),
    ] {
        symlink("source", both.scene.path(link)).unwrap();
        let source = both.scene.path(if link == "link" { "victim" } else { "exported/source/file" });
        let is_upload = to.starts_with("nfs:");
        let from = if is_upload { source.display().to_string() } else { both.server.url("/source/file") };
        if !is_upload {
            fs::create_dir(both.scene.path("source")).unwrap();
        }
        let (copied, code) = run_for_json(&["cp", "--json", &from, &to]);
        assert_eq!(code, 0, "{copied}");
        assert!(both.scene.path(link).join("file").exists());
        fs::remove_file(both.scene.path(link)).unwrap();
        symlink(&victim, both.scene.path(link)).unwrap();
        let (copied, code) = run_for_json(&["cp", "--json", &from, &to]);
        assert_eq!(code, 0, "{copied}");
        assert!(fs::symlink_metadata(both.scene.path(link)).unwrap().is_file());
    }
    assert_eq!(fs::read(&victim).unwrap(), b"of another");
}

#[test]
fn hard_links_are_preserved() {
    let both = UploadAndDownload::new(|source| {
        fs::create_dir_all(source.join("a/b")).unwrap();
        fs::write(source.join("first"), pattern_bytes(100_000)).unwrap();
        for name in ["a/second", "a/b/third", "zeroth"] {
            fs::hard_link(source.join("first"), source.join(name)).unwrap();
        }
        symlink("target", source.join("link")).unwrap();
        fs::hard_link(source.join("link"), source.join("a/link")).unwrap();
        create_fifo(&source.join("fifo"));
        fs::hard_link(source.join("fifo"), source.join("a/fifo")).unwrap();
        fs::set_permissions(source.join("a/b"), fs::Permissions::from_mode(0o500)).unwrap();
    });
    for options in [&["-r"][..], &["-r", "--resume"], &["-r", "--verify"]] {
        for (to, copied, code) in both.copy_both_ways(options, &[""]) {
            assert_eq!((code, failure_texts(&copied).len()), (0, 0), "{copied}");
            let metadata = |name: &str| fs::symlink_metadata(to.join("source").join(name)).unwrap();
            for (names, kind) in [
                (&["first", "a/second", "a/b/third", "zeroth"][..], "file"),
                (&["link", "a/link"], "link"),
                (&["fifo", "a/fifo"], "FIFO"),
            ] {
                let of_first = metadata(names[0]);
                assert_eq!(of_first.nlink(), names.len() as u64, "{kind} {options:?}");
                names
                    .iter()
                    .for_each(|name| assert_eq!(metadata(name).ino(), of_first.ino(), "{name} {options:?}"));
            }
            assert_eq!(fs::read(to.join("source/a/b/third")).unwrap(), pattern_bytes(100_000));
            if options.contains(&"--resume") {
                assert_eq!(
                    (copied["files"].as_u64(), copied["links_made"].as_u64()),
                    (Some(0), Some(0)),
                    "{copied}"
                );
            }
        }
    }
    for directory in ["exported/source", "to/source", "exported/to/source"] {
        let locked = both.scene.path(directory).join("a/b");
        fs::set_permissions(locked, fs::Permissions::from_mode(0o700)).unwrap(); // so that it can be removed
    }
}

#[test]
fn holes_are_not_sent_and_not_filled() {
    const BYTES: u64 = 64 << 20;
    let both = UploadAndDownload::new(|source| {
        for (name, places) in [("inside", &[0, BYTES - 4][..]), ("end", &[1 << 20]), ("all", &[])] {
            let file = File::create(source.join(name)).unwrap();
            file.set_len(BYTES).unwrap();
            places.iter().for_each(|place| file.write_all_at(b"data", *place).unwrap());
        }
        fs::write(source.join("zeros"), vec![0; 1 << 20]).unwrap();
    });
    let metadata = |path: PathBuf| fs::metadata(path).unwrap();
    let sources = both.scene.path("exported/source");
    if metadata(sources.join("inside")).blocks() * 512 > BYTES / 2 {
        return nocopy_lab::skip(&nocopy_lab::Missing::Kernel("a file system with holes"));
    }
    for (to, copied, code) in both.copy_both_ways(&["-r"], &[""]) {
        assert_eq!((code, failure_texts(&copied).len()), (0, 0), "{copied}");
        let is_upload = to.starts_with(both.scene.path("exported"));
        assert!(!is_upload || copied["bytes"].as_u64() < Some(BYTES / 8), "{copied}");
        for name in ["inside", "end", "all"] {
            let copy = metadata(to.join("source").join(name));
            assert_eq!(copy.len(), BYTES, "{name}");
            assert!(copy.blocks() * 512 < BYTES / 8, "{name}: {} blocks", copy.blocks());
        }
        let file = File::open(to.join("source/inside")).unwrap();
        let mut read = [0; 4];
        for (name, place) in [("inside", 0), ("inside", BYTES - 4), ("end", 1 << 20)] {
            File::open(to.join("source").join(name)).unwrap().read_exact_at(&mut read, place).unwrap();
            assert_eq!(&read, b"data", "{name} {place}");
        }
        file.read_exact_at(&mut read, BYTES / 2).unwrap();
        assert_eq!(read, [0; 4]);
        assert_eq!(fs::read(to.join("source/zeros")).unwrap(), vec![0; 1 << 20]);
    }
}

#[test]
fn skipped_files_are_reported() {
    let mut is_device = false;
    let both = UploadAndDownload::new(|source| {
        fs::write(source.join("file"), b"content").unwrap();
        fs::write(source.join("other.nocopy-part"), b"unfinished").unwrap();
        symlink("target", source.join("link.nocopy-done")).unwrap();
        create_fifo(&source.join("fifo"));
        let device = makedev(1, 3);
        is_device =
            mknodat(CWD, source.join("null"), FileType::CharacterDevice, Mode::from_raw_mode(0o600), device)
                .is_ok();
        fs::write(source.join("program"), b"content").unwrap();
        fs::set_permissions(source.join("program"), fs::Permissions::from_mode(0o6755)).unwrap();
    });
    for (to, copied, code) in both.copy_both_ways(&["-r"], &[""]) {
        let failed = failure_texts(&copied);
        assert_eq!(code, 1, "{copied}");
        let is_named =
            |name: &str, what: &str| failed.iter().any(|line| line.contains(&format!("/{name}: {what}")));
        assert!(
            is_named("other.nocopy-part", "skipped") && is_named("program", "copied without set-user-ID"),
            "{failed:?}"
        );
        assert!(is_named("link.nocopy-done", "skipped"), "{failed:?}");
        assert!(!is_named("file", "") && !is_named("fifo", ""), "{failed:?}");
        assert!(fs::symlink_metadata(to.join("source/fifo")).unwrap().file_type().is_fifo());
        assert_eq!(fs::metadata(to.join("source/program")).unwrap().mode() & 0o7777, 0o755);
        // The server makes devices for root, whom it trusts here.
        if is_device {
            let made = fs::symlink_metadata(to.join("source/null")).unwrap();
            assert_eq!((made.rdev(), made.mode() & 0o7777), (makedev(1, 3), 0o600));
        }
    }
    for (to, copied, code) in both.copy_both_ways(&[], &["", "fifo", "file"]) {
        let failed = failure_texts(&copied);
        assert_eq!((code, failed.len(), copied["skipped"].as_u64()), (1, 2, Some(2)), "{copied}");
        assert!(
            failed.iter().all(|line| line.contains("skipped; a ") && line.contains("use -r")),
            "{failed:?}"
        );
        assert!(to.join("file").exists() && !to.join("fifo").exists());
    }
}

#[test]
fn directories_are_not_copied_into_themselves() {
    let scene = NfsFixture::new();
    fs::write(scene.path("exported/file"), b"content").unwrap();
    fs::create_dir(scene.path("exported/below/deeper")).unwrap();
    fs::write(scene.path("exported/below/deeper/other"), b"content").unwrap();
    let server = start_server_for_own_files(&scene);
    let path = |below: &str| scene.path(below).display().to_string();
    for (from, to, copy) in [
        (path("exported"), server.url("/below"), "exported/below/exported"),
        (server.url("/"), path("exported/below/new"), "exported/below/new"),
    ] {
        let (copied, code) = run_for_json(&["cp", "-r", "--json", &from, &to]);
        let failed = failure_texts(&copied);
        assert_eq!((code, failed.len()), (1, 1), "{copied}");
        assert!(failed[0].contains("its copy would be inside it"), "{failed:?}");
        assert!(scene.path(copy).join("file").exists());
        assert!(scene.path(copy).join("below/deeper/other").exists());
        fs::remove_dir_all(scene.path(copy)).unwrap();
    }
    // Onto itself.
    for (from, to) in [(path("exported/below"), server.url("/")), (server.url("/below"), path("exported"))] {
        let (copied, code) = run_for_json(&["cp", "-r", "--json", &from, &to]);
        assert_eq!((code, failure_texts(&copied).len()), (1, 1), "{copied}");
        assert_eq!(fs::read(scene.path("exported/below/deeper/other")).unwrap(), b"content");
    }
}

#[test]
fn sources_of_one_name_do_not_replace_each_other() {
    let both = UploadAndDownload::new(|source| {
        for (path, text) in
            [("a/name", "a"), ("b/name", "b"), ("a/d/same", "a"), ("b/d/same", "b"), ("b/d/own", "b")]
        {
            fs::create_dir_all(source.join(path).parent().unwrap()).unwrap();
            fs::write(source.join(path), text).unwrap();
        }
    });
    for (to, copied, code) in both.copy_both_ways(&["-r"], &["a/name", "b/name", "a/d", "b/d"]) {
        let failed = failure_texts(&copied);
        assert_eq!((code, failed.len()), (1, 2), "{copied}");
        assert!(
            failed[0].contains("b/name: not copied") && failed[1].contains("b/d/same: not copied"),
            "{failed:?}"
        );
        for (path, text) in [("name", "a"), ("d/same", "a"), ("d/own", "b")] {
            assert_eq!(fs::read_to_string(to.join(path)).unwrap(), text, "{path}");
        }
    }
    for (_, copied, code) in both.copy_both_ways(&[], &["a/name", "a/name"]) {
        assert_eq!((code, failure_texts(&copied).len()), (0, 0), "{copied}");
    }
}

/// Runs a command as a user who may not read everything.
fn run_unprivileged(words: &[&str]) -> (Value, i32) {
    let program = ProgramForAnyUser::copy(Path::new(env!("CARGO_BIN_EXE_nocopy"))).unwrap();
    let mut command = crate::running::piped_command(program.path(), words);
    if geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = command.output().unwrap();
    let parsed =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", lossy_text(&output.stderr)));
    (parsed, output.status.code().unwrap())
}

#[test]
fn unreadable_files_are_reported_and_others_copied() {
    let scene = NfsFixture::new();
    let source = scene.path("exported/source");
    fs::create_dir_all(source.join("locked")).unwrap();
    let name = OsStr::from_bytes(b"secret \xe9\n");
    for (at, mode) in [(source.join(name), 0o000), (source.join("open"), 0o644), (source.join("zz"), 0o600)] {
        fs::write(&at, b"content").unwrap();
        fs::set_permissions(&at, fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::set_permissions(source.join("locked"), fs::Permissions::from_mode(0o000)).unwrap();
    for directory in ["to", "exported/to"] {
        fs::create_dir(scene.path(directory)).unwrap();
    }
    if geteuid().is_root() {
        scene.chown_to_other_user();
        for path in [
            source.clone(),
            source.join(name),
            source.join("zz"),
            source.join("locked"),
            scene.path("to"),
            scene.path("exported/to"),
        ] {
            lchown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }
    let server = scene.start_server(0, &["--writable"]);
    let (path, to) = (source.display().to_string(), scene.path("to").display().to_string());
    for (from, to, copies) in [
        (&path, &server.url("/to"), scene.path("exported/to/source")),
        (&server.url("/source"), &to, scene.path("to/source")),
    ] {
        let (copied, code) = run_unprivileged(&["cp", "-r", "--json", from, to]);
        let failed = failure_texts(&copied);
        assert_eq!((code, failed.len()), (1, 2), "{copied}");
        // One line, and so that it can be given back.
        assert!(failed.iter().any(|line| line.contains("/source/secret %E9%0A: ")), "{failed:?}");
        assert!(failed.iter().any(|line| line.contains("/source/locked: ")), "{failed:?}");
        assert!(copies.join("open").exists() && copies.join("zz").exists() && !copies.join(name).exists());
    }
    fs::set_permissions(source.join("locked"), fs::Permissions::from_mode(0o700)).unwrap();
}

/// Each line that `ls` prints is a name that the command takes, also in an error.
#[test]
fn printed_names_are_accepted_by_the_commands() {
    let names: Vec<OsString> = [
        &b"caf\xe9"[..],
        b"two\nlines",
        b"100%",
        b"%41",
        b"what?nfsport=1",
        b"#",
        b" a b ",
        "\u{e9}\u{202e}\u{9b}".as_bytes(),
        b"\x01\x7f\xff",
        b"-l",
        &[b'x'; 255],
        &[0xe9; 255],
    ]
    .map(|name| OsString::from_vec(name.to_vec()))
    .to_vec();
    let both = UploadAndDownload::new(|source| {
        names
            .iter()
            .enumerate()
            .for_each(|(number, name)| fs::write(source.join(name), number.to_string()).unwrap());
    });
    let url = both.server.url("/source");
    let listed = nocopy_command(&["ls", &url]).output().unwrap();
    let lines: Vec<String> = lossy_text(&listed.stdout).lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), names.len(), "{lines:?}");
    let (listed, _) = run_for_json(&["ls", "--json", &url]);
    let entries = listed["directories"][0]["entries"].as_array().unwrap();
    let long = lossy_text(&nocopy_command(&["ls", "-l", &url]).output().unwrap().stdout);
    let mut found = Vec::new();
    for (line, entry) in lines.iter().zip(entries) {
        assert_eq!(entry["escaped"], *line);
        assert!(long.lines().any(|long| long.ends_with(line)), "{line}: {long}");
        let printed = nocopy_command(&["cat", &format!("{url}/{line}")]).output().unwrap();
        found.push(
            lossy_text(&printed.stdout)
                .parse::<usize>()
                .unwrap_or_else(|_| panic!("{line}: {}", lossy_text(&printed.stderr))),
        );
        let name = &names[*found.last().unwrap()];
        let is_control = |c: char| matches!(c, '\u{7f}'..='\u{9f}'); // which JSON does not escape
        let as_text = String::from_utf8_lossy(name.as_bytes()).replace(is_control, "\u{fffd}");
        assert_eq!(entry["name"], as_text);
        let to = both.scene.path("to");
        let (copied, code) = run_for_json(&["cp", "--json", &format!("{url}/{line}"), to.to_str().unwrap()]);
        assert!(code == 0 && to.join(name).exists(), "{copied}");
    }
    found.sort_unstable();
    assert_eq!(found, (0..names.len()).collect::<Vec<_>>());
    // An address and a path as they are printed in errors, and an address with bytes that are no text.
    let absent = format!("{url}/absent%0A%E9");
    let (copied, code) = run_for_json(&["cp", "--json", &absent, both.scene.path("to").to_str().unwrap()]);
    assert_eq!((code, copied["failed"][0]["path"].as_str()), (1, Some(&*absent)), "{copied}");
    let here = both.scene.path("exported/source").join(OsStr::from_bytes(b"gone\n\xe9"));
    let given = |path: &OsStr| {
        let to = both.server.url("/to");
        let output = nocopy_command(&["cp", "--json"]).arg(path).arg(to).output().unwrap();
        (serde_json::from_slice::<Value>(&output.stdout).unwrap(), output.status.code())
    };
    let (copied, code) = given(here.as_os_str());
    let printed = copied["failed"][0]["path"].as_str().unwrap();
    assert!(
        code == Some(1) && printed.starts_with("file:///") && printed.ends_with("gone%0A%E9"),
        "{copied}"
    );
    fs::write(&here, b"now").unwrap();
    assert_eq!(given(OsStr::new(printed)).1, Some(0));
    assert_eq!(
        fs::read(both.scene.path("exported/to").join(OsStr::from_bytes(b"gone\n\xe9"))).unwrap(),
        b"now"
    );
    let raw = [url.as_bytes(), b"/caf\xe9"].concat();
    let printed = nocopy_command(&["cat"]).arg(OsStr::from_bytes(&raw)).output().unwrap();
    assert_eq!(lossy_text(&printed.stdout), "0", "{}", lossy_text(&printed.stderr));
}

/// Times that the protocol does not have are named, and those of directories are set when all is in them.
#[test]
fn times_are_preserved_or_reported() {
    let both = UploadAndDownload::new(|source| {
        fs::create_dir_all(source.join("d/empty")).unwrap();
        fs::write(source.join("d/file"), b"content").unwrap();
        fs::write(source.join("old"), b"content").unwrap();
        for (path, seconds) in
            [("old", -5), ("d/file", 1), ("d/empty", 1_000_000_001), ("d", 1_000_000_002), ("", 3)]
        {
            let time = rustix::fs::Timespec { tv_sec: seconds, tv_nsec: 7 };
            let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
            rustix::fs::utimensat(CWD, source.join(path), &times, rustix::fs::AtFlags::empty()).unwrap();
        }
    });
    let [there, here] = both.copy_both_ways(&["-r"], &[""]);
    assert_eq!((there.2, here.2), (1, 0), "{} {}", there.1, here.1);
    let failed = failure_texts(&there.1);
    assert!(failed.len() == 1 && failed[0].contains("/old: copied with another time"), "{failed:?}");
    for to in [there.0, here.0] {
        for (path, seconds) in
            [("old", 0), ("d/file", 1), ("d/empty", 1_000_000_001), ("d", 1_000_000_002), ("", 3)]
        {
            let metadata = fs::metadata(to.join("source").join(path)).unwrap();
            assert_eq!(
                (metadata.mtime(), metadata.mtime_nsec()),
                (seconds, if seconds == 0 { 0 } else { 7 }),
                "{path}"
            );
        }
    }
}
