//! The library exports exactly the reviewed functions, and the C library has all of them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Names of the functions that a library defines for others.
fn exported_functions(library: &Path) -> BTreeSet<String> {
    let output =
        Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().expect("nm of binutils");
    assert!(output.status.success(), "{}: {}", library.display(), String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let name = |line: &str| line.rsplit(' ').next().unwrap().split('@').next().unwrap().to_owned();
    text.lines().map(name).collect()
}

fn reviewed_functions() -> BTreeSet<String> {
    let list = include_str!("../../exports.txt");
    list.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn exports_are_those_of_the_reviewed_list() {
    assert_eq!(exported_functions(&crate::common::our_library()), reviewed_functions());
}

/// A name that the C library does not have would be a function without anything behind it.
#[test]
fn every_export_exists_in_the_c_library() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .find(|path| path.contains("libc.so.6"));
    let theirs = exported_functions(Path::new(path.expect("this program has a C library")));
    let missing: Vec<_> = reviewed_functions().into_iter().filter(|name| !theirs.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
