//! Test programs, as the compiler makes them: the list of tests in one, and the result of a test.
//!
//! Each test is started as its own process: `program --exact TEST --nocapture`.

use std::io;
use std::path::Path;
use std::process::{Command, ExitStatus};

/// The beginning of the line in which a test reports why it was skipped ([`skip`](crate::skip)); libtest may
/// have begun the line.
const SKIP: &str = "SKIP: ";
const NEEDS: &str = "needs ";

/// How a test ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It ran, and nothing failed.
    Passed,
    /// It did nothing, because something is missing.
    Skipped(String),
    /// It failed, or did not run.
    Failed,
}

/// The tests of a program that is run in `directory`, without those that are ignored (`#[ignore]`).
///
/// # Errors
/// The program cannot be started, or does not list its tests.
pub fn list_tests(program: &Path, directory: &Path) -> io::Result<Vec<String>> {
    let mut all = list_tests_with(program, directory, &[])?;
    let ignored = list_ignored_tests(program, directory)?;
    all.retain(|test| !ignored.contains(test));
    Ok(all)
}

/// The tests of a program that only other tests, or suites of their own, start.
///
/// # Errors
/// As [`list_tests`].
pub fn list_ignored_tests(program: &Path, directory: &Path) -> io::Result<Vec<String>> {
    list_tests_with(program, directory, &["--ignored"])
}

fn list_tests_with(program: &Path, directory: &Path, which: &[&str]) -> io::Result<Vec<String>> {
    let mut command = Command::new(program);
    let output = command.args(["--list", "--format", "terse"]).args(which).current_dir(directory).output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("its tests cannot be listed ({})", output.status)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

/// The arguments that make a program run one test, ignored or not, and print its output.
pub fn single_test_arguments(test: &str) -> [&str; 4] {
    ["--exact", test, "--nocapture", "--include-ignored"]
}

/// The result of a test that printed `output`. A program that runs no test exits with success, too, so the
/// output must say that it ran one.
pub fn verdict(status: ExitStatus, output: &str) -> Verdict {
    let ran = output.lines().any(|line| line.starts_with("test result: ok. 1 passed; 0 failed"));
    let needs = |line: &str| {
        let line =
            line.split_once(" ... ").filter(|_| line.starts_with("test ")).map_or(line, |(_, rest)| rest);
        line.strip_prefix(SKIP).filter(|needs| needs.starts_with(NEEDS)).map(str::to_owned)
    };
    match (status.success() && ran, output.lines().find_map(needs)) {
        (true, Some(needs)) => Verdict::Skipped(needs),
        (true, None) => Verdict::Passed,
        (false, _) => Verdict::Failed,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    const OK: &str = "running 1 test\ntest a ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored\n";

    #[test]
    fn a_program_that_ran_no_test_gives_a_failed_verdict() {
        let success = ExitStatus::from_raw(0);
        assert_eq!(verdict(success, OK), Verdict::Passed);
        let none = "running 0 tests\n\ntest result: ok. 0 passed; 0 failed; 0 ignored\n";
        assert_eq!(verdict(success, none), Verdict::Failed);
        assert_eq!(verdict(success, ""), Verdict::Failed);
        assert_eq!(verdict(ExitStatus::from_raw(9), OK), Verdict::Failed);
    }

    #[test]
    fn a_skip_line_gives_a_skipped_verdict() {
        let output = format!("test a ... SKIP: needs a card: there is none\n{OK}");
        let skipped = verdict(ExitStatus::from_raw(0), &output);
        assert_eq!(skipped, Verdict::Skipped("needs a card: there is none".into()));
        let of_another = format!("{OK}a program said SKIP: needs a card\nSKIP: of no known form\n");
        assert_eq!(verdict(ExitStatus::from_raw(0), &of_another), Verdict::Passed);
    }

    #[test]
    fn a_test_program_lists_its_own_tests() {
        let program = std::env::current_exe().unwrap();
        let tests = list_tests(&program, Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
        assert!(
            tests.iter().any(|test| test == "libtest::tests::a_test_program_lists_its_own_tests"),
            "{tests:?}"
        );
    }
}
