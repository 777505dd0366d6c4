//! What a command prints when it is done.

use std::io::{self, Write};

use crate::{Failure, Outcome};

/// Prints lines that may have words from a file: what would not be printed but steer the terminal is replaced.
pub(crate) fn text(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    output.write_all(printable(text).as_bytes()).and_then(|()| output.flush()).map_err(Failure::Print)
}

/// Without control characters but ends of lines.
pub(crate) fn printable(text: &str) -> String {
    text.replace(|c: char| c.is_control() && c != '\n', "\u{fffd}")
}

/// Prints a summary, beside what goes to standard output, and says how it went.
pub(crate) fn summary(
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
