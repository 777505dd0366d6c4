//! The nightly suite `newcomer`: a new user's first hour, as scripts on a bare Debian, and the tutorials as
//! they are written.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::gate::Outcome;
use crate::imports::read_source;
use crate::machine;
use crate::step::{CommandStep, Failed, repository_root, run_steps, write_file};

/// The scripts and the programs (`crates/nocopy` is all that these use).
const SCRIPTS: &str = "xtask/newcomer";

/// The tasks in order: the second uses the command that the first one built.
const TASKS: [&str; 3] = ["measure.sh", "replay.sh", "program.sh"];

/// Documents in `docs/` whose blocks of shell commands are run, each in a directory of its own; then the
/// script of the same name in `checks/`, which must succeed.
pub(crate) const TUTORIALS: [&str; 3] = ["capture", "readout", "directory"];

/// Of a task, which may wait for what never comes. The first one compiles.
const TASK_TIME_MAX: &str = "1h";

const DEBIAN: &str = "target/newcomer";

/// Where the command is, in that Debian: the one that the first task builds, or a copy of one that was
/// installed.
const BUILT: &str = "/root/nocopy/target/release";
const INSTALLED: &str = "/opt/nocopy";

/// Debian's standard system, and the linker without which Rust cannot be installed.
const SUITE: &str = "bookworm";
const PACKAGES: &str = "--include=gcc,libc6-dev";

pub(crate) fn run_newcomer_tasks() -> Outcome {
    run_on_debian(|debian| {
        let tasks = TASKS.into_iter().map(|task| run_task(debian, task));
        let built = tasks.reduce(Outcome::merged_with).unwrap_or_default();
        built.merged_with(run_tutorials(debian, BUILT))
    })
}

/// Only the tutorials, with the command of that directory instead of one that is built.
pub(crate) fn run_tutorials_with_installed(directory: &Path) -> Outcome {
    let copy = |debian: &Path| {
        let to = debian.join(INSTALLED.trim_start_matches('/')).display().to_string();
        let from = directory.display().to_string();
        CommandStep::new("the installed command", "cp", &["--recursive", "--dereference", &from, &to]).run()
    };
    let outcome = run_on_debian(|debian| {
        copy(debian).map_or_else(Outcome::from, |()| run_tutorials(debian, INSTALLED))
    });
    outcome.with_remark("only the tutorials, with an installed command: the suite's row is as before")
}

fn run_on_debian(run: impl FnOnce(&Path) -> Outcome) -> Outcome {
    let debian = repository_root().join(DEBIAN);
    let outcome = machine::install_debian_installer()
        .then(|| prepare_debian(&debian).map_or_else(Outcome::from, |()| run(&debian)));
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

fn run_tutorials(debian: &Path, command: &str) -> Outcome {
    let run = |name: &str| {
        let task = format!("{name}.sh");
        let script = tutorial_script(name, command)?;
        write_file(&debian.join("root").join(&task), script)?;
        Ok(run_task(debian, &task))
    };
    let run = |name| run(name).unwrap_or_else(|failed: Failed| failed.into());
    TUTORIALS.into_iter().map(run).reduce(Outcome::merged_with).unwrap_or_default()
}

/// The commands of a tutorial, as they are written, with the command in the path, and what must hold then.
pub(crate) fn tutorial_script(name: &str, command: &str) -> Result<String, Failed> {
    let document = read_source(&repository_root().join(format!("docs/{name}.md")))?;
    let checks = read_source(&repository_root().join(SCRIPTS).join(format!("checks/{name}.sh")))?;
    let commands = shell_commands(&document);
    if commands.is_empty() {
        return Err(Failed(format!("docs/{name}.md: has no block of shell commands")));
    }
    Ok(format!("PATH={command}:$PATH\nmkdir /root/{name}\ncd /root/{name}\n{commands}{checks}"))
}

/// The blocks of a document that are marked `sh`, one after the other. Others show output, or are not run.
fn shell_commands(document: &str) -> String {
    let (mut commands, mut is_shell) = (String::new(), false);
    for line in document.lines() {
        match line.strip_prefix("```") {
            Some(language) => is_shell = language == "sh",
            None if is_shell => {
                commands += line;
                commands.push('\n');
            }
            None => {}
        }
    }
    commands
}

fn run_task(debian: &Path, task: &str) -> Outcome {
    let enter = repository_root().join(SCRIPTS).join("enter.sh").display().to_string();
    let [debian, cargo, rustup] =
        [debian.to_owned(), rust_directory("CARGO_HOME", ".cargo"), rust_directory("RUSTUP_HOME", ".rustup")]
            .map(|path| path.display().to_string());
    let namespaces = ["--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-eu"];
    let command = [&enter, &debian, &cargo, &rustup, task];
    let arguments = [&["--kill-after=10s", TASK_TIME_MAX, "unshare"], &namespaces[..], &command].concat();
    CommandStep::new(task, "timeout", &arguments).run().into()
}

/// A directory of Rust: from the environment variable, or the usual one.
fn rust_directory(variable: &str, usual: &str) -> PathBuf {
    let named = env::var_os(variable).map(PathBuf::from);
    named.unwrap_or_else(|| PathBuf::from(env::var_os("HOME").unwrap_or_default()).join(usual))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_blocks_of_shell_commands_are_run() {
        let text =
            "a\n```sh\none\n\ntwo\n```\n```\noutput\n```\n```rust\nlet a;\n```\n`three`\n```sh\nfour\n```\n";
        assert_eq!(shell_commands(text), "one\n\ntwo\nfour\n");
    }

    #[test]
    fn every_tutorial_has_commands_and_checks() {
        for name in TUTORIALS {
            let script = tutorial_script(name, BUILT).unwrap();
            assert!(script.contains("nocopy ") && script.contains("ip netns add"), "{script}");
        }
    }
}
