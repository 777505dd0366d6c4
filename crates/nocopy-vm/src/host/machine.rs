//! A machine, from its start to its end.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use nocopy_lab::witness::{STALL_LIMIT, StallWitness};
use serde::Serialize;

use super::boot::MachinePlan;
use super::emulator::{CONSOLE, RunningMachine};
use super::ending::MachineFailure;
use super::kernel::KernelTree;
use super::lab::{LabContext, ProcessorKind};
use super::rows::{TestRun, TestRunHistory};
use super::tools::HostTools;
use super::wire;
use crate::arguments::RandomArguments;
use crate::event::{self, GuestEvent, KernelLogLines};
use crate::failure::last_lines;
use crate::guest;
use crate::topology::Architecture;

/// A machine may be silent for the time of its longest test plus this, which is more than a boot takes.
const SILENCE_MORE: Duration = Duration::from_secs(60);

/// How long a machine whose tests are done may take to go down.
const END_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// Machines at a time beyond one for each processor of the host: emulation keeps about one processor busy for
/// each machine, but a third of the time a machine waits for the link of a card.
const MACHINES_MORE: usize = 1;

/// Those of arm64 wait for nothing, and have 4 GiB each.
const MACHINES_ON_ARM64: usize = 2;

/// How many last lines of the console are kept when a machine ends before its tests.
const CONSOLE_LINES: usize = 40;

#[derive(Serialize)]
pub(crate) struct MachineResult {
    #[serde(flatten)]
    pub(crate) boot: MachinePlan,
    /// As printed by the machine's `uname -r`; the expected one if it never got so far.
    pub(crate) version: String,
    pub(crate) boot_seconds: Option<f64>,
    pub(crate) seconds: f64,
    #[serde(skip)]
    pub(crate) rows: Vec<TestRunHistory>,
    /// What is wrong with the machine itself.
    pub(crate) failure: Option<String>,
    /// What the kernel logged after the last test, and its stalls before the first.
    #[serde(flatten)]
    pub(crate) log: KernelLogLines,
    /// Why it was started again, each time.
    pub(crate) restarts: Vec<String>,
    /// Whether it ended in a way that proves nothing about the tests ([`MachineFailure::excuse`]).
    #[serde(skip)]
    is_excused: bool,
}

