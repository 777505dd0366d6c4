//! Behaviour only of our library: finding the system's, ignoring the environment of others, refusing endless
//! calls.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::{
    LibraryKind, ScratchDirectory, command_with_our_library, compile_program, our_library, run_program,
};
use nocopy_lab::{Missing, skip};

const VARIABLE: &str = "NOCOPY_SYSTEM_LIBPCAP";

fn stdout_and_stderr(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_missing_libpcap_is_reported_at_the_first_call() {
    let scratch = ScratchDirectory::new("missing");
    let program = compile_program("own_behaviour", &scratch);
    let with = |path: &Path, what: &str| {
        stdout_and_stderr(&command_with_our_library(&program).arg(what).env(VARIABLE, path).output().unwrap())
    };
    let (_, error) = with(Path::new("/nonexistent/libpcap.so"), "version");
    assert!(
        error.contains("/nonexistent/libpcap.so: cannot be loaded; ")
            && error.contains(VARIABLE)
            && error.lines().count() == 1,
        "{error}"
    );
    let (_, error) = with(&our_library(), "version");
    assert!(error.contains("this library itself"), "{error}");
    let no_library = scratch.path().join("text");
    std::fs::write(&no_library, "not a library").unwrap();
    let output =
        command_with_our_library(&program).arg("version").env(VARIABLE, &no_library).output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    // A program that calls no function needs no library.
    let (stdout, error) = with(Path::new("/nonexistent/libpcap.so"), "nothing");
    assert_eq!((stdout.as_str(), error.as_str()), ("nothing was called\n", ""));
    let (stdout, error) = with(&crate::common::system_library(), "version");
    assert!(stdout.contains("libpcap version") && error.is_empty(), "{stdout}{error}");
}

/// A program linked with our library, as if that were installed for the whole system.
fn compile_linked_with_ours(scratch: &ScratchDirectory) -> PathBuf {
    let directory = scratch.path().join("lib");
    std::fs::create_dir_all(&directory).unwrap();
    symlink(our_library(), directory.join("libpcap.so.0.8")).unwrap();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let program = scratch.path().join("linked");
    let mut cc = Command::new("cc");
    cc.args(["-pthread", "-o"]).arg(&program).arg(sources.join("own_behaviour.c"));
    cc.arg(directory.join("libpcap.so.0.8")).arg(format!("-Wl,-rpath,{}", directory.display()));
    let built = cc.output().expect("cc, a C compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    program
}

#[test]
#[cfg_attr(
    nocopy_sanitizer,
    ignore = "needs the address sanitizer's library, which such a program does not preload"
)]
fn elevated_processes_ignore_the_environment_variables() {
    let scratch = ScratchDirectory::new("secure");
    let program = compile_linked_with_ours(&scratch);
    let run = |what| {
        stdout_and_stderr(&Command::new(&program).arg(what).env(VARIABLE, "/nonexistent").output().unwrap())
    };
    let (stdout, error) = run("version");
    assert!(error.contains(VARIABLE), "it listens to it as anybody: {stdout}{error}");
    let Ok(()) = std::os::unix::fs::chown(&program, Some(65534), None) else {
        return skip(&Missing::Capability("CAP_CHOWN"));
    };
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();
    if run("secure").0 != "secure 1\n" {
        return skip(&Missing::Device("a temporary directory whose programs may be setuid"));
    }
    let (stdout, error) = run("version");
    assert!(stdout.starts_with("libpcap version"), "{stdout}{error}");
}

/// What `own_behaviour.c` prints first, with this library alone.
pub(crate) const ONLY_OURS: [&str; 7] = [
    "back: -1 filter: refused; it jumps backwards, as 'ip6 protochain' does; filter for the protocol itself",
    "long and back: -1 filter: refused; it jumps backwards, as 'ip6 protochain' does; filter for the protocol itself",
    "loop: 0",
    "next in a callback: -1 handle: cannot be read; another call is reading its packets; wait until that has returned",
    "loop: 0",
    "all the same: 5 packets, 1310 bytes of 1310, sum 04402d57, times good",
    "closed: -2",
];

#[test]
fn endless_filters_and_nested_reads_are_refused() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let scratch = ScratchDirectory::new("alone");
    let output = run_program(&compile_program("own_behaviour", &scratch), LibraryKind::Ours, &lab);
    assert_eq!(output.lines[..ONLY_OURS.len()], ONLY_OURS, "{output:#?}");
    assert!(output.lines[ONLY_OURS.len()].starts_with("until then: 3 packets"), "{output:#?}");
    assert!(output.status.success(), "{output:#?}");
}
