//! `nocopy recv`: what a host sends, and what is known of what did not come.

mod output;
mod tcp;
mod udp;

use std::io::{self, Write};
use std::time::Duration;

use crate::arguments::RecvArguments;
use crate::endpoint::Scheme;
use crate::interrupt::Interrupt;
use crate::{Failure, Outcome};
pub(crate) use tcp::Error as TcpError;
pub(crate) use udp::Error as UdpError;

/// How long a sender may be silent unless told: it is heard several times a second.
const IDLE: Duration = Duration::from_secs(10);

pub(crate) fn run(arguments: &RecvArguments) -> Result<Outcome, Failure> {
    let interrupt = Interrupt::listen()?;
    match arguments.address.scheme() {
        Scheme::Udp => udp::run(arguments, interrupt),
        Scheme::Tcp => tcp::run(arguments, interrupt),
    }
}

/// Prints a summary, beside what goes to standard output, and says how it went.
fn print(
    text: &str,
    to_stderr: bool,
    failure: Option<Failure>,
    outcome: Outcome,
) -> Result<Outcome, Failure> {
    let printed = match to_stderr {
        true => io::stderr().lock().write_all(text.as_bytes()),
        false => io::stdout().lock().write_all(text.as_bytes()),
    };
    match (failure, printed.map_err(Failure::Print)) {
        (Some(failure), _) => Err(failure),
        (None, Err(failure)) if !failure.is_broken_pipe() => Err(failure),
        // Whether or not anybody reads it, it went as it went.
        (None, _) => Ok(outcome),
    }
}
