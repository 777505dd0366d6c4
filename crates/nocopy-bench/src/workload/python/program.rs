//! A program in Python, in a process of its own, which counts what it moves in memory that the bench reads.
//!
//! ```text
//!   bench ── task (argument), counters (stdin: a file in memory) ──▶ python -c PROGRAM ── ledger (stdout) ──▶ bench
//! ```

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::process::{ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use serde::Serialize;

use super::interpreter::Interpreter;
use crate::child::ScopedChild;
use crate::cpu;
use crate::lines::PATIENCE;
use crate::traffic::ThreadWork;
use crate::window::{TrialPhase, WindowGauge};

/// What each program begins with.
const REPORT: &str = include_str!("programs/report.py");

/// The interval at which the counters are read.
const POLL_INTERVAL: Duration = Duration::from_micros(500);

/// Of the memory that the program counts in: its pages need not be the machine's.
const COUNTER_FILE_BYTES: u64 = 64 << 10;

/// Which counter is where; the programs have the same list.
#[derive(Debug, Clone, Copy)]
enum Counter {
    Packets,
    Ready,
    Stop,
}

/// One of the programs, and its method's name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Program {
    pub method: &'static str,
    pub text: &'static str,
}

/// What is known about a program when it has ended.
#[derive(Debug, Default)]
pub(super) struct ProgramReport {
    /// Processor time within the window.
    pub cpu: Duration,
    /// What it printed.
    pub output: String,
}

/// Where the thread that follows a program leaves the report.
#[derive(Debug, Default)]
pub(super) struct ReportCell(Mutex<ProgramReport>);

impl ReportCell {
    pub(super) fn into_report(self) -> ProgramReport {
        self.0.into_inner().expect("nothing panics with it")
    }
}

/// The process; killed when dropped.
#[derive(Debug)]
pub(super) struct RunningProgram {
    method: &'static str,
    child: ScopedChild,
    counters: File,
}

impl RunningProgram {
    /// Starts it in the calling thread's namespace and on its processor; returns when it is ready.
    pub(super) fn start(
        interpreter: &Interpreter,
        program: Program,
        task: &impl Serialize,
    ) -> io::Result<Self> {
        let counters = File::from(memfd_create("counters", MemfdFlags::CLOEXEC)?);
        ftruncate(&counters, COUNTER_FILE_BYTES)?;
        let text = format!("{REPORT}\n{}", program.text);
        let mut command = interpreter.command(&text);
        command.arg(serde_json::to_string(task)?).stdin(counters.try_clone()?);
        let child = ScopedChild(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?);
        let mut running = Self { method: program.method, child, counters };
        let start = Instant::now();
        while running.read_counter(Counter::Ready)? == 0 {
            running.check_running()?;
            if start.elapsed() > PATIENCE {
                return Err(io::Error::other(format!("the program of {} does not begin", program.method)));
            }
            sleep(POLL_INTERVAL);
        }
        Ok(running)
    }

    /// The kernel copies the eight bytes, which the program stores at once.
    fn read_counter(&self, counter: Counter) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.counters.read_exact_at(&mut bytes, counter as u64 * 8)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// What it has counted so far.
    pub(super) fn packets(&self) -> io::Result<u64> {
        self.read_counter(Counter::Packets)
    }

    /// Asks it to end, and waits for that; returns what it printed.
    pub(super) fn end(mut self) -> io::Result<String> {
        self.stop()
    }

    /// Processor time of all its threads so far.
    pub(super) fn cpu_time(&self) -> io::Result<Duration> {
        cpu::cpu_time_of_process(self.child.id())
    }

    fn check_running(&mut self) -> io::Result<()> {
        match self.child.try_wait()? {
            Some(status) => Err(self.failure(status)),
            None => Ok(()),
        }
    }

    /// With the last line that it printed: Python's name for the error.
    fn failure(&mut self, status: ExitStatus) -> io::Error {
        let mut text = String::new();
        if let Some(output) = &mut self.child.stderr {
            // Without it the status alone is reported.
            let _ = output.read_to_string(&mut text);
        }
        let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it printed nothing").trim();
        io::Error::other(format!("the program of {} ended ({status}): {last}", self.method))
    }

    /// The work of a thread that counts what the program moves, until that phase.
    pub(super) fn into_work<'a>(self, report: &'a ReportCell, end: TrialPhase) -> ThreadWork<'a> {
        Box::new(move |gauge| {
            let done = self.follow(gauge, end)?;
            *report.0.lock().expect("nothing panics with it") = done;
            Ok(())
        })
    }

    /// Counts what it moves, until that phase; then ends it.
    fn follow(mut self, gauge: &mut WindowGauge<'_>, end: TrialPhase) -> io::Result<ProgramReport> {
        let (mut counted, mut before, mut after) = (0, None, None);
        while gauge.phase() < end {
            let packets = self.packets()?;
            gauge.count_packets(packets - counted);
            counted = packets;
            if before.is_none() && gauge.is_measuring() {
                before = Some(self.cpu_time()?);
            }
            if after.is_none() && !gauge.may_send() {
                after = Some(self.cpu_time()?);
            }
            self.check_running()?;
            sleep(POLL_INTERVAL);
        }
        let after = after.map_or_else(|| self.cpu_time(), Ok)?;
        let output = self.stop()?;
        gauge.count_packets(self.packets()? - counted);
        Ok(ProgramReport { cpu: after.saturating_sub(before.unwrap_or(after)), output })
    }

    fn stop(&mut self) -> io::Result<String> {
        self.counters.write_all_at(&1_u64.to_ne_bytes(), Counter::Stop as u64 * 8)?;
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait()? {
                Some(status) => break status,
                None if start.elapsed() > PATIENCE => {
                    return Err(io::Error::other(format!("the program of {} does not end", self.method)));
                }
                None => sleep(POLL_INTERVAL),
            }
        };
        if !status.success() {
            return Err(self.failure(status));
        }
        let mut text = String::new();
        self.child.stdout.take().map_or(Ok(0), |mut output| output.read_to_string(&mut text))?;
        Ok(text)
    }
}
