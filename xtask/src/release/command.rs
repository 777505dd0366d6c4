//! `cargo xtask release X.Y.Z`: named steps, which stop at the first failure. Called again at the same
//! commit, it goes on with the steps that have not passed. What is left after it needs accounts: RELEASE.md.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::files::{FILES, release_path, work_directory};
use super::{crates, publish};
use crate::gate::{Gate, Outcome};
use crate::git::Git;
use crate::imports::read_source;
use crate::step::{CommandStep, Failed, repository_root, write_file};
use crate::workspace::Workspace;
use crate::{api, licences, oldest_rust, semver};

#[derive(Debug, Args)]
pub(crate) struct ReleaseArguments {
    /// The version that Cargo.toml and CHANGELOG.md name.
    version: String,
    /// Go on although addresses have no owner yet: nothing of it may be published.
    #[arg(long)]
    trial: bool,
}

struct ReleaseStep {
    name: &'static str,
    run: fn(&ReleaseArguments) -> Outcome,
}

/// In this order. A step whose outcome is a skip is run again by the next call.
const STEPS: &[ReleaseStep] = &[
    ReleaseStep {
        name: "version and CHANGELOG",
        run: |release| check_named_version(&release.version).into(),
    },
    ReleaseStep { name: ADDRESSES, run: check_addresses },
    ReleaseStep { name: "published crates", run: |_| crates::check_crates() },
    ReleaseStep { name: "public items", run: |_| api::check_committed_list() },
    ReleaseStep { name: "public items since 0.1.0", run: |_| semver::check_public_items() },
    ReleaseStep { name: "licences", run: |_| licences::check_licences() },
    ReleaseStep { name: "advisories", run: |_| skip_advisories() },
    ReleaseStep { name: "oldest Rust", run: |_| oldest_rust::check_with_oldest_rust() },
    ReleaseStep { name: "crates", run: |release| crates::pack_and_install(&release.version) },
    ReleaseStep { name: "archives, packages, image, tried in clean roots", run: |_| super::build_and_try() },
    ReleaseStep { name: "wheels, tried", run: |_| super::try_built_wheels() },
];

const ADDRESSES: &str = "addresses";

const CHECKSUMS: &str = "SHA256SUMS";

const CHANGELOG: &str = "CHANGELOG.md";

