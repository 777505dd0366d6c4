//! Detects whether this machine stood still while a test ran.
//!
//! The host of a virtual machine may stop one of its processors for a second, and a loaded machine may let a
//! thread wait as long. A test that fails meanwhile has proven nothing. A [`StallWitness`] beside the tests
//! says whether that happened:
//!
//! - **oversleep**: on each processor a thread sleeps for [`NAP`] again and again. How much later it wakes is
//!   how long nothing of its priority ran there.
//! - **steal**: how long the host ran something else on a processor, by its own account (`/proc/stat`).
//! - **pressure**: how long any thread of this machine waited for a processor (`/proc/pressure/cpu`). A busy
//!   machine has much of it and is no slower for it: it is reported, and no reason for anything.
//!
//! Several tests that run side by side share one witness; each asks for the time between its own start and
//! end.
//!
//! ```
//! # use nocopy_lab::witness::{STALL_LIMIT, StallWitness};
//! # use std::time::Instant;
//! let witness = StallWitness::start()?;
//! let start = Instant::now();
//! // … a test runs, and fails …
//! let stall = witness.worst_between(start, Instant::now());
//! if stall.exceeds(STALL_LIMIT) {
//!     println!("once more: {stall}");
//! }
//! # Ok::<(), std::io::Error>(())
//! ```

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{fmt, fs, io, thread};

use rustix::thread::CpuSet;

/// How long the witness sleeps at a time.
pub const NAP: Duration = Duration::from_millis(10);

/// A stall beyond this is an excuse for a test to run once more.
pub const STALL_LIMIT: Duration = Duration::from_millis(100);

/// How often the kernel's accounts are read.
const ACCOUNT_EVERY: Duration = Duration::from_millis(100);

/// Shorter oversleeps are forgotten at once.
const RECORDED_FROM: Duration = Duration::from_millis(5);

/// Oversleeps remembered of each processor: when every nap ends late, the last quarter of an hour.
const OVERSLEEPS: usize = 65_536;

/// Readings of the accounts remembered: two hours.
const READINGS: usize = 72_000;

/// The worst that a [`StallWitness`] saw in a span of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stall {
    /// The longest time that a thread was prevented from running on any processor.
    pub oversleep: Duration,
    /// The most that the host took from any one processor between two readings of its account (about 100 ms
    /// apart, more when stalled). `None`: this kernel has no account of it.
    pub steal: Option<Duration>,
    /// How long any thread of the machine waited for a processor, in all. `None`: this kernel has no account
    /// of it.
    pub pressure: Option<Duration>,
}

impl Stall {
    /// Whether a processor stood still for longer than `limit`, usually [`STALL_LIMIT`].
    pub fn exceeds(&self, limit: Duration) -> bool {
        self.oversleep > limit || self.steal.is_some_and(|steal| steal > limit)
    }
}

/// `stalled for 312 ms (stolen: 290 ms, waiting for a processor: 1204 ms)`.
impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let account = |account: Option<Duration>| match account {
            Some(time) => format!("{} ms", time.as_millis()),
            None => "unknown".to_owned(),
        };
        let (steal, pressure) = (account(self.steal), account(self.pressure));
        let oversleep = self.oversleep.as_millis();
        write!(f, "stalled for {oversleep} ms (stolen: {steal}, waiting for a processor: {pressure})")
    }
}

/// Watches for stalls of the machine until it is dropped, which takes a tenth of a second at most.
#[derive(Debug)]
pub struct StallWitness {
    naps: Vec<Arc<Mutex<NapHistory>>>,
    accounts: Arc<Mutex<CpuAccountHistory>>,
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl StallWitness {
    /// Starts one thread on each processor that this process may use, and one that reads the kernel's
    /// accounts.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start() -> io::Result<Self> {
        let ended = Arc::new(AtomicBool::new(false));
        let mut witness = Self {
            naps: Vec::new(),
            accounts: Arc::new(Mutex::new(CpuAccountHistory::new(read_cpu_accounts()))),
            ended,
            threads: Vec::new(),
        };
        for processor in allowed_processors() {
            let naps = Arc::new(Mutex::new(NapHistory::new(Instant::now())));
            witness.naps.push(Arc::clone(&naps));
            let ended = Arc::clone(&witness.ended);
            witness.spawn(move || record_naps_on(processor, &naps, &ended))?;
        }
        let (accounts, ended) = (Arc::clone(&witness.accounts), Arc::clone(&witness.ended));
        witness.spawn(move || record_cpu_accounts(&accounts, &ended))?;
        Ok(witness)
    }

