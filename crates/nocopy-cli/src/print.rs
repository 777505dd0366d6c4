//! What a command prints when it is done.

use std::io::{self, Write};

use crate::{Failure, Outcome};

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
