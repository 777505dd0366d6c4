//! The result of each test on its machine, over all its runs.
//!
//! A test that fails while the machine stalled has shown nothing. It runs once more, alone. If it passes
//! then, it is *flaky*: it is reported, and the run fails only if there are too many of them.

use std::time::{Duration, Instant};

use nocopy_lab::witness::{STALL_LIMIT, Stall};

use crate::event::TestResult;
use crate::guest::kernel_log::is_long_stall;

/// The limit of stalls in a machine with emulated processors, where work of the kernel may delay a thread for
/// what takes a tenth of a second on another machine.
const GUEST_STALL_LIMIT: Duration = Duration::from_secs(1);

/// A test, and the result of each run: at most two.
#[derive(Debug)]
pub(crate) struct TestRunHistory {
    pub(crate) test: &'static str,
    pub(crate) runs: Vec<TestRun>,
}

#[derive(Debug)]
pub(crate) struct TestRun {
    pub(crate) ended: TestResult,
    /// The stall during the run, because of which a failure proves nothing.
    pub(crate) stall: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TestVerdict {
    Passed,
    /// It failed during a stall, and passed when it was repeated.
    Flaky,
    Failed,
    /// The machine ended before the test did.
    NotRun,
}

impl TestRunHistory {
    pub(crate) fn verdict(&self) -> TestVerdict {
        match self.runs.split_last() {
            None => TestVerdict::NotRun,
            Some((last, _)) if !last.ended.passed() => TestVerdict::Failed,
            Some((_, before)) if before.iter().any(|run| !run.ended.passed()) => TestVerdict::Flaky,
            Some(_) => TestVerdict::Passed,
        }
    }

    /// Whether it has run once, and failed during a stall.
    pub(crate) fn must_be_repeated(&self) -> bool {
        matches!(&self.runs[..], [run] if !run.ended.passed() && run.stall.is_some())
    }

    /// The last run, whose result counts.
    pub(crate) fn last_run(&self) -> Option<&TestRun> {
        self.runs.last()
    }

    /// The run that failed, of a flaky test.
    pub(crate) fn excused_failure(&self) -> Option<&TestRun> {
        self.runs.first().filter(|_| self.verdict() == TestVerdict::Flaky)
    }
}

impl TestRun {
    /// The run of a test that ended while `host` was observed on the host.
    pub(crate) fn new(ended: TestResult, host: Stall) -> Self {
        let stall = describe_stall(&ended, host);
        Self { ended, stall }
    }

    /// The run of a test that ended with its machine.
    pub(crate) fn ended_with_machine(
        test: &str,
        since: Instant,
        failure: &str,
        stall: Option<String>,
    ) -> Self {
        let (test, seconds) = (test.to_owned(), since.elapsed().as_secs_f64());
        let failure = Some(format!("the machine ended with it: {failure}"));
        Self { ended: TestResult { test, seconds, failure, ..TestResult::default() }, stall }
    }
}

/// A stall that the host's witness, the guest's, or the guest's kernel has noticed.
fn describe_stall(ended: &TestResult, host: Stall) -> Option<String> {
    if host.exceeds(STALL_LIMIT) {
        return Some(format!("the host {host}"));
    }
    if Duration::from_millis(ended.oversleep_ms) > GUEST_STALL_LIMIT {
        return Some(format!("a processor of the machine stalled for {} ms", ended.oversleep_ms));
    }
    let mut long = ended.log.stalls.iter().filter(|line| is_long_stall(line));
    long.next().map(|line| format!("the machine's kernel says: {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::KernelLogLines;

    const CALM: Stall = Stall { oversleep: Duration::from_millis(90), steal: None, pressure: None };
    const STALLED: Stall = Stall { oversleep: Duration::from_millis(400), steal: None, pressure: None };

    fn test_run(failure: Option<&str>, host: Stall) -> TestRun {
        let failure = failure.map(str::to_owned);
        TestRun::new(TestResult { test: "copies".into(), failure, ..TestResult::default() }, host)
    }

    fn history_of(runs: Vec<TestRun>) -> TestRunHistory {
        TestRunHistory { test: "copies", runs }
    }

    #[test]
    fn a_failure_is_repeated_only_after_a_stall_and_only_once() {
        assert!(!history_of(vec![]).must_be_repeated());
        assert!(!history_of(vec![test_run(None, STALLED)]).must_be_repeated());
        assert!(!history_of(vec![test_run(Some("late"), CALM)]).must_be_repeated());
        assert!(history_of(vec![test_run(Some("late"), STALLED)]).must_be_repeated());
        assert!(
            !history_of(vec![test_run(Some("late"), STALLED), test_run(Some("late"), STALLED)])
                .must_be_repeated()
        );
    }

    #[test]
    fn the_verdict_follows_the_last_run() {
        assert_eq!(history_of(vec![]).verdict(), TestVerdict::NotRun);
        assert_eq!(history_of(vec![test_run(None, STALLED)]).verdict(), TestVerdict::Passed);
        assert_eq!(history_of(vec![test_run(Some("late"), STALLED)]).verdict(), TestVerdict::Failed);
        let flaky = history_of(vec![test_run(Some("late"), STALLED), test_run(None, CALM)]);
        assert_eq!(flaky.verdict(), TestVerdict::Flaky);
        assert_eq!(flaky.excused_failure().unwrap().ended.failure.as_deref(), Some("late"));
        let failed = history_of(vec![test_run(Some("late"), STALLED), test_run(Some("late"), CALM)]);
        assert_eq!((failed.verdict(), failed.excused_failure().is_none()), (TestVerdict::Failed, true));
    }

    #[test]
    fn a_transmit_timeout_is_retried_only_after_a_stall() {
        let hang = "igb 0000:01:00.0 nc0: NETDEV WATCHDOG: CPU: 1: transmit queue 0 timed out 6512 ms";
        let log = KernelLogLines { complaints: vec![hang.into()], stalls: Vec::new() };
        let ended = TestResult { log, ..TestResult::default() };
        assert!(!history_of(vec![TestRun::new(ended.clone(), CALM)]).must_be_repeated());
        assert!(history_of(vec![TestRun::new(ended, STALLED)]).must_be_repeated());
    }

    #[test]
    fn each_stall_source_has_its_own_limit() {
        let mut ended = TestResult { oversleep_ms: 1000, ..TestResult::default() };
        assert_eq!(describe_stall(&ended, CALM), None);
        ended.oversleep_ms = 1001;
        assert_eq!(
            describe_stall(&ended, CALM).as_deref(),
            Some("a processor of the machine stalled for 1001 ms")
        );
        assert!(describe_stall(&ended, STALLED).unwrap().starts_with("the host stalled for 400 ms"));
        ended.oversleep_ms = 0;
        ended.log.stalls.push("hrtimer: interrupt took 21385902 ns".into());
        assert_eq!(describe_stall(&ended, CALM), None);
        ended.log.stalls.push("rcu: INFO: rcu_sched self-detected stall on CPU".into());
        assert!(describe_stall(&ended, CALM).unwrap().contains("self-detected"));
    }
}
