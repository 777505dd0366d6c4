//! The libraries with some of their features only. No other step compiles these selections, and code that is
//! left over in one is a warning there alone.

use crate::gate::Outcome;
use crate::step::{CommandStep, Failed};
use crate::workspace::Workspace;

/// The crates whose features leave code out.
const CRATES: [&str; 2] = ["nocopy", "nocopy-proto"];

/// The gate: datagrams alone, and streams, which need some of what ports need.
pub(crate) fn check_two_selections() -> Outcome {
    let steps = ["", "tcp"].map(|features| check_step("nocopy", features).run().into());
    steps.into_iter().fold(Outcome::default(), Outcome::merged_with)
}

/// The nightly suite: each feature alone, none, and all.
pub(crate) fn check_all_selections() -> Outcome {
    let checked = || {
        let workspace = Workspace::read()?;
        let mut outcome = Outcome::default();
        for name in CRATES {
            for features in selections(&workspace.features_of(name)) {
                outcome = outcome.merged_with(check_step(name, &features).run().into());
            }
        }
        Ok(outcome)
    };
    checked().unwrap_or_else(|failed: Failed| failed.into())
}

/// None, each alone, and all.
fn selections(features: &[&str]) -> Vec<String> {
    let alone = features.iter().map(|&feature| feature.to_owned());
    std::iter::once(String::new()).chain(alone).chain([features.join(",")]).collect()
}

/// A check in which a warning is an error. The flag is the library's alone, so that nothing below it is
/// compiled once more.
fn check_step(name: &str, features: &str) -> CommandStep {
    let what = ["rustc", "--package", name, "--lib", "--profile", "check", "--no-default-features"];
    let step = format!("{name} with {}", if features.is_empty() { "no feature" } else { features });
    CommandStep::cargo(&step, &[&what[..], &["--features", features, "--", "-D", "warnings"]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_each_and_all_are_selected() {
        assert_eq!(selections(&["port", "tcp"]), ["", "port", "tcp", "port,tcp"]);
    }

    #[test]
    fn the_gates_selection_exists() {
        let workspace = Workspace::read().unwrap();
        assert!(workspace.features_of("nocopy").contains(&"tcp"));
        for name in CRATES {
            assert!(!workspace.features_of(name).is_empty(), "{name}");
        }
    }
}
