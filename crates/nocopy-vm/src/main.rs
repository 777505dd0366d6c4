//! The VM lab: tests on real drivers under a stock kernel. See README.md for the topologies and how to add a
//! test.
//!
//! One binary, two roles: on the *host* it prepares and starts emulated machines; inside each of them, as the
//! *guest*, it runs the tests. The guest sees the host's file system, so it is the same file; that of an
//! arm64 machine is the same program built for it.
//!
//! Exit codes: 0 every test passed, 1 one did not, 2 the lab cannot run, 3 it cannot run on this machine.
#![forbid(unsafe_code)]

mod arguments;
mod built;
mod event;
mod facts;
mod failure;
mod guest;
mod host;
mod registry;
mod topology;

use std::process::ExitCode;

use arguments::{Arguments, Command};
use clap::Parser;

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Run(arguments) => host::run(&arguments),
        Command::List => host::list(),
        Command::Prepare => host::prepare(),
        Command::Init { arguments } => return guest::init::main(&arguments),
        Command::Guest(arguments) => return guest::main(&arguments),
        Command::Test(arguments) => return registry::run_test(&arguments),
        Command::Client => return guest::unprivileged::main(),
        Command::Victim(arguments) => return guest::victim::main(&arguments),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("nocopy-vm: {error}");
            ExitCode::from(if error.is_unsupported_machine() { 3 } else { 2 })
        }
    }
}
