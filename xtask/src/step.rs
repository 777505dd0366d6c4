//! A step: a command with a name, usually run from the root of the repository.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;

use crate::gate::Outcome;

#[derive(Debug)]
pub(crate) struct Failed(pub(crate) String);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Failed> for Outcome {
    fn from(Failed(text): Failed) -> Self {
        let name = text.lines().next().unwrap_or_default().to_owned();
        Outcome::failed(name, text)
    }
}

impl From<Result<(), Failed>> for Outcome {
    fn from(result: Result<(), Failed>) -> Self {
        result.map_or_else(Outcome::from, |()| Outcome::passed())
    }
}

pub(crate) fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository").to_owned()
}

pub(crate) fn is_run_as_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[derive(Debug)]
pub(crate) struct CommandStep {
    name: String,
    program: String,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
    directory: PathBuf,
}

impl CommandStep {
    pub(crate) fn new(name: &str, program: &str, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let (name, program) = (name.to_owned(), program.to_owned());
        Self { name, program, arguments, variables: Vec::new(), directory: repository_root() }
    }

    pub(crate) fn cargo(name: &str, arguments: &[&str]) -> Self {
        Self::new(name, &std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()), arguments)
    }

    pub(crate) fn with_variable(mut self, variable: &str, value: &str) -> Self {
        self.variables.push((variable.to_owned(), value.to_owned()));
        self
    }

    /// In another directory than the root of the repository.
    pub(crate) fn in_directory(mut self, directory: &Path) -> Self {
        directory.clone_into(&mut self.directory);
        self
    }

    fn to_command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).current_dir(&self.directory).stdin(Stdio::null());
        command.envs(self.variables.iter().map(|(variable, value)| (variable, value)));
        command
    }

    pub(crate) fn succeeds_quietly(&self) -> bool {
        let status = self.to_command().stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }

    /// Runs the command and shows its messages; returns its standard output. Errors: the command failed; the
    /// error has all messages.
    pub(crate) fn captured_output(&self) -> Result<String, Failed> {
        let (printed, messages, status) = self.run_to_end(false)?;
        if status.success() { Ok(printed) } else { Err(self.failure(&messages)) }
    }

    /// Runs the command, and shows its whole output.
    pub(crate) fn run(&self) -> Result<(), Failed> {
        let (_, messages, status) = self.run_to_end(true)?;
        if status.success() { Ok(()) } else { Err(self.failure(&messages)) }
    }

    /// Runs the command and shows its output; returns its exit code, if any, and its output.
    pub(crate) fn run_for_status(&self) -> Result<(Option<i32>, String), Failed> {
        self.run_to_end(true).map(|(_, messages, status)| (status.code(), messages))
    }

    /// Writes the output of the command into a file.
    pub(crate) fn into_file(self, path: &str) -> Result<(), Failed> {
        write_file(&repository_root().join(path), self.captured_output()?)
    }

    fn failure(&self, why: &dyn fmt::Display) -> Failed {
        Failed(format!("{}: '{} {}'\n{why}", self.name, self.program, self.arguments.join(" ")))
    }

    /// The standard output, the messages (with `together` both), and the exit status.
    fn run_to_end(&self, together: bool) -> Result<(String, String, ExitStatus), Failed> {
        eprintln!("xtask: {}", self.name);
        let failed = |error: std::io::Error| self.failure(&error);
        let mut command = self.to_command();
        let (messages, writer) = std::io::pipe().map_err(failed)?;
        let stdout = if together { writer.try_clone().map_err(failed)?.into() } else { Stdio::piped() };
        let mut child = command.stdout(stdout).stderr(writer).spawn().map_err(failed)?;
        drop(command); // it holds the pipe's other end
        let printed = child.stdout.take();
        let (printed, messages) = thread::scope(|scope| {
            let printed = scope.spawn(|| read_to_end(printed));
            let messages = print_while_reading(messages);
            (printed.join().expect("reading does not panic"), messages)
        });
        let status = child.wait().map_err(failed)?;
        Ok((printed, messages, status))
    }
}

fn read_to_end(from: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    // The bytes read before an error are all there is.
    let _ = from.map(|mut from| from.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Prints the input line by line as it arrives, and returns it.
fn print_while_reading(from: impl Read) -> String {
    let mut text = String::new();
    for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        eprintln!("{line}");
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// A program that is started by a line of sh(1) with `exec "$@"`.
pub(crate) fn command_after_shell_line(line: &str, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", line, "sh"]).arg(program);
    command
}

pub(crate) fn run_steps(steps: &[CommandStep]) -> Result<(), Failed> {
    steps.iter().try_for_each(CommandStep::run)
}

/// The date in UTC, such as `2026-11-30`.
pub(crate) fn date_today() -> Result<String, Failed> {
    let date = CommandStep::new("date", "date", &["--utc", "+%Y-%m-%d"]).captured_output()?;
    Ok(date.trim().to_owned())
}

/// Writes a file, in a directory that may have to be made.
pub(crate) fn write_file(path: &Path, content: impl AsRef<[u8]>) -> Result<(), Failed> {
    let directory = path.parent().expect("a file lies in a directory");
    let written = fs::create_dir_all(directory).and_then(|()| fs::write(path, content));
    written.map_err(|error| Failed(format!("{}: {error}", path.display())))
}

/// The files of a directory of the repository whose names end so, in the order of their names.
pub(crate) fn files_with_ending(directory: &str, end: &str) -> Result<Vec<PathBuf>, Failed> {
    let directory = repository_root().join(directory);
    let failed = |error| Failed(format!("{}: {error}", directory.display()));
    let entries = fs::read_dir(&directory).map_err(failed)?;
    let paths: Result<Vec<_>, _> = entries.map(|entry| Ok(entry?.path())).collect();
    let mut paths = paths.map_err(failed)?;
    paths.retain(|path| path.to_string_lossy().ends_with(end));
    paths.sort();
    Ok(paths)
}
