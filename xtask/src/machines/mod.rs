//! The nightly suite `machines`: the tests of `--quick` and of the command on machines with other faces.
//!
//! Each face is a combination of what differs between users' machines; each two values of different factors
//! meet in one of them. A face that fails is tried again by `cargo xtask test --face 'FACTOR=VALUE …' NAME…`,
//! with the words that the suite prints.

mod face;
mod pairs;
mod wear;

use std::fs;
use std::path::{Path, PathBuf};

pub(crate) use face::MachineVariant;
pub(crate) use wear::exec_with_variant;

use crate::gate::Outcome;
use crate::machine;
use crate::step::{CommandStep, Failed, repository_root};
use crate::suite::map_in_parallel;

/// The tests of `--quick`, of the command, and of what prints its tables, by the beginnings of their names.
const TESTS: [&str; 4] = ["nocopy ", "nocopy-proto ", "nocopy-report ", "nocopy-cli"];

/// The directory of the checkouts, and of what is built from them.
const PLACE: &str = "target/machines";

/// Runs the tests of the last commit with every face.
pub(crate) fn test_machine_variants() -> Outcome {
    machine::install_locales()
        .then(|| german_locale_directory().map_or_else(Outcome::from, |locales| test_all_variants(&locales)))
}

fn test_all_variants(locales: &Path) -> Outcome {
    // Those of one checkout one after the other, since they share what is built.
    let of_checkouts: (Vec<MachineVariant>, Vec<MachineVariant>) =
        pairwise_variants().into_iter().partition(|face| face.value_of("clone").is_some());
    let try_all = |faces: &Vec<MachineVariant>| {
        let tried = faces.iter().map(|face| test_in_environment(face, locales));
        tried.reduce(Outcome::merged_with).unwrap_or_default()
    };
    let tried = map_in_parallel(2, &<[_; 2]>::from(of_checkouts), try_all);
    tried.into_iter().reduce(Outcome::merged_with).unwrap_or_default()
}

fn pairwise_variants() -> Vec<MachineVariant> {
    let counts: Vec<usize> = face::FACTORS.iter().map(|factor| factor.values.len()).collect();
    let values = |combination: Vec<usize>| {
        MachineVariant::with_values(
            face::FACTORS.iter().zip(combination).map(|(factor, value)| factor.values[value]),
        )
    };
    pairs::pairwise_combinations(&counts).into_iter().map(values).collect()
}

/// A directory with the German locale, which few machines have.
fn german_locale_directory() -> Result<PathBuf, Failed> {
    let locales = repository_root().join(PLACE).join("locales");
    let german = locales.join("de_DE.UTF-8");
    fs::create_dir_all(&locales).map_err(|error| Failed(format!("{}: {error}", locales.display())))?;
    if !german.exists() {
        let path = german.display().to_string();
        CommandStep::new("make a locale", "localedef", &["-i", "de_DE", "-f", "UTF-8", &path]).run()?;
    }
    Ok(locales)
}

fn test_in_environment(face: &MachineVariant, locales: &Path) -> Outcome {
    match run_tests_with_variant(face, locales) {
        Ok((Some(0), output)) => match passed_test_count(&output) {
            Some(count) => Outcome { passed: count, ..Outcome::default() },
            None => Outcome::failed(face.to_string(), output),
        },
        Ok((_, output)) => Outcome::failed(face.to_string(), gate_summary(&output)),
        Err(failed) => failed.into(),
    }
}

fn run_tests_with_variant(face: &MachineVariant, locales: &Path) -> Result<(Option<i32>, String), Failed> {
    let name = if face.value_of("clone").is_some() { "a clone" } else { "clone" };
    let checkout = clone_last_commit(name)?;
    let text = face.to_string();
    let what = [&["xtask", "test", "--face", &text], &TESTS[..]].concat();
    let mut step = CommandStep::cargo(&text, &what)
        .in_directory(&checkout)
        .with_variable("LOCPATH", &locales.display().to_string())
        // Each commit is built once.
        .with_variable("CARGO_INCREMENTAL", "0")
        .with_variable("CI", "true");
    if face.value_of("target").is_some() {
        let target = repository_root().join(PLACE).join(format!("built from {name}"));
        step = step.with_variable("CARGO_TARGET_DIR", &target.display().to_string());
    }
    step.run_for_status()
}

/// A clone of the last commit.
fn clone_last_commit(name: &str) -> Result<PathBuf, Failed> {
    let place = repository_root().join(PLACE).join(name);
    let (from, to) = (repository_root().display().to_string(), place.display().to_string());
    let git = |arguments: &[&str]| CommandStep::new("checkout", "git", arguments).run();
    if !place.exists() {
        git(&["clone", "--quiet", &from, &to])?;
    }
    git(&["-C", &to, "fetch", "--quiet", &from, "HEAD"])?;
    git(&["-C", &to, "reset", "--quiet", "--hard", "FETCH_HEAD"])?;
    Ok(place)
}

/// The number in the last line of the gate's summary: `12 passed, 0 failed, 0 skipped`.
fn passed_test_count(output: &str) -> Option<usize> {
    output.lines().next_back()?.split_once(" passed, ")?.0.parse().ok()
}

/// The gate's summary, without the output before it.
fn gate_summary(output: &str) -> String {
    output.rfind("\nstep ").map_or(output, |start| &output[start..]).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_passed_count_is_read_from_the_gate_summary() {
        let output = "xtask: tests\n\nstep  verdict\ntests passed\n\n12 passed, 0 failed, 1 skipped\n";
        assert_eq!(passed_test_count(output), Some(12));
        assert_eq!(passed_test_count("error: no such command"), None);
        assert!(gate_summary(output).starts_with("\nstep  verdict"), "{}", gate_summary(output));
        assert_eq!(gate_summary("killed"), "killed");
    }
}
