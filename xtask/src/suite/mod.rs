//! The tests that cargo builds: each in a process of its own, two at a time for each processor, since half of
//! a test's time is waiting.
//!
//! A test that fails while the machine stalled has proven nothing, so it is run once more, alone. After a
//! failure without a stall, it is not.

mod attempt;
mod binaries;
mod sanitizer;
mod terminal;

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, thread};

use nocopy_lab::libtest::Verdict;
use nocopy_lab::witness::{STALL_LIMIT, Stall, StallWitness};
use serde::Serialize;

use attempt::TestAttempt;
pub(crate) use attempt::{TestConditions, exec_test_program, wait_or_kill};
use binaries::TestCase;
pub(crate) use binaries::{
    TestBinary, build_tests, built_program, install_tool, install_tool_with_features, preloadable,
};
use sanitizer::SanitizerFiles;
pub(crate) use sanitizer::find_sanitizer_runtime;

use crate::gate::{Outcome, StepFailure, TestNote};
use crate::machine;
use crate::machines::MachineVariant;
use crate::step::{CommandStep, Failed, repository_root};

/// The directory of the times of each suite, to find slow tests.
const RESULTS: &str = "target/xtask";

/// Arguments of cargo for all tests but loom's models, which are counted separately.
pub(crate) const ALL: &[&str] = &["--workspace", "--exclude", "nocopy-loom"];

/// Which tests to build and run, and how.
#[derive(Debug)]
pub(crate) struct TestSuite<'a> {
    /// The name of the file with the results.
    pub(crate) name: &'a str,
    /// Arguments of cargo.
    pub(crate) built: &'a [&'a str],
    /// Only the tests whose names contain one of these; if empty, all tests.
    pub(crate) filters: &'a [String],
    /// The tests that are ignored (`#[ignore]`), instead of the others.
    pub(crate) ignored: bool,
    /// The seed of random tests, if not the usual one.
    pub(crate) seed: Option<u64>,
    /// A failed test is run again if the machine stalled.
    pub(crate) retry: bool,
    pub(crate) instrument: Instrumentation,
    /// What this machine is made to look like.
    pub(crate) face: MachineVariant,
    /// Writing files to the disk takes 300 ms each time.
    pub(crate) slow_disk: bool,
}

/// Instrumentation that the compiler adds to the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Instrumentation {
    Nothing,
    AddressSanitizer,
}

impl Instrumentation {
    pub(crate) const fn variables(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Nothing => &[],
            Self::AddressSanitizer => {
                &[("RUSTC_BOOTSTRAP", "1"), ("RUSTFLAGS", "-Zsanitizer=address --cfg nocopy_sanitizer")]
            }
        }
    }
}

/// A test that ran, and the stall meanwhile.
struct CaseResult {
    case: TestCase,
    attempt: TestAttempt,
    stall: Stall,
    /// The second attempt, after a failure during a stall.
    again: Option<TestAttempt>,
}

#[derive(Serialize)]
struct ResultRow {
    test: String,
    verdict: &'static str,
    seconds: f64,
    oversleep_ms: u128,
    steal_ms: Option<u128>,
    pressure_ms: Option<u128>,
}

impl<'a> TestSuite<'a> {
    /// All tests that were built, run as the gate runs them.
    pub(crate) fn with_gate_settings(name: &'a str, built: &'a [&'a str]) -> Self {
        Self {
            name,
            built,
            filters: &[],
            ignored: false,
            seed: None,
            retry: true,
            instrument: Instrumentation::Nothing,
            face: MachineVariant::default(),
            slow_disk: false,
        }
    }

    pub(crate) fn outcome(&self) -> Outcome {
        match build_tests(self.built, self.instrument.variables()) {
            Ok(binaries) => self.run(binaries).unwrap_or_else(Outcome::from),
            Err(outcome) => outcome,
        }
    }

    fn run(&self, binaries: Vec<TestBinary>) -> Result<Outcome, Failed> {
        let cases = |binary| binaries::test_cases(binary, self.ignored);
        let cases: Result<Vec<Vec<TestCase>>, Failed> = binaries.into_iter().map(cases).collect();
        let mut cases: Vec<TestCase> = cases?.into_iter().flatten().collect();
        let wanted =
            |case: &TestCase| self.filters.iter().any(|filter| case.name().contains(filter.as_str()));
        cases.retain(|case| self.filters.is_empty() || wanted(case));
        if cases.is_empty() {
            return Err(Failed("no test has such a name".into()));
        }
        let witness = StallWitness::start().map_err(|error| Failed(format!("the witness: {error}")))?;
        let sanitizer = match self.instrument {
            Instrumentation::Nothing => None,
            Instrumentation::AddressSanitizer => Some(SanitizerFiles::prepare()?),
        };
        let conditions = TestConditions {
            isolated: machine::can_create_namespaces(),
            seed: self.seed,
            sanitizer: sanitizer.as_ref(),
            face: &self.face,
            slow_disk: self.slow_disk,
        };
        let mut ran = run_in_parallel(cases, conditions, &witness);
        if self.retry {
            ran.iter_mut().for_each(|ran| ran.retry_after_stall(conditions));
        }
        let written = self.write_results(&ran);
        let mut outcome = Outcome::default();
        ran.into_iter().for_each(|ran| ran.add_to_outcome(&mut outcome));
        if let Err(failure) = written {
            outcome.failures.push(failure);
        }
        Ok(outcome)
    }

    fn write_results(&self, ran: &[CaseResult]) -> Result<(), StepFailure> {
        let rows: Vec<ResultRow> = ran.iter().map(ResultRow::from_result).collect();
        let text = serde_json::to_string_pretty(&rows).expect("strings and numbers");
        let directory = repository_root().join(RESULTS);
        let path = directory.join(format!("{}.json", self.name));
        let written = fs::create_dir_all(&directory).and_then(|()| fs::write(&path, text));
        let failure = |error| StepFailure { name: path.display().to_string(), output: format!("{error}") };
        written.map_err(failure)
    }
}

impl CaseResult {
    /// Runs a test that failed during a stall once more; the others have ended.
    fn retry_after_stall(&mut self, conditions: TestConditions<'_>) {
        if self.attempt.verdict == Verdict::Failed && self.stall.exceeds(STALL_LIMIT) {
            eprintln!(
                "xtask: {}: failed while the machine {}; once more, alone",
                self.case.name(),
                self.stall
            );
            self.again = Some(TestAttempt::run(&self.case, conditions));
        }
    }

