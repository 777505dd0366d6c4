//! The nightly suite `workflows`: actionlint accepts the files in `.github/workflows`.

use std::fs;

use crate::gate::Outcome;
use crate::machine;
use crate::step::{CommandStep, Failed, files_with_ending};
use crate::suite::built_program;

/// From Go's module proxy, pinned: another version may find more.
const ACTIONLINT: &str = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.7";

const WORKFLOWS: &str = ".github/workflows";

pub(crate) fn check_workflows() -> Outcome {
    machine::install_go().then(|| check_with_actionlint().into())
}

fn check_with_actionlint() -> Result<(), Failed> {
    let place = built_program("tools", "bin");
    fs::create_dir_all(&place).map_err(|error| Failed(format!("{}: {error}", place.display())))?;
    CommandStep::new("install actionlint", "go", &["install", ACTIONLINT])
        .with_variable("GOBIN", &place.display().to_string())
        .with_variable("GOFLAGS", "-mod=mod")
        .run()?;
    let files = files_with_ending(WORKFLOWS, ".yml")?;
    let paths: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
    let all: Vec<&str> = paths.iter().map(String::as_str).collect();
    CommandStep::new("workflows", &place.join("actionlint").display().to_string(), &all).run()
}
