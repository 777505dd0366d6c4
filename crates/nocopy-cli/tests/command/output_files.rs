//! Files that commands write: permissions, and what is not overwritten.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nocopy_lab::refused::{Refused, with_refused_calls};

use crate::running::{lossy_text, nocopy_command};
use crate::transfer::{start_receiver_with_errors, start_sender};

/// A directory that is removed with the test.
struct ScratchDirectory(PathBuf);

impl ScratchDirectory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("nocopy-files-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// The path of a file that has something in it.
    fn path_with_content(&self, name: &str) -> String {
        let path = self.path(name);
        fs::write(&path, "precious").unwrap();
        path
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn run_with_umask(umask: &str, arguments: &[&str]) -> Output {
    let script = format!("umask {umask}; exec \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_nocopy")]).args(arguments);
    command.stdin(Stdio::null()).output().unwrap()
}

fn permission_bits(path: &str) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn receiver_arguments<'a>(address: &'a str, path: &'a str, options: &[&'a str]) -> Vec<&'a str> {
    [&["recv", address, "--duration", "1ms", "--output", path], options].concat()
}

fn assert_refused(arguments: &[&str], code: i32, word: &str) {
    let output = nocopy_command(arguments).output().unwrap();
    let said = lossy_text(&output.stderr);
    assert_eq!((output.status.code(), said.lines().count()), (Some(code), 1), "{arguments:?}: {said}");
    assert!(said.contains(word), "{arguments:?}: {said}");
}

#[test]
fn received_files_are_private_by_default() {
    let scratch = ScratchDirectory::new("received");
    for address in ["udp://127.0.0.1:0", "tcp://127.0.0.1:0"] {
        let path = scratch.path(&address[..3]);
        run_with_umask("0", &receiver_arguments(address, &path, &[]));
        assert_eq!(permission_bits(&path), 0o600, "{address}");
        run_with_umask("77", &receiver_arguments(address, &path, &["--force", "--permissions", "644"]));
        assert_eq!(permission_bits(&path), 0o644, "{address}");
        run_with_umask("0", &receiver_arguments(address, &path, &["--force"]));
        assert_eq!(permission_bits(&path), 0o600, "{address}");
    }
    for permissions in ["1777", "rw", "-1", ""] {
        let arguments =
            receiver_arguments("udp://127.0.0.1:0", "/nonexistent/file", &["--permissions", permissions]);
        assert_eq!(nocopy_command(&arguments).output().unwrap().status.code(), Some(2), "{permissions}");
    }
}

#[test]
fn recordings_are_private_by_default() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let scratch = ScratchDirectory::new("recorded");
    let path = scratch.path("file");
    let record = ["record", lab.right().interface(), "--duration", "1ms", "--output", &path];
    for (options, expected) in [(&[][..], 0o600), (&["--force", "--permissions", "640"], 0o640)] {
        let output = lab.right().namespace().run(|| run_with_umask("0", &[&record[..], options].concat()));
        assert_eq!(permission_bits(&path), expected, "{}", lossy_text(&output.stderr));
    }
}

#[test]
fn a_receiver_follows_no_symbolic_link() {
    let scratch = ScratchDirectory::new("link");
    let (target, link) = (scratch.path_with_content("target"), scratch.path("link"));
    symlink(&target, &link).unwrap();
    for address in ["udp://127.0.0.1:0", "tcp://127.0.0.1:0"] {
        assert_refused(&receiver_arguments(address, &link, &[]), 2, "--force");
        assert_refused(&receiver_arguments(address, &link, &["--force"]), 2, "symbolic link");
    }
    assert_eq!(fs::read(&target).unwrap(), b"precious");
}

#[test]
fn a_receiver_opens_its_file_without_privileges() {
    let scratch = ScratchDirectory::new("foreign");
    if !rustix::process::geteuid().is_root() || chown(&scratch.0, Some(65_534), None).is_err() {
        return nocopy_lab::skip(&nocopy_lab::Missing::Capability("CAP_CHOWN"));
    }
    for address in ["udp://127.0.0.1:0", "tcp://127.0.0.1:0"] {
        let path = scratch.path("file");
        assert_refused(&receiver_arguments(address, &path, &[]), 2, "(EACCES); permission denied");
        assert!(!Path::new(&path).exists());
    }
}

#[test]
fn results_and_reports_overwrite_files_only_with_force() {
    let scratch = ScratchDirectory::new("results");
    let path = scratch.path_with_content("file");
    let report = format!("--report={path}");
    for (arguments, code) in [
        (&["bench", "--json", &path][..], 2),
        (&["bench", "--html", &path], 2),
        (&["profile", "sweep", "--html", &path], 2),
        (&["run", &report, "--library", "/bin/true", "--", "true"], 125),
    ] {
        assert_refused(arguments, code, "--force");
    }
    assert_eq!(fs::read(&path).unwrap(), b"precious");
}

/// `ulimit -f`: an error of the write, and not the end of the process by a signal.
#[test]
fn an_output_beyond_the_file_size_limit_is_an_error() {
    let scratch = ScratchDirectory::new("limit");
    let path = scratch.path("file");
    let limited = |arguments: &[&str]| {
        let script = "ulimit -f 8; exec \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_nocopy")]).args(arguments);
        command
    };
    let mut receiver = limited(&["recv", "tcp://127.0.0.1:0", "--force", "--output", &path]);
    let mut receiver = receiver.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(receiver.stderr.take().unwrap());
    let mut said = String::new();
    errors.read_line(&mut said).unwrap();
    let to = said.trim().strip_prefix("nocopy: receiving at ").unwrap_or_else(|| panic!("{said}")).to_owned();
    nocopy_command(&["send", &to, "--count", "100", "--size", "10000"]).output().unwrap();
    errors.read_to_string(&mut said).unwrap();
    assert_eq!(receiver.wait().unwrap().code(), Some(2), "{said}");
    assert!(said.contains("(EFBIG)") && said.contains("ulimit -f"), "{said}");
    // Text of any command, if its output is a file.
    let output = fs::File::create(&path).unwrap();
    output.set_len(8 << 10).unwrap();
    let output = fs::OpenOptions::new().append(true).open(&path).unwrap();
    let refused = limited(&["man", "recv"]).stdout(output).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{}", lossy_text(&refused.stderr));
}

/// The bytes are in the cache, and the disk (or the server of the file system) does not take them.
#[test]
fn a_receiver_fails_if_its_disk_fails() {
    let scratch = ScratchDirectory::new("disk");
    let refused = [Refused::always(libc::SYS_fdatasync, libc::EIO)];
    for scheme in ["udp", "tcp"] {
        let path = scratch.path(scheme);
        let options = ["--json", "--output", &path];
        let (receiver, to, errors) =
            with_refused_calls(&refused, || start_receiver_with_errors(scheme, "127.0.0.1", &options));
        let (sent, sent_code) =
            start_sender(scheme, to, &["--json", "--count", "10", "--size", "1000"]).wait_for_summary();
        let (received, code) = receiver.wait_for_summary();
        assert_eq!((code, &received["ended"]), (2, &"failed".into()), "{received}");
        let said = errors.join().unwrap();
        assert!(said.contains(&format!("{path}: cannot be written (EIO)")), "{said}");
        // Over UDP the counts are agreed on while the file is written.
        assert!(scheme == "udp" || sent_code != 0 && sent["ended"] != "done", "{sent}");
    }
}