/// Runs every machine, [`parallel_machines_max`] at a time. Then repeats, one at a time, what failed during
/// a stall.
/// Returns the outcomes in the order of `boots`.
pub(crate) fn run_all(lab: &LabContext<'_>, boots: Vec<(KernelTree, MachinePlan)>) -> Vec<MachineResult> {
    // A run has machines of one architecture.
    let machines_max = boots.first().map_or(0, |(_, boot)| parallel_machines_max(boot.kernel.architecture()));
    let waiting = Mutex::new(boots.into_iter().enumerate());
    let done = Mutex::new(Vec::new());
    let next = || waiting.lock().expect("no thread panics with it").next();
    thread::scope(|scope| {
        for _ in 0..machines_max {
            scope.spawn(|| {
                while let Some((index, (kernel, boot))) = next() {
                    let mut outcome = MachineResult::new(&kernel, boot);
                    let tests = outcome.boot.tests.clone();
                    run_machine(lab, &kernel, &tests, &mut outcome);
                    done.lock().expect("no thread panics with it").push((index, kernel, outcome));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("every thread is done");
    done.sort_by_key(|(index, ..)| *index);
    for (_, kernel, outcome) in &mut done {
        outcome.repeat_after_stall(lab, kernel);
    }
    done.into_iter().map(|(.., outcome)| outcome).collect()
}

fn parallel_machines_max(architecture: Architecture) -> usize {
    match architecture {
        Architecture::Amd64 => thread::available_parallelism().map_or(1, usize::from) + MACHINES_MORE,
        Architecture::Arm64 => MACHINES_ON_ARM64,
    }
}

/// Runs tests on a machine, which is started once more if it does not boot, or its kernel complains before
/// the first test.
fn run_machine(
    lab: &LabContext<'_>,
    kernel: &KernelTree,
    tests: &[&'static str],
    outcome: &mut MachineResult,
) {
    let started = Instant::now();
    let topology = outcome.boot.topology;
    let mut followed = wire::run_in_wired_namespace(topology, || run_until_end(lab, kernel, tests, outcome));
    if let Err(ending) = &followed
        && ending.is_before_tests()
    {
        outcome.record_restart(ending.text());
        followed = wire::run_in_wired_namespace(topology, || run_until_end(lab, kernel, tests, outcome));
    }
    if let Err(ending) = followed {
        outcome.print_status(ending.text());
        outcome.failure = Some(ending.text().to_owned());
        outcome.is_excused = outcome.is_excused || ending.excuse().is_some();
    }
    outcome.seconds += started.elapsed().as_secs_f64();
}

impl MachineResult {
    fn new(kernel: &KernelTree, boot: MachinePlan) -> Self {
        Self {
            version: kernel.version.clone(),
            rows: boot.tests.iter().map(|test| TestRunHistory { test, runs: Vec::new() }).collect(),
            boot,
            boot_seconds: None,
            seconds: 0.0,
            failure: None,
            log: KernelLogLines::default(),
            restarts: Vec::new(),
            is_excused: false,
        }
    }

    /// Runs once more, on a machine that has no other beside it, what failed or never ran because something
    /// stood still.
    fn repeat_after_stall(&mut self, lab: &LabContext<'_>, kernel: &KernelTree) {
        let was_cut_short = self.failure.is_some() && self.is_excused;
        let again = |row: &&TestRunHistory| row.must_be_repeated() || (was_cut_short && row.runs.is_empty());
        let tests: Vec<&'static str> = self.rows.iter().filter(again).map(|row| row.test).collect();
        if tests.is_empty() {
            return;
        }
        self.is_excused = false;
        match self.failure.take_if(|_| was_cut_short) {
            Some(failure) => self.record_restart(&failure),
            None => self.record_restart(&format!("{} failed during a stall", tests.join(", "))),
        }
        run_machine(lab, kernel, &tests, self);
    }

    /// Fails if the kernel complained already: no test has run that it could be the work of.
    fn record_boot(
        &mut self,
        version: String,
        log: KernelLogLines,
        after: Duration,
    ) -> Result<(), MachineFailure> {
        self.print_status(&format!("Linux {version} is up after {:.0} s", after.as_secs_f64()));
        self.version = version;
        self.boot_seconds = Some(after.as_secs_f64());
        self.log.stalls.extend(log.stalls);
        if log.complaints.is_empty() {
            return Ok(());
        }
        Err(MachineFailure::Unsound(format!(
            "its kernel complained while it booted:\n{}",
            log.complaints.join("\n")
        )))
    }

    pub(crate) fn has_incidents(&self) -> bool {
        !self.is_sound() || !self.restarts.is_empty() || !self.log.stalls.is_empty()
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.failure.is_none() && self.log.complaints.is_empty()
    }

    fn record_restart(&mut self, why: &str) {
        self.print_status(&format!("started once more: {why}"));
        self.restarts.push(why.to_owned());
    }

    fn print_status(&self, words: &str) {
        eprintln!("vm: {:<11} {:<7} {words}", self.boot.topology, self.boot.kernel);
    }

    fn record_test_run(&mut self, run: TestRun) {
        let verdict = if run.ended.passed() { "ok" } else { "FAILED" };
        let stall = run.stall.as_ref().map(|stall| format!(" ({stall})")).unwrap_or_default();
        self.print_status(&format!("{} {verdict}, {:.1} s{stall}", run.ended.test, run.ended.seconds));
        // The final report is missing if the run is stopped, so print it now, too.
        run.ended.failure.iter().for_each(|failure| eprintln!("{failure}"));
        if let Some(row) = self.rows.iter_mut().find(|row| row.test == run.ended.test) {
            row.runs.push(run);
        }
    }
}

/// Starts the machine and reads along until it ends.
fn run_until_end(
    lab: &LabContext<'_>,
    kernel: &KernelTree,
    tests: &[&'static str],
    outcome: &mut MachineResult,
) -> Result<(), MachineFailure> {
    let mut reader =
        MachineReader::start(lab, kernel, &outcome.boot, tests).map_err(MachineFailure::NeverUp)?;
    let mut running: Option<(String, Instant)> = None;
    let ending = loop {
        // What is read now may have happened since the last poll.
        let looked = reader.looked;
        let (events, end) = reader.poll();
        for event in events {
            match event {
                GuestEvent::Booted { kernel, log } => {
                    outcome.record_boot(kernel, log, reader.started.elapsed())?
                }
                GuestEvent::Started { test } => {
                    outcome.print_status(&format!("{test} …"));
                    running = Some((test, looked));
                }
                GuestEvent::Ended(ended) => {
                    let since = running.take().map_or(looked, |(_, since)| since);
                    let host = lab.witness.worst_between(since, Instant::now());
                    outcome.record_test_run(TestRun::new(ended, host));
                }
                GuestEvent::Done { log } => outcome.log.extend(log),
            }
        }
        if let Some(end) = end {
            break end;
        }
        sleep(POLL);
    };
    let Err(ending) = ending else { return Ok(()) };
    let stall = running.as_ref().and_then(|(_, since)| {
        let host = lab.witness.worst_between(*since, Instant::now());
        host.exceeds(STALL_LIMIT).then(|| format!("the host {host}"))
    });
    outcome.is_excused |= stall.is_some();
    if let Some((test, since)) = running {
        let stall = stall.or_else(|| ending.excuse().map(str::to_owned));
        outcome.record_test_run(TestRun::ended_with_machine(&test, since, ending.text(), stall));
    }
    Err(ending)
}

/// Boots a machine by KVM, without a test; it has ended when this returns.
pub(crate) fn boots_within(
    limit: Duration,
    cache: &Path,
    tools: &HostTools,
    kernel: &KernelTree,
    boot: &MachinePlan,
) -> Result<(), String> {
    let witness = StallWitness::start().map_err(|error| error.to_string())?;
    let random = RandomArguments::default();
    let lab = LabContext { cache, tools, processors: &ProcessorKind::Hardware, random, witness: &witness };
    let mut reader = MachineReader::start(&lab, kernel, boot, &[])?;
    loop {
        let (events, end) = reader.poll();
        if events.iter().any(|event| matches!(event, GuestEvent::Booted { .. })) {
            return Ok(());
        }
        if let Some(Err(ending)) = end {
            // One line: why it ended, and the console's last output.
            let mut lines = ending.text().lines().filter(|line| !line.trim().is_empty());
            let words = [lines.next(), lines.next_back()].into_iter().flatten();
            return Err(words.collect::<Vec<_>>().join(" "));
        }
        if reader.started.elapsed() > limit {
            return Err(format!("a machine was not up after {} s", limit.as_secs()));
        }
        sleep(POLL);
    }
}

/// A machine, and the position up to which its output was read.
struct MachineReader {
    machine: RunningMachine,
    shared: tempfile::TempDir,
    started: Instant,
    looked: Instant,
    last_event: Instant,
    silence_max: Duration,
    is_emulated: bool,
    read_bytes: usize,
    is_up: bool,
    is_done: bool,
}

impl MachineReader {
    fn start(
        lab: &LabContext<'_>,
        kernel: &KernelTree,
        boot: &MachinePlan,
        tests: &[&'static str],
    ) -> Result<Self, String> {
        let shared = tempfile::Builder::new().prefix("nocopy-vm-").tempdir();
        let shared = shared.map_err(|error| format!("no directory to share with the machine: {error}"))?;
        let machine = RunningMachine::start(lab, kernel, boot, tests, shared.path())
            .map_err(|error| format!("the machine did not start: {error}: is util-linux installed?"))?;
        let longest = guest::time_limit(boot.topology, lab.random);
        let now = Instant::now();
        Ok(Self {
            machine,
            shared,
            started: now,
            looked: now,
            last_event: now,
            silence_max: longest + SILENCE_MORE,
            is_emulated: *lab.processors != ProcessorKind::Hardware,
            read_bytes: 0,
            is_up: false,
            is_done: false,
        })
    }

    /// The events since the last call, and how the machine ended, if it did.
    fn poll(&mut self) -> (Vec<GuestEvent>, Option<Result<(), MachineFailure>>) {
        self.looked = Instant::now();
        // First check whether it has ended, then read: it writes nothing after its end.
        let status = match self.machine.0.try_wait() {
            Ok(status) => status,
            Err(error) => return (Vec::new(), Some(Err(MachineFailure::Early(error.to_string())))),
        };
        // Not there yet, or not readable at this moment: at the next poll.
        let content = fs::read(self.shared.path().join(event::FILE)).unwrap_or_default();
        let new = content.get(self.read_bytes..).unwrap_or_default();
        // The last line may be half written.
        let complete = new.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        let mut events = Vec::new();
        for line in String::from_utf8_lossy(&new[..complete]).lines() {
            match serde_json::from_str(line) {
                Ok(event) => events.push(event),
                Err(error) => {
                    return (events, Some(Err(MachineFailure::Early(format!("'{line}': {error}")))));
                }
            }
            self.last_event = Instant::now();
        }
        self.read_bytes += complete;
        self.is_up |= !events.is_empty();
        self.is_done |= events.iter().any(|event| matches!(event, GuestEvent::Done { .. }));
        let end = self.machine_end(status.map(|status| status.to_string()));
        (events, end)
    }

    fn machine_end(&self, status: Option<String>) -> Option<Result<(), MachineFailure>> {
        let console = || {
            let console = fs::read(self.shared.path().join(CONSOLE)).unwrap_or_default();
            String::from_utf8_lossy(&console).into_owned()
        };
        if let Some(status) = status {
            return Some(if self.is_done {
                Ok(())
            } else {
                let console = console();
                let last = last_lines(&console, CONSOLE_LINES).join("\n");
                let words = format!("it ended early ({status}); its console said last:\n{last}");
                Err(match self.is_up {
                    false => MachineFailure::NeverUp(words),
                    true if self.is_emulated && console.contains(BREAKPOINT) => MachineFailure::Mixed(words),
                    true => MachineFailure::Early(words),
                })
            });
        }
        let silence_max = if self.is_done { END_MAX } else { self.silence_max };
        (self.last_event.elapsed() > silence_max).then(|| {
            let seconds = silence_max.as_secs();
            let last = last_lines(&console(), CONSOLE_LINES).join("\n");
            let words = format!("nothing heard for {seconds} s, killed; its console said last:\n{last}");
            Err(if self.is_up { MachineFailure::Silent(words) } else { MachineFailure::NeverUp(words) })
        })
    }
}

/// The kernel's last message when it dies of a breakpoint that was never set. While the kernel replaces an
/// instruction it puts a breakpoint there (`text_poke_bp`), and removes it after notifying every processor.
/// Emulated processors may still run code that was translated with it. No test in the lab sets breakpoints.
const BREAKPOINT: &str = "int3: 0000 [#";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Kernel, Topology};

    /// As Linux 7.3.4 said it once, in the program that switches `lo` on.
    const BAD_PAGE: &str = "BUG: Bad page state in process ip  pfn:3ff67";

    #[test]
    fn a_complaint_during_boot_prevents_the_tests() {
        let kernel = KernelTree { version: "7".into(), image: "bzImage".into(), modules: "modules".into() };
        let boot = MachinePlan { kernel: Kernel::Newest, topology: Topology::Virtio, tests: vec!["driver"] };
        let mut outcome = MachineResult::new(&kernel, boot);
        let after = Duration::from_secs(9);
        let mut log = KernelLogLines { complaints: Vec::new(), stalls: vec!["rcu: INFO:".into()] };
        assert!(outcome.record_boot("7.3.4".into(), log.clone(), after).is_ok());
        log.complaints.push(BAD_PAGE.into());
        let ending =
            outcome.record_boot("7.3.4".into(), log, after).expect_err("nobody tests on such a kernel");
        assert!(ending.is_before_tests() && ending.text().contains(BAD_PAGE), "{}", ending.text());
        assert_eq!((outcome.log.stalls.len(), outcome.log.complaints.len()), (2, 0));
        for later in [
            MachineFailure::Silent(String::new()),
            MachineFailure::Mixed(String::new()),
            MachineFailure::Early(String::new()),
        ] {
            assert!(!later.is_before_tests());
        }
    }
}
