//! Test programs that were built for the machine, run as `cargo xtask test` runs them on the host: each test
//! in its own process, in a network namespace in which only the loopback is up.

use std::cmp::Reverse;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use nocopy_lab::Namespace;
use nocopy_lab::libtest::{self, Verdict};
use serde_json::json;

use super::{Guest, agent, print_at_console};
use crate::built::{self, TestProgram};
use crate::failure::{Failure, last_lines};

/// A test that takes longer hangs: on emulated processors, beside other work, tests were seen that had not
/// ended after 600 s, and did not hang.
const TEST_MAX: Duration = Duration::from_secs(3600);

/// How many lines of a failed test's output are reported.
const OUTPUT_LINES: usize = 40;

/// How many slow tests are named.
const SLOWEST: usize = 8;

/// Which tests of a program run on an emulated machine, by the beginning of their names.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TestSelection {
    /// All but these, each with the reason.
    AllBut(&'static [(&'static str, &'static str)]),
    Only(&'static [&'static str]),
}

impl TestSelection {
    fn name_prefixes(self) -> Vec<&'static str> {
        match self {
            Self::AllBut(left_out) => left_out.iter().map(|(start, _)| *start).collect(),
            Self::Only(starts) => starts.to_vec(),
        }
    }

    /// The tests that run, and how many do not. A start that no test has is a mistake.
    fn select(self, all: Vec<String>) -> Result<(Vec<String>, usize), Failure> {
        let (count, starts) = (all.len(), self.name_prefixes());
        if let Some(start) = starts.iter().find(|start| !all.iter().any(|test| test.starts_with(**start))) {
            return Err(Failure(format!("no test begins with '{start}'")));
        }
        let is_named = |test: &String| starts.iter().any(|start| test.starts_with(start));
        let (named, others): (Vec<_>, Vec<_>) = all.into_iter().partition(is_named);
        let tests = if matches!(self, Self::Only(_)) { named } else { others };
        let left_out = count - tests.len();
        Ok((tests, left_out))
    }
}

/// Runs the selected tests of that program; records how many passed, and each that was skipped. Fails when
/// one fails, and when none passes.
pub(crate) fn run_selected_tests(guest: &Guest, name: &str, selection: TestSelection) -> Result<(), Failure> {
    let program = find_program(name)?;
    let (tests, left_out) = selection.select(libtest::list_tests(&program.program, &program.directory)?)?;
    let mut ended = run_all(&program, &tests)?;
    run_failed_again(&program, &mut ended, guest)?;
    let passed = ended.iter().filter(|ended| ended.verdict == Verdict::Passed).count();
    guest.record_measurement(&json!({
        "program": name, "passed": passed, "left_out": left_out, "slowest": slowest_tests_text(&ended),
    }));
    let mut failures = String::new();
    for FinishedTest { test, verdict, output, .. } in ended {
        match verdict {
            Verdict::Passed => {}
            Verdict::Skipped(needs) => {
                guest.record_measurement(&json!({ "program": name, "skipped": [test, needs] }))
            }
            Verdict::Failed => {
                let last = last_lines(&output, OUTPUT_LINES).join("\n    ");
                failures.push_str(&format!("{test}:\n    {last}\n"));
            }
        }
    }
    match failures.is_empty() {
        true if passed > 0 => Ok(()),
        true => Err(Failure(format!("{name}: no test passed"))),
        false => Err(Failure(failures)),
    }
}

/// The slowest tests, to decide which to leave out.
fn slowest_tests_text(ended: &[FinishedTest]) -> String {
    let mut ended: Vec<&FinishedTest> = ended.iter().collect();
    ended.sort_by_key(|ended| Reverse(ended.took));
    let texts =
        ended.iter().take(SLOWEST).map(|ended| format!("{} {:.0} s", ended.test, ended.took.as_secs_f64()));
    texts.collect::<Vec<_>>().join(", ")
}

