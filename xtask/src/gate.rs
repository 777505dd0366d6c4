//! The gate: all steps run, even after a failure, and one summary follows.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// More flaky tests than this mean that the tests are at fault.
const FLAKY_MAX: usize = 2;

#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) passed: usize,
    pub(crate) failures: Vec<StepFailure>,
    /// Passed when run again, alone; counted as passed, too.
    pub(crate) flaky: Vec<TestNote>,
    pub(crate) skips: Vec<TestNote>,
    /// Each with what to do about it; the step has passed nevertheless. A slice, since an outcome is also an
    /// error, and these are small.
    pub(crate) warnings: Box<[String]>,
    /// A remark that the summary prints after the verdict.
    pub(crate) remark: String,
}

#[derive(Debug)]
pub(crate) struct StepFailure {
    pub(crate) name: String,
    pub(crate) output: String,
}

/// A test and a remark: the stall during a flaky test, or the missing requirement of a skipped one.
#[derive(Debug)]
pub(crate) struct TestNote {
    pub(crate) name: String,
    pub(crate) text: String,
}

impl Outcome {
    pub(crate) fn passed() -> Self {
        Self { passed: 1, ..Self::default() }
    }

    pub(crate) fn failed(name: impl Into<String>, output: impl Into<String>) -> Self {
        let failure = StepFailure { name: name.into(), output: output.into() };
        Self { failures: vec![failure], ..Self::default() }
    }

    /// A skip, because this machine lacks something that the step needs; on continuous integration that is a
    /// failure.
    pub(crate) fn unavailable(name: impl Into<String>, needs: impl Into<String>) -> Self {
        if std::env::var_os("CI").is_some_and(|value| value == "true") {
            return Self::failed(name, format!("a skip that CI does not allow: {}", needs.into()));
        }
        Self::skipped(name, needs)
    }

    /// A skip that continuous integration allows, too.
    pub(crate) fn skipped(name: impl Into<String>, needs: impl Into<String>) -> Self {
        let skip = TestNote { name: name.into(), text: needs.into() };
        Self { skips: vec![skip], ..Self::default() }
    }

    pub(crate) fn with_remark(mut self, remark: impl Into<String>) -> Self {
        self.remark = remark.into();
        self
    }

    /// Whether nothing failed, was skipped or was flaky.
    pub(crate) fn is_good(&self) -> bool {
        self.passed > 0 && self.failures.is_empty() && self.skips.is_empty() && self.flaky.is_empty()
    }

    /// Whether it counts as a failure: also if nothing ran.
    pub(crate) fn has_failed(&self) -> bool {
        self.verdict() == "FAILED"
    }

    /// The outcome of the next step, if this one is good.
    pub(crate) fn then(self, next: impl FnOnce() -> Self) -> Self {
        if self.is_good() { next() } else { self }
    }

    /// The same outcome; if it is good, with what `work` fails for.
    pub(crate) fn checked_if_good<E: Into<Self>>(self, work: impl FnOnce() -> Result<(), E>) -> Self {
        match self.is_good().then(work) {
            Some(Err(failed)) => self.merged_with(failed.into()),
            _ => self,
        }
    }

    /// Both outcomes as one.
    pub(crate) fn merged_with(mut self, other: Self) -> Self {
        self.passed += other.passed;
        self.failures.extend(other.failures);
        self.flaky.extend(other.flaky);
        self.skips.extend(other.skips);
        self.warnings = self.warnings.into_iter().chain(other.warnings).collect();
        self.remark.push_str(&other.remark);
        self
    }

    /// The verdict, the counts and the remark, for a table.
    pub(crate) fn table_line(&self) -> String {
        let remark = self.remark.trim_end_matches("; ");
        let parts = [self.verdict(), &self.counts_text(), remark];
        let some: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        some.join("; ")
    }

