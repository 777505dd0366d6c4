//! The tests that cargo builds: each in a process of its own, as many at a time as there are processors.
//!
//! A test that fails while the machine stalled has proven nothing, so it is run once more, alone. One that fails on a machine
//! that ran on is not.

mod attempt;
mod binaries;

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, thread};

use nocopy_lab::witness::{STALL_LIMIT, Stall, Witness};
use serde::Serialize;

use attempt::{Attempt, Verdict};
pub(crate) use attempt::{Conditions, become_isolated};
pub(crate) use binaries::program;
use binaries::{Binary, Case};

use crate::gate::{Failure, Note, Outcome};
use crate::step::{Failed, Step, is_root, root};

/// What each test did, for whoever looks for the slow ones.
const RESULTS: &str = "target/xtask/tests.json";

/// Tests that look at something of the whole machine (all processes, all processors), so that others beside them would show:
/// they run when the others have ended.
const ALONE: &[&str] = &[];

/// What cargo builds for all tests but loom's models, which are counted by themselves.
pub(crate) const ALL: &[&str] = &["--workspace", "--exclude", "nocopy-loom"];

/// Which tests to build and run, and how.
#[derive(Debug)]
pub(crate) struct Suite<'a> {
    /// What is built, in cargo's words.
    pub(crate) built: &'a [&'a str],
    /// Only the tests whose names contain one of these, if there are any.
    pub(crate) filters: &'a [String],
    /// New random tests each time.
    pub(crate) random: bool,
    /// A failed test is run again if the machine stalled.
    pub(crate) retry: bool,
    pub(crate) instrument: Instrument,
}

/// What the compiler adds to the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Instrument {
    Nothing,
    /// Takes the nightly toolchain.
    AddressSanitizer,
}

/// One test in the file of results.
#[derive(Serialize)]
struct Row {
    test: String,
    verdict: &'static str,
    seconds: f64,
    oversleep_ms: u128,
    steal_ms: Option<u128>,
    pressure_ms: Option<u128>,
}

impl<'a> Suite<'a> {
    /// All tests of what is built, as the gate runs them.
    pub(crate) fn of(built: &'a [&'a str]) -> Self {
        Self { built, filters: &[], random: false, retry: true, instrument: Instrument::Nothing }
    }

    /// Builds the tests and runs them.
    pub(crate) fn outcome(&self) -> Outcome {
        match binaries::build(self.built, self.instrument) {
            Ok(binaries) => self.run(binaries).unwrap_or_else(Outcome::from),
            Err(outcome) => outcome,
        }
    }

    fn run(&self, binaries: Vec<Binary>) -> Result<Outcome, Failed> {
        let cases: Result<Vec<Vec<Case>>, Failed> = binaries.into_iter().map(binaries::cases).collect();
        let mut cases: Vec<Case> = cases?.into_iter().flatten().collect();
        let wanted = |case: &Case| self.filters.iter().any(|filter| case.name().contains(filter.as_str()));
        cases.retain(|case| self.filters.is_empty() || wanted(case));
        if cases.is_empty() {
            return Err(Failed("no test has such a name".into()));
        }
        let witness = Witness::start().map_err(|error| Failed(format!("the witness: {error}")))?;
        let conditions = Conditions { isolated: is_root(), random: self.random };
        let (alone, together): (Vec<Case>, Vec<Case>) = cases.into_iter().partition(is_alone);
        let mut ran = run_all(together, processors(), conditions, &witness);
        ran.extend(run_all(alone, 1, conditions, &witness));
        write_results(&ran)?;
        let mut outcome = Outcome::default();
        for (case, attempt, stall) in ran {
            self.count(&mut outcome, &case, attempt, stall, conditions);
        }
        Ok(outcome)
    }

    fn count(
        &self,
        outcome: &mut Outcome,
        case: &Case,
        attempt: Attempt,
        stall: Stall,
        conditions: Conditions,
    ) {
        let name = case.name();
        match attempt.verdict {
            Verdict::Passed => outcome.passed += 1,
            Verdict::Skipped(text) => outcome.skips.push(Note { name, text }),
            Verdict::Failed if self.retry && stall.exceeds(STALL_LIMIT) => {
                eprintln!("xtask: {name}: failed while the machine {stall}; once more, alone");
                let again = Attempt::run(case, conditions);
                if again.verdict == Verdict::Passed {
                    outcome.passed += 1;
                    outcome.flaky.push(Note { name, text: stall.to_string() });
                } else {
                    let output = format!("{}\n---- once more, alone ----\n{}", attempt.output, again.output);
                    outcome.failures.push(Failure { name, output });
                }
            }
            Verdict::Failed => {
                outcome.failures.push(Failure { name, output: format!("{}\n({stall})", attempt.output) });
            }
        }
    }
}