    /// The worst stall between two points in time. One that lasts yet counts for as long as it has lasted; of
    /// one that began before `start` or lasted beyond `end`, the part between them counts.
    pub fn worst_between(&self, start: Instant, end: Instant) -> Stall {
        let now = Instant::now();
        let oversleep =
            self.naps.iter().map(|naps| lock_ignoring_poison(naps).worst_between(start, end, now)).max();
        let mut accounts = lock_ignoring_poison(&self.accounts);
        accounts.record(read_cpu_accounts());
        let (steal, pressure) = accounts.worst_between(start, end);
        Stall { oversleep: oversleep.unwrap_or_default(), steal, pressure }
    }

    fn spawn(&mut self, watch: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(thread::Builder::new().name("witness".to_owned()).spawn(watch)?);
        Ok(())
    }
}

impl Drop for StallWitness {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed); // ordering: nothing else is handed over by it
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // a thread that panicked has printed why
        }
    }
}

fn record_naps_on(processor: usize, naps: &Mutex<NapHistory>, ended: &AtomicBool) {
    let mut only = CpuSet::new();
    only.set(processor);
    // The processor may be removed meanwhile: then the thread watches the one it runs on.
    let _ = rustix::thread::sched_setaffinity(None, &only);
    while !ended.load(Ordering::Relaxed) {
        lock_ignoring_poison(naps).begin_nap(Instant::now());
        thread::sleep(NAP);
        lock_ignoring_poison(naps).finish_nap(Instant::now());
    }
}

fn record_cpu_accounts(accounts: &Mutex<CpuAccountHistory>, ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        lock_ignoring_poison(accounts).record(read_cpu_accounts());
        thread::sleep(ACCOUNT_EVERY);
    }
}

/// The processors that this process may use; only the first if the kernel does not report them.
fn allowed_processors() -> Vec<usize> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect(),
        Err(_) => vec![0],
    }
}

/// The value is a history, which a panicking thread cannot have left half written.
fn lock_ignoring_poison<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Naps on one processor that ended late.
#[derive(Debug)]
struct NapHistory {
    /// When the current nap should end.
    due: Instant,
    /// When each should have ended, and when it did, oldest first.
    late: VecDeque<(Instant, Instant)>,
}

impl NapHistory {
    fn new(now: Instant) -> Self {
        Self { due: now + NAP, late: VecDeque::new() }
    }

    fn begin_nap(&mut self, now: Instant) {
        self.due = now + NAP;
    }

    fn finish_nap(&mut self, now: Instant) {
        if now.saturating_duration_since(self.due) >= RECORDED_FROM {
            if self.late.len() == OVERSLEEPS {
                self.late.pop_front();
            }
            self.late.push_back((self.due, now));
        }
        self.due = now + NAP; // the thread may be kept from its next nap, too
    }

    fn worst_between(&self, start: Instant, end: Instant, now: Instant) -> Duration {
        let overlap =
            |(due, woke): (Instant, Instant)| woke.min(end).saturating_duration_since(due.max(start));
        let worst_late = self.late.iter().copied().map(overlap).max().unwrap_or_default();
        worst_late.max(overlap((self.due, now)))
    }
}

/// A reading of the kernel's accounts, since the start of the machine.
#[derive(Debug, Clone)]
struct CpuAccountReading {
    at: Instant,
    steal: Option<Vec<Duration>>,
    pressure: Option<Duration>,
}

fn read_cpu_accounts() -> CpuAccountReading {
    let ticks_per_second = rustix::param::clock_ticks_per_second();
    let read = |path: &str| fs::read_to_string(path).ok();
    CpuAccountReading {
        steal: read("/proc/stat").and_then(|stat| parse_steal_times(&stat, ticks_per_second)),
        pressure: read("/proc/pressure/cpu").and_then(|pressure| parse_cpu_pressure(&pressure)),
        at: Instant::now(),
    }
}

/// The eighth number of each `cpuN` line of `/proc/stat`.
fn parse_steal_times(stat: &str, ticks_per_second: u64) -> Option<Vec<Duration>> {
    let processor = |line: &str| {
        let ticks = line.split_ascii_whitespace().nth(8)?.parse::<u64>().ok()?;
        Some(Duration::from_millis(ticks * 1000 / ticks_per_second))
    };
    let lines = stat.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu "));
    let steal = lines.map(processor).collect::<Option<Vec<_>>>()?;
    (!steal.is_empty()).then_some(steal)
}

