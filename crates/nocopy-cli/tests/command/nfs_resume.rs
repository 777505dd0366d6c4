//! Copies that were interrupted and are continued: only what is proven to be right is kept.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use nocopy_lab::patience::wait_until;
use nocopy_lab::refused::{Refused, with_refused_calls};
use rustix::process::{Resource, Rlimit, Signal, geteuid, prlimit};
use serde_json::Value;

use crate::nfs_client::{NfsFixture, RunningNfsServer, pattern_bytes, run_for_json};
use crate::running::{RunningNocopy, lossy_text, nocopy_command};

/// Bytes between two records.
const INTERVAL: u64 = 32 << 20;

/// Longer than two intervals.
fn long_content() -> Vec<u8> {
    pattern_bytes(1_000_003).repeat(70)
}

/// Between client and server: lets everything through until the copy has a record, and then nothing until it
/// is opened.
struct GatedProxy {
    port: u16,
    state: Arc<AtomicU8>,
}

/// What a gate lets through: a state of it.
const UNTIL_RECORD: u8 = 0;
const ALL: u8 = 1;
const NOTHING: u8 = 2;

impl GatedProxy {
    fn start(copy: &CopyTest) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (state, to) = (Arc::new(AtomicU8::new(UNTIL_RECORD)), copy.server.port);
        let (own, record) = (Arc::clone(&state), copy.record_path());
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let is_over = own.load(Ordering::SeqCst) == NOTHING;
                let Some(server) = TcpStream::connect(("127.0.0.1", to)).ok().filter(|_| !is_over) else {
                    return;
                };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (state, record) = (Arc::clone(&own), record.clone());
                    thread::spawn(move || forward_while_open(from, to, &state, &record));
                }
            }
        });
        Self { port, state }
    }

    fn url(&self, path: &str) -> String {
        format!("nfs://127.0.0.1:{}{path}", self.port)
    }

    fn open_gate(&self) {
        self.state.store(ALL, Ordering::SeqCst);
    }
}

