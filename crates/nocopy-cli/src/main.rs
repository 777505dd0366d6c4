//! The `nocopy` command, a program without an API: parse, then act.
//!
//! Exit codes: 0 done, 1 a negative result (for example, packets were lost), 2 an error.

mod arguments;
mod doctor;
mod failure;
mod interfaces;
mod manual;
mod record;
mod report;
mod run;
mod sniff;
#[cfg(any(test, target_env = "musl"))]
mod static_libc;
mod stats;
mod take;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arguments::{Arguments, Command, ServiceArguments};
use failure::Failure;
use nocopy_profile::ProfileCommand;
use nocopy_report::{Outcome, capability, print};
use nocopy_transfer::{call, ping, recv, send, serve};

fn main() -> ExitCode {
    let arguments = Arguments::parse_or_exit();
    if let Err(failure) = handle_file_size_signal() {
        return print_failure(&failure);
    }
    let outcome = match arguments.command {
        Command::Bench(arguments) => nocopy_bench::run(&arguments).map_err(Failure::from),
        Command::BenchChild { kind, task } => nocopy_bench::run_child(kind, &task).map_err(Failure::from),
        Command::Report(arguments) => report::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Stats(arguments) => stats::run(&arguments),
        Command::Sniff(arguments) => sniff::run(&arguments),
        Command::Record(arguments) => record::run(&arguments),
        Command::RecordGuard => run_unprivileged(record::guard::run_guard_process),
        Command::Send(arguments) => send::run(&arguments).map_err(Failure::from),
        Command::Recv(arguments) => recv::run(&arguments).map_err(Failure::from),
        Command::Ping(arguments) => ping::run(&arguments).map_err(Failure::from),
        Command::Serve(arguments) => match arguments.service_arguments() {
            ServiceArguments::Messages(arguments) => serve::run(arguments).map_err(Failure::from),
            ServiceArguments::Nfs(arguments) => nocopy_nfs::command::run(arguments).map_err(Failure::from),
        },
        Command::Ls(arguments) => nocopy_nfs::command::ls(&arguments).map_err(Failure::from),
        Command::Cat(arguments) => nocopy_nfs::command::cat(&arguments).map_err(Failure::from),
        Command::Cp(arguments) => nocopy_nfs::command::cp(&arguments).map_err(Failure::from),
        Command::Call(arguments) => call::run(&arguments).map_err(Failure::from),
        Command::Profile(arguments) => match &arguments.other {
            Some(ProfileCommand::Sweep(sweep)) => nocopy_bench::sweep::run(sweep).map_err(Failure::from),
            None => nocopy_profile::run(&arguments).map_err(Failure::from),
        },
        Command::ProfileStart { command } => {
            nocopy_profile::become_profiled_command(&command).map_err(Failure::from)
        }
        // Its exit codes are the program's.
        Command::Run(arguments) => return run::run(&arguments),
        Command::Man { command, output } => run_unprivileged(|| match &output {
            Some(directory) => manual::write_manual_pages(directory),
            None => manual::print_manual_page(command.as_deref()),
        }),
        Command::Completions { shell } => run_unprivileged(|| manual::print_completions(shell)),
    };
    match outcome {
        Ok(Outcome::Positive) => ExitCode::SUCCESS,
        Ok(Outcome::Negative) => ExitCode::from(1),
        // `nocopy bench | head`: the reader has read enough.
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => print_failure(&failure),
    }
}

fn print_failure(failure: &Failure) -> ExitCode {
    print::print_status(format_args!("nocopy: {failure}"));
    ExitCode::from(2)
}

fn run_unprivileged(print: impl FnOnce() -> Result<Outcome, Failure>) -> Result<Outcome, Failure> {
    capability::drop_all_but(capability::NONE)?;
    print()
}

/// Makes a file that becomes longer than `ulimit -f` allows an error of the write, and not the end of the
/// process (SIGXFSZ). For every command: any output may be a file.
fn handle_file_size_signal() -> Result<(), Failure> {
    let noted = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, noted)
        .map(drop)
        .map_err(|error| nocopy_report::Failure::Signals(error).into())
}
