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

#[test]
fn an_impossible_run_is_refused_with_a_remedy() {
    for (arguments, seed, expected) in [
        (
            &["--only", "tea"][..],
            "1",
            "nocopy-vm: test 'tea': not found; the lab has no such test; 'nocopy-vm list' lists them\n",
        ),
        (
            &["--json", "/absent/file"],
            "1",
            "nocopy-vm: /absent/file: cannot be read or written (ENOENT); no such file or directory; check the path and its permissions\n",
        ),
        (
            &[],
            "tea",
            "nocopy-vm: NOCOPY_TEST_SEED: not a seed; 'tea' is neither a number nor 'random'; give one of these\n",
        ),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nocopy-vm"));
        let output = command.arg("run").args(arguments).env("NOCOPY_TEST_SEED", seed).output().unwrap();
        assert_eq!(String::from_utf8(output.stderr).unwrap(), expected);
        assert_eq!(output.status.code(), Some(2));
    }
}
