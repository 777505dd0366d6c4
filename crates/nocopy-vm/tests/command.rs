//! The lab's command, without a machine.
#![allow(missing_docs)]

use std::path::Path;
use std::process::Command;

#[test]
fn the_list_names_every_test_file() {
    let output = Command::new(env!("CARGO_BIN_EXE_nocopy-vm")).arg("list").output().unwrap();
    assert!(output.status.success());
    let list = String::from_utf8(output.stdout).unwrap();
    let files = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests")).unwrap();
    let names: Vec<String> =
        files.map(|file| file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        assert!(list.split_whitespace().any(|word| word == name), "{name} is not listed:\n{list}");
    }
}