/// The microseconds after `total=` in the line `some` of `/proc/pressure/cpu`.
fn parse_cpu_pressure(pressure: &str) -> Option<Duration> {
    let some = pressure.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = some.split_ascii_whitespace().find_map(|field| field.strip_prefix("total="))?;
    Some(Duration::from_micros(total.parse().ok()?))
}

#[derive(Debug)]
struct CpuAccountHistory {
    last: CpuAccountReading,
    spans: VecDeque<AccountInterval>,
}

/// The time between two readings.
#[derive(Debug)]
struct AccountInterval {
    from: Instant,
    to: Instant,
    /// Stolen time of the processor that lost most.
    steal: Option<Duration>,
    pressure: Option<Duration>,
}

impl CpuAccountHistory {
    fn new(first: CpuAccountReading) -> Self {
        Self { last: first, spans: VecDeque::new() }
    }

    fn record(&mut self, reading: CpuAccountReading) {
        // The number of processors has changed: readings do not match any more.
        let steal = match (&self.last.steal, &reading.steal) {
            (Some(before), Some(after)) if before.len() == after.len() => {
                before.iter().zip(after).map(|(before, after)| after.saturating_sub(*before)).max()
            }
            _ => None,
        };
        let pressure = self.last.pressure.zip(reading.pressure);
        let pressure = pressure.map(|(before, after)| after.saturating_sub(before));
        if self.spans.len() == READINGS {
            self.spans.pop_front();
        }
        self.spans.push_back(AccountInterval { from: self.last.at, to: reading.at, steal, pressure });
        self.last = reading;
    }