    fn is_flaky(&self) -> bool {
        self.again.as_ref().is_some_and(|again| again.verdict == Verdict::Passed)
    }

    fn add_to_outcome(self, outcome: &mut Outcome) {
        let name = self.case.name();
        match &self.attempt.verdict {
            Verdict::Passed => outcome.passed += 1,
            Verdict::Skipped(needs) => outcome.skips.push(TestNote { name, text: needs.clone() }),
            Verdict::Failed if self.is_flaky() => {
                outcome.passed += 1;
                outcome.flaky.push(TestNote { name, text: self.stall.to_string() });
            }
            Verdict::Failed => {
                let mut output = format!("{}\n({})", self.attempt.output, self.stall);
                if let Some(again) = self.again {
                    output.push_str(&format!("\n---- once more, alone ----\n{}", again.output));
                }
                outcome.failures.push(StepFailure { name, output });
            }
        }
    }
}

/// Runs tests in parallel; returns them in order, each with the stall during it.
fn run_in_parallel(
    cases: Vec<TestCase>,
    conditions: TestConditions<'_>,
    witness: &StallWitness,
) -> Vec<CaseResult> {
    let ended = AtomicUsize::new(0);
    let ran = map_in_parallel(2 * processor_count(), &cases, |case| {
        let attempt = TestAttempt::run(case, conditions);
        let stall = witness.worst_between(attempt.start, attempt.end);
        // ordering: nothing else is handed over by it
        print_attempt(case, &attempt, ended.fetch_add(1, Ordering::Relaxed) + 1, cases.len());
        (attempt, stall)
    });
    let ran = cases.into_iter().zip(ran);
    ran.map(|(case, (attempt, stall))| CaseResult { case, attempt, stall, again: None }).collect()
}

pub(crate) fn processor_count() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Does `work` on all items, some at a time; returns the results in the order of the items.
pub(crate) fn map_in_parallel<T: Sync, R: Send>(
    at_a_time: usize,
    items: &[T],
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed); // ordering: nothing else is handed over by it
            let Some(item) = items.get(index) else { return done };
            done.push((index, work(item)));
        }
    };
    let mut done: Vec<(usize, R)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..at_a_time).map(|_| scope.spawn(worker)).collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Prints the output of a test that failed or was skipped, and now and then a line for the others.
fn print_attempt(case: &TestCase, attempt: &TestAttempt, ended: usize, all: usize) {
    match &attempt.verdict {
        Verdict::Failed => eprintln!("xtask: {}: FAILED\n{}", case.name(), attempt.output.trim_end()),
        Verdict::Skipped(needs) => eprintln!("xtask: {}: skipped: {needs}", case.name()),
        Verdict::Passed => {}
    }
    if ended.is_multiple_of(100) || ended == all {
        eprintln!("xtask: {ended} of {all} tests ended");
    }
}

impl ResultRow {
    fn from_result(ran: &CaseResult) -> Self {
        Self {
            test: ran.case.name(),
            verdict: match ran.attempt.verdict {
                Verdict::Passed => "passed",
                Verdict::Skipped(_) => "skipped",
                Verdict::Failed if ran.is_flaky() => "flaky",
                Verdict::Failed => "failed",
            },
            seconds: (ran.attempt.end - ran.attempt.start).as_secs_f64(),
            oversleep_ms: ran.stall.oversleep.as_millis(),
            steal_ms: ran.stall.steal.map(|time| time.as_millis()),
            pressure_ms: ran.stall.pressure.map(|time| time.as_millis()),
        }
    }
}

/// The examples in the documentation, which only rustdoc compiles; those that are run need no network.
pub(crate) fn documentation_examples() -> Outcome {
    let what = ["test", "--workspace", "--all-features", "--doc", "--no-fail-fast"];
    match CommandStep::cargo("documentation examples", &what).run_for_status() {
        Ok((Some(0), printed)) => count_examples(&printed),
        Ok((_, printed)) => Outcome::failed("documentation examples", printed),
        Err(failed) => failed.into(),
    }
}

/// Adds up rustdoc's lines `test result: ok. 3 passed; 0 failed; …`.
fn count_examples(printed: &str) -> Outcome {
    let counts = printed.lines().filter_map(|line| line.strip_prefix("test result: ok. "));
    let passed = counts.filter_map(|counts| counts.split(' ').next()?.parse::<usize>().ok()).sum();
    Outcome { passed, ..Outcome::default() }
}
