//! `nocopy ls`, `cat` and `cp` of addresses on a server that the test starts, kills, and starts again.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use nocopy_lab::ProgramForAnyUser;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::Value;

use crate::running::{RunningNocopy, lossy_text, nocopy_command, piped_command, readable_directory};

/// The user of a server that can be written to.
pub(crate) const NOBODY: u32 = 65_534;

pub(crate) struct NfsFixture {
    around: tempfile::TempDir,
}

pub(crate) struct RunningNfsServer {
    pub(crate) running: RunningNocopy,
    pub(crate) port: u16,
}

impl NfsFixture {
    pub(crate) fn new() -> Self {
        Self::in_directory(readable_directory())
    }

    /// In memory, if this machine has a directory there: for thousands of changes, each of which the server
    /// waits for.
    pub(crate) fn in_memory() -> Self {
        let on_disk = readable_directory();
        Self::in_directory(tempfile::tempdir_in("/dev/shm").unwrap_or(on_disk))
    }

    fn in_directory(around: tempfile::TempDir) -> Self {
        fs::create_dir_all(around.path().join("exported/below")).unwrap();
        Self { around }
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.around.path().join(below)
    }

    /// As root, gives the directory to another user, so that server and copier are different users.
    pub(crate) fn chown_to_other_user(&self) {
        if geteuid().is_root() {
            for path in ["", "exported", "exported/below"] {
                chown(self.path(path), Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
    }

    /// A server that accepts connections; a writable one runs as that user.
    pub(crate) fn start_server(&self, port: u16, options: &[&str]) -> RunningNfsServer {
        let directory = self.path("exported").display().to_string();
        let state = self.path("state").display().to_string();
        let listen = format!("127.0.0.1:{port}");
        let begin = ["serve", "nfs", &directory, "--state", &state, "--listen", &listen, "--json"];
        let for_all = ProgramForAnyUser::copy(Path::new(env!("CARGO_BIN_EXE_nocopy"))).unwrap();
        let mut command = piped_command(for_all.path(), &[&begin, options].concat());
        if options.contains(&"--no-root-squash") {
            // as this user
        } else if geteuid().is_root() && options.contains(&"--writable") {
            command.uid(NOBODY).gid(NOBODY);
        } else if geteuid().is_root() {
            command.arg("--no-root-squash"); // as this is root at the client
        }
        let mut running = RunningNocopy(Some(command.spawn().unwrap()));
        let mut errors = BufReader::new(running.0.as_mut().unwrap().stderr.take().unwrap());
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        let address = line.strip_prefix("nocopy: serving at nfs://127.0.0.1:");
        let port = address.and_then(|rest| rest.split('/').next()?.parse().ok());
        let port = port.unwrap_or_else(|| panic!("{line}"));
        std::thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()));
        RunningNfsServer { running, port }
    }
}

impl RunningNfsServer {
    pub(crate) fn url(&self, path: &str) -> String {
        format!("nfs://127.0.0.1:{}{path}", self.port)
    }
}

pub(crate) fn pattern_bytes(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|place| (place.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

pub(crate) fn run_for_json(arguments: &[&str]) -> (Value, i32) {
    let output = nocopy_command(arguments).output().unwrap();
    let parsed = serde_json::from_slice(&output.stdout);
    (parsed.unwrap_or_else(|_| panic!("{}", lossy_text(&output.stderr))), output.status.code().unwrap())
}

#[test]
fn files_are_listed_and_printed_without_a_mount() {
    let scene = NfsFixture::new();
    fs::write(scene.path("exported/below/file"), pattern_bytes(3_000_001)).unwrap();
    fs::write(scene.path("exported/small"), b"hello\n").unwrap();
    fs::set_permissions(scene.path("exported/small"), fs::Permissions::from_mode(0o640)).unwrap();
    let server = scene.start_server(0, &[]);
    let listed = nocopy_command(&["ls", &server.url("/")]).output().unwrap();
    assert_eq!(lossy_text(&listed.stdout), "below\nsmall\n", "{}", lossy_text(&listed.stderr));
    let listed = nocopy_command(&["ls", "-l", &server.url("/small")]).output().unwrap();
    assert!(lossy_text(&listed.stdout).starts_with("-rw-r-----"), "{}", lossy_text(&listed.stdout));
    let (listed, _) = run_for_json(&["ls", "--json", &server.url("/below")]);
    assert_eq!(listed["schema"], "nocopy.ls/1");
    let (some, code) = run_for_json(&["ls", "--json", &server.url("/gone"), &server.url("/below")]);
    assert_eq!((&some["directories"], code), (&listed["directories"], 2));
    let entry = &listed["directories"][0]["entries"][0];
    assert_eq!(
        (&entry["name"], &entry["type"], &entry["bytes"]),
        (&"file".into(), &"file".into(), &3_000_001.into())
    );
    let printed =
        nocopy_command(&["cat", &server.url("/below/file"), &server.url("/small")]).output().unwrap();
    assert!(
        printed.stdout == [&pattern_bytes(3_000_001)[..], b"hello\n"].concat(),
        "{}",
        lossy_text(&printed.stderr)
    );
}

#[test]
fn a_directory_is_copied_from_a_server() {
    let scene = NfsFixture::new();
    fs::write(scene.path("exported/below/file"), pattern_bytes(2_500_000)).unwrap();
    (0..50).for_each(|number| {
        fs::write(scene.path(&format!("exported/{number}")), pattern_bytes(number)).unwrap()
    });
    symlink("/etc/passwd", scene.path("exported/link")).unwrap();
    fs::write(scene.path("exported/17.nocopy-part"), b"what another copy left").unwrap();
    let server = scene.start_server(0, &[]);
    let (url, to) = (server.url("/"), scene.path("copy"));
    fs::create_dir(&to).unwrap();
    let target = to.display().to_string();
    let (copied, code) =
        run_for_json(&["cp", "-r", "--resume", "--verify", "--json", &format!("{url}below"), &target]);
    assert_eq!(
        (code, &copied["schema"], &copied["ended"]),
        (0, &"nocopy.cp/2".into(), &"done".into()),
        "{copied}"
    );
    assert_eq!(
        (&copied["bytes"], &copied["verified_bytes"]),
        (&2_500_000.into(), &2_500_000.into()),
        "{copied}"
    );
    assert_eq!(copied["evidence"]["copied_twice_bytes"], 0, "{copied}");
    assert!(fs::read(to.join("below/file")).unwrap() == pattern_bytes(2_500_000));
    let whole = scene.path("whole").display().to_string();
    let (copied, code) = run_for_json(&["cp", "-r", "--json", &url, &whole]);
    let counts = ["files", "links_made", "skipped"].map(|name| copied[name].as_u64().unwrap());
    assert_eq!((code, counts), (1, [51, 1, 1]), "{copied}");
    let skipped = copied["failed"][0]["path"].as_str().unwrap();
    assert!(skipped.ends_with("/17.nocopy-part"), "{copied}");
    for number in 0..50 {
        let copy = Path::new(&whole).join(number.to_string());
        assert_eq!(fs::read(&copy).unwrap(), pattern_bytes(number));
        let times =
            [copy, scene.path(&format!("exported/{number}"))].map(|path| fs::metadata(path).unwrap().mtime());
        assert_eq!(times[0], times[1]);
    }
    assert_eq!(fs::read_link(Path::new(&whole).join("link")).unwrap(), Path::new("/etc/passwd"));
    // Everything is there, and nothing of it is copied again.
    let (copied, _) = run_for_json(&["cp", "-r", "--resume", "--json", &url, &whole]);
    assert_eq!((&copied["unchanged"], &copied["bytes"]), (&52.into(), &0.into()), "{copied}");
}

#[test]
fn failed_copies_have_cause_and_remedy() {
    let scene = NfsFixture::new();
    let server = scene.start_server(0, &[]);
    let here = scene.path("here").display().to_string();
    for (arguments, code, words) in [
        (vec!["ls", "nfs://127.0.0.1:1/x"], 2, ["cannot be connected to", "nocopy serve nfs"]),
        (vec!["cat", &*server.url("/absent")], 2, ["absent", "ENOENT"]),
        (vec!["cat", &*server.url("/below")], 2, ["directory", "EISDIR"]),
        (vec!["cp", "/etc/passwd", "/tmp"], 2, ["nfs://HOST/PATH", "cp(1)"]),
        (vec!["cp", &*server.url("/absent"), &*here], 1, ["absent", "ENOENT"]),
        (vec!["cp", "/etc/passwd", &*server.url("/below")], 1, ["passwd", "--writable"]),
        (vec!["ls", "http://x/"], 2, ["nfs://HOST/PATH", "URL"]),
    ] {
        let output = nocopy_command(&arguments).output().unwrap();
        let message = lossy_text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {message}");
        assert!(words.iter().all(|word| message.contains(word)), "{arguments:?}: {message}");
    }
}

/// The server is killed in the middle, and restarted: the copy continues, and the server's file is complete.
#[test]
fn copies_to_a_server_survive_its_restart() {
    const BYTES: usize = 64 << 20;
    let scene = NfsFixture::new();
    fs::write(scene.path("file"), pattern_bytes(BYTES)).unwrap();
    scene.chown_to_other_user();
    let server = scene.start_server(0, &["--writable"]);
    let (port, url) = (server.port, server.url("/below"));
    let file = scene.path("file").display().to_string();
    let copying = RunningNocopy::start(&["cp", "--verify", "--json", &file, &url]);
    let part = scene.path("exported/below/file.nocopy-part");
    nocopy_lab::patience::wait_until("the copy to begin", || {
        fs::metadata(&part).is_ok_and(|metadata| metadata.len() > 4 << 20)
            || !part.exists() && scene.path("exported/below/file").exists()
    });
    server.running.signal(Signal::KILL);
    drop(server);
    let _server = scene.start_server(port, &["--writable"]);
    let (copied, code) = copying.wait_for_summary();
    assert_eq!(
        (code, &copied["bytes"], &copied["verified_bytes"]),
        (0, &BYTES.into(), &BYTES.into()),
        "{copied}"
    );
    assert!(fs::read(scene.path("exported/below/file")).unwrap() == pattern_bytes(BYTES));
}

/// Many files at a time, more than there are buffers, and long ones among them that need all of these.
#[test]
fn directories_are_copied_several_files_at_a_time() {
    let scene = NfsFixture::new();
    let from = scene.path("from");
    fs::create_dir_all(from.join("inside/empty")).unwrap();
    let sizes = |number: usize| if number.is_multiple_of(40) { 9_000_001 + number } else { 3 * number };
    for number in 0..100 {
        fs::write(from.join(format!("inside/{number}")), pattern_bytes(sizes(number))).unwrap();
    }
    fs::set_permissions(from.join("inside/7"), fs::Permissions::from_mode(0o640)).unwrap();
    scene.chown_to_other_user();
    let server = scene.start_server(0, &["--writable"]);
    let (from, url) = (from.display().to_string(), server.url("/below"));
    let (copied, code) = run_for_json(&["cp", "-r", "--json", "--connections", "3", &from, &url]);
    assert_eq!((code, &copied["files"], &copied["directories"]), (0, &100.into(), &3.into()), "{copied}");
    for number in 0..100 {
        let copy = scene.path(&format!("exported/below/from/inside/{number}"));
        assert!(fs::read(&copy).unwrap() == pattern_bytes(sizes(number)), "file {number}");
        let [ours, theirs] = [&Path::new(&from).join(format!("inside/{number}")), &copy]
            .map(|path| fs::metadata(path).unwrap());
        assert_eq!((ours.mtime(), ours.mode()), (theirs.mtime(), theirs.mode()), "file {number}");
    }
    // Nothing is copied again, and one that is shorter now is.
    fs::write(Path::new(&from).join("inside/8"), b"short").unwrap();
    let (copied, code) = run_for_json(&["cp", "-r", "--json", "--resume", &from, &url]);
    assert_eq!((code, &copied["unchanged"], &copied["files"]), (0, &99.into(), &1.into()), "{copied}");
    assert_eq!(fs::read(scene.path("exported/below/from/inside/8")).unwrap(), b"short");
}

/// However long the file is: its buffers are all the memory that a program has for it.
#[test]
fn memory_of_cat_does_not_grow_with_the_file() {
    const MEMORY_KIB_MAX: u64 = 64 << 10;
    let scene = NfsFixture::new();
    let sparse = fs::File::create(scene.path("exported/sparse")).unwrap();
    let server = scene.start_server(0, &[]);
    let peak_of = |bytes: u64| {
        sparse.set_len(bytes).unwrap();
        let mut command = nocopy_command(&["cat", &server.url("/sparse")]);
        let mut printing = command.stdout(Stdio::piped()).spawn().unwrap();
        let (status, mut out) = (format!("/proc/{}/status", printing.id()), printing.stdout.take().unwrap());
        let (mut peak, mut printed, mut piece, zeros) = (0, 0, vec![0; 1 << 20], vec![0; 1 << 20]);
        // It cannot have ended before all is read, except for its last bytes.
        while printed < bytes {
            let metadata = fs::read_to_string(&status).unwrap();
            let line = metadata.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0 kB");
            peak = peak.max(line.trim().trim_end_matches(" kB").parse::<u64>().unwrap());
            let count = std::io::Read::read(&mut out, &mut piece).unwrap();
            assert!(count > 0 && piece[..count] == zeros[..count], "after {printed} bytes");
            printed += count as u64;
        }
        assert!(printing.wait().unwrap().success());
        peak
    };
    let peaks = [64 << 20, 1 << 30].map(peak_of);
    let [short, long] = peaks;
    assert!(long <= MEMORY_KIB_MAX && long <= short + 2048, "of 64 MiB and of 1 GiB: {peaks:?} KiB");
}

/// Ganesha, with the rpcbind that it needs, in the network namespace of the thread that starts it. Dropped,
/// all of them end.
struct RunningGanesha {
    process: Child,
    server: Pid,
}

impl RunningGanesha {
    fn start(scene: &NfsFixture) -> Self {
        let scratch = scene.path("scratch");
        fs::create_dir_all(&scratch).unwrap();
        let task = serde_json::json!({"Ganesha": {"directory": scene.path("exported"), "scratch": scratch, "is_writable": true}});
        let mut command = nocopy_command(&["bench-child", "serve-nfs", &task.to_string()]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut word = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut word).unwrap();
        let word: Value = serde_json::from_str(&word).unwrap_or_else(|_| panic!("{word}"));
        let server = word["Serving"]["process"].as_i64().unwrap_or_else(|| panic!("{word}"));
        Self { process, server: Pid::from_raw(server as i32).unwrap() }
    }
}

impl Drop for RunningGanesha {
    fn drop(&mut self) {
        // It ends its child processes when its input ends, also if this process is killed.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// Runs a test in its own network namespace, where Ganesha has its ports; skipped without Ganesha.
fn run_with_ganesha(test: impl FnOnce() + Send) {
    let namespace = match nocopy_lab::Namespace::new_with_loopback() {
        Ok(namespace) => namespace,
        Err(nocopy_lab::Error::Missing(missing)) => return nocopy_lab::skip(&missing),
        Err(error) => panic!("{error}"),
    };
    if std::process::Command::new("ganesha.nfsd").arg("-v").output().is_err() {
        return nocopy_lab::skip(&nocopy_lab::Missing::Device("Ganesha (the package nfs-ganesha-vfs)"));
    }
    namespace.run(test);
}

/// One that is reported to be empty, and one that is reported to have a page.
#[test]
fn procfs_and_sysfs_files_are_copied_completely() {
    let scene = NfsFixture::new();
    scene.chown_to_other_user();
    let server = scene.start_server(0, &["--writable"]);
    for path in ["/proc/version", "/sys/class/net/lo/address"] {
        for options in [&["--verify"][..], &["--resume"]] {
            let url = server.url("/below");
            let (copied, code) = run_for_json(&[&["cp", "--json", path, &url], options].concat());
            assert_eq!((code, &copied["files"]), (0, &1.into()), "{path} {options:?}: {copied}");
            let copy = scene.path("exported/below").join(Path::new(path).file_name().unwrap());
            assert_eq!(lossy_text(&fs::read(copy).unwrap()), fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn procfs_and_sysfs_files_are_served_completely() {
    let scene = NfsFixture::new();
    for (directory, file) in [("/proc/sys/kernel/random", "boot_id"), ("/sys/class/net/lo", "address")] {
        let exported = scene.path("exported");
        let _ = fs::remove_file(&exported).or_else(|_| fs::remove_dir_all(&exported));
        symlink(directory, &exported).unwrap();
        let server = scene.start_server(0, &[]);
        let printed = nocopy_command(&["cat", &server.url(&format!("/{file}"))]).output().unwrap();
        let expected = fs::read(Path::new(directory).join(file)).unwrap();
        assert_eq!(lossy_text(&printed.stdout), lossy_text(&expected), "{}", lossy_text(&printed.stderr));
        assert_eq!(printed.status.code(), Some(0));
    }
}

/// A file would take the place of the target.
#[test]
fn pipes_are_neither_copied_nor_replaced() {
    let scene = NfsFixture::new();
    scene.chown_to_other_user();
    fs::write(scene.path("exported/file"), b"content").unwrap();
    let server = scene.start_server(0, &["--writable"]);
    let fifo = scene.path("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
    let fifo = fifo.to_str().unwrap();
    let (copied, code) = run_for_json(&["cp", "--json", fifo, &server.url("/below")]);
    let message = copied["failed"][0]["error"].as_str().unwrap_or_default();
    assert!(code == 1 && message.contains("skipped; a FIFO, a socket or a device"), "{copied}");
    let refused = nocopy_command(&["cp", &server.url("/file"), fifo]).output().unwrap();
    let message = lossy_text(&refused.stderr);
    assert!(
        refused.status.code() == Some(2) && message.contains("it is a pipe, a socket or a device"),
        "{message}"
    );
    assert!(!fs::symlink_metadata(fifo).unwrap().is_file());
}

/// Data that a foreign server lost when it was killed is sent again, and the file is complete.
#[test]
fn copies_to_ganesha_survive_its_restart() {
    const BYTES: usize = 96 << 20;
    run_with_ganesha(|| {
        let scene = NfsFixture::new();
        fs::set_permissions(scene.path(""), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(scene.path("file"), pattern_bytes(BYTES)).unwrap();
        let url = format!("nfs://127.0.0.1:20490{}?mountport=20491", scene.path("exported/below").display());
        let ganesha = RunningGanesha::start(&scene);
        let file = scene.path("file").display().to_string();
        let copying = RunningNocopy::start(&["cp", "--verify", "--json", &file, &url]);
        let [part, whole] = ["file.nocopy-part", "file"].map(|name| scene.path("exported/below").join(name));
        nocopy_lab::patience::wait_until("the copy to begin", || {
            fs::metadata(&part).is_ok_and(|metadata| metadata.len() > 4 << 20) || whole.exists()
        });
        kill_process(ganesha.server, Signal::KILL).unwrap();
        drop(ganesha);
        let _again = RunningGanesha::start(&scene);
        let (copied, code) = copying.wait_for_summary();
        assert_eq!((code, &copied["verified_bytes"]), (0, &BYTES.into()), "{copied}");
        assert!(fs::read(whole).unwrap() == pattern_bytes(BYTES));
    });
}

/// Proves that Ganesha's files are copied and listed, found by the portmapper or by given ports.
#[test]
fn a_directory_is_copied_from_ganesha() {
    if !nocopy_lab::descriptors_or_skip() {
        return;
    }
    run_with_ganesha(|| {
        let scene = NfsFixture::new();
        fs::set_permissions(scene.path(""), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(scene.path("exported/below/file"), pattern_bytes(9_000_001)).unwrap();
        (0..300).for_each(|number| {
            fs::write(scene.path(&format!("exported/{number}")), pattern_bytes(number)).unwrap()
        });
        let _ganesha = RunningGanesha::start(&scene);
        let exported = scene.path("exported").display().to_string();
        for (number, url) in
            [format!("nfs://127.0.0.1{exported}"), format!("nfs://127.0.0.1:20490{exported}?mountport=20491")]
                .iter()
                .enumerate()
        {
            let to = scene.path(&format!("copy-{number}")).display().to_string();
            let (copied, code) =
                run_for_json(&["cp", "-r", "--verify", "--connections", "2", "--json", url, &to]);
            assert_eq!(
                (code, &copied["files"], &copied["failed"]),
                (0, &301.into(), &Value::Array(Vec::new())),
                "{copied}"
            );
            assert!(fs::read(Path::new(&to).join("below/file")).unwrap() == pattern_bytes(9_000_001));
            (0..300).for_each(|number| {
                assert_eq!(fs::read(Path::new(&to).join(number.to_string())).unwrap(), pattern_bytes(number))
            });
        }
    });
}
