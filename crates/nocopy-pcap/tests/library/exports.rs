//! The exported functions are those of the system's libpcap, and were reviewed.

use std::path::Path;
use std::process::Command;

/// Kind and name of each symbol that a library defines for others, sorted by name.
fn exported_symbols(library: &Path) -> Vec<String> {
    let output =
        Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().expect("nm of binutils");
    assert!(output.status.success(), "{}: {}", library.display(), String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let symbols = text.lines().filter_map(|line| line.split_once(' ').map(|(_, symbol)| symbol.to_owned()));
    sort_by_name(symbols.collect())
}

fn sort_by_name(mut symbols: Vec<String>) -> Vec<String> {
    symbols.sort_by(|one, other| one[2..].cmp(&other[2..]));
    symbols
}

/// The list, and the version of libpcap that its first line names.
fn reviewed_symbols_and_version() -> (Vec<String>, String) {
    let list = include_str!("../../exports.txt");
    let version = list.split_once('(').and_then(|(_, rest)| rest.split_once(')')).expect("a version").0;
    (
        sort_by_name(list.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()),
        version.into(),
    )
}

#[test]
fn exports_are_those_of_the_reviewed_list() {
    assert_eq!(exported_symbols(&crate::common::our_library()), reviewed_symbols_and_version().0);
}

#[test]
fn exports_are_those_of_the_systems_libpcap() {
    let libpcap = crate::common::system_library();
    let theirs = exported_symbols(&libpcap);
    let ours =
        exported_symbols(&crate::common::our_library()).into_iter().filter(|symbol| symbol != "T dlopen");
    let ours: Vec<_> = ours.collect();
    let is_reviewed =
        libpcap.canonicalize().unwrap().ends_with(format!("libpcap.so.{}", reviewed_symbols_and_version().1));
    // Another version may export more; it must have all of ours, of the same kind.
    let theirs: Vec<_> = theirs.into_iter().filter(|symbol| is_reviewed || ours.contains(symbol)).collect();
    assert_eq!(theirs, ours, "{}", libpcap.display());
}

fn readelf_output(what: &str, library: &Path) -> String {
    let output =
        Command::new("readelf").args(["-W", what]).arg(library).output().expect("readelf of binutils");
    assert!(output.status.success(), "{}: {}", library.display(), String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The name that the loader looks for in programs linked with a library.
fn soname(library: &Path) -> String {
    let section = readelf_output("-d", library);
    let (_, name) =
        section.split_once("soname: [").unwrap_or_else(|| panic!("{}: no name", library.display()));
    name.split_once(']').expect("a bracket").0.to_owned()
}

/// Name and size of each object that a library defines for others.
fn exported_objects(library: &Path) -> Vec<(String, usize)> {
    let symbols = readelf_output("--dyn-syms", library);
    let fields = symbols.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let objects = fields.filter(|fields| fields.len() == 8 && fields[3] == "OBJECT" && fields[6] != "UND");
    let mut objects: Vec<_> =
        objects.map(|fields| (fields[7].to_owned(), fields[2].parse().unwrap())).collect();
    objects.sort();
    objects
}

#[test]
fn the_soname_is_that_of_the_systems_libpcap() {
    assert_eq!(soname(&crate::common::our_library()), soname(&crate::common::system_library()));
}

/// Programs that hold copies of objects were linked with the sizes that the system's have.
#[test]
#[cfg_attr(nocopy_sanitizer, ignore = "the address sanitizer puts room after each object")]
fn exported_objects_have_the_sizes_of_the_systems_libpcap() {
    let theirs = exported_objects(&crate::common::system_library());
    assert!(!theirs.is_empty(), "libpcap exports its version, at least");
    assert_eq!(exported_objects(&crate::common::our_library()), theirs);
}