pub(crate) fn run_command(arguments: &ReleaseArguments) -> Result<ExitCode, Failed> {
    let ReleaseArguments { version, trial } = arguments;
    let mut gate = Gate::default();
    if !run_step(&mut gate, "clean tree", || check_clean_tree().into()).is_some_and(|passed| passed) {
        gate.print_summary();
        return Ok(ExitCode::FAILURE);
    }
    let commit = Git::at(&repository_root()).command_output(&["rev-parse", "HEAD"])?;
    let mut finished = FinishedSteps::read_or_begin(&work_directory(version), &commit)?;
    for ReleaseStep { name, run } in STEPS {
        if finished.has(name) {
            eprintln!("xtask: {name}: passed before, at this commit");
            continue;
        }
        match run_step(&mut gate, name, || run(arguments)) {
            Some(true) => finished.add(name)?,
            Some(false) => {}
            None => {
                gate.print_summary();
                eprintln!(
                    "xtask: release {version}: stopped at '{name}'; call 'cargo xtask release {version}' again to go on from there"
                );
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    gate.run(CHECKSUMS, || write_checksums().into()); // each time: files may be gone since a step passed
    let passed = gate.print_summary();
    let next = if *trial { "a trial, do not publish them" } else { "RELEASE.md says how to publish them" };
    eprintln!("xtask: release {version}: the files are in {FILES}; {next}");
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether a step has passed; `Some(false)`: it was skipped. `None`: it has failed.
fn run_step(gate: &mut Gate, name: &'static str, run: impl FnOnce() -> Outcome) -> Option<bool> {
    let mut ended = None;
    gate.run(name, || {
        let outcome = run();
        ended = (!outcome.has_failed()).then(|| outcome.is_good());
        outcome
    });
    ended
}

/// The steps that have passed, in a file: the commit, then a line for each.
#[derive(Debug)]
struct FinishedSteps {
    path: PathBuf,
    commit: String,
    names: Vec<String>,
}

impl FinishedSteps {
    /// Those of this commit. If there are ones of another commit, everything that they made is removed.
    fn read_or_begin(directory: &Path, commit: &str) -> Result<Self, Failed> {
        let path = directory.join("finished");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(Failed(format!("{}: {error}", path.display()))),
        };
        let mut lines = text.lines().map(str::to_owned);
        let names = if lines.next().as_deref() == Some(commit) { lines.collect() } else { Vec::new() };
        if names.is_empty() {
            for made in [directory, &directory.with_file_name("release-files")] {
                match fs::remove_dir_all(made) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(Failed(format!("{}: {error}", made.display())));
                    }
                    _ => {}
                }
            }
        }
        Ok(Self { path, commit: commit.to_owned(), names })
    }

    fn has(&self, name: &str) -> bool {
        self.names.iter().any(|finished| finished == name)
    }

    fn add(&mut self, name: &str) -> Result<(), Failed> {
        self.names.push(name.to_owned());
        write_file(&self.path, format!("{}\n{}\n", self.commit, self.names.join("\n")))
    }
}

fn check_clean_tree() -> Result<(), Failed> {
    let what = ["status", "--porcelain", "--untracked-files=all"];
    let changed = Git::at(&repository_root()).command_output(&what)?;
    if changed.is_empty() {
        return Ok(());
    }
    Err(Failed(format!(
        "clean tree: files differ from the commit; a release is of a commit; commit them or remove them ('git {}')\n{changed}",
        what.join(" ")
    )))
}

/// Whether all crates, their requirements of each other, and the newest part of CHANGELOG have this version.
fn check_named_version(version: &str) -> Result<(), Failed> {
    let mut wrong = version_differences(&Workspace::read()?, version);
    let named = newest_version(&read_source(&repository_root().join(CHANGELOG))?).to_owned();
    if named != version {
        wrong.push(format!("{CHANGELOG}: begins with '{named}'"));
    }
    if wrong.is_empty() {
        return Ok(());
    }
    Err(Failed(format!("version: not {version} everywhere; write it there\n{}", wrong.join("\n"))))
}

/// The first word of the first heading of a part.
fn newest_version(changelog: &str) -> &str {
    let heading = changelog.lines().find_map(|line| line.strip_prefix("## ")).unwrap_or_default();
    heading.split(' ').next().unwrap_or_default()
}

fn version_differences(workspace: &Workspace, version: &str) -> Vec<String> {
    let fits = |requirement: &str| requirement.trim_start_matches(['=', '^']) == version;
    let mut wrong = Vec::new();
    for member in workspace.published_crates() {
        if member.version != version {
            wrong.push(format!("{}: has {}", member.name, member.version));
        }
        let others = member.packed_dependencies().filter(|dependency| !fits(&dependency.req));
        wrong.extend(others.map(|other| format!("{}: needs {} {}", member.name, other.name, other.req)));
    }
    wrong
}

/// A skip of a trial if an address has no owner.
fn check_addresses(arguments: &ReleaseArguments) -> Outcome {
    match publish::check_addresses() {
        Err(Failed(why)) if arguments.trial => Outcome::skipped(ADDRESSES, why.replace('\n', "; ")),
        checked => checked.into(),
    }
}

fn skip_advisories() -> Outcome {
    Outcome::skipped(
        "advisories",
        "the advisory database, which a build machine need not reach: run 'cargo xtask advisories' where it is",
    )
}

/// Writes the SHA-256 of each released file. Errors: a kind of them is missing.
fn write_checksums() -> Result<(), Failed> {
    let directory = release_path("");
    let failed = |error: io::Error| Failed(format!("{}: {error}", directory.display()));
    const ENDINGS: [&str; 4] = [".crate", ".tar.gz", ".deb", ".whl"];
    let mut names = Vec::new();
    for entry in fs::read_dir(&directory).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        if ENDINGS.iter().any(|end| name.ends_with(end)) {
            names.push(name);
        }
    }
    if let Some(missing) = ENDINGS.iter().find(|end| !names.iter().any(|name| name.ends_with(**end))) {
        return Err(Failed(format!(
            "{}: no file ends with '{missing}'; remove target/release-X.Y.Z, and make the release again",
            directory.display()
        )));
    }
    names.sort();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let sums = CommandStep::new(CHECKSUMS, "sha256sum", &names).in_directory(&directory).captured_output()?;
    write_file(&directory.join(CHECKSUMS), sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_another_commit_begin_anew() {
        let directory = tempfile::tempdir().unwrap();
        let work = directory.path().join("release-1.2.3");
        let mut finished = FinishedSteps::read_or_begin(&work, "0123").unwrap();
        finished.add("licences").unwrap();
        finished.add("oldest Rust").unwrap();
        write_file(&directory.path().join("release-files/made"), "").unwrap();
        let again = FinishedSteps::read_or_begin(&work, "0123").unwrap();
        assert!(again.has("licences") && again.has("oldest Rust") && !again.has("crates"), "{again:?}");
        assert!(directory.path().join("release-files/made").exists());
        let other = FinishedSteps::read_or_begin(&work, "4567").unwrap();
        assert!(!other.has("licences"), "{other:?}");
        assert!(!directory.path().join("release-files").exists() && !work.exists());
    }

    #[test]
    fn the_newest_version_is_that_of_the_first_heading() {
        assert_eq!(newest_version("# Changelog\n\n## 0.2.0 (2026-12-01)\n\n## 0.1.0\n"), "0.2.0");
        assert_eq!(newest_version("# Changelog\n"), "");
    }

    #[test]
    fn a_version_that_differs_is_named() {
        let workspace = Workspace::read().unwrap();
        let version = workspace.published_crates().next().unwrap().version.clone();
        assert_eq!(version_differences(&workspace, &version), [""; 0]);
        let wrong = version_differences(&workspace, "9.9.9").join("\n");
        for expected in ["nocopy: has ", "nocopy: needs nocopy-proto ^", "nocopy-cli: needs nocopy-bench ="] {
            assert!(wrong.contains(expected), "{expected}: {wrong}");
        }
    }
}
