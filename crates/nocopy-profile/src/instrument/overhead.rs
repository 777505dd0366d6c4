//! The cost of the BPF programs themselves. The kernel times them on request (`BPF_ENABLE_STATS`). That about
//! doubles their cost, so they are timed in a 25th of the window only, and the result is scaled.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

use aya::programs::ProgramFd;
use aya::sys::{Stats, enable_stats};

use crate::measured::ProgramOverhead;

const TIMED: Duration = Duration::from_millis(10);
const UNTIMED: Duration = Duration::from_millis(240);

/// Times the programs until it is dropped.
#[derive(Debug)]
pub(super) struct ProgramTimer {
    programs: Vec<ProgramFd>,
    before: ProgramRunTimes,
    stop: Sender<()>,
    /// How long the programs were timed; `None` if the kernel refused.
    timing: JoinHandle<Option<Duration>>,
}

/// Total of all programs since they were loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct ProgramRunTimes {
    runtime_ns: u64,
    runs: u64,
    /// Events that were missed because the program was already running on that processor.
    missed: u64,
}

impl ProgramTimer {
    pub(super) fn start(programs: Vec<ProgramFd>) -> Self {
        let before = ProgramRunTimes::sum_over_programs(&programs);
        let (stop, stopped) = channel();
        let timing = spawn(move || {
            let mut timed = Duration::ZERO;
            loop {
                let start = Instant::now();
                let statistics = enable_stats(Stats::RunTime).ok()?;
                let end = stopped.recv_timeout(TIMED);
                drop(statistics);
                timed += start.elapsed();
                if end != Err(RecvTimeoutError::Timeout)
                    || stopped.recv_timeout(UNTIMED) != Err(RecvTimeoutError::Timeout)
                {
                    return Some(timed);
                }
            }
        });
        Self { programs, before, stop, timing }
    }

    /// Ends it after that time; the time is zero if the kernel does not count it.
    pub(super) fn stop_and_scale(self, elapsed: Duration) -> (ProgramOverhead, bool) {
        let _ = self.stop.send(());
        let timed = self.timing.join().expect("it does not panic");
        let account = ProgramRunTimes::sum_over_programs(&self.programs).difference_since(self.before);
        // If the machine times all programs all the time, the total covers the whole window.
        let timed = if is_timing_always_on() { Some(elapsed) } else { timed };
        let scale = timed.map_or(0.0, |timed| elapsed.as_secs_f64() / timed.as_secs_f64().max(1e-9)).max(1.0);
        let cost = ProgramOverhead {
            programs: Duration::from_nanos((account.runtime_ns as f64 * scale) as u64),
            program_runs: (account.runs as f64 * scale) as u64,
            lost_events: account.missed,
        };
        (cost, timed.is_some())
    }
}

fn is_timing_always_on() -> bool {
    fs::read_to_string("/proc/sys/kernel/bpf_stats_enabled").is_ok_and(|text| text.trim() == "1")
}

impl ProgramRunTimes {
    fn sum_over_programs(programs: &[ProgramFd]) -> Self {
        let information = |program: &ProgramFd| {
            fs::read_to_string(format!("/proc/self/fdinfo/{}", program.as_fd().as_raw_fd()))
        };
        let accounts =
            programs.iter().filter_map(|program| Some(Self::parse_fdinfo(&information(program).ok()?)));
        accounts.fold(Self::default(), |sum, account| Self {
            runtime_ns: sum.runtime_ns + account.runtime_ns,
            runs: sum.runs + account.runs,
            missed: sum.missed + account.missed,
        })
    }

    fn parse_fdinfo(information: &str) -> Self {
        let field = |name: &str| {
            let line = information.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
        };
        Self {
            runtime_ns: field("run_time_ns:"),
            runs: field("run_cnt:"),
            missed: field("recursion_misses:"),
        }
    }

    fn difference_since(self, before: Self) -> Self {
        Self {
            runtime_ns: self.runtime_ns - before.runtime_ns,
            runs: self.runs - before.runs,
            missed: self.missed - before.missed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_times_are_parsed_from_fdinfo() {
        let text = "pos:\t0\nprog_type:\t17\nrun_time_ns:\t5400\nrun_cnt:\t25\nrecursion_misses:\t2\n";
        assert_eq!(
            ProgramRunTimes::parse_fdinfo(text),
            ProgramRunTimes { runtime_ns: 5400, runs: 25, missed: 2 }
        );
    }
}
