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
pub(crate) struct Row {
    pub(crate) test: &'static str,
    pub(crate) runs: Vec<Run>,
}

#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) ended: TestResult,
    /// The stall during the run, because of which a failure proves nothing.
    pub(crate) stall: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Passed,
    /// It failed during a stall, and passed when it was repeated.
    Flaky,
    Failed,
    /// The machine ended before the test did.
    NotRun,
}

impl Row {
    pub(crate) fn verdict(&self) -> Verdict {
        match self.runs.split_last() {
            None => Verdict::NotRun,
            Some((last, _)) if !last.ended.passed() => Verdict::Failed,
            Some((_, before)) if before.iter().any(|run| !run.ended.passed()) => Verdict::Flaky,
            Some(_) => Verdict::Passed,
        }
    }

    /// Whether it has run once, and failed during a stall.
    pub(crate) fn is_to_run_again(&self) -> bool {
        matches!(&self.runs[..], [run] if !run.ended.passed() && run.stall.is_some())
    }

    /// The last run, whose result counts.
    pub(crate) fn last(&self) -> Option<&Run> {
        self.runs.last()
    }

    /// The run that failed, of a flaky test.
    pub(crate) fn excused(&self) -> Option<&Run> {
        self.runs.first().filter(|_| self.verdict() == Verdict::Flaky)
    }
}

impl Run {
    /// The run of a test that ended while `host` was observed on the host.
    pub(crate) fn new(ended: TestResult, host: Stall) -> Self {
        let stall = stall(&ended, host);
        Self { ended, stall }
    }

    /// The run of a test that ended with its machine.
    pub(crate) fn cut_short(test: &str, since: Instant, failure: &str, stall: Option<String>) -> Self {
        let (test, seconds) = (test.to_owned(), since.elapsed().as_secs_f64());
        let failure = Some(format!("the machine ended with it: {failure}"));
        Self { ended: TestResult { test, seconds, failure, ..TestResult::default() }, stall }
    }
}

/// A stall that the host's witness, the guest's, or the guest's kernel has noticed.
fn stall(ended: &TestResult, host: Stall) -> Option<String> {
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
    use crate::event::Log;

    const CALM: Stall = Stall { oversleep: Duration::from_millis(90), steal: None, pressure: None };
    const STALLED: Stall = Stall { oversleep: Duration::from_millis(400), steal: None, pressure: None };

    fn run(failure: Option<&str>, host: Stall) -> Run {
        let failure = failure.map(str::to_owned);
        Run::new(TestResult { test: "copies".into(), failure, ..TestResult::default() }, host)
    }

    fn row(runs: Vec<Run>) -> Row {
        Row { test: "copies", runs }
    }

    #[test]
    fn a_failure_runs_again_only_after_a_stall_and_only_once() {
        assert!(!row(vec![]).is_to_run_again());
        assert!(!row(vec![run(None, STALLED)]).is_to_run_again());
        assert!(!row(vec![run(Some("late"), CALM)]).is_to_run_again());
        assert!(row(vec![run(Some("late"), STALLED)]).is_to_run_again());
        assert!(!row(vec![run(Some("late"), STALLED), run(Some("late"), STALLED)]).is_to_run_again());
    }

    #[test]
    fn the_last_run_counts() {
        assert_eq!(row(vec![]).verdict(), Verdict::NotRun);
        assert_eq!(row(vec![run(None, STALLED)]).verdict(), Verdict::Passed);
        assert_eq!(row(vec![run(Some("late"), STALLED)]).verdict(), Verdict::Failed);
        let flaky = row(vec![run(Some("late"), STALLED), run(None, CALM)]);
        assert_eq!(flaky.verdict(), Verdict::Flaky);
        assert_eq!(flaky.excused().unwrap().ended.failure.as_deref(), Some("late"));
        let failed = row(vec![run(Some("late"), STALLED), run(Some("late"), CALM)]);
        assert_eq!((failed.verdict(), failed.excused().is_none()), (Verdict::Failed, true));
    }

    #[test]
    fn a_hung_card_fails_without_a_stall() {
        let hang = "igb 0000:01:00.0 nc0: NETDEV WATCHDOG: CPU: 1: transmit queue 0 timed out 6512 ms";
        let log = Log { complaints: vec![hang.into()], stalls: Vec::new() };
        let ended = TestResult { log, ..TestResult::default() };
        assert!(!row(vec![Run::new(ended.clone(), CALM)]).is_to_run_again());
        assert!(row(vec![Run::new(ended, STALLED)]).is_to_run_again());
    }

    #[test]
    fn each_witness_counts_from_its_own_limit() {
        let mut ended = TestResult { oversleep_ms: 1000, ..TestResult::default() };
        assert_eq!(stall(&ended, CALM), None);
        ended.oversleep_ms = 1001;
        assert_eq!(stall(&ended, CALM).as_deref(), Some("a processor of the machine stalled for 1001 ms"));
        assert!(stall(&ended, STALLED).unwrap().starts_with("the host stalled for 400 ms"));
        ended.oversleep_ms = 0;
        ended.log.stalls.push("hrtimer: interrupt took 21385902 ns".into());
        assert_eq!(stall(&ended, CALM), None);
        ended.log.stalls.push("rcu: INFO: rcu_sched self-detected stall on CPU".into());
        assert!(stall(&ended, CALM).unwrap().contains("self-detected"));
    }
}
