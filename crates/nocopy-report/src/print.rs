//! Output of commands: results at the end, and messages before. Control characters in text from other sources
//! are removed.

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Failure, Outcome, Summary};

/// Whether standard output, which a process has once, is an output for data.
static STANDARD_OUTPUT_HAS_DATA: AtomicBool = AtomicBool::new(false);

/// From now on text goes to standard error, because standard output is for data.
pub(crate) fn send_text_to_standard_error() {
    // Relaxed, as where it is read: no other memory depends on it.
    STANDARD_OUTPUT_HAS_DATA.store(true, Ordering::Relaxed);
}

/// Prints lines that may contain text of a file, a peer or another process.
pub fn print_text(text: &str) -> Result<(), Failure> {
    let printed = match STANDARD_OUTPUT_HAS_DATA.load(Ordering::Relaxed) {
        true => write_printable(io::stderr().lock(), text),
        false => write_printable(io::stdout().lock(), text),
    };
    printed.map_err(Failure::Print)
}

/// Prints a line on standard error. A failure (a closed pipe, a full disk) is ignored, where `eprintln!`
/// would panic.
pub fn print_status(line: impl fmt::Display) {
    let _ = write_printable(io::stderr().lock(), &format!("{line}\n"));
}

/// Prints a summary, apart from what is written to standard output, and returns the exit code.
pub fn print_summary_text<F: From<Failure>>(
    text: &str,
    to_stderr: bool,
    failure: Option<F>,
    outcome: Outcome,
) -> Result<Outcome, F> {
    let printed = match to_stderr {
        true => write_printable(io::stderr().lock(), text).map_err(Failure::Print),
        false => self::print_text(text),
    };
    match (failure, printed) {
        (Some(failure), _) => Err(failure),
        (None, Err(failure)) if !failure.is_broken_pipe() => Err(failure.into()),
        // The exit code does not depend on whether the summary could be printed.
        (None, _) => Ok(outcome),
    }
}

/// Prints a summary as JSON or as a table, and returns the exit code.
pub fn print_summary<S: Summary, F: From<Failure>>(
    done: &S,
    json: bool,
    failure: Option<F>,
) -> Result<Outcome, F> {
    print_summary_text(&crate::summary::summary_text(done, json), false, failure, done.outcome())
}

/// The text without control characters except tabs and newlines: others would control the terminal.
pub fn replace_control_characters(text: &str) -> String {
    text.replace(|c: char| c.is_control() && !matches!(c, '\n' | '\t'), "\u{fffd}")
}

/// A name, without any control character: with a newline it would look like several.
pub fn replace_all_control_characters(name: &str) -> String {
    name.replace(|c: char| c.is_control(), "\u{fffd}")
}

/// Reads JSON that anybody may have written: each of its strings is [one
/// line](replace_all_control_characters).
///
/// # Errors
/// It is no JSON, or not of this type.
pub fn parse_untrusted_json<T: DeserializeOwned>(json: &[u8]) -> serde_json::Result<T> {
    let mut value: Value = serde_json::from_slice(json)?;
    clean_json_strings(&mut value);
    serde_json::from_value(value)
}

fn clean_json_strings(value: &mut Value) {
    match value {
        Value::String(text) => *text = replace_all_control_characters(text),
        Value::Array(values) => values.iter_mut().for_each(clean_json_strings),
        Value::Object(fields) => fields.values_mut().for_each(clean_json_strings),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn write_printable(mut output: impl Write, text: &str) -> io::Result<()> {
    output.write_all(replace_control_characters(text).as_bytes()).and_then(|()| output.flush())
}
