//! `nocopy run`: a program as it is, with nocopy in place of libpcap, or between it and its UDP sockets.

mod controls;
mod error;
mod executable;
pub(crate) mod library;
mod listener;
mod process_reports;
mod program;
mod report;
mod signals;
mod sockets;

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus};

use nocopy::integration::poll;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::CapabilitySet;

use crate::arguments::RunArguments;
pub(crate) use error::Error;
use listener::{Listener, ListenerAddress};
use nocopy_lab::{PreloadLibrary, preloadable_path};
use nocopy_report::{ResultFile, capability, print};
use program::CommandProgram;
use report::RunReport;
use signals::{BlockedSignals, EarlySignals};
use sockets::CounterFile;

/// What loads filters, and talks to a command that runs as another user.
const CAPABILITIES: CapabilitySet =
    CapabilitySet::BPF.union(CapabilitySet::NET_ADMIN).union(CapabilitySet::KILL);

/// How often every socket is read after the command's end: its earlier messages are there; other processes
/// may never end.
const LAST_READS_MAX: usize = 64;

/// Runs the command. Returns its exit code, as a shell has it.
pub(crate) fn run(arguments: &RunArguments) -> ExitCode {
    let run = match RunningCommand::start(arguments) {
        Ok(run) => run,
        Err(error) => {
            print::print_status(format_args!("nocopy: {error}"));
            return error.exit_code();
        }
    };
    match run.finish_and_report() {
        (status, Ok(())) => shell_exit_code(status),
        // The command's own failure is more important than a missing report.
        (status, Err(error)) => {
            print::print_status(format_args!("nocopy: {error}"));
            if status.is_some_and(|status| !status.success()) {
                shell_exit_code(status)
            } else {
                error.exit_code()
            }
        }
    }
}

struct RunningCommand<'a> {
    arguments: &'a RunArguments,
    library: std::path::PathBuf,
    program: CommandProgram,
    /// The obstacle that was already printed.
    obstacle: Option<String>,
    file: Option<ResultFile>,
    listener: Listener,
    /// What the library counts of UDP sockets, if it is that library.
    counts: Option<CounterFile>,
    child: Child,
    signals: BlockedSignals,
}

impl<'a> RunningCommand<'a> {
    fn start(arguments: &'a RunArguments) -> Result<Self, Error> {
        let which = if arguments.batch_udp { PreloadLibrary::Sockets } else { PreloadLibrary::Pcap };
        let library = library::find_library(which, arguments.library.as_deref())?;
        let preloaded = preloadable_path(&library)?;
        let file = match &arguments.report {
            Some(Some(path)) => Some(ResultFile::open(path, arguments.force)?),
            _ => None,
        };
        let program = CommandProgram::inspect(&arguments.command[0]);
        let obstacle = program.preload_obstacle(which, library::c_library_of(&library));
        let lacks = if which == PreloadLibrary::Pcap { program.missing_libpcap_warning() } else { None };
        for warning in obstacle.iter().map(|obstacle| &obstacle.text).chain(&lacks) {
            print::print_status(format_args!("nocopy: warning: {warning}"));
        }
        let preloaded =
            Some(preloaded).filter(|_| !obstacle.as_ref().is_some_and(|obstacle| obstacle.is_fatal));
        let (listener, address) = Listener::new().map_err(Error::Socket)?;
        let counts = arguments.batch_udp.then(CounterFile::new).transpose().map_err(Error::CounterFile)?;
        let early_signals = EarlySignals::catch_signals()?;
        let child = spawn_command(arguments, preloaded.as_deref(), &address, counts.as_ref())
            .map_err(|source| Error::from_start_failure(&program, source))?;
        drop(address);
        let signals = match early_signals.block_signals() {
            Ok(signals) => signals,
            Err(error) => return Err(kill_command(child, error)),
        };
        early_signals.pass_on(Pid::from_child(&child));
        // The command gets the descriptors it would have had; this process reads the channels.
        if let Err(error) = capability::drop_all_but(CAPABILITIES) {
            return Err(kill_command(child, error.into()));
        }
        let obstacle = obstacle.map(|obstacle| obstacle.text);
        Ok(Self { arguments, library, program, obstacle, file, listener, counts, child, signals })
    }

