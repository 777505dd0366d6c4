//! The nightly suite `aarch64`: everything compiles for it, and test programs and the command run once on an
//! emulated machine.

use std::path::PathBuf;

use serde::Serialize;

use crate::gate::Outcome;
use crate::machine::{self, AARCH64_LINKER};
use crate::step::{CommandStep, Failed, repository_root, write_file};
use crate::suite::{self, TestBinary};
use crate::vm;

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// The list of built programs, for the lab (`crates/nocopy-vm/src/built.rs`).
const BUILT: &str = "target/xtask/aarch64.json";

/// Variables for the compiler: no debug information, which would fill the machine's memory, and optimised,
/// since an emulated processor is slow: in the time of 160 of the library's unit tests without, all 385 end.
const VARIABLES: &[(&str, &str)] = &[
    ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", AARCH64_LINKER),
    ("CARGO_PROFILE_DEV_DEBUG", "none"),
    ("CARGO_PROFILE_DEV_OPT_LEVEL", "1"),
];

#[derive(Serialize)]
struct Aarch64Build {
    lab: PathBuf,
    tests: Vec<TestBinary>,
    files: Vec<PathBuf>,
}

/// Compiles everything, including examples and tests, and runs the lab's rows on arm64.
pub(crate) fn build_and_test_on_arm64() -> Outcome {
    let build = || {
        let target = ["target", "add", TARGET];
        CommandStep::new("standard library for aarch64", "rustup", &target).run()?;
        let arguments = [&["--target", TARGET][..], suite::ALL].concat();
        suite::build_tests(&arguments, VARIABLES)
    };
    machine::install_aarch64_compiler().then(|| {
        match build().and_then(|binaries| Ok(write_file_list(binaries)?)) {
            Ok(()) => vm::run_on_arm64(&repository_root().join(BUILT).display().to_string()),
            Err(outcome) => outcome,
        }
    })
}

/// Writes a list of the files for the machine: the test programs, and the files of the repository at the
/// paths where tests look for them.
fn write_file_list(tests: Vec<TestBinary>) -> Result<(), Failed> {
    let program = |name| suite::built_program(&format!("{TARGET}/debug"), name);
    let lab = program("nocopy-vm");
    let mut files = vec![lab.clone(), program("nocopy")];
    files.extend(tests.iter().map(|binary| binary.path.clone()));
    let tracked = CommandStep::new("files of the repository", "git", &["ls-files", "-z", "--cached"])
        .captured_output()?;
    let tracked =
        tracked.split('\0').filter(|name| !name.is_empty()).map(|name| repository_root().join(name));
    files.extend(tracked.filter(|path| path.is_file()));
    let text = serde_json::to_string_pretty(&Aarch64Build { lab, tests, files }).expect("strings");
    write_file(&repository_root().join(BUILT), text)
}
