//! The nightly suite `newcomer`: a new user's first hour, as scripts on a bare Debian.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::gate::Outcome;
use crate::machine;
use crate::step::{CommandStep, Failed, repository_root, run_steps};

/// The scripts and the programs (`crates/nocopy` is all that these use).
const SCRIPTS: &str = "xtask/newcomer";

/// The tasks in order: the second uses the command that the first one built.
const TASKS: [&str; 3] = ["measure.sh", "replay.sh", "program.sh"];

const DEBIAN: &str = "target/newcomer";

/// Debian's standard system, and the linker without which Rust cannot be installed.
const SUITE: &str = "bookworm";
const PACKAGES: &str = "--include=gcc,libc6-dev";

pub(crate) fn run_newcomer_tasks() -> Outcome {
    let debian = repository_root().join(DEBIAN);
    let tasks = || {
        TASKS.into_iter().map(|task| run_task(&debian, task)).reduce(Outcome::merged_with).unwrap_or_default()
    };
    let outcome = machine::install_debian_installer()
        .then(|| prepare_debian(&debian).map_or_else(Outcome::from, |()| tasks()));
    // Some gigabytes, only useful after a failure.
    if outcome.is_good() {
        let _ = fs::remove_dir_all(&debian);
    }
    outcome
}

/// A fresh Debian with a clone of the last commit.
fn prepare_debian(debian: &Path) -> Result<(), Failed> {
    if debian.exists() {
        fs::remove_dir_all(debian).map_err(|error| path_error(debian, &error))?;
    }
    let place = |below: &str| debian.join(below).display().to_string();
    // Its mounts end with it, however it ends.
    let install = ["--mount", "debootstrap", PACKAGES, SUITE, &place("")];
    let programs = repository_root().join(SCRIPTS).join("programs").display().to_string();
    run_steps(&[
        CommandStep::cargo("crates", &["fetch", "--locked"]),
        CommandStep::new("a bare Debian", "unshare", &install),
        CommandStep::new("clone", "git", &["clone", "--quiet", ".", &place("root/nocopy")]),
        CommandStep::new(
            "programs of a newcomer",
            "cp",
            &["--recursive", &programs, &place("root/programs")],
        ),
    ])?;
    let script = |task| (repository_root().join(SCRIPTS).join(task), debian.join("root").join(task));
    let lock = (repository_root().join("Cargo.lock"), debian.join("root/Cargo.lock"));
    TASKS
        .map(script)
        .into_iter()
        .chain([lock])
        .try_for_each(|(from, to)| fs::copy(&from, to).map(drop).map_err(|error| path_error(&from, &error)))
}

fn path_error(path: &Path, error: &std::io::Error) -> Failed {
    Failed(format!("{}: {error}", path.display()))
}

fn run_task(debian: &Path, task: &str) -> Outcome {
    let enter = repository_root().join(SCRIPTS).join("enter.sh").display().to_string();
    let [debian, cargo, rustup] =
        [debian.to_owned(), rust_directory("CARGO_HOME", ".cargo"), rust_directory("RUSTUP_HOME", ".rustup")]
            .map(|path| path.display().to_string());
    let namespaces = ["--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-eu"];
    let arguments = [&namespaces[..], &[&enter, &debian, &cargo, &rustup, task]].concat();
    CommandStep::new(task, "unshare", &arguments).run().into()
}

/// A directory of Rust: from the environment variable, or the usual one.
fn rust_directory(variable: &str, usual: &str) -> PathBuf {
    let named = env::var_os(variable).map(PathBuf::from);
    named.unwrap_or_else(|| PathBuf::from(env::var_os("HOME").unwrap_or_default()).join(usual))
}
