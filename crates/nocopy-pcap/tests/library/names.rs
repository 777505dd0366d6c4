//! libpcap under the names that it has elsewhere: linked with, or opened while the program runs.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::common::{
    LibraryKind, ScratchDirectory, command_with_our_library, compile_linked_with, compile_program,
    run_program, system_library,
};
use crate::own_behaviour::ONLY_OURS;

/// The system's libpcap as Fedora, Arch, Alpine and openSUSE have it: under another name, also in its own
/// header.
fn libpcap_with_another_soname(scratch: &ScratchDirectory) -> PathBuf {
    let (name, other) = (b"libpcap.so.0.8\0", b"libpcap.so.1\0\0\0");
    let mut bytes = std::fs::read(system_library()).unwrap();
    let places: Vec<_> = (0..bytes.len() - name.len()).filter(|at| bytes[*at..].starts_with(name)).collect();
    assert!(!places.is_empty(), "its name is not in it");
    places.into_iter().for_each(|at| bytes[at..][..name.len()].copy_from_slice(other));
    let path = scratch.path().join("libpcap.so.1");
    std::fs::write(&path, bytes).unwrap();
    path
}

/// The loader has both libraries then.
#[test]
fn programs_linked_with_another_name_of_libpcap_use_this_library() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let scratch = ScratchDirectory::new("renamed");
    let program = compile_linked_with("own_behaviour", &scratch, &libpcap_with_another_soname(&scratch));
    let output = run_program(&program, LibraryKind::Ours, &lab);
    assert_eq!(output.lines[..ONLY_OURS.len()], ONLY_OURS, "{output:#?}");
    assert!(output.status.success(), "{output:#?}");
}

#[test]
fn programs_that_open_libpcap_by_any_name_get_this_library() {
    let scratch = ScratchDirectory::new("names");
    let program = compile_program("names", &scratch);
    let system = system_library();
    let other = libpcap_with_another_soname(&scratch);
    let names = [
        OsStr::new("libpcap.so"),
        OsStr::new("libpcap.so.1"),
        OsStr::new("libpcap.so.0.8"),
        OsStr::new("/usr/lib64/libpcap.so.1"),
        system.as_os_str(),
        other.as_os_str(),
    ];
    let output = command_with_our_library(&program).args(names).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let expected =
        names.map(|name| format!("{}: libnocopy_pcap.so of libpcap version", Path::new(name).display()));
    assert_eq!(stdout.lines().collect::<Vec<_>>(), expected, "{}", String::from_utf8_lossy(&output.stderr));
}

/// A program that can do without libpcap is not given one that ends it at the first call.
#[test]
fn without_the_systems_libpcap_dlopen_finds_none() {
    let scratch = ScratchDirectory::new("absent");
    let program = compile_linked_with("names", &scratch, Path::new("-ldl"));
    let absent = scratch.path().join("libpcap.so.2");
    let mut command = command_with_our_library(&program);
    let output =
        command.arg(&absent).env("NOCOPY_SYSTEM_LIBPCAP", "/nonexistent/libpcap.so").output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(stdout, format!("{}: none\n", absent.display()));
}
