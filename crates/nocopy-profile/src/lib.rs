//! Part of the `nocopy` command, without a promised API: `nocopy profile`, which finds where the time and the
//! copies of network calls go.
//!
//! The *instrument* (`instrument`, `bpf/profile.bpf.c`) opens and closes a window, and returns the *measured*
//! sums and stacks with their counts. All results are computed from these, without further queries of the
//! machine. Each stack has a *category*, found by its functions in a table, where the innermost context
//! decides. *Figures* are computed from them, *checks* compare two independent counts, *advice* is derived
//! from figures. The transfers of `profile sweep` are the bench's (`nocopy_bench::sweep`); its results are
//! computed here.

// Used only by the crates of this workspace: comments are needed only where a name does not suffice.
#![allow(missing_docs)]

mod advice;
mod arguments;
mod category;
mod check;
mod command;
mod error;
mod figures;
#[cfg(test)]
mod fixture;
mod instrument;
mod measured;
mod report;
mod sum;
pub mod sweep;
mod symbols;
mod target;
mod tasks;

use std::ffi::OsString;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub use arguments::{ProfileArguments, ProfileCommand, SweepArguments};
use command::ProfiledCommand;
pub use error::Error as Failure;
use error::Error;
pub use instrument::{CAPABILITIES, KernelTypes, ProfilingWindow, SAMPLES_PER_SECOND};
pub use measured::WindowMeasurement;
use nocopy_report::Interrupt;
use nocopy_report::{Outcome, capability, print};
use report::Report;
pub use target::ProfileTargets;

/// If neither a time nor a command is given.
const DURATION: Duration = Duration::from_secs(5);

/// The interval of checks whether the window is to end.
const LOOK: Duration = Duration::from_millis(20);

/// Profiles the processes and ports that are named; the other commands of [`ProfileCommand`] are not its.
pub fn run(arguments: &ProfileArguments) -> Result<Outcome, Failure> {
    let interrupt = Interrupt::catch()?;
    // Before capabilities are dropped: the command keeps the capabilities of this process.
    let mut command = match &*arguments.command {
        [] => None,
        words => Some(ProfiledCommand::start(words, arguments.json)?),
    };
    capability::drop_all_but(CAPABILITIES)?;
    let targets = resolve_targets(arguments, command.as_ref())?;
    let kernel = KernelTypes::read()?;
    let instrument = ProfilingWindow::open(&kernel, &targets, arguments.frequency)?;
    print::print_status(format_args!("nocopy: profiling {}", target_words(arguments)));
    if let Some(command) = &mut command {
        command.release_to_run()?;
    }
    let duration = arguments.duration.or(command.is_none().then_some(DURATION));
    wait_for_window_end(duration, command.as_ref(), &interrupt);
    let measured = instrument.close_and_read()?;
    let report = Report::from_measurement(target_words(arguments), &measured);
    let text = if arguments.json { report.to_json() } else { report.to_text() };
    // Before the command ends: the caller may not wait for that.
    let outcome = print::print_summary_text::<Error>(&text, false, None, report.outcome())?;
    if let Some(command) = command {
        print::print_status(format_args!("nocopy: the command ended with {}", command.wait_for_exit()?));
    }
    Ok(outcome)
}

/// Names the processes and ports whose traffic is measured.
fn target_words(arguments: &ProfileArguments) -> String {
    let ProfileArguments { pid, port, comm, command, .. } = arguments;
    let command: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let words = [
        (!pid.is_empty()).then(|| format!("process {}", comma_separated(pid))),
        (!comm.is_empty()).then(|| comm.join(", ")),
        (!command.is_empty()).then(|| command.join(" ")),
        (!port.is_empty()).then(|| format!("port {}", comma_separated(port))),
    ];
    words.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn comma_separated(numbers: &[impl ToString]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Part of `profile`: the process that becomes the command.
pub fn become_profiled_command(words: &[OsString]) -> Result<Outcome, Failure> {
    command::become_command(words)
}

fn resolve_targets(
    arguments: &ProfileArguments,
    command: Option<&ProfiledCommand>,
) -> Result<ProfileTargets, Error> {
    let mut processes = arguments.pid.clone();
    for name in &arguments.comm {
        processes.extend(target::processes_named(name)?);
    }
    processes.extend(command.map(ProfiledCommand::process_id));
    Ok(ProfileTargets { processes, ports: arguments.port.clone() })
}

/// Waits until the time is over, the command has ended, or the user interrupts.
fn wait_for_window_end(duration: Option<Duration>, command: Option<&ProfiledCommand>, interrupt: &Interrupt) {
    let start = Instant::now();
    while !interrupt.was_interrupted() {
        let left = duration.map_or(LOOK, |duration| duration.saturating_sub(start.elapsed()));
        if left.is_zero() {
            return;
        }
        match command {
            Some(command) if command.has_exited_within(left.min(LOOK)) => return,
            Some(_) => {}
            None => sleep(left.min(LOOK)),
        }
    }
}
