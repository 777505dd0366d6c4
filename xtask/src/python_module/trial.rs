//! The module's tests in Python: all in one process, in a network namespace of its own.

use std::path::{Path, PathBuf};

use super::{CRATE, Interpreter};
use crate::gate::Outcome;
use crate::machine;
use crate::step::{CommandStep, Failed, repository_root};

/// The longest time of all tests; they take a few seconds. Then all stacks are printed.
const SECONDS_MAX: &str = "300";

/// Prints a line for each test.
pub(crate) const RUNNER: &str = "xtask/src/python_module/verdicts.py";

/// How the tests are run.
#[derive(Debug)]
pub(crate) struct PythonTests {
    /// Has the package, unless it is installed.
    package: Option<PathBuf>,
    variables: Vec<(&'static str, String)>,
    pattern: &'static str,
}

impl PythonTests {
    /// With the package in that directory.
    pub(crate) fn with_package(package: &Path) -> Self {
        Self { package: Some(package.to_owned()), ..Self::with_installed_package() }
    }

    pub(crate) fn with_installed_package() -> Self {
        Self { package: None, variables: Vec::new(), pattern: "test_*.py" }
    }

    /// Only the files of tests with such names.
    pub(crate) fn in_files(self, pattern: &'static str) -> Self {
        Self { pattern, ..self }
    }

    pub(crate) fn with_variable(mut self, name: &'static str, value: String) -> Self {
        self.variables.push((name, value));
        self
    }

    /// Runs them; warnings are errors, and the interpreter checks what it can.
    pub(crate) fn run(&self, interpreter: &Interpreter) -> Outcome {
        let root = repository_root();
        let [runner, tests] =
            [RUNNER.to_owned(), format!("{CRATE}/tests")].map(|path| root.join(path).display().to_string());
        let python = [&interpreter.program, "-X", "dev", "-W", "error", &runner, &tests, SECONDS_MAX];
        let own = match std::env::current_exe() {
            Ok(own) => own.display().to_string(),
            Err(error) => return Failed(format!("no path of this program: {error}")).into(),
        };
        let isolated = machine::can_create_namespaces().then_some("--isolated");
        let start: Vec<&str> = ["start"].into_iter().chain(isolated).chain(["--"]).collect();
        let step =
            CommandStep::new("tests of the module", &own, &[&start[..], &python, &[self.pattern]].concat())
                .with_variable("PYTHONDONTWRITEBYTECODE", "1");
        let package = self.package.iter().map(|path| ("PYTHONPATH", path.display().to_string()));
        let step = package
            .chain(self.variables.iter().cloned())
            .fold(step, |step, (name, value)| step.with_variable(name, &value));
        match step.captured_output() {
            Ok(printed) => verdicts_in(&printed),
            Err(failed) => failed.into(),
        }
    }
}

/// The verdicts of a run without a failure. A test that lacks something fails on continuous integration.
pub(super) fn verdicts_in(printed: &str) -> Outcome {
    let verdict = |line: &str| match line.split_once(' ') {
        Some(("passed", _)) => Some(Outcome::passed()),
        Some(("skipped", rest)) => {
            let (name, why) = rest.split_once(": ").unwrap_or((rest, "no reason given"));
            Some(Outcome::unavailable(name, why))
        }
        _ => None,
    };
    printed.lines().filter_map(verdict).fold(Outcome::default(), Outcome::merged_with)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_verdict_is_counted() {
        let outcome = verdicts_in("passed test_a.A.test_b\nnot a verdict\npassed test_a.A.test_c\n");
        assert_eq!((outcome.passed, outcome.failures.len()), (2, 0));
        assert!(verdicts_in("").has_failed(), "a run without a test is not a success");
    }
}
