//! Lines of sh(1) that run in a network namespace, each with its processes in a group of their own, which
//! ends with it.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nocopy_lab::Namespace;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::step::Failed;

/// The longest time that a program may run.
const TIME_MAX: Duration = Duration::from_secs(60);

/// The time a program may take to end on request; then it is killed.
const END_MAX: Duration = Duration::from_secs(5);

const LOOK: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(crate) struct RunningProgram {
    child: Child,
    group: Pid,
    line: String,
    printed: PathBuf,
}

impl RunningProgram {
    pub(crate) fn start(
        namespace: &Namespace,
        directory: &Path,
        variables: &[(&str, String)],
        line: &str,
    ) -> Result<Self, Failed> {
        let count = fs::read_dir(directory).map_or(0, Iterator::count);
        let printed = directory.join(format!("said-{count}"));
        let failed = |error: io::Error| Failed(format!("'{line}': {error}"));
        let output = File::create(&printed).map_err(failed)?;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", line]).current_dir(directory).process_group(0);
        command.envs(variables.iter().map(|(name, value)| (*name, value)));
        command.stdin(Stdio::null()).stdout(output.try_clone().map_err(failed)?).stderr(output);
        let child = namespace.run(|| command.spawn()).map_err(failed)?;
        Ok(Self { group: Pid::from_child(&child), child, line: line.to_owned(), printed })
    }

    /// Waits until it has ended, successfully.
    pub(crate) fn wait_for_success(&mut self) -> Result<(), Failed> {
        match self.wait_for_end()? {
            status if status.success() => Ok(()),
            status => Err(self.error(&status.to_string())),
        }
    }

    /// Waits until it has ended.
    pub(crate) fn wait_for_end(&mut self) -> Result<ExitStatus, Failed> {
        let status = self.wait_at_most(TIME_MAX);
        status.ok_or_else(|| self.error(&format!("has not ended after {} s", TIME_MAX.as_secs())))
    }

    /// What it printed, once it has ended successfully.
    pub(crate) fn wait_for_output(mut self) -> Result<String, Failed> {
        self.wait_for_success()?;
        Ok(self.output_so_far())
    }

    /// The process of the line itself.
    pub(crate) fn process_id(&self) -> Pid {
        self.group
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Interrupts the process of the line, and no other.
    pub(crate) fn interrupt(&mut self) {
        if !self.has_ended() {
            let _ = kill_process(self.group, Signal::INT);
        }
    }

    /// Asks its processes to end.
    pub(crate) fn stop(&mut self) {
        let _ = kill_process_group(self.group, Signal::TERM);
        self.wait_at_most(END_MAX);
    }

    fn wait_at_most(&mut self, time: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        while start.elapsed() < time {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            sleep(LOOK);
        }
        None
    }

    /// What it has printed so far.
    pub(crate) fn output_so_far(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.printed).unwrap_or_default()).into_owned()
    }

    pub(crate) fn error(&self, why: &str) -> Failed {
        Failed(format!("'{}': {why}\n{}", self.line, self.output_so_far()))
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        // Fails if all have ended.
        let _ = kill_process_group(self.group, Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Waits until a UDP port, or a listening TCP port, is open in a namespace.
pub(crate) fn wait_for_port(namespace: &Namespace, port: u16, opener: &RunningProgram) -> Result<(), Failed> {
    let is_open = || {
        ["udp", "udp6", "tcp", "tcp6"].iter().any(|kind| {
            let sockets = fs::read_to_string(format!("/proc/thread-self/net/{kind}")).unwrap_or_default();
            sockets.lines().any(|line| local_port(line) == Some(port))
        })
    };
    let start = Instant::now();
    while start.elapsed() < TIME_MAX {
        if namespace.run(is_open) {
            return Ok(());
        }
        sleep(LOOK);
    }
    Err(opener.error(&format!("has not opened port {port}")))
}

/// The second field of a line is the local address, as hexadecimal digits.
fn local_port(line: &str) -> Option<u16> {
    let (_, port) = line.split_whitespace().nth(1)?.split_once(':')?;
    u16::from_str_radix(port, 16).ok()
}
