//! The first process of this crate in the guest: runs the tests one by one, and reports to the host.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nocopy_lab::witness::StallWitness;
use rustix::process::{Pid, Signal, kill_process_group};

use super::cards;
use super::kernel_log::KernelLogReader;
use crate::arguments::{GuestArguments, RandomArguments};
use crate::event::{self, GuestEvent, TestResult};
use crate::failure::Failure;
use crate::topology::Topology;

/// A test that takes longer hangs, and is killed. Seen on emulated processors, beside other work: 160 s, with
/// `--soak` 1,700 s, and more than an hour for a whole program of tests.
const TEST_TIMEOUT: Duration = Duration::from_secs(600);
const SOAK_TIMEOUT: Duration = Duration::from_secs(3600);
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(4 * 3600);

/// How long a test may run on a topology before it is killed.
pub(crate) fn time_limit(topology: Topology, random: RandomArguments) -> Duration {
    match topology {
        _ if random.soak => SOAK_TIMEOUT,
        Topology::Veth => PROGRAM_TIMEOUT,
        Topology::Igb | Topology::Virtio | Topology::VirtioTaps => TEST_TIMEOUT,
    }
}

const TEST_POLL: Duration = Duration::from_millis(10);

/// The most lines of a failed test's output that are kept.
const WORDS_LINES_MAX: usize = 30;

pub(crate) fn main(arguments: &GuestArguments) -> ExitCode {
    super::exit_code("nocopy-vm guest", run_all(arguments))
}

fn run_all(arguments: &GuestArguments) -> Result<(), Failure> {
    let mut events =
        EventFile(OpenOptions::new().create(true).append(true).open(arguments.shared.join(event::FILE))?);
    let mut log = KernelLogReader::open()?;
    let witness = StallWitness::start()?;
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    events.write_event(&GuestEvent::Booted { kernel, log: log.new_lines()? })?;
    for test in &arguments.only {
        events.write_event(&GuestEvent::Started { test: test.clone() })?;
        let start = Instant::now();
        let mut ended = run_in_own_process(test, arguments, &mut log)?;
        let oversleep = witness.worst_between(start, Instant::now()).oversleep;
        ended.oversleep_ms = oversleep.as_millis().try_into().unwrap_or(u64::MAX);
        events.write_event(&GuestEvent::Ended(ended))?;
    }
    // Damage done by a test may show only when the driver is unloaded.
    cards::unload_idle_driver(arguments.topology)?;
    events.write_event(&GuestEvent::Done { log: log.new_lines()? })
}

/// Runs a test in its own process: if it dies or hangs, others are not affected, and the kernel removes its
/// sockets, programs and namespaces.
fn run_in_own_process(
    test: &str,
    arguments: &GuestArguments,
    log: &mut KernelLogReader,
) -> Result<TestResult, Failure> {
    let (mut output, mut recorded) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["test", test, "--topology", &arguments.topology.to_string()]);
    command.args(arguments.random.to_command_line());
    command.stdin(Stdio::null()).stdout(recorded.try_clone()?).stderr(output.try_clone()?);
    let started = Instant::now();
    let mut child = command.process_group(0).spawn()?;
    let status = wait_or_kill(&mut child, time_limit(arguments.topology, arguments.random))?;
    let seconds = started.elapsed().as_secs_f64();
    let failure = match status {
        Some(status) if status.success() => None,
        Some(status) => Some(failure_output(&mut output, &status.to_string())?),
        None => Some(failure_output(&mut output, &format!("killed after {seconds:.0} s"))?),
    };
    let measured =
        read_contents(&mut recorded)?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    Ok(TestResult {
        test: test.to_owned(),
        seconds,
        failure,
        log: log.new_lines()?,
        oversleep_ms: 0,
        measured,
    })
}

/// Waits for a test, which leads a process group of its own, and kills what it has left running; `None`: it
/// was killed itself.
pub(super) fn wait_or_kill(child: &mut Child, timeout: Duration) -> io::Result<Option<ExitStatus>> {
    let (group, give_up) = (Pid::from_child(child), Instant::now() + timeout);
    let mut status = child.try_wait()?;
    while status.is_none() && Instant::now() <= give_up {
        sleep(TEST_POLL);
        status = child.try_wait()?;
    }
    let _ = kill_process_group(group, Signal::KILL);
    if status.is_none() {
        child.wait()?;
    }
    Ok(status)
}

/// The last output of a failed test, and how it ended.
fn failure_output(output: &mut File, end: &str) -> io::Result<String> {
    let output = read_contents(output)?;
    let last: Vec<&str> = output.trim_end().lines().rev().take(WORDS_LINES_MAX).collect();
    Ok(last.into_iter().rev().chain([format!("({end})").as_str()]).collect::<Vec<_>>().join("\n"))
}

pub(super) fn read_contents(file: &mut File) -> io::Result<String> {
    file.rewind()?;
    let mut bytes = Vec::new();
    io::Read::read_to_end(file, &mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The file of events, which the host reads while the guest writes.
struct EventFile(File);

impl EventFile {
    fn write_event(&mut self, event: &GuestEvent) -> Result<(), Failure> {
        let mut line = serde_json::to_string(event)?;
        line.push('\n');
        Ok(self.0.write_all(line.as_bytes())?)
    }
}