    /// The worst steal and the whole pressure of all spans that overlap the time between the two.
    fn worst_between(&self, start: Instant, end: Instant) -> (Option<Duration>, Option<Duration>) {
        let within = || self.spans.iter().filter(|span| span.from < end && span.to > start);
        let steal = within().filter_map(|span| span.steal).max();
        let pressure = within().filter_map(|span| span.pressure).reduce(|sum, span| sum + span);
        (steal, pressure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Naps from `start`: one on time, and one that ended at 500 ms instead of 20 ms.
    fn history_with_late_nap(start: Instant) -> NapHistory {
        let mut naps = NapHistory::new(start);
        naps.finish_nap(start + 10 * MS);
        naps.begin_nap(start + 10 * MS);
        naps.finish_nap(start + 500 * MS);
        naps.begin_nap(start + 500 * MS);
        naps
    }

    #[test]
    fn a_nap_in_time_is_no_stall() {
        let start = Instant::now();
        let mut naps = NapHistory::new(start);
        naps.finish_nap(start + 12 * MS);
        naps.begin_nap(start + 12 * MS);
        assert_eq!(naps.worst_between(start, start + 20 * MS, start + 20 * MS), Duration::ZERO);
    }

    #[test]
    fn a_late_nap_counts_from_its_due_time() {
        let start = Instant::now();
        let naps = history_with_late_nap(start);
        assert_eq!(naps.worst_between(start, start + 505 * MS, start + 505 * MS), 480 * MS);
    }

    #[test]
    fn only_the_part_of_a_stall_in_the_window_counts() {
        let start = Instant::now();
        let naps = history_with_late_nap(start);
        let now = start + 505 * MS;
        assert_eq!(naps.worst_between(start, start + 100 * MS, now), 80 * MS, "its beginning");
        assert_eq!(naps.worst_between(start + 450 * MS, now, now), 50 * MS, "its end");
        assert_eq!(naps.worst_between(start + 500 * MS, now, now), Duration::ZERO, "nothing of it");
        assert_eq!(naps.worst_between(start, start + 20 * MS, now), Duration::ZERO, "it came after");
    }

    #[test]
    fn an_unfinished_nap_counts_up_to_now() {
        let start = Instant::now();
        let naps = history_with_late_nap(start); // the next nap is due at 510 ms
        assert_eq!(naps.worst_between(start + 500 * MS, start + 710 * MS, start + 710 * MS), 200 * MS);
    }

    #[test]
    fn a_stall_between_two_naps_counts() {
        let start = Instant::now();
        let mut naps = NapHistory::new(start);
        naps.finish_nap(start + 10 * MS); // and then the thread does not run
        assert_eq!(naps.worst_between(start, start + 320 * MS, start + 320 * MS), 300 * MS);
    }

    #[test]
    fn the_oldest_late_naps_are_forgotten_beyond_the_capacity() {
        let start = Instant::now();
        let mut naps = history_with_late_nap(start);
        let mut now = start + 500 * MS;
        for _ in 0..OVERSLEEPS {
            naps.begin_nap(now);
            now += 30 * MS;
            naps.finish_nap(now);
        }
        assert_eq!(naps.late.len(), OVERSLEEPS);
        assert_eq!(naps.worst_between(start, now, now), 20 * MS);
    }

    fn cpu_account_reading(at: Instant, steal: [Duration; 2], pressure: Duration) -> CpuAccountReading {
        CpuAccountReading { at, steal: Some(steal.to_vec()), pressure: Some(pressure) }
    }

    #[test]
    fn reported_steal_is_that_of_the_worst_interval_and_processor() {
        let start = Instant::now();
        let mut accounts = CpuAccountHistory::new(cpu_account_reading(start, [900 * MS, 40 * MS], 10 * MS));
        accounts.record(cpu_account_reading(start + 100 * MS, [900 * MS, 50 * MS], 20 * MS));
        accounts.record(cpu_account_reading(start + 400 * MS, [920 * MS, 320 * MS], 50 * MS));
        accounts.record(cpu_account_reading(start + 500 * MS, [930 * MS, 330 * MS], 60 * MS));
        let between = |from: u32, to: u32| accounts.worst_between(start + from * MS, start + to * MS);
        assert_eq!(between(0, 500), (Some(270 * MS), Some(50 * MS)));
        assert_eq!(between(0, 100), (Some(10 * MS), Some(10 * MS)));
        assert_eq!(between(350, 450), (Some(270 * MS), Some(40 * MS)));
        assert_eq!(between(400, 500), (Some(10 * MS), Some(10 * MS)));
        assert_eq!(between(500, 600), (None, None));
    }

    #[test]
    fn a_changed_processor_count_gives_no_steal() {
        let start = Instant::now();
        let mut accounts =
            CpuAccountHistory::new(cpu_account_reading(start, [Duration::ZERO; 2], Duration::ZERO));
        let one = CpuAccountReading { at: start + 100 * MS, steal: Some(vec![900 * MS]), pressure: None };
        accounts.record(one);
        assert_eq!(accounts.worst_between(start, start + 100 * MS), (None, None));
    }

    #[test]
    fn steal_and_pressure_are_parsed_from_proc_files() {
        let stat = "cpu  34600 0 5936 26973 358 0 35 43 0 0\n\
                    cpu0 17030 0 2790 14122 33 0 6 20 0 0\n\
                    cpu1 17570 0 3146 12851 325 0 28 23 0 0\n\
                    intr 1234 0 9\nctxt 99\n";
        assert_eq!(parse_steal_times(stat, 100), Some(vec![200 * MS, 230 * MS]));
        assert_eq!(parse_steal_times("cpu0 1 2 3\n", 100), None);
        assert_eq!(parse_steal_times("", 100), None);
        let pressure = "some avg10=9.47 avg60=11.14 avg300=5.85 total=25711107\n\
                        full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
        assert_eq!(parse_cpu_pressure(pressure), Some(Duration::from_micros(25_711_107)));
        assert_eq!(parse_cpu_pressure("full avg10=0.00 total=0\n"), None);
    }

    #[test]
    fn oversleep_and_steal_exceed_the_limit_but_pressure_does_not() {
        let stall = |oversleep, steal, pressure| Stall { oversleep, steal, pressure };
        assert!(stall(101 * MS, None, None).exceeds(STALL_LIMIT));
        assert!(stall(Duration::ZERO, Some(110 * MS), None).exceeds(STALL_LIMIT));
        assert!(!stall(100 * MS, Some(100 * MS), Some(9000 * MS)).exceeds(STALL_LIMIT));
        let text = stall(312 * MS, Some(290 * MS), None).to_string();
        assert_eq!(text, "stalled for 312 ms (stolen: 290 ms, waiting for a processor: unknown)");
    }

    #[test]
    fn every_processor_has_a_witness_thread() {
        let witness = StallWitness::start().unwrap();
        assert_eq!(witness.naps.len(), allowed_processors().len());
        assert_eq!(witness.threads.len(), allowed_processors().len() + 1);
        let stall = witness.worst_between(Instant::now(), Instant::now());
        assert!(stall.steal.is_some(), "Linux counts steal in /proc/stat: {stall}");
    }
}
