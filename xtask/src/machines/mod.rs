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

pub(crate) use face::Face;
pub(crate) use wear::become_with;

use crate::gate::Outcome;
use crate::machine;
use crate::step::{CommandStep, Failed, root};
use crate::suite::side_by_side;

/// The tests of `--quick`, of the command, and of what prints its tables, by the beginnings of their names.
const TESTS: [&str; 4] = ["nocopy ", "nocopy-proto ", "nocopy-report ", "nocopy-cli"];

/// The directory of the checkouts, and of what is built from them.
const PLACE: &str = "target/machines";

/// Runs the tests of the last commit with every face.
pub(crate) fn outcome() -> Outcome {
    machine::locales().then(|| german().map_or_else(Outcome::from, |locales| try_faces(&locales)))
}

fn try_faces(locales: &Path) -> Outcome {
    // Those of one checkout one after the other, since they share what is built.
    let of_checkouts: (Vec<Face>, Vec<Face>) =
        faces().into_iter().partition(|face| face.get("clone").is_some());
    let try_all = |faces: &Vec<Face>| {
        let tried = faces.iter().map(|face| try_face(face, locales));
        tried.reduce(Outcome::and).unwrap_or_default()
    };
    let tried = side_by_side(2, &<[_; 2]>::from(of_checkouts), try_all);
    tried.into_iter().reduce(Outcome::and).unwrap_or_default()
}

fn faces() -> Vec<Face> {
    let counts: Vec<usize> = face::FACTORS.iter().map(|factor| factor.values.len()).collect();
    let values = |combination: Vec<usize>| {
        Face::of(face::FACTORS.iter().zip(combination).map(|(factor, value)| factor.values[value]))
    };
    pairs::combinations(&counts).into_iter().map(values).collect()
}

/// A directory with the German locale, which few machines have.
fn german() -> Result<PathBuf, Failed> {
    let locales = root().join(PLACE).join("locales");
    let german = locales.join("de_DE.UTF-8");
    fs::create_dir_all(&locales).map_err(|error| Failed(format!("{}: {error}", locales.display())))?;
    if !german.exists() {
        let path = german.display().to_string();
        CommandStep::new("make a locale", "localedef", &["-i", "de_DE", "-f", "UTF-8", &path]).run()?;
    }
    Ok(locales)
}

fn try_face(face: &Face, locales: &Path) -> Outcome {
    match tests_with(face, locales) {
        Ok((Some(0), output)) => match passed(&output) {
            Some(count) => Outcome { passed: count, ..Outcome::default() },
            None => Outcome::failed(face.to_string(), output),
        },
        Ok((_, output)) => Outcome::failed(face.to_string(), summary(&output)),
        Err(failed) => failed.into(),
    }
}

fn tests_with(face: &Face, locales: &Path) -> Result<(Option<i32>, String), Failed> {
    let name = if face.get("clone").is_some() { "a clone" } else { "clone" };
    let checkout = checkout(name)?;
    let text = face.to_string();
    let what = [&["xtask", "test", "--face", &text], &TESTS[..]].concat();
    let mut step = CommandStep::cargo(&text, &what)
        .within(&checkout)
        .with("LOCPATH", &locales.display().to_string())
        // Each commit is built once.
        .with("CARGO_INCREMENTAL", "0")
        .with("CI", "true");
    if face.get("target").is_some() {
        let target = root().join(PLACE).join(format!("built from {name}"));
        step = step.with("CARGO_TARGET_DIR", &target.display().to_string());
    }
    step.status()
}

/// A clone of the last commit.
fn checkout(name: &str) -> Result<PathBuf, Failed> {
    let place = root().join(PLACE).join(name);
    let (from, to) = (root().display().to_string(), place.display().to_string());
    let git = |arguments: &[&str]| CommandStep::new("checkout", "git", arguments).run();
    if !place.exists() {
        git(&["clone", "--quiet", &from, &to])?;
    }
    git(&["-C", &to, "fetch", "--quiet", &from, "HEAD"])?;
    git(&["-C", &to, "reset", "--quiet", "--hard", "FETCH_HEAD"])?;
    Ok(place)
}

/// The number in the last line of the gate's summary: `12 passed, 0 failed, 0 skipped`.
fn passed(output: &str) -> Option<usize> {
    output.lines().next_back()?.split_once(" passed, ")?.0.parse().ok()
}

/// The gate's summary, without the output before it.
fn summary(output: &str) -> String {
    output.rfind("\nstep ").map_or(output, |start| &output[start..]).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_are_those_of_the_summary() {
        let output = "xtask: tests\n\nstep  verdict\ntests passed\n\n12 passed, 0 failed, 1 skipped\n";
        assert_eq!(passed(output), Some(12));
        assert_eq!(passed("error: no such command"), None);
        assert!(summary(output).starts_with("\nstep  verdict"), "{}", summary(output));
        assert_eq!(summary("killed"), "killed");
    }
}
