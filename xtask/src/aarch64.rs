//! The nightly suite `aarch64`: everything compiles for it, and test programs and the command run once on an
//! emulated machine.

use std::path::PathBuf;

use serde::Serialize;

use crate::gate::Outcome;
use crate::machine::{self, AARCH64_LINKER};
use crate::step::{CommandStep, Failed, root, write_file};
use crate::suite::{self, Binary};
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
struct Built {
    lab: PathBuf,
    tests: Vec<Binary>,
    files: Vec<PathBuf>,
}

/// Compiles everything, including examples and tests, and runs the lab's rows on arm64.
pub(crate) fn outcome() -> Outcome {
    let build = || {
        let target = ["target", "add", TARGET];
        CommandStep::new("standard library for aarch64", "rustup", &target).run()?;
        let arguments = [&["--target", TARGET][..], suite::ALL].concat();
        suite::build(&arguments, VARIABLES)
    };
    machine::aarch64_compiler().then(|| match build().and_then(|binaries| Ok(listed(binaries)?)) {
        Ok(()) => vm::outcome_on_arm64(&root().join(BUILT).display().to_string()),
        Err(outcome) => outcome,
    })
}

/// Writes a list of the files for the machine: the test programs, and the files of the repository at the
/// paths where tests look for them.
fn listed(tests: Vec<Binary>) -> Result<(), Failed> {
    let program = |name| suite::program(&format!("{TARGET}/debug"), name);
    let lab = program("nocopy-vm");
    let mut files = vec![lab.clone(), program("nocopy")];
    files.extend(tests.iter().map(|binary| binary.path.clone()));
    let tracked =
        CommandStep::new("files of the repository", "git", &["ls-files", "-z", "--cached"]).captured()?;
    let tracked = tracked.split('\0').filter(|name| !name.is_empty()).map(|name| root().join(name));
    files.extend(tracked.filter(|path| path.is_file()));
    let text = serde_json::to_string_pretty(&Built { lab, tests, files }).expect("strings");
    write_file(&root().join(BUILT), text)
}