    fn verdict(&self) -> &'static str {
        match (self.failures.len(), self.passed, self.skips.len()) {
            // A step that ran nothing is not a success.
            (0, 0, 0) => "FAILED",
            (0, 0, _) => "skipped",
            (0, ..) if self.flaky.len() <= FLAKY_MAX => "passed",
            _ => "FAILED",
        }
    }

    fn counts_text(&self) -> String {
        let kinds = [
            (self.passed, "passed"),
            (self.failures.len(), "failed"),
            (self.flaky.len(), "flaky"),
            (self.skips.len(), "skipped"),
        ];
        let some = kinds.iter().filter(|(count, _)| *count > 0);
        some.map(|(count, kind)| format!("{count} {kind}")).collect::<Vec<_>>().join(", ")
    }
}

#[derive(Debug, Default)]
pub(crate) struct Gate {
    steps: Vec<(&'static str, Outcome, Duration)>,
}

impl Gate {
    pub(crate) fn run(&mut self, name: &'static str, step: impl FnOnce() -> Outcome) {
        eprintln!("xtask: {name}");
        let start = Instant::now();
        let outcome = step();
        let took = start.elapsed();
        eprintln!(
            "xtask: {name}: {} after {} ({})",
            outcome.verdict(),
            minutes_and_seconds(took),
            outcome.counts_text()
        );
        self.steps.push((name, outcome, took));
    }

    /// Prints the summary; true when nothing failed.
    pub(crate) fn print_summary(self) -> bool {
        print!("{}", self.summary());
        self.failure_count() == 0
    }

    fn failure_count(&self) -> usize {
        let failures: usize = self.steps.iter().map(|(_, outcome, _)| outcome.failures.len()).sum();
        let empty = self.steps.iter().filter(|(_, outcome, _)| outcome.counts_text().is_empty()).count();
        failures + empty + usize::from(self.has_too_many_flaky())
    }

    fn has_too_many_flaky(&self) -> bool {
        self.steps.iter().map(|(_, outcome, _)| outcome.flaky.len()).sum::<usize>() > FLAKY_MAX
    }

    /// A row for each step, the flaky and skipped tests, the warnings, the failures with their output, and
    /// the counts as the last line.
    fn summary(&self) -> String {
        let mut text = format!("\n{:<28} {:<8} {:>8}\n", "step", "verdict", "time");
        for (name, outcome, took) in &self.steps {
            let (verdict, counts, remark) = (outcome.verdict(), outcome.counts_text(), &outcome.remark);
            let separator = if remark.is_empty() { "" } else { "; " };
            let _ = writeln!(
                text,
                "{name:<28} {verdict:<8} {:>8}  {counts}{separator}{remark}",
                minutes_and_seconds(*took)
            );
        }
        let total = self.steps.iter().map(|(_, _, took)| *took).sum();
        let _ = writeln!(text, "{:<28} {:<8} {:>8}", "all", "", minutes_and_seconds(total));
        self.write_skips(&mut text);
        self.write_flaky(&mut text);
        self.write_warnings(&mut text);
        for failure in self.steps.iter().flat_map(|(_, outcome, _)| &outcome.failures) {
            let _ = writeln!(text, "\n---- failed: {} ----\n{}", failure.name, failure.output.trim_end());
        }
        let sum = |count: fn(&Outcome) -> usize| -> usize {
            self.steps.iter().map(|(_, outcome, _)| count(outcome)).sum()
        };
        let (passed, skipped) = (sum(|outcome| outcome.passed), sum(|outcome| outcome.skips.len()));
        let _ = writeln!(text, "\n{passed} passed, {} failed, {skipped} skipped", self.failure_count());
        text
    }

    fn write_skips(&self, text: &mut String) {
        let mut by_need: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for skip in self.steps.iter().flat_map(|(_, outcome, _)| &outcome.skips) {
            by_need.entry(&skip.text).or_default().push(&skip.name);
        }
        for (needs, names) in by_need {
            let _ = writeln!(text, "\nskipped {}: {needs}", names.len());
            for name in names {
                let _ = writeln!(text, "    {name}");
            }
        }
    }