impl Drop for GatedProxy {
    fn drop(&mut self) {
        self.state.store(NOTHING, Ordering::SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn forward_while_open(mut from: TcpStream, mut to: TcpStream, state: &AtomicU8, record: &Path) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        while state.load(Ordering::SeqCst) == UNTIL_RECORD && is_record_written(record) {
            thread::sleep(Duration::from_millis(5));
        }
        if state.load(Ordering::SeqCst) == NOTHING || to.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}

fn is_record_written(record: &Path) -> bool {
    fs::metadata(record).is_ok_and(|metadata| metadata.len() > 0)
}

/// A copy from a server or to one, and its files.
struct CopyTest {
    scene: NfsFixture,
    server: RunningNfsServer,
    is_upload: bool,
}

impl CopyTest {
    fn new(is_upload: bool) -> Self {
        let scene = NfsFixture::new();
        if is_upload {
            fs::write(scene.path("file"), long_content()).unwrap();
            scene.chown_to_other_user();
        } else {
            fs::write(scene.path("exported/file"), long_content()).unwrap();
            fs::create_dir(scene.path("below")).unwrap();
        }
        let server = scene.start_server(0, if is_upload { &["--writable"] } else { &[] });
        Self { scene, server, is_upload }
    }

    /// To a server of this user, whose limits this process may set.
    fn upload_to_server_of_this_user() -> Self {
        let scene = NfsFixture::new();
        fs::write(scene.path("file"), long_content()).unwrap();
        let as_root = geteuid().is_root().then_some("--no-root-squash");
        let options: Vec<_> = ["--writable"].into_iter().chain(as_root).collect();
        let server = scene.start_server(0, &options);
        Self { scene, server, is_upload: true }
    }

    fn source_path(&self) -> PathBuf {
        self.scene.path(if self.is_upload { "file" } else { "exported/file" })
    }

    /// A file beside the copy.
    fn destination_path(&self, name: &str) -> PathBuf {
        self.scene.path(if self.is_upload { "exported/below" } else { "below" }).join(name)
    }

    fn part_path(&self) -> PathBuf {
        self.destination_path("file.nocopy-part")
    }

    fn record_path(&self) -> PathBuf {
        self.destination_path("file.nocopy-done")
    }

    fn copy_arguments(&self, options: &[&str], url: impl Fn(&str) -> String) -> Vec<String> {
        let here = |path: PathBuf| path.display().to_string();
        let paths = match self.is_upload {
            true => [here(self.source_path()), url("/below")],
            false => [url("/file"), here(self.scene.path("below"))],
        };
        ["cp", "--json", "--timeout", "10m"]
            .iter()
            .chain(options)
            .map(|word| (*word).to_owned())
            .chain(paths)
            .collect()
    }

    fn run_copy(&self, options: &[&str]) -> (Value, i32) {
        let words = self.copy_arguments(options, |path| self.server.url(path));
        run_for_json(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// A copy that has written a record, and waits.
    fn start_until_first_record(&self, gate: &GatedProxy, options: &[&str]) -> RunningNocopy {
        let words = self.copy_arguments(options, |path| gate.url(path));
        let copying = RunningNocopy::start(&words.iter().map(String::as_str).collect::<Vec<_>>());
        wait_until("a record", || is_record_written(&self.record_path()));
        copying
    }

    /// A copy that is killed after its first record. What is not recorded is lost, and the part has its whole
    /// length, as if the last bytes had been written first.
    fn kill_after_first_record(&self, options: &[&str]) {
        let gate = GatedProxy::start(self);
        let copying = self.start_until_first_record(&gate, options);
        copying.signal(Signal::KILL);
        drop(copying);
        assert!(!self.destination_path("file").exists());
        let part = File::options().write(true).open(self.part_path()).unwrap();
        part.set_len(INTERVAL).unwrap();
        part.set_len(long_content().len() as u64).unwrap();
    }

    /// Checks the complete copy; nothing else is left.
    fn check_complete_copy(&self, expected: &[u8]) {
        assert!(fs::read(self.destination_path("file")).unwrap() == expected, "upload: {}", self.is_upload);
        let [ours, theirs] =
            [self.source_path(), self.destination_path("file")].map(|path| fs::metadata(path).unwrap());
        assert_eq!((ours.mtime(), ours.mode()), (theirs.mtime(), theirs.mode()));
        assert!(!self.part_path().exists() && !self.record_path().exists());
    }
}

fn copy_counts(copied: &Value) -> [u64; 3] {
    ["files", "bytes", "resumed_bytes"].map(|name| copied[name].as_u64().unwrap())
}

#[test]
fn killed_copies_continue_after_the_synced_bytes() {
    for (is_upload, connections) in [(true, "1"), (true, "4"), (false, "1"), (false, "4")] {
        let copy = CopyTest::new(is_upload);
        copy.kill_after_first_record(&["--connections", connections]);
        let (copied, code) = copy.run_copy(&["--resume", "--connections", connections]);
        let rest = long_content().len() as u64 - INTERVAL;
        assert_eq!(
            (code, copy_counts(&copied)),
            (0, [1, rest, INTERVAL]),
            "{is_upload} {connections} {copied}"
        );
        copy.check_complete_copy(&long_content());
    }
}

/// The disk of the server is full: some writes fail, later ones may not.
#[test]
fn copies_continue_after_failed_writes() {
    let copy = CopyTest::upload_to_server_of_this_user();
    let set = |bytes| {
        let limit = Rlimit { current: bytes, maximum: None };
        prlimit(Some(copy.server.running.pid()), Resource::Fsize, limit).unwrap();
    };
    set(Some(INTERVAL + (5 << 20)));
    let (copied, code) = copy.run_copy(&["--connections", "4"]);
    assert_eq!((code, &copied["files"]), (1, &0.into()), "{copied}");
    assert!(copied["failed"][0]["error"].as_str().unwrap().contains("EFBIG"), "{copied}");
    set(None);
    // A hole where a write failed.
    let part = File::options().write(true).open(copy.part_path()).unwrap();
    part.set_len(INTERVAL).unwrap();
    part.set_len(INTERVAL + (8 << 20)).unwrap();
    let (copied, code) = copy.run_copy(&["--connections", "4", "--resume"]);
    assert_eq!((code, &copied["resumed_bytes"]), (0, &INTERVAL.into()), "{copied}");
    copy.check_complete_copy(&long_content());
}

#[test]
fn copies_of_changed_sources_start_again() {
    for is_upload in [true, false] {
        let copy = CopyTest::new(is_upload);
        copy.kill_after_first_record(&[]);
        let changed: Vec<u8> = long_content().iter().map(|byte| !byte).collect();
        let source = File::options().write(true).open(copy.source_path()).unwrap();
        let before = source.metadata().unwrap().modified().unwrap();
        source.write_all_at(&changed, 0).unwrap();
        source.set_modified(before).unwrap(); // as if nothing had happened
        drop(source);
        let (copied, code) = copy.run_copy(&["--resume"]);
        assert_eq!((code, &copied["resumed_bytes"]), (0, &0.into()), "{copied}");
        copy.check_complete_copy(&changed);
    }
}

#[test]
fn parts_without_a_record_start_again() {
    for is_upload in [true, false] {
        let copy = CopyTest::new(is_upload);
        for damage in ["no record", "half a record", "the record of another part", "a short part"] {
            if is_upload && damage == "a short part" {
                continue; // the server may still execute a write, which makes it longer
            }
            copy.kill_after_first_record(&[]);
            match damage {
                "no record" => fs::remove_file(copy.record_path()).unwrap(),
                "half a record" => {
                    File::options().write(true).open(copy.record_path()).unwrap().set_len(70).unwrap()
                }
                "a short part" => {
                    File::options()
                        .write(true)
                        .open(copy.part_path())
                        .unwrap()
                        .set_len(INTERVAL - 1)
                        .unwrap();
                }
                _ => {
                    let other = copy.destination_path("other");
                    fs::copy(copy.part_path(), &other).unwrap();
                    fs::rename(other, copy.part_path()).unwrap();
                }
            }
            let (copied, code) = copy.run_copy(&["--resume"]);
            assert_eq!((code, &copied["resumed_bytes"]), (0, &0.into()), "{damage}: {copied}");
            copy.check_complete_copy(&long_content());
            fs::remove_file(copy.destination_path("file")).unwrap();
        }
    }
}

/// In a directory where others may write, the part's name can be that of another file.
#[test]
fn other_files_with_the_part_name_are_not_written() {
    for is_upload in [true, false] {
        let copy = CopyTest::new(is_upload);
        let victim = copy.destination_path("victim");
        for options in [&[][..], &["--resume"]] {
            for is_link in [true, false] {
                fs::write(&victim, b"of another").unwrap();
                match is_link {
                    true => symlink(&victim, copy.part_path()).unwrap(),
                    false => fs::hard_link(&victim, copy.part_path()).unwrap(),
                }
                let (copied, code) = copy.run_copy(options);
                assert_eq!(code, 0, "{copied}");
                assert_eq!(fs::read(&victim).unwrap(), b"of another");
                copy.check_complete_copy(&long_content());
                fs::remove_file(copy.destination_path("file")).unwrap();
            }
        }
        // A part with a second name is that of another file, too.
        copy.kill_after_first_record(&[]);
        fs::remove_file(&victim).unwrap();
        fs::hard_link(copy.part_path(), &victim).unwrap();
        let (copied, code) = copy.run_copy(&["--resume"]);
        assert_eq!((code, &copied["resumed_bytes"]), (0, &0.into()), "{copied}");
        copy.check_complete_copy(&long_content());
        let [copied, other] =
            [copy.destination_path("file"), victim].map(|path| fs::metadata(path).unwrap().ino());
        assert_ne!(copied, other);
    }
}

/// Two copies to the same name: a file that is not complete must not get it.
#[test]
fn replaced_parts_are_not_renamed() {
    for is_upload in [true, false] {
        let copy = CopyTest::new(is_upload);
        let gate = GatedProxy::start(&copy);
        let copying = copy.start_until_first_record(&gate, &[]);
        fs::remove_file(copy.part_path()).unwrap();
        fs::write(copy.part_path(), b"of another copy").unwrap();
        gate.open_gate();
        let (copied, code) = copying.wait_for_summary();
        assert_eq!((code, &copied["files"]), (1, &0.into()), "{copied}");
        let error = copied["failed"][0]["error"].as_str().unwrap();
        assert!(is_upload && error.contains("ESTALE") || error.contains("replaced during"), "{error}");
        assert!(!copy.destination_path("file").exists());
        assert_eq!(fs::read(copy.part_path()).unwrap(), b"of another copy");
    }
}

#[test]
fn differing_copies_are_detected_and_not_renamed() {
    for is_upload in [true, false] {
        let copy = CopyTest::new(is_upload);
        copy.kill_after_first_record(&[]);
        let part = File::options().read(true).write(true).open(copy.part_path()).unwrap();
        let mut byte = [0];
        part.read_exact_at(&mut byte, 1_100_077).unwrap();
        part.write_all_at(&[byte[0] ^ 1], 1_100_077).unwrap();
        drop(part);
        let (copied, code) = copy.run_copy(&["--resume", "--verify"]);
        assert_eq!((code, &copied["files"], &copied["ended"]), (1, &0.into(), &"done".into()), "{copied}");
        let error = copied["failed"][0]["error"].as_str().unwrap();
        let differs = "the copy differs from byte 1100077 on; the file was changed during the copy, or the server or disk is faulty; copy it again";
        assert!(error.ends_with(differs), "{error}");
        assert!(
            !copy.destination_path("file").exists()
                && !copy.part_path().exists()
                && !copy.record_path().exists()
        );
        // Without the earlier copy nothing is wrong.
        let (copied, code) = copy.run_copy(&["--resume", "--verify"]);
        assert_eq!((code, &copied["verified_bytes"]), (0, &long_content().len().into()), "{copied}");
        copy.check_complete_copy(&long_content());
    }
}

/// The bytes are in the cache, and the disk does not take them.
#[test]
fn unsynced_files_are_not_renamed() {
    let copy = CopyTest::new(false);
    for call in [libc::SYS_fsync, libc::SYS_fdatasync] {
        let (copied, code) = with_refused_calls(&[Refused::always(call, libc::EIO)], || copy.run_copy(&[]));
        assert_eq!((code, &copied["files"]), (1, &0.into()), "{copied}");
        assert!(copied["failed"][0]["error"].as_str().unwrap().contains("(EIO)"), "{copied}");
        assert!(!copy.destination_path("file").exists());
    }
}

/// Links in the destination are not followed: they may lead out of it.
#[test]
fn links_in_the_destination_are_not_followed() {
    let scene = NfsFixture::new();
    fs::create_dir(scene.path("exported/below/inside")).unwrap();
    fs::write(scene.path("exported/below/inside/file"), b"new").unwrap();
    fs::write(scene.path("exported/below/other"), b"new").unwrap();
    let server = scene.start_server(0, &[]);
    let [elsewhere, to] = ["elsewhere", "to"].map(|name| scene.path(name));
    fs::create_dir_all(to.join("below")).unwrap();
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("file"), b"old").unwrap();
    symlink(&elsewhere, to.join("below/inside")).unwrap();
    symlink(elsewhere.join("file"), to.join("below/other")).unwrap();
    let output = nocopy_command(&["cp", "-r", &server.url("/below"), to.to_str().unwrap()]).output().unwrap();
    let message = lossy_text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("below/inside: cannot be read or written (ENOTDIR)"), "{message}");
    assert_eq!(fs::read(elsewhere.join("file")).unwrap(), b"old");
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 1);
    // A link at the name of a file is replaced.
    assert!(is_regular_file_with(&to.join("below/other"), b"new"));
    // The directory that the user names may be a link.
    let named = scene.path("named");
    symlink(&to, &named).unwrap();
    fs::remove_file(to.join("below/inside")).unwrap();
    let output =
        nocopy_command(&["cp", "-r", &server.url("/below"), named.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", lossy_text(&output.stderr));
    assert!(is_regular_file_with(&to.join("below/inside/file"), b"new"));
}

fn is_regular_file_with(path: &Path, content: &[u8]) -> bool {
    fs::symlink_metadata(path).unwrap().is_file() && fs::read(path).unwrap() == content
}
