//! One run of one test: its own process, in its own network namespace, with a time limit.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nocopy_lab::Namespace;
use nocopy_lab::libtest::{self, Verdict};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};

use super::binaries::TestCase;
use super::sanitizer::SanitizerFiles;
use super::terminal::PseudoTerminal;
use crate::machines::MachineVariant;
use crate::processes;
use crate::step::command_after_shell_line;

/// A test that has not ended by then hangs: many times the longest test's time on a slow machine.
const TIME_LIMIT: Duration = Duration::from_secs(300);

/// As [`TIME_LIMIT`], where the disk takes 300 ms each time: some tests write thousands of files.
const SLOW_DISK_LIMIT: Duration = Duration::from_secs(1800);

/// The seed of property tests in the gate.
const FIXED_SEED: u64 = 20_261_123;

/// Its seccomp filter lets all other system calls pass without a stop.
const SLOW_DISK: &str = "exec strace -f --seccomp-bpf -qq -o /dev/null -e trace=fsync,fdatasync,syncfs \
    -e inject=fsync,fdatasync,syncfs:delay_enter=300ms \"$@\"";

#[derive(Debug)]
pub(crate) struct TestAttempt {
    pub(crate) verdict: Verdict,
    pub(crate) output: String,
    pub(crate) start: Instant,
    pub(crate) end: Instant,
}

/// How the tests of this run are started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TestConditions<'a> {
    /// Each test in its own network namespace, which needs root.
    pub(crate) isolated: bool,
    /// The seed of random tests, if not the usual one.
    pub(crate) seed: Option<u64>,
    /// Set if the tests are built with the sanitizer.
    pub(crate) sanitizer: Option<&'a SanitizerFiles>,
    /// Which standard streams the tests have; they inherit the rest.
    pub(crate) face: &'a MachineVariant,
    /// Writing files to the disk takes 300 ms each time.
    pub(crate) slow_disk: bool,
}

impl TestAttempt {
    /// Runs a test to its end, or to its time limit.
    pub(crate) fn run(case: &TestCase, conditions: TestConditions<'_>) -> Self {
        let start = Instant::now();
        let (verdict, output) = match start_test(case, conditions) {
            Ok(started) => verdict_of_finished_test(
                started,
                if conditions.slow_disk { SLOW_DISK_LIMIT } else { TIME_LIMIT },
            ),
            Err(error) => (Verdict::Failed, format!("cannot be started: {error}")),
        };
        Self { verdict, output, start, end: Instant::now() }
    }
}

struct StartedTest {
    child: Child,
    output: File,
    terminal: Option<PseudoTerminal>,
}

fn start_test(case: &TestCase, conditions: TestConditions<'_>) -> std::io::Result<StartedTest> {
    let output = tempfile::tempfile()?;
    let own = std::env::current_exe()?;
    let mut command = match conditions.face.value_of("input") {
        Some(_) => command_after_shell_line("exec \"$@\" <&-", own),
        None if conditions.slow_disk => command_after_shell_line(SLOW_DISK, own),
        None => Command::new(own),
    };
    command.arg("start").args(conditions.isolated.then_some("--isolated")).arg(&case.binary.path);
    command.args(libtest::single_test_arguments(&case.test)).current_dir(&case.binary.directory);
    command.env("CARGO_MANIFEST_DIR", &case.binary.directory);
    command.env("PROPTEST_RNG_SEED", conditions.seed.unwrap_or(FIXED_SEED).to_string());
    match conditions.seed {
        Some(seed) => command.env("NOCOPY_TEST_SEED", seed.to_string()),
        None => command.env_remove("NOCOPY_TEST_SEED"),
    };
    if let Some(sanitizer) = conditions.sanitizer {
        command.envs(sanitizer.variables());
    }
    // Not its own session: its leader would get the first terminal that a test opens as its controlling
    // terminal.
    command.process_group(0);
    let terminal = match conditions.face.numeric_value_of("terminal") {
        None => {
            command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
            None
        }
        Some(columns) => {
            let (terminal, end) =
                PseudoTerminal::open(u16::try_from(columns).unwrap_or(u16::MAX), output.try_clone()?)?;
            command.stdin(end.try_clone()?).stdout(end.try_clone()?).stderr(end);
            Some(terminal)
        }
    };
    Ok(StartedTest { child: command.spawn()?, output, terminal })
}

fn verdict_of_finished_test(
    StartedTest { mut child, output: mut file, terminal }: StartedTest,
    limit: Duration,
) -> (Verdict, String) {
    let ended = wait_or_kill(&mut child, limit);
    let mut output = Vec::new();
    let copied = terminal.map_or(Ok(()), PseudoTerminal::close);
    let read = copied.and_then(|()| file.rewind()).and_then(|()| file.read_to_end(&mut output));
    let mut output = String::from_utf8_lossy(&output).into_owned();
    match (ended, read) {
        (Ok(Some(status)), Ok(_)) => (libtest::verdict(status, &output), output),
        (Ok(None), _) => {
            output.push_str(&format!("\nnot ended after {} s: killed", limit.as_secs()));
            (Verdict::Failed, output)
        }
        (Err(error), _) | (_, Err(error)) => (Verdict::Failed, format!("{output}\n{error}")),
    }
}

/// Waits for the end of a test; `None` when its time was up and it was killed, with the processes that it had
/// started.
pub(crate) fn wait_or_kill(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let pid = Pid::from_child(child);
    let handle = pidfd_open(pid, PidfdFlags::empty())?;
    let limit = Timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: 0 };
    let ended = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&limit))?;
    if ended == 0 {
        for process in processes::process_and_descendants(pid) {
            let _ = kill_process(process, Signal::KILL); // it may have ended by itself
        }
    }
    // Processes that a failed test has left running; the group's number is not reused until `wait`.
    let _ = kill_process_group(pid, Signal::KILL);
    let status = child.wait()?;
    Ok((ended > 0).then_some(status))
}

/// Replaces this process by `program`, which is killed when xtask ends; if `isolated`, in a network namespace
/// that has only a loopback interface.
pub(crate) fn exec_test_program(program: &str, arguments: &[String], isolated: bool) -> ExitCode {
    let refused = |what: &str, error: &dyn std::fmt::Display| {
        eprintln!("xtask: {program}: {what}: {error}");
        ExitCode::FAILURE
    };
    // In its own process group the test does not receive the terminal's Ctrl-C.
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        return refused("no death signal", &error);
    }
    if isolated {
        match Namespace::new_with_loopback().map(|namespace| namespace.enter()) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return refused("cannot enter a network namespace", &error),
            Err(error) => return refused("no network namespace", &error),
        }
    }
    refused("exec", &Command::new(program).args(arguments).exec())
}
