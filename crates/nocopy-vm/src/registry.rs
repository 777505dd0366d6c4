//! The definition of a test, and the list of all tests.

use std::process::ExitCode;

use crate::arguments::TestArguments;
pub(crate) use crate::failure::Failure;
use crate::guest::{self, Guest};
pub(crate) use crate::topology::{Kernel, Topology};

// One file in `tests/` is one test: the build script lists them.
include!(concat!(env!("OUT_DIR"), "/tests.rs"));

/// A test, named as its file: it runs in its own process inside a machine, with a freshly loaded driver.
pub(crate) struct Test {
    /// The fact that is proved if it passes, in one sentence.
    pub(crate) proves: &'static str,
    pub(crate) on: &'static [Topology],
    pub(crate) kernels: &'static [Kernel],
    /// The test itself. It fails by an error or, like any test, by a panic.
    pub(crate) run: fn(&Guest) -> Result<(), Failure>,
}

pub(crate) fn find_test(name: &str) -> Option<&'static Test> {
    TESTS.iter().find(|(found, _)| *found == name).map(|(_, test)| *test)
}

/// Runs one test in this process. If it fails, its standard error is the reason.
pub(crate) fn run_test(arguments: &TestArguments) -> ExitCode {
    let result = find_test(&arguments.name)
        .ok_or_else(|| {
            Failure(format!(
                "test '{}': not found; the lab has no such test; 'nocopy-vm list' lists them",
                arguments.name
            ))
        })
        .and_then(|test| (test.run)(&Guest::set_up(arguments.topology, arguments.random)?));
    guest::exit_code("nocopy-vm test", result)
}
