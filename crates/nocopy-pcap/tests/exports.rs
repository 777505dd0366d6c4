//! What the library exports is what Debian's libpcap does, by the list that was reviewed.
#![allow(missing_docs)]

mod common;

use std::path::Path;
use std::process::Command;

/// Kind and name of each symbol that a library defines for others, sorted by name.
fn exported(library: &Path) -> Vec<String> {
    let output =
        Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().expect("nm of binutils");
    assert!(output.status.success(), "{}: {}", library.display(), String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let symbols = text.lines().filter_map(|line| line.split_once(' ').map(|(_, symbol)| symbol.to_owned()));
    sorted(symbols.collect())
}

fn sorted(mut symbols: Vec<String>) -> Vec<String> {
    symbols.sort_by(|one, other| one[2..].cmp(&other[2..]));
    symbols
}

fn reviewed() -> Vec<String> {
    let list = include_str!("../exports.txt");
    sorted(list.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect())
}

#[test]
fn the_library_exports_what_was_reviewed() {
    assert_eq!(reviewed().len(), 96);
    assert_eq!(exported(&common::our_library()), reviewed());
}

#[test]
fn debian_exports_what_was_reviewed() {
    let libpcap = common::system_library();
    if libpcap.canonicalize().unwrap().ends_with("libpcap.so.1.10.3") {
        assert_eq!(exported(&libpcap), reviewed());
    } else {
        // Another version may export more; what ours has it has, or a program linked with it would not start with ours.
        let theirs = exported(&libpcap);
        let missing: Vec<_> = reviewed().into_iter().filter(|symbol| !theirs.contains(symbol)).collect();
        assert!(missing.is_empty(), "{}: {missing:?}", libpcap.display());
    }
}

#[test]
fn the_library_has_the_name_that_programs_ask_for_and_objects_of_the_right_size() {
    let read = |what: &str, library: &Path| {
        let output =
            Command::new("readelf").args(["-W", what]).arg(library).output().expect("readelf of binutils");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(read("-d", &common::our_library()).contains("soname: [libpcap.so.0.8]"));
    // Programs that hold copies of them were linked with these sizes.
    let sizes = |library: &Path| -> Vec<(String, String)> {
        let symbols = read("--dyn-syms", library);
        let fields = symbols.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let objects =
            fields.filter(|fields| fields.len() == 8 && fields[3] == "OBJECT" && fields[6] != "UND");
        let mut sizes: Vec<_> = objects.map(|fields| (fields[7].to_owned(), fields[2].to_owned())).collect();
        sizes.sort();
        sizes
    };
    let expected =
        [("eproto_db", "208"), ("pcap_version", "7")].map(|(name, size)| (name.into(), size.into()));
    assert_eq!(sizes(&common::our_library()), expected);
}
