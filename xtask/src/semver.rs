//! The nightly suite `semver`: whether programs written for 0.1.0 still compile, by cargo-semver-checks. It
//! does not see that the type of a parameter or of a field has changed.

use crate::gate::Outcome;
use crate::git::Git;
use crate::imports::read_source;
use crate::step::{CommandStep, Failed, repository_root};
use crate::suite::install_tool;

/// The program of crates.io, with its version: one that reads what Rust 1.93 to 1.95 say of a crate.
const PROGRAM: [&str; 2] = ["cargo-semver-checks", "0.51.0"];

/// The crates whose public items programs use.
const CRATES: [&str; 2] = ["nocopy", "nocopy-proto"];

const CHANGELOG: &str = "CHANGELOG.md";

/// Begins the line of CHANGELOG that names the commit.
const SURFACE: &str = "Surface: ";

/// The exit code when the check has run and found a difference.
const FOUND: i32 = 100;

/// Compares the public items with those of the commit that CHANGELOG names. Both are compiled with the
/// newest dependencies that fit, which are read from the registry.
pub(crate) fn check_public_items() -> Outcome {
    let checked = || {
        let surface = commit_of_surface(&read_source(&repository_root().join(CHANGELOG))?)?;
        check_presence(&surface)?;
        let program = install_tool(PROGRAM)?.display().to_string();
        let check = ["semver-checks", "--baseline-rev", &surface, "--all-features"];
        // What is added breaks no program; the version number is the same.
        let settings = ["--release-type", "minor"];
        let crates = CRATES.map(|name| ["--package", name]).concat();
        let what = [&check[..], &settings, &crates].concat();
        let step = CommandStep::new("public items since 0.1.0", &program, &what);
        Ok(outcome_of_check(step.run_for_status()?, &surface))
    };
    checked().unwrap_or_else(|failed: Failed| failed.into())
}

fn outcome_of_check((code, output): (Option<i32>, String), surface: &str) -> Outcome {
    let fact = match code {
        Some(0) => return Outcome::passed().with_remark(format!("against {surface}")),
        Some(FOUND) => format!(
            "programs written for 0.1.0 ({surface}) do not compile; put back what is missing, or, if it was \
             meant to go, name the commit without it in {CHANGELOG}"
        ),
        _ => format!("{} did not compare; its messages follow", PROGRAM[0]),
    };
    Outcome::failed("public items since 0.1.0", format!("{fact}\n{output}"))
}

/// The commit at the start of CHANGELOG's first line `Surface: COMMIT`.
fn commit_of_surface(changelog: &str) -> Result<String, Failed> {
    let named = changelog.lines().find_map(|line| line.strip_prefix(SURFACE)).unwrap_or("none");
    let commit = named.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
    if commit.len() >= 8 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(commit.to_owned());
    }
    Err(Failed(format!(
        "{CHANGELOG}: the line of 0.1.0's commit has '{named}'; write '{SURFACE}COMMIT' with eight digits or more"
    )))
}

fn check_presence(commit: &str) -> Result<(), Failed> {
    let object = format!("{commit}^{{commit}}");
    let found = Git::at(&repository_root()).command_output(&["cat-file", "-e", &object]);
    found.map(drop).map_err(|Failed(why)| {
        Failed(format!(
            "{CHANGELOG} names commit {commit}, which this clone does not have; fetch it with 'git fetch --unshallow'\n{why}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changelog_names_a_commit() {
        let changelog = read_source(&repository_root().join(CHANGELOG)).unwrap();
        commit_of_surface(&changelog).unwrap();
    }

    #[test]
    fn the_first_line_with_a_commit_is_read() {
        for text in ["Surface: 0123abcd\nSurface: 89abcdef\n", "# Changelog\n\nSurface: 0123abcd. And\n"] {
            assert_eq!(commit_of_surface(text).unwrap(), "0123abcd");
        }
        for (text, found) in [
            ("Its Surface: 0123abcd", "'none'"),
            ("Surface: v0.1.0", "'v0.1.0'"),
            ("Surface: 0123abcdx", "'0123abcdx'"),
        ] {
            let Failed(why) = commit_of_surface(text).unwrap_err();
            assert!(why.contains(found), "{why}");
        }
    }

    #[test]
    fn a_missing_commit_is_an_error_with_its_name() {
        let Failed(why) = check_presence("00000000000000000000000000000000deadbeef").unwrap_err();
        assert!(why.contains("deadbeef") && why.contains("--unshallow"), "{why}");
    }

    #[test]
    fn a_removed_item_and_a_failed_comparison_differ() {
        let outcome = |code| outcome_of_check((code, "method Pool::take".into()), "0123abcd");
        assert!(outcome(Some(0)).is_good());
        for (code, fact) in [(Some(FOUND), "put back"), (Some(101), "did not compare"), (None, "did not")] {
            let [failure] = &outcome(code).failures[..] else { panic!("{code:?}") };
            assert!(failure.output.contains(fact), "{}", failure.output);
            assert!(failure.output.contains("Pool::take"), "{}", failure.output);
        }
    }
}