fn is_alone(case: &Case) -> bool {
    let name = case.name();
    ALONE.iter().any(|alone| name.starts_with(alone))
}

/// Runs tests side by side; returns them in their order, each with the stall that was seen meanwhile.
fn run_all(
    cases: Vec<Case>,
    workers: usize,
    conditions: Conditions,
    witness: &Witness,
) -> Vec<(Case, Attempt, Stall)> {
    let ended = AtomicUsize::new(0);
    let ran = side_by_side(&cases, workers, |case| {
        let attempt = Attempt::run(case, conditions);
        let stall = witness.worst_between(attempt.start, attempt.end);
        // ordering: nothing else is handed over by it
        report(case, &attempt.verdict, ended.fetch_add(1, Ordering::Relaxed) + 1, cases.len());
        (attempt, stall)
    });
    cases.into_iter().zip(ran).map(|(case, (attempt, stall))| (case, attempt, stall)).collect()
}

/// How many things are done at a time.
pub(crate) fn processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Does `work` on all items, so many at a time; returns what it gave, in the order of the items.
pub(crate) fn side_by_side<T: Sync, R: Send>(
    items: &[T],
    workers: usize,
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
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// A line for a test that failed or was skipped, and one now and then for the others.
fn report(case: &Case, verdict: &Verdict, ended: usize, all: usize) {
    match verdict {
        Verdict::Failed => eprintln!("xtask: {}: FAILED", case.name()),
        Verdict::Skipped(needs) => eprintln!("xtask: {}: skipped: {needs}", case.name()),
        Verdict::Passed => {}
    }
    if ended.is_multiple_of(100) || ended == all {
        eprintln!("xtask: {ended} of {all} tests ended");
    }
}

fn write_results(ran: &[(Case, Attempt, Stall)]) -> Result<(), Failed> {
    let rows: Vec<Row> = ran.iter().map(Row::of).collect();
    let text = serde_json::to_string_pretty(&rows).expect("strings and numbers");
    let path = root().join(RESULTS);
    let directory = path.parent().expect("a file in a directory");
    let written = fs::create_dir_all(directory).and_then(|()| fs::write(&path, text));
    written.map_err(|error| Failed(format!("{}: {error}", path.display())))
}

impl Row {
    fn of((case, attempt, stall): &(Case, Attempt, Stall)) -> Self {
        Self {
            test: case.name(),
            verdict: match attempt.verdict {
                Verdict::Passed => "passed",
                Verdict::Skipped(_) => "skipped",
                Verdict::Failed => "failed",
            },
            seconds: (attempt.end - attempt.start).as_secs_f64(),
            oversleep_ms: stall.oversleep.as_millis(),
            steal_ms: stall.steal.map(|time| time.as_millis()),
            pressure_ms: stall.pressure.map(|time| time.as_millis()),
        }
    }
}

/// The examples in the documentation, which only rustdoc compiles.
pub(crate) fn documentation_examples() -> Outcome {
    let step = Step::cargo("documentation examples", &["test", "--workspace", "--all-features", "--doc"]);
    match step.captured() {
        Ok(printed) => count_examples(&printed),
        Err(failed) => failed.into(),
    }
}

/// Adds up rustdoc's lines `test result: ok. 3 passed; 0 failed; …`.
fn count_examples(printed: &str) -> Outcome {
    let counts = printed.lines().filter_map(|line| line.strip_prefix("test result: ok. "));
    let passed = counts.filter_map(|counts| counts.split(' ').next()?.parse::<usize>().ok()).sum();
    if passed == 0 {
        return Outcome::failed("documentation examples", format!("none were run\n{printed}"));
    }
    Outcome { passed, ..Outcome::default() }
}