    fn write_flaky(&self, text: &mut String) {
        let flaky: Vec<_> = self.steps.iter().flat_map(|(_, outcome, _)| &outcome.flaky).collect();
        if flaky.is_empty() {
            return;
        }
        let _ = writeln!(text, "\nflaky: failed while the machine stalled, and passed when run again, alone");
        for note in &flaky {
            let _ = writeln!(text, "    {}: {}", note.name, note.text);
        }
        if self.has_too_many_flaky() {
            let _ =
                writeln!(text, "    {} flaky tests: more than {FLAKY_MAX} count as a failure", flaky.len());
        }
    }

    fn write_warnings(&self, text: &mut String) {
        for (step, outcome, _) in &self.steps {
            if !outcome.warnings.is_empty() {
                let _ = writeln!(text, "\nwarnings {}: {step}", outcome.warnings.len());
            }
            for warning in outcome.warnings.iter() {
                let _ = writeln!(text, "    {warning}");
            }
        }
    }
}

fn minutes_and_seconds(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate_with_outcomes(outcomes: Vec<Outcome>) -> Gate {
        Gate { steps: outcomes.into_iter().map(|outcome| ("step", outcome, Duration::ZERO)).collect() }
    }

    fn flaky_outcome(count: usize) -> Outcome {
        let flaky = (0..count).map(|i| TestNote { name: i.to_string(), text: "stalled".into() });
        Outcome { passed: count, flaky: flaky.collect(), ..Outcome::default() }
    }

    #[test]
    fn a_failed_step_hides_no_other() {
        let mut gate = Gate::default();
        gate.run("first", || Outcome::failed("one", "its output"));
        gate.run("second", || Outcome::failed("two", "other output"));
        gate.run("third", Outcome::passed);
        let summary = gate.summary();
        for part in ["failed: one", "its output", "failed: two", "other output", "third"] {
            assert!(summary.contains(part), "{part}: {summary}");
        }
        assert_eq!(summary.lines().last(), Some("1 passed, 2 failed, 0 skipped"));
        assert!(!gate.print_summary());
    }

    #[test]
    fn skips_are_grouped_by_requirement() {
        let skips =
            || Outcome::skipped("a", "needs a card").merged_with(Outcome::skipped("b", "needs a card"));
        let gate = gate_with_outcomes(vec![skips().merged_with(Outcome::passed())]);
        let summary = gate.summary();
        assert!(summary.contains("skipped 2: needs a card\n    a\n    b\n"), "{summary}");
        assert_eq!(summary.lines().last(), Some("1 passed, 0 failed, 2 skipped"));
    }

    #[test]
    fn warnings_are_shown_and_fail_nothing() {
        let warned = |text: &str| Outcome { warnings: [text.into()].into(), ..Outcome::passed() };
        let gate = gate_with_outcomes(vec![warned("a is old").merged_with(warned("b is old"))]);
        let summary = gate.summary();
        assert!(summary.contains("\nwarnings 2: step\n    a is old\n    b is old\n"), "{summary}");
        assert_eq!(summary.lines().last(), Some("2 passed, 0 failed, 0 skipped"));
        assert!(gate.print_summary());
    }

    #[test]
    fn a_step_that_did_nothing_has_failed() {
        let gate = gate_with_outcomes(vec![Outcome::default(), Outcome::passed()]);
        assert_eq!(gate.summary().lines().last(), Some("1 passed, 1 failed, 0 skipped"));
        assert!(!gate.print_summary());
    }

    #[test]
    fn more_than_two_flaky_tests_are_a_failure() {
        assert!(gate_with_outcomes(vec![flaky_outcome(1), flaky_outcome(1)]).print_summary());
        let three = gate_with_outcomes(vec![flaky_outcome(1), flaky_outcome(2)]);
        assert!(three.summary().ends_with("\n3 passed, 1 failed, 0 skipped\n"), "{}", three.summary());
        assert!(!three.print_summary());
    }
}
