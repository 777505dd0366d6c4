//! The `nocopy` command: parse, then act.
//!
//! Exit codes: 0 done, 1 a negative result (something measured was not there), 2 an error.

mod arguments;
mod arrivals;
mod bench;
mod call;
mod capability;
mod control;
mod doctor;
mod endpoint;
mod exchange;
mod failure;
mod interrupt;
mod ledger;
mod live;
mod manual;
mod output_file;
mod ping;
mod print;
mod processor;
mod profile;
mod quantity;
mod record;
mod recv;
mod report;
mod result_file;
mod run;
mod send;
mod serve;
mod sniff;
mod stats;
mod table;
mod taking;
mod transfer;
mod wall_clock;

use std::process::ExitCode;

use arguments::{Arguments, Command};
use failure::Failure;

/// What a command found, when it found out at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Positive,
    Negative,
}

fn main() -> ExitCode {
    let arguments = Arguments::read();
    let outcome = match arguments.command {
        Command::Bench(arguments) => bench::run(&arguments),
        Command::BenchPeer { task } => bench::stream::run(&task),
        Command::BenchInject { interface, frame } => bench::inject(&interface, &frame),
        Command::Report(arguments) => report::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Stats(arguments) => stats::run(&arguments),
        Command::Sniff(arguments) => sniff::run(&arguments),
        Command::Record(arguments) => record::run(&arguments),
        Command::RecordGuard => unprivileged(record::guard::run),
        Command::Send(arguments) => send::run(&arguments),
        Command::Recv(arguments) => recv::run(&arguments),
        Command::Ping(arguments) => ping::run(&arguments),
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Call(arguments) => call::run(&arguments),
        Command::Profile(arguments) => profile::run(&arguments),
        Command::ProfileStart { command } => profile::start(&command),
        // Its exit codes are the program's.
        Command::Run(arguments) => return run::run(&arguments),
        Command::Man { command } => unprivileged(|| manual::print_page(command.as_deref())),
        Command::Completions { shell } => unprivileged(|| manual::print_completions(shell)),
    };
    match outcome {
        Ok(Outcome::Positive) => ExitCode::SUCCESS,
        Ok(Outcome::Negative) => ExitCode::from(1),
        // `nocopy bench | head`: whoever reads has read enough.
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            print::say(format_args!("nocopy: {failure}"));
            ExitCode::from(2)
        }
    }
}

fn unprivileged(print: impl FnOnce() -> Result<Outcome, Failure>) -> Result<Outcome, Failure> {
    capability::drop_all_but(capability::NONE)?;
    print()
}