fn find_program(name: &str) -> Result<TestProgram, Failure> {
    let all: Vec<TestProgram> = serde_json::from_slice(&fs::read(built::TESTS)?)?;
    let found = all.into_iter().find(|program| program.name == name);
    found.ok_or_else(|| Failure(format!("{name}: no such program in {}", built::TESTS)))
}

struct FinishedTest {
    test: String,
    verdict: Verdict,
    output: String,
    took: Duration,
}

/// Runs tests, one at a time for each processor.
fn run_all(program: &TestProgram, tests: &[String]) -> Result<Vec<FinishedTest>, Failure> {
    let waiting = Mutex::new(tests.iter());
    let next = || waiting.lock().expect("no thread panics with it").next();
    let worker = || {
        let mut ended = Vec::new();
        while let Some(test) = next() {
            let started = Instant::now();
            let (verdict, output) = run_test(program, test)?;
            let took = started.elapsed();
            print_at_console(&format!("{test}: {verdict:?}, {:.1} s", took.as_secs_f64()));
            if verdict == Verdict::Failed {
                print_at_console(&last_lines(&output, OUTPUT_LINES).join("\r\n")); // the summary comes only when all have ended
            }
            ended.push(FinishedTest { test: test.clone(), verdict, output, took });
        }
        Ok::<_, Failure>(ended)
    };
    let count = thread::available_parallelism()?.get();
    let done: Result<Vec<Vec<FinishedTest>>, Failure> = thread::scope(|scope| {
        let workers: Vec<_> = (0..count).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker does not panic")).collect()
    });
    Ok(done?.into_iter().flatten().collect())
}

/// Runs what failed once more, while nothing else runs: an emulated machine may stall for longer than a queue
/// lasts. What passes then is recorded.
fn run_failed_again(program: &TestProgram, ended: &mut [FinishedTest], guest: &Guest) -> Result<(), Failure> {
    for failed in ended.iter_mut().filter(|ended| ended.verdict == Verdict::Failed) {
        let (verdict, output) = run_test(program, &failed.test)?;
        if verdict == Verdict::Passed {
            guest
                .record_measurement(&json!({ "program": program.name, "passed_at_second_try": failed.test }));
            failed.verdict = verdict;
        } else {
            failed.output.push_str(&output);
        }
    }
    Ok(())
}

fn run_test(program: &TestProgram, test: &str) -> Result<(Verdict, String), Failure> {
    let mut output = tempfile::tempfile()?;
    let mut command = Command::new(&program.program);
    command.args(libtest::single_test_arguments(test)).current_dir(&program.directory).process_group(0);
    // A backtrace without names would push out the test's own output.
    command.env("CARGO_MANIFEST_DIR", &program.directory).env("RUST_BACKTRACE", "0");
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
    // It begins in the namespace of the thread that starts it.
    let mut child = Namespace::new_with_loopback()?.run(|| command.spawn())?;
    let status = agent::wait_or_kill(&mut child, TEST_MAX)?;
    let text = agent::read_contents(&mut output)?;
    Ok(match status {
        Some(status) => (libtest::verdict(status, &text), text),
        None => (Verdict::Failed, format!("{text}\nnot ended after {} s: killed", TEST_MAX.as_secs())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_selected_by_the_start_of_their_names() {
        let all = || ["ring::a", "ring::b", "pool::a"].map(str::to_owned).to_vec();
        let only = TestSelection::Only(&["pool"]).select(all()).unwrap();
        assert_eq!(only, (vec!["pool::a".to_owned()], 2));
        let but = TestSelection::AllBut(&[("ring::b", "takes an hour")]).select(all()).unwrap();
        assert_eq!(but, (vec!["ring::a".to_owned(), "pool::a".to_owned()], 1));
        assert!(TestSelection::AllBut(&[("rings", "a name that was changed")]).select(all()).is_err());
    }
}