    /// Waits, listens and passes signals on until the command has ended; then reports. Returns how it ended,
    /// if that is known.
    fn finish_and_report(mut self) -> (Option<ExitStatus>, Result<(), Error>) {
        match self.wait_for_command() {
            Ok(status) => (Some(status), self.write_report(status)),
            Err(source) => {
                let why = Error::Wait { program: self.program.name().into(), source };
                (None, Err(kill_command(self.child, why)))
            }
        }
    }

    fn wait_for_command(&mut self) -> io::Result<ExitStatus> {
        let command = Pid::from_child(&self.child);
        let end = pidfd_open(command, PidfdFlags::empty())?;
        loop {
            let mut waits = vec![PollFd::new(&end, PollFlags::IN), PollFd::new(&self.signals, PollFlags::IN)];
            waits.extend(
                self.listener.descriptors().map(|other| PollFd::from_borrowed_fd(other, PollFlags::IN)),
            );
            poll(&mut waits, None)?;
            self.signals.pass_on(command);
            self.listener.process_messages();
            if let Some(status) = self.child.try_wait()? {
                let mut reads = 0..LAST_READS_MAX;
                while self.listener.process_messages() && reads.next().is_some() {}
                return Ok(status);
            }
        }
    }

    fn write_report(self, status: ExitStatus) -> Result<(), Error> {
        if !self.arguments.wants_report() {
            return Ok(());
        }
        let command = self.arguments.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let reports = &self.listener.reports;
        let mut report = RunReport::new(command, &self.library, self.arguments.take, status, reports);
        if let Some(counts) = &self.counts {
            let is_empty = report.add_sockets(&counts.read_counters().map_err(Error::ReadCounters)?);
            if is_empty {
                report.add_note(self.obstacle.unwrap_or_else(|| self.program.no_sockets_note()));
            }
        } else if reports.handles.is_empty() {
            report.add_note(self.obstacle.unwrap_or_else(|| self.program.no_handles_note()));
        }
        let text = if self.arguments.json { report.to_json()? } else { report.to_text() };
        match self.file {
            Some(file) => file.write(&text)?,
            // Standard output is closed: the exit code is still the command's.
            None => print::print_status(text.trim_end()),
        }
        Ok(())
    }
}

fn spawn_command(
    arguments: &RunArguments,
    library: Option<&Path>,
    address: &ListenerAddress,
    counts: Option<&CounterFile>,
) -> io::Result<Child> {
    let before = std::env::var_os("LD_PRELOAD");
    let mut command = Command::new(&arguments.command[0]);
    command.args(&arguments.command[1..]);
    if let Some(library) = library {
        command.env("LD_PRELOAD", library::preload_variable(library, before.as_deref()));
    }
    command.env("NOCOPY_RUN_SOCKET", address.environment_value()?);
    match arguments.take {
        true => command.env("NOCOPY_TAKE", "1"),
        false => command.env_remove("NOCOPY_TAKE"),
    };
    match counts {
        Some(counts) => counts.pass_to_command(&mut command)?,
        None => _ = command.env_remove("NOCOPY_BATCH_REPORT"),
    }
    command.spawn()
}

/// Kills a command that cannot be run or watched as asked for.
fn kill_command(mut command: Child, why: Error) -> Error {
    let _ = command.kill();
    let _ = command.wait();
    why
}

/// The exit code that a shell would return for this status.
fn shell_exit_code(status: Option<ExitStatus>) -> ExitCode {
    let code = status.and_then(|status| status.code().or_else(|| status.signal().map(|signal| 128 + signal)));
    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}
