//! The list of programs built for machines that cannot run the host's programs: `cargo xtask nightly aarch64`
//! writes it, and the lab copies them into the machine.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The path of the list of test programs in such a machine.
pub(crate) const TESTS: &str = "/tests.json";

#[derive(Debug, Deserialize)]
pub(crate) struct BuiltPrograms {
    /// The lab's own program, one of the files; the command is in the same directory.
    pub(crate) lab: PathBuf,
    pub(crate) tests: Vec<TestProgram>,
    /// All files that the machine needs, at the same paths as here.
    pub(crate) files: Vec<PathBuf>,
}

/// A program of tests, as cargo builds them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct TestProgram {
    /// `package`, or `package::target`.
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) directory: PathBuf,
}
